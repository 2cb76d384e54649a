"""Writer of batch consumequeues: 46-byte units, no order or gap check (consumequeue.md §9)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rmqctl.engine.dispatch.consume_queue import UNWANTED, refuse_unreadable
from rmqctl.engine.dispatch.queue_files import FilePool, QueueFiles
from rmqctl.errors import UsageError
from rmqctl.formats.local import batch_consume_queue as layout
from rmqctl.formats.local.batch_consume_queue import NOT_COMPACTED, UNIT_SIZE
from rmqctl.scan.derived import QueueKey
from rmqctl.store.files import listing
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.store import Sizes, Store

Array = np.ndarray[Any, np.dtype[Any]]
FOLDER = "batchconsumequeue"
_LAST_FILES = 3
"""A broker's recovery looks at so many files of a queue."""


@dataclass(slots=True)
class Rows:
    """Rows in log order as int64 columns; ``base`` and ``count``: the queue offsets covered."""

    queue: Array
    physical: Array
    size: Array
    tags_code: Array
    store_timestamp: Array
    base: Array
    count: Array


@dataclass(slots=True)
class Queue:
    """One queue in memory. ``max_physic`` is the *start* of its last row's record, -1 for none."""

    key: QueueKey
    files: QueueFiles
    max_physic: int = -1
    next_offset: int = 0


class BatchQueues:
    """All batch consumequeues of a store root. ``refused`` counts rows no queue can have."""

    def __init__(self, root: str, file_size: int, pool: FilePool,
                 log_end: int | None = None, *, as_broker: bool = False,
                 wanted: Callable[[QueueKey], bool] | None = None) -> None:
        """Finds all queues on disk; rows of records behind ``log_end`` are cut off.

        They are wiped out with the first `put`, unless ``as_broker``. ``wanted`` says which queues
        are written at all (all).
        """
        self._folder = os.path.join(root, FOLDER)
        self._file_size, self._pool, self._log_end = file_size, pool, log_end
        self._as_broker, self._wanted = as_broker, wanted
        self._cut: list[Queue] = []
        self.queues: list[Queue] = []
        self._numbers: dict[QueueKey, int] = {}
        self.refused = 0
        refuse_unreadable(listing(self._folder).troubles)
        for key, found in Store(root, [], Sizes()).batch_queues.items():
            self._take(key, found)

    def number(self, key: QueueKey) -> int:
        """The number that stands for a queue in `Rows.queue`; `UNWANTED` for one not written."""
        if self._wanted is not None and not self._wanted(key):
            return UNWANTED
        found = self._numbers.get(key)
        if found is None:
            folder = os.path.join(self._folder, key[0], str(key[1]))
            there = listing(folder)
            found = self._take(key, BatchQueue(*key, folder, there.files, there.troubles))
        return found

    def _take(self, key: QueueKey, found: BatchQueue) -> int:
        if self._file_size <= 0 or self._file_size % UNIT_SIZE:
            # A broker does not round it, and stops at the end of the first file.
            raise UsageError(f"the size of batch consumequeue files, {self._file_size}, is no "
                             f"multiple of {UNIT_SIZE}")
        refuse_unreadable(found.troubles)
        queue = Queue(key, QueueFiles(found.folder, self._file_size, self._pool))
        if found.files:
            self._load(queue, found)
        number = self._numbers[key] = len(self.queues)
        self.queues.append(queue)
        return number

    def _load(self, queue: Queue, found: BatchQueue) -> None:
        """The state that a broker's recovery leaves (spec §9)."""
        position: int | None = None
        last: Any = None
        for number in range(max(0, len(found.files) - _LAST_FILES), len(found.files)):
            rows = found.used(number)
            position = found.files[number].base + len(rows) * UNIT_SIZE
            last = rows[-1] if len(rows) else last
            if len(rows) * UNIT_SIZE < self._file_size:
                break
        stale = position or 0
        if self._log_end is not None and last is not None and (
                int(last["physical_offset"]) >= self._log_end):
            position = last = None
            for number in range(len(found.files) - 1, -1, -1):
                rows = found.used(number, self._log_end)
                if len(rows):
                    position, last = found.files[number].base + len(rows) * UNIT_SIZE, rows[-1]
                    break
            if not self._as_broker:
                self._cut.append(queue)
        queue.files.load(found.files, position, stale)
        if last is not None:
            queue.max_physic = int(last["physical_offset"])
            queue.next_offset = int(last["msg_base_offset"]) + int(last["batch_size"])

    def put(self, rows: Rows) -> None:
        """Writes the rows of one chunk of the log; StoreIOError when a file cannot be written."""
        while self._cut:
            self._cut[-1].files.wipe()
            self._cut.pop()
        wanted = rows.queue != UNWANTED
        wild = (rows.base < 0) | (rows.count < 0)
        self.refused += int((wild & wanted).sum())
        kept = np.flatnonzero(wanted & ~wild)
        kept = kept[np.argsort(rows.queue[kept], kind="stable")]
        if not len(kept):
            return
        units = np.zeros(len(kept), layout.dtype())
        for name, column in (("physical_offset", rows.physical), ("size", rows.size),
                             ("tags_code", rows.tags_code),
                             ("store_timestamp", rows.store_timestamp),
                             ("msg_base_offset", rows.base), ("batch_size", rows.count)):
            units[name] = column[kept]
        units["compacted_offset"] = NOT_COMPACTED
        number = rows.queue[kept]
        stops = [*(np.flatnonzero(np.diff(number)) + 1).tolist(), len(kept)]
        start = 0
        for stop in stops:
            self._append(self.queues[int(number[start])], units[start:stop])
            start = stop

    def _append(self, queue: Queue, units: Array) -> None:
        there = int(np.searchsorted(units["physical_offset"].astype(np.int64), queue.max_physic,
                                    "right"))
        units = units[there:]
        before = queue.files.position
        try:
            queue.files.append(units.view(np.uint8).data)
        finally:
            # Also after an error: rows that did get there must count as there.
            done = (queue.files.position - before) // UNIT_SIZE
            if done:
                last = units[done - 1]
                queue.max_physic = int(last["physical_offset"])
                queue.next_offset = int(last["msg_base_offset"]) + int(last["batch_size"])
