"""Whole records beside damage that are of an earlier life of their file.

A page that never reached the disk shows what was there before: where the log was cut off once and
written anew, whole records at their own places, every CRC right, of messages that are gone. Rows
and index lead elsewhere, or to other messages at the same place.

They count as damaged where no row and no entry of the index leads to any of them, and at least
every fourth one is contradicted: its queue offset's row leads elsewhere, something leads into it,
or the index knows another key for its place.
Only a few records right before or behind damage, or at the border of a file, can be of one page.

Where no row and no entry is left to tell, their times are (`rmqctl.store.log.earlier_life`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby

from rmqctl.errors import FormatError
from rmqctl.formats.local.message import MIN_SIZE, Record, decode
from rmqctl.repair.salvage.records import MOST_BODY
from rmqctl.repair.salvage.survey.survey import Region, Survey
from rmqctl.scan.damage.extents import key_hashes
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import Witness
from rmqctl.store.log.earlier_life import (
    MOST,
    Damaged,
    Leads,
    of_unclear_age,
    records_between,
)
from rmqctl.store.store import Store


def stale_records(store: Store, parts: Sequence[LogPart], survey: Survey) -> set[int]:
    """Physical offsets of records that are of an earlier life. StoreIOError."""
    found: set[int] = set()
    for part, regions in _damaged(parts, survey):
        assert part.witness is not None
        with part.open() as source:
            for start, end in _between(part, regions):
                records = records_between(source, start, end)
                known = _Known(store, part.witness, records)
                for some in known.at_borders():
                    if some and len(some) <= MOST and known.contradicts(some):
                        found.update(record.physical_offset for record in some)
    return found


def unclear_places(parts: Sequence[LogPart], survey: Survey) -> set[int]:
    """Physical offsets of records of which only their times tell. StoreIOError."""
    found: set[int] = set()
    for part, regions in _damaged(parts, survey):
        with part.open() as source:
            for records in of_unclear_age(source, [
                    Damaged(region.start, region.end, region.before, region.after)
                    for region in regions]):
                found.update(record.physical_offset for record in records)
    return found


def _damaged(parts: Sequence[LogPart], survey: Survey) -> Iterator[tuple[LogPart, list[Region]]]:
    """The files that are there and have damage, with it."""
    for number, regions in groupby(survey.regions, lambda region: region.file):
        part = parts[number]
        if part.witness is not None and (part.path is not None or part.pieces):
            yield part, list(regions)


def _between(part: LogPart, regions: Sequence[Region]) -> Iterator[tuple[int, int]]:
    """What lies before, between and behind the damaged regions of a file."""
    start = part.base
    for region in regions:
        yield start, region.start
        start = region.end
    yield start, part.end


class _Known(Leads):
    """What rows and index know of records that follow each other."""

    def __init__(self, store: Store, witness: Witness, records: Sequence[Record]) -> None:
        super().__init__(witness, records)
        self._store = store
        self._places = {*self.keys, *(place for place, _ in self.rows)}

    def contradicts(self, records: Sequence[Record]) -> bool:
        """Whether enough speaks against records to which nothing leads: one damaged row does not,
        nor one record whose keys were hit; nor do any number of rows that lead elsewhere, which a
        damaged page of a consumequeue holds, as long as nothing knows of what else is here.
        """
        against = [self._against(record) for record in records]
        return (sum(map(sum, against)) > 1 and any(here for _, here in against)
                and 4 * sum(map(any, against)) >= len(records))

    def _against(self, record: Record) -> tuple[int, int]:
        """How much: (its queue offset's row leads elsewhere; another record has its queue offset,
        begins here or within it).
        """
        place, size = record.physical_offset, record.total_size
        sizes = [other for start, other in self.rows if start == place]
        alike = any((other ^ size).bit_count() <= 1 for other in sizes)
        own = key_hashes(record)
        elsewhere = not alike and self.witness.confirms(record) is False
        return int(elsewhere), (
            (elsewhere and self._has_twin(record)) + (bool(sizes) and not alike)
            + any(place < one < place + size for one in self._places)
            + bool(own and place in self.keys))

    def _has_twin(self, record: Record) -> bool:
        """Whether its queue offset's row leads to a record that says itself to be there."""
        queue = self._store.queues.get((os.fsdecode(record.topic), record.queue_id))
        if queue is None:
            return False
        with closing(queue):
            unit = queue.unit(record.queue_offset)
        there = None if unit is None else self._store.log.locate(unit.physical_offset)
        if unit is None or there is None or unit.size < MIN_SIZE:
            return False
        try:
            other = decode(there[0].read(there[1], min(unit.size, MOST_BODY)))
        except FormatError:
            return False
        return other.crc_ok and (
            other.topic, other.queue_id, other.queue_offset, other.physical_offset) == (
            record.topic, record.queue_id, record.queue_offset, unit.physical_offset)
