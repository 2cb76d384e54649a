"""The second half of a window of dispatch: what was appended is made to last (§8, §18).

The order is the broker's: commit log, consume queue, metadata, index. It runs beside the reading
of the next windows; each step touches files of its own only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry
from rmqctl.tiered.dispatch.append_file import enter_changes
from rmqctl.tiered.dispatch.index import IndexRun
from rmqctl.tiered.dispatch.plan import UPLOADED, Blocks, Upload
from rmqctl.tiered.dispatch.resume import unit_rows
from rmqctl.tiered.files import metadata_file


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

    def __init__(self, metadata: Metadata, metadata_path: str, broker_root: str,
                 clock: Callable[[], int]) -> None:
        self._metadata, self._path, self._broker_root = metadata, metadata_path, broker_root
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
            window.blocks[0][0].rows.writer.commit_later(paths)()
        enter_changes(self._metadata, entries)
        for upload, block in window.blocks:
            self._bounds(upload, block.offset + len(block))
        self.save()
        for upload, block in window.blocks:
            outcome = upload.outcome
            outcome.end = block.offset + len(block)
            outcome.messages += len(block)
            outcome.bytes += block.bytes
            outcome.status = UPLOADED

    def _bounds(self, upload: Upload, end: int) -> None:
        """Notes the bounds of a queue, which brokers neither believe nor always keep up to date."""
        name = upload.flat.name
        table = self._metadata.queues[name.topic]
        low = upload.flat.min_offset if upload.flat.commit_offset else upload.outcome.start
        table[name.queue_id] = replace(table[name.queue_id], min_offset=low, max_offset=end,
                                       update_timestamp=self._now())

    def save(self) -> None:
        metadata_file.save(self._path, self._metadata, self._broker_root)
