"""Messages that consumer groups received by POP and did not acknowledge.

A broker writes deliveries (check points) and acknowledgements to a revive topic. These records wait
in the timer until the messages become visible again. Then the broker reads the revive topic from
the offset of its revive group on, and puts messages without an acknowledgement into a retry topic
of the consumer group.

With ``popConsumerKVServiceEnable``, the broker keeps a record for each message in ``kvStore/``
instead, until the message is acknowledged. spec: timer-and-others-5x.md §6.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Annotated, Any, NamedTuple

import msgspec

from rmqctl import vfs
from rmqctl.checks.pending_timers import NEVER, pending_timers
from rmqctl.errors import FormatError, RmqctlError
from rmqctl.formats.internal_topics import pop_state
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record
from rmqctl.formats.local.properties import RETRY_PREFIX, REVIVE_PREFIX
from rmqctl.formats.rocksdb import small_stores
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.config.config import load_shared
from rmqctl.store.config.progress import ConsumerProgress
from rmqctl.store.log.bounds import View
from rmqctl.store.objects import java_text
from rmqctl.store.problems import Problem, Report
from rmqctl.store.query.select import Selection, Selector
from rmqctl.store.queue.rows import queue_ids, topic_rows, topics_on_disk
from rmqctl.store.rocksdb.database import Database
from rmqctl.store.store import Store

COLUMNS = ("state", "group", "topic", "queue_id", "queue_offset", "popped", "age_ms",
           "invisible_ms", "visible_at", "delivered", "acknowledged", "retries", "kept_in",
           "revive_queue_id", "revive_offset", "physical_offset", "store_timestamp", "unique_key",
           "keys")
INVISIBLE, DUE = "invisible", "due"
LOST, UNDECIDED = "lost", "undecided"
GONE, REPLACED, BEYOND, NO_QUEUE, NO_TOPIC = (
    "gone", "replaced", "beyond the end", "no queue", "no topic")
ORPHANED = frozenset({GONE, REPLACED, BEYOND, NO_QUEUE, NO_TOPIC})
"""States of deliveries whose messages cannot be delivered again."""
DAMAGED = "damaged"
"""State of a record in a revive topic that cannot be parsed as a check point or an
acknowledgement.
"""
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
FIRST_POP_TIME = "1ST_POP_TIME"
TIMER, REVIVE, RECORDS = "timer", "revive topic", "kvStore"
CHECK_POINT, ACK, BATCH_ACK = "ck", "ack", "bAck"
_MAX_WAIT_MS = 60_000
"""Maximum time in ms from the start of a delivery to the store time of a message in it.

