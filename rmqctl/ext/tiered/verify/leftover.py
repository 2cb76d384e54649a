"""Explain what remains unmatched after the scan of a tiered queue: units without a message, and
bytes without a unit.

Bytes without a unit are normal (§8.3). If a broker is killed after writing to the commit log and
before writing to the consume queue, it writes the messages again.

Units without a message are damage, with two exceptions: units of expired messages, and units of a
block that was written twice. A broker writes the complete block after the partial one if the first
write was interrupted (§8.4, `Shifts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import plural
from rmqctl.ext.tiered.flat_file import FlatFile
from rmqctl.ext.tiered.verify.queue import Loose, QueueCheck
from rmqctl.ext.tiered.verify.shifts import Shifts, Unit
from rmqctl.formats.local import message
from rmqctl.formats.tiered.units import NEVER, UNIT_SIZE
from rmqctl.scan.frames import Array, Span, distinct

MAX_EXPLAINED = 10_000
"""Maximum number of units of a queue that are explained one by one; further units are
only counted.
"""
MAX_BEHIND = 10_000
"""Maximum number of messages at the end of a log whose units a broker may not have written yet: the
broker's group commit limit.
"""


class Leftovers:
    """Findings about units and bytes that `QueueCheck` could not match. Use it after all findings
    of `QueueCheck`.
    """

    def __init__(self, check: QueueCheck) -> None:
        self.check, self.place, self.log = check, check.place, check.queue.commit_log
        self.loose: Loose = check.loose
        self._claimed: Array = np.zeros(len(self.loose.offset), bool)
        self._shifts = Shifts(check)
        self._hit_spans: dict[int, list[Unit]] = {}
        self._explained = 0
        self._unexplained = 0

    def findings(self) -> Iterator[Finding]:
        yield from self._torn()
        self._shifts.frames(self.loose, self._claimed)
        yield from self._units()
        yield from self._shifts.findings()
        for number, units in self._hit_spans.items():
            yield self._damaged(self.check.spans[number], units)
        if self._unexplained:
            yield self.place.rows("tiered-cq-unit", f"{self._unexplained} more units do not point "
                                  "to their message; counted only", count=self._unexplained)
        yield from self._orphans()

    # -- the shape of the consume queue ------------------------------------------------------------

    def _torn(self) -> Iterator[Finding]:
        flat, units = self.check.queue.consume_queue, self.check.units
        for tear in units.tears:
            behind = units.end - tear.first
            yield self.place.rows("tiered-cq-torn", "torn unit: all units from queue offset "
                                  f"{tear.first} are shifted by {plural(tear.shift, 'byte')}; "
                                  f"{plural(behind, 'message')} misread", tear.first * UNIT_SIZE,
                                  queue_offset=tear.first, count=max(behind, 1))
        rest = units.torn_bytes - (units.tears[-1].shift if units.tears else 0)
        if rest > 0:
            yield self.place.rows("tiered-cq-torn", f"ends with {plural(rest, 'byte')} of an "
                                  "incomplete unit", flat.end - rest, length=rest)
        if not units.tears:
            for segment in flat.segments:
                if segment.base % UNIT_SIZE:
                    yield self.place.rows("tiered-cq-torn", f"begins at {segment.base}, in the "
                                          "middle of a unit", segment.base)

    # -- units -------------------------------------------------------------------------------------

    def _units(self) -> Iterator[Finding]:
        check, counted = self.check, self.place.counted
        expired, first_expired = 0, None
        ahead: list[Unit] = []
        count_ahead = 0
        hidden, end = -1, min(self.log.end, NEVER)
        if check.first is not None and check.first[1] == self.log.start:
            hidden = check.first[0]
        for start, units in check.units.blocks():
            counted.consumequeue_rows += len(units)
            unseen = ~check.seen.has(start, len(units))
            offset = units["commit_log_offset"].astype(np.int64)
            size = units["size"].astype(np.int64)
            numbers = start + np.arange(len(units))
            # Units of expired messages.
            gone = unseen & (((offset >= 0) & (offset < self.log.start)) | (numbers < hidden))
            if gone.any():
                expired += int(gone.sum())
                if first_expired is None:
                    first_expired = int(numbers[gone][0])
            # Units that point beyond the end of the log: remember the first and the last one.
            rows = np.flatnonzero(unseen & ~gone)
            beyond = (offset[rows] >= end) | (
                (offset[rows] >= 0) & (size[rows] > end - offset[rows]))
            beyond &= (offset[rows] >= 0) & (size[rows] >= message.MIN_SIZE)
            ahead.extend(Unit(int(numbers[row]), int(offset[row]), int(size[row]))
                         for row in rows[beyond][:: max(int(beyond.sum()) - 1, 1)].tolist())
            del ahead[1:-1]
            count_ahead += int(beyond.sum())
            # A message is lost if no intact message has its queue offset.
            gone_for_good = ~check.without_unit.has(start, len(units))[rows]
            if beyond.any():
                gone_for_good &= ~beyond | (offset[rows] + size[rows] > self._end_now)
            self.place.lost(numbers[rows[gone_for_good]])
            # Explain the others by the bytes at their targets.
            for row in rows[~beyond].tolist():
                yield from self._explained_unit(
                    Unit(int(numbers[row]), int(offset[row]), int(size[row])))
        counted.rows_expired += expired
        if expired:
            yield self.place.rows("tiered-cq-expired", f"{plural(expired, 'unit')} of expired "
                                  "messages", count=expired, queue_offset=first_expired)
        if ahead and self._has_grown(ahead[-1]):
            yield self.place.rows("tiered-oddity", f"{plural(count_ahead, 'unit')} of messages "
                                  "uploaded during this check", count=count_ahead)
        elif ahead:
            unit = ahead[0]
            yield self.place.rows(
                "tiered-cq-ahead", f"{plural(count_ahead, 'unit')} past the end of the commit log "
                f"at {self.log.end} (first: {unit.offset}, {unit.size} bytes)",
                check.units.place(unit.queue_offset), queue_offset=unit.queue_offset,
                count=count_ahead)

    def _has_grown(self, unit: Unit) -> bool:
        """Return whether a broker has written the unit's message to the log since the scan."""
        return unit.offset + unit.size <= self._end_now and unit.offset >= self.log.end

    @cached_property
    def _end_now(self) -> int:
        """The current end of the commit log, which may be after the end that the scan found."""
        return FlatFile.open(self.log.reader, self.log.folder).end

    def _explained_unit(self, unit: Unit) -> Iterator[Finding]:
        # Explain only the first units, because explanations need reads.
        self._explained += 1
        if self._explained > MAX_EXPLAINED:
            self._unexplained += 1
            return
        if unit.offset < 0 or unit.size < message.MIN_SIZE:
            yield self._wrong(unit, f"points to offset {unit.offset}, {unit.size} bytes: not a "
                              "message")
            return
        # A message without its own unit starts here: compare both.
        frame = int(np.searchsorted(self.loose.offset, unit.offset))
        if frame < len(self.loose.offset) and int(self.loose.offset[frame]) == unit.offset:
            self._claimed[frame] = True
            yield from self._at_frame(unit, int(self.loose.size[frame]),
                                      int(self.loose.queue_offset[frame]))
            return
        # An explanation can cover many units: a shift of the queue, or a damaged range.
        if self._shifts.explains(unit):
            return
        number = self._shifts.span_of(unit.offset)
        if number is not None:
            self._hit_spans.setdefault(number, []).append(unit)
            return
        record = self.log.record_at(unit.offset)
        if record is not None and (record.physical_offset, record.queue_offset,
                                   record.total_size) == (
                unit.offset, unit.queue_offset, unit.size) and (
                    self.check.loose_count == len(self.loose.offset)):
            # The walk has skipped it: a frame in another message's body.
            yield self._wrong(unit, f"points to offset {unit.offset}, inside another message")
        elif record is not None and record.physical_offset == unit.offset:
            yield from self._at_frame(unit, record.total_size, record.queue_offset)
        elif self.log.segment_of(unit.offset) is None:
            yield self._wrong(unit, f"points to offset {unit.offset}, which is in no segment")
        else:
            yield self._wrong(unit, f"points to offset {unit.offset}, where no message starts")

    def _at_frame(self, unit: Unit, size: int, queue_offset: int) -> Iterator[Finding]:
        """Yield findings about a unit that points to an intact message, but does not match this
        message.
        """
        if queue_offset != unit.queue_offset:
            other = self.check.units.at(np.array([queue_offset], np.int64))
            if bool(self.check.seen.has(queue_offset, 1)[0]) and other.exists[0] and int(
                    other.offset[0]) == unit.offset:
                yield self._wrong(unit, f"points to the message at queue offset {queue_offset}")
                return
            yield self.place.log("tiered-message-fields", f"its queue offset is {queue_offset}, "
                                 f"but the unit at queue offset {unit.queue_offset} points to it",
                                 unit.offset,
                                 length=size, queue_offset=unit.queue_offset)
        if size != unit.size:
            yield self._wrong(unit, f"size is {unit.size}, but the message at {unit.offset} has "
                              f"{size} bytes")

    def _wrong(self, unit: Unit, detail: str) -> Finding:
        return self.place.rows("tiered-cq-unit", detail, self.check.units.place(unit.queue_offset),
                               length=UNIT_SIZE, queue_offset=unit.queue_offset)

    def _damaged(self, span: Span, units: list[Unit]) -> Finding:
        first = units[0]
        some = "" if len(units) == 1 else (
            f"; {len(units)} units point into these {span.length} bytes")
        field = f" ({span.field})" if span.field else ""
        return self.place.log(
            "tiered-record", f"{span.reason or 'only zeros'}{field}{some}", span.offset,
            length=span.length, queue_offset=first.queue_offset, count=len(units))

    # -- bytes that no unit points to -------------------------------------------------------------

    def _orphans(self) -> Iterator[Finding]:
        counted, loose, check = self.place.counted, self.loose, self.check
        # Records with a unit are messages, not orphans.
        free = ~self._claimed
        claimed = int(self._claimed.sum())
        counted.orphans -= claimed
        counted.bytes_orphaned -= int(loose.size[self._claimed].sum())
        counted.messages += claimed
        counted.bytes_in_messages += int(loose.size[self._claimed].sum())
        if not check.queue.consume_queue.segments:
            if len(loose.offset):
                yield self.place.log("tiered-cq-missing", f"{plural(check.loose_count, 'message')} "
                                     "without a consume queue", self.log.start,
                                     count=check.loose_count)
            return
        # Queue offsets after the last unit: damage if there are more than a broker has pending.
        late = free & (loose.queue_offset >= check.units.end)
        many = len(distinct(loose.queue_offset[late]))
        if many > MAX_BEHIND:
            yield self.place.log("tiered-cq-behind", f"{many} queue offsets from {check.units.end} "
                                 "on have no units: more than a broker has pending",
                                 int(loose.offset[late][0]), count=many)
        # The rest: intact messages without a unit, and bytes that are not messages.
        garbage = [span for number, span in enumerate(check.spans)
                   if number not in self._hit_spans and not self._shifts.has(span.offset)]
        count = int(free.sum()) + check.loose_count - len(loose.offset)
        if not count and not garbage:
            return
        parts = []
        if count:
            again = sum(bool(check.seen.has(queue_offset, 1)[0])
                        for queue_offset in loose.queue_offset[free & ~late].tolist())
            parts.append(f"{plural(count, 'complete message')} ({again} written again later, "
                         f"{int(late.sum())} not yet in the consume queue)")
        if garbage:
            size = sum(span.length for span in garbage)
            parts.append(f"{plural(size, 'byte')} without a message, in "
                         f"{plural(len(garbage), 'place')}")
        first = [int(loose.offset[free][0])] if free.any() else []
        first += [garbage[0].offset] if garbage else []
        size = int(loose.size[free].sum()) + sum(span.length for span in garbage)
        yield self.place.log("tiered-orphans", "no unit points to " + " and to ".join(parts),
                             min(first, default=None), length=size,
                             count=max(count + len(garbage), 1))
