"""The log divided into ranges that several threads process, with results in order.

The first range of a file starts at the start of the file. Every other range starts at the first
provable record at or after a nominal offset. The exact end of a range is known only after its scan.
If the next range does not start there, it is scanned again from there. So results never depend on
the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Generic, Protocol, Self, TypeVar

from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import Source
from rmqctl.scan.tolerant import TolerantWalk
from rmqctl.scan.walk import Sound
from rmqctl.store.log.end import used_size

RANGE_SIZE = 64 << 20


class LogFileRange(Protocol):
    """A file of the log, as it is on disk or as a repair would leave it.

    ``base``: physical offset of the first byte. ``size``: size in bytes.
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
    """Positions ``[start, end)`` of one log file.

    ``resync``: whether ``start`` may be inside a record. ``until``: the end of the zeros that
    follow ``end``; these zeros also belong to the range.
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
        """Return a scan of the range; a frame belongs to the range in which it starts."""
        return TolerantWalk(lambda: source, self.start, self.end, resync=self.resync,
                            no_stale=no_stale, sound=sound)

    def from_seam(self, start: int) -> Self:
        """Return the range with another ``start``, which is known to be the start of a frame."""
        return replace(self, start=start, resync=False)


class WorkResult(Protocol):
    """The result of processing a range; its frames are at positions ``[first, position)``."""

    first: int
    position: int


P = TypeVar("P", bound=WorkResult)
T = TypeVar("T")
R = TypeVar("R")
Results = Generator[tuple[FileRange[F], P], None, None]


class Pool(Protocol):
    """Interface of the workers that run tasks: threads of this process, or a cluster.

    A task may run more than once, on any machine that can read the same files. Only one of its
    results is used. A task that writes files must use new file names at each run, and return them.
    The caller keeps results in memory, so they should be small.
    """

    @property
    def jobs(self) -> int:
        """Return the number of tasks that run at the same time; the size of ranges depends on
        it.
        """
        ...

    def run(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
        """Yield (task, result) in the order of the tasks. ``work`` and tasks must be picklable.

        Raises: the exception of a task; JobError if a worker was killed.
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
    """Divide log files into ranges of about ``size`` bytes, in order, without the zeros at the ends
    of files.

    The ranges cover the physical offsets from ``begin`` to ``stop`` (None: the end of the log).
    ``begin`` must be a record boundary or an offset that no file contains.

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
    """Yield the ranges of one file from position ``first`` on; at least one range.

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
    """Yield (range, result of ``work``) in order; each range starts where the previous one ended.

    ``work`` must be a picklable function whose only argument is the range.
    ``progress`` is called with the number of processed bytes.
    ``pool``: does the work instead of ``jobs`` threads.

    With one job, each range starts at the exact end of the previous one, so no start is searched
    for.

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
