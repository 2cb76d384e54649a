"""The state of a consume queue after a broker's recovery and truncation, and the algorithm by which
a broker adds entries.

spec: consumequeue.md §4, §6 and §9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqctl.broker.versions import BrokerVersion
from rmqctl.formats.local import batch_consume_queue as batch_layout
from rmqctl.formats.local import consume_queue as layout
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.store.config.config import topic_table
from rmqctl.store.files import StoreFile
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, FileQueue, valid
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.store.rocksdb.queues import RocksQueue

PLAIN, BATCH = "consumequeue", "batchconsumequeue"
LAST_FILES = 3
"""Number of files at the end of a queue that a broker's recovery reads."""


@dataclass(slots=True)
class QueueState:
    """The state of a queue.

    ``end``: the queue offset after the last entry (for a batch queue: number of entries).
    ``disk_end``: the value of ``end`` on disk.
    ``max_physic``: the physical offset up to which the log was dispatched, according to the
    entries; -1 if there are none.
    ``doomed``: the files that the broker will delete.
    ``added``: number of entries that the broker adds when it dispatches again.
    ``first_added``: physical offset of the record of the first added entry.
    ``misplaced``: number of entries whose queue offset differs from that in their message.
    ``blanked``: number of padding entries before the first added entry.
    ``touched``: whether a message of the queue is dispatched again.
    """

    key: QueueKey
    kind: str
    queue: ConsumeQueue | BatchQueue | None = None
    end: int = 0
    disk_end: int = 0
    max_physic: int = -1
    has_file: bool = False
    doomed: list[StoreFile] = field(default_factory=list)
    added: int = 0
    first_added: int | None = None
    misplaced: int = 0
    blanked: int = 0
    touched: bool = False
    strange: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Added entries whose records have a wrong physicalOffset. For each queue offset: the physical
    offset in the entry, and ``max_physic`` before the entry.
    """

    @property
    def target(self) -> str:
        return f"{self.kind}/{self.key[0]}/{self.key[1]}"

    @property
    def empty_last(self) -> StoreFile | None:
        """Return the last file if it contains no entry, does not start at offset 0, and is not
        deleted by recovery; otherwise None.

        `ConsumeQueue.correctMinOffset` of 5.x requests the unit before the start of such a file,
        and fails with an IllegalArgumentException.
        """
        if self.kind != PLAIN or self.queue is None or self.added:
            return None
        left = [file for file in self.queue.files if file not in self.doomed]
        if not left or not left[-1].base or layout.byte_offset(self.end) > left[-1].base:
            return None
        return left[-1]


def loaded(files: list[StoreFile], version: BrokerVersion) -> list[StoreFile]:
    """Return the files of a sequence that a broker uses; some versions first delete an empty last
    file.
    """
    if not version.deletes_empty_last:
        return files
    return [file for file in files if file.size or file.name != files[-1].name]


def recovered_queues(store: Store, version: BrokerVersion) -> Iterator[QueueState]:
    """Yield the state of every queue of a store after a broker's ``recover()``, plain queues first.

    Raises: StoreIOError.
    """
    rocksdb = rocksdb_of(store, version)
    if rocksdb is not None:
        for rocks_queue in rocksdb.queues.values():
            yield recovered_in_rocksdb(rocks_queue)
    for key, full_queue in store.queues.plain.items() if rocksdb is None else ():
        files = loaded(full_queue.files, version)
        queue = full_queue if files == full_queue.files else FileQueue(
            *key, full_queue.folder, files, full_queue.troubles, full_queue.file_size)
        with closing(queue):
            yield recovered(key, queue)
    for key, batch in store.queues.batch.items() if version.batch_queues else ():
        yield recovered_batch(key, BatchQueue(*key, batch.folder, loaded(batch.files, version),
                                              batch.troubles, batch.file_size))


class InRocksdb(NamedTuple):
    """Consume queues in RocksDB.

    ``checkpoint``: the physical offset up to which the log was dispatched to the queues.
    ``why_no_checkpoint``: the reason why that offset cannot be read, or "".
    ``damage``: sentences about other unreadable parts.
    """

    queues: Mapping[QueueKey, RocksQueue]
    checkpoint: int
    why_no_checkpoint: str = ""
    damage: Sequence[str] = ()

    @property
    def trouble(self) -> str:
        """Return the reason why a part of the queues could not be read; "" if no read failed."""
        return next(chain(self.damage, filter(None, (
            queue.why_unread for queue in self.queues.values()))), "")


def rocksdb_of(store: Store, version: BrokerVersion) -> InRocksdb | None:
    """Return the consume queues in RocksDB; None if they are in files, or a broker of this version
    does not read RocksDB.

    Raises: UnsupportedError if they cannot be read.
    """
    store.layout.require(store.root, PLAIN)
    if store.layout.consumequeue != "rocksdb" or not version.rocksdb_queues:
        return None
    database = store.queues.rocksdb  # None: the broker creates it
    return InRocksdb({}, 0) if database is None else InRocksdb(
        database.queues, database.checkpoint, database.why_no_checkpoint, database.damage)


def dispatched_to(store: Store, version: BrokerVersion) -> int:
    """Return the physical offset up to which the log was dispatched, according to the consume
    queues; -1 if they have no entries.

    Raises: StoreIOError.
    """
    rocksdb = rocksdb_of(store, version)
    if rocksdb is not None:
        return rocksdb.checkpoint
    return max((state.max_physic for state in recovered_queues(store, version)), default=-1)


def recovered_in_rocksdb(queue: RocksQueue) -> QueueState:
    """Return the state of a queue in RocksDB after loading. A broker does not check the last entry
    that the offset column family records (spec: rocksdb.md §4).
    """
    state = QueueState((queue.topic, queue.queue_id), PLAIN, queue, has_file=True)
    if queue.last is not None:
        state.end = state.disk_end = queue.last.queue_offset + 1
        state.max_physic = queue.last.physical_offset
    elif queue.why_unnoted:  # there is a note, but it cannot be read
        unit = queue.unit(queue.disk_end - 1)
        state.end = state.disk_end = queue.disk_end
        state.max_physic = -1 if unit is None else unit.physical_offset
    return state


def truncated_in_rocksdb(state: QueueState, log_end: int) -> None:
    """Imitate truncateDirty for a queue in RocksDB, including its bugs (spec: rocksdb.md §4)."""
    queue = state.queue
    if isinstance(queue, ConsumeQueue) and state.max_physic >= log_end:
        end = queue.cut_at(log_end)
        if end is not None:
            unit = queue.unit(end - 1)
            state.end, state.max_physic = end, -1 if unit is None else unit.physical_offset


def recovered(key: QueueKey, queue: ConsumeQueue) -> QueueState:
    """Return the state of a queue after ``recover()``, which checks the last three files unit by
    unit.
    """
    state = QueueState(key, PLAIN, queue, has_file=bool(queue.files))
    position = 0
    for number in range(max(0, len(queue.files) - LAST_FILES), len(queue.files)):
        file = queue.files[number]
        used = queue.valid_bytes(number)
        position = file.base + used
        if used:
            state.max_physic = long(queue.max_physical(layout.queue_offset(position)))
        if used < file.size:
            break
    state.end = state.disk_end = layout.queue_offset(position)
    state.doomed = [file for file in queue.files if file.base > position]
    state.has_file = any(file.base <= position for file in queue.files)
    return state


def truncated(state: QueueState, queue: ConsumeQueue, log_end: int) -> None:
    """Imitate truncateDirtyLogicFiles, which reads only the files that recovery kept."""
    present = [file for file in queue.files if file not in state.doomed] if (
        state.doomed) else queue.files
    left = queue if isinstance(queue, FileQueue) and present == queue.files else FileQueue(
        queue.topic, queue.queue_id, queue.folder, present, [], queue.file_size)
    with closing(left):
        first = layout.queue_offset(present[-1].base) if present else state.end
        unit = left.unit(state.end - 1)
        if unit is None or unit.physical_offset < log_end:
            rows = left.units(first, state.end - first)
            if len(rows) and (rows["physical_offset"] < log_end).all():
                return  # nothing to truncate: do not read the unused rest of the file
        state.end = left.truncated(log_end)
        if not state.end:
            state.doomed, state.has_file = list(queue.files), False
            state.max_physic = log_end
            return
        last = layout.byte_offset(state.end - 1)
        state.doomed = [file for file in queue.files if file.base > last]
        unit = left.unit(state.end - 1)
        state.max_physic = -1 if unit is None else long(unit.physical_offset + unit.size)


def long(number: int) -> int:
    """Return a sum as a Java long, which wraps around on overflow."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def truncated_after_adding(state: QueueState, queue: ConsumeQueue, log_end: int) -> None:
    """Imitate truncateDirtyLogicFiles on a queue with new entries, all of which point to offsets
    before the end of the log.

    The method checks all units of the last file, and also accepts old data after the new entries.
    """
    present = [file for file in queue.files if file not in state.doomed]
    last = layout.byte_offset(state.end - 1)
    if present and present[-1].base <= last < present[-1].end:
        first, behind = layout.queue_offset(present[-1].base), layout.queue_offset(present[-1].end)
    else:  # a new file: it contains only the new entries
        first, behind = layout.queue_offset(last - last % queue.file_size), state.end
    rows = queue.units(first, behind - first)
    good: Array = np.ones(behind - first, bool)
    good[:len(rows)] = valid(rows) & (rows["physical_offset"] < log_end)
    good[:1] = True
    good[max(0, state.end - state.added - first):state.end - first] = True  # the new entries
    for index, (place, _) in state.strange.items():
        if first < index < state.end and not 0 <= place < log_end:
            good[index - first] = False
    end = first + (len(good) if good.all() else int(good.argmin()))
    if end == state.end:
        return
    state.end = end
    if end in state.strange:
        state.max_physic = state.strange[end][1]
    else:
        unit = rows[end - 1 - first]
        state.max_physic = long(int(unit["physical_offset"]) + int(unit["size"]))


