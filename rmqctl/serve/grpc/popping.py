"""Messages that are given out for a while: to whom they come again, and how far a group is.

The positions of a group are those of `Positions`, so that clients of either protocol go on where
others stopped: what is given out and not acked yet is known here alone, and a group's position is
the first message that is not acked. Times are seconds of `time.monotonic`.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from secrets import randbits

from rmqctl.broker.get_message import FOUND, NO_MATCH, REMOVING
from rmqctl.formats.local.message import decode
from rmqctl.remoting.codes import Answer
from rmqctl.serve.broker import ANY_QUEUE, Broker, Buffer
from rmqctl.serve.consuming.offsets import position
from rmqctl.serve.consuming.pulling import pull
from rmqctl.serve.grpc.protocol import Code, Refused
from rmqctl.serve.reading import Accept

MOST_FLYING, MOST_OF_GROUP = 100_000, 20_000
"""Messages of a broker, and of a group and topic, that are given out and not acked."""
MOST_QUEUES = 100_000
"""Queues of a broker, each of a group, whose state is kept."""
MOST_BYTES = 4 << 20
"""Of messages that are given out at once; the first always fits."""
RENEWED_S, LONGEST_S = 60.0, 3 * 3600.0
"""A message is kept for its client by so much at a time while that is there, at most so long."""
TURN_S = 0.02
"""So long queues are looked through, before it is the others' turn."""
_SOON_S = 1.0
_STALE = 1000
_HANDLE = re.compile(r"(\d{1,9}) (\d{1,9}) (\d{1,19}) (\d{1,20})")
QueueKey = tuple[str, int]


@dataclass(slots=True)
class Flight:
    """A message that was given out. ``number`` is that of its handle; ``owner``: the client for
    which it is kept, or nobody.
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
    """One queue of a group: ``next`` is the queue offset to read on from, ``flights`` are in the
    order of their offsets.
    """

    next: int
    committed: int | None
    flights: dict[int, Flight] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Given:
    """A message as it is given out, with the handle to ack it by."""

    record: Buffer
    queue: QueueKey
    flight: Flight
    handle: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client would like. ``invisible``: seconds; ``owner``: see `Flight`."""

    most: int
    invisible: float
    accept: Accept | None = None
    fifo: bool = False
    owner: str = ""