A client waits at most 30 s for messages.
"""

_MAX_NAMES = 246
"""Maximum length in bytes of group and topic together in the name of a retry topic."""

_Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Int = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Byte = Annotated[int, msgspec.Meta(ge=0, le=127)]


class _PopRecord(msgspec.Struct, frozen=True):
    topic: str
    consumerGroup: str  # noqa: N815 - the names of a broker's class

    def __post_init__(self) -> None:
        if len(f"{self.topic}{self.consumerGroup}".encode()) > _MAX_NAMES:
            raise ValueError("its names are too long for a retry topic")


class CheckPoint(_PopRecord, frozen=True):
    """A delivery (check point): ``num`` messages, whose queue offsets are in ``queueOffsetDiff``.

    Times are in ms. ``rePutTimes``: number of times that a broker wrote the check point again
    because it could not read a message.
    """

    startOffset: _Long  # noqa: N815
    popTime: _Long  # noqa: N815
    invisibleTime: _Long  # noqa: N815
    num: _Byte
    queueId: _Int = 0  # noqa: N815
    bitMap: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)] = 0  # noqa: N815
    queueOffsetDiff: list[_Int] | None = None  # noqa: N815
    brokerName: str | None = None  # noqa: N815
    rePutTimes: str | None = None  # noqa: N815

    @property
    def visible_at(self) -> int:
        return self.popTime + self.invisibleTime

    def offsets(self) -> list[int]:
        """Return the queue offsets of the delivered messages.
        Raises: FormatError.
        """
        if not self.queueOffsetDiff:
            return [self.startOffset + number for number in range(self.num)]
        if len(self.queueOffsetDiff) < self.num:
            raise FormatError("not a check point: it has fewer queue offsets than messages")
        return [self.startOffset + diff for diff in self.queueOffsetDiff[:self.num]]


class Ack(_PopRecord, frozen=True):
    """An acknowledgement: the acknowledged messages in a delivery."""

    startOffset: _Long  # noqa: N815
    popTime: _Long  # noqa: N815
    queueId: _Int = 0  # noqa: N815
    ackOffset: _Long = -1  # noqa: N815
    ackOffsetList: list[_Long] = []  # noqa: N815 - a copy for each
    brokerName: str | None = None  # noqa: N815


def read_state(record: Record) -> CheckPoint | Ack | None:
    """Parse a record of a revive topic; None for a record that brokers skip.
    Raises: FormatError.
    """
    tag = _properties_of(record).get(props.TAGS)
    if tag not in (CHECK_POINT, ACK, BATCH_ACK):
        return None
    try:
        document = pop_state(msgspec.json.decode(bytes(record.body)))
        return (msgspec.convert(document, CheckPoint) if tag == CHECK_POINT else
                msgspec.convert(document, Ack))
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise FormatError(f"not {'a check point' if tag == CHECK_POINT else 'an acknowledgement'}"
                          f": {why}") from None


_Key = tuple[str, str, str, int, int, int]
"""Identity of a delivery: revive queue, topic, group, queue id, start offset, time."""


@dataclass(slots=True)
class Delivery:
    """A delivery with unacknowledged messages.

    * ``left``: queue offsets of these messages
    * ``offset``: queue offset of the check point in its revive queue; None while it waits in the
      timer
    * ``never``: whether the check point is in the timer and will never be delivered, not even after
      a restart
    * ``record``: the record of the check point
    """

    point: CheckPoint
    revive: tuple[str, int]
    offset: int | None
    left: list[int]
    record: Record | None = None
    kept_in: str = REVIVE
    never: bool = False


class PoppedMessage(NamedTuple):
    """A message that a group received and did not acknowledge; ``record`` has no body."""

    state: str
    delivery: Delivery
    queue_offset: int
    record: Record | None = None

    def as_dict(self, now: int) -> dict[str, Any]:
        point, record = self.delivery.point, self.record
        properties = {} if record is None else _properties_of(record)
        retries = point.rePutTimes or "0"
        return {
            "state": self.state, "group": point.consumerGroup, "topic": point.topic,
            "queue_id": point.queueId, "queue_offset": self.queue_offset, "popped": point.popTime,
            "age_ms": now - point.popTime, "invisible_ms": point.invisibleTime,
            "visible_at": point.visible_at, "delivered": point.num,
            "acknowledged": point.num - len(self.delivery.left),
            "retries": int(retries) if retries.isascii() and retries.isdigit() else None,
            "kept_in": self.delivery.kept_in,
            "revive_queue_id": self.delivery.revive[1] if self.delivery.revive[0] else None,
            "revive_offset": self.delivery.offset,
            "physical_offset": None if record is None else record.physical_offset,
            "store_timestamp": None if record is None else record.store_timestamp,
            "unique_key": properties.get(props.UNIQUE_KEY),
            "keys": props.split_keys(properties.get(props.KEYS))}


@dataclass(slots=True)
class PopState:
    """The unacknowledged messages of a store.

    * ``acknowledged``: number of acknowledged messages
    * ``unmatched``: number of acknowledgements without an open delivery
    * ``damaged``: number of unreadable records in the revive topics
    """

    messages: list[PoppedMessage] = field(default_factory=list)
    acknowledged: int = 0
    unmatched: int = 0
    damaged: int = 0
    notes: list[str] = field(default_factory=list)


def popped(store: Store, now: int, report: Report = lambda _problem: None,
           wanted: Callable[[CheckPoint], bool] = lambda _point: True) -> PopState:
    """Return the delivered but unacknowledged messages, sorted by group, topic and queue.

    ``now``: epoch ms.
    ``wanted``: selects the deliveries to include.
    Raises: StoreIOError.
    """
    store.layout.require(store.root, "consumequeue")
    reading = _Deliveries(store, report)
    reading.read(now)
    state = reading.state
    judge = _DeliveryJudge(store, now, reading, report)
    for delivery in reading.open.values():
        if wanted(delivery.point):
            state.messages += judge.messages(delivery)
    for delivery in _records(store, state.notes):
        if wanted(delivery.point):
            state.messages += judge.messages(delivery)
    state.messages.sort(key=lambda message: (
        message.delivery.point.consumerGroup, message.delivery.point.topic,
        message.delivery.point.queueId, message.queue_offset, message.delivery.point.popTime))
    return state


class _Deliveries:
    """The deliveries in the revive topics and the timer of a store."""

    def __init__(self, store: Store, report: Report) -> None:
        self._store, self._report, self._view = store, report, View(store)
        self.state = PopState()
        self.open: dict[_Key, Delivery] = {}
        self.noted_again: set[tuple[str, str, int, int, int]] = set()
        """Check points that a broker wrote again: topic, group, queue id, start offset and time of
        each.
        """
        self.faulty: set[str] = set()
        """Revive topics with unreadable records."""

    def read(self, now: int) -> None:
        # A delivery in the timer may already be in the revive topic, so the timer is read last.
        for topic in topics_on_disk(self._store):
            if topic.startswith(REVIVE_PREFIX):
                for queue_id in queue_ids(self._store, "consumequeue", topic):
                    self._queue(topic, queue_id)
        waiting = []
        for row in pending_timers(self._store, now):
            topic, physical = row["topic"], row["physical_offset"]
            if topic is not None and topic.startswith(REVIVE_PREFIX):
                record = self._store.log.record_at(physical)
                if record is not None:
                    waiting.append((topic, row["queue_id"] or 0, record, row["state"] in NEVER))
        for is_ack in (False, True):
            for topic, queue_id, record, never in waiting:
                if (_properties_of(record).get(props.TAGS) != CHECK_POINT) == is_ack:
                    self._take(topic, queue_id, record, None, never=never)

    def _queue(self, topic: str, queue_id: int) -> None:
        def report(problem: Problem) -> None:
            if problem.is_fault:
                self.faulty.add(topic)
            self._report(problem)

        wanted = Selection(topic=topic, queue_id=queue_id)
        for record in Selector(self._store, wanted, self._view, report).records():
            self._take(topic, queue_id, record, record.queue_offset)

    def _take(self, topic: str, queue_id: int, record: Record, offset: int | None, *,
              never: bool = False) -> None:
        try:
            state = read_state(record)
            offsets = state.offsets() if isinstance(state, CheckPoint) else []
        except FormatError as error:
            self.state.damaged += 1
            self.faulty.add(topic)
            self._report(Problem("damage", f"{topic}/{queue_id}: the record at physical offset "
                                 f"{record.physical_offset} is {error.reason}",
                                 record.physical_offset, record.total_size))
            return
        if state is None:
            return
        key = (f"{topic}/{queue_id}", state.topic, state.consumerGroup, state.queueId,
               state.startOffset, state.popTime)
        if isinstance(state, Ack):
            self._acknowledge(key, state)
            return
        if offset is None and key in self.open:  # it was already delivered from the timer
            return
        left = [delivered for number, delivered in enumerate(offsets)
                if number > 31 or not state.bitMap >> number & 1]
        self.open.pop(key, None)  # a later one replaces an earlier one
        if left:
            self.open[key] = Delivery(state, (topic, queue_id), offset, left, record,
                                      TIMER if offset is None else REVIVE, never)
        if state.rePutTimes:
            self.noted_again.add((state.topic, state.consumerGroup, state.queueId,
                                  state.startOffset, state.popTime))

    def _acknowledge(self, key: _Key, ack: Ack) -> None:
        delivery = self.open.get(key)
        if delivery is not None and ack.brokerName and delivery.point.brokerName and (
                ack.brokerName != delivery.point.brokerName):
            delivery = None
        for offset in ack.ackOffsetList or [ack.ackOffset]:
            if delivery is None or offset not in delivery.left:
                self.state.unmatched += 1
                continue
            delivery.left.remove(offset)
            self.state.acknowledged += 1
        if delivery is not None and not delivery.left:
            del self.open[key]


def _records(store: Store, notes: list[str]) -> Iterator[Delivery]:
    """Yield a delivery of one message for each record in ``kvStore/``."""
    folder = store.path(RECORDS)
    if not vfs.isdir(folder):
        return
    try:
        opened = Database.open(folder)
    except RmqctlError as error:
        notes.append(f"cannot read {RECORDS}: {error}")
        return
    with opened as database:
        for key, value in database.items(small_stores.POP_STATE):
            try:
                state = small_stores.pop_state(key, value)
                point = msgspec.convert({
                    "topic": state["topic"], "consumerGroup": state["group"],
                    "queueId": state["queue_id"], "startOffset": state["queue_offset"],
                    "popTime": state.get("popTime"), "num": 1,
                    "invisibleTime": state.get("invisibleTime")}, CheckPoint)
            except (FormatError, ValueError) as error:
                notes.append(f"{RECORDS}: a record is skipped: {error}")
                continue
            yield Delivery(point, ("", 0), None, point.offsets(), kept_in=RECORDS)


class _DeliveryJudge:
    """Determine what a broker does with the messages of a delivery."""

    def __init__(self, store: Store, now: int, reading: _Deliveries, report: Report) -> None:
        self._store, self._now, self._reading, self._report = store, now, reading, report
        self._view = View(store)
        topics = load_shared(store, "topics.json")
        self._topics = {row["topic"] for row in topics.rows()} if topics.value else None
        self._revived = ConsumerProgress.of(store).by_group().get(REVIVE_GROUP, {})
        self._retried: dict[str, set[tuple[str, int, str | None]] | None] = {}
        self._bounds: dict[tuple[str, int], tuple[int, int] | None] = {}

    def messages(self, delivery: Delivery) -> Iterator[PoppedMessage]:
        """Yield the messages of a delivery that were not acknowledged and are not in a retry
        topic.
        """
        point, (topic, queue_id) = delivery.point, delivery.revive
        passed = delivery.never or (delivery.offset is not None and delivery.offset <=
                                    self._revived.get(topic, {}).get(queue_id, -1))
        for offset in delivery.left:
            record, why = self._message(point, offset)
            if not passed:
                state = why or (DUE if point.visible_at <= self._now else INVISIBLE)
            elif (point.topic, point.consumerGroup, point.queueId, offset,
                  point.popTime) in self._reading.noted_again and not point.rePutTimes:
                continue
            else:
                retried = None if record is None else self._is_retried(point, record)
                if retried:
                    continue
                state = why or (UNDECIDED if retried is None or topic in self._reading.faulty
                                else LOST)
            yield PoppedMessage(state, delivery, offset, record)

    def _message(self, point: CheckPoint, offset: int) -> tuple[Record | None, str]:
        """Return a message, and the state that prevents another delivery ("" if none does).

        The message is None if it is missing.
        """
        normal = normal_topic(point)
        if self._topics is not None and normal not in self._topics:
            return None, NO_TOPIC
        key = point.topic, point.queueId
        if key not in self._bounds:
            rows = topic_rows(self._store, *key, self._view, self._report)
            self._bounds[key] = (rows[0].first, rows[0].end) if rows else None
        bounds = self._bounds[key]
        if bounds is None:
            return None, NO_QUEUE
        if offset >= bounds[1]:
            return None, BEYOND
        queue = self._store.queues.find(*key)
        unit = None if queue is None or offset < bounds[0] else queue.unit(offset)
        record = None if unit is None else self._store.log.record_at(unit.physical_offset,
                                                                     unit.size)
        if record is None or record.topic != os.fsencode(point.topic):
            return None, GONE
        record.body = b""  # there may be many
        if record.store_timestamp > point.popTime + _MAX_WAIT_MS:
            return record, REPLACED
        return record, ""

    def _is_retried(self, point: CheckPoint, record: Record) -> bool | None:
        """Return whether a retry topic contains a delivery's message; None if the topic cannot be
        read.
        """
        times = record.reconsume_times + 1
        wanted = identity(record), times, str(point.popTime) if times == 1 else None
        unknown = False
        for topic in retry_topics(point):
            if topic not in self._retried:
                self._retried[topic] = self._read(topic)
            retried = self._retried[topic]
            unknown |= retried is None
            if retried is not None and wanted in retried:
                return True
        return None if unknown else False

    def _read(self, topic: str) -> set[tuple[str, int, str | None]] | None:
        problems: list[Problem] = []
        retried = set()
        for record in Selector(self._store, Selection(topic=topic), self._view,
                               problems.append).records():
            times = record.reconsume_times
            first = _properties_of(record).get(FIRST_POP_TIME) if times == 1 else None
            retried.add((identity(record), times, first))
        return None if any(problem.is_fault for problem in problems) else retried


def identity(record: Record) -> str:
    """Return a string that identifies a message and its copies in retry topics."""
    return _properties_of(record).get(
        props.UNIQUE_KEY) or f"{record.born_timestamp}:{record.body_crc}"


def normal_topic(point: CheckPoint) -> str:
    """Return the original topic of a delivery, whose topic may be a retry topic."""
    for separator in "+_":
        prefix = f"{RETRY_PREFIX}{point.consumerGroup}{separator}"
        if point.topic.startswith(prefix):
            return point.topic.removeprefix(prefix)
    return point.topic


def retry_topics(point: CheckPoint) -> tuple[str, ...]:
    """Return the possible names of a delivery's retry topic: before 5.2.0, and since 5.2.0."""
    if point.topic.startswith(RETRY_PREFIX):
        return (point.topic,)
    return tuple(f"{RETRY_PREFIX}{point.consumerGroup}{separator}{point.topic}"
                 for separator in "_+")


def _properties_of(record: Record) -> dict[str, str]:
    return props.parse(java_text(record.properties))


