"""What speaks against a piece of a log in a source whose name promises nothing, such as an image.

A file system stores the files of a log, and the fragments of each, in any order. So the position of
a piece proves nothing: what contradicts it is a log that is interrupted there and continues after
it, or another message at the same physical offset. A piece that follows a record without an end
may be the body of that record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rmqctl.formats import dledger
from rmqctl.repair.carve.window import AsLog, Window
from rmqctl.scan.damage.extents import claimed_end
from rmqctl.scan.frames import Array

REACH = (4 << 20) + (64 << 10)
"""The largest record that brokers write by default, and more: so far may a body extend."""
MOST = 1 << 16
_MOST_OPEN = 8
_NEXT = (0, dledger.HEAD_SIZE)
"""Bytes between messages that follow each other."""
_PAGE, _SECTOR, _UNUSED = 4096, 512, 64 << 10


class Ranges:
    """A growing number of half-open ranges, at most `MOST`: then the last one is extended."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        if len(self._ranges) < MOST:
            self._ranges.append((start, end))
        else:
            low, high = self._ranges[-1]
            self._ranges[-1] = min(low, start), max(high, end)

    def contain(self, places: Array) -> Array:
        """Which places are in a range (bool)."""
        if not self._ranges:
            return np.zeros(len(places), bool)
        starts, ends = np.array(sorted(self._ranges), np.int64).T
        last = np.searchsorted(starts, places, "right") - 1
        inside: Array = (last >= 0) & (places < np.maximum.accumulate(ends)[last])
        return inside


@dataclass(slots=True)
class _Break:
    """Where a log breaks off: at ``at``, in a record that reaches to ``end`` at most.

    ``is_settled``: whether it is noted already until where what follows is in doubt.
    """

    at: int
    end: int
    is_settled: bool = False


class Pieces:
    """The starts and ends of all chains of records in a source, in the order of the scan."""

    def __init__(self, window: Window, file_end: Callable[[int], int]) -> None:
        self._window, self._file_end = window, file_end
        self._breaks: dict[int, _Break] = {}
        """By the shift of the log."""
        self._started: dict[int, int] = {}
        """Where the current chain starts, by its shift."""
        self._owned, self._doubt = Ranges(), Ranges()
        self.file_ends: set[int] = set()
        """Physical offsets at which a blank ends a file of a log."""

    def started(self, shift: int, at: int) -> None:
        """Note that a chain of records starts at ``at``. StoreIOError."""
        self._started = {shift: at}
        for other, broken in list(self._breaks.items()):
            if other == shift:
                self._owned.add(broken.at, at)
                del self._breaks[other]
            elif at >= broken.end:
                self._settle(broken, broken.end)
                if at >= broken.at + REACH:
                    del self._breaks[other]
            elif at == broken.at or self._is_file(shift, at, broken.at):
                self._settle(broken, at)

    def ended(self, shift: int, at: int) -> None:
        """Note that a chain of records ends at ``at``. StoreIOError."""
        # No body contains a record that reaches beyond its end: nor any of the same chain.
        start = self._started.get(shift, at)
        for broken in self._breaks.values():
            if start < broken.end < at:
                self._settle(broken, start)
        # The end of a file is no break.
        if size := self._file_end(at):
            if len(self.file_ends) < MOST:
                self.file_ends.add(at + shift + size)
        elif at < self._window.size and shift not in self._breaks and (
                len(self._breaks) < _MOST_OPEN):
            claimed = claimed_end(AsLog(self._window, shift, None), at, strict=True)
            self._breaks[shift] = _Break(at, min(claimed if claimed > at else at + REACH,
                                                 at + REACH))

    def _settle(self, broken: _Break, end: int) -> None:
        if not broken.is_settled:
            self._doubt.add(broken.at, end)
            broken.is_settled = True

    def _is_file(self, shift: int, at: int, broken: int) -> bool:
        """Whether a file of a log starts at ``at``, after the unused end of another one; in
        DLedger's an entry's head is before the first record.
        """
        head = max(at - dledger.HEAD_SIZE, 0)
        if dledger.head_at(self._window.read(head, dledger.HEAD_SIZE), head + shift) is not None:
            at = head
        return not (at + shift) % _PAGE and not at % _SECTOR and not any(
            self._window.read(broken, min(at - broken, _UNUSED)))

    def judge(self, places: Array) -> tuple[Array, Array]:
        """(which of the places another log interrupts, which may be in a body): bool each."""
        for broken in self._breaks.values():
            self._settle(broken, broken.end)
        self._breaks.clear()
        owned = self._owned.contain(places)
        return owned, self._doubt.contain(places) & ~owned


class Claims:
    """The physical offsets that messages in place occupy, by their store hosts."""

    def __init__(self) -> None:
        self._of: dict[int, list[tuple[int, int]]] = {}
        self._count = 0

    def take(self, hosts: Array, physical: Array, sizes: Array, *,
             only_look: bool = False) -> Array:
        """Note messages but those that overlap one that was noted before: which these are (bool).

        The longest chain of messages that follow each other goes first.
        """
        ends = physical + sizes
        edges = ~np.isin(physical[1:] - ends[:-1], _NEXT) | (hosts[1:] != hosts[:-1])
        rows = [0, *(np.flatnonzero(edges) + 1).tolist(), len(physical)]
        taken: Array = np.zeros(len(physical), bool)
        for first, after in sorted(pairwise(rows), key=lambda pair: pair[0] - pair[1]):
            host, part = int(hosts[first]), slice(first, after)
            taken[part] = self._overlap(host, physical[part], ends[part])
            if not only_look and not taken[part].any():
                self._add(host, int(physical[first]), int(ends[after - 1]))
        return taken

    def _add(self, host: int, start: int, end: int) -> None:
        ranges = self._of.setdefault(host, [])
        if ranges and start - ranges[-1][1] in _NEXT:
            ranges[-1] = ranges[-1][0], end
        elif self._count < MOST:
            insort(ranges, (start, end))
            self._count += 1

    def _overlap(self, host: int, starts: Array, ends: Array) -> Array:
        ranges = self._of.get(host, [])
        first = max(bisect_right(ranges, (int(starts[0]), 0)) - 1, 0)
        others = ranges[first:bisect_left(ranges, (int(ends[-1]), 0))]
        if not others:
            return np.zeros(len(starts), bool)
        # They do not overlap each other, so the last that starts before an end ends last, too.
        low, high = np.array(others, np.int64).T
        last = np.searchsorted(low, ends) - 1
        overlap: Array = (last >= 0) & (high[last] > starts)
        return overlap
