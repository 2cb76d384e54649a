"""Index updates of a dispatch: keys of uploaded messages, the progress file, and index files to
upload.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from threading import Lock

import numpy as np

from rmqctl.errors import FormatError, RefusedError
from rmqctl.ext.tiered.dispatch.plan import Blocks
from rmqctl.ext.tiered.dispatch.request import DispatchTarget
from rmqctl.ext.tiered.files import metadata_file
from rmqctl.ext.tiered.files.opening import open_reader, open_writer
from rmqctl.ext.tiered.files.settings import TierSettings
from rmqctl.ext.tiered.flat_file import BLOCK_UNITS, FlatQueue
from rmqctl.ext.tiered.index import compaction
from rmqctl.ext.tiered.index.index_file import local_names
from rmqctl.ext.tiered.index.keys import keys_of_all
from rmqctl.ext.tiered.index.progress import IndexProgress, Key
from rmqctl.ext.tiered.index.writer import TierIndexWriter
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, Batch, examine

_INDEX_BYTES = 1 << 30
"""Number of commit log bytes between two commits of the index. A commit may write all hash slots,
so commits are rare.
"""
_PIECE = 16 << 20


@dataclass(frozen=True, slots=True)
class IndexFolder:
    """The broker's index files that are not uploaded, and the tier to which they are uploaded."""

    target: DispatchTarget
    settings: TierSettings
    metadata: Metadata
    cluster: str
    broker: str
    clock: Callable[[], int]

    @property
    def path(self) -> str:
        return os.path.join(self.target.broker_root, names.LOCAL_INDEX_FOLDER)

    def open_writer(self, oldest: int | None = None) -> TierIndexWriter:
        """Open a writer for index items. ``oldest``: store time (ms) of the oldest message to add.
        Raises: RefusedError, StoreIOError.
        """
        newest = max((entry.begin_timestamp
                      for table in self.metadata.segments[names.INDEX].values()
                      for entry in table.values() if entry.size), default=0)
        return TierIndexWriter(self.path, self.settings.shape, self.clock, newest, oldest)

    def finish_upload(self) -> int:
        """Complete an interrupted upload of index files: if a killed run has uploaded the newest
        file, upload all files. Return the number of uploaded files.
        Raises: StoreIOError.
        """
        present = [name for name in local_names(self.path) if name not in names.OLD_INDEX_NAMES]
        if not present:
            return 0
        paths = [os.path.join(self.path, name) for name in present]
        try:
            with (closing(open_reader(self.target.tier)) as reader,
                  compaction.opened_as(self.settings.shape)(paths[-1]) as file):
                if not compaction.is_uploaded(reader, self.metadata, self.cluster, self.broker,
                                              file):
                    return 0
        except (FormatError, RefusedError):  # reported when the file is written or uploaded
            return 0
        return self.upload(paths)

    def upload(self, paths: Iterable[str]) -> int:
        """Compact and upload files that no longer receive items; return the number of uploaded
        files.
        """
        broker_root = self.target.broker_root

        def save() -> None:
            metadata_file.save(self.target.metadata_path, self.metadata, broker_root)

        with closing(open_writer(self.target.tier)) as writer:
            return sum(done.status != "empty" for done in compaction.upload_files(
                writer, self.metadata, self.cluster, self.broker, paths,
                compaction.opened_as(self.settings.shape), broker_root, self.clock, save))


