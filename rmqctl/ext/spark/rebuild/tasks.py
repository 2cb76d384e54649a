"""The tasks of a rebuild, which read the log and write queues and index.

A task may run several times, on any worker. Each run gives new names to its files, which are below
the scratch folder. The driver uses only the files whose names it receives.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import field, replace

from rmqctl.broker.settings import Settings
from rmqctl.engine.dispatch.derive import Derived
from rmqctl.engine.dispatch.reput import Dispatcher
from rmqctl.errors import StoreIOError, noting_refusals
from rmqctl.export.staging import refuse_unseen
from rmqctl.ext.spark.rebuild.groups import (
    INDEX_COLUMNS,
    ROW_COLUMNS,
    Grouping,
    Splitter,
    index_columns,
    rows_of,
    there,
)
from rmqctl.ext.spark.rebuild.index_tasks import IndexTask, Segment, begin, write_index
from rmqctl.ext.spark.rebuild.spool import SpoolWriter, segments
from rmqctl.files.durable import failed
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.rebuild import seed
from rmqctl.repair.rebuild.derived_range import LogSummary, derive
from rmqctl.repair.rebuild.kept import KeptEntries
from rmqctl.repair.rebuild.seed import OldUnits
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.scan.overlay import LogPart
from rmqctl.store.files import StoreFile
from rmqctl.store.log.ranges import FileRange

MAX_HELD = 32 << 20
"""Number of bytes of derived columns that a task collects in memory before it writes them to a
spool.
"""


@dataclass(frozen=True, slots=True)
class RebuildJob:
    """Settings of all tasks of a rebuild.

    * ``folder``: the folder below the scratch folder for spools and the output of tasks
    * ``rows``: whether to rebuild the consume queues
    * ``settings.message_index``: whether to rebuild the index
    """

    root: str
    folder: str
    settings: Settings
    grouping: Grouping
    rows: bool
    log_min: int
    log_end: int | None
    batch_topics: frozenset[str]

    @property
    def manifest(self) -> str:
        """Return the path of the manifest, which lists the valid spools in log order."""
        return os.path.join(self.folder, "spools")


# -- reading the log ------------------------------------------------------------------------------


@dataclass(slots=True)
class SpooledRange(LogSummary):
    """Result for a range of the log: a `DerivedRange` whose columns are in a spool.

    * ``spool``, ``size``: name and size in bytes of the spool
    * ``logics``: store time of the last message with a consume queue entry; 0 if no message has one
    * ``keys``: number of index entries in the spool
    """

    first: int = 0
    position: int = 0
    logics: int = 0
    keys: int = 0
    spool: str = ""
    size: int = 0
    refused: list[str] = field(default_factory=list)


def spool(job: RebuildJob, part: FileRange[LogPart]) -> SpooledRange:
    """Derive the consume queue entries and index entries of a range, and write them to a spool by
    group.
    Raises: StoreIOError.
    """
    with noting_refusals() as refused:
        writer = SpoolWriter(job.folder)
        try:
            sink = _SpoolSink(job, writer)
            with KeptEntries.of(job.root, job.settings) as kept:
                derived = derive(job.settings, job.rows, job.log_end, kept, part, sink.take)
            sink.flush()
            size = writer.finish()
        finally:
            writer.close()
    return SpooledRange(derived.messages, derived.last, derived.end, derived.newest, derived.damage,
                        derived.first, derived.position, sink.logics, sink.keys,
                        os.path.basename(writer.path), size, refused)


class _SpoolSink:
    """Collects batches in memory, so that the spool has few long segments."""

    def __init__(self, job: RebuildJob, writer: SpoolWriter) -> None:
        self._job, self._writer = job, writer
        self._splitter = Splitter(job.grouping)
        self._held: list[Derived] = []
        self._size = 0
        self.logics = self.keys = 0

    def take(self, derived: Derived) -> None:
        self._held.append(derived)
        self._size += sum(column.nbytes for column in _arrays(derived))
        rowed = derived.rowed.nonzero()[0]
        if len(rowed):
            self.logics = int(derived.store_timestamp[rowed[-1]])
        if self._size >= MAX_HELD:
            self.flush()

    def flush(self) -> None:
        if self._held:
            if self._job.rows:
                for group, columns in self._splitter.split(self._held):
                    self._writer.add(group, columns)
            keys = index_columns(self._held)
            if keys is not None:
                self.keys += len(keys[2])
                self._writer.add(self._job.grouping.index, keys)
        self._held, self._size = [], 0


def _arrays(derived: Derived) -> Iterator[Array]:
    yield from (derived.topic, derived.queue_id, derived.queue_offset, derived.physical,
                derived.size,
                derived.store_timestamp, derived.tags)
    if derived.key_row is not None and derived.key_hash is not None:
        yield from (derived.key_row, derived.key_hash)
    if derived.further is not None:
        yield from (derived.further.message, derived.further.name, derived.further.offset)
    if derived.inner is not None:
        yield from derived.inner


# -- writing queues and index ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """The task that writes the queues of a group. ``batches``: the batch queue files of these
    queues, as returned by `expired_batches`.
    """

    number: int
    batches: tuple[tuple[StoreFile, int], ...] = ()


@dataclass(slots=True)
class TaskOutput:
    """Result of a task. ``folder``: name of the task's folder in the job's folder.

    The numbers have the same meaning as in `Rebuilt`.
    """

    folder: str
    gaps: int = 0
    refused: int = 0
    unplaceable: int = 0
    index_timestamp: int = 0
    next_offsets: dict[QueueKey, int] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    repeated: int = 0


def make(job: RebuildJob, task: QueueGroup | IndexTask) -> TaskOutput:
    """Write the queues of a group, or index files, from the spools in log order.
    Raises: StoreIOError.
    """
    refuse_unseen(job.manifest)
    name = uuid.uuid4().hex
    try:
        os.mkdir(os.path.join(job.folder, name))  # no parents: without them the driver gave up
    except OSError as error:
        raise failed(error, os.path.join(job.folder, name), "create the folder") from None
    with noting_refusals() as refused, Scratch(job.folder, name, keep=True) as scratch:
        outcome = (_make_group(job, task, scratch) if isinstance(task, QueueGroup)
                   else _make_index(job, task, scratch))
    outcome.folder, outcome.troubles = name, refused
    return outcome


def _make_group(job: RebuildJob, group: QueueGroup, scratch: Scratch) -> TaskOutput:
    for file, used in group.batches:
        seed.seed_batch(job.root, file, used, scratch)
    recall = OldUnits(job.root) if job.settings.consumequeue_ext else None
    dispatcher = Dispatcher(
        scratch.root, replace(job.settings, message_index=False), lambda: 0,
        job.batch_topics.__contains__, wanted=lambda key: job.grouping.of(key) == group.number,
        recall=recall)
    with ExitStack() as held:
        held.callback(dispatcher.close)
        for columns in _segments(job, _spools(job), group.number, ROW_COLUMNS):
            dispatcher.apply(rows_of(columns))
        outcome = TaskOutput("", dispatcher.gaps, dispatcher.refused, dispatcher.unplaceable, 0,
                             dispatcher.next_offsets(), repeated=dispatcher.repeated)
    seed.take_over(job.root, scratch, job.settings.consumequeue_file_size, job.log_min)
    return outcome


def _make_index(job: RebuildJob, index_task: IndexTask, scratch: Scratch) -> TaskOutput:
    spools = _spools(job)
    first, key_row = begin([keys for _, keys in spools], index_task)

    def read() -> Iterator[Segment]:
        for columns in _segments(job, spools[first:], job.grouping.index, INDEX_COLUMNS):
            physical, when, row, key_hash = map(there, columns)
            yield physical, when, row, key_hash

    return TaskOutput("", index_timestamp=write_index(job.settings, job.log_min, index_task, read(),
                                                      key_row,
                                                      scratch))


def _spools(job: RebuildJob) -> list[tuple[str, int]]:
    """Return the name and the number of index keys of each spool in the manifest, in log order."""
    try:
        with open(job.manifest, encoding="ascii") as listed:
            return [(name, int(keys)) for name, keys in map(str.split, listed)]
    except OSError as error:
        raise StoreIOError.from_oserror(error, job.manifest, "read") from None


def _segments(job: RebuildJob, spools: Iterable[tuple[str, int]], group: int,
              count: int) -> Iterator[list[Array | None]]:
    """Yield the segments of a group in log order."""
    for name, _ in spools:
        path = os.path.join(job.folder, name)
        refuse_unseen(path)
        yield from segments(path, group, count)
