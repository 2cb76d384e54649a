"""Queues of a store as consumers pull from them: pages of rows with their records, checked once.

What a pull gives are the bytes of records as they lie in the log. A record that is not whole, or
whose body does not match its CRC, is passed over and counted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

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
from rmqctl.formats.local import properties
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.javahash import tags_code
from rmqctl.formats.local.message import decode
from rmqctl.store.log.bounds import View
from rmqctl.store.log.commit_log import records_at
from rmqctl.store.queue.compaction import CompactionQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue

PAGE_ROWS = 512
PAGE_BYTES = 1 << 20
"""About so much of the log is read for a page; a larger message is read all the same."""
SCANNED_ROWS = 800
"""Rows that are looked at for one pull at most, if not more are asked for."""
KEPT_BYTES = 64 << 20
"""What pages of all queues may hold together."""

Accept = Callable[[int, bytes | memoryview], bool]
"""Whether a message is wanted, from the tags code of its row and its record."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer of a queue: ``status`` in the broker's words, where to go on, the queue's bounds,
    the records. ``skipped``: damaged ones that were passed over.
    """

    status: str
    next_begin: int
    min: int
    max: int
    records: Sequence[bytes | memoryview] = ()
    skipped: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.records))


class Queue(Protocol):
    """What can be pulled from. ``first`` and ``end`` are queue offsets."""

    @property
    def first(self) -> int: ...

    @property
    def end(self) -> int: ...

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled: ...


@dataclass(slots=True)
class _Page:
    """Rows from ``first`` on: their records (None where none is served) and tags codes."""

    first: int
    records: list[memoryview | None]
    tags: list[int]
    damaged: frozenset[int]
    size: int


@dataclass(slots=True)
class Pages:
    """The pages of all queues of a server, the least used given up first."""

    limit: int = KEPT_BYTES
    _kept: OrderedDict[tuple[int, int], _Page] = field(default_factory=OrderedDict)
    _size: int = 0

    def get(self, key: tuple[int, int]) -> _Page | None:
        page = self._kept.get(key)
        if page is not None:
            self._kept.move_to_end(key)
        return page

    def put(self, key: tuple[int, int], page: _Page) -> None:
        old = self._kept.pop(key, None)
        self._size += page.size - (0 if old is None else old.size)
        self._kept[key] = page
        while self._size > self.limit and len(self._kept) > 1:
            self._size -= self._kept.popitem(last=False)[1].size

    def forget(self) -> None:
        self._kept.clear()
        self._size = 0


class StoredQueue:
    """A plain consumequeue, in files or in RocksDB, in one view of its store."""

    _numbers = iter(range(1 << 62))

    def __init__(self, view: View, queue: ConsumeQueue, pages: Pages) -> None:
        bounds = view.bounds(queue)
        self.first, self.end = bounds.first, bounds.end
        self._queue, self._view, self._pages = queue, view, pages
        self._number = next(self._numbers)
        self._starts: list[int] = []
        queue.close()

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled:
        refused = outside(offset, self.first, self.end, self._view.generation)
        if refused is not None:
            return Pulled(refused.status, refused.next_begin, self.first, self.end)
        records: list[memoryview] = []
        size = skipped = 0
        at, last = offset, min(self.end, offset + max(SCANNED_ROWS, most))
        most = min(max(most, 1), MAX_COUNT)
        matched = False
        while at < last:
            page = self._page(at)
            if not page.records:
                break
            for place in range(at - page.first, min(len(page.records), last - page.first)):
                record = page.records[place]
                if record is None:
                    skipped += place in page.damaged
                elif accept is None or accept(page.tags[place], record):
                    if records and (len(records) >= most or size + len(record) > max_bytes):
                        return Pulled(FOUND, page.first + place, self.first, self.end, records,
                                      skipped)
                    records.append(record)
                    size += len(record)
                else:
                    matched = True
            at = page.first + min(len(page.records), last - page.first)
            if len(records) >= most:
                # Rows behind it that nobody wants need not be looked at again and again.
                break
        if records:
            return Pulled(FOUND, at, self.first, self.end, records, skipped)
        if at == offset:  # a hole in the files: go on behind it
            at = self._behind_hole(offset)
        return Pulled(NO_MATCH if matched else REMOVING, at, self.first, self.end, (), skipped)

    def _behind_hole(self, offset: int) -> int:
        return min((first for first, _ in self._queue.stretches if first > offset),
                   default=self.end)

    def _page(self, offset: int) -> _Page:
        """The page with the row at ``offset``; read from there on where none is kept."""
        place = bisect_right(self._starts, offset)
        if place:
            page = self._pages.get((self._number, self._starts[place - 1]))
            if page is None:
                place -= 1
                del self._starts[place]
            elif offset < page.first + len(page.records):
                return page
        end = self._starts[place] if place < len(self._starts) else self.end
        page = self._load(offset, min(end, self.end) - offset)
        if page.records:
            self._starts.insert(place, offset)
            self._pages.put((self._number, offset), page)
        return page

    def _load(self, first: int, count: int) -> _Page:
        rows = self._queue.units(first, min(PAGE_ROWS, count))
        self._queue.close()
        size = np.clip(rows["size"].astype(np.int64), 0, None)
        if len(size):
            rows = rows[:max(int(np.searchsorted(np.cumsum(size), PAGE_BYTES)), 1)]
        physical = rows["physical_offset"].astype(np.int64)
        size = size[:len(rows)]
        records: list[memoryview | None] = [None] * len(rows)
        order = np.argsort(physical, kind="stable")
        unique = order[np.r_[True, np.diff(physical[order]) > 0]] if len(order) else order
        held = 0
        for window in records_at(self._view.store.log, physical[unique], size[unique]):
            if window.batch is None:
                continue
            batch = window.batch
            good = batch.crc_ok() & (batch.column("total_size") == size[unique][
                window.rows[window.found]])
            held += len(batch.data)
            data = memoryview(batch.data.data).toreadonly()
            places = unique[window.rows[window.found]][good].tolist()
            for place, start, length in zip(places, batch.start[good].tolist(),
                                            batch.column("total_size")[good].tolist(),
                                            strict=True):
                records[place] = data[start:start + length]
        limit = self._view.log_end
        filler = tuple(FILLER)
        damaged = []
        for place, row in enumerate(rows.tolist()):
            if limit is not None and row[0] + row[1] > limit:
                records[place] = None
            elif records[place] is None and row != filler:
                damaged.append(place)
        return _Page(first, records, rows["tags_code"].tolist(), frozenset(damaged),
                     held + 64 * len(rows))


class AnsweredQueue:
    """A batch consumequeue or a compacted topic: asked as a broker is, record by record."""

    def __init__(self, view: View, topic: str, queue_id: int) -> None:
        self._view, self._topic, self._queue_id = view, topic, queue_id
        answer = get_message(view, topic, queue_id, 0, 1)
        self.first, self.end = answer.min, answer.max

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled:
        answer = get_message(self._view, self._topic, self._queue_id, offset, most)
        if answer.status != FOUND:
            return Pulled(answer.status, answer.next_begin, answer.min, answer.max)
        store = self._view.store
        compacted = CompactionQueue.open(store, self._topic, self._queue_id) if (
            self._view.generation >= 5) else None
        log = store.log if compacted is None else compacted.log
        records: list[bytes] = []
        skipped = 0
        for physical in answer.offsets:
            raw = log.raw_at(physical)
            if raw is None or not _is_whole(raw):
                skipped += 1
            elif accept is None or accept(tags_code(properties.parse(
                    decode(raw).properties.decode("utf-8", "replace")).get(properties.TAGS)), raw):
                records.append(raw)
        if compacted is not None:
            compacted.close()
        return Pulled(FOUND if records else NO_MATCH, answer.next_begin, answer.min, answer.max,
                      records, skipped)


def _is_whole(raw: bytes) -> bool:
    try:
        return decode(raw).crc_ok
    except FormatError:
        return False


class EmptyQueue:
    """A queue of which nothing is on the disk."""

    first = end = 0

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled:
        return Pulled(NO_MESSAGE, 0, 0, 0)
