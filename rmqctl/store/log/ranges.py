"""The log cut into ranges, and work on them by several processes, results in order.

A range other than a file's first starts at the first provable record at or after its cut. Where
the range before it really ends is only known when it is done: that seam must match, else the
later range is walked again from there. So results never depend on the number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

from rmqctl.errors import JobError, StoreIOError
from rmqctl.scan.source import Source
from rmqctl.scan.tolerant import TolerantWalk
from rmqctl.store.log.end import used_size

RANGE_SIZE = 64 << 20
_ENDING = (signal.SIGINT, signal.SIGTERM)
_WATCH = 0.5
"""Seconds between two looks at the parent."""


class LogFile(Protocol):
    """``size`` bytes of a log from physical offset ``base`` on: as they are, or would be."""

    @property
    def base(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def end(self) -> int: ...
    def open(self) -> AbstractContextManager[Source]: ...


F = TypeVar("F", bound=LogFile)


@dataclass(frozen=True, slots=True)
class Range(Generic[F]):
    """Positions ``[start, end)`` of one log file; ``resync``: ``start`` may be inside a record.

    ``until``: what follows up to there is zero, and this range stands for it too.
    """

    file: F
    start: int
    end: int
    until: int
    resync: bool

    @property
    def length(self) -> int:
        return self.until - self.start

    def walk(self, source: Source) -> TolerantWalk:
        """The walk over it; a frame belongs to the range in which it starts."""
        return TolerantWalk(lambda: source, self.start, self.end, resync=self.resync)

    def from_seam(self, start: int) -> Self:
        """The range with a beginning that is known to be a frame's."""
        return replace(self, start=start, resync=False)


class Part(Protocol):
    """What work on a range gives: it covered the frames of positions ``[first, position)``."""

    first: int
    position: int


P = TypeVar("P", bound=Part)
T = TypeVar("T")
R = TypeVar("R")
Results = Generator[tuple[Range[F], P], None, None]


class Pool(Protocol):
    """Where tasks are worked on: processes of this machine, or a cluster.

    A task may be run more than once, on whatever machine sees the same files; only one of its
    results comes back. So a task that writes files gives them names of their own each time and
    returns these names. Results pass through the memory of the caller: keep them small.
    """

    @property
    def jobs(self) -> int:
        """How many tasks are worked on at a time: how fine to cut."""
        ...

    def run(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
        """(task, result) in the order of the tasks. ``work`` and tasks must be picklable.

        An exception of a worker is raised here; JobError for a worker that was killed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Processes:
    """A `Pool` of worker processes; with one job it is this process that works."""

    jobs: int = 1

    def run(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
        if self.jobs > 1:
            yield from parallel(work, tasks, self.jobs)
            return
        for task in tasks:
            yield task, work(task)


def split(files: Iterable[F], size: int = RANGE_SIZE, begin: int = 0,
          stop: int | None = None) -> Iterator[Range[F]]:
    """The ranges of log files in order, each of about ``size`` bytes; no zeros at file ends.

    Only what lies between the physical offsets ``begin`` and ``stop`` (None: the end); ``begin``
    must be a frame border, or in no file. StoreIOError.
    """
    for file in files:
        if not file.size or file.end <= begin or (stop is not None and file.base >= stop):
            continue
        used = file.size
        with file.open() as source, suppress(StoreIOError):  # the work names a place that is bad
            used = used_size(source)
        until = file.size if stop is None else min(file.size, stop - file.base)
        yield from cuts(file, max(0, begin - file.base), min(used, until), until, size)


def cuts(file: F, first: int, used: int, until: int, size: int) -> Iterator[Range[F]]:
    """The ranges of one file from position ``first`` on, at least one of them.

    What lies between ``used`` and ``until`` is zero.
    """
    starts = range(first, max(used, first + 1), size)
    for start in starts:
        if start == starts[-1]:
            yield Range(file, start, max(start, used), until, start > first)
        else:
            yield Range(file, start, start + size, start + size, start > first)


def in_order(work: Callable[[Range[F]], P], ranges: Iterable[Range[F]], jobs: int = 1,
             progress: Callable[[int], None] | None = None, pool: Pool | None = None, *,
             caller_works: bool = False) -> Results[F, P]:
    """(range, result of ``work``) in order, with sound seams.

    ``work`` must be a picklable function of the range alone. With one job each range starts
    where the one before ended, without any search. ``progress`` hears of the bytes done. A
    ``pool`` does the work instead of ``jobs`` processes, of which this one may be one (see
    `parallel`). StoreIOError.
    """
    if pool is not None:
        results: Iterable[tuple[Range[F], P | None]] = pool.run(work, ranges)
    elif jobs <= 1:
        results = ((each, None) for each in ranges)
    else:
        results = parallel(work, ranges, jobs, caller_works=caller_works)
    expected = 0
    for each, result in results:
        if not each.resync:
            expected = each.start
        if result is not None and result.first == expected:
            done = result
        else:  # also where a frame of an earlier range reaches over this one, which has none then
            done = work(each.from_seam(expected))
        expected = done.position
        yield each, done
        if progress is not None:
            progress(each.length)


def parallel(work: Callable[[T], R], tasks: Iterable[T], jobs: int, *,
             caller_works: bool = False) -> Iterator[tuple[T, R]]:
    """(task, result) in the order of the tasks, worked on by ``jobs`` processes.

    Only a few more tasks than processes are under way, so memory stays flat. With
    ``caller_works`` this process is one of them: for a caller with much to do about results, it
    works where it would only wait. An exception of a worker is raised here; a worker that was
    killed is a JobError.
    """
    workers = jobs - 1 if caller_works else jobs
    ahead = 4 * workers if caller_works else 2 * workers
    most = 8 * jobs if caller_works else ahead
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, initializer=leave_signals_to_parent)
    waiting: deque[tuple[T, Future[R]]] = deque()
    rest = ((task,) for task in tasks)
    more = True
    try:
        while True:
            # As many tasks as keep the workers busy.
            while (more and len(waiting) < most
                   and sum(not future.done() for _, future in waiting) < ahead):
                if more := (taken := next(rest, None)) is not None:
                    with signals_later():  # the first one forks the workers
                        waiting.append((taken[0], pool.submit(work, taken[0])))
            if not waiting:
                return
            # The first result is not there yet: a task for this process.
            if caller_works and more and len(waiting) < most and not waiting[0][1].done():
                if more := (taken := next(rest, None)) is not None:
                    done: Future[R] = Future()
                    done.set_result(work(taken[0]))
                    waiting.append((taken[0], done))
                continue
            task, future = waiting.popleft()
            yield task, future.result()
    except BrokenProcessPool:
        raise JobError("a worker process was killed (out of memory?); "
                       "--jobs 1 needs the least") from None
    except BaseException:
        end_workers(pool)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def end_workers(pool: ProcessPoolExecutor) -> None:
    """Ends what the workers are doing: nobody wants it any more, and Ctrl-C should not wait."""
    for process in list((pool._processes or {}).values()):
        process.terminate()


@contextmanager
def signals_later() -> Iterator[None]:
    """Holds back Ctrl-C and SIGTERM: raised in the middle of a fork they would be swallowed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_parent() -> None:
    """Ctrl-C goes to the whole process group; the parent answers it and ends the workers.

    A parent that was killed cannot: then a worker ends by itself. It would wait for ever, and
    with it the lock of a store that the parent held.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        threading.Thread(target=_end_with, args=(parent.pid,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH)
    os._exit(1)
