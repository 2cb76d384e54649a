"""State of the consume queues after a broker's recovery, and the entries that dispatch adds.

spec: consumequeue.md §4, §6 and §9. Everything happens in memory; entries are only counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np

from rmqctl.broker.consume_queue import (
    BATCH,
    PLAIN,
    QueueState,
    batch_topics,
    put_rule,
    recovered_queues,
    rocksdb_of,
    truncated,
    truncated_after_adding,
    truncated_batch,
    truncated_in_rocksdb,
)
from rmqctl.broker.recovery import properties
from rmqctl.broker.versions import BrokerVersion
from rmqctl.checks.preflight.load import queue_file_size
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.consume_queue import UNIT_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.derived import QueueKey, QueueTable, batch_ranges, is_queue_name
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.queue_reach import NOT_DISPATCHED, dispatched_rows
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.light_queues import leading
from rmqctl.store.store import Store


@dataclass(frozen=True, slots=True)
class BatchClaims:
    """The entries that records of a batch should have in their own queues, as columns.

    ``number``: index of the queue in `RecoveredQueues.states`.
    ``offset``: first queue offset.
    ``count``: number of queue offsets.
    ``place``: position of the record.
    ``record``: index of the record in the batch.
    """

    number: Array
    offset: Array
    count: Array
    place: Array
    record: Array


class RecoveredQueues:
    """All queues of a store in the state after recovery; `dispatch` adds entries to them."""

    def __init__(self, store: Store, version: BrokerVersion) -> None:
        self._version, self._store = version, store
        self._topics, self._further = text.Dictionary(), text.Dictionary()
        self.states: list[QueueState] = []
        self._numbers: dict[tuple[str, QueueKey], int] = {}
        self._rocksdb = rocksdb = rocksdb_of(store, version)
        self.in_rocksdb = rocksdb is not None
        """True if entries are stored in a database: each entry at its own queue offset, where it
        replaces an existing entry.
        """
        self._checkpoint = -1 if rocksdb is None else rocksdb.checkpoint
        for state in recovered_queues(store, version):
            self._take(state)
        self._batch_topics = batch_topics(store) | {
            state.key[0] for state in self.states if state.kind == BATCH}
        self._is_batch: Array = np.zeros(0, bool)
        self._is_name: Array = np.zeros(0, bool)
        self._tables = {kind: QueueTable(self._topics, self._maker(kind))
                        for kind in (PLAIN, BATCH)}
        self._last_topic: Array = np.zeros(0, np.int64)
        self._further_table = QueueTable(self._further, self._maker(PLAIN))
        self._latest: tuple[Batch, list[BatchClaims]] | None = None
        self.logics_timestamp = 0
        """Store time (ms) of the last dispatched message with an entry; 0 if no such message was
        dispatched.
        """

    def _take(self, state: QueueState) -> int:
        number = self._numbers[state.kind, state.key] = len(self.states)
        self.states.append(state)
        return number

    def _maker(self, kind: str) -> Callable[[QueueKey], int]:
        def number(key: QueueKey) -> int:
            existing = self._numbers.get((kind, key))
            return self._take(QueueState(key, kind)) if existing is None else existing
        return number

    @property
    def has_batches(self) -> bool:
        """Return whether any topic has batch queues."""
        return bool(self._batch_topics) and self._version.generation >= 5

    def number(self, key: QueueKey) -> int:
        """Return the index of a plain queue in ``states``; add the queue if it is new."""
        return self._maker(PLAIN)(key)

    @property
    def max_physic(self) -> int:
        """Return the physical offset up to which the log is dispatched according to the queues; -1
        if there are no queues.
        """
        if self.in_rocksdb:
            return self._checkpoint
        return max((state.max_physic for state in self.states), default=-1)

    def positions(self) -> dict[QueueKey, tuple[int, int]]:
        """Return the progress of each plain queue: the queue offset after its last entry, and its
        ``max_physic``.
        """
        return {state.key: (state.end, state.max_physic) for state in self.states
                if state.kind == PLAIN}

    def least_made(self, state: QueueState) -> int | None:
        """Return the minimum queue offset that a broker assumes for a rebuilt queue. None if the
        offset depends on an unknown file size.

        Before its first entry, the queue has ``blanked`` padding entries. 4.x treats a padding
        entry as the entry of the message at 0 (`correctMinOffset`, consumequeue.md §5).
        """
        if self._version.generation >= 5 or self._store.log.min_offset > 0 or not state.blanked:
            return state.blanked
        size = queue_file_size(self._store)
        if size is None:
            return None
        rows = size // UNIT_SIZE
        return state.blanked - state.blanked % rows

    @property
    def rocksdb_trouble(self) -> str:
        """Return why parts of the database are unreadable; "" if all of it is readable."""
        return "" if self._rocksdb is None else self._rocksdb.trouble

    # -- truncation -----------------------------------------------------------------------------

    def truncate(self, log_end: int) -> None:
        """Remove from every queue the entries of records that start at or after ``log_end``."""
        if self.in_rocksdb:
            # An entry dispatched again has moved the checkpoint back; then nothing is truncated.
            if self._checkpoint > log_end:
                for state in self.states:
                    truncated_in_rocksdb(state, log_end)
                self._checkpoint = log_end
            return
        for state in self.states:
            if state.added:
                if isinstance(state.queue, ConsumeQueue):
                    with closing(state.queue):
                        truncated_after_adding(state, state.queue, log_end)
            elif isinstance(state.queue, ConsumeQueue) and state.queue.exists:
                with closing(state.queue):
                    truncated(state, state.queue, log_end)
            elif isinstance(state.queue, BatchQueue) and state.queue.exists:
                truncated_batch(state, state.queue, log_end)
            else:
                state.max_physic = log_end if state.kind == PLAIN else log_end - 1

    def left_beyond(self, log_end: int | None) -> list[QueueState]:
        """Return the queues in RocksDB whose last entry points beyond the end of the log even after
        the start.
        """
        if not self.in_rocksdb or log_end is None:
            return []
        return [state for state in self.states if state.kind == PLAIN
                and state.max_physic >= log_end]

    # -- dispatch -------------------------------------------------------------------------------

    def expected(self, batch: Batch) -> list[BatchClaims]:
        """Return the entries that records should have in their own queues, plain queues first, then
        batch queues.
        """
        if self._latest is None or self._latest[0] is not batch:
            self._latest = batch, list(self._expected(batch))
        return self._latest[1]

    def _expected(self, batch: Batch) -> Iterator[BatchClaims]:
        topic = self._topics.encode(text.topics(batch))
        for raw in self._topics.texts[len(self._is_batch):]:
            name = os.fsdecode(raw)
            self._is_batch = np.append(self._is_batch, self._version.generation >= 5
                                       and name in self._batch_topics)
            self._is_name = np.append(self._is_name, is_queue_name(name))
        kind = batch.column("sys_flag") & sysflag.TRANSACTION_MASK
        rowed = (kind == sysflag.TRANSACTION_NONE) | (kind == sysflag.TRANSACTION_COMMIT)
        rowed &= self._is_name[topic]
        batched = self._is_batch[topic]
        offset = batch.column("queue_offset")
        for name, which in ((PLAIN, rowed & ~batched), (BATCH, rowed & batched)):
            rows = np.flatnonzero(which)
            if not len(rows):
                continue
            first, count = offset, np.ones(len(offset), np.int64)
            if name == BATCH:
                first, count = batch_ranges(properties(batch), offset)
            number = self._tables[name].encode(topic[rows], batch.column("queue_id")[rows])
            yield BatchClaims(number, first[rows], count[rows], batch.offset[rows], rows)
        self._last_topic = topic

    def dispatch(self, batch: Batch, which: Array, odd: bool = False) -> Array:
        """Write the entries of the records selected by ``which`` (bool).

        Return for each record whether its entry was written (bool). The value is False for an entry
        that already exists and is not written again.

        ``odd``: whether the batch is a single record with a wrong physical offset.
        """
        put: Array = np.zeros(len(batch), bool)
        behind = batch.offset + batch.column("total_size")
        own: Array = np.zeros(len(batch), bool)
        for claim in self.expected(batch):
            number, offset, place, rows = (claim.number, claim.offset, claim.place,
                                           claim.record)
            own[rows] = True
            numbered = which[rows]
            state = self.states[int(number[0])]
            before = state.max_physic
            put[rows[numbered]] = self.put(number[numbered], offset[numbered], place[numbered],
                                            behind[rows[numbered]])
            if odd and put.any() and state.kind == PLAIN:
                state.strange[state.end - 1] = int(place[0]), before
        own_rows = np.flatnonzero(own & which)
        if len(own_rows) and self.in_rocksdb:  # such a broker leaves the checkpoint file alone
            self._checkpoint = int(behind[own_rows[-1]])
        elif len(own_rows):
            self.logics_timestamp = int(batch.column("store_timestamp")[own_rows[-1]])
        self._put_further(batch, own & which)
        return put

    def _put_further(self, batch: Batch, which: Array) -> None:
        if self._store.queues.light.rows_optional:
            return
        if self._version.generation >= 5:
            left_out = [topic.startswith(NOT_DISPATCHED) for topic in self._topics.texts]
            which = which & ~np.array(left_out, bool)[self._last_topic]
        record, names, offset = dispatched_rows(properties(batch), which)
        if not len(record):
            return
        name = self._further.encode(names)
        texts = self._further.texts
        safe = np.array([is_queue_name(os.fsdecode(raw)) for raw in texts], bool)[name]
        record, name, offset = record[safe], name[safe], offset[safe]
        place = batch.offset[record]
        queue_id = self._store.queues.light.ids(
            texts, name, batch.column("queue_id")[record], offset, place, self._store.queues.leads)
        self.put(self._further_table.encode(name, queue_id), offset, place,
                  place + batch.column("total_size")[record])

    def put(self, number: Array, offset: Array, place: Array, behind: Array) -> Array:
        """Write entries. Return a boolean array: whether each entry was written. ``behind``: the
        physical offsets after the entries' records.
        """
        done: Array = np.zeros(len(number), bool)
        if not len(number):
            return done
        order = np.argsort(number, kind="stable")
        starts = np.append(0, np.flatnonzero(np.diff(number[order])) + 1)
        states = [self.states[queue] for queue in number[order[starts]].tolist()]
        # Most entries already exist, in most queues all of them.
        new = np.maximum.reduceat(behind[order], starts) > np.array(
            [state.max_physic for state in states], np.int64)
        for state, is_new, start, end in zip(states, new.tolist(), starts.tolist(), [
                *starts[1:].tolist(), len(order)], strict=True):
            state.touched = True
            if not is_new and not self.in_rocksdb:
                continue
            part = order[start:end]
            if self.in_rocksdb and state.kind == PLAIN:
                _put_in_rocksdb(state, offset, place, part, done)
            elif state.kind == BATCH:
                _put_batch(state, offset, place, part, done)
            else:
                _put_plain(state, offset, place, behind, part, done)
        return done


def _put_batch(state: QueueState, offset: Array, place: Array, part: Array, done: Array) -> None:
    new = part[(place[part] > state.max_physic) & (offset[part] >= 0)]
    if len(new):
        done[new] = True
        _note(state, len(new), int(place[new[0]]))
        state.end += len(new)
        state.max_physic = int(place[new[-1]])


def _put_in_rocksdb(state: QueueState, offset: Array, place: Array, part: Array,
                    done: Array) -> None:
    """Write entries at their own queue offsets. The last entry becomes the recorded last entry of
    the queue (rocksdb.md §4).
    """
    part = part[offset[part] >= 0]
    if not len(part):
        return
    done[part] = True
    new = part
    if state.queue is None:
        if not state.has_file:
            state.has_file, state.blanked = True, int(offset[part].min())
    elif isinstance(state.queue, ConsumeQueue):
        new = part[~leading({state.key: state.queue}, state.key, offset[part], place[part])]
    if len(new):
        _note(state, len(new), int(place[new[0]]))
    state.end, state.max_physic = int(offset[part[-1]]) + 1, int(place[part[-1]])


def _put_plain(state: QueueState, offset: Array, place: Array, behind: Array, part: Array,
               done: Array) -> None:
    """Apply the put algorithm (consumequeue.md §4), one run of adjacent entries at a time."""
    breaks = np.flatnonzero((np.diff(offset[part]) != 1) | (np.diff(behind[part]) <= 0)) + 1
    for run in np.split(part, breaks):
        next_row = int(np.searchsorted(behind[run], state.max_physic, "right"))
        while next_row < len(run):
            index = int(offset[run[next_row]])
            if index < 0:
                next_row += 1
                continue
            if not state.has_file:
                state.has_file, state.end = True, index
                state.blanked = index
            put = put_rule(index, len(run) - next_row, state.end)
            if put.taken:
                rows = run[next_row:next_row + put.taken]
                state.misplaced += put.taken if put.astray else 0
                done[rows] = True
                _note(state, len(rows), int(place[rows[0]]))
                state.end += len(rows)
                state.max_physic = int(behind[rows[-1]])
            next_row += put.skipped + put.taken


def _note(state: QueueState, count: int, place: int) -> None:
    state.added += count
    if state.first_added is None:
        state.first_added = place
