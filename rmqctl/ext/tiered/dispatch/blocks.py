"""One pass over the local log that collects the messages of all queues, window by window.

The records of a queue in a window are copied back to back into a block. The offsets in the copies
are replaced by offsets in the tiered commit log. Then the new records are checked. Small blocks of
several queues are built together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

import numpy as np

from rmqctl.ext.tiered.dispatch.buffer_pool import WindowBuffers
from rmqctl.ext.tiered.dispatch.local import LocalQueue, computed_tags
from rmqctl.formats import layout
from rmqctl.formats.local import message
from rmqctl.kernel import active
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, Batch, distinct, examine, gather, gather_int
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import FileSource
from rmqctl.store.log.commit_log import CommitLog

WINDOW = 16 << 20
"""Size of a window: bytes of the log that are processed at a time."""
_NEAR = 1 << 17
"""Maximum gap (bytes) between two records that is read rather than skipped."""
_TOGETHER = 4 << 20
"""Maximum bytes of small blocks that are built together."""
_PHYSICAL = layout.field(message.Message, "physical_offset")
_TOTAL = layout.field(message.Message, "total_size")


@dataclass(slots=True)
class Block:
    """Messages of one queue as they are uploaded, back to back in ``data``.

    ``offset`` and ``base``: queue offset and tiered offset of the first message. ``end``: the end
    position of each message in ``data``.
    """

    queue: LocalQueue
    offset: int
    base: int
    data: memoryview
    end: Array
    size: Array
    tags: Array
    batch: Batch
    group_starts: list[int] = field(default_factory=list)
    """Indices of the messages in this block with which a broker would begin a group commit."""

    def __len__(self) -> int:
        return len(self.end)

    @property
    def bytes(self) -> int:
        return int(self.end[-1]) if len(self.end) else 0

    @property
    def begin(self) -> Array:
        """The tiered offsets of the messages."""
        begins: Array = self.base + self.end - self.size
        return begins

    @property
    def times(self) -> Array:
        """The correct store times (ms) of the messages. If the born host is IPv6, a broker reads a
        wrong time.
        """
        return self.batch.column("store_timestamp")

    def head(self, count: int) -> Block:
        """Return a block of the first ``count`` messages."""
        keep = slice(0, count)
        return Block(self.queue, self.offset, self.base, self.data, self.end[keep],
                     self.size[keep], self.tags[keep], self.batch.select(keep), self.group_starts)


@dataclass(slots=True)
class WindowRows:
    """The consume queue entries of a queue that point into a window."""

    queue: LocalQueue
    first: int
    rows: Array

    def cut(self, good: int, reason: str) -> None:
        """Keep the first ``good`` entries; ``reason``: why the messages of the other entries cannot
        be uploaded.
        """
        physical = int(self.rows["physical_offset"][good])
        self.queue.stop(self.first + good, f"physical offset {physical}: {reason}")
        self.rows = self.rows[:good]


@dataclass(slots=True)
class WindowRecords:
    """A window of the log that begins at physical offset ``start``, and a buffer into which records
    are copied from it.
    """

    log: memoryview
    start: int
    room: memoryview
    used: int = 0

    def joined(self, rows: Array) -> tuple[Array, memoryview]:
        """Return the sizes of the records that ``rows`` point to, and the joined records."""
        size = rows["size"].astype(np.int64)
        start = rows["physical_offset"].astype(np.int64) - self.start
        total = int(size.sum())
        end = self.used + total
        if end > len(self.room):  # damaged rows claim more than the window has
            part = memoryview(bytearray(total))
        else:
            part, self.used = self.room[self.used:end], end
        kernel = active()
        if kernel is not None:
            kernel.join(self.log, start, size, part)
        else:
            part[:] = b"".join(map(self.log.__getitem__, map(slice, start.tolist(),
                                                             (start + size).tolist())))
        return size, part


def blocks_of(taken: list[WindowRows], cut: WindowRecords,
              place: Callable[[LocalQueue], int]) -> Iterator[Block]:
    """Yield the non-empty blocks of a window; ``place`` returns a queue's next tiered offset."""
    for group in _groups(taken):
        yield from (block for block in _blocks(group, cut, place) if len(block))


def _groups(taken: list[WindowRows]) -> Iterator[list[WindowRows]]:
    """Yield groups of consecutive queues whose blocks are built together. A queue with much data
    forms a group of its own.
    """
    group: list[WindowRows] = []
    size = 0
    for taken_rows in taken:
        own = int(taken_rows.rows["size"].sum(dtype=np.int64))
        if group and size + own > _TOGETHER:
            yield group
            group, size = [], 0
        group.append(taken_rows)
        size += own
    if group:
        yield group


