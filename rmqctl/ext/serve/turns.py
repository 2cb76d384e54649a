"""The order in which requests are answered and connections are read: fair queuing.

Clients share the time of the event loop and the number of bytes that it receives. A virtual clock
determines the order of their turns; the more clients wait, the more slowly it runs. By this clock,
a client waits in proportion to the expected length of its turn. Clients with short turns wait only
briefly, and clients with long turns still get their turns.

Time is shared first among client addresses, then among the connections of each address. Many
connections of one address get no more time than a single connection of another.

The length of a connection's first turn cannot be predicted. Each round therefore includes some
first turns, alternately of the newest and the oldest connection.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

TURN_S = 0.002
"""Maximum seconds for answering requests of one connection before other connections get their
turns.
"""
ROUND_S = 0.005
"""Maximum seconds for answering requests before the event loop checks for new data."""
_MAX_COST_S = 0.005
"""Maximum number of seconds charged for a turn. A turn that was long by chance then delays the
connection's next turn only a little.
"""
ROUND_BYTES = 1 << 20
"""Maximum bytes of large frames received before the event loop handles other data."""
_READERS = 4
"""Maximum number of connections from which large frames are received in one round. At most 256 KiB
are read from each.
"""
_PATIENCE = 4
"""Factor by which a turn's virtual waiting time exceeds the turn's expected length."""
_MIN_COST_S, _SLOWLY = 1e-5, 0.25
_MAX_HOSTS = 1024

_Of = TypeVar("_Of")


class _Line(Generic[_Of]):
    """A queue of waiters, sorted by the virtual time of their turns.

    ``now``: the current virtual time. A turn advances it by the turn's cost divided by the number
    of waiters.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, _Of]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def is_first(self, expected: float) -> bool:
        """Return whether a turn of ``expected`` seconds, requested now, would come before the
        turns of all waiters.
        """
        return not self._heap or self.now + _PATIENCE * expected < self._heap[0][0]

    def push(self, expected: float, waiter: _Of) -> int:
        """Add a waiter whose turn takes ``expected`` seconds. Return the number that identifies the
        waiter's entry.
        """
        number = next(self._numbers)
        heappush(self._heap, (self.now + _PATIENCE * expected, number, waiter))
        return number

    def pop(self) -> tuple[int, _Of]:
        """Remove the waiter whose turn is next. Return (the number that `push` returned for
        this waiter, the waiter).
        """
        _, number, waiter = heappop(self._heap)
        return number, waiter

    def spent(self, cost: float) -> None:
        self.now += cost / (len(self._heap) + 1)


class _Host(Generic[_Of]):
    """A client address with its waiting connections.

    ``entry``: the number of the address's current entry in the queue of addresses, None if the
    address does not wait.
    """

    __slots__ = ("entry", "line")

    def __init__(self) -> None:
        self.line = _Line[tuple[float, _Of]]()
        self.entry: int | None = None


class Hosts(Generic[_Of]):
    """A queue of client addresses, each with a queue of its waiting connections."""

    def __init__(self) -> None:
        self._of: dict[str, _Host[_Of]] = {}
        self._line = _Line[_Host[_Of]]()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def _host(self, name: str) -> _Host[_Of]:
        host = self._of.get(name)
        if host is None:
            if len(self._of) >= _MAX_HOSTS:
                self._of = {other: waiting for other, waiting in self._of.items() if waiting.line}
            host = self._of[name] = _Host()
        return host

    def is_first(self, name: str, expected: float) -> bool:
        """Return whether a turn for the address ``name``, requested now, would come before the
        turns of all waiting connections.
        """
        if not self._waiting:
            return True
        host = self._host(name)
        return host.line.is_first(expected) and (
            len(host.line) == self._waiting or self._line.is_first(expected))

    def push(self, name: str, expected: float, waiter: _Of) -> None:
        """Add a waiting connection of the address ``name``; its turn takes ``expected`` seconds."""
        host = self._host(name)
        if host.line.is_first(expected):  # an entry of the address that was later counts no more
            host.entry = self._line.push(expected, host)
        host.line.push(expected, (expected, waiter))
        self._waiting += 1

    def pop(self) -> _Of:
        """Remove and return the connection whose turn comes next."""
        while True:
            number, host = self._line.pop()
            if number == host.entry:
                break
        _, (expected, waiter) = host.line.pop()
        self._waiting -= 1
        host.entry = self._line.push(expected, host) if host.line else None
        return waiter

    def spent(self, name: str, cost: float) -> None:
        """Charge the address ``name`` for the cost of a turn."""
        self._host(name).line.spent(cost)
        self._line.spent(cost)


