"""The store of a writable server. The engine stores messages as a broker does.

Messages that arrive in the same turn of the event loop are stored together. Their consume queue
entries are first kept in memory. Later, many entries are written to disk together; then the store
is reopened.
"""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from itertools import accumulate, pairwise

import numpy as np
from msgspec import structs

from rmqctl.broker.get_message import FOUND, MAX_BYTES, MAX_COUNT, NO_MATCH, outside
from rmqctl.engine.config.groups import SubscriptionGroups
from rmqctl.engine.config.topics import Topics, name_problem
from rmqctl.engine.engine import Engine
from rmqctl.engine.put.message import Outgoing, OutgoingBatch, PutResult
from rmqctl.engine.put.put import Message
from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.log_reader import LogReader
from rmqctl.ext.serve.producing.properties import PropertyBuilder
from rmqctl.ext.serve.reading import FILTER_S, SCANNED_ROWS, Accept, Pulled, ServedQueue
from rmqctl.ext.serve.source import MAX_QUEUES, ServedStore
from rmqctl.formats.local import delay, properties
from rmqctl.formats.local.javahash import tags_code
from rmqctl.formats.local.message import Record, decode
from rmqctl.formats.local.sysflag import has_consume_queue_row
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms

_MAX_ROWS = 50_000
_SETTLE_S = 2.0
"""Maximum number of entries that are kept in memory only, and maximum seconds until they are
written to disk.
"""
_MAX_PENDING = 64 << 20
"""Maximum bytes of messages that wait to be stored."""
_SMALL = 1000
"""Memory in bytes that a waiting message uses in addition to its body."""
_QUEUE_ID = re.compile(r"[0-9]{1,9}")
_TAGS = properties.TAGS + properties.NAME_VALUE_SEPARATOR
_OTHER_ROWS = (properties.DELAY, properties.INNER, "TIMER_")
"""Parts of property names. A message with such a property gets entries in queues other than its
own.
"""
QueueKey = tuple[str, int]
Then = Callable[[PutResult], None]
_Pending = tuple[Message, Then, int | None]


@dataclass(slots=True)
class TailQueue:
    """A queue with the entries that the store had when opened, and the entries added since.

    ``start``: the queue offset of the first added entry.
    """

    stored: ServedQueue
    log: LogReader
    start: int
    physical: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)

    @property
    def first(self) -> int:
        """The queue offset of the oldest message."""
        return self.stored.first

    @property
    def end(self) -> int:
        """The queue offset of the next message."""
        return self.start + len(self.physical)

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled:
        """Return messages from ``offset`` on: either messages whose entries are on disk, or
        messages added since the store was opened.
        """
        # Entries on disk, and offsets outside the queue.
        if offset < self.start and self.stored.end:
            pulled = self.stored.pull(offset, most, accept, max_bytes)
            return structs.replace(pulled, max=self.end)
        refused = outside(offset, self.first, self.end, 5)
        if refused is not None:
            return Pulled(refused.status, refused.next_begin, self.first, self.end)
        # Entries added since, as many as fit.
        records: list[memoryview] = []
        most = min(max(most, 1), MAX_COUNT)
        size, at, last = 0, offset - self.start, min(len(self.sizes), offset - self.start +
                                                     max(SCANNED_ROWS, most))
        late = time.monotonic() + FILTER_S
        while at < last and len(records) < most and (accept is None or time.monotonic() < late):
            # Read as many records at once as may fit; the first one always fits.
            until = min(last, at + most - len(records))
            ends = list(accumulate(self.sizes[at:until], initial=size))
            until = at + max(bisect_right(ends, max_bytes) - 1, not records)
            if until == at:
                break
            data, starts = self.log.records(np.array(self.physical[at:until], np.int64),
                                            np.array(self.sizes[at:until], np.int64))
            for begin, end in pairwise(starts):
                record = data[begin:end]
                if record and (accept is None or accept(self.tags[at], record)):
                    size += len(record)
                    records.append(record)
                at += 1
        return Pulled(FOUND if records else NO_MATCH, self.start + at, self.first, self.end,
                      records, len(records))

    def add(self, physical: int, size: int, tags: int) -> None:
        """Append the entry of a message."""
        self.physical.append(physical)
        self.sizes.append(size)
        self.tags.append(tags)

    def at_time(self, when: int, stored: int | None, *, upper: bool) -> int:
        """Return the queue offset for a store time (ms), as `rmqctl.broker.offset_by_time` does.

        ``stored``: the result of `offset_by_time` for the entries on disk, or None.
        """
        if upper:
            place = bisect_right(range(len(self.physical)), when, key=self._time) - 1
            return self.start + place if place >= 0 else stored or self.first
        if stored is not None and stored < self.start:
            return stored
        return self.start + bisect_left(range(len(self.physical)), when, key=self._time)

    def _time(self, place: int) -> int:
        record = self.log.record(self.physical[place], self.sizes[place])
        return 0 if record is None else decode(record).store_timestamp


