"""Dispatch: upload the messages that a broker would upload, from a store on which no broker runs
(§7).

`Dispatch.prepare` examines every queue and completes the uploads of an interrupted run.
`Dispatch.run` uploads messages. The local log is read once, in windows. While one window is
appended and committed, the next window is read (`Stages`). The local store is never changed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field, replace
from types import TracebackType
from typing import Any, Self

from rmqctl.errors import RefusedError
from rmqctl.ext.tiered.dispatch.append_file import AppendFile, enter_changes
from rmqctl.ext.tiered.dispatch.blocks import Block, Sweep
from rmqctl.ext.tiered.dispatch.index import IndexRun
from rmqctl.ext.tiered.dispatch.local import LocalQueue
from rmqctl.ext.tiered.dispatch.plan import (
    REFUSED,
    SKIPPED,
    STOPPED,
    UP_TO_DATE,
    UPLOADED,
    WAITING,
    Blocks,
    CommitGroups,
    Outcome,
    Start,
    Upload,
    flat_queue,
    is_due,
    queues_to_upload,
    same_message,
    why_not_continued,
)
from rmqctl.ext.tiered.dispatch.resume import enter_queue, resume, unit_rows, unknown_topic
from rmqctl.ext.tiered.files import metadata_file
from rmqctl.ext.tiered.files.settings import TierSettings, remember
from rmqctl.ext.tiered.files.writer import TierWriter
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, QueueName
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry
from rmqctl.formats.tiered.units import UNIT_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import malloc_tuning
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """Options of a dispatch. An empty ``topics`` selects all topics."""

    cluster: str
    broker: str
    topics: tuple[str, ...] = ()
    start: Start = field(default_factory=Start)
    only_due: bool = False
    restart_queue: bool = False


class Dispatch:
    """A dispatch run.

    ``open_writer`` returns a writer to the tier. ``open_writer`` is called twice: for commit logs
    and for consume queues.
    ``broker_root``: the folder in which metadata is staged.
    ``clock`` returns ms.
    ``advance`` is called with the number of processed bytes.
    ``stopping`` is called between windows. The run ends if ``stopping`` returns True.
    """

    def __init__(self, store: Store, tier: Tier, open_writer: Callable[[], TierWriter],
                 metadata_path: str, broker_root: str, settings: TierSettings,
                 options: DispatchOptions, clock: Callable[[], int], *,
                 advance: Callable[[int], None] = lambda _: None,
                 stopping: Callable[[], bool] = lambda: False) -> None:
        self.store, self.tier, self.options, self.settings = store, tier, options, settings
        self.metadata = tier.metadata
        self.metadata_path, self.broker_root = metadata_path, broker_root
        self.uploads: list[Upload] = []
        self.outcomes: list[Outcome] = []
        self.stopped = self.restarted = False
        self._now, self._advance, self._stopping = clock, advance, stopping
        self._view = View(store)
        self._log_writer, self._rows_writer = open_writer(), open_writer()

    def close(self) -> None:
        """Close the writers."""
        self._log_writer.close()
        self._rows_writer.close()

    # -- what there is to do ----------------------------------------------------------------------

    def prepare(self) -> None:
        """Decide which queues are uploaded, complete the files of an interrupted run, create
        missing files, and save the metadata.
        Raises: StoreIOError; RefusedError if saving would lose a part of the metadata.
        """
        self._refuse_metadata()
        remember(self._rows_writer, self.settings)
        chosen = self.options
        local_queues = queues_to_upload(self.store, chosen.cluster, chosen.broker,
                                        list(chosen.topics))
        for topic, number in local_queues.batch:
            self.outcomes.append(Outcome(
                topic, number, status=SKIPPED,
                reason="rmqctl does not upload batch consume queues"))
        for key in local_queues.queues:
            local = LocalQueue(self._view, self.store.queues.by_key[key])
            outcome = Outcome(*key)
            self.outcomes.append(outcome)
            self._prepare(local, outcome)
        Committer(self.metadata, self.metadata_path, self.broker_root, self._now).save()

    def _refuse_metadata(self) -> None:
        where = self.tier.metadata_path or self.metadata_path
        if self.tier.metadata_error is not None:
            raise RefusedError(f"{self.tier.metadata_error}; `rmqctl tiered recover` rebuilds it")
        if self.metadata.old:
            raise RefusedError(f"{where} is in the format of broker 5.1.0 or 5.1.1, which rmqctl "
                               "does not write; `rmqctl tiered recover` converts it")
        if self.metadata.faults:
            fault = self.metadata.faults[0]
            raise RefusedError(f"{where}: {fault.path}: {fault.reason}; rewriting the file would "
                               "lose data; see `rmqctl tiered recover`")
        self._refuse_unknown(where)

    def _refuse_unknown(self, where: str) -> None:
        """Raise RefusedError if the tier contains a topic that the metadata does not contain.

        Metadata is saved before any message is uploaded, so the metadata was lost or is outdated. A
        further upload would give topics new ids; the index items of one topic would then belong to
        another topic.
        """
        broker = self.options.cluster, self.options.broker
        # Use another `Tier`: this one caches its folders, and must see the result of `prepare`.
        in_tier = Tier(self.tier.reader, None, None).contents
        topic = unknown_topic((queue for name, queue in in_tier.queues.items()
                               if (name.cluster, name.broker) == broker), self.metadata)
        if topic is not None:
            says = ("does not contain" if os.path.lexists(where)
                    else "is missing, so it has no entry for")
            raise RefusedError(f"{where} {says} the topic {topic}, which is in the tier; `rmqctl "
                               "tiered recover` finds its ID in the index")

    def _prepare(self, local: LocalQueue, outcome: Outcome) -> None:
        # What an earlier run left half done is completed first.
        name = QueueName(self.options.cluster, self.options.broker, local.topic, local.queue_id)
        flat = flat_queue(self._rows_writer, name)
        resumed = resume(self._rows_writer, flat, self.metadata,
                         self.settings.consume_queue_limit, self._now, same_message(local))
        outcome.completed = resumed.units
        # Whether the local queue continues the tiered one, and from which queue offset.
        tiered = bool(flat.consume_queue.segments)
        verdict = (REFUSED, resumed.fault) if resumed.fault is not None else None
        if verdict is None and tiered:
            verdict = why_not_continued(local, flat.commit_offset)
        if verdict is not None and verdict[0] == REFUSED and self.options.restart_queue:
            self._restart(flat)
            flat, tiered, verdict = flat_queue(self._rows_writer, name), False, None
        outcome.start = outcome.end = flat.commit_offset if tiered else 0
        if verdict is not None:
            outcome.status, outcome.reason = verdict
            return
        current = flat.commit_offset if tiered else self.options.start.offset(self._view, local)
        outcome.start = outcome.end = current
        if current == local.end and (not tiered and self.options.start.time is None):
            return
        # Enter topic and queue in the metadata, and remove entries of missing files.
        enter_queue(self.metadata, name, self._now())
        if not tiered:
            self._forget_gone(flat)
        # Create the files to append to: a broker does not open a queue without them.
        local.seek(current)
        log, rows = (self._append_file(writer, name, file) for writer, file in (
            (self._log_writer, flat.commit_log), (self._rows_writer, flat.consume_queue)))
        if log.path is None:
            log.start(0)
        if rows.path is None:
            rows.start(current * UNIT_SIZE)
        for file in (log, rows):
            file.writer.commit_later(file.dirty())()
            for entry in file.changes():
                self.metadata.put_segment(entry)
        self.uploads.append(Upload(local, flat, log, rows, CommitGroups(self.settings),
                                   self.metadata.topics[local.topic].topic_id, outcome,
                                   first_base=log.end, next_base=log.end))

    def _append_file(self, writer: TierWriter, name: QueueName, flat: FlatFile) -> AppendFile:
        log = flat.kind == names.COMMIT_LOG
        limit = self.settings.commit_log_max if log else self.settings.consume_queue_limit
        return AppendFile(writer, name, flat, limit,
                       self.metadata.segments[flat.kind].get(name.path, {}), self._now)

    def _restart(self, flat: FlatQueue) -> None:
        """Move a tiered queue's files aside; keep the index items that point to them."""
        self.restarted = True
        for file in (flat.consume_queue, flat.commit_log):
            for segment in file.segments:
                self._rows_writer.put_aside(segment.path)

    def _forget_gone(self, flat: FlatQueue) -> None:
        """Remove the metadata entries of missing files before a queue is uploaded again from its
        start.
        """
        for file in (flat.commit_log, flat.consume_queue):
            present = {segment.base for segment in file.segments}
            table = self.metadata.segments[file.kind].get(flat.name.path, {})
            for base in [base for base in table if base not in present]:
                del table[base]

    # -- uploading --------------------------------------------------------------------------------

    def run(self, index: IndexRun | None = None) -> None:
        """Upload the queues. Raises: StoreIOError; committed data is kept."""
        malloc_tuning.keep_freed_memory()
        malloc_tuning.collect_rarely()
        by_local = {id(upload.local): upload for upload in self.uploads}
        sweep = Sweep(self.store.log, [upload.local for upload in self.uploads],
                      lambda local: by_local[id(local)].next_base)
        commit = Committer(self.metadata, self.metadata_path, self.broker_root, self._now)

        def append(blocks: Blocks) -> AppendedWindow:
            if index is not None:
                index.intend(blocks)
            return self._append_all(blocks)

        # Windows pass through three concurrent stages: append, commit, index.
        with Stages(append, commit, index) as stages:
            for window in sweep.windows():
                blocks = self._to_upload(by_local, window)
                stages.submit(blocks)
                self._advance(sum(block.bytes for _, block in blocks))
                if self._stopping():
                    self.stopped = True
                    break
        if index is not None:
            index.commit()
        for upload in self.uploads:
            self._end(upload)

    def _to_upload(self, by_local: dict[int, Upload], window: Iterator[Block]) -> Blocks:
        """Return the part of each block of a window that is to be uploaded."""
        blocks = []
        for full_block in window:
            upload = by_local[id(full_block.queue)]
            block = self._cut(upload, full_block)
            if len(block):
                upload.next_base += block.bytes
                blocks.append((upload, block))
        return blocks

    def _append_all(self, blocks: Blocks) -> AppendedWindow:
        """Append the blocks of a window to the commit logs."""
        window = AppendedWindow(blocks)
        paths: list[str] = []
        for upload, block in blocks:
            self._append(upload, block)
            window.entries += upload.log.changes()
            paths += upload.log.dirty()
        window.sync = self._log_writer.commit_later(paths)
        return window

    def _cut(self, upload: Upload, block: Block) -> Block:
        """Return the part of a block to upload, and record in it where group commits start."""
        queue, count = upload.local, len(block)
        # Stop before a message that is larger than a segment.
        long = block.size > self.settings.commit_log_max
        if long.any():
            count = int(long.argmax())
            queue.stop(block.offset + count,
                       f"the message has {int(block.size[count])} bytes, more than a commit log "
                       f"segment ({self.settings.commit_log_max}): a broker would retry forever")
        # With --only-due, skip groups that a broker would not begin yet.
        starts = upload.groups.starts(block.size[:count])
        if self.options.only_due:
            times, now = block.times, self._now()
            for start in starts:
                waiting = queue.end - block.offset - start
                if not is_due(self.settings, int(times[start]), waiting, now):
                    queue.finish()
                    upload.outcome.status = WAITING
                    count = start
                    break
        block.group_starts = [start for start in starts if start < count]
        return block if count == len(block) else block.head(count)

    def _append(self, upload: Upload, block: Block) -> None:
        """Append a block to the commit log. Like a broker, roll an old segment before a group
        begins.
        """
        log, times, view = upload.log, block.times, memoryview(block.data)
        pieces = sorted({0, *block.group_starts})
        for first, last in zip(pieces, [*pieces[1:], len(block)], strict=True):
            if first in block.group_starts and log.is_old(
                    self.settings.rolling_interval, self.settings.rolling_min_size, self._now()):
                log.roll()
            begin = int(block.end[first - 1]) if first else 0
            log.append(view[begin:int(block.end[last - 1])], block.end[first:last] - begin,
                       times[first:last])

    def _end(self, upload: Upload) -> None:
        outcome, fault = upload.outcome, upload.local.fault
        if fault is not None:
            outcome.status = STOPPED
            outcome.reason = f"queue offset {fault.queue_offset}: {fault.reason}"
        elif outcome.end < upload.local.end and outcome.status in (UPLOADED, UP_TO_DATE):
            outcome.status = WAITING


