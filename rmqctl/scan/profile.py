"""Profile of a log by time, position and queue: sums of bounded size, for charts.

The batches of a walk are added to a profile. Profiles of several ranges of one log can be merged in
any order. Times are divided into steps, which are longer if the log covers more time. Positions are
divided into cells of equal size.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from rmqctl.formats.local.header_rules import EARLIEST
from rmqctl.scan.aggregate import Aggregate
from rmqctl.scan.frames import BLANK, DAMAGED, ZERO, Array, Batch

MESSAGES = "messages"
KINDS = (MESSAGES, BLANK, ZERO, DAMAGED)
"""The kinds of bytes, one for each row of `LogProfile.cells`."""
LATEST = 4_102_444_800_000
"""2100-01-01 (ms): messages with a later store time are not counted in any step."""
STEPS = (1, 5, 10, 50, 100, 500, *(1000 * seconds for seconds in (
    1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_419_200)))
"""Possible lengths of a time step in milliseconds; each divides the next."""
MAX_STEPS = 4096
MAX_CELLS = 2048
_MIN_CELL = 64


class Timeline:
    """Numbers of messages and bytes by store time, in at most `MAX_STEPS` steps of ``step`` ms.

    ``steps``: (messages, bytes) by the index of the step, counted from the epoch. ``elsewhere``:
    number of messages with a time before the first broker existed or after 2099; no step counts
    them.
    """

    def __init__(self) -> None:
        self.step = STEPS[0]
        self.steps: dict[int, tuple[int, int]] = {}
        self.elsewhere = 0

    def add(self, times: Array, sizes: Array) -> None:
        """Add the store times (ms) and sizes (bytes) of some messages."""
        is_plausible = (times >= EARLIEST) & (times < LATEST)
        if not is_plausible.all():
            self.elsewhere += int((~is_plausible).sum())
            times, sizes = times[is_plausible], sizes[is_plausible]
        if not len(times):
            return
        # By the number of steps, not by the time between the first and the last, so that the result
        # does not depend on which messages are added together.
        number, place = np.unique(times // self.step, return_inverse=True)
        while len(number) > MAX_STEPS:
            self._widen(STEPS[STEPS.index(self.step) + 1])
            number, place = np.unique(times // self.step, return_inverse=True)
        total = np.zeros(len(number), np.int64)
        np.add.at(total, place, sizes)
        self._include(zip(number.tolist(), zip(np.bincount(place).tolist(), total.tolist(),
                                               strict=True), strict=True))

    def merge(self, other: Timeline) -> None:
        self._widen(other.step)
        scale = self.step // other.step
        self._include((number // scale, sums) for number, sums in other.steps.items())
        self.elsewhere += other.elsewhere

    def _include(self, more: Iterator[tuple[int, tuple[int, int]]]) -> None:
        for number, (messages, size) in more:
            sums = self.steps.get(number, (0, 0))
            self.steps[number] = sums[0] + messages, sums[1] + size
        while len(self.steps) > MAX_STEPS:
            self._widen(STEPS[STEPS.index(self.step) + 1])

    def _widen(self, step: int) -> None:
        """Combine steps into longer steps; steps are never split."""
        if step > self.step:
            scale, narrow = step // self.step, self.steps
            self.step, self.steps = step, {}
            self._include((number // scale, sums) for number, sums in narrow.items())


class LogProfile:
    """Profile of a log from physical offset ``start`` to ``end``. Messages that fail a checksum are
    damage.

    ``times``: sums by store time.
    ``queues``: sums by topic and queue id.
    ``cells``: number of bytes (int64) of each of the `KINDS`, for each cell of ``cell`` bytes of
        the log.
    """

    def __init__(self, start: int, end: int) -> None:
        self.start, self.cell = start, _MIN_CELL
        while (end - start) // self.cell >= MAX_CELLS:
            self.cell *= 2
        self.cells: Array = np.zeros((len(KINDS), (end - start) // self.cell + 1), np.int64)
        self.times = Timeline()
        self.queues = Aggregate("queue")

    def add(self, batch: Batch, ok: Array) -> None:
        """Add one batch from a walk; ``ok`` (bool) is False for a message that fails a checksum."""
        for span in batch.spans:
            self.fill(span.kind, span.offset, span.end)
        if not len(batch):
            return
        start, size = batch.offset - batch.head, batch.frame_size
        self._messages(DAMAGED, start[~ok], size[~ok])
        self._messages(MESSAGES, start[ok], size[ok])
        intact = batch if ok.all() else batch.select(np.flatnonzero(ok))
        self.queues.add(intact)
        self.times.add(intact.column("store_timestamp"), intact.column("total_size"))

    def fill(self, kind: str, start: int, end: int) -> None:
        """Count bytes ``[start, end)`` as one kind. Positions outside the log, which a damaged size
        may give, are ignored.
        """
        row = self.cells[KINDS.index(kind)]
        first = max(start - self.start, 0)
        last = min(end - self.start, len(row) * self.cell)
        if first >= last:
            return
        numbers = first // self.cell, (last - 1) // self.cell
        row[numbers[0]:numbers[1] + 1] += self.cell
        row[numbers[0]] -= first % self.cell
        row[numbers[1]] -= -last % self.cell

    def _messages(self, kind: str, offset: Array, size: Array) -> None:
        """Count records as bytes of one kind; consecutive records are counted in one step."""
        if not len(offset):
            return
        breaks = np.flatnonzero(offset[1:] != (offset + size)[:-1]) + 1
        borders = [0, *breaks.tolist(), len(offset)]
        for first, behind in pairwise(borders):
            self.fill(kind, int(offset[first]), int(offset[behind - 1] + size[behind - 1]))

    def merge(self, other: LogProfile) -> None:
        """Merge the profile of another range of the same log."""
        self.cells += other.cells
        self.times.merge(other.times)
        self.queues.merge(other.queues)
