"""What a broker asks its local store before it goes to the tier (tiered.md §9.1, §10, §11)."""

from __future__ import annotations

from collections.abc import Iterable

from rmqctl.broker.get_message import FOUND, NO_MATCH, REMOVING, Answer, get_message
from rmqctl.broker.offset_by_time import TimeAnswer, offset_by_time
from rmqctl.formats.local.message import Record
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.compaction import CompactionQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.rows import batch_queue


class LocalSide:
    """The local store of a broker, asked as 5.3.3 asks it.

    ``in_memory_from``: the physical offset from which on the log counts as in memory. That
    cannot be seen from outside; None: nothing of it is.
    """

    def __init__(self, view: View, in_memory_from: int | None = None) -> None:
        self.view, self.in_memory_from = view, in_memory_from
        self._earliest: int | None = None
        self._compaction: tuple[tuple[str, int], CompactionQueue | None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the commitlog has no file (a broker's min offset is negative then)."""
        return not self.view.store.log.files

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | BatchQueue | None:
        return (self.view.store.queue(topic, queue_id)
                or batch_queue(self.view.store, topic, queue_id))

    def unit(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        """(physical offset, size) of the row of a queue offset; None where none is."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return None
        if isinstance(queue, BatchQueue):
            row = queue.find(offset, self.view.log_end)
            return None if row is None else (row.physical_offset, row.size)
        bounds = self.view.bounds(queue)
        unit = queue.unit(offset) if bounds.first <= offset < bounds.end else None
        return None if unit is None else (unit.physical_offset, unit.size)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """A queue's min offset; 0 of one that is not there, which a broker makes when asked."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0
        if isinstance(queue, BatchQueue):
            return queue.bounds(self.view.store.log.min_offset, self.view.log_end)[0]
        return self.view.bounds(queue).first

    def holds(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the log has it; an offset without a row counts as physical offset 0.

        A broker's checkInStoreByConsumeOffset.
        """
        unit = self.unit(topic, queue_id, offset)
        least = -1 if self.is_empty else self.view.store.log.min_offset
        return (0 if unit is None else unit[0]) >= least

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int) -> bool:
        """Whether ``[offset, offset + count]`` lies in one file of the log, and in memory.

        A broker's checkInMemByConsumeOffset.
        """
        first = self.unit(topic, queue_id, offset)
        if first is None or self.in_memory_from is None:
            return False
        start, size = first
        last = self.unit(topic, queue_id, offset + count) if count > 1 else None
        if last is not None:
            size = last[0] - start + last[1]
        file = self.view.store.log.file_of(start)
        return file is not None and start + size <= file.end and start >= self.in_memory_from

    def earliest_time(self) -> int:
        """The store time of the first record, -1 without one: getEarliestMessageTime."""
        if self._earliest is None:
            log = self.view.store.log
            record = log.record_at(log.min_offset) if log.files else None
            self._earliest = -1 if record is None else record.store_timestamp
        return self._earliest

    def queue_earliest(self, topic: str, queue_id: int) -> int:
        """The store time of a queue's first message; -1 where none can be read."""
        unit = self.unit(topic, queue_id, self.min_offset(topic, queue_id))
        record = None if unit is None else self.view.store.log.record_at(*unit)
        return -1 if record is None else record.store_timestamp

    def get(self, topic: str, queue_id: int, offset: int, count: int) -> Answer:
        return get_message(self.view, topic, queue_id, offset, count)

    def rows(self, topic: str, queue_id: int, offset: int, answer: Answer) -> int:
        """How many messages an answer should have had: the offsets it goes over. Of a batch queue
        or a compacted topic, whose offsets are sparse, the rows it gave.
        """
        if answer.status not in (FOUND, NO_MATCH, REMOVING):
            return 0
        if self.view.store.queue(topic, queue_id) is None or self._compacted(topic, queue_id):
            return len(answer.offsets)
        return max(answer.next_begin - offset, len(answer.offsets))

    def _compacted(self, topic: str, queue_id: int) -> CompactionQueue | None:
        key = topic, queue_id
        if self._compaction is None or self._compaction[0] != key:
            self._compaction = key, CompactionQueue.open(self.view.store, topic, queue_id)
        return self._compaction[1]

    def expired(self, topic: str, queue_id: int, offset: int, count: int) -> int:
        """How many rows from an offset on lead before the first file of the log."""
        least = self.view.store.log.min_offset
        for queue_offset in range(offset, offset + count):
            unit = self.unit(topic, queue_id, queue_offset)
            if unit is None or unit[0] >= least:
                return queue_offset - offset
        return count

    def records(self, topic: str, queue_id: int, offsets: Iterable[int]) -> tuple[Record, ...]:
        """The records at an answer's physical offsets; those that do not prove themselves are
        left out.
        """
        compacted = self._compacted(topic, queue_id)
        log = self.view.store.log if compacted is None else compacted.log
        records = tuple(record for record in map(log.record_at, offsets) if record is not None)
        if compacted is not None:
            compacted.close()
        return records

    def at_time(self, topic: str, queue_id: int, when: int, upper: bool) -> TimeAnswer | None:
        return offset_by_time(self.view, topic, queue_id, when, upper=upper)
