"""What is known of lost messages: rows of consumequeues that lead into damaged bytes, and gaps.

Rows are only read where the log itself lacks queue offsets (holes), so a store of any size costs
no more than what is lost. A row counts when it is consistent: its queue offset is missing in the
log, and its place lies between those of the queue's neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.formats.consume_queue import FILLER
from rmqctl.repair.salvage_runs import Run, Runs
from rmqctl.repair.salvage_survey import Region
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.store.batch_queue import BatchQueue
from rmqctl.store.consume_queue import ConsumeQueue, valid
from rmqctl.store.store import Store

ENDLESS = 1 << 62
_MOST_RUNS = 400


@dataclass(frozen=True, slots=True)
class Hole:
    """Queue offsets ``[first, end)`` which the log lacks.

    A message of them can only lie behind physical offset ``low`` and before ``high``.
    """

    first: int
    end: int
    low: int
    high: int

    @property
    def inner(self) -> bool:
        """Whether messages of the queue lie on both sides: then all of them were there once."""
        return self.low >= 0 and self.high < ENDLESS


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A consumequeue row of a hole. ``count``: queue offsets it covers (batch queues: several).

    ``time``: the store time a batch queue's row holds.
    """

    key: QueueKey
    queue_offset: int
    physical: int
    size: int
    count: int = 1
    batch: bool = False
    time: int | None = None


@dataclass(slots=True)
class Evidence:
    """``rows`` lead into damaged regions, ``astray`` elsewhere; ``ahead``: behind the log's end."""

    rows: list[FoundRow] = field(default_factory=list)
    astray: list[FoundRow] = field(default_factory=list)
    ahead: int = 0
    unreadable: list[str] = field(default_factory=list)


def chain(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """(runs that follow each other with growing queue offsets, runs that do not fit between).

    The chain is the one with the most messages. A topic that was deleted and made again starts
    at 0 anew; what lies before that is no part of today's queue.
    """
    start = 0
    for at, run in enumerate(runs):
        if at and run.first == 0 and (run.end > 1 or at == len(runs) - 1):
            start = at
    runs = runs[start:]
    if len(runs) < 2 or len(runs) > _MOST_RUNS:
        return list(runs), []
    best: list[tuple[int, int]] = []
    for at, run in enumerate(runs):
        weight, before = max(((best[other][0], other) for other in range(at)
                              if runs[other].end <= run.first), default=(0, -1))
        best.append((weight + run.end - run.first, before))
    at = max(range(len(runs)), key=lambda one: (best[one][0], one))
    kept = []
    while at >= 0:
        kept.append(at)
        at = best[at][1]
    return ([runs[one] for one in reversed(kept)],
            [run for one, run in enumerate(runs) if one not in set(kept)])


def holes(runs: Sequence[Run]) -> list[Hole]:
    """The holes before, between and behind the runs of a queue; the last one is endless."""
    if not runs:
        return [Hole(0, ENDLESS, -1, ENDLESS)]
    found = [Hole(0, runs[0].first, -1, runs[0].low)] if runs[0].first > 0 else []
    found += [Hole(a.end, b.first, a.high, b.low)
              for a, b in pairwise(runs) if a.end < b.first]
    return [*found, Hole(runs[-1].end, ENDLESS, runs[-1].high, ENDLESS)]


class Gatherer:
    """Reads the rows of the holes of all queues of a store."""

    def __init__(self, store: Store, runs: Runs, regions: Sequence[Region], log_end: int) -> None:
        self._store, self._runs, self._end = store, runs, log_end
        self._starts = [one.start for one in regions]
        self._ends = [one.end for one in regions]
        self._low = store.log.min_offset
        self.holes: dict[QueueKey, list[Hole]] = {}
        self.misfits: dict[QueueKey, list[Run]] = {}

    def gather(self) -> Evidence:
        """A queue that cannot be read is told in ``unreadable``."""
        found = Evidence()
        keys = {*self._runs.keys, *self._store.queues, *self._store.batch_queues}
        for key in sorted(keys):
            kept, misfits = chain(self._runs.of(key))
            self.holes[key] = holes(kept)
            if misfits:
                self.misfits[key] = misfits
            try:
                if key in self._store.queues:
                    with closing(self._store.queues[key]) as queue:
                        self._take(found, list(self._plain(key, queue)))
                if key in self._store.batch_queues:
                    self._take(found, list(self._batched(key, self._store.batch_queues[key])))
            except StoreIOError as error:
                found.unreadable.append(str(error))
        return found

    def _plain(self, key: QueueKey, queue: ConsumeQueue) -> Iterator[FoundRow]:
        if not queue.files:
            return
        end = queue.disk_end
        filler = np.array(tuple(FILLER), queue.units(0, 0).dtype)
        for hole in self.holes[key]:
            columns: list[tuple[Array, Array, Array]] = []
            first = max(hole.first, queue.first_index)
            for at, rows in queue.pages(first, min(hole.end, end)):
                physical = rows["physical_offset"].astype(np.int64)
                good = valid(rows) & (rows != filler) & (physical >= self._low)
                # Its neighbours' own places too: a neighbour may be the one that is wrong.
                good &= (physical >= hole.low) & (physical <= hole.high)
                kept = np.flatnonzero(good)
                columns.append((kept + at, physical[kept], rows["size"][kept].astype(np.int64)))
            if not columns:
                continue
            offset, physical, size = (np.concatenate(one) for one in zip(
                *columns, strict=True))
            for row in ascending(physical):
                yield FoundRow(key, int(offset[row]), int(physical[row]), int(size[row]))

    def _batched(self, key: QueueKey, queue: BatchQueue) -> Iterator[FoundRow]:
        rows = queue.all_used()
        base = rows["msg_base_offset"].astype(np.int64)
        end = base + rows["batch_size"]
        physical = rows["physical_offset"].astype(np.int64)
        for hole in self.holes[key]:
            inside = (base >= hole.first) & (end <= hole.end) & (physical > hole.low)
            # The message before the hole may have lost the number of its queue offsets.
            inside |= (base < hole.first) & (end > hole.first) & (physical == hole.low)
            kept = np.flatnonzero(inside & (physical < hole.high) & (physical >= self._low))
            for at in kept[ascending(physical[kept])].tolist():
                yield FoundRow(key, int(base[at]), int(physical[at]), int(rows["size"][at]),
                               int(rows["batch_size"][at]), True,
                               int(rows["store_timestamp"][at]))

    def _take(self, found: Evidence, rows: Sequence[FoundRow]) -> None:
        for row in rows:
            at = bisect_right(self._starts, row.physical) - 1
            if row.physical >= self._end:
                found.ahead += 1
            elif at >= 0 and row.physical < self._ends[at]:
                found.rows.append(row)
            else:
                found.astray.append(row)


def ascending(values: Array) -> list[int]:
    """Positions of a longest strictly ascending part of the values."""
    if len(values) < 2 or bool((values[1:] > values[:-1]).all()):
        return list(range(len(values)))
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for at, value in enumerate(values.tolist()):
        place = bisect_left(tails, value)
        before.append(ends[place - 1] if place else -1)
        if place == len(tails):
            tails.append(value)
            ends.append(at)
        else:
            tails[place], ends[place] = value, at
    found = []
    at = ends[-1]
    while at >= 0:
        found.append(at)
        at = before[at]
    return found[::-1]


def holes_with(found: Mapping[QueueKey, Sequence[Hole]], key: QueueKey, offset: int) -> Hole | None:
    """The hole of a queue that a queue offset lies in."""
    for hole in found.get(key, ()):
        if hole.first <= offset < hole.end:
            return hole
    return None
