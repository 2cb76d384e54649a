"""Ranges of a log: adjacent intact frames, and stretches without intact frames."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import pairwise

import numpy as np

from rmqctl.damage.survey.survey import Region
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array

ENDLESS = (1 << 63) - 1


@dataclass(slots=True)
class Range:
    """A range of adjacent intact frames, physical offsets ``[start, end)``.

    ``first``, ``last``: physical offsets of the first and the last message; -1 if there is none.
    """

    start: int
    end: int
    messages: int = 0
    first: int = -1
    last: int = -1


class Ranges:
    """The intact ranges of a log, in log order; adjacent ranges are merged."""

    def __init__(self) -> None:
        self.items: list[Range] = []

    def add(self, offset: Array, size: Array) -> None:
        """Add messages with these physical offsets (ascending) and sizes."""
        if not len(offset):
            return
        end = offset + size
        cuts = (np.flatnonzero(offset[1:] != end[:-1]) + 1).tolist()
        for low, high in pairwise([0, *cuts, len(offset)]):
            self.put(Range(int(offset[low]), int(end[high - 1]), high - low, int(offset[low]),
                           int(offset[high - 1])))

    def put(self, item: Range) -> None:
        last = self.items[-1] if self.items else None
        if last is None or last.end != item.start:
            self.items.append(item)
            return
        last.end, last.messages = item.end, last.messages + item.messages
        last.first = item.first if last.first < 0 else last.first
        last.last = item.last if item.last >= 0 else last.last

    def settle(self) -> None:
        """Sort and merge the ranges, which may have been added in any order."""
        items, self.items = sorted(self.items, key=lambda item: item.start), []
        for item in items:
            self.put(item)

    def before(self, position: int) -> Range | None:
        """Return the last range that has messages and starts before a position."""
        number = bisect_left(self.items, position, key=lambda item: item.start)
        return next((item for item in reversed(self.items[:number]) if item.first >= 0), None)

    def behind(self, position: int) -> Range | None:
        """Return the first range that has messages and ends after a position."""
        number = bisect_right(self.items, position, key=lambda item: item.end)
        return next((item for item in self.items[number:] if item.first >= 0), None)

    def within(self, start: int, end: int) -> Iterator[Range]:
        """Yield the ranges that overlap ``[start, end)``."""
        number = bisect_right(self.items, start, key=lambda item: item.end)
        while number < len(self.items) and self.items[number].start < end:
            yield self.items[number]
            number += 1

    def has_any(self, start: int, end: int) -> bool:
        return next(self.within(start, end), None) is not None


@dataclass(slots=True)
class EmptyRange:
    """A stretch of the log under repair without an intact frame: physical offsets ``[start, end)``.

    The evidence is for the records that a source has in this stretch. A consume queue entry is weak
    evidence: it matches any record with the same offset and size, even one from another log. An
    index key, or surviving bytes of the log, match only one record.

    * ``rows``, ``keys``: number of the source's records that agree with the consume queues of the
      repaired store, and with its index.
    * ``agreed_first``, ``agreed_end``: range of the records that an index key or surviving bytes
      confirm.
    * ``timed_end``: end of the last record whose entry agrees and whose store time the checkpoint
      covers.
    * ``against``: physical offset and end of each record that the evidence contradicts.
    * ``filled``: whether an earlier repair wrote fillers here. The entries are then those of the
      fillers.
    * ``doubtful``: physical offset and size of each complete record in this stretch that may be a
      message, or part of a damaged message's body.
    * ``alike``: number of the ``doubtful`` records that the source has with the same bytes.
    """

    start: int
    end: int
    rows: int = 0
    keys: int = 0
    agreed_first: int = -1
    agreed_end: int = -1
    timed_end: int = -1
    against: list[tuple[int, int]] = field(default_factory=list)
    filled: bool = False
    doubtful: list[tuple[int, int]] = field(default_factory=list)
    alike: int = 0

    def agree(self, start: int, end: int) -> None:
        self.agreed_first = start if self.agreed_first < 0 else min(self.agreed_first, start)
        self.agreed_end = max(self.agreed_end, end)


def stretches(regions: Iterable[Region], log_start: int, log_end: int) -> list[EmptyRange]:
    """Return the stretches for the damaged regions of a log, and the stretches before and after the
    log.
    """
    ranges = [EmptyRange(0, log_start)] if log_start > 0 else []
    for region in regions:
        if ranges and ranges[-1].end == region.start:
            ranges[-1].end = region.end
        else:
            ranges.append(EmptyRange(region.start, region.end))
        ranges[-1].doubtful += region.doubtful
    if ranges and ranges[-1].end == log_end:
        ranges[-1].end = ENDLESS
    else:
        ranges.append(EmptyRange(log_end, ENDLESS))
    return ranges