def _blocks(group: list[WindowRows], cut: WindowRecords,
            place: Callable[[LocalQueue], int]) -> Iterator[Block]:
    """Yield the blocks of a group. A block ends before its first record that does not match its
    consume queue entry.

    The records are joined first, so the next steps find them in the processor's cache. If all
    records of a group are valid, a single check suffices.
    """
    bases = [place(taken.queue) for taken in group]
    rows = np.concatenate([taken.rows for taken in group])
    size, data = cut.joined(rows)
    end = np.cumsum(size)
    begin = end - size
    counts = [len(taken.rows) for taken in group]
    last = np.cumsum(counts)
    first = last - counts
    shift = np.repeat(np.array(bases) - begin[first], counts)
    """Difference between each record's tiered offset and its position in ``data``."""
    # The physicalOffset of each record: the local one, then the tiered one.
    records = np.frombuffer(data, np.uint8)
    places = begin + _PHYSICAL.offset
    ok = gather_int(records, places, "i8") == rows["physical_offset"]
    _scatter(data, places, begin + shift)
    batch, proven = examine(records, shift, begin)  # checked in the new form
    ok &= proven
    # No record may reach into another queue's block.
    ok &= gather_int(records, begin + _TOTAL.offset, "i4") <= np.repeat(end[last - 1],
                                                                         counts) - begin
    offsets = np.arange(len(rows)) + np.repeat([taken.first for taken in group] - first, counts)
    right = bool(
        ok.all() and (batch.column("total_size") == rows["size"]).all()
        and _have_topics(batch, [taken.queue.topic for taken in group], counts)
        and (batch.column("queue_id") == np.repeat([taken.queue.queue_id for taken in group],
                                                   counts)).all()
        and (batch.column("queue_offset") == offsets).all() and batch.crc_ok().all())
    if right:
        batch.column("store_timestamp")  # so it is not computed for each block
    for taken, base, low, high in zip(group, bases, first.tolist(), last.tolist(), strict=True):
        begins, ends = int(begin[low]), int(end[high - 1])
        part = batch.select(slice(low, high))
        part.base = base - begins
        if not right:
            part = _proven(taken, part, ok[low:high])
        good = slice(low, low + len(part))
        yield Block(taken.queue, taken.first, base, data[begins:ends], end[good] - begins,
                    size[good], _tags(taken, part), part)


def _tags(taken: WindowRows, batch: Batch) -> Array:
    """Return the tags code of each entry; compute it from the message if the entry's extension unit
    is lost.
    """
    tags, lost = taken.queue.tags(taken.rows)
    for number in lost:
        tags[number] = computed_tags(batch.bytes_at(number))
    return tags


def _proven(taken: WindowRows, batch: Batch, ok: Array) -> Batch:
    """Return the records of a queue up to the first record that does not match its consume queue
    entry. Stop the queue at that record.
    """
    count = len(ok)
    good = count if ok.all() else int(ok.argmin())
    if good < count:  # columns of other bytes are meaningless
        batch = batch.select(slice(0, good))
    tests = _tests(taken, batch)
    passed = np.logical_and.reduce([test for _, test in tests])
    if not passed.all():
        good = int(passed.argmin())
        taken.cut(good, next(text for text, test in tests if not test[good]))
        return batch.select(slice(0, good))
    if good < count:
        taken.cut(good, "no intact record at this offset")
    return batch


def _tests(taken: WindowRows, batch: Batch) -> list[tuple[str, Array]]:
    """Return the tests of records. Each test is (reason to refuse a record, boolean array: True if
    the record passes). The first failed test determines the reason.
    """
    queue, count = taken.queue, len(batch)
    topic = queue.topic.encode("utf-8", "surrogateescape")
    return [
        ("the record's size differs from the size in its entry",
         batch.column("total_size") == taken.rows["size"][:count]),
        ("the record belongs to another topic", _has_topic(batch, topic)),
        ("the record belongs to another queue", batch.column("queue_id") == queue.queue_id),
        ("the record has another queue offset",
         batch.column("queue_offset") == taken.first + np.arange(count)),
        ("body CRC mismatch", batch.crc_ok()),
    ]


def _has_topic(batch: Batch, topic: bytes) -> Array:
    good: Array = batch.column("topic_length") == len(topic)
    rows = np.flatnonzero(good)
    if len(rows) and topic:
        raw = _bytes_at(batch.data, batch.column("topic_start")[rows], len(topic))
        good[rows] = (raw == np.frombuffer(topic, np.uint8)).all(axis=1)
    return good


def _have_topics(batch: Batch, topics: list[str], counts: list[int]) -> bool:
    """Return whether the first ``counts[0]`` messages have the first topic, the next ``counts[1]``
    messages the second topic, and so on.
    """
    raw = [topic.encode("utf-8", "surrogateescape") for topic in topics]
    lengths = np.array([len(topic) for topic in raw])
    wanted = np.repeat(lengths, counts)
    if (batch.column("topic_length") != wanted).any():
        return False
    for width in distinct(lengths[lengths > 0]).tolist():
        rows = np.flatnonzero(wanted == width)
        texts = np.frombuffer(b"".join(topic for topic in raw if len(topic) == width), f"V{width}")
        expected = np.repeat(texts, [count for topic, count in zip(raw, counts, strict=True)
                                     if len(topic) == width])
        present = _bytes_at(batch.data, batch.column("topic_start")[rows], width)
        if (present != expected.view(np.uint8).reshape(-1, width)).any():
            return False
    return True


