"""Whole records beside damage that are of an earlier life of their file.

A page that never reached the disk shows what was there before: where the log was cut off once and
written anew, whole records at their own places, every CRC right, of messages that are gone. Rows
and index lead elsewhere, or to other messages at the same place.

They count as damaged where no row and no entry of the index leads to any of them, and at least
every fourth one is contradicted: its queue offset's row leads elsewhere, something leads into it,
or the index knows another key for its place.
Only a few records right before or behind damage, or at the border of a file, can be of one page.

Where no row and no entry is left to tell, their times are: what an earlier life left was stored
before what is around it. A clock that was set back for a while gives the same, so that is
ambiguous.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby, pairwise

from rmqctl.errors import FormatError
from rmqctl.formats.local.message import MIN_SIZE, Record, decode
from rmqctl.repair.salvage.records import MOST_BODY
from rmqctl.repair.salvage.survey.survey import Region, Survey
from rmqctl.scan.damage.extents import key_hashes
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import Source, Witness
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store

_MOST = 64
"""Records of a page: 4 KiB hold fewer."""
_MOST_READ = 1000


def stale_records(store: Store, parts: Sequence[LogPart], survey: Survey) -> set[int]:
    """Physical offsets of records that are of an earlier life. StoreIOError."""
    found: set[int] = set()
    for part, regions in _damaged(parts, survey):
        assert part.witness is not None
        with part.open() as source:
            for start, end in _between(part, regions):
                records = _records(source, start, end)
                known = _Known(store, part.witness, records)
                for some in known.at_borders():
                    if some and len(some) <= _MOST and known.contradicts(some):
                        found.update(record.physical_offset for record in some)
    return found


def of_unclear_age(store: Store, parts: Sequence[LogPart], survey: Survey) -> set[int]:
    """Physical offsets of records, few between damage, to which nothing leads, and which were
    stored before what is on both sides of them. StoreIOError.
    """
    found: set[int] = set()
    for part, regions in _damaged(parts, survey):
        assert part.witness is not None
        before = regions[0].before
        with part.open() as source:
            for here, behind in pairwise(regions):
                last, after = behind.before, behind.after
                if before is not None and after is not None and last is not None and (
                        last < before <= after):
                    records = _records(source, here.end, behind.start)
                    if 0 < len(records) <= _MOST and all(
                            one.store_timestamp < before for one in records) and (
                            _Known(store, part.witness, records).at_borders()[0] == records):
                        found.update(one.physical_offset for one in records)
                        continue
                before = last
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


def _records(source: Source, start: int, end: int) -> list[Record]:
    """The records of a stretch without damage, of more than twice `_MOST` only those near its two
    ends; none where there are very many.
    """
    places: list[tuple[int, int]] = []
    for batch in Walk(source, start - source.base, end - source.base, growing=True):
        places += zip((batch.offset - source.base).tolist(), batch.column("total_size").tolist(),
                      strict=True)
        if len(places) > _MOST_READ:
            return []
    near = _MOST + 1  # so many are no page's, whatever lies between
    if len(places) > 2 * near:
        places[near:-near] = []
    return [decode(source.read(*place)) for place in places]


class _Known:
    """What rows and index know of records that follow each other."""

    def __init__(self, store: Store, witness: Witness, records: Sequence[Record]) -> None:
        self._store, self._witness, self._records = store, witness, records
        self._rows: set[tuple[int, int]] = set()
        self._keys: dict[int, set[int]] = {}
        if records:
            span = records[0].physical_offset, records[-1].physical_offset + records[-1].total_size
            places, sizes = witness.rows(*span)
            self._rows = {*zip(places.tolist(), sizes.tolist(), strict=True)}
            places, hashes = witness.keys(*span)
            for place, key in zip(places.tolist(), hashes.tolist(), strict=True):
                self._keys.setdefault(place, set()).add(key)
        self._places = {*self._keys, *(place for place, _ in self._rows)}

    def at_borders(self) -> tuple[Sequence[Record], Sequence[Record]]:
        """The records before the first and behind the last to which anything leads."""
        led = [number for number, record in enumerate(self._records) if self._leads(record)]
        if not led:
            return self._records, ()
        return self._records[:led[0]], self._records[led[-1] + 1:]

    def _leads(self, record: Record) -> bool:
        return bool(self._witness.confirms(record)) or bool(
            self._keys.get(record.physical_offset, set()) & key_hashes(record))

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
        sizes = [other for start, other in self._rows if start == place]
        alike = any((other ^ size).bit_count() <= 1 for other in sizes)
        own = key_hashes(record)
        elsewhere = not alike and self._witness.confirms(record) is False
        return int(elsewhere), (
            (elsewhere and self._has_twin(record)) + (bool(sizes) and not alike)
            + any(place < one < place + size for one in self._places)
            + bool(own and place in self._keys))

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
