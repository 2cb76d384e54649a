"""What consumequeues, index and DLedger's index know of where the records of a log lie.

It is asked only behind damage. The first question reads all rows once and notes of each page
where its rows lead; later ones read the pages that matter. Rows are taken one by one, in any
order, so a damaged one costs nothing but itself. Of the index only those files are read which by
their headers know the place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.index_file import ENTRY
from rmqctl.formats.local.message import Record
from rmqctl.scan.damage.slots import queues, records_in
from rmqctl.scan.frames import BLANK, Array
from rmqctl.scan.resync import MAX_RECORD, provable
from rmqctl.scan.source import BESIDES_BODY, LARGEST_RECORD, QueueEnds
from rmqctl.scan.walk import Walk
from rmqctl.store.files import Listing, StoreFile
from rmqctl.store.index_files import IndexFile
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, plain_units, valid

if TYPE_CHECKING:
    from rmqctl.store.log.dledger import Node


class Opened(Protocol):
    """What is asked of a store: see `rmqctl.store.store.Store`."""

    @property
    def log(self) -> CommitLog: ...
    def rows_as_evidence(self) -> Mapping[tuple[str, int], ConsumeQueue]: ...
    @property
    def batch_queues(self) -> dict[tuple[str, int], BatchQueue]: ...
    @property
    def index_listing(self) -> Listing: ...
    @property
    def nodes(self) -> list[Node]: ...
    def row_as_evidence(self, topic: str, queue_id: int) -> ConsumeQueue | None: ...
    def open_index(self, file: StoreFile) -> IndexFile: ...


_PAGE = 1 << 15
_WINDOWS = 8
_LARGE = 1 << 20
_MOST_LARGE = 1000
_NEAR = 8192
"""Messages of a neighbouring file that tell queue offsets."""
Pair = tuple[Array, Array]


@dataclass(slots=True)
class Pages:
    """Pages of rows or entries, with the first and the last of the places that each leads to.

    ``large``: rows of the largest sizes.
    """

    low: list[int] = field(default_factory=list)
    high: list[int] = field(default_factory=list)
    read: list[Callable[[], Pair]] = field(default_factory=list)
    windows: OrderedDict[tuple[int, int], Pair] = field(default_factory=OrderedDict)
    large: list[tuple[int, int]] = field(default_factory=list)

    def add(self, read: Callable[[], Pair]) -> None:
        places, values = read()
        if len(places):
            large = np.flatnonzero((values > _LARGE) & (values <= MAX_RECORD))[:_MOST_LARGE]
            if len(self.large) < _MOST_LARGE:
                self.large += zip(places[large].tolist(), values[large].tolist(), strict=True)
            self.low.append(int(places.min()))
            self.high.append(int(places.max()))
            self.read.append(read)

    def within(self, start: int, end: int) -> Pair:
        """(place, value) of ``[start, end)``, ascending; the last few answers are remembered."""
        known = self.windows.get((start, end))
        if known is None:
            parts = []
            low, high = np.array(self.low, np.int64), np.array(self.high, np.int64)
            for page in np.flatnonzero((low < end) & (high >= start)).tolist():
                places, values = self.read[page]()
                inside = (places >= start) & (places < end)
                parts.append((places[inside], values[inside]))
            places, values = (np.concatenate([np.zeros(0, np.int64), *column])
                              for column in (zip(*parts, strict=True) if parts else ((), ())))
            order = np.argsort(places, kind="stable")
            known = self.windows[start, end] = places[order], values[order]
            if len(self.windows) > _WINDOWS:
                self.windows.popitem(last=False)
        self.windows.move_to_end((start, end))
        return known


@dataclass(slots=True)
class _IndexPages:
    """One index file: its entries are read when a place is asked for that its header covers."""

    file: StoreFile
    first: int
    count: int
    begin: int
    end: int
    pages: Pages | None = None

    def within(self, start: int, end: int) -> Pair:
        if self.begin <= self.end and not (self.begin < end and self.end >= start):
            return NOTHING
        if self.pages is None:
            self.pages = Pages()
            for number in range(0, self.count, _PAGE):
                self.pages.add(partial(_entries, self.file, self.first + number * ENTRY.size,
                                       min(_PAGE, self.count - number)))
        return self.pages.within(start, end)


class StoreWitness:
    """The `rmqctl.scan.source.Witness` of a store. ``opener`` opens it; picklable as that is.

    All readers of a log share it, threads too: they ask one after the other.
    """

    def __init__(self, opener: Callable[[], Opened], given: int | None = None,
                 usual: int = LARGEST_RECORD) -> None:
        self._opener, self._given, self._usual = opener, given, usual
        self._largest: int | None = None
        self._store: Opened | None = None
        self._rows: Pages | None = None
        self._keys: list[_IndexPages] | None = None
        self._before: dict[int, tuple[QueueEnds, int] | None] = {}
        self._behind: dict[int, QueueEnds | None] = {}
        self._lock = RLock()

    def __reduce__(self) -> Any:
        return StoreWitness, (self._opener, self._given, self._usual)

    def _opened(self) -> Opened:
        if self._store is None:
            self._store = self._opener()
        return self._store

    @property
    def largest_record(self) -> int:
        """What was given, else what the broker is set to, or the largest record that has a row."""
        if self._given is not None:
            return self._given
        if self._largest is None:
            log = self._opened().log
            proven = [size for place, size in self._all_rows().large
                      if size > self._usual - BESIDES_BODY
                      and log.record_at(place, size) is not None]
            self._largest = max([self._usual, *(size + BESIDES_BODY for size in proven)])
        return self._largest

    def rows(self, start: int, end: int) -> Pair:
        return self._all_rows().within(start, end)

    def _all_rows(self) -> Pages:
        if self._rows is None:
            self._rows = Pages()
            for read in self._row_pages():
                self._rows.add(read)
        return self._rows

    def keys(self, start: int, end: int) -> Pair:
        if self._keys is None:
            self._keys = [_IndexPages(*file) for file in self._index_files()]
        parts = [index.within(start, end) for index in self._keys]
        places, hashes = (np.concatenate([np.zeros(0, np.int64), *column])
                          for column in (zip(*parts, strict=True) if parts else ((), ())))
        order = np.argsort(places, kind="stable")
        return places[order], hashes[order]

    def confirms(self, record: Record) -> bool | None:
        if not sysflag.has_consume_queue_row(record.sys_flag):
            return None
        queue = self._opened().row_as_evidence(record.topic.decode("utf-8", "surrogateescape"),
                                               record.queue_id)
        if queue is None:
            return None
        try:
            with closing(queue):
                unit = queue.unit(record.queue_offset)
        except StoreIOError:
            return None
        if unit is None or not unit.is_valid or unit.is_filler:
            return None
        return (unit.physical_offset, unit.size) == (record.physical_offset, record.total_size)

    def goes_on(self, physical: int) -> bool:
        try:
            place = self._opened().log.locate(physical)
            return place is not None and place[1] == 0 and provable(*place)
        except StoreIOError:
            return False

    def offsets_before(self, physical: int) -> tuple[QueueEnds, int] | None:
        if physical not in self._before:
            self._before[physical] = self._ends_before(physical)
        return self._before[physical]

    def _ends_before(self, physical: int) -> tuple[QueueEnds, int] | None:
        with self._lock, suppress(StoreIOError):
            file = self._opened().log.file_of(physical - 1)
            if file is None or file.end != physical:
                return None
            with file.open() as source:
                source.witness = _WithoutThePast(self)
                walk = Walk(source)
                closed = -1
                for batch in walk:
                    closed = next((span.offset - source.base for span in batch.spans
                                   if span.kind == BLANK), -1)
                stretches = walk.passed.stretches()
                if not stretches:
                    return None
                start, end = stretches[-1]
                left = (closed if closed >= 0 else source.size) - end
                return queues(source, start, end, -_NEAR), records_in(left)
        return None

    def offsets_behind(self, physical: int) -> QueueEnds | None:
        if physical not in self._behind:
            self._behind[physical] = self._ends_behind(physical)
        return self._behind[physical]

    def _ends_behind(self, physical: int) -> QueueEnds | None:
        with self._lock, suppress(StoreIOError):
            place = self._opened().log.locate(physical)
            if place is not None and place[1] == 0 and provable(*place):
                return queues(*place, place[0].size, _NEAR)
        return None

    # -- pages ------------------------------------------------------------------------------------

    def _row_pages(self) -> Iterator[Callable[[], Pair]]:
        store = self._opened()
        for queue in store.rows_as_evidence().values():
            for first, count in queue.parts(_PAGE):
                yield partial(_plain, queue, first, count)
        for batch in store.batch_queues.values():
            for number in range(len(batch.files)):
                yield partial(_batched, batch, number)
        for node in store.nodes:
            yield from node.leads()

    def _index_files(self) -> Iterator[tuple[StoreFile, int, int, int, int]]:
        """(file, position of its first entry, how many, what its header says of their places)."""
        store = self._opened()
        for file in store.index_listing.files:
            try:
                index = store.open_index(file)
            except (FormatError, StoreIOError):
                continue
            with closing(index):
                first, header = index.shape.entry_position(1), index.header
                count = min(header.entries, max(0, index.source.size - first) // ENTRY.size)
                yield file, first, count, header.begin_phy_offset, header.end_phy_offset


class _WithoutThePast(StoreWitness):
    """What another one knows, but for files before: these would ask for more, to the first."""

    def __init__(self, known: StoreWitness) -> None:
        super().__init__(known._opener, known.largest_record)
        self._store, self._rows, self._keys = known._store, known._rows, known._keys

    def offsets_before(self, physical: int) -> None:
        return None


NOTHING: Pair = np.zeros(0, np.int64), np.zeros(0, np.int64)


def _plain(queue: ConsumeQueue, first: int, count: int) -> Pair:
    try:
        with closing(queue):
            rows = plain_units(queue.timed_units(first, count))
    except StoreIOError:
        return NOTHING
    filler = np.array(tuple(FILLER), rows.dtype)
    rows = rows[valid(rows) & (rows != filler)]
    return rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)


def _batched(queue: BatchQueue, number: int) -> Pair:
    try:
        rows = queue.rows_of(number)
    except StoreIOError:
        return NOTHING
    rows = rows[valid(rows)]
    return rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)


def _entries(file: StoreFile, position: int, count: int) -> Pair:
    try:
        with file.open() as source:
            data = source.read(position, count * ENTRY.size)
    except StoreIOError:
        return NOTHING
    rows = ENTRY.array(data)
    return rows["physical_offset"].astype(np.int64), rows["key_hash"].astype(np.int64)
