"""Queues of a store from which consumers pull messages.

A pull returns the bytes of records unchanged. A record that is incomplete or has a wrong body CRC
is skipped and counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from time import monotonic
from typing import Protocol

import msgspec
import numpy as np

from rmqctl.broker.get_message import (
    FOUND,
    MAX_BYTES,
    MAX_COUNT,
    NO_MATCH,
    NO_MESSAGE,
    REMOVING,
    get_message,
    outside,
)
from rmqctl.errors import FormatError
from rmqctl.ext.serve.log_reader import LogReader
from rmqctl.formats import layout
from rmqctl.formats.local import properties
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.javahash import tags_code
from rmqctl.formats.local.message import Message, decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.compaction import CompactionQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue

PAGE_ROWS, PAGE_BYTES = 512, 1 << 20
"""Maximum number of entries in a page, and maximum bytes of their records. A page is read in one
go.
"""
KEPT = 64 << 20
"""Maximum bytes of pages kept in memory."""
SCANNED_ROWS = 800
"""Maximum number of entries examined for one pull, unless the pull asks for more messages."""
FILTER_S = 0.05
"""Seconds after which a pull with a slow filter or many damaged records ends. The client continues
with another pull.
"""
_LOOK_AT_CLOCK = 16
_SIZE = layout.reader(Message, "total_size")

Accept = Callable[[int, bytes | memoryview], bool]
"""Filter of messages: returns whether a message matches. Arguments: the tags code of its consume
queue entry, and its record.
"""


class Pulled(msgspec.Struct, frozen=True):
    """The result of a pull.

    * ``status``: status as brokers name it
    * ``next_begin``: the next queue offset
    * ``min``, ``max``: the bounds of the queue
    * ``parts``: ``count`` records; adjacent records are joined into one part
    * ``skipped``: number of damaged records
    """

    status: str
    next_begin: int
    min: int
    max: int
    parts: Sequence[bytes | memoryview] = ()
    count: int = 0
    skipped: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    @property
    def records(self) -> Iterator[bytes | memoryview]:
        """The records, one by one."""
        for part in self.parts:
            at = 0
            while at < len(part):
                size, = _SIZE.unpack_from(part, at)
                yield part[at:at + size]
                at += size


class ServedQueue(Protocol):
    """A queue from which consumers pull. ``first`` and ``end``: its bounds as queue offsets."""

    @property
    def first(self) -> int: ...

    @property
    def end(self) -> int: ...

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled: ...


@dataclass(slots=True)
class QueuePage:
    """Consecutive entries of a queue, and their records joined together.

    The record of entry number ``row`` is ``data[starts[row]:starts[row + 1]]``. The record is empty
    if it cannot be served. ``damaged``: entries with an empty record, except fillers. ``whole``:
    whether no record is empty.
    """

    data: memoryview
    starts: list[int]
    tags: list[int]
    damaged: frozenset[int]
    whole: bool

    @property
    def rows(self) -> int:
        return len(self.tags)

    @property
    def size(self) -> int:
        """Approximate memory of the page in bytes."""
        return len(self.data) + 200 * len(self.tags)


@dataclass(slots=True)
class PageCache:
    """Cached pages from all queues of a server. The least recently used are dropped first."""

    limit: int = KEPT
    _kept: OrderedDict[tuple[int, int], QueuePage] = field(default_factory=OrderedDict)
    _used: set[tuple[int, int]] = field(default_factory=set)
    """Keys of the pages used since the last call of `rest`."""

    _size: int = 0

    def get(self, key: tuple[int, int]) -> QueuePage | None:
        """Return a page, and mark it as used; None if it is not in memory."""
        page = self._kept.get(key)
        if page is not None:
            self._used.add(key)
            self._kept.move_to_end(key)
        return page

    def put(self, key: tuple[int, int], page: QueuePage) -> None:
        """Keep a page in memory, and drop other pages to make space.

        A page with more than `PAGE_BYTES` of records is not kept: it contains one large message,
        which can be read quickly.
        """
        if len(page.data) > PAGE_BYTES:
            return
        self._used.add(key)
        old = self._kept.pop(key, None)
        self._size += page.size - (0 if old is None else old.size)
        self._kept[key] = page
        while self._size > self.limit and len(self._kept) > 1:
            self._size -= self._kept.popitem(last=False)[1].size

    def rest(self) -> int:
        """Drop pages that were not used since the last call. Return the number of bytes freed."""
        before = self._size
        for key in [key for key in self._kept if key not in self._used]:
            self._size -= self._kept.pop(key).size
        self._used.clear()
        return before - self._size


class StoredQueue:
    """A plain consume queue (in files or in RocksDB), as seen in one view of the store."""

    _numbers = iter(range(1 << 62))

    def __init__(self, view: View, queue: ConsumeQueue, log: LogReader, pages: PageCache) -> None:
        bounds = view.bounds(queue)
        self.first, self.end = bounds.first, bounds.end
        self._queue, self._generation = queue, view.generation
        self._log, self._pages = log, pages
        self._number = next(self._numbers)
        self._starts: list[int] = []
        queue.close()

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled:
        """Return up to ``most`` records that pass ``accept``, from queue offset ``offset`` on."""
        # Offsets that the queue does not have.
        if not self.first <= offset < self.end:
            refused = outside(offset, self.first, self.end, self._generation)
            if refused is not None:
                return Pulled(refused.status, refused.next_begin, self.first, self.end)
        # Page by page, until the answer is full or it takes too long.
        parts: list[memoryview] = []
        count = size = skipped = 0
        at, last = offset, min(self.end, offset + max(SCANNED_ROWS, most))
        most = min(max(most, 1), MAX_COUNT)
        seen = False
        late = monotonic() + FILTER_S
        while at < last and count < most:
            first, page = self._page(at)
            if not page.rows:
                at = self._behind_hole(at)
                continue
            starts, place, stop = page.starts, at - first, min(page.rows, last - first)
            if accept is None and page.whole:
                # All records that fit, as one part; the first record always fits.
                stop = min(stop, place + most - count)
                begin = starts[place]
                fitting = bisect_right(starts, begin + max_bytes - size, place, stop + 1) - 1
                until = max(fitting, place + (not count))
                if until > place:
                    parts.append(page.data[begin:starts[until]])
                    size += starts[until] - begin
                    count += until - place
                    at = first + until
                if until < stop:
                    return Pulled(FOUND, at, self.first, self.end, parts, count, skipped)
                continue
            # Row by row: damaged messages are skipped, others may be filtered out.
            for row in range(place, stop):
                length = starts[row + 1] - starts[row]
                if not length:
                    skipped += row in page.damaged
                    if monotonic() > late:
                        last = at = at + 1
                        break
                elif accept is None or accept(page.tags[row], page.data[starts[row]:starts[row + 1]]
                                              ):
                    size += length
                    if size > max_bytes and count:
                        return Pulled(FOUND, at, self.first, self.end, parts, count, skipped)
                    parts.append(page.data[starts[row]:starts[row + 1]])
                    count += 1
                    if count == most:
                        at += 1
                        break
                else:
                    seen = True
                at += 1
                if accept is not None and at % _LOOK_AT_CLOCK == 0 and monotonic() > late:
                    last = at
                    break
        status = FOUND if parts else NO_MATCH if seen else REMOVING
        return Pulled(status, min(at, self.end), self.first, self.end, parts, count, skipped)

    def _behind_hole(self, offset: int) -> int:
        """Return the queue offset of the first entry after the hole (missing files) that contains
        ``offset``.
        """
        return min((first for first, _ in self._queue.stretches if first > offset),
                   default=self.end)

    def _page(self, offset: int) -> tuple[int, QueuePage]:
        """Return the queue offset of a page's first entry, and the page that contains the entry at
        ``offset``.

        If no such page is in memory, read a page that starts at ``offset``. The page is empty if
        files are missing at this offset.
        """
        place = bisect_right(self._starts, offset)
        if place:
            first = self._starts[place - 1]
            page = self._pages.get((self._number, first))
            if page is None:
                place -= 1
                del self._starts[place]
            elif offset < first + page.rows:
                return first, page
        end = self._starts[place] if place < len(self._starts) else self.end
        page = self._load(offset, min(end, self.end) - offset)
        if page.rows:
            self._starts.insert(place, offset)
            self._pages.put((self._number, offset), page)
        return offset, page

    def _load(self, first: int, count: int) -> QueuePage:
        rows = self._queue.units(first, min(PAGE_ROWS, count))
        self._queue.close()
        sizes = rows["size"].astype(np.int64)
        is_filler = sizes == FILLER.size
        ends = np.where(is_filler, 0, sizes).clip(0, MAX_RECORD).cumsum()
        if len(ends) and ends[-1] > PAGE_BYTES:
            most = max(int(ends.searchsorted(PAGE_BYTES, "right")), 1)
            rows, sizes, is_filler = rows[:most], sizes[:most], is_filler[:most]
        data, starts = self._log.records(rows["physical_offset"].astype(np.int64), sizes)
        missing = starts[1:] == starts[:-1]
        is_complete = not missing.any()
        damaged = () if is_complete else np.flatnonzero(missing & ~is_filler).tolist()
        return QueuePage(data, starts.tolist(), rows["tags_code"].tolist(), frozenset(damaged),
                         is_complete)


class RecordQueue:
    """A batch consume queue or the queue of a compaction topic, read record by record, as a broker
    reads it.
    """

    def __init__(self, view: View, topic: str, queue_id: int) -> None:
        self._view, self._topic, self._queue_id = view, topic, queue_id
        answer = get_message(view, topic, queue_id, 0, 1)
        self.first, self.end = answer.min, answer.max
        plain = view.store.queues.find(topic, queue_id)
        if plain is not None and plain.exists:  # of a compacted topic it begins before what is left
            self.first = view.bounds(plain).first
            plain.close()

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled:
        answer = get_message(self._view, self._topic, self._queue_id, offset, most)
        if answer.status != FOUND:
            return Pulled(answer.status, answer.next_begin, answer.min, answer.max)
        store = self._view.store
        compacted = CompactionQueue.served(store, self._topic, self._queue_id) if (
            self._view.generation >= 5) else None
        log = store.log if compacted is None else compacted.log
        records: list[bytes] = []
        skipped = size = 0
        following = answer.next_begin
        for physical in answer.offsets:
            raw = log.raw_at(physical)
            if raw is None or not _is_whole(raw):
                skipped += 1
            elif accept is None or accept(tags_code(properties.parse(
                    decode(raw).properties.decode("utf-8", "replace")).get(properties.TAGS)), raw):
                size += len(raw)
                if records and size > max_bytes:
                    following = decode(raw).queue_offset
                    break
                records.append(raw)
        if compacted is not None:
            compacted.close()
        return Pulled(FOUND if records else NO_MATCH, following, answer.min, answer.max, records,
                      len(records), skipped)


def _is_whole(raw: bytes) -> bool:
    try:
        return decode(raw).crc_ok
    except FormatError:
        return False


class EmptyQueue:
    """A queue without messages."""

    first = end = 0

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled:
        return Pulled(NO_MESSAGE, 0, 0, 0)