class Worker(Protocol):
    """A connection with requests to answer.

    ``host``: see `network_of`. ``turn``: expected length of the connection's turn in seconds, None
    before its first turn.
    """

    host: str
    turn: float | None

    def work(self, late: float) -> bool:
        """Answer requests until ``late`` (time of the clock). Return whether unanswered requests
        remain.
        """
        ...

    def in_line(self, *, waits: bool) -> None:
        """Record whether the connection waits for its turn."""


class _Fresh:
    """Connections that wait for their first turn; the addresses take turns."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Worker]] = OrderedDict()
        self._last = False

    def __len__(self) -> int:
        return len(self._of)

    def push(self, worker: Worker) -> None:
        self._of.setdefault(worker.host, deque()).append(worker)

    def pop(self) -> Worker:
        """Remove and return a connection of the next address: alternately its newest and its
        oldest.

        Under overload, most connections then still wait only briefly, and none waits forever.
        """
        host, workers = self._of.popitem(last=False)
        self._last = not self._last
        worker = workers.pop() if self._last else workers.popleft()
        if workers:
            self._of[host] = workers
        return worker


class Turns:
    """Divides the time of an event loop among connections.

    ``soon``: schedules a function that runs after the event loop has checked for new data.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], Any],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._soon, self.clock = soon, clock
        self._waiting, self._fresh = Hosts[Worker](), _Fresh()
        self._spent = 0.0
        self._begins_soon = False

    def come(self, worker: Worker) -> None:
        """Handle new data of a connection that does not wait for a turn.

        The connection answers requests now, or waits for a turn.
        """
        if self._spent < ROUND_S and not (
                self._fresh if worker.turn is None else
                not self._waiting.is_first(worker.host, worker.turn)):
            if self._turn(worker):
                worker.in_line(waits=True)
            return
        if worker.turn is None:
            self._fresh.push(worker)
        else:
            self._waiting.push(worker.host, worker.turn, worker)
        worker.in_line(waits=True)
        self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._begins_soon:
            self._begins_soon = True
            self._soon(self._round)

    def _turn(self, worker: Worker) -> bool:
        """Run one turn of a connection. Return whether the connection has more to do."""
        begun = self.clock()
        more = worker.work(begun + TURN_S)
        spent = self.clock() - begun
        taken = min(max(spent, _MIN_COST_S), _MAX_COST_S)
        if worker.turn is None:
            worker.turn = taken
        else:  # one that took long by chance, as the system had other work, counts little
            worker.turn += (taken - worker.turn) * (_SLOWLY if taken > worker.turn else 1 - _SLOWLY)
        self._waiting.spent(worker.host, taken)
        self._spent += spent
        if more:
            self._waiting.push(worker.host, worker.turn, worker)
        if more or self._spent >= TURN_S:
            self._begin_soon()
        return more

    def _round(self) -> None:
        self._spent, self._begins_soon = 0.0, False
        while (self._waiting or self._fresh) and self._spent < ROUND_S:
            if self._waiting:
                self._turn_of(self._waiting.pop())
            if self._fresh:
                self._turn_of(self._fresh.pop())
        self._spent = 0.0  # those that come meanwhile and ask for little need not wait
        if self._waiting or self._fresh:
            self._begin_soon()

    def _turn_of(self, worker: Worker) -> None:
        if not self._turn(worker):
            worker.in_line(waits=False)


class FrameReceiver(Protocol):
    """A connection that receives a large frame. ``missing``: number of bytes of the frame that have
    not arrived yet.
    """

    host: str

    @property
    def missing(self) -> int: ...

    def read_later(self, *, waits: bool) -> None:
        """Stop reading from the connection if it must wait (``waits``), else resume reading."""


class Intake:
    """Divides the received bytes of incomplete frames among connections.

    Connections are read in turns, and other requests are answered between the turns.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], Any]) -> None:
        self._soon = soon
        self._waiting = Hosts[FrameReceiver]()
        self._came = 0
        self._begins_soon = False

    def came(self, reader: FrameReceiver, size: int) -> None:
        """Count bytes received from a connection whose frame is still incomplete."""
        self._waiting.spent(reader.host, size)
        self._came += size
        if self._came > ROUND_BYTES or self._waiting:
            reader.read_later(waits=True)
            self._waiting.push(reader.host, reader.missing, reader)
        self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._begins_soon:
            self._begins_soon = True
            self._soon(self._round)

    def _round(self) -> None:
        """Read once from each of a few connections. After this, a connection waits for its next
        turn if other connections wait.
        """
        self._came, self._begins_soon = 0, False
        for _ in range(_READERS):
            if not self._waiting:
                return
            self._waiting.pop().read_later(waits=False)
        self._begin_soon()


