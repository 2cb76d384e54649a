"""A log as it would be, cut into ranges, and work on them by several processes, in order.

Like `rmqctl.store.log.ranges`, over `LogPart`s; and the calling process, which writes what comes
out, works on ranges too while it would only wait: two jobs are two processes.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.engine.dispatch.derive import Derived, deriver_for
from rmqctl.errors import JobError
from rmqctl.scan.frames import DAMAGED, Batch, Span
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.store.log.end import used_size
from rmqctl.store.log.ranges import (
    Part,
    Pool,
    end_workers,
    leave_signals_to_parent,
    signals_later,
    with_seams,
)

RANGE_SIZE = 8 << 20
_QUEUED = 4
MOST_SPANS = 100
"""Damaged spans that are kept one by one; of the others only number and length."""
_BAD_BODY = "the body does not match its CRC"


@dataclass(frozen=True, slots=True)
class PartRange:
    """Positions ``[start, end)`` of one part; ``resync``: ``start`` may be inside a frame.

    ``length``: the bytes it stands for, of a part's last range the zeros behind it too.
    """

    part: LogPart
    start: int
    end: int
    resync: bool
    length: int

    def walk(self, source: Source) -> Walk:
        """The walk over it; a frame belongs to the range in which it starts."""
        return Walk(source, self.start, self.end, resync=self.resync)

    def from_seam(self, start: int) -> Self:
        """The range with a beginning that is known to be a frame's."""
        return replace(self, start=start, resync=False)


P = TypeVar("P", bound=Part)
T = TypeVar("T")
R = TypeVar("R")
Results = Generator[tuple[PartRange, P], None, None]


def cut(parts: Sequence[LogPart], start: int = 0, end: int | None = None,
        size: int | None = None) -> Iterator[PartRange]:
    """The ranges between two physical offsets, in order; no zeros at the parts' ends.

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
        cuts = list(range(first, max(used, first + 1), size or RANGE_SIZE))
        for at, stop in zip(cuts, [*cuts[1:], used], strict=True):
            length = (stop if stop < used else max(last, stop)) - at
            yield PartRange(part, at, max(at, stop), at > first, length)


def in_order(work: Callable[[PartRange], P], ranges: Iterable[PartRange], jobs: int = 1,
             pool: Pool | None = None) -> Results[P]:
    """(range, result) in order, with sound seams.

    ``work`` must be a picklable function of the range alone. What comes out never depends on
    the number of jobs. A ``pool`` does the work instead of ``jobs`` processes. StoreIOError.
    """
    yield from with_seams(work, _results(work, ranges, jobs) if pool is None
                          else pool.run(work, ranges))


def _results(work: Callable[[PartRange], P], ranges: Iterable[PartRange],
             jobs: int) -> Iterator[tuple[PartRange, P | None]]:
    if jobs <= 1:
        for one in ranges:
            yield one, None
    else:
        yield from shared(work, ranges, jobs)


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


# -- what a rebuild takes from a range ------------------------------------------------------------


@dataclass(slots=True)
class Damage:
    """Bytes of the log that were passed over: ``spans`` are the first ones (physical offsets).

    A whole record with a wrong body CRC is a span too.
    """

    count: int = 0
    length: int = 0
    spans: list[Span] = field(default_factory=list)

    def add(self, one: Span) -> None:
        self.count += 1
        self.length += one.length
        if len(self.spans) < MOST_SPANS:
            self.spans.append(one)

    def merge(self, other: Damage) -> None:
        self.count += other.count
        self.length += other.length
        self.spans += other.spans[:MOST_SPANS - len(self.spans)]


@dataclass(slots=True)
class LogSummary:
    """What a walk over some of the log came by.

    ``last`` and ``end``: physical offsets of the last intact message and behind it, -1 without
    any; ``newest`` the greatest store time (ms), 0 without any.
    """

    messages: int = 0
    last: int = -1
    end: int = -1
    newest: int = 0
    damage: Damage = field(default_factory=Damage)

    def append(self, later: LogSummary) -> None:
        """Takes in what was found of the log behind."""
        self.messages += later.messages
        if later.messages:
            self.last, self.end = later.last, later.end
            self.newest = max(self.newest, later.newest)
        self.damage.merge(later.damage)


@dataclass(slots=True)
class DerivedRange(LogSummary):
    """What one range leads to. ``first`` and ``position``: what it covered (positions in the
    part).
    """

    first: int = 0
    position: int = 0
    derived: list[Derived] = field(default_factory=list)


def derive(settings: Settings, rows: bool, limit: int | None, one: PartRange,
           sink: Callable[[Derived], None] | None = None) -> DerivedRange:
    """The intact messages of a range that end at or before physical offset ``limit``.

    ``rows``: columns for the consumequeues are wanted. ``sink`` takes what was derived, batch by
    batch and with one numbering of topics, instead of the result. StoreIOError.
    """
    deriver = deriver_for(settings, rows=rows)
    found = DerivedRange()
    take = found.derived.append if sink is None else sink
    with one.part.open() as source:
        walk = one.walk(source)
        for batch in walk:
            intact = _intact(batch, limit, found.damage) if len(batch) else batch
            if len(intact):
                size = intact.column("total_size")
                take(deriver.derive(intact))
                found.messages += len(intact)
                found.last = int(intact.offset[-1])
                found.end = found.last + int(size[-1])
                found.newest = max(found.newest, int(intact.column("store_timestamp").max()))
            for span in batch.spans:
                if span.kind == DAMAGED:
                    found.damage.add(span)
        found.first, found.position = walk.first, walk.position
    return found


def _intact(batch: Batch, limit: int | None, damage: Damage) -> Batch:
    """The messages that may be dispatched; bodies that were changed are noted as damage."""
    good = batch.crc_ok()
    if limit is not None:
        inside = batch.offset + batch.column("total_size") <= limit
        if not inside.all():
            batch = batch.select(np.flatnonzero(inside))
            good = good[inside]
    if good.all():
        return batch
    size = batch.column("total_size")
    for row in np.flatnonzero(~good).tolist():
        damage.add(Span(DAMAGED, int(batch.offset[row]), int(size[row]), _BAD_BODY, "body_crc",
                        located=True))
    return batch.select(np.flatnonzero(good))
