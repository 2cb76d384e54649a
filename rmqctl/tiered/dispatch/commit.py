"""The second half of a window of dispatch: what was appended is made to last (§8, §18).

The order is the broker's: commit log, consume queue, metadata, index. It runs beside the reading
of the next windows; each step touches files of its own only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry
from rmqctl.scan.frames import Batch, examine
from rmqctl.tiered.dispatch.append_file import apply, committing
from rmqctl.tiered.dispatch.blocks import Block
from rmqctl.tiered.dispatch.plan import UPLOADED, Upload
from rmqctl.tiered.dispatch.progress import IndexProgress, Key, Position
from rmqctl.tiered.dispatch.resume import unit_rows
from rmqctl.tiered.files import metadata_file
from rmqctl.tiered.flat_queue import BLOCK_UNITS, FlatQueue
from rmqctl.tiered.index.keys import Keys, keys_of_all

Array = np.ndarray[Any, np.dtype[Any]]
_INDEX_BYTES = 1 << 30
"""So much of commit log is uploaded between two commits of the index: one may write all slots."""
_PIECE = 16 << 20


class Feed(Protocol):
    """What takes the keys of messages: `rmqctl.tiered.index.writer.IndexFeed`."""

    def put(self, batch: Batch, topic: str, topic_id: int, queue_id: int) -> int: ...

    def put_keys(self, keys: Keys, offset: Array, size: Array, store_timestamp: Array,
                 topic_id: Array | int, queue_id: Array | int) -> int: ...

    def commit(self) -> None: ...

    def position(self) -> Position: ...

    def rewind(self, timestamp: int, items: int) -> bool: ...


Blocks = list[tuple[Upload, Block]]


@dataclass(slots=True)
class Window:
    """What was appended to commit logs: blocks, metadata entries and how to make it last."""

    blocks: Blocks
    entries: list[SegmentEntry] = field(default_factory=list)
    sync: Callable[[], None] = lambda: None


class Stages:
    """Three steps, each in a thread of its own: append, commit, index. A context manager.

    A window goes through them in order, behind the one before. Where a step fails, nothing that
    would come behind it is begun; `submit` or the end of the context raises what it was.
    """

    _AT_ONCE = 2

    def __init__(self, append: Callable[[Blocks], Window], commit: Callable[[Window], None],
                 index: IndexRun | None) -> None:
        self._append, self._commit, self._index = append, commit, index
        self._pools = [ThreadPoolExecutor(1, name) for name in ("append", "commit", "index")]
        self._last: tuple[Future[Any], ...] = ()
        self._under_way: deque[Future[None]] = deque()

    def submit(self, blocks: Blocks) -> None:
        """Begins a window; waits where too many are under way."""
        before = self._last
        append, commit, index = self._pools

        def after(number: int, step: Callable[[], Any]) -> Any:
            if before:
                before[number].result()
            return step()

        appended = append.submit(after, 0, lambda: self._append(blocks))
        committed = commit.submit(after, 1, lambda: self._commit(appended.result()))

        def put() -> None:
            committed.result()
            if self._index is not None:
                self._index.put(blocks)

        done = index.submit(after, 2, put)
        self._last = (appended, committed, done)
        self._under_way.append(done)
        while len(self._under_way) > self._AT_ONCE:
            self._under_way.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        for pool in self._pools:
            pool.shutdown(wait=True)
        if kind is None:
            for one in self._under_way:
                one.result()


class Committer:
    """Commits windows in their order: commit log, consume queue, metadata."""

    def __init__(self, metadata: Metadata, metadata_path: str, home: str,
                 clock: Callable[[], int]) -> None:
        self._metadata, self._path, self._home = metadata, metadata_path, home
        self._now = clock

    def __call__(self, window: Window) -> None:
        """Makes a window last. StoreIOError: then it is as a killed run leaves it."""
        window.sync()
        entries = window.entries
        for upload, block in window.blocks:
            upload.rows.append(*unit_rows(block.begin, block.size, block.tags), block.times)
        paths: list[str] = []
        for upload, _ in window.blocks:
            paths += upload.rows.dirty()
            entries += upload.rows.changes()
        if paths:
            committing(window.blocks[0][0].rows.feeder, paths)()
        apply(self._metadata, entries)
        for upload, block in window.blocks:
            self._bounds(upload, block.offset + len(block))
        self.save()
        for upload, block in window.blocks:
            found = upload.outcome
            found.end = block.offset + len(block)
            found.messages += len(block)
            found.bytes += block.bytes
            found.status = UPLOADED

    def _bounds(self, upload: Upload, end: int) -> None:
        """Notes the bounds of a queue, which brokers neither believe nor always keep up to date."""
        name = upload.flat.name
        table = self._metadata.queues[name.topic]
        low = upload.flat.min_offset if upload.flat.commit_offset else upload.outcome.start
        table[name.queue_id] = replace(table[name.queue_id], min_offset=low, max_offset=end,
                                       update_timestamp=self._now())

    def save(self) -> None:
        metadata_file.save(self._path, self._metadata, self._home)


class IndexRun:
    """Feeds the index and notes how far it came. ``catch_up`` first, `close` last."""

    def __init__(self, feed: Feed, progress: IndexProgress) -> None:
        self._feed, self._progress = feed, progress
        self._since = 0
        self.items = 0
        self._pending: dict[Key, int] = {}
        self._noting = Lock()

    def catch_up(self, queues: Iterable[tuple[FlatQueue, int]]) -> list[str]:
        """Indexes what an earlier run had uploaded and not indexed; remarks.

        ``queues`` are those of the tier with the ids of their topics.
        """
        found = {(one.name.topic, one.name.queue_id): (one, topic_id) for one, topic_id in queues}
        ends = {key: one.commit_offset for key, (one, _) in found.items()}
        note, notes = self._progress, []
        behind = {key: end for key, end in ends.items() if note.upto.get(key, end) < end}
        if not note.known:
            behind = {}
        elif not note.is_ours({key: end for key, end in ends.items()
                               if end > found[key][0].cq_start}):
            notes.append("somebody else (a broker, or a run with --no-index) uploaded since the "
                         "index was fed last: what it had not indexed is left so")
            behind = {}
        elif behind and note.position is not None and not self._feed.rewind(*note.position):
            notes.append("the index files are not those of the run before, which was interrupted: "
                         f"up to {sum(end - note.upto[key] for key, end in behind.items())} "
                         "messages may be missing in the index")
            behind = {}
        for key in behind:
            queue, topic_id = found[key]
            for batch in batches(queue, note.upto[key], ends[key]):
                self.items += self._feed.put(batch, *_named(queue, topic_id))
        if behind:
            self._feed.commit()
        note.upto.update(ends)
        note.target.update(ends)
        note.position = self._feed.position()
        note.save()
        return notes

    def intend(self, blocks: Blocks) -> None:
        """Notes what is uploaded next, before it is."""
        with self._noting:
            for upload, block in blocks:
                key = upload.local.topic, upload.local.queue_id
                self._progress.upto.setdefault(key, upload.outcome.start)
                self._progress.target[key] = block.offset + len(block)
            self._progress.save()

    def put(self, blocks: Blocks) -> None:
        """Puts the keys of messages that are uploaded."""
        if not blocks:
            return
        counts = [len(block) for _, block in blocks]
        begin, size, times = (np.concatenate(parts) for parts in zip(*(
            (block.begin, block.size, block.times) for _, block in blocks), strict=True))
        self.items += self._feed.put_keys(
            keys_of_all([block.batch for _, block in blocks],
                        [upload.local.topic for upload, _ in blocks]), begin, size, times,
            np.repeat([upload.topic_id for upload, _ in blocks], counts),
            np.repeat([upload.local.queue_id for upload, _ in blocks], counts))
        for upload, block in blocks:
            self._pending[upload.local.topic, upload.local.queue_id] = block.offset + len(block)
            self._since += block.bytes
        if self._since >= _INDEX_BYTES:
            self.commit()

    def commit(self) -> None:
        """Makes the index last, then the note of it."""
        self._feed.commit()
        self._since = 0
        with self._noting:
            self._progress.upto.update(self._pending)
            self._pending = {}
            self._progress.position = self._feed.position()
            self._progress.save()


def _named(queue: FlatQueue, topic_id: int) -> tuple[str, int, int]:
    return queue.name.topic, topic_id, queue.name.queue_id


def batches(queue: FlatQueue, start: int, end: int) -> Iterator[Batch]:
    """The messages of queue offsets ``[start, end)`` as the tier has them; those that are none
    are left out.
    """
    at = start
    while at < end:
        units = queue.units(at, min(BLOCK_UNITS, end - at))
        if not len(units):
            return
        begin = units["commit_log_offset"].astype(np.int64)
        stop = begin + units["size"]
        # A run lies together: each message begins where the one before ends.
        cuts = (np.flatnonzero(begin[1:] != stop[:-1]) + 1).tolist()
        for first, last in zip([0, *cuts], [*cuts, len(units)], strict=True):
            yield from _run(queue, begin[first:last], stop[first:last])
        at += len(units)


def _run(queue: FlatQueue, begin: Array, stop: Array) -> Iterator[Batch]:
    at = 0
    while at < len(begin):
        upto = max(at + 1, int(np.searchsorted(stop, begin[at] + _PIECE, "right")))
        data = np.frombuffer(queue.commit_log.read(int(begin[at]), int(stop[upto - 1] - begin[at])),
                             np.uint8)
        batch, ok = examine(data, int(begin[at]), begin[at:upto] - begin[at])
        if ok.any():
            yield batch if ok.all() else batch.select(np.flatnonzero(ok))
        at = upto
