"""POP: a delivered message is invisible until it is acknowledged or its invisible time is over.

After the invisible time, the message is delivered again. The remoting and gRPC protocols share this
module. Consumer offsets are kept in `Positions`; clients of either protocol continue from these
offsets.

The list of unacknowledged messages is kept in memory only. A group's consumer offset is the offset
of its first unacknowledged message. Times are seconds of `time.monotonic`.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from rmqctl.broker.get_message import FOUND, NO_MATCH, REMOVING
from rmqctl.ext.serve.broker import ANY_QUEUE, Broker, Buffer
from rmqctl.ext.serve.consuming.lines import WaitingLines
from rmqctl.ext.serve.consuming.offsets import position
from rmqctl.ext.serve.consuming.pulling import pull
from rmqctl.ext.serve.reading import Accept
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.formats.local.message import decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms

MAX_FLYING, MAX_OF_GROUP = 100_000, 20_000
"""Maximum number of unacknowledged messages: for a broker, and for one group in one topic."""
MAX_QUEUES = 100_000
"""Maximum number of queues whose state a broker keeps; a queue counts once for each group."""
MAX_BYTES = 4 << 20
"""Maximum bytes of messages in one delivery; the first message may be larger."""
RENEWED_S, MAX_RENEWAL_S = 60.0, 3 * 3600.0
"""`RENEWED_S`: seconds by which the invisible time of a message is repeatedly extended while its
client is connected. `MAX_RENEWAL_S`: seconds after delivery at which the extensions end.
"""
TURN_S = 0.02
"""Maximum time in seconds for searching queues before other clients are served again."""
MAX_ATTEMPTS = (1 << 31) - 1
"""The highest number of deliveries that the protocol can express."""
_SOON_S = 1.0
_STALE = 16
_MAX_ATTEMPT_NAME = 255
QueueKey = tuple[str, int]


@dataclass(slots=True)
class InFlight:
    """A message in flight: delivered, but not acknowledged yet.

    ``number``: see `Receipt`. ``owner``: the client that received the message, if the invisible
    time is extended while this client is connected; else empty.
    """

    offset: int
    physical: int
    attempt: int
    number: int
    visible: float
    owner: str
    since: float


@dataclass(slots=True)
class _PopQueue:
    """The state of a queue for a group.

    ``next``: the next queue offset to read. ``flights``: messages in flight by queue offset, in
    order. ``attempt``: the `PopRequest.attempt` of the latest delivery.
    """

    next: int
    committed: int | None
    attempt: str = ""
    flights: dict[int, InFlight] = field(default_factory=dict)


class Receipt(NamedTuple):
    """The receipt with which a client acknowledges a message: queue, queue offset, and a number.

    The number is the time (ms) at which the message was delivered or last hidden. It increases with
    each delivery.
    """

    queue: QueueKey
    offset: int
    number: int


@dataclass(frozen=True, slots=True)
class DeliveredMessage:
    """A delivered message with its receipt."""

    record: Buffer
    flight: InFlight
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class PopRequest:
    """A client's request for messages.

    * ``most``: maximum number of messages
    * ``invisible``: invisible time in seconds
    * ``owner``: see `InFlight`
    * ``queue_id``: the queue to read, or `ANY_QUEUE`
    * ``latest``: whether a group without a consumer offset starts with new messages, unless
      `Broker.start` decides this
    * ``attempt``: name of an attempt to get messages in order

    If a request repeats the name of the latest attempt, the response to that attempt was lost. The
    same messages are then delivered again at once.
    """

    most: int
    invisible: float
    accept: Accept | None = None
    fifo: bool = False
    owner: str = ""
    queue_id: int = ANY_QUEUE
    latest: bool = False
    attempt: str = ""


def attempt_of(text: str | None) -> str:
    """Return the name of an attempt; an empty text if the name is missing or too long to keep."""
    return text if text and len(text) <= _MAX_ATTEMPT_NAME else ""


def _queues(count: int, wanted: int) -> range:
    """Return the queue ids below ``count``; if a queue is wanted, only its id."""
    return range(count) if wanted == ANY_QUEUE else range(max(wanted, 0), min(wanted + 1, count))


class GroupDeliveries:
    """The deliveries of one topic to one group: the state of the topic's queues for the group."""

    def __init__(self, pops: Pops, group: str, topic: str) -> None:
        self._pops, self.broker = pops, pops.broker
        self.group, self.topic = group, topic
        self.names = (topic, f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}")
        self.queues: dict[QueueKey, _PopQueue] = {}
        self.flying = 0
        self._due: list[tuple[float, QueueKey, int, int]] = []
        self._again: deque[tuple[QueueKey, int, int]] = deque()
        self._turn = 0
        self._fifo = False
        self._number = 0

    def keys(self, wanted: int = ANY_QUEUE) -> list[QueueKey]:
        """Return the queues of the topic and of its retry topics.

        ``wanted``: include only this queue of the topic; all queues of its retry topics are
        included.
        """
        topics = self.broker.source.topics
        return [(name, queue_id) for name in self.names
                if name == self.topic or name in topics
                for topic in (self.broker.topic(name),) if topic is not None
                for queue_id in _queues(topic.read_queues, wanted if name == self.topic
                                        else ANY_QUEUE)]

    # -- giving out ---------------------------------------------------------------------------

    def take(self, wish: PopRequest, left: int | None) -> tuple[list[DeliveredMessage], int]:
        """Return messages, and the number of queues that have not been searched yet.

        Pass this number as ``left`` to continue the search after other clients have been served.
        All receipts of one call have the same number. Raises: Failed.
        """
        keys = self.keys(wish.queue_id)
        if left is None:
            left, self._turn = len(keys), self._turn + 1
        left, self._fifo = min(left, len(keys)), wish.fifo
        late = time.monotonic() + TURN_S
        self._look_at_clock()
        self._count_up()
        given: list[DeliveredMessage] = []
        size = 0
        try:
            for message_or_left in self._deliveries(keys, left, wish):
                if isinstance(message_or_left, int):
                    left = message_or_left
                else:
                    given.append(message_or_left)
                    size += len(message_or_left.record)
                if len(given) >= wish.most or size >= MAX_BYTES or time.monotonic() > late:
                    break
        except Failed:
            if not given:
                raise
        return given, left

    def _deliveries(self, keys: list[QueueKey], left: int, wish: PopRequest
                    ) -> Iterator[DeliveredMessage | int]:
        """Yield messages and, after each queue, the number of queues still to be searched."""
        if wish.fifo:
            self._again.clear()  # it is found with its queue
        while self._again:
            key, offset, number = self._again.popleft()
            queue = self.queues.get(key)
            flight = None if queue is None else queue.flights.get(offset)
            if queue is not None and flight is not None and flight.number == number:
                try:
                    given = self._give_again(key, queue, flight, wish)
                except Failed:
                    self._again.append((key, offset, number))  # it cannot be read now
                    raise
                if given is not None:
                    yield given
        while left > 0:
            key = keys[self._turn % len(keys)]
            queue = self._queue(key, wish.latest)
            if wish.fifo and queue.flights:
                yield from self._in_order(key, queue, wish)
            else:
                for given in self._new(key, queue, wish):
                    if given is None:
                        yield left
                    else:
                        yield given
            self._turn += 1
            left -= 1
            yield left

    def _new(self, key: QueueKey, queue: _PopQueue, wish: PopRequest
             ) -> Iterator[DeliveredMessage | None]:
        """Yield the messages of a queue that have not been delivered yet.

        Yields None after each part of the queue in which no message passes the filter.
        """
        while True:
            if self.flying >= MAX_OF_GROUP or not self._pops.may_fly(self):
                raise Failed(Status.SYSTEM_BUSY, "too many unacknowledged messages")
            pulled = pull(self.broker, self.group, *key, queue.next, 1, wish.accept)
            if pulled.max == 0:
                return
            before = queue.next
            queue.next = min(max(pulled.next_begin, pulled.min), pulled.max)
            for record in pulled.records:
                flight = self._fly(key, queue, record, queue.next - 1, wish)
                yield DeliveredMessage(record, flight, Receipt(key, flight.offset, flight.number))
            self._commit(key, queue)
            if pulled.status not in (FOUND, NO_MATCH, REMOVING) and queue.next <= before:
                return
            if not pulled.count:
                yield None
            if queue.next >= pulled.max:
                return

    def _fly(self, key: QueueKey, queue: _PopQueue, record: Buffer, offset: int, wish: PopRequest
             ) -> InFlight:
        message = decode(record)
        now = time.monotonic()
        queue.attempt = wish.attempt
        flight = InFlight(offset, message.physical_offset, message.reconsume_times + 1,
                        self._number, now + wish.invisible, wish.owner, now)
        queue.flights[offset] = flight
        self.flying += 1
        self._pops.flying += 1
        self._wait(key, flight)
        return flight

    def _give_again(self, key: QueueKey, queue: _PopQueue, flight: InFlight, wish: PopRequest, *,
                    counts: bool = True) -> DeliveredMessage | None:
        """Deliver a message again after its invisible time.

        Return None if the message no longer exists or does not pass the filter. ``counts``: whether
        the number of deliveries increases.
        """
        pulled = pull(self.broker, self.group, *key, flight.offset, 1, wish.accept)
        if not pulled.count or pulled.next_begin != flight.offset + 1:
            self._land(key, queue, flight)
            return None
        flight.attempt += counts
        flight.owner, flight.since = wish.owner, time.monotonic()
        receipt = self._hide(key, flight, wish.invisible)
        return DeliveredMessage(next(pulled.records), flight, receipt)

    def _in_order(self, key: QueueKey, queue: _PopQueue, wish: PopRequest
                  ) -> Iterator[DeliveredMessage]:
        """Yield the unacknowledged messages of a queue, in order.

        Yield nothing if one of them is still invisible and the request does not repeat the latest
        attempt.
        """
        now = time.monotonic()
        is_same = _is_same(queue, wish.attempt)
        if not is_same and any(flight.visible > now for flight in queue.flights.values()):
            return
        queue.attempt = wish.attempt
        for flight in list(queue.flights.values()):
            given = self._give_again(key, queue, flight, wish, counts=not is_same)
            if given is not None:
                yield given

    def has_messages(self, wanted: int, *, fifo: bool, attempt: str = "") -> bool:
        """Return whether there may be a message to deliver; also True if the check takes too long.
        Raises: Failed.
        """
        late = time.monotonic() + TURN_S
        self._look_at_clock()
        if self._again:
            return True
        for key in self.keys(wanted):
            queue = self._queue(key)
            if _is_same(queue, attempt) if fifo and queue.flights else (
                    queue.next < self.broker.queue(*key).end):
                return True
            if time.monotonic() > late:
                return True
        return False

    # -- the state of queues ------------------------------------------------------------------

    def _queue(self, key: QueueKey, latest: bool = False) -> _PopQueue:
        """Return the state of a queue. The state is reset if another client has changed the group's
        consumer offset.
        Raises: Failed.
        """
        committed = self.broker.positions.get(self.group, *key)
        queue = self.queues.get(key)
        if queue is not None and queue.committed == committed:
            return queue
        if queue is None:
            self._pops.make_room(self)
        else:
            self.forget(queue)
        begin = position(self.broker, self.group, *key)
        if begin is None:
            bounds = self.broker.queue(*key)
            begin = bounds.end if latest else bounds.first
        queue = self.queues[key] = _PopQueue(begin, committed)
        return queue

    def forget(self, queue: _PopQueue) -> None:
        """Forget a queue's messages that are in flight."""
        self.flying -= len(queue.flights)
        self._pops.flying -= len(queue.flights)
        queue.flights.clear()

    def _commit(self, key: QueueKey, queue: _PopQueue) -> None:
        lowest = next(iter(queue.flights), queue.next)
        if lowest != queue.committed and (queue.committed is not None or lowest > 0) and (
                self.broker.positions.commit(self.group, *key, lowest)):
            queue.committed = lowest

    def _land(self, key: QueueKey, queue: _PopQueue, flight: InFlight) -> None:
        del queue.flights[flight.offset]
        self.flying -= 1
        self._pops.flying -= 1
        self._commit(key, queue)

    # -- time ---------------------------------------------------------------------------------

    def _wait(self, key: QueueKey, flight: InFlight) -> None:
        heappush(self._due, (flight.visible, key, flight.offset, flight.number))
        if len(self._due) > 2 * self.flying + _STALE:
            self._due = [(pending.visible, name, pending.offset, pending.number)
                         for name, queue in self.queues.items()
                         for pending in queue.flights.values()]
            heapify(self._due)
            self._again.clear()

    def _look_at_clock(self) -> None:
        """Make messages visible again when their invisible time is over.

        If the client of a message is still connected, extend the invisible time instead.
        """
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, key, offset, number = heappop(self._due)
            queue = self.queues.get(key)
            flight = None if queue is None else queue.flights.get(offset)
            if flight is None or flight.number != number or flight.visible > now:
                continue
            if flight.owner and now - flight.since < MAX_RENEWAL_S and self._pops.is_there(
                    flight.owner):
                flight.visible = now + RENEWED_S
                self._wait(key, flight)
            else:
                self._again.append((key, offset, number))

    @property
    def next_due(self) -> float | None:
        """The next time at which a message may become visible; None if no message is in flight."""
        return self._due[0][0] if self._due else None

    # -- what clients say ---------------------------------------------------------------------

    def _count_up(self) -> None:
        self._number = max(now_ms(), self._number + 1)

    def _hide(self, key: QueueKey, flight: InFlight, seconds: float) -> Receipt:
        flight.visible, flight.number = time.monotonic() + seconds, self._number
        self._wait(key, flight)
        return Receipt(key, flight.offset, flight.number)

    def find(self, receipt: Receipt) -> tuple[_PopQueue, InFlight]:
        """Return the queue and the message in flight that a receipt refers to.
        Raises: Failed if the message was acknowledged or delivered again, or is unknown.
        """
        queue = self.queues.get(receipt.queue)
        flight = None if queue is None else queue.flights.get(receipt.offset)
        if queue is None or flight is None or flight.number != receipt.number:
            raise Failed(Status.NO_MESSAGE, "the receipt handle is invalid or no longer valid")
        return queue, flight

    def has_landed(self, receipt: Receipt) -> bool:
        """Return whether a message was delivered and acknowledged."""
        queue = self.queues.get(receipt.queue)
        return queue is not None and receipt.offset < queue.next and (
            receipt.offset not in queue.flights)

    def ack(self, receipt: Receipt) -> None:
        """Acknowledge the message. Raises: Failed."""
        queue, flight = self.find(receipt)
        self._land(receipt.queue, queue, flight)
        if self._fifo:
            self.broker.arrived(self.topic, ANY_QUEUE)  # who waits for the next one in order

    def change(self, receipt: Receipt, seconds: float) -> Receipt:
        """Make a message visible after ``seconds``. Return the message's new receipt.
        Raises: Failed.
        """
        _, flight = self.find(receipt)
        flight.owner = ""
        self._count_up()
        changed = self._hide(receipt.queue, flight, seconds)
        self.broker.arrived(self.topic, ANY_QUEUE)  # who waits has to wake up earlier, maybe
        return changed

    def is_over(self) -> bool:
        """Return whether the invisible times of all messages in flight have expired, and no
        connected client extends one of them.
        """
        now = time.monotonic()
        return all(flight.visible <= now and not (
            flight.owner and self._pops.is_there(flight.owner)) for queue in self.queues.values()
            for flight in queue.flights.values())

    def give_back(self, which: Callable[[InFlight], bool]) -> None:
        """Make the messages that ``which`` selects visible soon, because their client is gone or
        has not received them.
        """
        self._count_up()
        for key, queue in self.queues.items():
            for flight in queue.flights.values():
                if which(flight):
                    flight.owner = ""
                    self._hide(key, flight, _SOON_S)
        self.broker.arrived(self.topic, ANY_QUEUE)


