"""Comparison of two logs with the same physical offsets (master and slave, store and backup).

Both logs are read in parallel. A batch with the same bytes in both logs is not compared further.
Other records are paired by physical offset and compared by column. `PhysicalPass` reports
differences; subclasses override `same`, `missing` and `different` to handle them differently.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rmqctl.checks.diff.differences import (
    MISSING,
    Differences,
    Side,
    of_pair,
    of_record,
    report_damage,
)
from rmqctl.formats.local.message import decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, Batch

Progress = Callable[[int], None]


@dataclass(slots=True)
class PhysicalTally:
    """Number of messages by result, inside and outside the range that both stores cover.

    ``damaged_alike``: number of damaged spans with the same bytes in both stores.
    """

    equal: int = 0
    different: int = 0
    missing_in_a: int = 0
    missing_in_b: int = 0
    damaged_alike: int = 0


class PhysicalPass:
    """A comparison of the frames of two logs, starting at the cursors' current positions.

    A frame that only one log has counts as missing from the other log. Batches passed to `same`,
    `missing` and `different` are valid only during the call.
    """

    def __init__(self, a: Side, b: Side, out: Differences,
                 progress: Progress | None = None) -> None:
        self.a, self.b, self.out = a, b, out
        self.tally = PhysicalTally()
        self._progress = progress or (lambda _: None)

    def compare(self, end: int) -> None:
        """Compare all frames that start before ``end``."""
        before = self.a.position
        for batch in self.a.frames(end):
            self._step(batch)
            self._close(min(self.a.position, self.b.position))
            self._progress(self.a.position - before)
            before = self.a.position
        self._drain(self.b, end)
        self._close(min(self.a.position, self.b.position))

    def whole(self) -> None:
        """Report all frames that only one of the logs has."""
        start, end = max(self.a.start, self.b.start), min(self.a.end, self.b.end)
        for side in (self.a, self.b):
            self.rest(side, min(start, side.end))
        self.compare(end)
        for side in (self.a, self.b):
            self.rest(side, side.end)

    def rest(self, side: Side, end: int, detail: str = "") -> int:
        """Report all messages of one log up to ``end`` as missing from the other log; return their
        number.
        """
        before = side.messages
        self._drain(side, end, detail)
        self._close(side.position)
        return side.messages - before

    # -- one batch of a -----------------------------------------------------------------------

    def _step(self, batch: Batch) -> None:
        a, b = self.a, self.b
        if len(batch):
            start = int(batch.start[0]) - batch.head
            first = batch.base + start
            last = int(batch.start[-1] + batch.column("total_size")[-1])
            if b.position < first:
                self._drain(b, first)
            if b.position == first and b.holds(first, batch.data[start:last]):
                self.same(batch, np.arange(len(batch)))
                b.skip(batch.base + last, len(batch))
                batch = batch.select(slice(0, 0))
        self._pair(batch, a.position)

    def _pair(self, batch: Batch, upto: int) -> None:
        """Report the results for the messages in a batch of log a.

        The messages are paired with the messages of log b up to ``upto``.
        """
        offset, size = batch.offset, batch.column("total_size")
        alone = np.ones(len(batch), bool)
        for their_batch in self.b.frames(upto):
            if not len(their_batch):
                continue
            their_offset = their_batch.offset
            index = np.searchsorted(offset, their_offset)
            common = index < len(offset)
            common[common] = offset[index[common]] == their_offset[common]
            self.missing(their_batch, ~common, self.a)
            pair_rows, other = index[common], np.flatnonzero(common)
            alone[pair_rows] = False
            same = size[pair_rows] == their_batch.column("total_size")[other]
            same[same] = _equal(batch, pair_rows[same], their_batch, other[same])
            self.different(batch, pair_rows[~same], their_batch, other[~same])
            self.same(batch, pair_rows[same])
        self.missing(batch, alone, self.b)

    def _drain(self, side: Side, upto: int, detail: str = "") -> None:
        """Report the messages of one log up to ``upto`` as missing from the other log."""
        other = self.b if side is self.a else self.a
        before = side.position
        for batch in side.frames(upto):
            self.missing(batch, np.ones(len(batch), bool), other, detail)
            if detail:
                self._progress(side.position - before)
                before = side.position

    # -- telling ------------------------------------------------------------------------------

    def same(self, batch: Batch, rows: Array) -> None:
        """Count the messages in a batch of log a that have the same bytes in log b."""
        self.tally.equal += len(rows)

    def missing(self, batch: Batch, which: Array, side: Side, detail: str = "") -> None:
        """Report as missing in ``side`` the messages of a batch for which ``which`` is true."""
        rows = np.flatnonzero(which)
        if not len(rows):
            return
        if side.name == "a":
            self.tally.missing_in_a += len(rows)
        else:
            self.tally.missing_in_b += len(rows)
        kind = MISSING[side.name]
        named = rows[:self.out.room].tolist()
        for index in named:
            record = decode(batch.bytes_at(index))
            start = record.physical_offset
            why = detail or self._why(side, start, start + record.total_size)
            self.out.add(of_record(kind, record, why))
        if len(rows) > len(named):
            self.out.count(kind, len(rows) - len(named))
            ends = batch.offset + batch.column("total_size")
            for damage in side.open_damage:  # named, though only by a number
                damage.named |= bool(((batch.offset < damage.span.end)
                                  & (ends > damage.span.offset))[rows].any())

    def _why(self, side: Side, start: int, end: int) -> str:
        damage = side.damaged_at(start, end)
        if damage is not None:
            return damage.words(side)
        if side.log.file_of(start) is None:
            return f"no file of {side.name} covers this offset"
        return ""

    def different(self, batch: Batch, rows: Array, their_batch: Batch, other: Array) -> None:
        """Report messages of two batches that are at the same offsets but differ."""
        self.tally.different += len(rows)
        room = min(self.out.room, len(rows))
        for left, right in zip(rows[:room].tolist(), other[:room].tolist(), strict=True):
            self.out.add(of_pair(decode(batch.bytes_at(left)), decode(their_batch.bytes_at(right))))
        self.out.count("different", len(rows) - room)

    def _close(self, upto: int) -> None:
        self.tally.damaged_alike += report_damage(self.a, self.b, upto, self.out)


def _equal(a: Batch, rows: Array, b: Batch, other: Array) -> Array:
    """Return, for each pair of records with the same size and offset, whether their bytes are
    equal.
    """
    out: Array = np.ones(len(rows), bool)
    if not len(rows):
        return out
    start = a.start[rows]
    size = a.column("total_size")[rows]
    low, high = int(start[0]), int(start[-1] + size[-1])
    shift = int(b.start[other[0]]) - low
    # The same physical offsets: one shift aligns all records of both buffers.
    places = np.flatnonzero(a.data[low:high] != b.data[low + shift:high + shift]) + low
    if len(places):
        hit = np.searchsorted(start, places, "right") - 1
        hit = hit[places < start[hit] + size[hit]]
        out[hit] = False
    return out
