"""Writer of plain consumequeues: a broker's put algorithm, applied to many entries at a time (spec:
consumequeue.md §4 and §6).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from rmqctl.engine.dispatch.queue_files import (
    UNWANTED,
    DispatchedQueue,
    FilePool,
    QueueFiles,
    QueueSet,
)
from rmqctl.engine.dispatch.twin_files import TwinFiles
from rmqctl.formats.local import consume_queue as layout
from rmqctl.formats.local.consume_queue import FILLER, UNIT_SIZE
from rmqctl.formats.local.consume_queue_ext import MAX_ADDRESS
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.kernel import active
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.scan.text import contiguous
from rmqctl.store.files import Listing, listing
from rmqctl.store.queue.consume_queue import FileQueue
from rmqctl.store.queue.store_queues import QueueFolders

FOLDER = "consumequeue"
_LONG_MAX = (1 << 63) - 1
_SMALL = 1 << 16
_LAST_ROWS = 1 << 16
_UNITS = layout.dtype()


@dataclass(slots=True)
class EntryColumns:
    """Entries in log order as int64 columns. ``queue``: the number of the queue; ``physical``: the
    physical offset.
    """

    queue: Array
    offset: Array
    physical: Array
    size: Array
    tags_code: Array

    def __len__(self) -> int:
        return len(self.queue)

    def take(self, which: Any) -> EntryColumns:
        return EntryColumns(self.queue[which], self.offset[which], self.physical[which],
                            self.size[which], self.tags_code[which])


@dataclass(slots=True)
class PlainQueue(DispatchedQueue):
    """The state of a queue that is being written.

    ``max_physic``: the end of the record of the queue's last entry, -1 if the queue has no entries.
    """

    @property
    def end(self) -> int:
        """The queue offset after the last entry."""
        return layout.queue_offset(self.files.position) if self.files.base is not None else 0


Codes = Callable[[PlainQueue, Array], Array]
"""Function that takes a queue and the indexes of entries, and returns the tags codes of these
entries. It is called only for entries that are written.
"""

@dataclass(frozen=True, slots=True)
class TwinQueues:
    """Queues of an existing store with which new queues are compared.

    ``log_min``: the start of this store's log. ``begun`` returns the physical offset at which a
    queue began, or 0 if the queue did not begin after the given offset. Messages before the start
    of a queue belong to an earlier queue of the same name.
    """

    queues: Mapping[QueueKey, FileQueue]
    log_min: int
    begun: Callable[[QueueKey, int], int] = lambda *_: 0


Positions = Mapping[QueueKey, tuple[int, int]]
"""For each queue: (queue offset after its last entry, physical offset up to which the log was
dispatched)."""


class ConsumeQueues(QueueSet[PlainQueue, FileQueue]):
    """All plain consumequeues of a store.

    * ``gaps``: number of entries whose queue offset leaves a gap; like a broker, the writer appends
      them at the end of the queue
    * ``repeated``: number of skipped entries whose queue offset another message already has
    * ``refused``: number of skipped entries with an invalid queue offset
    """

    def __init__(self, root: str, file_size: int, pool: FilePool,
                 log_end: int | None = None, *, as_broker: bool = False,
                 wanted: Callable[[QueueKey], bool] | None = None,
                 positions: Positions | None = None, twins: TwinQueues | None = None) -> None:
        """Find all queues on disk; see `QueueSet`.

        ``positions``: the known ends of queues; other ends are read from the files of the queues.
        ``twins``: queues of another store; a new file that equals a file of one of these queues is
        not written.
        """
        super().__init__(os.path.join(root, FOLDER), layout.file_size(file_size), pool, log_end,
                         as_broker=as_broker, wanted=wanted)
        self._positions, self._twins = positions or {}, twins or TwinQueues({}, 0)
        self.gaps = self.repeated = 0
        self._greatest = (_LONG_MAX - self._file_size) // UNIT_SIZE
        self._filler = layout.build(FILLER)
        for key, on_disk in QueueFolders(root, self._file_size).plain.items():
            self._take(key, on_disk)

    def _files_of(self, key: QueueKey, folder: str) -> QueueFiles:
        twin = self._twins.queues.get(key)
        if twin is None or twin.file_size != self._file_size or os.path.lexists(folder):
            return super()._files_of(key, folder)
        return TwinFiles(folder, self._pool, twin, self._twins.log_min)

    def finish_twins(self) -> frozenset[QueueKey]:
        """Return the queues that were not written because their files equal those of their
        twins.
        """
        same = set()
        for queue in self.queues:
            if isinstance(queue.files, TwinFiles):
                if queue.files.is_twin():
                    same.add(queue.key)
                else:
                    queue.files.write_out()
        return frozenset(same)

    def _on_disk(self, key: QueueKey, folder: str, listed: Listing) -> FileQueue:
        return FileQueue(*key, folder, listed.files, listed.troubles, self._file_size)

    def _loaded(self, key: QueueKey, files: QueueFiles, on_disk: FileQueue) -> PlainQueue:
        """Return the queue in its state after a broker's recovery (consumequeue.md §6)."""
        queue = PlainQueue(key, files)
        with closing(on_disk):
            self._load(queue, on_disk)
        return queue

    def _load(self, queue: PlainQueue, on_disk: FileQueue) -> None:
        # The given position is more reliable than the files.
        position = self._positions.get(queue.key)
        if position is not None:
            end, queue.max_physic = position
            if on_disk.files:
                queue.files.load(on_disk.files, layout.byte_offset(end),
                                 layout.byte_offset(max(end, on_disk.disk_end)))
            return
        if not on_disk.files:
            return
        # Truncate rows that point after the log's end.
        end = stale = on_disk.written
        has_rows = True
        if self._log_end is not None and on_disk.max_physical(end) > self._log_end:
            end = on_disk.truncated(self._log_end)
            has_rows, stale = end > 0, on_disk.disk_end
            if not self._as_broker:
                self._cut.append(queue)
        queue.files.load(on_disk.files, layout.byte_offset(end) if has_rows else None,
                         layout.byte_offset(stale))
        last = on_disk.unit(end - 1) if end > on_disk.first_index else None
        # A queue with only padding entries would count as dispatched up to 2 GiB and lose its rows,
        # as with a broker.
        if last is not None and (self._as_broker or not last.is_filler):
            queue.max_physic = on_disk.max_physical(end)

    def last_address(self, queue: PlainQueue) -> int | None:
        """Return the last extension address in the last `_LAST_ROWS` entries of a queue; None if
        they have none.
        """
        folder = queue.files.folder
        with closing(self._on_disk(queue.key, folder, listing(folder))) as on_disk:
            first = max(on_disk.first_index, queue.end - _LAST_ROWS)
            codes = on_disk.units(first, queue.end - first)["tags_code"]
        linked = np.flatnonzero(codes <= MAX_ADDRESS)
        return int(codes[linked[-1]]) if len(linked) else None

    # -- writing ----------------------------------------------------------------------------------

    def put(self, rows: EntryColumns, codes: Codes | None = None) -> None:
        """Write the entries of a part of the log; the entries of a queue must be in order.
        Raises: StoreIOError; afterwards the same entries may be put again.
        """
        self.wipe_cut()
        # Skip rows with an invalid queue offset, and rows of unwanted queues.
        wild = (rows.offset < 0) | (rows.offset > self._greatest)
        if self._wanted is not None:
            left_out = rows.queue == UNWANTED
            wild &= ~left_out
        else:
            left_out = wild
        if wild.any() or left_out.any():
            self.refused += int(wild.sum())
            wanted = np.flatnonzero(~(wild | left_out))
            rows = rows.take(wanted)
            if codes is not None:
                codes = _renumbered(codes, wanted)
        count = len(rows)
        if not count:
            return
        run = _arranged(rows, len(self.queues))
        run.codes = codes
        start = 0
        for stop in [*run.begins[1:].tolist(), count]:
            self._run(self.queues[int(rows.queue[run.order[start]])], run, start, stop)
            start = stop

    def _run(self, queue: PlainQueue, run: _ArrangedRows, start: int, stop: int) -> None:
        """Put the entries ``[start, stop)``, which have consecutive queue offsets."""
        files = queue.files
        while start < stop:
            # Skip rows that were dispatched before, by the physical offset.
            if run.end[start] <= queue.max_physic:
                start += int(np.searchsorted(run.end[start:stop], queue.max_physic, "right"))
                continue
            # The file: the first file of a new queue has padding entries up to the row; a full
            # file is followed by the next one.
            index = int(run.offset[start])
            expected = layout.byte_offset(index)
            blank = 0
            if files.base is None:
                place = int(run.units["physical_offset"][start])
                if (begun := self._twins.begun(queue.key, place)) > place:
                    queue.max_physic = begun
                    continue
                room = expected % self._file_size
                files.start(expected - room)
                if index:
                    blank = room // UNIT_SIZE
            elif files.full:
                files.roll()
            # The queue offset: skip existing rows, only count a gap.
            current = files.position + blank * UNIT_SIZE
            upto = stop
            if not index:
                # Offset 0 is never checked, so it is accepted at any position of the queue.
                upto = stop if current == 0 else start + 1
            elif expected < current:
                there = min(stop - start, layout.queue_offset(current - expected))
                # Offsets of a light queue may start again at each startup of the broker.
                if not queue.key[0].startswith(LMQ_PREFIX):
                    self.repeated += there
                start += there
                continue
            elif expected > current:
                self.gaps += stop - start
            self._append(queue, run, start, upto, blank)
            start = upto

    def _append(self, queue: PlainQueue, run: _ArrangedRows, start: int, stop: int,
                blank: int) -> None:
        """Append ``blank`` padding entries, and then the entries ``[start, stop)``."""
        if run.codes is not None:
            run.units["tags_code"][start:stop] = run.codes(queue, run.order[start:stop])
        data = run.raw[start * UNIT_SIZE:stop * UNIT_SIZE]
        before = queue.files.position
        try:
            queue.files.append(self._filler * blank + bytes(data) if blank else data)
        finally:
            # Also after an error, count the rows that were written.
            done = layout.queue_offset(queue.files.position - before) - blank
            if done > 0:
                queue.max_physic = int(run.end[start + done - 1])