def _is_same(queue: _PopQueue, attempt: str) -> bool:
    return attempt != "" and attempt == queue.attempt


class Pops:
    """All deliveries that a broker made by POP.

    ``is_there``: function that returns whether a client is connected.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.lines = WaitingLines(broker)
        self.is_there: Callable[[str], bool] = lambda _client_id: False
        self.flying = 0
        self._all: OrderedDict[tuple[str, str], GroupDeliveries] = OrderedDict()
        """Deliveries by group and topic, in the order of the last request, the oldest first."""
        self._kept = 0

    def of(self, group: str, topic: str) -> GroupDeliveries:
        """Return the deliveries of a topic to a group.

        The caller must not keep a reference to them after its turn, because they may be replaced.
        """
        popped = self._all.get((group, topic))
        if popped is None:
            popped = GroupDeliveries(self, group, topic)
            self.make_room(popped)
            self._all[group, topic] = popped
        self._all.move_to_end((group, topic))
        return popped

    def get(self, group: str, topic: str) -> GroupDeliveries | None:
        """Return the deliveries of a topic to a group; None before the group's first request."""
        return self._all.get((group, topic))

    def may_fly(self, of_this: GroupDeliveries) -> bool:
        """Return whether one more message may be delivered.

        While too many messages are in flight, forget the group whose last request is the oldest. A
        group is only forgotten if the invisible times of all its messages are over.
        """
        while self.flying >= MAX_FLYING:
            first = next(iter(self._all.values()))
            if first is of_this or not first.is_over():
                return False
            for queue in first.queues.values():
                first.forget(queue)
            del self._all[first.group, first.topic]
            self._kept -= 1 + len(first.queues)
        return True

    def make_room(self, for_this: GroupDeliveries) -> None:
        """Make space for the state of one more queue, by forgetting queues without messages in
        flight.
        Raises: Failed.
        """
        self._kept += 1
        if self._kept <= MAX_QUEUES:
            return
        self._all = OrderedDict((key, popped) for key, popped in self._all.items()
                                if popped.flying or popped is for_this)
        self._kept = sum(1 + len(popped.queues) for popped in self._all.values())
        if self._kept >= MAX_QUEUES:
            raise Failed(Status.SYSTEM_BUSY, "too many groups have unacknowledged messages")

    def leave(self, client_id: str) -> None:
        """Make a client's unacknowledged messages visible soon, because the client is gone."""
        for popped in self._all.values():
            if popped.flying:
                popped.give_back(lambda flight: flight.owner == client_id)
