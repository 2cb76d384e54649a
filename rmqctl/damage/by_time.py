"""Find undecided records: older records between two damaged ranges, to which no entry points.

Neither a consume queue nor the index has an entry for such records, so their store times are the
only evidence. Undecided records are older than the messages around the ranges. An earlier use of
the file may have left them (`rmqctl.scan.damage.stale`), or the clock was set back for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from rmqctl.formats.local.message import Record
from rmqctl.scan.damage.leads import WINDOW, Leads
from rmqctl.scan.damage.stale import MAX_PAGE_RECORDS, is_led, records_between
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk, start_of
from rmqctl.store.log.commit_log import CommitLog

_FARTHEST = 64 << 10
"""Maximum distance in bytes between two damaged ranges; records between ranges that are further
apart are not examined.
"""
_MAX_LOOKS = 1000


class TimedRange(NamedTuple):
    """A damaged range, physical offsets ``[start, end)``.

    ``before``, ``after``: store times (ms) of the messages before and after the range, None if
    unknown.
    """

    start: int
    end: int
    before: int | None
    after: int | None


def of_unclear_age(source: Source, damage: Iterable[TimedRange]) -> Iterator[list[Record]]:
    """Yield the records between two damaged ranges of a log file if their age is unclear.

    The records must be few, no entry may point to any of them, and all of them must have been
    stored before the messages around these ranges. Raises: StoreIOError.
    """
    before: int | None = None
    for number, (here, behind) in enumerate(pairwise(damage)):
        before = before if number else here.before
        last, after = behind.before, behind.after
        if before is not None and after is not None and last is not None and (
                last < before <= after):
            records = _without_proof(source, here.end, behind.start)
            if records and all(record.store_timestamp < before for record in records):
                yield records
                continue
        before = last


def unclear_in_log(log: CommitLog,
                   damage: Iterable[tuple[int, int]]) -> Iterator[list[Record]]:
    """Yield the groups of records that `of_unclear_age` finds in all files of a log.

    ``damage``: damaged ranges ``[start, end)``, ascending. At most `_MAX_LOOKS` pairs of close
    ranges are examined. Raises: StoreIOError.
    """
    looks = 0
    for file, places in groupby(damage, lambda place: log.file_of(place[0])):
        located = None if file is None else log.locate(file.base)
        if located is None:
            continue
        source, chain = located[0], list[tuple[int, int]]()
        for here, behind in pairwise((*_joined(places), None)):
            assert here is not None
            chain.append(here)
            if behind is not None and looks < _MAX_LOOKS and (
                    behind[0] <= here[1] + _FARTHEST):
                looks += 1
                if _without_proof(source, here[1], behind[0]):
                    continue
            if len(chain) > 1:
                yield from of_unclear_age(source, _with_times(source, chain))
            chain.clear()


def _joined(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges, with touching or overlapping ranges merged."""
    last: tuple[int, int] | None = None
    for start, end in places:
        if last is not None and start <= last[1]:
            last = last[0], max(last[1], end)
            continue
        if last is not None:
            yield last
        last = start, end
    if last is not None:
        yield last


def _with_times(source: Source, chain: Sequence[tuple[int, int]]) -> Iterator[TimedRange]:
    """Yield damaged ranges of a file with the store times of the nearest intact messages.

    A time is None if no message is near. One scan finds all times.
    """
    # A stranger's file may have damage between all messages, so no place is walked to by itself.
    offsets, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for batch in Walk(source, start_of(source, max(0, chain[0][0] - source.base - WINDOW))):
        good = batch.crc_ok() | (batch.column("body_length") <= 0)
        if good.any():
            offsets.append(batch.offset[good])
            times.append(batch.column("store_timestamp")[good].astype(np.int64))
            if offsets[-1][-1] >= chain[-1][1]:
                break
    offset, time = np.concatenate(offsets), np.concatenate(times).tolist()
    for start, end in chain:
        before, after = np.searchsorted(offset, [start, end]).tolist()
        is_near = before and offset[before - 1] >= start - WINDOW
        yield TimedRange(start, end, time[before - 1] if is_near else None,
                         time[after] if after < len(time) else None)


def _without_proof(source: Source, start: int, end: int) -> list[Record]:
    """Return the records in ``[start, end)``; an empty list if there are many, or if an entry
    points to one of them.
    """
    if source.witness is None or is_led(source, source.witness, start, end):
        return []
    records = records_between(source, start, end)
    unled = len(records) <= MAX_PAGE_RECORDS and Leads(source.witness, records).are_none()
    return list(records) if unled else []
