"""Whole records beside damage that are of an earlier life of their file.

A page that never reached the disk shows what was there before: where the log was cut off once and
written anew, whole records at their own places, every CRC right, of messages that are gone. Rows
and index lead elsewhere, or to other messages at the same place.

They count as damaged where no row and no entry of the index leads to any of them, at least every
fourth one is contradicted, and they are themselves: their queue offset's row leads elsewhere,
something leads into them, or the index knows another key for their place. What stands beside such
and has no row and no entry by its kind is undecided.
Only a few records right before or behind damage, or at the border of a file, can be of one page.
Amid undamaged bytes more is asked for (`rmqctl.store.log.contradicted`).

Where no row and no entry is left to tell, their times are (`rmqctl.store.log.earlier_life`).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby

from rmqctl.formats.local.message import Record
from rmqctl.repair.salvage.survey.survey import Region, Survey
from rmqctl.scan.overlay import LogPart
from rmqctl.store.log.contradicted import MOST_PLACES, Known, contradicted
from rmqctl.store.log.earlier_life import MOST, Damaged, of_unclear_age, records_between
from rmqctl.store.store import Store


def stale_records(store: Store, parts: Sequence[LogPart],
                  survey: Survey) -> tuple[set[int], set[int]]:
    """Physical offsets of records that are of an earlier life, and of those beside them of which
    nothing tells. StoreIOError.
    """
    def taken(record: Record) -> bool:
        return survey.runs.has((os.fsdecode(record.topic), record.queue_id), record.queue_offset,
                               twice=True)

    found: set[int] = set()
    unclear: set[int] = set()
    for part, regions in _damaged(parts, survey):
        assert part.witness is not None
        with part.open() as source:
            for start, end, before in _between(part, regions):
                records = records_between(source, start, end)
                known = Known(store, part.witness, records, taken)
                for some in known.at_borders():
                    if not some or len(some) > MOST:
                        continue
                    is_older = before is not None and records[0] is some[0] and all(
                        record.store_timestamp < before for record in some)
                    if known.contradicts(some, besides=is_older):
                        for record in some:
                            (found if any(known.against(record)) else unclear).add(
                                record.physical_offset)
    return found, unclear


def contradicted_places(store: Store, parts: Sequence[LogPart], survey: Survey) -> set[int]:
    """Physical offsets of records amid undamaged bytes that rows and index contradict: near where
    queue offsets do not go on, and no damage between explains that. StoreIOError.
    """
    found: set[int] = set()
    odd: set[int] = set()
    starts = [region.start for region in survey.regions]
    for before, behind, is_gap in survey.runs.breaks:
        if not is_gap or bisect_left(starts, before) == bisect_left(starts, behind):
            odd |= {before, behind}
    for part in parts if odd else ():
        with part.open() as source:
            for records in contradicted(source, store, (
                    place for place in sorted(odd)[:MOST_PLACES] if part.base <= place < part.end)):
                found.update(record.physical_offset for record in records)
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


def _between(part: LogPart, regions: Sequence[Region]) -> Iterator[tuple[int, int, int | None]]:
    """What lies before, between and behind the damaged regions of a file: (start, end, store time
    of the last message before the region before it).
    """
    start, before = part.base, None
    for region in regions:
        yield start, region.start, before
        start, before = region.end, region.before
    yield start, part.end, before
