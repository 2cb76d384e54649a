"""Ranges of a log: whole frames without a gap, and the stretches in which nothing is intact."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from rmqctl.damage.survey.survey import Region
from rmqctl.scan.frames import Array

ENDLESS = (1 << 63) - 1


@dataclass(slots=True)
class Range:
    """Physical bytes ``[start, end)`` of whole frames without a gap. ``first`` and ``last``: places
    of its first and last message, -1 without one.
    """

    start: int
    end: int
    messages: int = 0
    first: int = -1
    last: int = -1


class Ranges:
    """Ranges in the order of the log; those that touch are one."""

    def __init__(self) -> None:
        self.items: list[Range] = []

    def add(self, offset: Array, size: Array) -> None:
        """Messages by place, ascending."""
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
        """Once all are there, in whatever order they came."""
        items, self.items = sorted(self.items, key=lambda item: item.start), []
        for item in items:
            self.put(item)

    def before(self, position: int) -> Range | None:
        """Return the last one with a message that starts before a place."""
        number = bisect_left(self.items, position, key=lambda item: item.start)
        return next((item for item in reversed(self.items[:number]) if item.first >= 0), None)

    def behind(self, position: int) -> Range | None:
        """Return the first one with a message that ends after a place."""
        number = bisect_right(self.items, position, key=lambda item: item.end)
        return next((item for item in self.items[number:] if item.first >= 0), None)

    def within(self, start: int, end: int) -> Iterator[Range]:
        """Yield those that lie, with some byte, in ``[start, end)``."""
        number = bisect_right(self.items, start, key=lambda item: item.end)
        while number < len(self.items) and self.items[number].start < end:
            yield self.items[number]
            number += 1

    def has_any(self, start: int, end: int) -> bool:
        return next(self.within(start, end), None) is not None


@dataclass(slots=True)
class Stretch:
    """Physical bytes ``[start, end)`` in which our log has nothing intact, from record to record.

    What our consume queues and index say of the source's records there: ``rows`` and ``keys``
    agree. A row fits every record of its size at its place, another log's, too; a key, or bytes of
    ours, fit the one record only: such agree from ``agreed_first`` to the end ``agreed_end``.
    ``timed_end``: end of the last record whose row agrees and whose time our checkpoint has.
    ``against`` are (place, end) of records which they contradict. ``filled``: an earlier repair
    made fillers there, so the rows are theirs. ``doubtful``: (place, size) of whole records of ours
    there that may be messages, or are in a damaged one's body; ``alike`` of them are the same bytes
    in the source.
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


def stretches(regions: Iterable[Region], log_start: int, log_end: int) -> list[Stretch]:
    """From the damaged regions of a log; what is before and after the log is of it, too."""
    ranges = [Stretch(0, log_start)] if log_start > 0 else []
    for region in regions:
        if ranges and ranges[-1].end == region.start:
            ranges[-1].end = region.end
        else:
            ranges.append(Stretch(region.start, region.end))
        ranges[-1].doubtful += region.doubtful
    if ranges and ranges[-1].end == log_end:
        ranges[-1].end = ENDLESS
    else:
        ranges.append(Stretch(log_end, ENDLESS))
    return ranges