class Writer:
    """Stores messages in an open store.

    * ``arrived``: called with each queue that got messages
    * ``scheduled``: called with the level of each delayed message
    * ``timed``: called for each timed message
    * ``received``: number of messages by the topic to which they were sent
    """

    def __init__(self, engine: Engine, topics: Topics, groups: SubscriptionGroups,
                 source: ServedStore
                 ) -> None:
        self.engine, self.topics, self.groups, self.source = engine, topics, groups, source
        self.settings = engine.settings
        self.properties = PropertyBuilder(self.settings)
        self.arrived: Callable[[str, int], None] = lambda _topic, _queue: None
        self.scheduled: Callable[[int], None] = lambda _level: None
        self.timed: Callable[[], None] = lambda: None
        self.makes_groups = True
        """True if a group is created when its first consumer connects
        (autoCreateSubscriptionGroup).
        """
        self.failure: str | None = None
        self.received: Counter[str] = Counter()
        self._pending: list[_Pending] = []
        self._pending_size = 0
        self._tails: dict[QueueKey, TailQueue] = {}
        self._rows = 0
        self._unsettled = self._must_settle = self._must_look = False
        self._settled_at = time.monotonic()
        self._running: asyncio.Future[None] | None = None
        self._allowed: set[QueueKey] = set()
        self._allowed_of: object = None

    def allows(self, topic: str, queue_id: int) -> bool:
        """Return whether a topic exists and accepts messages for this queue."""
        topics = self.topics
        if self._allowed_of is not topics.table:  # which is another one after each change
            self._allowed_of, self._allowed = topics.table, set()
        if (topic, queue_id) in self._allowed:
            return True
        if topics.get(topic) is None or queue_id >= MAX_QUEUES or (
                topics.allows(topic, queue_id) is not None):
            return False
        if len(self._allowed) < _MAX_ROWS:
            self._allowed.add((topic, queue_id))
        return True

    # -- putting ------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Return whether too many messages already wait to be stored, so that new messages must be
        refused.
        """
        return self._pending_size > _MAX_PENDING

    def put(self, message: Message, then: Then, tags: int | None = None) -> None:
        """Store a message together with the other messages of this turn, then call ``then`` with
        the result.

        ``tags``: the tags code, if the message gets exactly one entry, in its own queue.
        """
        self._pending_size += _SMALL + (sum(len(inner.body) for inner in message.messages) if (
            isinstance(message, OutgoingBatch)) else len(message.body))
        if not self._pending and self._running is None:
            asyncio.get_running_loop().call_soon(self._put_pending)
        self._pending.append((message, then, tags))

    def put_many(self, messages: Iterable[Message], then: Iterable[Then], tags: Iterable[int],
                 size: int) -> None:
        """Store several single messages with one entry each, like `put`. ``size``: total size of
        their bodies in bytes.
        """
        if not self._pending and self._running is None:
            asyncio.get_running_loop().call_soon(self._put_pending)
        before = len(self._pending)
        self._pending += zip(messages, then, tags, strict=True)
        self._pending_size += size + _SMALL * (len(self._pending) - before)

    def _taken(self) -> list[_Pending]:
        pending, self._pending, self._pending_size = self._pending, [], 0
        return pending

    def _put_pending(self) -> None:
        pending = self._taken()
        if not pending:
            return
        messages = [message for message, _, _ in pending]
        if self.settings.flush == "sync":
            loop = asyncio.get_running_loop()
            self._running = asyncio.ensure_future(self._put_in_thread(loop, pending, messages))
            return
        self._answer(pending, self._results(messages))

    async def _put_in_thread(self, loop: asyncio.AbstractEventLoop,
                             pending: list[_Pending], messages: list[Message]) -> None:
        """Store messages with one fsync in another thread. Messages that arrive meanwhile are
        stored with the next fsync.
        """
        results = await loop.run_in_executor(None, self._results, messages)
        self._running = None
        self._answer(pending, results)
        self._put_pending()

    def _results(self, messages: list[Message]) -> list[PutResult]:
        try:
            return self.engine.put_many(messages)
        except Exception as error:  # noqa: BLE001 - whatever it was, all who wait get an answer
            self.failure = str(error)
            return [PutResult("UNKNOWN_ERROR", reason=str(error)) for _ in messages]

    def _answer(self, pending: list[_Pending], results: list[PutResult]) -> None:
        # Add the entries of the stored messages, or read them from disk later.
        touched: set[QueueKey] = set()
        end = self.source.store.log.end
        for (message, _, tags), result in zip(pending, results, strict=True):
            place, size = result.physical_offset, result.wrote_bytes
            if place is None or size is None:
                continue
            topic = _text(message.topic)
            self.received[topic] += len(result.physical_offsets) or 1
            self._unsettled = True
            if place >= end:  # it is in a new file
                self._must_settle = True
            key = topic, message.queue_id
            tail = None if tags is None or self._must_settle else self._tails.get(key)
            if tags is None or tail is None or (
                    tail.start + len(tail.physical) != result.queue_offset):
                self._note(message, result, touched)
                continue
            tail.physical.append(place)
            tail.sizes.append(size)
            tail.tags.append(tags)
            self._rows += 1
            touched.add(key)
        # Settle many entries at once, then answer producers and wake consumers.
        try:
            if self._must_settle or self._rows > _MAX_ROWS:
                self.settle()
        except RmqctlError as error:
            self.failure = str(error)
        for (_, then, _), result in zip(pending, results, strict=True):
            then(result)
        for key in touched:
            self.arrived(*key)

    def _note(self, message: Message, result: PutResult, touched: set[QueueKey]) -> None:
        """Add the entries of a stored message to its queue in memory.

        If the entries cannot be determined here, the next `settle` reads entries and topics from
        disk.
        """
        assert result.physical_offset is not None
        assert result.queue_offset is not None
        # Derive the message's own entries, and the queues that may get others.
        key = _text(message.topic), message.queue_id
        rows: list[tuple[int, int, dict[str, str]]] = []
        if not has_consume_queue_row(message.sys_flag):
            return
        if isinstance(message, OutgoingBatch):
            ends = (*result.physical_offsets[1:], result.physical_offset + (result.wrote_bytes or 0)
                    )
            rows = [(place, end - place, properties.parse(item.properties)) for place, end, item in
                    zip(result.physical_offsets, ends, message.messages, strict=True)]
            if any(word in message.properties for word in (_TAGS, *_OTHER_ROWS)):
                rows = []
        else:
            own_properties = properties.parse(_text(message.properties))
            level = _delay_level(own_properties) if isinstance(message, Outgoing) else 0
            if level > 0:
                level = min(level, max(self.levels))
                key = properties.SCHEDULE_TOPIC, level - 1
                self.scheduled(level)
            if not _has_other_rows(own_properties):
                rows = [(result.physical_offset, result.wrote_bytes or 0, own_properties)]
            for name in own_properties.get(properties.MULTI_DISPATCH, "").split(","):
                touched.update(((name, 0), (name, message.queue_id)))
        # Append them to the queue's tail, if they continue it.
        if key[0] == properties.TIMER_TOPIC:
            self.timed()
        touched.add(key)
        tail = self._tails.get(key)
        try:
            if tail is None:
                self._know(*key)
                tail = TailQueue(self.source.queue(*key), self.source.log, result.queue_offset)
            if not self._must_settle and (
                    tail.end != result.queue_offset or tail.start > tail.stored.end):
                rows = []
        except RmqctlError:
            rows = []
        if not rows or tail is None:
            self._must_settle = self._must_look = True
        if self._must_settle or tail is None:
            return
        self._tails[key] = tail
        for place, size, own_properties in rows:
            tail.add(place, size, tags_code(own_properties.get(properties.TAGS)))
        self._rows += len(rows)

    def _know(self, topic: str, queue_id: int) -> None:
        """Register a topic with this queue in memory, in the form in which it will later be read
        from disk.
        """
        config = self.source.topics.get(topic)
        if config is not None and config.read_queues > queue_id:
            return
        if config is None or self.topics.get(topic) is None:  # one that a broker has by itself
            self.source.learn(topic, {"readQueueNums": queue_id + 1,
                                      "writeQueueNums": queue_id + 1})
        else:
            config.read_queues = min(queue_id + 1, MAX_QUEUES)

    @property
    def levels(self) -> delay.Levels:
        """Duration of each delay level in milliseconds."""
        return delay.parse_levels(self.settings.message_delay_level)

    # -- reading ------------------------------------------------------------------------------

    def queue(self, key: QueueKey) -> TailQueue | None:
        """Return a queue that has entries in memory only; None for all other queues."""
        return self._tails.get(key)

    def settle(self) -> None:
        """Write the entries of all stored messages to disk, and reopen the store."""
        self.engine.reput()
        self._settled_at = time.monotonic()
        if not self.source.refresh(force=True, topics=self._must_look):
            return  # what is known here is served on
        self._tails.clear()
        self._rows, self._unsettled, self._must_settle, self._must_look = 0, False, False, False

    def settle_in_time(self) -> None:
        """Call `settle` if entries are in memory only and the last call was some seconds ago."""
        if self._unsettled and time.monotonic() - self._settled_at > _SETTLE_S:
            self.settle()

    def settle_now(self) -> None:
        """Call `settle` so that an index lookup finds new messages. Do nothing while a thread is
        storing messages.
        """
        if self._unsettled and self._running is None:
            self.settle()

    def put_now(self) -> None:
        """Store the waiting messages, unless a thread is storing messages."""
        pending = self._taken() if self._running is None else []
        if pending:
            self._answer(pending, self._results([message for message, _, _ in pending]))

    def close(self) -> None:
        """Close the store as a broker does at shutdown. Raises: StoreIOError."""
        self._running = None
        self.put_now()
        self.engine.close()


def _delay_level(own_properties: dict[str, str]) -> int:
    try:
        return delay.delay_level_of(own_properties)
    except ValueError:
        return 0


def _has_other_rows(values: dict[str, str]) -> bool:
    """Return whether messages with these properties may be stored in another queue or in several
    queues.
    """
    return any(name in values for name in (properties.MULTI_DISPATCH, properties.INNER_NUM)) or (
        properties.TIMER_OUT_MS not in values and any(name in values for name in (
            "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")))


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode("utf-8", "surrogateescape")


def delivered(record: Record) -> Record | None:
    """Return a delayed message as it is stored when it is due: unchanged, in its original queue.

    Return None if the message does not name a valid original queue, or names the half topic.
    Brokers discard such a message.
    """
    own_properties = properties.parse(_text(record.properties))
    topic = own_properties.get(properties.REAL_TOPIC, "")
    queue = own_properties.get(properties.REAL_QUEUE_ID, "0")
    if name_problem(topic) is not None or topic == properties.HALF_TOPIC or not (
            _QUEUE_ID.fullmatch(queue)):
        return None
    return replace(record, topic=topic.encode(), queue_id=int(queue), queue_offset=-1, magic=0,
                   physical_offset=-1, store_timestamp=now_ms(), body=bytes(record.body))
