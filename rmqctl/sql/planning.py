"""Plan reads: divide the files of stores into partitions of about equal size.

Planning lists folders and reads very little: the ends of a log's last files. If a query has a
condition on the time, the first two records of each log file are also read. A file or queue is
skipped only if it cannot contain a match. Many small files are combined into one partition.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import pairwise

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.index_file import IndexShape
from rmqctl.formats.local.names import parse_queue_id
from rmqctl.lazy_dataclass import dataclass
from rmqctl.sql.options import ReadOptions
from rmqctl.sql.pushdown import Filters
from rmqctl.sql.reader import CompactedPiece, IndexPiece, LogPiece, Piece, QueuePiece, RocksPiece
from rmqctl.sql.schema import CONSUMEQUEUE, FRAMES, INDEX, MESSAGES
from rmqctl.store.files import StoreFile, Trouble, listing
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.end import used_size
from rmqctl.store.queue.compaction import CompactedRows, served_queues
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.unit_columns import index_entries
from rmqctl.store.stats import CLOCK_SKEW
from rmqctl.store.store import Store

MIN_SIZE, MAX_SIZE = 64 << 20, 1 << 30
"""Minimum and maximum default size of a partition in bytes."""
MAX_PIECES = 10_000
"""Default maximum number of partitions: a driver can plan this many within seconds."""
OPENING = 64 << 10
"""Cost of opening a file, expressed in bytes: opening thousands of tiny files also takes time."""
_LAST_FILES = 8
_ROW = 20
_BATCH_ROW = 46
_Times = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlanItem:
    """A file or queue to divide into pieces. ``weight``: its size in bytes; ``cut(start, end)``
    returns the piece of this byte range.
    """

    weight: int
    cut: Callable[[int, int], Piece]


def plan(options: ReadOptions, filters: Filters, cores: int | None = None) -> list[list[Piece]]:
    """Return the list of pieces of each partition; a list may be empty.

    ``filters`` are all conditions, including those in ``options``.
    Raises: NotAStoreError, StoreIOError.
    """
    items = [item for path in options.stores() for item in of_store(path, options, filters)]
    return partitions(items, options, cores)


def partitions(items: list[PlanItem], options: ReadOptions, cores: int | None) -> list[list[Piece]]:
    """Cut items into pieces; return the list of pieces of each partition."""
    if options.split_size == 0 and options.partitions is None:
        return list(_whole(items))
    total = sum(item.weight for item in items)
    count = options.partitions
    if count is None:
        size = options.split_size or split_size(total, cores or os.cpu_count() or 1)
        count = max(1, round((total + OPENING * (len(items) - 1)) / size))
    return _cut(items, total, count)


def split_size(total: int, cores: int) -> int:
    """Return the partition size in bytes for reading ``total`` bytes on ``cores`` cores."""
    return max(min(max(total // (4 * cores), MIN_SIZE), MAX_SIZE), total // MAX_PIECES)


def _cut(items: list[PlanItem], total: int, count: int) -> list[list[Piece]]:
    """Cut items into ``count`` partitions of equal size in bytes.

    An item of 0 bytes is added to the partition of an adjacent item.
    """
    shares: list[list[Piece]] = [[] for _ in range(count)]
    edges = [total * number // count for number in range(count + 1)]
    number, before = 0, 0
    for item in items:
        start = 0
        while True:
            while number + 1 < count and edges[number + 1] <= before + start:
                number += 1
            end = min(item.weight, edges[number + 1] - before)
            if number + 1 == count:
                end = item.weight
            shares[number].append(item.cut(start, end))
            if end == item.weight:
                break
            start = end
        before += item.weight
    return shares


def _whole(items: Iterable[PlanItem]) -> Iterator[list[Piece]]:
    """Yield a partition for each file; small files share a partition."""
    pieces: list[Piece] = []
    weight = 0
    for item in items:
        if pieces and weight + item.weight + OPENING > MIN_SIZE:
            yield pieces
            pieces, weight = [], 0
        pieces.append(item.cut(0, item.weight))
        weight += item.weight + OPENING
    if pieces:
        yield pieces


def of_store(path: str, options: ReadOptions, filters: Filters) -> Iterator[PlanItem]:
    """Yield the files and queues of one store that contain rows of the table."""
    with Store.open(vfs.abspath(path), options.log_folders) as store:
        if options.table == CONSUMEQUEUE:
            store.layout.require(store.root, "consumequeue")
            if store.layout.consumequeue == "rocksdb":
                yield from _in_rocksdb(store, path, filters)
            yield from _queues(store, path, filters)
        elif options.table == INDEX:
            yield from _indexes(store, path)
        else:
            served = [*served_queues(store)] if options.compacted and (
                options.table == MESSAGES) else []
            yield from _log(store, path, filters, frames=options.table == FRAMES,
                            without=frozenset(os.fsencode(topic) for topic, _ in served))
            for topic, queue_id in served:
                if filters.takes_topic(topic) and filters.takes_queue(queue_id):
                    yield from _compacted(store, path, topic, queue_id)


# -- the log --------------------------------------------------------------------------------------


def _compacted(store: Store, name: str, topic: str, queue_id: int) -> Iterator[PlanItem]:
    for file in CompactedRows(store, topic, queue_id).log.files:
        def cut(start: int, end: int, file: StoreFile = file) -> CompactedPiece:
            return CompactedPiece(name, vfs.relpath(file.path, store.root), store.root, topic,
                                  queue_id, file.base + start, file.base + end)

        yield PlanItem(file.size, cut)


def _log(store: Store, name: str, filters: Filters, *, frames: bool,
         without: frozenset[bytes] = frozenset()) -> Iterator[PlanItem]:
    _readable(store.log_troubles)
    used = _used(store.log.files)
    for file in files_of_time(store.log, filters.since, filters.until):
        end = used.get(file.path, file.size)
        # Frames of a file's unused end may begin before the first offset and extend beyond it.
        first = 0 if frames else max((filters.start or 0) - file.base - file.head, 0)
        last = end if filters.end is None else min(end, filters.end - file.base)
        if first < last or (frames and not end and file.size):
            yield _log_item(store, name, file, first, max(last, first), end, without)


def _log_item(store: Store, name: str, file: StoreFile, first: int, last: int, used: int,
              without: frozenset[bytes]) -> PlanItem:
    def cut(start: int, end: int) -> LogPiece:
        return LogPiece(name, vfs.relpath(file.path, store.root), file, first + start,
                        first + end, first + end == used, store.root, without)

    return PlanItem(last - first, cut)


def _used(files: list[StoreFile]) -> dict[str, int]:
    """Return the used size in bytes of a log's last files, by path.

    Only the file that a broker writes to and the files that it allocated in advance can have an
    unused end. So at most eight files are read.
    """
    sizes: dict[str, int] = {}
    for file in files[:-_LAST_FILES - 1:-1]:
        with file.open() as source:
            if source.size < file.size:
                raise StoreIOError(f"{file.path}: the file shrank from {file.size} to "
                                   f"{source.size} bytes while it was read")
            source.size = file.size
            sizes[file.path] = used_size(source)
        if sizes[file.path]:
            break
    return sizes


# -- which files of a log may hold messages of a time ---------------------------------------------


def files_of_time(log: CommitLog, since: int | None, until: int | None) -> list[StoreFile]:
    """Return the files that may contain messages with store times in ``[since, until]`` (ms).

    A file is skipped only if the store times of its first two records agree, because no CRC covers
    a store time. Times in a file are assumed to be in order, with deviations of at most
    `CLOCK_SKEW`. If the files themselves are not in order of time, the broker's clock is
    unreliable, and all files are returned.
    """
    if (since is None and until is None) or len(log.files) < 2:
        return log.files
    starts = [_times(log, file) for file in log.files]
    times = [start for start in starts if start is not None]
    if any(after[0] < before[1] - CLOCK_SKEW for before, after in pairwise(times)):
        return log.files
    chosen, after = [], None
    for file, start in zip(reversed(log.files), reversed(starts), strict=True):
        late = until is not None and start is not None and start[0] > until + CLOCK_SKEW
        early = since is not None and after is not None and after[1] < since - CLOCK_SKEW
        if not late and not early:
            chosen.append(file)
        after = start or after
    return chosen[::-1]


def _times(log: CommitLog, file: StoreFile) -> _Times | None:
    """Return the least and the greatest store time of a file's first two records; None if the
    file does not begin with two records.
    """
    first = log.record_at(file.base + file.head)
    second = None if first is None else log.record_at(
        first.physical_offset + first.total_size + file.head)
    if first is None or second is None:
        return None
    times = first.store_timestamp, second.store_timestamp
    return min(times), max(times)


# -- rows -----------------------------------------------------------------------------------------


def _in_rocksdb(store: Store, name: str, filters: Filters) -> Iterator[PlanItem]:
    for (topic, queue_id), queue in store.queues.by_key.items():
        first, end = queue.first_index, queue.disk_end
        if first < end and filters.takes_topic(topic) and filters.takes_queue(queue_id):
            yield _rocks_item(name, queue, first, end)


def _rocks_item(name: str, queue: ConsumeQueue, first: int, behind: int) -> PlanItem:
    def cut(start: int, end: int) -> RocksPiece:
        return RocksPiece(name, "consumequeue", queue.folder, first + start // _ROW,
                          first + end // _ROW, queue.topic, queue.queue_id)

    return PlanItem((behind - first) * _ROW, cut)


def _queues(store: Store, name: str, filters: Filters) -> Iterator[PlanItem]:
    for structure, width in (("consumequeue", _ROW), ("batchconsumequeue", _BATCH_ROW)):
        if structure == "consumequeue" and store.layout.consumequeue == "rocksdb":
            continue
        top = listing(store.path(structure))
        _readable(top.troubles)
        for topic in top.folders:
            if not filters.takes_topic(topic):
                continue
            queues = listing(store.path(structure, topic))
            _readable(queues.troubles)
            for folder in sorted(queues.folders, key=lambda text: (len(text), text)):
                queue_id = parse_queue_id(folder)
                if queue_id is None or not filters.takes_queue(queue_id):
                    continue
                folder_listing = listing(store.path(structure, topic, folder))
                _readable(folder_listing.troubles)
                for file in folder_listing.files:
                    relative = os.path.join(structure, topic, folder, file.name)
                    if file.size >= width:
                        yield _queue_item(name, relative, file, topic, queue_id, width)


def _queue_item(name: str, relative: str, file: StoreFile, topic: str, queue_id: int,
                width: int) -> PlanItem:
    def cut(start: int, end: int) -> QueuePiece:
        return QueuePiece(name, relative, file, start // width, end // width, topic, queue_id,
                          batch=width == _BATCH_ROW)

    return PlanItem(file.size - file.size % width, cut)


def _indexes(store: Store, name: str) -> Iterator[PlanItem]:
    _readable(store.index.listing.troubles)
    for file in store.index.listing.files:
        shape = _shape(store, file)
        count = index_entries(file, shape)
        if count:
            yield _index_item(name, file, shape, count)


def _index_item(name: str, file: StoreFile, shape: IndexShape | None, count: int) -> PlanItem:
    def cut(start: int, end: int) -> IndexPiece:
        return IndexPiece(name, os.path.join("index", file.name), file, 1 + start // _ROW,
                          1 + end // _ROW, shape)

    return PlanItem(count * _ROW, cut)


def _shape(store: Store, file: StoreFile) -> IndexShape | None:
    """Return the layout of an index file; None if it cannot be determined from its content."""
    try:
        index = store.index.open(file)
    except FormatError:
        return None
    with closing(index):
        return index.shape


def _readable(troubles: Iterable[Trouble]) -> None:
    """Raise StoreIOError for a folder or file that cannot be read, because its rows would be
    missing from the result.
    """
    for trouble in troubles:
        name = os.path.basename(trouble.path)
        if trouble.unreadable and (vfs.isdir(trouble.path) or name.isdigit()):
            raise StoreIOError(f"cannot read {trouble.path}: {trouble.reason}")
