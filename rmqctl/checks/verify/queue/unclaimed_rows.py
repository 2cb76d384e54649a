"""The rows of a consumequeue that no message claimed, parted by what becomes of them.

The reverse direction of `rmqctl.checks.verify.queue.reconcile`: expired, filler, ahead of the
log, lost with a damaged message, or stray.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.context import Context
from rmqctl.checks.verify.queue.rows import Claim, QueueKey, QueueTally, merged
from rmqctl.formats.local.consume_queue import FILLER, UNIT_SIZE, UnitRecord
from rmqctl.formats.local.message import Record
from rmqctl.scan.frames import Array
from rmqctl.store.queue.consume_queue import ConsumeQueue

SINGLE = 20_000
"""Left-over rows of one queue that are looked at one by one; the rest is counted."""


def uncovered(tally: QueueTally | None, first: int, end: int) -> Iterator[tuple[int, int]]:
    """The intervals of ``[first, end)`` that no message's row lies in."""
    at = first
    for start, stop in merged(tally.covered if tally else []):
        if stop <= at:
            continue
        if start >= end:
            break
        if start > at:
            yield at, start
        at = stop
    if at < end:
        yield at, end


class LeftOver:
    """The left-over rows of one queue. ``end`` is the queue offset behind its last used row."""

    def __init__(self, context: Context, queue: ConsumeQueue, tally: QueueTally | None,
                 end: int) -> None:
        self.context, self.queue, self.end = context, queue, end
        self.tally = tally or QueueTally()
        self._ahead: list[tuple[int, int]] = []
        self._lost: list[int] = []
        self._strays: dict[int, UnitRecord] = {}
        self._unseen = 0

    def finding(self, category: str, detail: str, row: int | None, *, count: int = 1,
                severity: str = "", structure: str = "consumequeue",
                offset: int | None = None) -> Finding:
        """A finding at a row of this queue (or at a physical offset for the commitlog)."""
        file = position = None
        if structure == "commitlog" and offset is not None:
            found = self.context.store.log.file_of(offset)
            file, position = (found.path, offset - found.base) if found else (None, None)
        elif row is not None:
            file, position = self._place(row)
            offset = position
        return Finding(category, structure, detail, file=file, offset=offset, position=position,
                       length=count * UNIT_SIZE if structure == "consumequeue" else None,
                       topic=self.queue.topic, queue_id=self.queue.queue_id, queue_offset=row,
                       count=count, severity=severity)

    def _place(self, row: int) -> tuple[str | None, int]:
        byte = row * UNIT_SIZE
        for one in self.queue.files:
            if one.base <= byte < one.end:
                return one.path, byte - one.base
        last = self.queue.files[-1] if self.queue.files else None
        return (last.path, byte - last.base) if last else (None, byte)

    @property
    def key(self) -> QueueKey:
        return self.queue.topic, self.queue.queue_id

    # -- reverse: rows nobody claimed -----------------------------------------------------------

    def prepare(self) -> None:
        """Parts the rows no message covers: expired, filler, ahead, lost, stray."""
        self._settle()
        log = self.context.store.log
        for start, end in uncovered(self.tally, self.queue.first_index, self.end):
            for at, rows in self.queue.pages(start, end):
                physical = rows["physical_offset"]
                used = (rows["size"] > 0) | (physical != 0)
                used &= physical >= log.min_offset
                used &= self._looked_at(physical)
                beyond = used & (physical >= self.context.log_end)
                if beyond.any():
                    for index in beyond.nonzero()[0].tolist():
                        self._stretch(at + index)
                for index in (used & ~beyond).nonzero()[0].tolist():
                    self._sort_row(at + index, UnitRecord(*(int(v) for v in rows[index])))

    def _settle(self) -> None:
        """Tells rows of a light queue that moved up for a gap of the broker's own making from
        others that stand too early: no more places than queue offsets were skipped before them.

        Where the beginning of the log was not read, nobody can tell how many were skipped.
        """
        tally, context = self.tally, self.context
        whole = context.looked_at is None and context.store.log.min_offset == 0
        skipped = sorted(tally.skipped)
        for first, count, by in tally.shifted:
            if not whole or by <= bisect_left(skipped, first):
                tally.cover(first - by, first - by + count)
                continue
            kept = min(count, SINGLE)
            tally.unkept += count - kept
            for offset in range(first, first + kept):
                held = self.queue.unit(offset - by)
                here = self.queue.unit(offset) if offset < self.end else None
                if held is not None:
                    row = None if here is None else (
                        here.physical_offset, here.size, here.tags_code)
                    tally.claims.append(Claim(offset, held.physical_offset, held.size,
                                              held.tags_code, row))
        tally.shifted.clear()

    def _looked_at(self, physical: Array) -> Array | bool:
        """Whether the part of the log a row leads to was read at all in this run."""
        parts = self.context.looked_at
        if parts is None:
            return True
        inside = np.zeros(len(physical), bool)
        for start, end in parts:
            inside |= (physical >= start) & (physical < end)
        return inside

    def _stretch(self, row: int) -> None:
        """Adds a row that leads behind the log: neighbours in one file make one stretch."""
        starts_file = any(one.base == row * UNIT_SIZE for one in self.queue.files)
        if self._ahead and self._ahead[-1][1] == row and not starts_file:
            self._ahead[-1] = self._ahead[-1][0], row + 1
        else:
            self._ahead.append((row, row + 1))

    def _sort_row(self, row: int, unit: UnitRecord) -> None:
        if unit == FILLER:
            return
        if self.context.in_damage(unit.physical_offset):
            self._lost.append(row)
            self.context.lost.setdefault(unit.physical_offset, (
                self.queue.topic, self.queue.queue_id, row))
        elif len(self._strays) < SINGLE:
            self._strays[row] = unit
            self.context.strays.setdefault(unit.physical_offset, (self.key, row))
        else:
            self._unseen += 1

    def _record(self, unit: UnitRecord) -> Record | None:
        return self.context.store.log.record_at(unit.physical_offset)
