"""Queues of a store as consumers pull from them.

What a pull gives are the bytes of records as they lie in the log. A record that is not whole, or
whose body does not match its CRC, is passed over and counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

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
from rmqctl.serve.blocks import LogReader
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.compaction import CompactionQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue

WINDOW = 512
"""Rows of a queue that are read together."""
SCANNED_ROWS = 800
"""Rows that are looked at for one pull at most, if not more are asked for."""
FILTER_S = 0.05
"""A pull whose filter, or whose damaged rows, have taken so long ends; the client goes on from
there.
"""
_LOOK_AT_CLOCK = 16

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


Rows = tuple[list[int], list[int], list[int]]
"""Physical offsets, sizes and tags codes."""


@dataclass(slots=True)
class Windows:
    """Rows of queues, `WINDOW` of them at a time; the least used given up first."""

    limit: int = 512
    _kept: OrderedDict[tuple[int, int], Rows] = field(default_factory=OrderedDict)

    def get(self, key: tuple[int, int]) -> Rows | None:
        """Rows that are kept; they count as used now."""
        rows = self._kept.get(key)
        if rows is not None:
            self._kept.move_to_end(key)
        return rows

    def put(self, key: tuple[int, int], rows: Rows) -> None:
        """Keeps rows, and gives others up for them."""
        self._kept[key] = rows
        if len(self._kept) > self.limit:
            self._kept.popitem(last=False)


class StoredQueue:
    """A plain consumequeue, in files or in RocksDB, in one view of its store."""

    _numbers = iter(range(1 << 62))

    def __init__(self, view: View, queue: ConsumeQueue, log: LogReader, windows: Windows) -> None:
        bounds = view.bounds(queue)
        self.first, self.end = bounds.first, bounds.end
        self._queue, self._generation = queue, view.generation
        self._log, self._windows = log, windows
        self._number = next(self._numbers)
        queue.close()

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled:
        """Up to ``most`` records from the queue offset ``offset`` on that ``accept`` takes."""
        refused = outside(offset, self.first, self.end, self._generation)
        if refused is not None:
            return Pulled(refused.status, refused.next_begin, self.first, self.end)
        records: list[bytes | memoryview] = []
        size = skipped = 0
        at, last = offset, min(self.end, offset + max(SCANNED_ROWS, most))
        most = min(max(most, 1), MAX_COUNT)
        read, seen = self._log.record, False
        late = monotonic() + FILTER_S
        while at < last and len(records) < most:
            first = at - at % WINDOW
            physical, sizes, tags = self._rows(first)
            if at - first >= len(physical):
                at = self._behind_hole(at)
                continue
            for place in range(at - first, min(len(physical), last - first)):
                record = read(physical[place], sizes[place])
                if record is None:
                    skipped += sizes[place] != FILLER.size
                    if monotonic() > late:
                        last = at = at + 1
                        break
                elif accept is None or accept(tags[place], record):
                    size += len(record)
                    if size > max_bytes and records:
                        return Pulled(FOUND, at, self.first, self.end, records, skipped)
                    records.append(record)
                    if len(records) == most:
                        at += 1
                        break
                else:
                    seen = True
                at += 1
                if accept is not None and at % _LOOK_AT_CLOCK == 0 and monotonic() > late:
                    last = at
                    break
        status = FOUND if records else NO_MATCH if seen else REMOVING
        return Pulled(status, min(at, self.end), self.first, self.end, records, skipped)

    def _behind_hole(self, offset: int) -> int:
        """The queue offset of the first row behind a hole in the files."""
        return min((first for first, _ in self._queue.stretches if first > offset),
                   default=self.end)

    def _rows(self, first: int) -> Rows:
        """The rows from ``first`` on, up to a hole; of those before the queue's first, fillers."""
        key = self._number, first
        rows = self._windows.get(key)
        if rows is None:
            begin = max(first, self.first)
            units = self._queue.units(begin, min(first + WINDOW, self.end) - begin)
            self._queue.close()
            before = begin - first
            rows = ([0] * before + units["physical_offset"].tolist(),
                    [FILLER.size] * before + units["size"].tolist(),
                    [0] * before + units["tags_code"].tolist())
            self._windows.put(key, rows)
        return rows


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
