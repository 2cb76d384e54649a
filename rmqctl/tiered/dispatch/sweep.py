"""The sweep of dispatch: once through the local log, window by window, for all queues together."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rmqctl.scan.buffer_pool import Rooms
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import FileSource
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.tiered.dispatch.blocks import Block, Cut, Taken, blocks_of
from rmqctl.tiered.dispatch.local import LocalQueue

Array = np.ndarray[Any, np.dtype[Any]]
WINDOW = 32 << 20
"""Bytes of the log that are gone through at a time."""
_NEAR = 1 << 17
"""Bytes between two records that are rather read than jumped over."""


class Sweep:
    """Goes through what is left of some queues; `windows` yields blocks, a window at a time.

    ``place`` says at which tiered offset a queue goes on. What cannot be uploaded stops its queue
    (`LocalQueue.fault`); the others go on. StoreIOError where the log cannot be read.
    """

    def __init__(self, log: CommitLog, queues: Sequence[LocalQueue],
                 place: Callable[[LocalQueue], int], window: int = WINDOW) -> None:
        self._log, self._queues, self._place, self._window = log, queues, place, window
        self._buffer = memoryview(b"")
        self._rooms = Rooms()

    def windows(self) -> Iterator[Iterator[Block]]:
        """For each window its blocks, which are made as they are asked for; take all of them
        before the next window.
        """
        heap = []
        for number, queue in enumerate(self._queues):
            physical = queue.next_physical()
            if physical is not None:
                heap.append((physical, number))
        heapq.heapify(heap)
        while heap:
            start = heap[0][0]
            place = self._log.locate(start)
            if place is None:
                queue = self._queues[heapq.heappop(heap)[1]]
                queue.stop(queue.cursor, f"physical offset {start}: {self._log.explain(start)}")
                continue
            source = place[0]
            limit = min(start + self._window, source.base + source.size)
            taken: list[Taken] = []
            numbers = []
            while heap and heap[0][0] < limit:
                number = heapq.heappop(heap)[1]
                taken.append(Taken(self._queues[number], *self._queues[number].take(limit)))
                numbers.append(number)
            yield self._blocks(source, start, taken)
            for number in numbers:
                physical = self._queues[number].next_physical()
                if physical is not None:
                    heapq.heappush(heap, (physical, number))

    def _blocks(self, source: FileSource, start: int, taken: list[Taken]) -> Iterator[Block]:
        file_end = source.base + source.size
        for one in taken:
            inside = one.rows["physical_offset"] + one.rows["size"] <= file_end
            if not inside.all():
                one.cut(int(inside.argmin()), "the record would reach over the end of the log file")
        taken = [one for one in taken if len(one.rows)]
        if not taken:
            return
        rows = np.concatenate([one.rows for one in taken])
        self._read(source, start, rows)
        # Damaged rows may claim far more than a window has: that is joined elsewhere, if at all.
        room = min(int(rows["size"].sum(dtype=np.int64)), self._window + MAX_RECORD)
        cut = Cut(self._buffer, start, self._rooms.take(room))
        yield from blocks_of(taken, cut, self._place)

    def _read(self, source: FileSource, start: int, rows: Array) -> None:
        """Fills the buffer so that the records lie at their places minus ``start``."""
        physical = rows["physical_offset"].astype(np.int64)
        order = np.argsort(physical, kind="stable")
        physical = physical[order]
        end = np.maximum.accumulate(physical + rows["size"][order])
        wanted = int(end[-1]) - start
        if len(self._buffer) < wanted:
            self._buffer = self._rooms.take(max(wanted, min(self._window, source.size)))
        far = np.flatnonzero(physical[1:] - end[:-1] > _NEAR)
        begins = np.concatenate((physical[:1], physical[far + 1])).tolist()
        ends = np.concatenate((end[far], end[-1:])).tolist()
        view = self._buffer
        for one, other in zip(begins, ends, strict=True):
            part = view[one - start:other - start]
            done = source.read_into(part, one - source.base)
            if done < len(part):  # it was shortened meanwhile: no record proves itself in zeros
                part[done:] = bytes(len(part) - done)
