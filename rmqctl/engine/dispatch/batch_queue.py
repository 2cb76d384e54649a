"""Writer of batch consumequeues: units of 46 bytes, without checks for order or gaps
(consumequeue.md §9).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rmqctl.engine.dispatch.queue_files import (
    UNWANTED,
    DispatchedQueue,
    FilePool,
    QueueFiles,
    QueueSet,
)
from rmqctl.errors import UsageError
from rmqctl.formats.local import batch_consume_queue as layout
from rmqctl.formats.local.batch_consume_queue import NOT_COMPACTED, UNIT_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.store.files import Listing
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.store_queues import QueueFolders

FOLDER = "batchconsumequeue"
_LAST_FILES = 3
"""Number of files at the end of a queue that a broker's recovery reads."""


@dataclass(slots=True)
class BatchColumns:
    """Entries in log order as int64 columns.

    ``queue``: the number of the queue. ``base``: the first queue offset that an entry covers.
    ``count``: the number of queue offsets that the entry covers.
    """

    queue: Array
    physical: Array
    size: Array
    tags_code: Array
    store_timestamp: Array
    base: Array
    count: Array


@dataclass(slots=True)
class BatchedQueue(DispatchedQueue):
    """The state of a queue that is being written.

    ``max_physic``: the *start* of the record of the queue's last entry, -1 without entries.
    """

    next_offset: int = 0


class BatchQueues(QueueSet[BatchedQueue, BatchQueue]):
    """All batch consumequeues of a store. ``refused``: number of skipped entries with an invalid
    queue offset.
    """

    def __init__(self, root: str, file_size: int, pool: FilePool,
                 log_end: int | None = None, *, as_broker: bool = False,
                 wanted: Callable[[QueueKey], bool] | None = None) -> None:
        """Find all queues on disk; see `QueueSet`."""
        super().__init__(os.path.join(root, FOLDER), file_size, pool, log_end,
                         as_broker=as_broker, wanted=wanted)
        for key, on_disk in QueueFolders(root).batch.items():
            self._take(key, on_disk)

    def _on_disk(self, key: QueueKey, folder: str, listed: Listing) -> BatchQueue:
        return BatchQueue(*key, folder, listed.files, listed.troubles)

    def _take(self, key: QueueKey, on_disk: BatchQueue) -> int:
        if self._file_size <= 0 or self._file_size % UNIT_SIZE:
            # A broker does not round the size, and stops at the end of the first file.
            raise UsageError(f"the size of batch consumequeue files, {self._file_size}, is not a "
                             f"multiple of {UNIT_SIZE}")
        return super()._take(key, on_disk)

    def _loaded(self, key: QueueKey, files: QueueFiles, on_disk: BatchQueue) -> BatchedQueue:
        """Return the queue in its state after a broker's recovery (consumequeue.md §9)."""
        queue = BatchedQueue(key, files)
        if on_disk.files:
            self._load(queue, on_disk)
        return queue

    def _load(self, queue: BatchedQueue, on_disk: BatchQueue) -> None:
        # The end, as a broker determines it: in the first of the last files that is not full.
        position: int | None = None
        last: Any = None
        for number in range(max(0, len(on_disk.files) - _LAST_FILES), len(on_disk.files)):
            rows = on_disk.used(number)
            position = on_disk.files[number].base + len(rows) * UNIT_SIZE
            last = rows[-1] if len(rows) else last
            if len(rows) * UNIT_SIZE < self._file_size:
                break
        # Truncate rows that point after the log's end, in as many files as needed.
        stale = position or 0
        if self._log_end is not None and last is not None and (
                int(last["physical_offset"]) >= self._log_end):
            position = last = None
            for number in range(len(on_disk.files) - 1, -1, -1):
                rows = on_disk.used(number, self._log_end)
                if len(rows):
                    position, last = on_disk.files[number].base + len(rows) * UNIT_SIZE, rows[-1]
                    break
            if not self._as_broker:
                self._cut.append(queue)
        queue.files.load(on_disk.files, position, stale)
        if last is not None:
            queue.max_physic = int(last["physical_offset"])
            queue.next_offset = int(last["msg_base_offset"]) + int(last["batch_size"])

    def put(self, rows: BatchColumns) -> None:
        """Write the entries of a part of the log. Raises: StoreIOError."""
        self.wipe_cut()
        wanted = rows.queue != UNWANTED
        wild = (rows.base < 0) | (rows.count < 0)
        self.refused += int((wild & wanted).sum())
        good = np.flatnonzero(wanted & ~wild)
        good = good[np.argsort(rows.queue[good], kind="stable")]
        if not len(good):
            return
        units = np.zeros(len(good), layout.dtype())
        for name, column in (("physical_offset", rows.physical), ("size", rows.size),
                             ("tags_code", rows.tags_code),
                             ("store_timestamp", rows.store_timestamp),
                             ("msg_base_offset", rows.base), ("batch_size", rows.count)):
            units[name] = column[good]
        units["compacted_offset"] = NOT_COMPACTED
        number = rows.queue[good]
        stops = [*(np.flatnonzero(np.diff(number)) + 1).tolist(), len(good)]
        start = 0
        for stop in stops:
            self._append(self.queues[int(number[start])], units[start:stop])
            start = stop

    def _append(self, queue: BatchedQueue, units: Array) -> None:
        """Append the entries that were not dispatched before."""
        written = int(np.searchsorted(units["physical_offset"].astype(np.int64), queue.max_physic,
                                      "right"))
        units = units[written:]
        before = queue.files.position
        try:
            queue.files.append(units.view(np.uint8).data)
        finally:
            # Also after an error, count the rows that were written.
            done = (queue.files.position - before) // UNIT_SIZE
            if done:
                last = units[done - 1]
                queue.max_physic = int(last["physical_offset"])
                queue.next_offset = int(last["msg_base_offset"]) + int(last["batch_size"])
