"""Write the index in several tasks, each of which writes complete index files.

Each index file contains the same number of entries, so the entry with which a file starts is known
in advance. The content of a file depends only on its entries and the last entry of the previous
file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rmqctl.broker.settings import Settings
from rmqctl.engine.dispatch.index import IndexWriter, write_whole
from rmqctl.engine.dispatch.queue_files import FilePool
from rmqctl.files.aside import AsideFolder
from rmqctl.files.durable import failed
from rmqctl.formats.local.index_file import HeaderRecord, IndexShape, build_header
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.rebuild import index
from rmqctl.repair.rebuild.index import FOLDER, Expired
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.frames import Array

MAX_PENDING = 1 << 21
_BEFORE = "0" * 17
"""Name of a placeholder for the previous index file. Only its header is written, and it is deleted
later.
"""

Segment = tuple[Array, Array, Array, Array]
"""A part of the log in four columns.

* physical offset and store time of each message
* for each key, in index order: the index of its message, and its hash
"""


@dataclass(frozen=True, slots=True)
class IndexTask:
    """The task to write index files with the entries ``[start, stop)`` of the log.

    ``stop``: None for all entries to the end.
    ``expired``: entries of expired messages, which come before the first entry of the log.
    """

    expired: Expired
    start: int = 0
    stop: int | None = None


def shape_of(settings: Settings) -> IndexShape:
    """Return the numbers of slots and entries in an index file with these settings."""
    return IndexShape(settings.index_slots, settings.index_max)


def index_tasks(expired: Expired, shape: IndexShape, entries: int, most: int) -> list[IndexTask]:
    """Divide ``entries`` entries of the log into at most ``most`` tasks."""
    capacity = shape.capacity
    cuts: list[int] = []
    if capacity > 0:
        room = capacity - expired.entries
        cuts = [cut for cut in range(room, entries, capacity) if cut > 0]
    count = min(len(cuts) + 1, max(most, 1))
    starts = [0, *(cuts[number * (len(cuts) + 1) // count - 1] for number in range(1, count))]
    return [IndexTask(expired if not start else Expired(), start, stop)
            for start, stop in zip(starts, [*starts[1:], None], strict=True)]


def write_index(settings: Settings, log_min: int, index_task: IndexTask,
                segments: Iterable[Segment], key_row: int, scratch: Scratch) -> int:
    """Write the files of a task into ``scratch``; return the index timestamp at their end.

    ``segments``: the segments of the log in order.
    ``key_row``: index of the first segment's first entry (see `begin`).
    Raises: StoreIOError.
    """
    shape = shape_of(settings)
    index.seed(index_task.expired, shape, log_min, scratch)
    now = 0

    def opened() -> IndexWriter:
        return IndexWriter(scratch.root, shape, pool, lambda: now,
                           counts_empty=settings.profile.generation >= 5,
                           most_pending=MAX_PENDING)

    with _pool(scratch) as pool:
        writer: IndexWriter | None = None
        for before, (physical, when, row, key_hash) in within(segments, index_task, key_row):
            if writer is None:
                if index_task.start:
                    _lay_before(scratch, shape, before)
                writer = opened()
            now = int(when[0])
            writer.put(physical, row, key_hash, when)
        writer = writer or opened()
        writer.close()
    if index_task.start:
        _take_away(scratch.path(FOLDER, _BEFORE))
    return writer.index_timestamp


def within(segments: Iterable[Segment], index_task: IndexTask, key_row: int) -> Iterator[
        tuple[tuple[int, int], Segment]]:
    """Yield the task's segments.

    With each segment, yield the physical offset and the store time of the entry before the task's
    first entry. A message without keys belongs to the task of the entry before it or, if there is
    none, to the task of the first entry.
    """
    before = 0, 0
    for physical, when, row, key_hash in segments:
        count = len(row)
        low = max(0, index_task.start - key_row)
        high = count if index_task.stop is None else min(count, index_task.stop - key_row)
        if key_row <= index_task.start - 1 < key_row + count:
            message = int(row[index_task.start - 1 - key_row])
            before = int(physical[message]), int(when[message])
        first = 0
        if key_row < index_task.start:
            first = int(row[low]) if low < count else len(physical)
        end = len(physical)
        if index_task.stop is not None and index_task.stop - key_row <= count:
            end = int(row[high - 1]) + 1 if high > low else 0
        if first < end:
            yield before, (physical[first:end], when[first:end], row[low:high] - first,
                           key_hash[low:high])
        key_row += count
        if index_task.stop is not None and key_row >= index_task.stop:
            return


def begin(keys: Sequence[int], index_task: IndexTask) -> tuple[int, int]:
    """Return (the number of leading spools that a task does not need, the number of index entries
    in these spools).

    ``keys``: number of index keys in each spool.
    """
    key_row = 0
    for number, count in enumerate(keys):
        if key_row + count >= index_task.start:
            return number, key_row
        key_row += count
    return len(keys), key_row


def _lay_before(scratch: Scratch, shape: IndexShape, before: tuple[int, int]) -> None:
    """Create a placeholder for the previous index file.

    Only its header is written, as the header of a full file. ``before``: physical offset and store
    time of the file's last entry.
    """
    physical, store_timestamp = before
    header = HeaderRecord(store_timestamp, store_timestamp, physical, physical, 0,
                          shape.max_entries)
    write_whole(scratch.path(FOLDER, _BEFORE), shape, [(0, build_header(header))])


def _take_away(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        raise failed(error, path, "remove") from None


@contextmanager
def _pool(scratch: Scratch) -> Iterator[FilePool]:
    pool = FilePool(AsideFolder(scratch.root))
    try:
        yield pool
    finally:
        pool.close()

