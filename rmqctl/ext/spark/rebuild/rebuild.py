"""Rebuild consume queues and index from the log on a pool of workers.

The resulting files are identical to those of `rmqctl.repair.rebuild.rebuild.rebuild`. The work has
three parts:

* A task for each range of the log writes derived entries to a spool, by group of queues.
* Further tasks write the queues of a group, or some index files, from the spools.
* The driver checks the boundaries between ranges, sums the results, and moves folders.

All workers must see the stores and the scratch folder at the same paths. Spools need about 60 bytes
of the scratch folder's disk per message.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from rmqctl.broker.settings import Settings
from rmqctl.engine.dispatch.index import next_name
from rmqctl.errors import StoreIOError
from rmqctl.ext.spark.rebuild.groups import Grouping
from rmqctl.ext.spark.rebuild.index_tasks import IndexTask, index_tasks, shape_of
from rmqctl.ext.spark.rebuild.tasks import (
    QueueGroup,
    RebuildJob,
    SpooledRange,
    TaskOutput,
    make,
    spool,
)
from rmqctl.files.durable import failed, make_folders, move
from rmqctl.formats.local import names
from rmqctl.repair.plan import Plan, Watch
from rmqctl.repair.rebuild import index, seed
from rmqctl.repair.rebuild.index import Expired
from rmqctl.repair.rebuild.rebuild import (
    BOTH,
    CONSUMEQUEUE,
    INDEX,
    RebuildProgress,
    Rebuilt,
    log_size,
    wanted_parts,
)
from rmqctl.repair.recover import RecoverOptions, plan_recover
from rmqctl.repair.scratch import DERIVED, Scratch
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.overlay import LogPart
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.log.ranges import Pool, in_order, split
from rmqctl.store.store import Store

FOLDER = "pipeline"
"""Name of the folder in the scratch folder for spools and the output of tasks."""
_STEP = 8 << 20
_MIN_RANGE, _MAX_RANGE = 16 << 20, 1 << 30
_TASKS_PER_JOB = 4
_MAX_GROUPS = 1024
_READING = 0.7
"""Share of the progress bar for reading the log."""


def plan_rebuild(root: str, scratch: Scratch, options: RecoverOptions, watch: Watch, pool: Pool, *,
                 partitions: int | None = None) -> Plan:
    """Return a plan of `plan_recover` that repairs only the consume queues and the index of a
    store, which are rebuilt on ``pool``. ``options.only`` can restrict the plan to one of the two.

    ``partitions``: number of ranges of the log.
    Raises: the errors of `plan_recover`.
    """
    range_size = None if partitions is None else max(1, -(-log_bytes(root, options) // partitions))
    making = partial(rebuild_on, pool, range_size=range_size)
    return plan_recover(root, scratch, replace(options, only=options.only & BOTH), watch, making)


def rebuild_on(pool: Pool, parts: Sequence[LogPart], root: str, settings: Settings,
               scratch: Scratch, *, only: Collection[str] = BOTH, topic: str | None = None,
               queue: int | None = None, jobs: int = 1,  # noqa: ARG001  # the pool has its own
               progress: Callable[[int], None] | None = None,
               batch_topics: Collection[str] = frozenset(), log_end: int | None = None,
               range_size: int | None = None, groups: int | None = None) -> Rebuilt:
    """Rebuild like `rmqctl.repair.rebuild.rebuild.rebuild`; reuse no files of an interrupted run.

    ``range_size``: number of bytes of the log that a task reads (default: depends on log and pool).
    ``groups``: number of tasks that write queues. The two values do not change the result.
    Raises: StoreIOError, also if a worker does not see the driver's files.
    """
    rebuild = _PoolRebuild(pool, parts, root, settings, scratch,
                           wanted_parts(only, topic, settings), topic, queue,
                           frozenset(batch_topics), log_end, groups)
    return rebuild.rebuilt(range_size, _Share(progress, log_size(parts, log_end)))


def log_bytes(root: str, options: RecoverOptions) -> int:
    """Return the size of a store's log in bytes.
    Raises: StoreIOError, NotAStoreError, UnsupportedError for a layout that cannot be rebuilt.
    """
    with Store.open(root, options.commitlog_dirs, options.sizes) as store:
        store.layout.require_writable(root, options.writes, made_anew=True)
        return sum(file.size for file in store.log.files)


def default_range_size(size: int, jobs: int) -> int:
    """Return the number of bytes of the log that a task reads.

    Each worker gets several tasks, as far as the limits on the size of a task allow.
    """
    per_task = -(-size // (_TASKS_PER_JOB * max(jobs, 1)))
    step = _STEP
    return max(_MIN_RANGE, min(_MAX_RANGE, -(-per_task // step) * step))


class _Share:
    """Progress of a rebuild in bytes, from 0 to the size of the log.

    Reading the log accounts for the share `_READING`, writing the files for the rest.
    """

    def __init__(self, progress: Callable[[int], None] | None, total: int) -> None:
        self._progress, self._total, self._reported, self._read = progress, total, 0, 0

    def read(self, count: int) -> None:
        self._read += count
        self._tell(_READING * self._read)

    def written(self, done: int, tasks: int) -> None:
        self._tell(self._total * (_READING + (1 - _READING) * done / tasks))

    def _tell(self, upto: float) -> None:
        more = min(int(upto), self._total) - self._reported
        if self._progress is not None and more > 0:
            self._progress(more)
            self._reported += more


class _PoolRebuild:
    def __init__(self, pool: Pool, parts: Sequence[LogPart], root: str, settings: Settings,
                 scratch: Scratch, wanted: frozenset[str], topic: str | None, queue: int | None,
                 batch_topics: frozenset[str], log_end: int | None, groups: int | None) -> None:
        self._pool, self._scratch = pool, scratch
        self._parts = [part if part.path is None else replace(part, path=os.path.abspath(part.path))
                       for part in parts]
        self._root, self._settings = root, settings
        self._only, self._topic, self._queue = wanted, topic, queue
        self._log_end = log_end
        self._log_min = parts[0].base if parts else 0
        self._folder = scratch.path(FOLDER)
        count = max(1, min(groups or self._groups(), _MAX_GROUPS))
        self._grouping = Grouping(count, topic, queue, settings.lmq)
        self._job = RebuildJob(os.path.abspath(root), os.path.abspath(self._folder),
                               replace(settings, message_index=INDEX in wanted), self._grouping,
                               CONSUMEQUEUE in wanted, self._log_min, log_end, batch_topics)

    def _groups(self) -> int:
        return 2 * self._pool.jobs if self._pool.jobs > 1 else 1

    def rebuilt(self, range_size: int | None, share: _Share) -> Rebuilt:
        # Start with empty folders: an interrupted run may have left files in them.
        self._last_index = ""
        self._scratch.clear()
        _remove(self._folder)
        make_folders(self._folder, durable=False)
        # Read the log, then write queues and index; intermediate files are always removed.
        try:
            read = self._read(range_size, share)
            expired = Expired()
            if INDEX in self._only:
                expired = index.expired(self._job.root, shape_of(self._settings),
                                                self._log_min)
            indexes = self._index_tasks(expired, read.keys)
            outcomes = self._write(indexes, share)
        finally:
            _remove(self._folder)
        # Figures of the log come from reading tasks, figures of rows from writing tasks.
        done = RebuildProgress(read.messages, read.last, read.end, read.newest, read.damage,
                               logics=read.logics)
        next_offsets: dict[QueueKey, int] = {}
        for written in outcomes:
            done.gaps += written.gaps
            done.refused += written.refused
            done.unplaceable += written.unplaceable
            done.repeated += written.repeated
            next_offsets.update(written.next_offsets)
        return Rebuilt.of(
            done, root=self._root, scratch=self._scratch, settings=self._job.settings,
            only=self._only, topic=self._topic, queue=self._queue, log_min=self._log_min,
            log_end=self._log_end, next_offsets=next_offsets, expired=expired, parts=self._parts,
            index_timestamp=outcomes[len(indexes) - 1].index_timestamp if indexes else 0)

    # -- reading ----------------------------------------------------------------------------------

    def _read(self, range_size: int | None, share: _Share) -> SpooledRange:
        """Read the log into spools, write the names of the spools to the manifest, and return the
        sum of all results.
        """
        size = range_size or default_range_size(log_size(self._parts, self._log_end),
                                                self._pool.jobs)
        total = SpooledRange()
        ranges = split(self._parts, size, self._log_min, self._log_end)
        try:
            with open(self._job.manifest, "x", encoding="ascii") as manifest, closing(
                    in_order(partial(spool, self._job), ranges, pool=self._pool)) as results:
                for part, spooled in results:
                    _refuse_blind(spooled.refused)
                    self._check_spool(spooled)
                    manifest.write(f"{spooled.spool} {spooled.keys}\n")
                    _add(total, spooled)
                    share.read(part.length)
        except OSError as error:
            raise failed(error, self._job.manifest, "write") from None
        return total

    def _check_spool(self, spooled: SpooledRange) -> None:
        """Raise StoreIOError if the driver does not see a worker's spool."""
        path = os.path.join(self._folder, spooled.spool)
        try:
            size = os.stat(path).st_size
        except OSError:
            size = -1
        if size != spooled.size:
            raise StoreIOError(f"{path}: written by a worker, but the driver does not see it; "
                               "workers and driver must see the stores and the scratch folder at "
                               "the same paths")

    # -- writing ----------------------------------------------------------------------------------

    def _index_tasks(self, expired: Expired, entries: int) -> list[IndexTask]:
        if INDEX not in self._only:
            return []
        return index_tasks(expired, shape_of(self._settings), entries, self._grouping.count)

    def _write(self, indexes: list[IndexTask], share: _Share) -> list[TaskOutput]:
        """Run the tasks that write queues and index; return their results, those of index tasks
        first.
        """
        tasks: list[QueueGroup | IndexTask] = [*indexes, *self._group_tasks()]
        outcomes: list[TaskOutput] = []
        with _closing(self._pool.run(partial(make, self._job), tasks)) as results:
            for _, outcome in results:
                _refuse_blind(outcome.troubles)
                self._take(outcome)
                outcomes.append(outcome)
                share.written(len(outcomes), len(tasks))
        return outcomes

    def _group_tasks(self) -> Iterable[QueueGroup]:
        if CONSUMEQUEUE not in self._only:
            return
        seeds: dict[int, list[tuple[StoreFile, int]]] = {}
        for file, used in seed.expired_batches(
                self._job.root, self._settings.batch_consumequeue_file_size, self._log_min):
            folder, queue_id = os.path.split(os.path.dirname(file.path))
            key = os.path.basename(folder), int(queue_id)
            seeds.setdefault(self._grouping.of(key), []).append((file, used))
        for number in range(self._grouping.count):
            yield QueueGroup(number, tuple(seeds.get(number, ())))

    def _take(self, outcome: TaskOutput) -> None:
        """Move the files of a task (complete queues, or index files) to their final paths in the
        scratch folder.
        """
        for kind in DERIVED:
            top = os.path.join(self._folder, outcome.folder, kind)
            if kind == INDEX:
                for file in listing(top, names.INDEX_DIGITS).files:
                    # The order of names must be the order of age, whatever the workers' clocks.
                    if file.name <= self._last_index:
                        self._last_index = next_name(self._last_index)
                    else:
                        self._last_index = file.name
                    move(file.path, self._scratch.path(kind, self._last_index), durable=False)
                continue
            for topic in listing(top).folders:
                for queue in listing(os.path.join(top, topic)).folders:
                    move(os.path.join(top, topic, queue), self._scratch.path(kind, topic, queue),
                         durable=False)


def _add(total: SpooledRange, spooled: SpooledRange) -> None:
    """Add the result of a range to the sum of the results of all earlier ranges."""
    total.append(spooled)
    total.logics = spooled.logics or total.logics
    total.keys += spooled.keys


def _refuse_blind(refused: Sequence[str]) -> None:
    """Raise StoreIOError if a worker continued although it could not read a file.

    A plan must not be based on an incomplete log.
    """
    if refused:
        raise StoreIOError(refused[0])


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _closing(results: Iterator[Any]) -> AbstractContextManager[Any]:
    """Return a context manager that stops the running tasks on exit, if the iterator supports
    it.
    """
    return closing(results) if isinstance(results, Generator) else nullcontext(results)
