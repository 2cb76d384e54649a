"""Evidence of lost messages: entries that point into damaged bytes, and missing queue offsets.

Consume queue entries are read only for queue offsets that are missing in the log (holes). So the
cost depends on the number of lost messages, not on the size of the store. An entry is evidence if
its queue offset is missing in the log, and it points between the neighbouring messages of its
queue.

If a broker skipped queue offsets (consumequeue.md §4), it wrote the entries of all later messages
too early in the queue, by the number of skipped offsets. These entries do not contradict the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import field
from itertools import pairwise

import numpy as np

from rmqctl.damage.survey.survey import Region, Run, Runs
from rmqctl.errors import StoreIOError
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.scan.queue_reach import ascending
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, valid
from rmqctl.store.store import Store

ENDLESS = 1 << 62
MAX_LISTED = 100_000
"""Maximum number of lost messages that are listed; all others are only counted."""
FEW = 20_000
"""Maximum number of entries pointing into a missing file that are examined one by one."""
_MAX_RUNS = 400
_AHEAD = 512
"""Number of entries read at once, starting at a hole, because the next hole is often close to it.
"""
_FEW = 8
"""Fewer holes than this are read one by one."""
_BACK = 1 << 12
"""Number of positions before the expected one that are searched for a message's entry."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A hole: queue offsets ``[first, end)`` of a queue that are missing in the log.

    The missing messages can only be after physical offset ``low`` and before ``high``.
    """

    first: int
    end: int
    low: int
    high: int

    @property
    def inner(self) -> bool:
        """Return whether the hole is between two messages of the queue. If so, all its messages
        once existed.
        """
        return self.low >= 0 and self.high < ENDLESS


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A consume queue entry in a hole.

    * ``physical``, ``size``: physical offset and size of its message.
    * ``count``: number of queue offsets that the entry covers: above 1 only in a batch queue.
    * ``time``: the store time in an entry of a batch queue.
    """

    key: QueueKey
    queue_offset: int
    physical: int
    size: int
    count: int = 1
    batch: bool = False
    time: int | None = None


@dataclass(slots=True)
class RowColumns:
    """Entries of many queues that point into one missing file.

    Each part contains entries of one queue: its key, and their queue offsets, physical offsets and
    sizes (int64).
    """

    parts: list[tuple[QueueKey, Array, Array, Array]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(offset) for _, offset, _, _ in self.parts)

    def rows(self) -> Iterator[FoundRow]:
        for key, *columns in self.parts:
            yield from _rows(key, *columns)

    def sorted(self) -> tuple[list[QueueKey], Array, Array, Array, Array]:
        """Return (keys of the queues, key number, queue offset, physical offset, size).

        The last four are arrays with one value per entry, sorted by physical offset. The key number
        of an entry is the position of its key in the list.
        """
        keys = list(dict.fromkeys(key for key, *_ in self.parts))
        numbers = {key: number for number, key in enumerate(keys)}
        queue = np.concatenate([np.full(len(offset), numbers[key])
                                for key, offset, _, _ in self.parts])
        offset, physical, size = (np.concatenate([part[column] for part in self.parts])
                                  for column in (1, 2, 3))
        order = np.argsort(physical, kind="stable")
        return keys, queue[order], offset[order], physical[order], size[order]


