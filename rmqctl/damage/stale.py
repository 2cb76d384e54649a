"""Search for stale records in a log, for a repair plan (see `rmqctl.scan.damage.stale`).

The records next to damage and near gaps in queue offsets are examined. If no entry points to a
record, its store time shows whether it is stale (`rmqctl.damage.by_time`).
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np

from rmqctl.damage.by_time import TimedRange, of_unclear_age
from rmqctl.damage.survey.survey import Region, Survey
from rmqctl.formats.local.message import Record
from rmqctl.scan.damage.stale import MAX_STALE_PLACES, amid, beside
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import Source

_OVERLAPS = 8
"""Number of preceding damaged ranges whose ends are compared, because ranges may overlap."""


def stale_records(parts: Sequence[LogPart], survey: Survey) -> tuple[set[int], set[int]]:
    """Return the physical offsets of stale records and of unclear records next to them.

    The search covers the bytes next to damage, and the start and end of damaged files. Raises:
    StoreIOError.
    """
    def taken(record: Record) -> bool:
        return survey.runs.has((os.fsdecode(record.topic), record.queue_id), record.queue_offset,
                               twice=True)

    places: set[int] = set()
    unclear: set[int] = set()
    begins, ends = _with_entries(parts, survey)
    for part, regions in _damaged(parts, survey):
        with part.open() as source:
            for start, end, before in _between(part, regions):
                if start in begins and end in ends:
                    continue  # as nearly always: entries point to both borders
                stale = beside(source, start - part.base, end - part.base, before=before,
                               taken=taken)
                places.update(record.physical_offset for record in stale.stale_records)
                unclear.update(record.physical_offset for record in stale.unclear)
    return places, unclear - places


def _with_entries(parts: Sequence[LogPart], survey: Survey) -> tuple[set[int], set[int]]:
    """Return the start offsets and the end offsets of the records next to damage that have a
    matching consume queue entry.
    """
    witness = next((part.witness for part in parts if part.witness is not None), None)
    begins: set[int] = set()
    ends: set[int] = set()
    if witness is None or not survey.borders:
        return begins, ends
    borders = np.concatenate(survey.borders, axis=1)
    borders = borders[:, np.argsort(borders[0], kind="stable")]
    for some in np.split(borders, np.flatnonzero(np.diff(borders[0])) + 1, axis=1):
        number, offsets, places, sizes = some
        topic, queue_id = survey.runs.key_of(int(number[0]))
        good = witness.confirms_all(topic, queue_id, offsets, places, sizes)
        begins.update(places[good].tolist())
        ends.update((places + sizes)[good].tolist())
    return begins, ends


def beside_at(source: Source, places: Iterable[int],
              damage: Sequence[tuple[int, int]]) -> Iterator[list[Record]]:
    """Yield the stale records of a file near these physical offsets. Raises: StoreIOError.

    Records are searched for only up to the next damaged ranges (``damage``, ascending).
    """
    starts, looked = [start for start, _ in damage], -1
    for place in places:
        number = bisect_right(starts, place)
        if number == looked:
            continue
        looked = number
        start = max((end for _, end in damage[max(0, number - _OVERLAPS):number]),
                    default=source.base)
        end = starts[number] if number < len(starts) else source.base + source.size
        if not damage or (start <= source.base and end >= source.base + source.size):
            continue
        stale = beside(source, max(0, start - source.base), min(source.size, end - source.base))
        if stale.stale_records:
            yield sorted(stale.stale_records, key=lambda record: record.physical_offset)


def contradicted_places(parts: Sequence[LogPart], survey: Survey) -> set[int]:
    """Return the physical offsets of records that consume queues and index contradict.

    The bytes around these records are not damaged. Only records near gaps in queue offsets that no
    damage explains are examined. Raises: StoreIOError.
    """
    contradicted: set[int] = set()
    odd: set[int] = set()
    starts = [region.start for region in survey.regions]
    for before, behind, is_gap in survey.runs.breaks:
        if not is_gap or bisect_left(starts, before) == bisect_left(starts, behind):
            odd |= {before, behind}
    for part in parts if odd else ():
        with part.open() as source:
            for records in amid(source, (place for place in sorted(odd)[:MAX_STALE_PLACES]
                                         if part.base <= place < part.end)):
                contradicted.update(record.physical_offset for record in records)
    return contradicted


def unclear_places(parts: Sequence[LogPart], survey: Survey) -> set[int]:
    """Return the physical offsets of records for which store times are the only evidence.
    Raises: StoreIOError.
    """
    unclear: set[int] = set()
    for part, regions in _damaged(parts, survey):
        with part.open() as source:
            for records in of_unclear_age(source, [
                    TimedRange(region.start, region.end, region.before, region.after)
                    for region in regions]):
                unclear.update(record.physical_offset for record in records)
    return unclear


def _damaged(parts: Sequence[LogPart], survey: Survey) -> Iterator[tuple[LogPart, list[Region]]]:
    """Yield each existing file with damage, and its damaged regions."""
    for number, regions in groupby(survey.regions, lambda region: region.file):
        part = parts[number]
        if part.witness is not None and (part.path is not None or part.pieces):
            yield part, list(regions)


def _between(part: LogPart, regions: Sequence[Region]) -> Iterator[tuple[int, int, int | None]]:
    """Yield each part of a file before, between and after its damaged regions.

    A part is (start, end, store time of the last message before the preceding region or None).
    """
    start, before = part.base, None
    for region in regions:
        yield start, region.start, before
        start, before = region.end, region.before
    yield start, part.end, before
