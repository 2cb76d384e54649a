"""How the queue offsets of every queue follow each other in a log: as runs without a gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array


@dataclass(slots=True)
class Run:
    """Messages of one queue with consecutive queue offsets ``[first, end)``, in log order.

    ``low`` and ``high`` are the physical offsets of the first and the last of them.
    """

    first: int
    end: int
    low: int
    high: int


class Runs:
    """The queue offsets of every queue as they follow in the log."""

    def __init__(self) -> None:
        self.keys: list[QueueKey] = []
        self._numbers: dict[QueueKey, int] = {}
        self._closed: dict[int, list[Run]] = {}
        self._first: Array = np.zeros(0, np.int64)
        self._end: Array = np.zeros(0, np.int64)
        self._low: Array = np.zeros(0, np.int64)
        self._high: Array = np.zeros(0, np.int64)

    def number(self, key: QueueKey) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.keys)
            self.keys.append(key)
            if found >= len(self._end):
                room = np.full(max(64, found), -1, np.int64)
                self._first, self._end, self._low, self._high = (
                    np.concatenate([one, room])
                    for one in (self._first, self._end, self._low, self._high))
        return found

    def of(self, key: QueueKey) -> list[Run]:
        """The runs of a queue, in log order."""
        number = self._numbers.get(key)
        if number is None:
            return []
        found = list(self._closed.get(number, ()))
        if self._end[number] >= 0:
            found.append(Run(int(self._first[number]), int(self._end[number]),
                             int(self._low[number]), int(self._high[number])))
        return found

    def add(self, queue: Array, first: Array, count: Array, physical: Array) -> None:
        """Rows in log order: queue number, first queue offset, how many, place (all int64)."""
        if not len(queue):
            return
        order = np.argsort(queue, kind="stable")
        queue, first, physical = queue[order], first[order], physical[order]
        end = first + count[order]
        fresh = np.ones(len(queue), bool)
        fresh[1:] = (queue[1:] != queue[:-1]) | (first[1:] != end[:-1])
        start = np.flatnonzero(fresh)
        last = np.append(start[1:], len(queue)) - 1
        runs = queue[start]
        other = np.ones(len(runs), bool)
        other[1:] = runs[1:] != runs[:-1]
        goes_on = other & (first[start] == self._end[runs])
        self._end[runs[goes_on]] = end[last[goes_on]]
        self._high[runs[goes_on]] = physical[last[goes_on]]
        for at in np.flatnonzero(~goes_on).tolist():
            number, a, b = int(runs[at]), int(start[at]), int(last[at])
            if self._end[number] >= 0:
                self._closed.setdefault(number, []).append(Run(
                    int(self._first[number]), int(self._end[number]), int(self._low[number]),
                    int(self._high[number])))
            self._first[number], self._end[number] = first[a], end[b]
            self._low[number], self._high[number] = physical[a], physical[b]