class IndexRun:
    """Adds the keys of uploaded messages to the index and records the progress in a file. Call
    `catch_up` first and `commit` last.
    """

    def __init__(self, writer: TierIndexWriter, progress: IndexProgress) -> None:
        self._writer, self._progress = writer, progress
        self._since = 0
        self.items = 0
        self._pending: dict[Key, int] = {}
        self._noting = Lock()

    def catch_up(self, queues: Iterable[tuple[FlatQueue, int]]) -> list[str]:
        """Index messages that an earlier run uploaded but did not index. Return notes for the user.
        ``queues``: the tier's queues with the ids of their topics.
        """
        by_key = {(queue.name.topic, queue.name.queue_id): (queue, topic_id)
                  for queue, topic_id in queues}
        ends = {key: queue.commit_offset for key, (queue, _) in by_key.items()}
        note, notes = self._progress, []
        # Find the queues to catch up, if note and index files are those of the last run.
        behind = {key: end for key, end in ends.items() if note.upto.get(key, end) < end}
        if not note.is_valid:
            behind = {}
        elif not note.is_ours({key: end for key, end in ends.items()
                               if end > by_key[key][0].cq_start}):
            notes.append("a broker, or a run with --no-index, has uploaded messages since the "
                         "index was last updated; messages that are still missing from it stay "
                         "unindexed")
            behind = {}
        elif behind and note.position is not None and not self._writer.rewind(*note.position):
            notes.append("the index files are not those of the interrupted run: up to "
                         f"{sum(end - note.upto[key] for key, end in behind.items())} messages may "
                         "be missing from the index")
            behind = {}
        # Their messages are read from the tier.
        for key in behind:
            queue, topic_id = by_key[key]
            for batch in batches(queue, note.upto[key], ends[key]):
                self.items += self._writer.put(batch, queue.name.topic, topic_id,
                                               queue.name.queue_id)
        if behind:
            self._writer.commit()
        # Now all queues are indexed up to their ends.
        note.upto.update(ends)
        note.target.update(ends)
        note.position = self._writer.position()
        note.save()
        return notes

    def intend(self, blocks: Blocks) -> None:
        """Record in the progress file which blocks are about to be uploaded."""
        with self._noting:
            for upload, block in blocks:
                key = upload.local.topic, upload.local.queue_id
                self._progress.upto.setdefault(key, upload.outcome.start)
                self._progress.target[key] = block.offset + len(block)
            self._progress.save()

    def put(self, blocks: Blocks) -> None:
        """Add the keys of uploaded messages."""
        if not blocks:
            return
        counts = [len(block) for _, block in blocks]
        begin, size, times = (np.concatenate(parts) for parts in zip(*(
            (block.begin, block.size, block.times) for _, block in blocks), strict=True))
        self.items += self._writer.put_keys(
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
        """Commit the index, then save its progress."""
        self._writer.commit()
        self._since = 0
        with self._noting:
            self._progress.upto.update(self._pending)
            self._pending = {}
            self._progress.position = self._writer.position()
            self._progress.save()


def batches(queue: FlatQueue, start: int, end: int) -> Iterator[Batch]:
    """Yield the messages with queue offsets ``[start, end)`` from the tier; skip units that do not
    point to a message.
    """
    position = start
    while position < end:
        units = queue.units(position, min(BLOCK_UNITS, end - position))
        if not len(units):
            return
        begin = units["commit_log_offset"].astype(np.int64)
        stop = begin + units["size"]
        # In a run each message begins where the one before ends.
        cuts = (np.flatnonzero(begin[1:] != stop[:-1]) + 1).tolist()
        for first, last in zip([0, *cuts], [*cuts, len(units)], strict=True):
            yield from _run(queue, begin[first:last], stop[first:last])
        position += len(units)


def _run(queue: FlatQueue, begin: Array, stop: Array) -> Iterator[Batch]:
    """Yield the contiguous messages from ``begin`` to ``stop`` (tiered offsets), in pieces."""
    first = 0
    while first < len(begin):
        start = int(begin[first])
        last = max(first + 1, int(np.searchsorted(stop, start + _PIECE, "right")))
        data = np.frombuffer(queue.commit_log.read(start, int(stop[last - 1]) - start), np.uint8)
        batch, ok = examine(data, start, begin[first:last] - start)
        if ok.any():
            yield batch if ok.all() else batch.select(np.flatnonzero(ok))
        first = last