@dataclass(slots=True)
class _ArrangedRows:
    """Entries sorted by queue, then in log order.

    ``raw``: the bytes of ``units``. ``begins``: the positions at which runs start. A run consists
    of entries of one queue with consecutive queue offsets.
    """

    units: Array
    raw: memoryview
    order: Array
    offset: Array
    end: Array
    begins: Array
    codes: Codes | None = None


def _arranged(rows: EntryColumns, queues: int) -> _ArrangedRows:
    """Return the entries sorted by queue; queue numbers are less than ``queues``."""
    count = len(rows)
    units = np.empty(count, _UNITS)
    raw = units.view(np.uint8)
    kernel = active()
    if kernel is not None and queues <= count:
        columns: Array = np.empty((3, count), np.int64)
        is_begin: Array = np.empty(count, bool)
        kernel.arrange_rows(*contiguous(rows.queue, rows.offset, rows.physical, rows.size,
                                        rows.tags_code),
                            np.zeros((2, queues), np.int64), raw, columns, is_begin.view(np.uint8))
        order, offset, end = columns
        return _ArrangedRows(units, raw.data, order, offset, end, np.flatnonzero(is_begin))
    # Small numbers: numpy sorts 16 bits by radix, many times faster.
    small = queues < _SMALL
    order = np.argsort(rows.queue.astype(np.uint16) if small else rows.queue, kind="stable")
    rows = rows.take(order)
    end = rows.physical + rows.size
    units["physical_offset"], units["size"] = rows.physical, rows.size
    units["tags_code"] = rows.tags_code
    is_begin = np.ones(count, bool)
    is_begin[1:] = ((rows.queue[1:] != rows.queue[:-1])
                    | (rows.offset[1:] != rows.offset[:-1] + 1) | (end[1:] <= end[:-1]))
    return _ArrangedRows(units, raw.data, order, rows.offset, end, np.flatnonzero(is_begin))


def _renumbered(codes: Codes, places: Array) -> Codes:
    return lambda queue, rows: codes(queue, places[rows])