def recovered_batch(key: QueueKey, queue: BatchQueue) -> QueueState:
    """Return the state of a batch queue after ``recover()``."""
    state = QueueState(key, BATCH, queue)
    position = 0
    for number in range(max(0, len(queue.files) - LAST_FILES), len(queue.files)):
        rows, file = queue.used(number), queue.files[number]
        used = len(rows) * batch_layout.UNIT_SIZE
        position = file.base + used
        if len(rows):
            state.max_physic = int(rows[-1]["physical_offset"])
        if used < file.size:
            break
    state.end = state.disk_end = position // batch_layout.UNIT_SIZE
    state.doomed = [file for file in queue.files if file.base > position]
    state.has_file = any(file.base <= position for file in queue.files)
    return state


def truncated_batch(state: QueueState, queue: BatchQueue, log_end: int) -> None:
    """Imitate truncateDirtyLogicFiles for a batch queue."""
    state.max_physic = log_end - 1
    for number in range(len(queue.files) - 1, -1, -1):
        file = queue.files[number]
        if file in state.doomed:
            continue
        rows = queue.rows_of(number)
        if not len(rows) or int(rows[0]["physical_offset"]) >= log_end:
            state.doomed.append(file)
            continue
        rows_left = max(1, len(queue.used(number, log_end)))
        state.end = file.base // batch_layout.UNIT_SIZE + rows_left
        state.max_physic = int(rows[rows_left - 1]["physical_offset"])
        return
    state.end, state.has_file = 0, False