def _bytes_at(data: Array, position: Array, width: int) -> Array:
    """Return ``width`` bytes from each position (uint8 [positions, width]); positions are clipped
    to the data.
    """
    raw: Array = gather(data, position, width).view(np.uint8).reshape(-1, width)
    return raw


def _scatter(data: memoryview, position: Array, values: Array) -> None:
    """Write big-endian eight-byte numbers at positions of a buffer."""
    width = _PHYSICAL.size
    window: Array = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    window[position] = values.astype(">i8").view(f"V{width}")


# -- the sweep ------------------------------------------------------------------------------------

class Sweep:
    """A pass over the messages of queues that are not yet uploaded. `windows` yields the blocks of
    one window after another.

    ``place`` returns the tiered offset at which a queue continues. A message that cannot be
    uploaded stops its queue (`LocalQueue.fault`); all other queues continue.
    Raises: StoreIOError if the log cannot be read.
    """

    def __init__(self, log: CommitLog, queues: Sequence[LocalQueue],
                 place: Callable[[LocalQueue], int], window: int = WINDOW) -> None:
        self._log, self._queues, self._place, self._window = log, queues, place, window
        self._buffer = memoryview(b"")
        self._buffers = WindowBuffers()

    def windows(self) -> Iterator[Iterator[Block]]:
        """Yield an iterator over the blocks of each window. Blocks are built on demand: read all
        blocks of a window before you request the next window.
        """
        # Order the queues by the place of their next message in the log.
        heap = []
        for number, queue in enumerate(self._queues):
            physical = queue.next_physical()
            if physical is not None:
                heap.append((physical, number))
        heapq.heapify(heap)
        while heap:
            start = heap[0][0]
            # A queue whose next message is in no log file stops; the others continue.
            place = self._log.locate(start)
            if place is None:
                queue = self._queues[heapq.heappop(heap)[1]]
                queue.stop(queue.cursor, f"physical offset {start}: {self._log.explain(start)}")
                continue
            source = place[0]
            limit = min(start + self._window, source.base + source.size)
            # Take from each queue all messages inside the window, so the log is read only once.
            taken: list[WindowRows] = []
            numbers = []
            while heap and heap[0][0] < limit:
                number = heapq.heappop(heap)[1]
                taken.append(WindowRows(self._queues[number], *self._queues[number].take(limit)))
                numbers.append(number)
            yield self._blocks(source, start, taken)
            # Put the queues back with their next message.
            for number in numbers:
                physical = self._queues[number].next_physical()
                if physical is not None:
                    heapq.heappush(heap, (physical, number))

    def _blocks(self, source: FileSource, start: int, taken: list[WindowRows]) -> Iterator[Block]:
        file_end = source.base + source.size
        for queue_taken in taken:
            inside = queue_taken.rows["physical_offset"] + queue_taken.rows["size"] <= file_end
            if not inside.all():
                queue_taken.cut(int(inside.argmin()), "the record would extend past the end of the "
                                "log file")
        taken = [queue_taken for queue_taken in taken if len(queue_taken.rows)]
        if not taken:
            return
        rows = np.concatenate([queue_taken.rows for queue_taken in taken])
        self._read(source, start, rows)
        # Damaged rows may claim far more than a window contains: `joined` copies those elsewhere.
        room = min(int(rows["size"].sum(dtype=np.int64)), self._window + MAX_RECORD)
        cut = WindowRecords(self._buffer, start, self._buffers.take(room))
        yield from blocks_of(taken, cut, self._place)

    def _read(self, source: FileSource, start: int, rows: Array) -> None:
        """Copy the records into the buffer. The position of a record in the buffer is its physical
        offset minus ``start``.
        """
        physical = rows["physical_offset"].astype(np.int64)
        order = np.argsort(physical, kind="stable")
        physical = physical[order]
        end = np.maximum.accumulate(physical + rows["size"][order])
        wanted = int(end[-1]) - start
        if len(self._buffer) < wanted:
            self._buffer = self._buffers.take(max(wanted, min(self._window, source.size)))
        far = np.flatnonzero(physical[1:] - end[:-1] > _NEAR)
        begins = np.concatenate((physical[:1], physical[far + 1])).tolist()
        ends = np.concatenate((end[far], end[-1:])).tolist()
        view = self._buffer
        for begin, other in zip(begins, ends, strict=True):
            part = view[begin - start:other - start]
            done = source.read_into(part, begin - source.base)
            if done < len(part):  # the file was truncated meanwhile: zeros are no record
                part[done:] = bytes(len(part) - done)
