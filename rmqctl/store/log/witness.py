"""Evidence of the positions of records in the log, from consumequeues, index files and DLedger's
index.

The evidence is used only where the log is damaged. The first look-up reads all entries once, and
`rmqctl.store.log.leads` caches them. An index file is read only if the range of offsets in its
header includes the requested offset. Each entry is evaluated separately, so a damaged entry does
not affect the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.index_file import ENTRY
from rmqctl.formats.local.message import MIN_SIZE, Record
from rmqctl.scan.damage.slots import queues, records_in
from rmqctl.scan.frames import BLANK, Array
from rmqctl.scan.resync import provable
from rmqctl.scan.source import BESIDES_BODY, LARGEST_RECORD, Past, QueueEnds
from rmqctl.scan.walk import Walk
from rmqctl.store.files import Listing, StoreFile
from rmqctl.store.index.files import IndexFile
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.leads import CELL, NOTHING, CellCache, Pages, Pair, merged
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, plain_units, valid

if TYPE_CHECKING:
    from rmqctl.store.log.dledger import Node


class EvidenceQueues(Protocol):
    """The queues of an `EvidenceStore`."""

    @property
    def batch(self) -> dict[tuple[str, int], BatchQueue]: ...
    def as_evidence(self) -> Mapping[tuple[str, int], ConsumeQueue]: ...
    def find_evidence(self, topic: str, queue_id: int) -> ConsumeQueue | None: ...


class EvidenceIndex(Protocol):
    """The index files of an `EvidenceStore`."""

    @property
    def listing(self) -> Listing: ...
    def open(self, file: StoreFile) -> IndexFile: ...


class EvidenceStore(Protocol):
    """The part of the interface of `rmqctl.store.store.Store` that a witness needs."""

    @property
    def log(self) -> CommitLog: ...
    @property
    def queues(self) -> EvidenceQueues: ...
    @property
    def index(self) -> EvidenceIndex: ...
    @property
    def nodes(self) -> list[Node]: ...


_Part = tuple[ConsumeQueue, int, int]
_PAGE, _MIN_PAGE = 1 << 15, 1 << 9
_MAX_READ = 16 << 20
"""Maximum bytes of a record that is read as evidence."""
_ENTRIES = 512
"""Number of entries of a queue that are read at once when some of them are requested."""
_NEAR = 8192
"""Maximum number of messages of an adjacent file that are read to learn queue offsets."""


class _IndexPages:
    """Index files as evidence. The entries of a file are read at the first look-up of an offset in
    the range of its header.
    """

    def __init__(self, files: Iterable[_IndexFileEntries], held: CellCache) -> None:
        self._files, self._held = list(files), held
        self._begin = np.array([file.begin for file in self._files], np.int64)
        self._end = np.array([file.end for file in self._files], np.int64)
        self._pages: dict[int, Pages] = {}

    def within(self, start: int, end: int) -> Pair:
        covered = (self._begin > self._end) | ((self._begin < end) & (self._end >= start))
        return merged([self._of(number).within(start, end)
                       for number in np.flatnonzero(covered).tolist()])

    def _of(self, number: int) -> Pages:
        pages = self._pages.get(number)
        if pages is None:
            pages = self._pages[number] = Pages(self._held)
            file = self._files[number]
            for first in range(0, file.entries, _PAGE):
                pages.add(partial(_entries, file.file, file.first + first * ENTRY.size,
                                  min(_PAGE, file.entries - first)))
        return pages


class _IndexFileEntries(NamedTuple):
    """The entries of an index file.

    ``first``: the position of the first entry. ``entries``: the number of entries. ``begin``,
    ``end``: the range of offsets in the file's header.
    """

    file: StoreFile
    first: int
    entries: int
    begin: int
    end: int


class StoreWitness:
    """The `rmqctl.scan.source.Witness` of a store. All readers of a log, including threads, share
    one witness.

    A witness handles one look-up at a time. ``opener`` opens the store; the witness is picklable if
    ``opener`` is.
    """

    def __init__(self, opener: Callable[[], EvidenceStore], given: int | None = None,
                 usual: int = LARGEST_RECORD) -> None:
        self._opener, self._given, self._usual = opener, given, usual
        self._largest: int | None = None
        self._store: EvidenceStore | None = None
        self._held = CellCache()
        self._rows: Pages | None = None
        self._keys: _IndexPages | None = None
        self._before: dict[int, Past | None] = {}
        self._behind: dict[int, QueueEnds | None] = {}
        self._begun: dict[tuple[str, int], int] = {}
        self._log: CommitLog | None = None
        self._lock = RLock()
        self.lend: Callable[[Any], None] | None = None
        """Callback that passes the known facts about the queues to the store, once it is open. It
        is not pickled.
        """

    def __reduce__(self) -> Any:
        return StoreWitness, (self._opener, self._given, self._usual)

    def _opened(self) -> EvidenceStore:
        if self._store is None:
            self._store = self._opener()
            if self.lend is not None:
                self.lend(self._store)
        return self._store

    @property
    def largest_record(self) -> int:
        """Maximum size of a record. Unless given, it is the usual maximum, or more if an entry
        points to a larger record.
        """
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
        with self._lock:
            return self._all_rows().within(start, end)

    def _all_rows(self) -> Pages:
        if self._rows is None:
            rows = Pages(self._held)
            for read in self._row_pages():
                rows.add(read)
            self._rows = rows
        return self._rows

    def keys(self, start: int, end: int) -> Pair:
        with self._lock:
            return self._all_keys().within(start, end)

    def _all_keys(self) -> _IndexPages:
        if self._keys is None:
            self._keys = _IndexPages(self._index_files(), self._held)
        return self._keys

    def confirms(self, record: Record) -> bool | None:
        entry, place = self.entry_of(record), (record.physical_offset, record.total_size)
        if entry is None and sysflag.has_consume_queue_row(record.sys_flag) and (
                os.fsdecode(record.topic), record.queue_id) in self._opened().queues.batch:
            # A batch queue does not have an entry for each queue offset: one for these bytes
            # belongs to it.
            places, sizes = self.rows(place[0], place[0] + 1)
            return True if place in zip(places.tolist(), sizes.tolist(), strict=True) else None
        return None if entry is None else entry == place

    def confirms_all(self, topic: str, queue_id: int, offsets: Array, places: Array,
                     sizes: Array) -> Array:
        confirmed = np.zeros(len(offsets), bool)
        queue = self._opened().queues.find_evidence(topic, queue_id)
        if queue is None or not len(offsets):
            return confirmed
        order = np.argsort(offsets, kind="stable")
        ascending, at = offsets[order], 0
        with suppress(StoreIOError), closing(queue):
            while at < len(order):
                first = int(ascending[at])
                entries = queue.units(first, _ENTRIES)
                end = int(np.searchsorted(ascending, first + max(1, len(entries))))
                if len(entries):
                    here, entries = order[at:end], entries[ascending[at:end] - first]
                    confirmed[here] = (entries["physical_offset"] == places[here]) & (
                        entries["size"] == sizes[here])
                at = end
        confirmed &= places >= self._begun_at(queue)
        return confirmed

    def entry_of(self, record: Record) -> tuple[int, int] | None:
        if not sysflag.has_consume_queue_row(record.sys_flag):
            return None
        queue = self._opened().queues.find_evidence(record.topic.decode("utf-8", "surrogateescape"),
                                               record.queue_id)
        if queue is None or record.physical_offset < self._begun_at(queue):
            return None
        try:
            unit = queue.unit(record.queue_offset)
        except StoreIOError:
            return None
        if unit is None or not unit.is_valid or unit.is_filler:
            return None
        return unit.physical_offset, unit.size

    def _begun_at(self, queue: ConsumeQueue) -> int:
        """Return the physical offset at which a queue began.

        Earlier messages belong to a deleted queue with the same name, so the queue's entries prove
        nothing about them.
        """
        from rmqctl.store.queue.search import begun_at  # only after damage

        key = queue.topic, queue.queue_id
        with self._lock:
            if key not in self._begun:
                if self._log is None:
                    self._log = CommitLog(self._opened().log.files)
                with closing(self._log):  # close the files of the queue
                    self._begun[key] = begun_at(queue, self._log)
            return self._begun[key]

    def record_at(self, physical: int, size: int) -> Record | None:
        if not MIN_SIZE <= size <= _MAX_READ:
            return None
        return self._opened().log.record_at(physical, size)

    def goes_on(self, physical: int) -> bool:
        try:
            place = self._opened().log.locate(physical)
            return place is not None and place[1] == 0 and provable(*place)
        except StoreIOError:
            return False

    def offsets_before(self, physical: int) -> Past | None:
        if physical not in self._before:
            self._before[physical] = self._ends_before(physical)
        return self._before[physical]

    def _ends_before(self, physical: int) -> Past | None:
        with self._lock, suppress(StoreIOError):
            file = self._opened().log.file_of(physical - 1)
            if file is None or file.end != physical:
                return None
            with file.open() as source:
                source.witness = _WithoutThePast(self)
                walk = Walk(source)
                closed = stored = -1
                for batch in walk:
                    stored = int(batch.column("store_timestamp")[-1]) if len(batch) else stored
                    closed = next((span.offset - source.base for span in batch.spans
                                   if span.kind == BLANK), -1)
                stretches = walk.passed.stretches()
                if not stretches:
                    return None
                start, end = stretches[-1]
                left = (closed if closed >= 0 else source.size) - end
                return Past(queues(source, start, end, -_NEAR), records_in(left), stored)
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
        queues = store.queues.as_evidence()
        # With many queues, each has few entries in a cell: read no more than these for it.
        page = max(_MIN_PAGE, min(_PAGE, CELL // (2 * max(len(queues), 1))))
        for parts in _together(queues.values(), page):
            yield partial(_plain, parts)
        for batch in store.queues.batch.values():
            for number in range(len(batch.files)):
                yield partial(_batched, batch, number)
        for node in store.nodes:
            yield from node.leads()

    def _index_files(self) -> Iterator[_IndexFileEntries]:
        store = self._opened()
        for file in store.index.listing.files:
            try:
                index = store.index.open(file)
            except (FormatError, StoreIOError):
                continue
            with closing(index):
                first, header = index.shape.entry_position(1), index.header
                count = min(header.entries, max(0, index.source.size - first) // ENTRY.size)
                yield _IndexFileEntries(file, first, count, header.begin_phy_offset,
                                        header.end_phy_offset)


class _WithoutThePast(StoreWitness):
    """The evidence of another witness, without queue offsets that are derived from earlier files.

    Deriving them for one file would require reading all files before it.
    """

    def __init__(self, witness: StoreWitness) -> None:
        super().__init__(witness._opener, witness.largest_record)
        self._witness, self._store, self._lock = witness, witness._store, witness._lock

    def _all_rows(self) -> Pages:
        return self._witness._all_rows()

    def _all_keys(self) -> _IndexPages:
        return self._witness._all_keys()

    def offsets_before(self, physical: int) -> None:
        return None


def _together(queues: Iterable[ConsumeQueue], page: int) -> Iterator[list[_Part]]:
    """Yield lists of queue parts that together have about ``page`` entries, because many queues may
    have only a few entries each.
    """
    parts: list[_Part] = []
    left = page
    for queue in queues:
        for first, count in queue.parts(page):
            if parts and count > left:
                yield parts
                parts, left = [], page
            parts.append((queue, first, count))
            left -= count
    if parts:
        yield parts


def _plain(parts: list[_Part]) -> Pair:
    read = []
    for queue, first, count in parts:
        with suppress(StoreIOError), closing(queue):
            read.append(queue.timed_units(first, count))
    if not read:
        return NOTHING
    # As bytes: joined as records they would be in this machine's byte order.
    rows = plain_units(read[0] if len(read) == 1 else np.frombuffer(
        b"".join(part.tobytes() for part in read), read[0].dtype))
    good, seldom = valid(rows), rows["size"] == FILLER.size
    if seldom.any():
        good[seldom] &= rows[seldom] != np.array(tuple(FILLER), rows.dtype)
    rows = rows if good.all() else rows[good]
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