# -- what was appended is made to last, beside the reading of the next windows --------------------

@dataclass(slots=True)
class AppendedWindow:
    """Data appended to commit logs: its blocks, the changed metadata entries, and a function that
    commits the data.
    """

    blocks: Blocks
    entries: list[SegmentEntry] = field(default_factory=list)
    sync: Callable[[], None] = lambda: None


class Stages:
    """Context manager that runs three steps, each in its own thread: append, commit, index.

    Windows pass through the steps in order. If a step fails, no later step begins. `submit` or the
    end of the context raises the error.
    """

    _AT_ONCE = 1

    def __init__(self, append: Callable[[Blocks], AppendedWindow],
                 commit: Callable[[AppendedWindow], None], index: IndexRun | None) -> None:
        self._append, self._commit, self._index = append, commit, index
        self._pools = [ThreadPoolExecutor(1, name) for name in ("append", "commit", "index")]
        self._last: tuple[Future[Any], ...] = ()
        self._under_way: deque[Future[None]] = deque()

    def submit(self, blocks: Blocks) -> None:
        """Begin a window; wait while too many are in progress."""
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
            for future in self._under_way:
                future.result()


class Committer:
    """Commits windows in order: first to the commit log, then to the consume queue and the
    metadata.
    """

    def __init__(self, metadata: Metadata, metadata_path: str, broker_root: str,
                 clock: Callable[[], int]) -> None:
        self._metadata, self._path, self._broker_root = metadata, metadata_path, broker_root
        self._now = clock

    def __call__(self, window: AppendedWindow) -> None:
        """Commit a window. Raises: StoreIOError; the tier is then in the same state as after a
        killed run.
        """
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
        """Save the bounds of a queue. Brokers do not use these bounds, and do not update them."""
        name = upload.flat.name
        table = self._metadata.queues[name.topic]
        low = upload.flat.min_offset if upload.flat.commit_offset else upload.outcome.start
        table[name.queue_id] = replace(table[name.queue_id], min_offset=low, max_offset=end,
                                       update_timestamp=self._now())

    def save(self) -> None:
        metadata_file.save(self._path, self._metadata, self._broker_root)