@dataclass(slots=True)
class HoleEntries:
    """Entries found in holes.

    * ``rows``: entries that point into damaged regions.
    * ``astray``: entries that point to other offsets in the log.
    * ``ahead``: number of entries that point past the end of the log's last file.
    * ``beyond``: the first of these entries.
    * ``columns``: for each missing file with very many entries, by start of the file, the entries
      that point into it.
    """

    rows: list[FoundRow] = field(default_factory=list)
    astray: list[FoundRow] = field(default_factory=list)
    ahead: int = 0
    beyond: list[FoundRow] = field(default_factory=list)
    columns: dict[int, RowColumns] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def chain(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Return (the runs in ascending order of queue offsets, the runs that contradict this order).

    Of all possible chains of runs, the one with the most messages is chosen. After a topic is
    deleted and created again, its queues start at 0; the runs before such a restart are ignored.
    """
    start = 0
    for number, run in enumerate(runs):
        if number and run.first == 0 and (run.end > 1 or number == len(runs) - 1):
            start = number
    runs = runs[start:]
    if len(runs) < 2 or len(runs) > _MAX_RUNS:
        return list(runs), []
    # For each run the heaviest chain that ends with it: (messages, the run before).
    best: list[tuple[int, int]] = []
    for number, run in enumerate(runs):
        weight, before = max(((best[other][0], other) for other in range(number)
                              if runs[other].end <= run.first), default=(0, -1))
        best.append((weight + run.end - run.first, before))
    # Back from the heaviest of all.
    number = max(range(len(runs)), key=lambda number: (best[number][0], number))
    chosen = []
    while number >= 0:
        chosen.append(number)
        number = best[number][1]
    return ([runs[number] for number in reversed(chosen)],
            [run for number, run in enumerate(runs) if number not in set(chosen)])


def holes(runs: Sequence[Run]) -> list[Hole]:
    """Return the holes before, between and after the runs of a queue; the last hole is endless."""
    if not runs:
        return [Hole(0, ENDLESS, -1, ENDLESS)]
    gaps = [Hole(0, runs[0].first, -1, runs[0].low)] if runs[0].first > 0 else []
    gaps += [Hole(a.end, b.first, a.high, b.low)
             for a, b in pairwise(runs) if a.end < b.first]
    return [*gaps, Hole(runs[-1].end, ENDLESS, runs[-1].high, ENDLESS)]


class Gatherer:
    """Reads the consume queue entries in the holes of all queues of a store.

    * ``by_column``: regions whose entries are kept by column if there are very many entries.
    * ``yielded``: ranges ``[start, end)`` of the log that are filled from another store. Entries
      that point into them are ignored.
    """

    def __init__(self, store: Store, runs: Runs, regions: Sequence[Region], log_end: int,
                 by_column: Sequence[Region] = (),
                 yielded: Sequence[tuple[int, int]] = ()) -> None:
        self._yielded = yielded
        self._store, self._runs, self._end = store, runs, log_end
        self._starts = [region.start for region in regions]
        self._ends = [region.end for region in regions]
        self._by_column = by_column
        self._low = store.log.min_offset
        self.holes: dict[QueueKey, list[Hole]] = {}
        self.misfits: dict[QueueKey, list[Run]] = {}

    def gather(self) -> HoleEntries:
        """Return the evidence from all queues. ``unreadable`` contains the errors of queues that
        cannot be read.
        """
        evidence = HoleEntries()
        keys = {*self._runs.keys, *self._store.queues.by_key, *self._store.queues.batch}
        for key in sorted(keys):
            runs, misfits = chain(self._runs.of(key))
            self.holes[key] = holes(runs)
            if misfits:
                self.misfits[key] = misfits
            try:
                if key in self._store.queues.by_key:
                    with closing(self._store.queues.by_key[key]) as queue:
                        self._take(evidence, list(self._plain(key, queue, runs, evidence)))
                if key in self._store.queues.batch:
                    self._take(evidence, list(self._batched(key, self._store.queues.batch[key])))
            except StoreIOError as error:
                evidence.unreadable.append(str(error))
        for start, columns in list(evidence.columns.items()):
            if len(columns) <= FEW:
                evidence.rows += evidence.columns.pop(start).rows()
        return evidence

    def is_in_order(self, key: QueueKey, offset: int, place: int) -> bool:
        """Return whether the queue offset of the message at physical offset ``place`` is in order.

        The queue offset must occur only once, and be adjacent to that of the previous or the next
        message of the queue.
        """
        return not self._runs.has(key, offset, twice=True) and any(
            run.low <= place <= run.high and run.end - run.first > 1 for run in self._runs.of(key))

    def _plain(self, key: QueueKey, queue: ConsumeQueue, runs: Sequence[Run],
               evidence: HoleEntries) -> Iterator[FoundRow]:
        """Yield the entries in a queue's holes. Most entries that point past the end of the log are
        only counted.
        """
        if not queue.exists:
            return
        end = queue.disk_end
        entries = _Entries(queue, self._low, end)
        behind = {run.low: (run, after) for run, after in pairwise((*runs, None)) if run}
        single = {} if self._by_column or self._yielded else self._single(queue, key, end)
        for hole in self.holes[key]:
            if hole.first in single:
                if (entry := single[hole.first]) is not None:
                    yield FoundRow(key, hole.first, *entry)
                continue
            # The rows that may be of the hole: sound, and between its neighbours in the log.
            columns: list[tuple[Array, Array, Array]] = []
            early = _early(queue, hole)
            first = max(hole.first - early, queue.first_index)
            for page_start, physical, size, sound in entries.pages(
                    first, min(hole.end - early, end)):
                # Its neighbours' own places too: a neighbour may be the one that is wrong.
                good = sound & (physical >= hole.low) & (physical <= hole.high)
                for low, high in self._yielded:
                    good &= (physical < low) | (physical >= high)
                rows_inside = np.flatnonzero(good)
                at_next = rows_inside[physical[rows_inside] == hole.high]
                if len(at_next):
                    for row in at_next.tolist():
                        good[row] = hole.high not in behind or not _stands_early(
                            queue, *behind[hole.high], page_start + row, bool(early))
                    rows_inside = np.flatnonzero(good)
                columns.append((rows_inside + (page_start + early), physical[rows_inside],
                                size[rows_inside]))
            if not columns:
                continue
            # Of these the longest ascending part: rows follow the log.
            offset, physical, size = columns[0] if len(columns) == 1 else (
                np.concatenate(column) for column in zip(*columns, strict=True))
            if len(physical) > 1:
                chosen = ascending(physical)
                offset, physical, size = offset[chosen], physical[chosen], size[chosen]
            # Rows after the log are counted, those of missing files kept by column.
            inside = int(np.searchsorted(physical, self._end))
            most = inside + max(0, MAX_LISTED - len(evidence.beyond))
            evidence.ahead += len(physical[most:])
            page_start = 0
            for region in self._by_column:
                low, high = np.searchsorted(physical, (region.start, region.end)).tolist()
                if low < high:
                    evidence.columns.setdefault(region.start, RowColumns()).parts.append(
                        (key, offset[low:high], physical[low:high], size[low:high]))
                    yield from _rows(key, offset[page_start:low], physical[page_start:low],
                                     size[page_start:low])
                    page_start = high
            yield from _rows(key, offset[page_start:most], physical[page_start:most],
                             size[page_start:most])

    def _single(self, queue: ConsumeQueue, key: QueueKey, end: int) -> dict[
            int, tuple[int, int] | None]:
        """Return (physical offset, size) of the entries in holes of one entry, by queue offset.

        The value is None if the entry cannot be of the hole. Holes that need a closer look are
        omitted. All entries are read by column, because a log may have very many such holes.
        """
        holes = [hole for hole in self.holes[key] if hole.inner and hole.end == hole.first + 1
                 and queue.first_index < hole.first < end]
        if len(holes) < _FEW:
            return {}
        first, low, high = (np.array(column, np.int64) for column in zip(*(
            (hole.first, hole.low, hole.high) for hole in holes), strict=True))
        before, own, size, sound = (np.zeros(len(holes), np.int64) for _ in range(4))
        at = 0
        with suppress(StoreIOError):  # the closer look reports it
            while at < len(holes):
                start = int(first[at]) - 1
                rows = queue.units(start, _AHEAD)
                until = int(np.searchsorted(first, start + max(2, len(rows))))
                if len(rows) >= 2:
                    index = first[at:until] - start
                    inside = rows[index]
                    before[at:until] = rows["physical_offset"][index - 1]
                    own[at:until], size[at:until] = inside["physical_offset"], inside["size"]
                    sound[at:until] = 1 + (valid(inside) & (inside != np.array(
                        tuple(FILLER), inside.dtype)))
                at = until
        # The entry before is of the message before, and the own entry points between both.
        clear = (sound > 0) & (before == low) & (own != high) & (own < self._end)
        good = (sound == 2) & (own >= self._low) & (own >= low) & (own < high)
        entries = zip(own.tolist(), size.tolist(), strict=True)
        return {hole.first: entry if fits else None for hole, entry, fits, is_clear in zip(
            holes, entries, good.tolist(), clear.tolist(), strict=True) if is_clear}

    def _batched(self, key: QueueKey, queue: BatchQueue) -> Iterator[FoundRow]:
        rows = queue.all_used()
        base = rows["msg_base_offset"].astype(np.int64)
        end = base + rows["batch_size"]
        physical = rows["physical_offset"].astype(np.int64)
        for hole in self.holes[key]:
            inside = (base >= hole.first) & (end <= hole.end) & (physical > hole.low)
            # The message before the hole may have lost the number of its queue offsets.
            inside |= (base < hole.first) & (end > hole.first) & (physical == hole.low)
            for low, high in self._yielded:
                inside &= (physical < low) | (physical >= high)
            rows_inside = np.flatnonzero(inside & (physical < hole.high) & (physical >= self._low))
            for row in rows_inside[ascending(physical[rows_inside])].tolist():
                yield FoundRow(key, int(base[row]), int(physical[row]), int(rows["size"][row]),
                               int(rows["batch_size"][row]), True,
                               int(rows["store_timestamp"][row]))

    def _take(self, evidence: HoleEntries, rows: Sequence[FoundRow]) -> None:
        for row in rows:
            number = bisect_right(self._starts, row.physical) - 1
            if row.physical >= self._end:
                evidence.ahead += 1
                if len(evidence.beyond) < MAX_LISTED:
                    evidence.beyond.append(row)
            elif number >= 0 and row.physical < self._ends[number]:
                evidence.rows.append(row)
            else:
                evidence.astray.append(row)


class _Entries:
    """Reads the entries of a queue in pages, by column. The last page is cached for the next
    hole.
    """

    def __init__(self, queue: ConsumeQueue, low: int, end: int) -> None:
        self._queue, self._low, self._end = queue, low, end
        self._filler = np.array(tuple(FILLER), queue.units(0, 0).dtype)
        self._start = 0
        self._page: tuple[Array, Array, Array] | None = None

    def pages(self, first: int, end: int) -> Iterator[tuple[int, Array, Array, Array]]:
        """Yield the entries in ``[first, end)`` in pages. Raises: StoreIOError.

        Each page is (queue offset of the first entry, physical offsets, sizes, booleans). A boolean
        is true if the entry is valid and does not point before the log.
        """
        while first < end:
            if self._page is None or not 0 <= first - self._start < len(self._page[0]):
                rows = next((rows for _, rows in self._queue.pages(
                    first, min(max(end, first + _AHEAD), self._end))), None)
                if rows is None:
                    return
                physical = rows["physical_offset"].astype(np.int64)
                self._start = first
                self._page = (physical, rows["size"].astype(np.int64),
                              valid(rows) & (rows != self._filler) & (physical >= self._low))
            inside = slice(first - self._start, end - self._start)
            physical, size, sound = (column[inside] for column in self._page)
            yield first, physical, size, sound
            first += len(physical)


def _early(queue: ConsumeQueue, hole: Hole) -> int:
    """Return by how many positions the entry of the message before a hole is too early in the
    queue.

    0 if the entry is at the right position, or not found.
    """
    own_offset = hole.first - 1
    if hole.low < 0 or _leads(queue, own_offset, hole.low):
        return 0
    for first, rows in queue.pages(max(queue.first_index, own_offset - _BACK),
                                   min(own_offset, queue.disk_end)):
        hits = np.flatnonzero(rows["physical_offset"] == hole.low)
        if len(hits):
            return own_offset - first - int(hits[-1])
    return 0


def _stands_early(queue: ConsumeQueue, run: Run, after: Run | None, row: int,
                  before: bool) -> bool:
    """Return whether all entries of a run are too early in the queue.

    ``row``: position of an entry that points to the run's first message. If the run has only one
    message, its queue offset may be damaged instead. The entry of the next run (``after``) then
    decides. For the last run, the result is True in two cases: earlier entries are too early
    (``before``), or the log before the message has enough space for all messages that its queue
    offset implies.
    """
    if run.end - run.first > 1:
        return _leads(queue, row + run.end - 1 - run.first, run.high)
    if after is not None:
        return _leads(queue, row + 1, after.low)
    return before or run.first <= run.low // MIN_SIZE


def _rows(key: QueueKey, *columns: Array) -> Iterator[FoundRow]:
    for row in zip(*(column.tolist() for column in columns), strict=True):
        yield FoundRow(key, *row)


def _leads(queue: ConsumeQueue, row: int, physical: int) -> bool:
    unit = queue.unit(row)
    return unit is not None and unit.physical_offset == physical


def holes_with(by_queue: Mapping[QueueKey, Sequence[Hole]], key: QueueKey,
               offset: int) -> Hole | None:
    """Return the hole in a queue that contains a queue offset; None if no hole does."""
    for hole in by_queue.get(key, ()):
        if hole.first <= offset < hole.end:
            return hole
    return None
