"""A set of queue offsets, stored as runs, because lost messages and messages at risk are mostly
adjacent.
"""

from __future__ import annotations

import numpy as np

from rmqctl.scan.frames import Array, distinct

MAX_RUNS = 1 << 16
"""Maximum number of runs in a set. All further runs are dropped, and ``complete`` is False."""
_MAX_OFFSET = 1 << 62
_MAX_PARTS = 64
_NONE: Array = np.zeros((0, 2), np.int64)


class OffsetRuns:
    """A set of queue offsets from 0 to 2^62, stored as half-open runs with gaps between them."""

    def __init__(self) -> None:
        self._runs = _NONE
        self._parts: list[Array] = []
        self._before: Array | None = None
        """The number of queue offsets that the set has before each run, and in all runs."""
        self.complete = True

    def __bool__(self) -> bool:
        return bool(len(self._runs) or self._parts)

    def add(self, offsets: Array, counts: Array | None = None) -> None:
        """Add queue offsets (int64, in any order). Values that cannot be queue offsets are ignored.

        ``counts``: number of consecutive offsets to add from each offset on.
        """
        runs = np.empty((len(offsets), 2), np.int64)
        runs[:, 0] = offsets
        runs[:, 1] = offsets + (1 if counts is None else counts)
        good = (runs[:, 0] >= 0) & (runs[:, 1] > runs[:, 0]) & (runs[:, 1] <= _MAX_OFFSET)
        if not good.all():
            runs = runs[good]
        if len(runs):
            self._parts.append(joined(runs))
            self._before = None
            if len(self._parts) >= _MAX_PARTS:
                self._settle()

    def add_run(self, first: int, end: int) -> None:
        """Add the queue offsets from ``first`` up to, but not including, ``end``."""
        first, end = max(0, first), min(end, _MAX_OFFSET)
        if first < end:
            self.add(np.array([first], np.int64), np.array([end - first], np.int64))

    def runs(self) -> Array:
        """Return the start and the end of each run in ascending order, int64 of shape (n, 2)."""
        self._settle()
        return self._runs

    def count(self, first: int = 0, end: int = _MAX_OFFSET) -> int:
        """Return the number of queue offsets in the set that are within ``[first, end)``."""
        if first <= 0 and end >= _MAX_OFFSET:
            runs = self.runs()
            return int((runs[:, 1] - runs[:, 0]).sum()) if len(runs) else 0
        return int(self.counts(np.array([first]), np.array([end]))[0])

    def counts(self, first: Array, end: Array) -> Array:
        """Return, for each pair of queue offsets, the number of those in the set within
        ``[first, end)``.
        """
        if not self:
            return np.zeros(len(first), np.int64)
        within: Array = np.maximum(self._below(end) - self._below(first), 0)
        return within

    def has(self, offsets: Array) -> Array:
        """Return, for each queue offset (int64), whether the set contains it."""
        runs = self.runs()
        if not len(runs):
            return np.zeros(len(offsets), bool)
        index = np.searchsorted(runs[:, 0], offsets, "right") - 1
        inside: Array = (index >= 0) & (offsets < runs[index, 1])
        return inside

    def join(self, other: OffsetRuns) -> OffsetRuns:
        """Return the union of this set and ``other`` as a new set."""
        both = OffsetRuns()
        both._parts = [self.runs(), other.runs()]
        both.complete = self.complete and other.complete
        return both

    def without(self, other: OffsetRuns) -> OffsetRuns:
        """Return a new set: this set without the queue offsets of ``other``."""
        left = OffsetRuns()
        left.complete = self.complete and other.complete
        runs, others = self.runs(), other.runs()
        if len(runs):
            others = others[np.searchsorted(others[:, 1], runs[0, 0], "right"):
                            np.searchsorted(others[:, 0], runs[-1, 1])]
        if len(runs) and len(others):
            # Between two borders, the offsets are in neither or in the same sets.
            borders = distinct(np.concatenate([runs, others]))
            first = borders[:-1]
            runs = np.column_stack([first, borders[1:]])[self.has(first) & ~other.has(first)]
        left.add(runs[:, 0], runs[:, 1] - runs[:, 0])
        return left

    def _below(self, offset: Array) -> Array:
        """Return the number of queue offsets of the set before each ``offset``."""
        runs = self.runs()
        if self._before is None:
            self._before = np.append(0, np.cumsum(runs[:, 1] - runs[:, 0]))
        number = np.searchsorted(runs[:, 0], offset)
        behind = np.append(0, runs[:, 1])[number] - np.maximum(offset, 0)
        below: Array = self._before[number] - np.maximum(behind, 0)
        return below

    def _settle(self) -> None:
        if not self._parts:
            return
        parts = [self._runs, *self._parts] if len(self._runs) else self._parts
        runs = parts[0] if len(parts) == 1 else joined(np.concatenate(parts))
        self.complete = self.complete and len(runs) <= MAX_RUNS
        self._runs, self._parts, self._before = runs[:MAX_RUNS], [], None


def joined(runs: Array) -> Array:
    """Return the runs in order, with touching and overlapping ones joined."""
    if len(runs) < 2:
        return runs
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(runs[:, 1])
    begins = np.append(True, runs[1:, 0] > reach[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(runs)) - 1
    return np.column_stack([runs[first, 0], reach[last]])
