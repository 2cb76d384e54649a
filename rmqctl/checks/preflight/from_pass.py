"""Count a store's lost messages from the results of an earlier pass over its log.

The log is not read again. `verify` has compared all messages with their consume queue entries. A
message with an entry is not lost, even after a start. Only messages without an entry, damaged
records and other bytes are therefore examined. The counts are the same as those of a scan by
`preflight`. Only ordinary stores are supported; `preflight` scans any other store.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import closing
from typing import NamedTuple

import numpy as np

from rmqctl.broker.recovery import as_configured, judge, loaded_log, start_file
from rmqctl.broker.release import judged
from rmqctl.broker.versions import BrokerVersion, version_of
from rmqctl.checks.preflight.already import AlreadyLost
from rmqctl.checks.preflight.effects import BrokerEffect, LogEffect
from rmqctl.checks.preflight.load import load
from rmqctl.checks.preflight.lost import Unreachable, by_queue, units_at
from rmqctl.checks.preflight.queues import RecoveredQueues
from rmqctl.checks.preflight.types import Prediction
from rmqctl.checks.preflight.walked import WalkResults
from rmqctl.checks.verify.context import BadRecord, RangeResult
from rmqctl.checks.verify.log.log_pass import UNREADABLE
from rmqctl.checks.verify.queue.rows import QueueTally, merged
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.derived import is_queue_name
from rmqctl.scan.frames import BLANK, ZERO, Array, distinct
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store

_NONE: Array = np.zeros(0, np.int64)
_BACK = 64 << 10
"""Number of bytes at the end of the log that are searched first for the last two records."""


class _UnusualError(Exception):
    """The store has a structure that this module does not handle."""


def known_from(store: Store, seen: RangeResult) -> int | None:
    """Return the number of lost messages, as `preflight` counts them. None if the number cannot be
    derived from ``seen``.

    ``seen``: results of a pass over the whole log.
    Raises: StoreIOError, UsageError.
    """
    release = judged(store).release
    version = as_configured(store, version_of(release))
    if not (_is_usual_store(store, version) and _is_usual_log(seen)):
        return None
    if load(store, version).refusals:
        return None
    with closing(loaded_log(store, version)) as log:
        if not log.files or log.files != store.log.files:
            return None
        try:
            return _LossCount(store, version, log, seen).lost(release)
        except _UnusualError:
            return None


class SoundLog(NamedTuple):
    """Results of a pass over a sound log.

    ``last``: physical offset of the last record.
    ``walked``: results of a scan of the log, derived from the pass.
    ``messages``: number of all messages.
    ``replaced``: number of fillers, and of messages that a repair kept with a damaged body.
    """

    last: int
    walked: WalkResults
    messages: int
    replaced: int


def sound_pass(store: Store, version: BrokerVersion, log: CommitLog, queues: RecoveredQueues,
               seen: RangeResult) -> SoundLog | None:
    """Return the data about the log for the prediction, if a start changes nothing; otherwise None.

    A start changes nothing if the log was closed cleanly, the whole log is sound, and each message
    has its entry. Raises: StoreIOError.
    """
    last, end = seen.last_record_start, seen.last_record_end
    if store.has_abort or last is None or end is None or log.files != store.log.files or not (
            _is_usual_store(store, version) and _is_usual_log(seen)):
        return None
    passed = seen.passed
    closed = [file.base for file in log.files if file.end <= last]
    if (seen.bad or seen.headers.faults or seen.headers.unlisted or passed.odd_numbers
            or queues.has_batches or queues.max_physic < end or log.gaps()
            or (passed.first_v2 is not None and not version.message_v2)
            or len({bisect_right(closed, blank) for blank in passed.blanks if blank < last})
            < len(closed)
            or any(span.kind != BLANK and (span.kind != ZERO or span.offset < end)
                   for span in seen.spans)):
        return None
    try:
        counting = _LossCount(store, version, log, seen, queues)
    except _UnusualError:
        return None
    walked = counting.all_sound(log.min_offset, end)
    return None if walked is None else SoundLog(
        last, walked, seen.messages, sum(seen.fillers.values()) + seen.kept_damaged)


def _is_usual_store(store: Store, version: BrokerVersion) -> bool:
    """Return whether a broker opens exactly the store's log files, and no unusual structure or
    setting affects its start.
    """
    files = store.log.files
    return (store.layout.consumequeue == "file" and not store.sizes.conf.path
            and store.cut_off is None and not store.lock.held and not store.queues.batch
            and not any(file.head for file in files)
            and len({file.base for file in files}) == len(files)
            and version.generation == store.generation and not version.forces_property_crc)


def _is_usual_log(seen: RangeResult) -> bool:
    """Return whether the pass has recorded every irregularity and found nothing that requires a
    scan.
    """
    return not (seen.unlisted or seen.shrunk or seen.batch_rows or not seen.passed.complete
                or any(span.field == UNREADABLE for span in seen.spans)
                or any(tally.shifted or tally.skipped or tally.unlisted or tally.unnoted
                       or topic.startswith(LMQ_PREFIX)
                       for (topic, _), tally in seen.queues.items()))


@dataclass(slots=True)
class _MessageColumns:
    """Messages as columns: queue number, queue offset, physical offset, size in bytes."""

    number: Array
    offset: Array
    place: Array
    size: Array

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, int]]) -> _MessageColumns:
        """Return messages, given as tuples of the four values, as columns in log order."""
        columns = np.array(sorted(rows, key=lambda row: row[2]), np.int64).reshape(-1, 4)
        return cls(*(np.ascontiguousarray(column) for column in columns.T))

    def take(self, which: Array) -> _MessageColumns:
        return _MessageColumns(self.number[which], self.offset[which], self.place[which],
                               self.size[which])

    def __len__(self) -> int:
        return len(self.number)


class _LossCount:
    """Simulation of the parts of a startup on which the number of lost messages depends."""

    def __init__(self, store: Store, version: BrokerVersion, log: CommitLog, seen: RangeResult,
                 queues: RecoveredQueues | None = None) -> None:
        self._store, self._version, self._log, self._seen = store, version, log, seen
        self._queues = queues or RecoveredQueues(store, version)
        if self._queues.has_batches or any(
                state.key[0].startswith(LMQ_PREFIX) for state in self._queues.states):
            raise _UnusualError
        self._numbers: dict[tuple[bytes, int], int | None] = {}
        self._tallies: dict[int, QueueTally] = {}
        for key, tally in seen.queues.items():
            if is_queue_name(key[0]):
                self._tallies[self._queues.number(key)] = tally
        self._clean = not store.has_abort

    def all_sound(self, start: int, end: int) -> WalkResults | None:
        """Return the results of a scan from ``start`` to ``end``. Return None if a message has no
        entry, or if an entry does not point to its message.
        Raises: StoreIOError.
        """
        for number, tally in self._tallies.items():
            if tally.claims or tally.without_queue or not self._is_sound(number):
                return None
        return WalkResults([], [], self._seen.passed.intact_end, self._accepted(start, end), {
            number: tally.next_offset for number, tally in self._tallies.items()},
            sound=set(self._tallies), newest=self._seen.last_store_timestamp)

    def lost(self, release: str) -> int:
        """Return the number of lost messages.
        Raises: StoreIOError.
        """
        queues, version, log = self._queues, self._version, self._log
        loose, damaged, agreeing = self._without_entry()

        # Recovery: the end of the log, what it dispatches, what it truncates from the queues.
        reach = queues.max_physic
        first, _ = start_file(self._store, log, version, reach)
        start, end = log.files[first].base, self._end(first)
        again: Array = (loose.place >= start) & (loose.place < end)
        if self._clean:
            again &= (loose.place > reach) & version.normal_by_queues
        self._require_dispatched(start, end)
        put: Array = np.zeros(len(loose), bool)
        new = loose.take(again)
        put[again] = queues.put(new.number, new.offset, new.place, new.place + new.size)
        unreachable = Unreachable(queues, log)
        if reach >= end:
            queues.truncate(end)
            unreachable.cut(log, end)
        if version.reput_from_queues and max(log.min_offset, queues.max_physic, 0) < end:
            raise _UnusualError  # the dispatcher of 4.x continues after the recovery

        # Messages before that end without an entry.
        for messages in (loose.take(~put & (loose.place < end)), damaged.take(damaged.place < end)):
            unreachable.hold(messages.number, messages.offset, messages.place)
        unreachable.flush()

        # Lost messages.
        already = AlreadyLost(self._store, queues)
        already.take(self._walked(start, end, loose, damaged, agreeing))
        predicted = Prediction(release, BrokerEffect("normal" if self._clean else "abnormal"),
                               LogEffect(truncate_to=end))
        already.judge(predicted, log, unreachable.without_row, running=False, counts_only=True)
        return predicted.log.gone.count

    # -- messages ---------------------------------------------------------------------------------

    def _without_entry(self) -> tuple[_MessageColumns, _MessageColumns, Array]:
        """Return three values:

        * the intact messages whose entry is missing or points elsewhere
        * the records with damaged bodies
        * a boolean array: whether each of these records has its entry
        """
        loose: list[tuple[int, int, int, int]] = []
        for number, tally in self._tallies.items():
            loose += [(number, claim.queue_offset, claim.physical_offset, claim.size)
                      for claim in (*tally.claims, *tally.without_queue)]
        bad: dict[bool, list[tuple[int, int, int, int]]] = {True: [], False: []}
        for record in self._seen.bad:
            queue = self._number_of(record)
            if queue is not None:
                bad[record.is_body].append((queue, record.queue_offset, record.offset,
                                            record.size))
        # A message with only damaged properties is there, and its entry was compared with it.
        odd, damaged = _MessageColumns.of(bad[False]), _MessageColumns.of(bad[True])
        left = odd.take(~self._agree(odd))
        loose += zip(left.number.tolist(), left.offset.tolist(), left.place.tolist(),
                     left.size.tolist(), strict=True)
        return _MessageColumns.of(loose), damaged, self._agree(damaged)

    def _number_of(self, record: BadRecord) -> int | None:
        if not record.rowed:
            return None
        key = record.topic, record.queue_id
        if key not in self._numbers:
            name = os.fsdecode(record.topic)
            self._numbers[key] = self._queues.number(
                (name, record.queue_id)) if is_queue_name(name) else None
        return self._numbers[key]

    def _agree(self, messages: _MessageColumns) -> Array:
        """Return a boolean array: whether the entry of each message points to it."""
        agree: Array = np.zeros(len(messages), bool)
        for part in by_queue(messages.number):
            queue = self._queues.states[int(messages.number[part[0]])].queue
            if isinstance(queue, ConsumeQueue) and queue.exists:
                units = units_at(queue, messages.offset[part])
                agree[part] = (units["physical_offset"] == messages.place[part]) & (
                    units["size"] == messages.size[part])
        return agree

    # -- the recovery -----------------------------------------------------------------------------

    def _end(self, first: int) -> int:
        """Return the end of the log after a recovery that begins with file number ``first``."""
        # Places at which a walk of the broker would stop.
        passed = self._seen.passed
        refused = [*((span.offset, True) for span in self._seen.spans if span.kind != BLANK),
                   *((record.offset, False) for record in self._seen.bad if record.is_body),
                   *((place, False) for place in passed.odd_numbers)]
        if passed.first_v2 is not None and not self._version.message_v2:
            refused.append((passed.first_v2, False))
        refused.sort()
        places = np.array([place for place, _ in refused], np.int64)
        blanks = np.array(sorted(passed.blanks), np.int64)
        # File by file: stop at the first of these, or continue after the blank.
        end = self._log.files[first].base
        for number, file in enumerate(self._log.files[first:], first):
            at, blank = int(np.searchsorted(places, file.base)), int(
                np.searchsorted(blanks, file.base))
            if at < len(places) and places[at] < file.end:
                place, is_span = refused[at]
                if is_span:
                    size, why = judge(self._log.source(number), place - file.base, self._version)
                    if size is not None or not why:
                        raise _UnusualError  # a broker continues there, unlike any walk
                return place
            if blank == len(blanks) or blanks[blank] >= file.end:
                last = self._seen.last_record_end
                if file is self._log.files[-1] and last is not None and last > file.base:
                    return last
                raise _UnusualError
            end = int(blanks[blank])
        return end

    def _require_dispatched(self, start: int, end: int) -> None:
        """Raise _UnusualError if the broker would rewrite an entry that already points to its
        message.
        """
        for number, tally in self._tallies.items():
            state = self._queues.states[number]
            if not tally.covered:
                continue
            begins = min(first for first, _ in tally.covered)
            if max(behind for _, behind in tally.covered) > state.disk_end or (
                    begins == 0 and start < end and tally.first_phy >= state.max_physic):
                raise _UnusualError

    def _accepted(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the position and the store time (ms) of each of the last two records in ``[start,
        end)``.
        """
        back = _BACK
        while True:
            last_two: list[tuple[int, int]] = []
            low = max(start, end - back)
            for batch in self._log.walk(low, end, whole=True):
                last_two = [*last_two, *zip(batch.offset[-2:].tolist(),
                                            batch.column("store_timestamp")[-2:].tolist(),
                                            strict=True)][-2:]
            if len(last_two) == 2 or low == start:
                return last_two
            back *= 16

    # -- what a walk would have seen --------------------------------------------------------------

    def _walked(self, start: int, end: int, loose: _MessageColumns, damaged: _MessageColumns,
                agreeing: Array) -> WalkResults:
        seen = self._seen
        spans = [span for span in seen.spans if span.kind != BLANK]
        places = [(span.offset, span.end) for span in spans]
        places += [(record.offset, record.offset + record.size) for record in seen.bad
                   if record.is_body]
        walked = WalkResults(spans, places, seen.passed.intact_end, self._accepted(start, end),
                             newest=seen.last_store_timestamp)
        walked.ends = {number: tally.next_offset for number, tally in self._tallies.items()
                       if tally.next_offset}
        for number, offset in zip(loose.number.tolist(), loose.offset.tolist(), strict=True):
            walked.ends[number] = max(walked.ends.get(number, 0), offset + 1)
        of_queue = {int(loose.number[part[0]]): part for part in by_queue(loose.number)}
        named = {int(damaged.number[part[0]]): part for part in by_queue(damaged.number)}
        for number in {*self._tallies, *of_queue, *named}:
            part = named.get(number, _NONE)
            walked.damaged[number] = (damaged.offset[part], damaged.place[part]) if len(part) else (
                _NONE, _NONE)
            own = loose.take(of_queue[number]) if number in of_queue else None
            if not len(part) and own is None and self._is_sound(number):
                walked.sound.add(number)
                continue
            runs = self._runs(number, damaged.offset[part[agreeing[part]]])
            walked.pieces[number] = self._pieces(number, runs, own)
        return walked

    def _runs(self, number: int, damaged: Array) -> Array:
        """Return the queue offsets of intact messages with an entry, except ``damaged``.

        The result is an int64 array of half-open ranges, of shape (n, 2).
        """
        tally = self._tallies.get(number)
        covered = np.array([] if tally is None else merged(tally.covered), np.int64).reshape(-1, 2)
        if not len(damaged):
            return covered[covered[:, 0] < covered[:, 1]]
        cut = distinct(damaged)
        cut = cut[np.searchsorted(covered[:, 0], cut, "right")
                  > np.searchsorted(covered[:, 1], cut, "right")]
        runs = np.column_stack([np.sort(np.append(covered[:, 0], cut + 1)),
                                np.sort(np.append(covered[:, 1], cut))])
        return runs[runs[:, 0] < runs[:, 1]]

    def _is_sound(self, number: int) -> bool:
        """Return whether every entry of a queue without damaged messages points to its own message
        and no entry is missing.
        """
        state, tally = self._queues.states[number], self._tallies.get(number)
        runs = [] if tally is None else merged(run for run in tally.covered if run[0] < run[1])
        queue = state.queue
        return (isinstance(queue, ConsumeQueue) and queue.exists and len(runs) == 1
                and runs[0][0] <= queue.first_index and runs[0][1] >= queue.disk_end
                and (runs[0][0] == 0 or self._log.min_offset > 0))

    def _pieces(self, number: int, runs: Array, loose: _MessageColumns | None) -> Array:
        """Return the intact messages of a queue as runs with consecutive queue offsets, in log
        order.

        ``runs``: messages with an entry.
        ``loose``: messages without their entry.
        """
        if loose is None:
            place = self._places(number, np.column_stack([runs[:, 0], runs[:, 1] - 1]).ravel())
            return np.column_stack([place[::2], runs[:, 0], place[1::2], runs[:, 1]])
        offset = np.concatenate([np.arange(first, end) for first, end in runs.tolist()] or [
            np.zeros(0, np.int64)])
        place = np.concatenate([self._places(number, offset), loose.place])
        offset = np.concatenate([offset, loose.offset])
        order = np.argsort(place, kind="stable")
        offset, place = offset[order], place[order]
        starts = np.flatnonzero(np.append(True, np.diff(offset) != 1))
        ends = np.append(starts[1:], len(offset)) - 1
        return np.column_stack([place[starts], offset[starts], place[ends], offset[ends] + 1])

    def _places(self, number: int, offset: Array) -> Array:
        """Return the positions that the entries with these queue offsets point to."""
        queue = self._queues.states[number].queue
        if not len(offset) or not isinstance(queue, ConsumeQueue):
            return np.zeros(0, np.int64)
        place: Array = units_at(queue, offset)["physical_offset"].astype(np.int64)
        if (np.diff(place) < 0).any():
            raise _UnusualError  # the order of the log differs from that of the queue
        return place
