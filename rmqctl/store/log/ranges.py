"""The log cut into ranges, and work on them by several threads, results in order.

A range other than a file's first starts at the first provable record at or after its cut. Where
the range before it really ends is only known when it is done: that seam must match, else the
later range is walked again from there. So results never depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

from rmqctl.errors import StoreIOError
from rmqctl.scan.source import Source
from rmqctl.scan.tolerant import TolerantWalk
from rmqctl.scan.walk import Sound
from rmqctl.store.log.end import used_size

RANGE_SIZE = 64 << 20


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
class FileRange(Generic[F]):
    """Positions ``[start, end)`` of one log file; ``resync``: ``start`` may be inside a record.

    ``until``: the bytes up to there are zero, and this range covers them too.
    """

    file: F
    start: int
    end: int
    until: int
    resync: bool

    @property
    def length(self) -> int:
        return self.until - self.start

    def walk(self, source: Source, *, no_stale: bool = False,
             sound: Sound | None = None) -> TolerantWalk:
        """Return the walk over it; a frame belongs to the range in which it starts."""
        return TolerantWalk(lambda: source, self.start, self.end, resync=self.resync,
                            no_stale=no_stale, sound=sound)

    def from_seam(self, start: int) -> Self:
        """Return the range with a beginning that is known to be a frame's."""
        return replace(self, start=start, resync=False)


class WorkResult(Protocol):
    """The result of work on a range: it covered the frames of positions ``[first, position)``."""

    first: int
    position: int


P = TypeVar("P", bound=WorkResult)
T = TypeVar("T")
R = TypeVar("R")
Results = Generator[tuple[FileRange[F], P], None, None]


class Pool(Protocol):
    """The workers for tasks: threads of this process, or a cluster.

    A task may be run more than once, on any machine that sees the same files; only one of its
    results comes back. So a task that writes files gives them names of their own each time and
    returns these names. Results pass through the memory of the caller: keep them small.
    """

    @property
    def jobs(self) -> int:
        """Return how many tasks are worked on at a time, which decides how fine to cut."""
        ...

    def run(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
        """Yield (task, result) in the order of the tasks. ``work`` and tasks must be picklable.

        An exception of a task is raised here; raise JobError for a worker that was killed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Threads:
    """A `Pool` of threads of this process; with one job it is the caller's that works."""

    jobs: int = 1

    def run(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
        if self.jobs > 1:
            from rmqctl.store.log.threads import parallel

            yield from parallel(work, tasks, self.jobs)
            return
        for task in tasks:
            yield task, work(task)


def split(files: Iterable[F], size: int = RANGE_SIZE, begin: int = 0,
          stop: int | None = None) -> Iterator[FileRange[F]]:
    """Yield the ranges of log files in order, each of about ``size`` bytes; no zeros at file ends.

    Only what lies between the physical offsets ``begin`` and ``stop`` (None: the end); ``begin``
    must be a frame border, or in no file. Raise StoreIOError.
    """
    for file in files:
        if not file.size or file.end <= begin or (stop is not None and file.base >= stop):
            continue
        used = file.size
        with file.open() as source, suppress(StoreIOError):  # the work names a place that is bad
            used = used_size(source)
        until = file.size if stop is None else min(file.size, stop - file.base)
        yield from cuts(file, max(0, begin - file.base), min(used, until), until, size)


def cuts(file: F, first: int, used: int, until: int, size: int) -> Iterator[FileRange[F]]:
    """Yield the ranges of one file from position ``first`` on, at least one of them.

    What lies between ``used`` and ``until`` is zero.
    """
    starts = range(first, max(used, first + 1), size)
    for start in starts:
        if start == starts[-1]:
            yield FileRange(file, start, max(start, used), until, start > first)
        else:
            yield FileRange(file, start, start + size, start + size, start > first)


def in_order(work: Callable[[FileRange[F]], P], ranges: Iterable[FileRange[F]], jobs: int = 1,
             progress: Callable[[int], None] | None = None,
             pool: Pool | None = None) -> Results[F, P]:
    """Return (range, result of ``work``) in order, with sound seams.

    ``work`` must be a picklable function of the range alone. With one job each range starts where
    the one before ended, without any search. ``progress`` is told of the bytes done. A ``pool``
    does the work instead of ``jobs`` threads. Raise StoreIOError.
    """
    if pool is None and jobs > 1:
        pool = Threads(jobs)
    results: Iterable[tuple[FileRange[F], P | None]] = (
        ((part, None) for part in ranges) if pool is None else pool.run(work, ranges))
    expected = 0
    for part, result in results:
        if not part.resync:
            expected = part.start
        if result is not None and result.first == expected:
            done = result
        else:  # also where a frame of an earlier range reaches over this one, which has none then
            done = work(part.from_seam(expected))
        expected = done.position
        yield part, done
        if progress is not None:
            progress(part.length)
