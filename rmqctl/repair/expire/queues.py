"""Queue files whose messages have all expired (spec: consumequeue.md §5, §8, §9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rmqctl.formats.local import batch_consume_queue, consume_queue, consume_queue_ext
from rmqctl.formats.local.consume_queue import UNIT_SIZE
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, common_size, listing
from rmqctl.store.log.end import used_size
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store

Array = np.ndarray[Any, np.dtype[Any]]
QueueKey = tuple[str, int]
_PAGE_ROWS = 1 << 16


class Span(NamedTuple):
    """The first queue offset with a message in the log, ``before`` and ``after``."""

    before: int
    after: int


@dataclass(slots=True)
class QueuesExpired:
    """The files that go, and how far the beginning of each queue moves."""

    files: list[StoreFile] = field(default_factory=list)
    rows: dict[QueueKey, Span] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def by_topic(self) -> dict[str, int]:
        """How many queue offsets expire, by topic; topics without any left out."""
        out: dict[str, int] = {}
        for (topic, _), span in self.rows.items():
            if span.after > span.before:
                out[topic] = out.get(topic, 0) + span.after - span.before
        return dict(sorted(out.items(), key=lambda one: -one[1]))

    def of_topic(self, topic: str) -> Iterator[tuple[int, Span]]:
        """(queue id, span) of a topic's queues."""
        return ((queue_id, span) for (name, queue_id), span in self.rows.items() if name == topic)


def expire_queues(store: Store, before: int, after: int) -> QueuesExpired:
    """What goes of all queues when the log, which began at ``before``, begins at ``after``.

    A file goes when its last row leads to before ``after``, the first ones only, never the last
    one in use: it keeps the queue's next offset. StoreIOError.
    """
    out = QueuesExpired()
    for key, queue in store.queues.items():
        with closing(queue):
            gone = _gone(out, queue.files, queue.file_size, consume_queue.dtype(), after)
            if after > before:
                out.rows[key] = Span(_first_row(queue, before), _first_row(queue, after))
        out.files += gone
        out.files += _gone_ext(store, key, queue.files[len(gone):], after)
    for key, batch in store.batch_queues.items():
        out.files += _gone(out, batch.files, batch.file_size, batch_consume_queue.dtype(), after)
        if after > before:
            out.rows[key] = Span(_first_of_batch(batch, before), _first_of_batch(batch, after))
    return out


def _gone(out: QueuesExpired, files: list[StoreFile], file_size: int, dtype: np.dtype[Any],
          after: int) -> list[StoreFile]:
    last = _last_used(files)
    gone: list[StoreFile] = []
    for one in files[:max(last, 0)]:
        if one.size < file_size or not _ends_before(one, file_size, dtype, after):
            break
        if _leads_behind(one, dtype, after):
            out.notes.append(f"{one.path}: its last row leads to an expired message, but others do "
                             "not; it stays (a broker would delete it), see `rmqctl verify`")
            break
        gone.append(one)
    return gone


def _last_used(files: list[StoreFile]) -> int:
    """The number of the last file that holds anything; 0 where none does."""
    for number in range(len(files) - 1, 0, -1):
        with FileSource(files[number].path) as source:
            if used_size(source):
                return number
    return 0


def _ends_before(file: StoreFile, file_size: int, dtype: np.dtype[Any], after: int) -> bool:
    """The broker's test: where the last unit of the file leads to."""
    with FileSource(file.path) as source:
        raw = source.read(file_size - dtype.itemsize, dtype.itemsize)
    return int(np.frombuffer(raw, dtype)[0]["physical_offset"]) < after


def _leads_behind(file: StoreFile, dtype: np.dtype[Any], after: int) -> bool:
    """Whether any row of the file leads to a message that stays (only in a damaged one)."""
    size = dtype.itemsize
    with FileSource(file.path) as source:
        at, end = 0, source.size - source.size % size
        while at < end:
            at = max(at, source.next_data(at) // size * size)
            rows = np.frombuffer(source.read(at, min(_PAGE_ROWS * size, max(end - at, 0))), dtype)
            if not len(rows):
                return False
            if ((rows["physical_offset"] >= after) & (rows["size"] > 0)).any():
                return True
            at += len(rows) * size
    return False


def _first_row(queue: ConsumeQueue, physical: int) -> int:
    """The first row at or behind a physical offset, by bisection; the end where none is.

    Fillers lead to 0 and are no rows, so they count as before everything.
    """
    low, high = queue.first_index, queue.written
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is not None and not unit.is_filler and unit.physical_offset >= physical:
            high = middle
        else:
            low = middle + 1
    return low


def _first_of_batch(batch: BatchQueue, physical: int) -> int:
    """The first queue offset of the first row at or behind a physical offset."""
    end = 0
    for number in range(len(batch.files)):
        rows = batch.used(number)
        kept = np.flatnonzero(rows["physical_offset"] >= physical)
        if len(kept):
            return int(rows[kept[0]]["msg_base_offset"])
        if len(rows):
            end = int(rows[-1]["msg_base_offset"]) + int(rows[-1]["batch_size"])
    return end


def _gone_ext(store: Store, key: QueueKey, queue_files: list[StoreFile],
              after: int) -> list[StoreFile]:
    """Extension files that end before the unit of the queue's first row (spec §8).

    As with a broker only the first queue file left is asked, and a file that ends exactly where
    that unit begins stays.
    """
    files = listing(store.path("consumequeue_ext", key[0], str(key[1]))).files
    if not files or not queue_files:
        return []
    code = _first_code(queue_files[0], after)
    if code is None or not consume_queue_ext.is_address(code):
        return []
    offset = consume_queue_ext.byte_offset(code)
    size = common_size(files) or files[0].size
    return [one for one in files[:-1] if one.base + size < offset]


def _first_code(file: StoreFile, after: int) -> int | None:
    """The tags code of the file's first row that leads to ``after`` or behind."""
    dtype = consume_queue.dtype()
    with FileSource(file.path) as source:
        at = 0
        end = min(source.size, -(-used_size(source) // UNIT_SIZE) * UNIT_SIZE)
        while at < end:
            data = source.read(at, min(_PAGE_ROWS * UNIT_SIZE, end - at))
            rows = np.frombuffer(data[:len(data) - len(data) % UNIT_SIZE], dtype)
            if not len(rows):
                return None
            found = np.flatnonzero((rows["physical_offset"] >= after) & (rows["size"] > 0))
            if len(found):
                return int(rows[found[0]]["tags_code"])
            at += len(rows) * UNIT_SIZE
    return None
