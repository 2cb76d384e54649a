"""Choose between a local store and its tier for each query, or combine the answers of both.

The rules follow 5.3.3's TieredMessageStore (tiered.md §9.1, §9.4, §10, §11). A broker knows which
part of its log is in memory; here an argument of `LocalSide` states it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Literal

from rmqctl.broker.get_message import FOUND, MAX_COUNT, NO_MATCH, REMOVING, Answer
from rmqctl.broker.get_message import get_message as get_locally
from rmqctl.broker.offset_by_time import TimeAnswer, offset_by_time
from rmqctl.errors import FormatError, UsageError
from rmqctl.ext.tiered.as_broker import get_message
from rmqctl.ext.tiered.as_broker.get_message import GetResult, Matching, ReadAhead
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.ext.tiered.read import by_time
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.local import message
from rmqctl.formats.local.message import Record
from rmqctl.formats.tiered.names import is_filtered
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.compaction import CompactionQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.rows import batch_queue

Side = Literal["local", "tier"]


class Strategy(IntEnum):
    """Values of ``tieredStorageLevel``. A broker that uses a level also applies the tests of all
    lower levels.
    """

    DISABLE = 0
    NOT_IN_DISK = 1
    NOT_IN_MEM = 2
    FORCE = 3

    @classmethod
    def of(cls, name: str) -> Strategy:
        """Return the strategy with a name; forms such as ``not-in-disk`` are also accepted. Raises:
        UsageError.
        """
        try:
            return cls[name.upper().replace("-", "_")]
        except KeyError:
            valid = ", ".join(strategy.name.lower().replace("_", "-") for strategy in cls)
            raise UsageError(f"unknown strategy {name!r}; valid: {valid}") from None


@dataclass(frozen=True, slots=True)
class RoutedGet:
    """A pull's answer and its source.

    ``passed_over``: number of missing or damaged messages. The first ``expired`` of them have
    expired in the local log.
    ``trouble``: why the tier could not be read.
    """

    side: Side
    status: str
    next_offset: int
    min: int
    max: int
    records: tuple[Record, ...] = ()
    passed_over: int = 0
    expired: int = 0
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class RoutedTime:
    """The queue offset found for a time, and the store that contains it."""

    side: Side
    queue_offset: int
    min_offset: int
    max_offset: int
    record: Record | None = None

# -- the local store ------------------------------------------------------------------------------

class LocalSide:
    """The local store of a broker, queried as a 5.3.3 broker queries it.

    ``in_memory_from``: physical offset from which the log is assumed to be in the broker's memory;
    None: nothing is in memory. Only the broker itself knows the actual offset.
    """

    def __init__(self, view: View, in_memory_from: int | None = None) -> None:
        self.view, self.in_memory_from = view, in_memory_from
        self._earliest: int | None = None
        self._compaction: tuple[tuple[str, int], CompactionQueue | None] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether the commitlog has no file (a broker's min offset is negative then)."""
        return not self.view.store.log.files

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | BatchQueue | None:
        return (self.view.store.queues.find(topic, queue_id)
                or batch_queue(self.view.store, topic, queue_id))

    def unit(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        """Return (physical offset, size) of the consume queue entry at a queue offset, or None."""
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
        """Return a queue's min offset; 0 if the queue does not exist, because a broker then creates
        it.
        """
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0
        if isinstance(queue, BatchQueue):
            return queue.bounds(self.view.store.log.min_offset, self.view.log_end)[0]
        return self.view.bounds(queue).first

    def holds(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether the log contains the message (a broker's checkInStoreByConsumeOffset).

        If the entry is missing, 0 is used as its physical offset.
        """
        unit = self.unit(topic, queue_id, offset)
        least = -1 if self.is_empty else self.view.store.log.min_offset
        return (0 if unit is None else unit[0]) >= least

    def in_memory(self, topic: str, queue_id: int, offset: int, count: int) -> bool:
        """Return whether the messages at queue offsets ``[offset, offset + count]`` are in memory
        and in one log file. This is a broker's checkInMemByConsumeOffset.
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
        """Return the first record's store time, or -1 if there is none (a broker's
        getEarliestMessageTime).
        """
        if self._earliest is None:
            log = self.view.store.log
            record = log.record_at(log.min_offset) if log.files else None
            self._earliest = -1 if record is None else record.store_timestamp
        return self._earliest

    def get(self, topic: str, queue_id: int, offset: int, count: int) -> Answer:
        return get_locally(self.view, topic, queue_id, offset, count)

    def rows(self, topic: str, queue_id: int, offset: int, answer: Answer) -> int:
        """Return the number of messages that an answer should contain: one for each queue offset
        that it covers.

        In a batch queue or a compacted topic, queue offsets are not contiguous. In these cases,
        return the number of returned entries.
        """
        if answer.status not in (FOUND, NO_MATCH, REMOVING):
            return 0
        if self.view.store.queues.find(topic, queue_id) is None or self._compacted(topic, queue_id):
            return len(answer.offsets)
        return max(answer.next_begin - offset, len(answer.offsets))

    def _compacted(self, topic: str, queue_id: int) -> CompactionQueue | None:
        key = topic, queue_id
        if self._compaction is None or self._compaction[0] != key:
            self._compaction = key, CompactionQueue.open(self.view.store, topic, queue_id)
        return self._compaction[1]

    def expired(self, topic: str, queue_id: int, offset: int, count: int) -> int:
        """Return the number of consecutive entries, from queue offset ``offset`` on, that point
        before the first file of the log.
        """
        least = self.view.store.log.min_offset
        for queue_offset in range(offset, offset + count):
            unit = self.unit(topic, queue_id, queue_offset)
            if unit is None or unit[0] >= least:
                return queue_offset - offset
        return count

    def records(self, topic: str, queue_id: int, offsets: Iterable[int]) -> tuple[Record, ...]:
        """Return the intact records at the physical offsets of an answer."""
        compacted = self._compacted(topic, queue_id)
        log = self.view.store.log if compacted is None else compacted.log
        records = tuple(record for record in map(log.record_at, offsets) if record is not None)
        if compacted is not None:
            compacted.close()
        return records

    def at_time(self, topic: str, queue_id: int, when: int, upper: bool) -> TimeAnswer | None:
        return offset_by_time(self.view, topic, queue_id, when, upper=upper)


class Router:
    """Answers queries like a broker that has the stores ``local`` and ``tier``. ``broker``: the
    broker's name, if several brokers share the tier.
    """

    def __init__(self, local: LocalSide, tier: Tier, strategy: Strategy = Strategy.NOT_IN_DISK, *,
                 broker: str | None = None) -> None:
        self.local, self.tier, self.strategy, self.broker = local, tier, strategy, broker
        self._cache = ReadAhead()
        self._last: tuple[tuple[str, int], FlatQueue | None] | None = None

    def queue(self, topic: str, queue_id: int) -> FlatQueue | None:
        """Return the tier's queue; None if it does not exist. Raises: UsageError if several brokers
        have a queue of this name.
        """
        key = topic, queue_id
        if self._last is None or self._last[0] != key:
            self._last = key, self.tier.queue(topic, queue_id, self.broker)
        return self._last[1]

    # -- choice of the source ---------------------------------------------------------------------

    def side(self, topic: str, queue_id: int, offset: int, count: int = 1) -> Side:
        """Choose the source of ``count`` messages from an offset (fetchFromCurrentStore)."""
        if self.strategy is Strategy.FORCE:
            return "tier"
        queue = self.queue(topic, queue_id)
        if self.strategy is Strategy.DISABLE or queue is None or offset >= queue.commit_offset:
            return "local"
        if self.local.is_empty or not self.local.holds(topic, queue_id, offset):
            return "tier"
        if self.strategy >= Strategy.NOT_IN_MEM and not self.local.in_memory(
                topic, queue_id, offset, count):
            return "tier"
        return "local"

    # -- by queue offset --------------------------------------------------------------------------

    def get(self, topic: str, queue_id: int, offset: int, count: int = MAX_COUNT) -> RoutedGet:
        """Answer a pull without a filter. Raises: StoreIOError if the local queue is unreadable."""
        queue = self.queue(topic, queue_id)
        own = (queue.name.cluster, queue.name.broker) if queue is not None else (None, None)
        if is_filtered(topic, *own) or self.side(topic, queue_id, offset, count) == "local":
            return self._local_get(topic, queue_id, offset, count)
        answer = get_message.get(queue, offset, count, cache=self._cache)
        if answer.status in (get_message.FOUND_NULL, get_message.NO_QUEUE) and self.local.holds(
                topic, queue_id, offset):
            return self._local_get(topic, queue_id, offset, count, answer.trouble)
        return _tier_get(answer, offset, self.local.min_offset(topic, queue_id))

    def _local_get(self, topic: str, queue_id: int, offset: int, count: int,
                   trouble: str | None = None) -> RoutedGet:
        answer = self.local.get(topic, queue_id, offset, count)
        records = self.local.records(topic, queue_id, answer.offsets)
        looked = self.local.rows(topic, queue_id, offset, answer)
        missing = max(looked - len(records), 0)
        gone = self.local.expired(topic, queue_id, offset, looked) if missing else 0
        return RoutedGet("local", answer.status, answer.next_begin, answer.min, answer.max, records,
                         missing, gone, trouble)

    def pulls(self, topic: str, queue_id: int, offset: int | None = None,
              count: int = MAX_COUNT) -> Iterator[tuple[int, RoutedGet]]:
        """Yield (requested offset, answer) for each pull of a consumer, up to the queue's end.

        If ``offset`` is None, start at the queue's first offset. Ranges that neither store can
        answer are skipped; a real consumer would hang there.
        """
        queue_offset = self.min_offset(topic, queue_id) if offset is None else offset
        while True:
            answer = self.get(topic, queue_id, queue_offset, count)
            yield queue_offset, answer
            if answer.status in (get_message.OVERFLOW_ONE, get_message.OVERFLOW_BADLY,
                                 get_message.NO_MESSAGE, get_message.NO_QUEUE):
                return
            # The tier's max is not the queue's: the local store has the rest.
            if (answer.next_offset <= queue_offset and answer.side == "local"
                    and queue_offset >= answer.max):
                return
            if answer.status == get_message.FOUND_NULL and answer.side == "tier":
                queue_offset = self._behind(topic, queue_id, queue_offset, answer.max)
            else:
                queue_offset = max(answer.next_offset, queue_offset + 1)

    def _behind(self, topic: str, queue_id: int, queue_offset: int, end: int) -> int:
        """Find, by bisection, the first queue offset after ``queue_offset`` for which either store
        has an answer.
        """
        def is_answered(offset: int) -> bool:
            return self.get(topic, queue_id, offset, 1).status != get_message.FOUND_NULL

        step = 1
        while queue_offset + step < end and not is_answered(queue_offset + step):
            queue_offset, step = queue_offset + step, 2 * step
        low, high = queue_offset + 1, min(queue_offset + step, end)
        while low < high:
            middle = (low + high) // 2
            if is_answered(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue's first offset: the minimum of both stores' first offsets."""
        queue = self.queue(topic, queue_id)
        least = self.local.min_offset(topic, queue_id)
        if queue is None or queue.min_offset < 0:
            return least
        return min(least, queue.min_offset)

    # -- by time ----------------------------------------------------------------------------------

    def at_time(self, topic: str, queue_id: int, when: int, *, upper: bool = False,
                as_broker: bool = False) -> RoutedTime | None:
        """Return the queue offset at a store time; None if the queue does not exist.

        ``as_broker``: search exactly as 5.3.3 does. This release ignores ``upper`` in the local
        store.
        Raises: FormatError if a broker's search fails.
        """
        queue = self.queue(topic, queue_id)
        forced = self.strategy is Strategy.FORCE
        earliest = self.local.earliest_time()
        before = when < earliest or (earliest < 0 and not as_broker)
        if self.strategy is Strategy.DISABLE and not as_broker:
            before = False
        if queue is not None and (forced or before):
            return self._tier_time(queue, when, upper, as_broker)
        if forced:
            return None
        answer = self.local.at_time(topic, queue_id, when, upper and not as_broker)
        if answer is None:
            return None
        return RoutedTime("local", answer.queue_offset, answer.min_offset, answer.max_offset,
                          answer.record)

    def _tier_time(self, queue: FlatQueue, when: int, upper: bool, as_broker: bool) -> RoutedTime:
        if as_broker:
            offset = by_time.as_broker(queue, self.tier.metadata, when, upper=upper)
            got = get_message.get(queue, offset, 1)
            records = _tier_get(got, offset, -1).records
            return RoutedTime("tier", offset, got.min, got.max, records[0] if records else None)
        answer = by_time.at_time(queue, when, upper=upper)
        return RoutedTime("tier", answer.queue_offset, answer.min_offset, answer.max_offset,
                          answer.record)


def tier_only(queue: FlatQueue | None, offset: int, count: int = MAX_COUNT,
              matching: Matching | None = None) -> RoutedGet:
    """Answer a pull from a tier alone, with a broker's read-ahead."""
    pulled = get_message.get(queue, offset, count, matching=matching, cache=ReadAhead())
    return _tier_get(pulled, offset, -1)


def _tier_get(pulled: GetResult, offset: int, local_min: int) -> RoutedGet:
    # Only lowered: with a larger max consumers would start again at the tier's end.
    least = min(pulled.min, local_min) if local_min >= 0 else pulled.min
    records = []
    for fetched in pulled.messages:
        try:
            records.append(message.decode(fetched.data, 0, fetched.offset))
        except FormatError:
            continue
    passed = pulled.status in (get_message.FOUND, get_message.NO_MATCH)
    looked = pulled.next_offset - offset if passed else 0
    return RoutedGet("tier", pulled.status, pulled.next_offset, least, pulled.max,
                     tuple(records), max(looked - len(records), 0), 0, pulled.trouble)
