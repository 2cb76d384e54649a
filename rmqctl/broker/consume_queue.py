"""One queue as a broker's recovery, its truncation and the put algorithm leave it.

spec: consumequeue.md §4, §6 and §9.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rmqctl.broker.versions import BrokerVersion
from rmqctl.formats.local import batch_consume_queue as batch_layout
from rmqctl.formats.local import consume_queue as layout
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.store.config.config import load_one
from rmqctl.store.files import StoreFile
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, valid, valid_prefix
from rmqctl.store.store import Store

PLAIN, BATCH = "consumequeue", "batchconsumequeue"
LAST_FILES = 3
"""A broker's recovery looks at so many files of a queue."""


@dataclass(slots=True)
class QueueState:
    """One queue. ``end`` is the queue offset behind its last row (for a batch queue: rows).

    ``max_physic``: how far it says the log was dispatched, -1 without a row. ``found_end`` is
    ``end`` as it was on disk, ``added`` the rows that dispatching again adds, the first of them
    for the record at ``first_added``; ``blanked`` rows before it are fillers, ``misplaced`` ones
    are written at another queue offset than their message's. ``touched``: any message of it is
    dispatched again.
    ``doomed`` are files that go away.
    """

    key: QueueKey
    kind: str
    found: ConsumeQueue | BatchQueue | None = None
    end: int = 0
    found_end: int = 0
    max_physic: int = -1
    has_file: bool = False
    doomed: list[StoreFile] = field(default_factory=list)
    added: int = 0
    first_added: int | None = None
    misplaced: int = 0
    blanked: int = 0
    touched: bool = False
    strange: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Added rows of records that lie about their place, by queue offset: (physical offset,
    ``max_physic`` before the row)."""

    @property
    def target(self) -> str:
        return f"{self.kind}/{self.key[0]}/{self.key[1]}"

    @property
    def empty_last(self) -> StoreFile | None:
        """The last file, if it stays, holds no row and is not the queue's very first.

        `ConsumeQueue.correctMinOffset` of 5.x then asks for the unit before the file's start, and
        gets an IllegalArgumentException.
        """
        if self.kind != PLAIN or self.found is None or self.added:
            return None
        kept = [one for one in self.found.files if one not in self.doomed]
        if not kept or not kept[-1].base or layout.byte_offset(self.end) > kept[-1].base:
            return None
        return kept[-1]


def loaded(files: list[StoreFile], version: BrokerVersion) -> list[StoreFile]:
    """The files of a sequence that a broker works on: an empty last one may be deleted first."""
    if not version.deletes_empty_last:
        return files
    return [one for one in files if one.size or one.name != files[-1].name]


def recovered_queues(store: Store, version: BrokerVersion) -> Iterator[QueueState]:
    """Every queue of a store after ``recover()``, plain queues first. StoreIOError."""
    for key, whole in store.queues.items():
        with closing(ConsumeQueue(*key, whole.folder, loaded(whole.files, version),
                                  whole.troubles, whole.file_size)) as queue:
            yield recovered(key, queue)
    for key, batch in store.batch_queues.items() if version.batch_queues else ():
        yield recovered_batch(key, BatchQueue(*key, batch.folder, loaded(batch.files, version),
                                              batch.troubles, batch.file_size))


def recovered(key: QueueKey, found: ConsumeQueue) -> QueueState:
    """The state after ``recover()``: the last three files, unit by unit."""
    state = QueueState(key, PLAIN, found, has_file=bool(found.files))
    position = 0
    for number in range(max(0, len(found.files) - LAST_FILES), len(found.files)):
        one = found.files[number]
        with one.open() as source:
            used = valid_prefix(source, one.size)
        position = one.base + used
        if used:
            state.max_physic = long(found.max_physical(layout.queue_offset(position)))
        if used < one.size:
            break
    state.end = state.found_end = layout.queue_offset(position)
    state.doomed = [one for one in found.files if one.base > position]
    state.has_file = any(one.base <= position for one in found.files)
    return state


def truncated(state: QueueState, found: ConsumeQueue, log_end: int) -> None:
    """truncateDirtyLogicFiles: only the files that recovery kept are left to be looked at."""
    kept = [one for one in found.files if one not in state.doomed]
    left = ConsumeQueue(found.topic, found.queue_id, found.folder, kept, [], found.file_size)
    with closing(left):
        first = layout.queue_offset(kept[-1].base) if kept else state.end
        rows = left.units(first, state.end - first)
        if len(rows) and (rows["physical_offset"] < log_end).all():
            return  # nothing to cut: spares the unused rest of the file
        state.end = left.truncated(log_end)
        if not state.end:
            state.doomed, state.has_file = list(found.files), False
            state.max_physic = log_end
            return
        last = layout.byte_offset(state.end - 1)
        state.doomed = [one for one in found.files if one.base > last]
        unit = left.unit(state.end - 1)
        state.max_physic = -1 if unit is None else long(unit.physical_offset + unit.size)


def long(number: int) -> int:
    """A sum as Java has it: it wraps around."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def truncated_after_adding(state: QueueState, found: ConsumeQueue, log_end: int) -> None:
    """TruncateDirtyLogicFiles on a queue that got rows, all of them before the log's end.

    It tests the units of the last file anew, and takes what was left behind the new rows.
    """
    kept = [one for one in found.files if one not in state.doomed]
    last = layout.byte_offset(state.end - 1)
    if kept and kept[-1].base <= last < kept[-1].end:
        first, behind = layout.queue_offset(kept[-1].base), layout.queue_offset(kept[-1].end)
    else:  # a new file: it holds the new rows and nothing else
        first, behind = layout.queue_offset(last - last % found.file_size), state.end
    rows = found.units(first, behind - first)
    good: Array = np.ones(behind - first, bool)
    good[:len(rows)] = valid(rows) & (rows["physical_offset"] < log_end)
    good[:1] = True
    good[max(0, state.end - state.added - first):state.end - first] = True  # the new ones
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


