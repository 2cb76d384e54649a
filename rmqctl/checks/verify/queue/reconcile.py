"""Explanation of differences between log and consume queue: each entry gets one category.

The explanation is exact but slow, so it covers only what the log pass could not match. These are
entries without a message (reverse direction), and messages whose entry differs (claims).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

import numpy as np

from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.common import plural, runs
from rmqctl.checks.verify.context import Context, StartRepairs, deleted
from rmqctl.checks.verify.queue.rows import Claim, QueueKey, QueueTally, Shift, merged, uncovered
from rmqctl.checks.verify.queue.switched import stored_while_on
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.consume_queue import FILLER, UNIT_SIZE, UnitRecord
from rmqctl.formats.local.filler import is_kept_damaged
from rmqctl.formats.local.message import Record
from rmqctl.scan.frames import Array
from rmqctl.scan.queue_reach import telling
from rmqctl.store.queue.consume_queue import ConsumeQueue

MAX_SINGLE = 20_000
"""Maximum number of unmatched entries of a queue that are examined one by one; further entries are
only counted.
"""
_NEAR = 1 << 10
"""Maximum number of matched entries between two unmatched ones that are read together."""
_OFF = "enableMultiDispatch was off"
_MAX_GAP = 1 << 20
"""Size, in queue offsets, from which a gap before a queue's last message is implausible. The queue
offset of that message then counts as damaged.
"""
_MAX_OFFSET = (1 << 63) // UNIT_SIZE
"""First queue offset whose entry no file can contain."""


class LeftOverRows:
    """Entries of one queue that match no message. ``end``: the queue offset after its last used
    entry.
    """

    def __init__(self, context: Context, queue: ConsumeQueue, tally: QueueTally | None,
                 end: int) -> None:
        self.context, self.queue, self.end = context, queue, end
        self.tally = tally or QueueTally()
        self._ahead: list[tuple[int, int]] = []
        self._impossible: list[tuple[int, int]] = []
        """Runs of entries that point beyond the log to impossible positions.

        Each run has the queue offset of its first entry, and the number of entries.
        """
        self._lost: list[int] = []
        self._loose: dict[int, UnitRecord] = {}
        self._gaps: list[tuple[int, int, int]] = []
        """Runs of messages after a gap in the queue offsets.

        Each run has its first queue offset, its number of messages, and the distance, in entries,
        by which the messages' entries are too early.
        """
        self._unseen = 0

    def finding(self, category: str, detail: str, row: int | None, *, count: int = 1,
                severity: str = "", structure: str = "consumequeue",
                offset: int | None = None) -> Finding:
        """Return a finding at an entry of this queue (or at a physical offset for the
        commitlog).
        """
        file = position = None
        if structure == "commitlog" and offset is not None:
            log_file = self.context.store.log.file_of(offset)
            file, position = (log_file.path, offset - log_file.base) if log_file else (None, None)
        elif row is not None:
            file, position = self._place(row)
            offset = position
        return Finding(category, structure, detail, file=file, offset=offset, position=position,
                       length=count * UNIT_SIZE if structure == "consumequeue" and (
                           self.queue.files) else None,
                       topic=self.queue.topic, queue_id=self.queue.queue_id, queue_offset=row,
                       count=count, severity=severity)

    def _place(self, row: int) -> tuple[str | None, int | None]:
        if self.queue.in_rocksdb:
            return self.queue.folder, None
        byte = row * UNIT_SIZE
        for file in self.queue.files:
            if file.base <= byte < file.end:
                return file.path, byte - file.base
        last = self.queue.files[-1] if self.queue.files else None
        return (last.path, byte - last.base) if last else (None, byte)

    @property
    def key(self) -> QueueKey:
        return self.queue.topic, self.queue.queue_id

    # -- reverse: rows nobody claimed -----------------------------------------------------------

    def prepare(self) -> None:
        """Classify the entries that match no message.

        The classes are expired entries, padding entries, entries beyond the log, entries of lost
        messages, and stray entries.
        """
        self._settle()
        context = self.context
        for number, rows in self._unmatched():
            physical = rows["physical_offset"]
            used = (rows["size"] > 0) | (physical != 0)
            used &= physical >= context.store.log.min_offset
            used &= self._looked_at(physical)
            beyond = used & (physical >= context.log_end)
            for row in number[beyond].tolist():
                self._stretch(row)
            inside = np.flatnonzero(used & ~beyond)
            for row, damaged, unit in zip(
                    number[inside].tolist(), context.in_damages(physical[inside]).tolist(),
                    map(UnitRecord._make, rows[inside].tolist()), strict=True):
                if unit != FILLER:
                    self._sort_row(row, unit, damaged=damaged)

    def _unmatched(self) -> Iterator[tuple[Array, Array]]:
        """Yield (queue offsets, entries) of the entries that match no message. Nearby entries are
        read together.
        """
        left: Array = np.array([*uncovered(self.tally, self.queue.first_index, self.end)],
                               np.int64).reshape(-1, 2)
        if not len(left) and not self.context.is_damaged:  # each entry points to its message
            self.queue.note_valid(self.end)  # after damage, the entries are needed again
        while len(left):
            far = np.flatnonzero(left[1:, 0] - left[:-1, 1] > _NEAR)
            part = left[:far[0] + 1] if len(far) else left
            reached = int(part[0, 0])
            for first, rows in self.queue.pages(reached, int(part[-1, 1])):
                number = np.arange(first, first + len(rows))
                reached = first + len(rows)
                loose = (np.searchsorted(part[:, 0], number, "right")
                         > np.searchsorted(part[:, 1], number, "right"))
                yield number[loose], rows[loose]
            # A file may be missing: nothing can be read up to the next range.
            left = left[np.searchsorted(left[:, 0], reached, "right"):]

    def _settle(self) -> None:
        """Determine whether skipped queue offsets explain why entries of a light queue are early.

        A broker may skip queue offsets. If it skipped n offsets before an entry, the entry may be
        up to n positions too early. If the beginning of the log was not read, n is unknown.
        """
        tally, context = self.tally, self.context
        if not self.queue.topic.startswith(props.LMQ_PREFIX):
            self._settle_gaps()
            return
        complete = context.looked_at is None and context.store.log.min_offset == 0
        untold = self._is_switched and context.store.queues.light.untold
        skipped = sorted(tally.skipped)
        for first, count, by in tally.shifted:
            if not complete or untold or by <= bisect_left(skipped, first):
                tally.cover(first - by, first - by + count)
                continue
            self._claim(first, count, by)
        tally.shifted.clear()

    def _settle_gaps(self) -> None:
        """Accept the entries after a gap in the queue offsets of the log.

        A broker appends such entries at the end of the queue, at lower queue offsets than their
        messages (`ConsumeQueue.putMessagePositionInfo`). Three conditions follow:

        * Each run of entries begins where the previous run ends.
        * No later entry is at the queue offset of its message.
        * No other message has a queue offset inside the gap.

        If a run does not meet these conditions, its messages and all later ones become claims
        again.
        """
        tally = self.tally
        claimed = sorted(claim.queue_offset for claim in tally.claims)
        runs = sorted(tally.shifted)
        exact = max((end for _, end in tally.covered), default=0)
        accepted = bool(runs) and exact <= runs[0].first - runs[0].by and not _is_flip(*runs)
        by_before, end = 0, None
        for first, count, by in runs:
            missing = by - by_before
            accepted = (accepted and missing >= 0 and end in (None, first - by)
                        and bisect_left(claimed, first) == bisect_left(claimed, first - missing))
            if not accepted:
                self._claim(first, count, by)
                continue
            tally.cover(first - by, first - by + count)
            end = first - by + count
            if by == by_before:
                begin, length, _ = self._gaps.pop()
                self._gaps.append((begin, length + count, by))
            else:
                self._gaps.append((first, count, by))
            by_before = by
        tally.shifted.clear()

    def _claim(self, first: int, count: int, by: int) -> None:
        """Create claims for the messages whose entries are ``by`` positions too early."""
        tally = self.tally
        single = min(count, MAX_SINGLE)
        tally.unlisted += count - single
        for offset in range(first, first + single):
            held = self.queue.unit(offset - by)
            unit = self.queue.unit(offset) if offset < self.end else None
            if held is not None:
                row = None if unit is None else (
                    unit.physical_offset, unit.size, unit.tags_code)
                tally.claims.append(Claim(offset, held.physical_offset, held.size,
                                          held.tags_code, row))

    @property
    def _is_switched(self) -> bool:
        """Return whether messages may legally have a queue offset in this queue but no entry."""
        return self.queue.topic.startswith(props.LMQ_PREFIX) and (
            self.context.store.queues.light.switched)

    def _looked_at(self, physical: Array) -> Array | bool:
        """Return a boolean array: for each entry, whether this run has read the position that the
        entry points to.

        Return True if the run has read the whole log.
        """
        parts = self.context.looked_at
        if parts is None:
            return True
        inside = np.zeros(len(physical), bool)
        for start, end in parts:
            inside |= (physical >= start) & (physical < end)
        return inside

    def _stretch(self, row: int) -> None:
        """Add an entry that points beyond the log; neighbouring entries in one file
        form one run.
        """
        starts_file = any(file.base == row * UNIT_SIZE for file in self.queue.files)
        if self._ahead and self._ahead[-1][1] == row and not starts_file:
            self._ahead[-1] = self._ahead[-1][0], row + 1
        else:
            self._ahead.append((row, row + 1))

    def _sort_row(self, row: int, unit: UnitRecord, *, damaged: bool) -> None:
        if damaged:
            self._lost.append(row)
            self.context.lost.setdefault(unit.physical_offset, (
                self.queue.topic, self.queue.queue_id, row))
        elif len(self._loose) < MAX_SINGLE:
            self._loose[row] = unit
            self.context.loose_rows.setdefault(unit.physical_offset, (self.key, row))
        else:
            self._unseen += 1

    def _record(self, unit: UnitRecord) -> Record | None:
        return self.context.store.log.record_at(unit.physical_offset)


class QueueReconciler(LeftOverRows):
    """Explanation of the differences between one queue and the log."""

    def findings(self) -> Iterator[Finding]:
        """Yield the findings for the queue.

        First call `prepare` for all queues, because an entry of one queue may explain a message of
        another.
        """
        # Messages without their entry, or with another one.
        if self._is_switched:
            yield from self._without_rows()
        yield from self._explain_claims()
        yield from self._of_an_earlier_queue()
        yield from self._loose_rows_left()
        yield from self._tags()
        if self.tally.first_wrong_time is not None:
            row, noted, real = self.tally.first_wrong_time
            count = self.tally.wrong_times
            yield self.finding(
                "cq-wrong-time", f"{plural(count, 'entry', 'entries')} "
                f"{'has' if count == 1 else 'have'} a wrong store time, the first {noted} instead "
                f"of {real}", row, count=count)
        # Entries that point beyond the log, or to no message.
        for first, end in self._beyond():
            unit = self.queue.unit(first)
            where = unit.physical_offset if unit else self.context.log_end
            yield self.finding(
                "cq-ahead", f"{plural(end - first, 'entry points', 'entries point')} beyond the "
                f"log's end {self.context.log_end}, the first to {where}",
                first, count=end - first)
        for first, count in self._impossible:
            unit = self.queue.unit(first)
            where = unit.physical_offset if unit else self.context.log_end
            yield self.finding(
                "cq-wrong-offset", f"{plural(count, 'entry', 'entries')} "
                f"{'contradicts' if count == 1 else 'contradict'} others and "
                f"{'points' if count == 1 else 'point'} to no message, the first to {where}",
                first, count=count)
        # Gaps, and entries of lost messages.
        for start, count, by in self._gaps:
            yield self.finding(
                "cq-after-gap", f"{plural(count, 'entry', 'entries')} for messages from queue "
                f"offset {start} on: too early by {by}", start - by, count=count)
        if self._lost:
            yield self.finding(
                "cq-lost", f"{plural(len(self._lost), 'entry', 'entries')} of damaged or lost "
                f"messages: {_ranges(self._lost)}", self._lost[0], count=len(self._lost))
        if self.queue.in_rocksdb:
            from rmqctl.checks.verify.queue import rocksdb

            yield from rocksdb.gaps(self.context, self.queue, self.tally, uncovered(
                self.tally, self.queue.first_index, self.end))
        if self._unseen:
            yield self.finding(
                "cq-wrong-offset", f"{self._unseen} more entries point to no message of the log "
                "(only counted)", None, count=self._unseen)

    def _beyond(self) -> Iterator[tuple[int, int]]:
        """Yield the runs of entries that point beyond the log and may prove lost messages.

        Entries whose own message is in the log are skipped. Entries that other entries contradict
        are recorded as impossible.
        """
        own = np.array(sorted({claim.queue_offset for claim in self.tally.claims}), np.int64)
        for first, end in self._ahead:
            begin = end_of_run = first
            for start, rows in self.queue.pages(first, end):
                place = rows["physical_offset"].astype(np.int64)
                used = np.flatnonzero(rows["size"] > 0)
                proven: Array = np.zeros(len(rows), bool)
                proven[used[telling(place[used])]] = True
                other = ~proven
                if len(own):
                    is_own = np.isin(np.arange(start, start + len(rows)), own)
                    proven, other = proven & ~is_own, other & ~is_own
                for row, count in runs((start + np.flatnonzero(proven)).tolist()):
                    if row != end_of_run and begin < end_of_run:
                        yield begin, end_of_run
                    begin, end_of_run = begin if row == end_of_run else row, row + count
                if other.any():
                    self._note_impossible(runs((start + np.flatnonzero(other)).tolist()))
            if begin < end_of_run:
                yield begin, end_of_run

    def _note_impossible(self, impossible: Iterable[tuple[int, int]]) -> None:
        for first, count in impossible:
            if len(self._impossible) < MAX_SINGLE:
                self._impossible.append((first, count))
            else:
                self._unseen += count

    # -- light queues of a broker that was switched ----------------------------------------------

    def _without_rows(self) -> Iterator[Finding]:
        """Remove and report claims of messages for which a broker may have written no entry.

        With enableLmq, but without enableMultiDispatch, 5.x assigns queue offsets without writing
        entries. After a restart, 5.x assigns these queue offsets again, so the entry at such an
        offset may belong to a later message.

        If this queue offset has no entry, the entry was lost or was never written. The two cases
        can be distinguished only if enableMultiDispatch is known to be off. If the setting is on
        now, it may have been off when the message was stored.
        """
        rows = {unit.physical_offset for unit in self._loose.values()}
        untold = self.context.store.queues.light.untold and not any(
            claim.physical_offset in self.context.rowless for claim in self.tally.claims)
        left: list[Claim] = []
        taken: list[Claim] = []
        without: list[Claim] = []
        lost = stored_while_on(
            self.context, self.key, [claim.physical_offset for claim in self.tally.claims])
        for claim in self.tally.claims:
            if not 0 <= claim.queue_offset < _MAX_OFFSET or claim.physical_offset in rows or (
                    claim.physical_offset in lost):
                left.append(claim)
            elif claim.row in (None, (0, 0, 0), tuple(FILLER)):
                (without if untold else left).append(claim)
            else:
                (taken if self.tally_covers(claim.queue_offset) else left).append(claim)
        self.tally.claims = left
        if taken:
            yield self._switched(taken, f"the queue offset of another: {_OFF}")
        if without:
            yield self._switched(without, f"no entry: {_OFF}, or entries are lost")

    def _switched(self, claims: list[Claim], words: str) -> Finding:
        return self.finding(
            "not-judged", f"{plural(len(claims), 'message')} {_have(len(claims))} {words}",
            claims[0].queue_offset, count=len(claims))

    # -- forward: messages whose row says something else -----------------------------------------

    def _explain_claims(self) -> Iterator[Finding]:
        # Each message without its own entry, by the entry in its place.
        behind: list[Claim] = []
        missing: list[Claim] = []
        for claim in self.tally.claims:
            row, unit = claim.queue_offset, claim.row
            loose = self.context.loose_rows.get(claim.physical_offset)
            if loose is not None and loose[0] != self.key and not self._also_in(claim, *loose[0]):
                yield from self._of_another_queue(claim, *loose)
            elif not 0 <= row < _MAX_OFFSET or (unit is None and row >= self.end):
                behind.append(claim)
            elif unit is None or unit == (0, 0, 0) or unit == tuple(FILLER):
                (behind if row >= self.end else missing).append(claim)
            else:
                yield from self._explain(claim, UnitRecord(*unit))
        # Messages beyond the end: entries that point to nothing may be theirs.
        loose_at = {unit.physical_offset: row for row, unit in self._loose.items()}
        still = []
        for claim in behind:
            row_of = loose_at.get(claim.physical_offset)
            if row_of is not None:
                yield self._fields(claim, row_of)
            elif 0 <= claim.queue_offset < _MAX_OFFSET:
                still.append(claim)
            else:
                yield self.finding(
                    "message-fields", f"the message has queue offset {claim.queue_offset}, but its "
                    f"queue ends at {self.end}", claim.queue_offset, structure="commitlog",
                    offset=claim.physical_offset)
        # If entries cannot be read, none counts as missing.
        unread = [claim for claim in missing if self.queue.is_unread(claim.queue_offset)]
        if unread:
            missing = [claim for claim in missing if not self.queue.is_unread(claim.queue_offset)]
            yield self._unread(sorted(unread))
        for unflushed in (False, True):  # the two never form one run
            yield from self._runs("cq-missing-entry", [
                claim for claim in missing
                if self.context.is_unflushed(claim.physical_offset) is unflushed])
        if still or self.tally.unlisted:
            yield self._behind(still)

    def _unread(self, claims: list[Claim]) -> Finding:
        return self.finding(
            "cq-database", f"cannot read the entries of {plural(len(claims), 'message')}: "
            f"{self.queue.why_unread}", claims[0].queue_offset, count=len(claims))

    def _also_in(self, claim: Claim, topic: str, _queue_id: int) -> bool:
        """Return whether a message must have an entry in another light queue as well."""
        if not topic.startswith(props.LMQ_PREFIX):
            return False
        record = self.context.store.log.record_at(claim.physical_offset)
        return record is not None and dispatched_to(record, topic)

    def _of_another_queue(self, claim: Claim, key: QueueKey, row: int) -> Iterator[Finding]:
        if claim.physical_offset in self.context.reported:
            return
        self.context.reported.add(claim.physical_offset)
        yield self.finding(
            "message-fields", f"entry {row} of {key[0]}/{key[1]} points to this message "
            f"(queue offset {claim.queue_offset})", row, structure="commitlog",
            offset=claim.physical_offset)

    def _behind(self, claims: list[Claim]) -> Finding:
        count = len(claims) + self.tally.unlisted
        first = min((c.queue_offset for c in claims), default=self.end)
        place = min((c.physical_offset for c in claims), default=None)
        repairs = self.context.start_repairs_of_rows(self.key, place)
        return self.finding(
            "cq-behind", f"the last {'message' if count == 1 else plural(count, 'message')} "
            f"{_have(count)} no entry{repairs.words(_makes(count)) or _from(place, count)}", first,
            count=count, severity=INFO if self.context.live else repairs.severity)

    def _runs(self, category: str, claims: list[Claim]) -> Iterator[Finding]:
        """Yield a finding for each run of adjacent queue offsets."""
        claims = sorted(claims)
        start = 0
        for number in range(1, len(claims) + 1):
            if number == len(claims) or (
                    claims[number].queue_offset != claims[number - 1].queue_offset + 1):
                run = claims[start:number]
                place = min(claim.physical_offset for claim in run)
                repairs = self.context.start_repairs_of_rows(self.key, place)
                words = repairs.words(_makes(len(run))) or _from(place, len(run))
                yield self.finding(
                    category, f"{plural(len(run), 'message')} {_have(len(run))} no entry{words}",
                    run[0].queue_offset, count=len(run), severity=repairs.severity)
                start = number

    def _of_an_earlier_queue(self) -> Iterator[Finding]:
        count = self.tally.earlier
        if count:
            yield self.finding(
                "cq-earlier", f"{plural(count, 'message')} before physical offset "
                f"{self.tally.begun} {'belongs' if count == 1 else 'belong'} to an earlier queue",
                0, count=count)

    def _explain(self, claim: Claim, unit: UnitRecord) -> Iterator[Finding]:
        # The entry points to the message, with another size.
        row = claim.queue_offset
        if unit.physical_offset == claim.physical_offset:
            self._loose.pop(row, None)
            yield self.finding(
                "cq-wrong-size", f"entry has size {unit.size}, but the message at "
                f"{claim.physical_offset} has {claim.size}", row)
            return
        # The entry belongs to another message.
        elsewhere = next((r for r, u in self._loose.items()
                          if u.physical_offset == claim.physical_offset), None)
        was_read = self.context.was_read(unit.physical_offset)
        if self.tally_covers(row) or not was_read:
            # The entry serves another message, so the fields of this message are wrong.
            if elsewhere is not None and not self.queue.topic.startswith(props.LMQ_PREFIX):
                yield self._fields(claim, elsewhere)
            elif elsewhere is None:
                yield self._row_taken(claim, unit)
            else:
                self._loose.pop(elsewhere, None)
            return
        # No other message needs the entry.
        self._loose.pop(row, None)
        other = self._record(unit)
        if other is not None and self._same_queue(other):
            if self.tally_covers(other.queue_offset):
                yield self.finding(
                    "cq-duplicate", "entry points again to the message of queue offset "
                    f"{other.queue_offset}, not to its own", row)
            else:
                yield self.finding(
                    "cq-out-of-order", "entry points to the message of queue offset "
                    f"{other.queue_offset}; its own is at {claim.physical_offset}", row)
            return
        yield self.finding(
            "cq-wrong-offset", f"entry points to {unit.physical_offset}, but its message is at "
            f"{claim.physical_offset}", row)

    def tally_covers(self, row: int) -> bool:
        return any(start <= row < end for start, end in merged(self.tally.covered))

    def _same_queue(self, record: Record) -> bool:
        return (record.topic.decode("utf-8", "surrogateescape") == self.queue.topic
                and record.queue_id == self.queue.queue_id)

    def _fields(self, claim: Claim, row: int) -> Finding:
        self._loose.pop(row, None)
        self.context.reported.add(claim.physical_offset)
        return self.finding(
            "message-fields", f"the message has queue offset {claim.queue_offset}, but entry {row} "
            "points to it", row, structure="commitlog", offset=claim.physical_offset)

    def _row_taken(self, claim: Claim, unit: UnitRecord) -> Finding:
        return self.finding(
            "message-fields", f"the message has queue offset {claim.queue_offset}, but that entry "
            f"points to another, at {unit.physical_offset}", claim.queue_offset,
            structure="commitlog", offset=claim.physical_offset)

    def _loose_rows_left(self) -> Iterator[Finding]:
        """Yield findings for the unmatched entries that no claim of this queue explains."""
        for row, unit in sorted(self._loose.items()):
            if unit.physical_offset in self.context.reported:
                continue
            record = self._record(unit)
            if record is None:
                yield self.finding(
                    "cq-wrong-offset", f"entry points to {unit.physical_offset}: "
                    f"{self.context.store.log.explain(unit.physical_offset)}", row)
            elif record.total_size != unit.size:
                yield self.finding(
                    "cq-wrong-offset", f"entry points to {unit.physical_offset} with size "
                    f"{unit.size}, but the message there has {record.total_size}", row)
            elif dispatched_to(record, self.queue.topic) or is_kept_damaged(record):
                continue
            elif self._same_queue(record) and self.tally_covers(record.queue_offset):
                yield self.finding(
                    "cq-duplicate", "an earlier entry already points to the message of queue "
                    f"offset {record.queue_offset}", row)
            else:
                topic = record.topic.decode("utf-8", "surrogateescape")
                self.context.reported.add(unit.physical_offset)
                yield self.finding(
                    "message-fields", f"entry {row} points to a message of topic {topic}, queue "
                    f"{record.queue_id}, queue offset {record.queue_offset}", row,
                    structure="commitlog", offset=unit.physical_offset)

    def _tags(self) -> Iterator[Finding]:
        odd = self.tally.odd_tags if self.context.default_delays else []
        for claim in sorted([*self.tally.wrong_tags, *odd]):
            row = claim.row[2] if claim.row else None
            record = self.context.store.log.record_at(claim.physical_offset, claim.size)
            if record is not None and is_kept_damaged(record):
                continue  # the entry has what the message has lost
            yield self.finding(
                "cq-wrong-tag", f"entry has tags code {row}, but the message at "
                f"{claim.physical_offset} has {claim.tags_code}", claim.queue_offset)


def _is_flip(run: Shift, *more: Shift) -> bool:
    """Return whether a damaged queue offset of the last message is more likely than a gap in the
    queue offsets.
    """
    return run.length == 1 and not more and (
        (run.first ^ (run.first - run.by)).bit_count() == 1 or run.by >= _MAX_GAP)


def dispatched_to(record: Record, queue: str) -> bool:
    """Return whether a message was also dispatched to ``queue`` by multi-dispatch (an LMQ may have
    legal gaps, #8693).
    """
    properties = props.parse(record.properties.decode("utf-8", "replace"))
    return queue in properties.get(props.MULTI_DISPATCH, "").split(",")


def _ranges(rows: list[int], most: int = 2) -> str:
    parts = merged([(row, row + 1) for row in rows])
    words = [str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in parts[:most]]
    return ", ".join(words) + (f" and {len(parts) - most} more" if len(parts) > most
                               else "")


def missing_queue(context: Context, key: QueueKey, tally: QueueTally) -> Iterator[Finding]:
    """Yield a finding for a queue with messages in the log but no entries on disk."""
    if tally.messages <= 0:
        return  # none of them needs an entry
    topic, queue_id = key
    loose = context.loose_rows.get(tally.first_phy) if tally.messages == 1 else None
    if loose is not None:  # a single message with damaged fields does not make a queue
        if tally.first_phy not in context.reported:
            context.reported.add(tally.first_phy)
            file = context.store.log.file_of(tally.first_phy)
            yield Finding(
                "message-fields", "commitlog",
                f"entry {loose[1]} points to a message of topic {topic}, queue {queue_id}",
                file=file.path if file else None, offset=tally.first_phy,
                position=tally.first_phy - file.base if file else None, topic=loose[0][0],
                queue_id=loose[0][1], queue_offset=loose[1])
        return
    if topic.startswith(props.LMQ_PREFIX) and context.store.queues.light.untold and (
            context.store.queues.light.switched):
        yield Finding(
            "not-judged", "consumequeue", f"{plural(tally.messages, 'message')} "
            f"{_have(tally.messages)} no consume queue: {_OFF}, or it is lost",
            file=context.store.path("consumequeue", topic, str(queue_id)),
            topic=topic, queue_id=queue_id, queue_offset=0, count=tally.messages)
        return
    if queue_id < 0:
        return  # no queue has such a number: it is reported for the message
    in_rocksdb = context.store.layout.consumequeue == "rocksdb"
    folder = ("consumequeue",) if in_rocksdb else ("consumequeue", topic, str(queue_id))
    gone = deleted(topic, context.known_topics)
    detail = f"{plural(tally.messages, 'message')} {_have(tally.messages)} no consume queue"
    repairs = StartRepairs()
    if gone:
        detail += "; the topic is not in topics.json"
    else:
        repairs = context.start_repairs_of_rows(key, tally.first_phy)
        detail += repairs.words("recreates it")
    yield Finding("cq-missing", "consumequeue", detail,
                  file=context.store.path(*folder), offset=None if in_rocksdb else 0,
                  topic=topic, queue_id=queue_id, queue_offset=0, count=tally.messages,
                  severity=INFO if gone else repairs.severity)


def _from(place: int | None, count: int) -> str:
    """Return text to append to a detail: the physical offset of the first of ``count`` messages."""
    if place is None:
        return ""
    return f", {'at' if count == 1 else 'from'} physical offset {place}"


def _makes(count: int) -> str:
    return "recreates it" if count == 1 else "recreates them"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"
