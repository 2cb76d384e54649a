"""The log divided into ranges that several threads process, with results in order.

Each range except a file's first starts at the first provable record at or after a nominal offset.
The real end of the previous range is known only when that range is done; if it differs from the
start of the next range, the next range is scanned again from there. So results never depend on the
number of threads.
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


class LogFileRange(Protocol):
    """``size`` bytes of a log from physical offset ``base`` on, as they are or as a repair would
    leave them.
    """

    @property
    def base(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def end(self) -> int: ...
    def open(self) -> AbstractContextManager[Source]: ...


F = TypeVar("F", bound=LogFileRange)


@dataclass(frozen=True, slots=True)
class FileRange(Generic[F]):
    """Positions ``[start, end)`` of one log file; ``resync``: whether ``start`` may be inside a
    record.

    ``until``: the end of zeros after ``end``, which this range covers too.
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
        """Return the scan of the range; a frame belongs to the range in which it starts."""
        return TolerantWalk(lambda: source, self.start, self.end, resync=self.resync,
                            no_stale=no_stale, sound=sound)

    def from_seam(self, start: int) -> Self:
        """Return the range with a ``start`` that is known to be the start of a frame."""
        return replace(self, start=start, resync=False)


class WorkResult(Protocol):
    """The result of a range, with the positions ``[first, position)`` of the frames that were
    processed.
    """

    first: int
    position: int


P = TypeVar("P", bound=WorkResult)
T = TypeVar("T")
R = TypeVar("R")
Results = Generator[tuple[FileRange[F], P], None, None]


class Pool(Protocol):
    """Interface of the workers that run tasks: threads of this process, or a cluster.

    A task may run more than once, on any machine that sees the same files; only one of its results
    is used. So a task that writes files gives them new names each time and returns these names.
    Results pass through the memory of the caller: keep them small.
    """

    @property
    def jobs(self) -> int:
        """Return how many tasks run at a time, which determines the size of ranges."""
        ...

    def run(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
        """Yield (task, result) in the order of the tasks. ``work`` and tasks must be picklable.

        Raises: the exception of a task, JobError for a killed worker.
        """
        ...


@dataclass(frozen=True, slots=True)
class Threads:
    """A `Pool` of threads of this process; with one job the caller's thread does the work."""

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
    """Yield the ranges of log files in order, each of about ``size`` bytes, without zeros at file
    ends.

    They cover physical offsets from ``begin`` to ``stop`` (None: the end). ``begin`` must be a
    frame border, or in no file.

    Raises: StoreIOError.
    """
    for file in files:
        if not file.size or file.end <= begin or (stop is not None and file.base >= stop):
            continue
        used = file.size
        with file.open() as source, suppress(StoreIOError):  # the work reports the bad place
            used = used_size(source)
        until = file.size if stop is None else min(file.size, stop - file.base)
        yield from cuts(file, max(0, begin - file.base), min(used, until), until, size)


def cuts(file: F, first: int, used: int, until: int, size: int) -> Iterator[FileRange[F]]:
    """Yield the ranges of one file from position ``first`` on, at least one of them.

    Bytes from ``used`` to ``until`` are zero.
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
    """Return (range, result of ``work``) in order, with matching seams.

    ``work`` must be a picklable function of the range alone. With one job each range starts at the
    end of the previous one, without any search. ``progress`` is called with the number of bytes
    done. A ``pool`` does the work instead of ``jobs`` threads.

    Raises: StoreIOError.
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
        else:  # also if a frame of an earlier range covers this entire range
            done = work(part.from_seam(expected))
        expected = done.position
        yield part, done
        if progress is not None:
            progress(part.length)