class Popped:
    """What one group has been given of one topic of a broker."""

    def __init__(self, pops: Pops, group: str, topic: str) -> None:
        self._pops, self._broker = pops, pops.broker
        self.group, self.topic = group, topic
        self._names = (topic, f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}")
        self.queues: dict[QueueKey, _PopQueue] = {}
        self.flying = 0
        self._due: list[tuple[float, QueueKey, int, int]] = []
        self._again: deque[tuple[QueueKey, int, int]] = deque()
        self._turn = 0
        self._fifo = False

    def keys(self) -> list[QueueKey]:
        """The queues of the topic, and those of what came back to a 5.x broker."""
        known = self._broker.source.topics
        return [(name, queue_id) for name in self._names
                if name == self.topic or name in known
                for topic in (self._broker.topic(name),) if topic is not None
                for queue_id in range(topic.read_queues)]

    # -- giving out ---------------------------------------------------------------------------

    def take(self, wish: Wish, left: int | None) -> tuple[list[Given], int]:
        """(messages, how many queues were not looked at yet): to be called again with that number
        when others had their turn. Answer, Refused.
        """
        keys = self.keys()
        if left is None:
            left, self._turn = len(keys), self._turn + 1
        left, self._fifo = min(left, len(keys)), wish.fifo
        late = time.monotonic() + TURN_S
        self._look_at_clock()
        given: list[Given] = []
        size = 0
        try:
            for each in self._each(keys, left, wish):
                if isinstance(each, int):
                    left = each
                else:
                    given.append(each)
                    size += len(each.record)
                if len(given) >= wish.most or size >= MOST_BYTES or time.monotonic() > late:
                    break
        except (Answer, Refused):
            if not given:
                raise
        return given, left

    def _each(self, keys: list[QueueKey], left: int, wish: Wish) -> Iterator[Given | int]:
        """Messages, and now and then how many queues are left."""
        if wish.fifo:
            self._again.clear()  # it is found with its queue
        while self._again:
            key, offset, number = self._again.popleft()
            queue = self.queues.get(key)
            flight = None if queue is None else queue.flights.get(offset)
            if queue is not None and flight is not None and flight.number == number:
                try:
                    given = self._give_again(key, queue, flight, wish)
                except Answer:
                    self._again.append((key, offset, number))  # it cannot be read now
                    raise
                if given is not None:
                    yield given
        while left > 0:
            key = keys[self._turn % len(keys)]
            queue = self._queue(key)
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

    def _new(self, key: QueueKey, queue: _PopQueue, wish: Wish) -> Iterator[Given | None]:
        """Messages that were not given out yet; None where a filter took its time."""
        while True:
            if self.flying >= MOST_OF_GROUP or self._pops.flying >= MOST_FLYING:
                raise Refused(Code.TOO_MANY_REQUESTS, "too many messages are not acked yet")
            pulled = pull(self._broker, self.group, *key, queue.next, 1, wish.accept)
            if pulled.max == 0:
                return
            before = queue.next
            queue.next = min(max(pulled.next_begin, pulled.min), pulled.max)
            for record in pulled.records:
                flight = self._fly(key, queue, record, queue.next - 1, wish)
                yield Given(record, key, flight, self._handle(key, flight))
            self._commit(key, queue)
            if pulled.status not in (FOUND, NO_MATCH, REMOVING) and queue.next <= before:
                return
            if not pulled.count:
                yield None
            if queue.next >= pulled.max:
                return

    def _fly(self, key: QueueKey, queue: _PopQueue, record: Buffer, offset: int, wish: Wish
             ) -> Flight:
        found = decode(record)
        now = time.monotonic()
        flight = Flight(offset, found.physical_offset, found.reconsume_times + 1,
                        next(self._pops.numbers), now + wish.invisible, wish.owner, now)
        queue.flights[offset] = flight
        self.flying += 1
        self._pops.flying += 1
        self._wait(key, flight)
        return flight

    def _give_again(self, key: QueueKey, queue: _PopQueue, flight: Flight, wish: Wish
                    ) -> Given | None:
        """A message whose time is over, once more; None where it is no longer there, or wanted."""
        pulled = pull(self._broker, self.group, *key, flight.offset, 1, wish.accept)
        if not pulled.count or pulled.next_begin != flight.offset + 1:
            self._land(key, queue, flight)
            return None
        flight.attempt += 1
        flight.owner, flight.since = wish.owner, time.monotonic()
        return Given(next(pulled.records), key, flight,
                     self._hide(key, flight, wish.invisible))

    def _in_order(self, key: QueueKey, queue: _PopQueue, wish: Wish) -> Iterator[Given]:
        """What came back of a queue, which is given to nobody while some of it is still out."""
        now = time.monotonic()
        if any(flight.visible > now for flight in queue.flights.values()):
            return
        for flight in list(queue.flights.values()):
            given = self._give_again(key, queue, flight, wish)
            if given is not None:
                yield given

    # -- the state of queues ------------------------------------------------------------------

    def _queue(self, key: QueueKey) -> _PopQueue:
        """A queue of the group, anew where others set its position. Answer, Refused."""
        committed = self._broker.positions.get(self.group, *key)
        queue = self.queues.get(key)
        if queue is not None and queue.committed == committed:
            return queue
        if queue is None:
            self._pops.make_room(self)
        else:
            self.forget(queue)
        begin = position(self._broker, self.group, *key)
        first = self._broker.queue(*key).first
        queue = self.queues[key] = _PopQueue(first if begin is None else begin, committed)
        return queue

    def forget(self, queue: _PopQueue) -> None:
        """What was given out of a queue no longer counts."""
        self.flying -= len(queue.flights)
        self._pops.flying -= len(queue.flights)
        queue.flights.clear()

    def _commit(self, key: QueueKey, queue: _PopQueue) -> None:
        lowest = next(iter(queue.flights), queue.next)
        if lowest != queue.committed and (queue.committed is not None or lowest > 0) and (
                self._broker.positions.commit(self.group, *key, lowest)):
            queue.committed = lowest

    def _land(self, key: QueueKey, queue: _PopQueue, flight: Flight) -> None:
        del queue.flights[flight.offset]
        self.flying -= 1
        self._pops.flying -= 1
        self._commit(key, queue)

    # -- time ---------------------------------------------------------------------------------

    def _wait(self, key: QueueKey, flight: Flight) -> None:
        heappush(self._due, (flight.visible, key, flight.offset, flight.number))
        if len(self._due) > 2 * self.flying + _STALE:
            self._due = [(each.visible, name, each.offset, each.number)
                         for name, queue in self.queues.items() for each in queue.flights.values()]
            heapify(self._due)
            self._again.clear()

    def _look_at_clock(self) -> None:
        """What is due comes again, unless it is kept for a client that is there."""
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, key, offset, number = heappop(self._due)
            queue = self.queues.get(key)
            flight = None if queue is None else queue.flights.get(offset)
            if flight is None or flight.number != number or flight.visible > now:
                continue
            if flight.owner and now - flight.since < LONGEST_S and self._pops.is_there(
                    flight.owner):
                flight.visible = now + RENEWED_S
                self._wait(key, flight)
            else:
                self._again.append((key, offset, number))

    @property
    def next_due(self) -> float | None:
        """When the next one may come again, if any is out."""
        return self._due[0][0] if self._due else None

    # -- what clients say ---------------------------------------------------------------------

    def _handle(self, key: QueueKey, flight: Flight) -> str:
        return f"{self._names.index(key[0])} {key[1]} {flight.offset} {flight.number}"

    def _hide(self, key: QueueKey, flight: Flight, seconds: float) -> str:
        flight.visible, flight.number = time.monotonic() + seconds, next(self._pops.numbers)
        self._wait(key, flight)
        return self._handle(key, flight)

    def find(self, handle: str) -> tuple[QueueKey, _PopQueue, Flight]:
        """What a handle stands for. Refused where that is acked, or was given out again."""
        found = _HANDLE.fullmatch(handle)
        if found is not None and int(found[1]) < len(self._names):
            key = self._names[int(found[1])], int(found[2])
            queue = self.queues.get(key)
            flight = None if queue is None else queue.flights.get(int(found[3]))
            if queue is not None and flight is not None and flight.number == int(found[4]):
                return key, queue, flight
        raise Refused(Code.INVALID_RECEIPT_HANDLE, "the receipt handle is not, or no longer, valid")

    def ack(self, handle: str) -> None:
        """The message need not come again. Refused."""
        key, queue, flight = self.find(handle)
        self._land(key, queue, flight)
        if self._fifo:
            self._broker.arrived(self.topic, ANY_QUEUE)  # who waits for the next one in order

    def change(self, handle: str, seconds: float) -> str:
        """The message comes again after so long; its new handle. Refused."""
        key, _, flight = self.find(handle)
        flight.owner = ""
        return self._hide(key, flight, seconds)

    def give_back(self, which: Callable[[Flight], bool]) -> None:
        """Messages that their client has not got, or is not there to ack, come again soon."""
        for key, queue in self.queues.items():
            for flight in queue.flights.values():
                if which(flight):
                    flight.owner = ""
                    self._hide(key, flight, _SOON_S)
        self._broker.arrived(self.topic, ANY_QUEUE)


