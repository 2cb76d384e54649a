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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

from rmqctl.errors import JobError
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile
from rmqctl.store.log.end import used_size

RANGE_SIZE = 64 << 20
_ENDING = (signal.SIGINT, signal.SIGTERM)
_WATCH = 0.5
"""Seconds between two looks at the parent."""


@dataclass(frozen=True, slots=True)
class Range:
    """Positions ``[start, end)`` of one log file; ``resync``: ``start`` may be inside a record.

    ``last``: what follows up to the file's end is zero.
    """

    file: StoreFile
    start: int
    end: int
    resync: bool
    last: bool

    @property
    def length(self) -> int:
        return self.file.size - self.start if self.last else self.end - self.start

    def from_seam(self, start: int) -> Self:
        """The range with a beginning that is known to be a frame's."""
        return replace(self, start=start, resync=False)


class Part(Protocol):
    """What work on a range gives: it covered the frames of positions ``[first, position)``."""

    first: int
    position: int


class Seamed(Protocol):
    """A range that may begin inside a frame (``resync``); a file's first one does not."""

    @property
    def start(self) -> int: ...
    @property
    def resync(self) -> bool: ...
    def from_seam(self, start: int) -> Self: ...


S = TypeVar("S", bound=Seamed)
P = TypeVar("P", bound=Part)
T = TypeVar("T")
R = TypeVar("R")


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


def split(files: Iterable[StoreFile], size: int = RANGE_SIZE) -> Iterator[Range]:
    """The ranges of log files in order, each of about ``size`` bytes; no zeros at file ends."""
    for file in files:
        if not file.size:
            continue
        with file.open() as source:
            used = used_size(source)
        cuts = list(range(0, max(used, 1), size))
        for start, end in zip(cuts, [*cuts[1:], used], strict=True):
            yield Range(file, start, end, start > 0, end == used)


def walk(part: Range, source: FileSource) -> Walk:
    """The walk over a range; a frame belongs to the range in which it starts."""
    return Walk(source, part.start, part.end, resync=part.resync)


def in_order(work: Callable[[Range], P], ranges: Iterable[Range], jobs: int = 1,
             progress: Callable[[int], None] | None = None,
             pool: Pool | None = None) -> Iterator[P]:
    """The results of ``work`` on the ranges, in order, with sound seams.

    ``work`` must be a picklable function of the range alone. With one job each range starts
    where the one before ended, without any search. ``progress`` hears of the bytes done. A
    ``pool`` does the work instead of ``jobs`` processes.
    """
    for one, done in with_seams(work, _results(work, ranges, jobs, pool)):
        yield done
        if progress is not None:
            progress(one.length)


def with_seams(work: Callable[[S], P],
               results: Iterable[tuple[S, P | None]]) -> Iterator[tuple[S, P]]:
    """(range, result) with sound seams: what is missing, or does not begin where the range before
    ended, is worked on here.
    """
    expected = 0
    for one, result in results:
        if not one.resync:
            expected = one.start
        if result is not None and result.first == expected:
            done = result
        else:  # also where a frame of an earlier range reaches over this one, which has none then
            done = work(one.from_seam(expected))
        expected = done.position
        yield one, done


def _results(work: Callable[[Range], P], ranges: Iterable[Range], jobs: int,
             pool: Pool | None) -> Iterator[tuple[Range, P | None]]:
    if pool is not None:
        yield from pool.run(work, ranges)
    elif jobs <= 1:
        for one in ranges:
            yield one, None
    else:
        yield from parallel(work, ranges, jobs)


def parallel(work: Callable[[T], R], tasks: Iterable[T], jobs: int) -> Iterator[tuple[T, R]]:
    """(task, result) in the order of the tasks, worked on by ``jobs`` processes.

    At most twice as many tasks as processes are under way, so memory stays flat. An exception
    of a worker is raised here; a worker that was killed is a JobError.
    """
    context = multiprocessing.get_context("fork")
    waiting: deque[tuple[T, Future[R]]] = deque()
    pool = ProcessPoolExecutor(jobs, context, initializer=leave_signals_to_parent)
    try:
        for task in tasks:
            with signals_later():  # the first one forks the workers
                waiting.append((task, pool.submit(work, task)))
            if len(waiting) >= 2 * jobs:
                done, result = waiting.popleft()
                yield done, result.result()
        while waiting:
            done, result = waiting.popleft()
            yield done, result.result()
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
