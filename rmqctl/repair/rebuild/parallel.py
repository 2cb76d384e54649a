"""A log as it would be, cut into stretches, and work on them by several processes, in order.

Like `rmqctl.store.log.ranges`, over `LogPart`s; and the calling process, which writes what comes
out, works on stretches too while it would only wait: two jobs are two processes.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from rmqctl.errors import JobError
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.store.log.end import used_size
from rmqctl.store.log.ranges import Pool, end_workers, leave_signals_to_parent, signals_later

STRETCH = 8 << 20
_QUEUED = 4


@dataclass(frozen=True, slots=True)
class Stretch:
    """Positions ``[start, end)`` of one part; ``resync``: ``start`` may be inside a frame.

    ``length``: the bytes it stands for, of a part's last stretch the zeros behind it too.
    """

    part: LogPart
    start: int
    end: int
    resync: bool
    length: int

    def walk(self, source: Source) -> Walk:
        """The walk over it; a frame belongs to the stretch in which it starts."""
        return Walk(source, self.start, self.end, resync=self.resync)


class Result(Protocol):
    """What work on a stretch gives: it covered the frames of positions ``[first, position)``."""

    first: int
    position: int


P = TypeVar("P", bound=Result)
T = TypeVar("T")
R = TypeVar("R")
Results = Generator[tuple[Stretch, P], None, None]


def cut(parts: Sequence[LogPart], start: int = 0, end: int | None = None,
        size: int | None = None) -> Iterator[Stretch]:
    """The stretches between two physical offsets, in order; no zeros at the parts' ends.

    ``start`` must be a frame border, or not inside a part. StoreIOError.
    """
    for part in parts:
        if part.end <= start or (end is not None and part.base >= end):
            continue
        with part.open() as source:
            used = used_size(source)
        last = part.size if end is None else min(part.size, end - part.base)
        used = min(used, last)
        first = max(0, start - part.base)
        cuts = list(range(first, max(used, first + 1), size or STRETCH))
        for at, stop in zip(cuts, [*cuts[1:], used], strict=True):
            length = (stop if stop < used else max(last, stop)) - at
            yield Stretch(part, at, max(at, stop), at > first, length)


def in_order(work: Callable[[Stretch], P], stretches: Iterable[Stretch], jobs: int = 1,
             pool: Pool | None = None) -> Results[P]:
    """(stretch, result) in order, with sound seams.

    ``work`` must be a picklable function of the stretch alone. What comes out never depends on
    the number of jobs. A ``pool`` does the work instead of ``jobs`` processes. StoreIOError.
    """
    expected = 0
    for one, found in _results(work, stretches, jobs) if pool is None else pool.run(
            work, stretches):
        if not one.resync:
            expected = one.start
        if found is not None and found.first == expected:
            done = found
        else:  # also where a frame of an earlier stretch reaches over this one
            done = work(replace(one, start=expected, resync=False))
        expected = done.position
        yield one, done


def _results(work: Callable[[Stretch], P], stretches: Iterable[Stretch],
             jobs: int) -> Iterator[tuple[Stretch, P | None]]:
    if jobs <= 1:
        for one in stretches:
            yield one, None
    else:
        yield from shared(work, stretches, jobs)


def shared(work: Callable[[T], R], tasks: Iterable[T], jobs: int) -> Iterator[tuple[T, R]]:
    """(task, result) in the order of the tasks, worked on by ``jobs`` processes, this one too.

    Only a few more tasks than processes are under way, so memory stays flat. An exception of a
    worker is raised here; a worker that was killed is a JobError.
    """
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(jobs - 1, context, initializer=leave_signals_to_parent)
    waiting: deque[tuple[T, Future[R]]] = deque()
    rest = iter(tasks)
    more = True
    try:
        while True:
            while more and sum(not future.done() for _, future in waiting) < _QUEUED * (jobs - 1):
                if len(waiting) >= 2 * _QUEUED * jobs:
                    break
                try:
                    task = next(rest)
                except StopIteration:
                    more = False
                    break
                with signals_later():  # the first one forks the workers
                    waiting.append((task, pool.submit(work, task)))
            if not waiting:
                return
            if not waiting[0][1].done() and more and len(waiting) < 2 * _QUEUED * jobs:
                try:
                    task = next(rest)
                except StopIteration:
                    more = False
                else:
                    mine: Future[R] = Future()
                    mine.set_result(work(task))
                    waiting.append((task, mine))
                continue
            done, future = waiting.popleft()
            yield done, future.result()
    except BrokenProcessPool:
        raise JobError("a worker process was killed (out of memory?); "
                       "--jobs 1 needs the least") from None
    except BaseException:
        end_workers(pool)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