class Pops:
    """What groups have been given of a broker. ``is_there``: whether a client is."""

    def __init__(self, broker: Broker, is_there: Callable[[str], bool]) -> None:
        self.broker, self.is_there = broker, is_there
        self.numbers = count(randbits(48))
        self.flying = 0
        self._all: dict[tuple[str, str], Popped] = {}
        self._kept = 0

    def of(self, group: str, topic: str) -> Popped:
        """The state of a group and topic; not to be held on to while others have their turn."""
        found = self._all.get((group, topic))
        if found is None:
            found = Popped(self, group, topic)
            self.make_room(found)
            self._all[group, topic] = found
        return found

    def make_room(self, for_this: Popped) -> None:
        """Room for one more queue: those of which nothing is out are known by their positions.
        Refused.
        """
        self._kept += 1
        if self._kept <= MOST_QUEUES:
            return
        self._all = {key: each for key, each in self._all.items()
                     if each.flying or each is for_this}
        self._kept = sum(1 + len(each.queues) for each in self._all.values())
        if self._kept >= MOST_QUEUES:
            raise Refused(Code.TOO_MANY_REQUESTS, "too many groups have messages not acked yet")

    def leave(self, client_id: str) -> None:
        """A client is gone: what was kept for it comes again soon."""
        for each in self._all.values():
            if each.flying:
                each.give_back(lambda flight: flight.owner == client_id)