def recovered_batch(key: QueueKey, found: BatchQueue) -> QueueState:
    """The state of a batch queue after ``recover()``."""
    state = QueueState(key, BATCH, found)
    position = 0
    for number in range(max(0, len(found.files) - LAST_FILES), len(found.files)):
        rows, one = found.used(number), found.files[number]
        used = len(rows) * batch_layout.UNIT_SIZE
        position = one.base + used
        if len(rows):
            state.max_physic = int(rows[-1]["physical_offset"])
        if used < one.size:
            break
    state.end = state.found_end = position // batch_layout.UNIT_SIZE
    state.doomed = [one for one in found.files if one.base > position]
    state.has_file = any(one.base <= position for one in found.files)
    return state


def truncated_batch(state: QueueState, found: BatchQueue, log_end: int) -> None:
    """TruncateDirtyLogicFiles of a batch queue."""
    state.max_physic = log_end - 1
    for number in range(len(found.files) - 1, -1, -1):
        one = found.files[number]
        if one in state.doomed:
            continue
        rows = found.rows_of(number)
        if not len(rows) or int(rows[0]["physical_offset"]) >= log_end:
            state.doomed.append(one)
            continue
        kept = max(1, len(found.used(number, log_end)))
        state.end = one.base // batch_layout.UNIT_SIZE + kept
        state.max_physic = int(rows[kept - 1]["physical_offset"])
        return
    state.end, state.has_file = 0, False


class Put(NamedTuple):
    """What becomes of the first rows of a run: ``skipped`` are there already, or else ``taken``
    are written at the queue's end. ``astray``: that is not where their queue offsets belong.
    """

    skipped: int
    taken: int
    astray: bool


def put_rule(offset: int, count: int, end: int) -> Put:
    """The put algorithm (spec §4) for ``count`` rows from queue offset ``offset`` on, which
    follow each other and lead beyond what was dispatched.

    ``end`` is where the queue stands: the queue offset of its next row. A queue without a file
    begins at ``offset``.
    """
    if not offset:
        # Index 0 is never checked, so it alone is taken wherever the queue stands.
        return Put(0, count if not end else 1, end != 0)
    if offset < end:
        return Put(min(count, end - offset), 0, False)
    return Put(0, count, offset > end)


def batch_topics(store: Store) -> frozenset[str]:
    """The topics with ``queue.type=BatchCQ`` in config/topics.json."""
    value = load_one(store, "topics.json").value
    table = value.get("topicConfigTable") if isinstance(value, dict) else None
    found = set()
    for topic, config in (table or {}).items() if isinstance(table, dict) else ():
        given = config.get("attributes") if isinstance(config, dict) else None
        if isinstance(given, dict) and "BatchCQ" in (given.get("queue.type"),
                                                     given.get("+queue.type")):
            found.add(topic)
    return frozenset(found)