class Put(NamedTuple):
    """Result of `put_rule` for the first entries of a sequence.

    ``skipped``: number of entries that a broker skips because they exist.
    ``taken``: number of entries that the broker writes at the queue's end.
    ``astray``: whether the written entries are at positions that differ from their queue offsets.
    """

    skipped: int
    taken: int
    astray: bool


def put_rule(offset: int, count: int, end: int) -> Put:
    """Return what a broker does with the first of ``count`` entries (spec §4).

    The entries have consecutive queue offsets from ``offset`` on. All entries must point to records
    after the dispatched part of the log.

    ``end``: the queue offset of the queue's next entry. A queue without a file begins at
    ``offset``.
    """
    if not offset:
        # Index 0 is never checked, so it alone is accepted at any end of the queue.
        return Put(0, count if not end else 1, end != 0)
    if offset < end:
        return Put(min(count, end - offset), 0, False)
    return Put(0, count, offset > end)


def batch_topics(store: Store) -> frozenset[str]:
    """Return the topics with ``queue.type=BatchCQ`` in config/topics.json."""
    topics = set()
    for topic, config in (topic_table(store) or {}).items():
        given = config.get("attributes") if isinstance(config, dict) else None
        if isinstance(given, dict) and "BatchCQ" in (given.get("queue.type"),
                                                     given.get("+queue.type")):
            topics.add(topic)
    return frozenset(topics)
