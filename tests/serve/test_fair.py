"""Clients that want all of a server: what the others get, counted in turns and bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmqctl.remoting.command import Command, write_command
from rmqctl.serve import server as server_module
from rmqctl.serve.limits import SPARE_S, Limits, Places, Shared
from rmqctl.serve.turns import ROUND_S, TURN_S, Turns
from tests.conftest import GoldenFolder
from tests.serve.running import Running, serving, until


@pytest.fixture
def root(golden: GoldenFolder) -> Path:
    return golden("5.3.3/basic") / "store"


@dataclass
class Loop:
    """An event loop and a clock that goes on by work alone."""

    now: float = 1000.0
    soon: deque[Callable[[], None]] = field(default_factory=deque)

    def turns(self) -> Turns:
        return Turns(self.soon.append, lambda: self.now)


@dataclass(eq=False)
class Asking:
    """A connection with so many requests that take so long each."""

    loop: Loop
    requests: int
    seconds: float
    answered: float = 0.0
    second: int = -1
    spent: float = 0.0
    waits: bool = False

    def work(self, late: float) -> bool:
        while self.requests:
            self.requests -= 1
            self.loop.now += self.seconds
            self.answered = self.loop.now
            if self.loop.now > late:
                break
        return self.requests > 0

    def in_line(self, *, waits: bool) -> None:
        self.waits = waits


@pytest.mark.parametrize(("hogs", "seconds"), [
    (1, 0.001), (100, 0.001), (100, 0.03), (2000, 0.004)])
def test_who_asks_little_is_answered_within_two_rounds(hogs: int, seconds: float) -> None:
    loop = Loop()
    turns = loop.turns()
    many = [Asking(loop, 10_000, seconds) for _ in range(hogs)]
    for each in many:  # all at once, before anybody else
        turns.come(each)
    longest = ROUND_S + 3 * (TURN_S + seconds)
    for _ in range(50):
        honest = Asking(loop, 1, 0.0005)
        came = loop.now
        turns.come(honest)
        for _ in range(2):
            if loop.soon:
                loop.soon.popleft()()
        assert came < honest.answered < came + 2 * longest
        assert not honest.waits
    assert all(each.requests for each in many)


def test_nobody_waits_for_ever() -> None:
    loop = Loop()
    turns = loop.turns()
    heavy = [Asking(loop, 100, 0.004) for _ in range(10)]
    for each in heavy:
        turns.come(each)
    first = Asking(loop, 1, 0.001)
    turns.come(first)
    while any(each.requests for each in heavy):  # light ones come all the time, and are too many
        for _ in range(40):
            turns.come(Asking(loop, 1, 0.001))
        loop.soon.popleft()()
        assert loop.now < 2000
    assert first.answered
    assert not any(each.waits for each in heavy)


@dataclass(eq=False)
class Held:
    """A connection as limits see it."""

    host: str = "h"
    since: float | None = 0.0
    ended: bool = False
    held: int = 0
    shared: Shared | None = None
    places: Places | None = None

    @property
    def held_since(self) -> float:
        return self.since or 0.0

    def end(self) -> None:
        self.ended = True
        if self.shared is not None:
            self.shared.change(-self.held)

    def gone(self) -> None:
        if self.places is not None:
            self.places.leave(self)

    def spare_since(self) -> float | None:
        return self.since


def test_who_has_the_most_connections_gives_a_place() -> None:
    now = 1000.0
    places = Places(10)

    def came(host: str, since: float | None) -> tuple[Held, bool]:
        one = Held(host, since, places=places)
        return one, places.take(one, now)

    idle = [came("many", since)[0] for since in (now - 6, 0.0, now - 9, None, now, None, now)]
    few = [came("few", 0.0)[0] for _ in range(3)]
    assert all(came("new", now)[1] for _ in range(3))  # by now `new` and `few` have as many as it
    assert [each.ended for each in idle] == [True, True, True, False, False, False, False]
    assert not any(each.ended for each in few)
    assert not came("many", now)[1]  # all of its own are in use, and the others have fewer
    assert not any(each.ended for each in few)
    assert came("few", now)[1]
    assert [each.ended for each in few] == [True, False, False]


@pytest.mark.parametrize("silent", [SPARE_S + 1, SPARE_S - 1])
def test_a_place_is_kept_for_a_while(silent: float) -> None:
    places = Places(1)
    first = Held("a", 1000.0 - silent, places=places)
    assert places.take(first, 0.0)
    assert places.take(Held("a"), 1000.0) == (silent > SPARE_S) == first.ended


def test_who_has_held_the_longest_gives_way() -> None:
    shared = Shared(1000)
    holders = [Held(since=since, held=200, shared=shared) for since in (3.0, 1.0, 2.0, 5.0, 4.0)]
    assert not any(shared.change(each.held) for each in holders)
    newest = Held(since=6.0, held=1, shared=shared)
    assert shared.change(1)
    shared.make_room([newest, *holders])
    assert [each.ended for each in holders] == [False, True, False, False, False]
    assert not newest.ended
    assert (shared.held, shared.freed(), shared.freed()) == (801, 200, 0)


# -- over sockets -------------------------------------------------------------------------------


def _alive(served: Running) -> bool:
    with served.client(timeout=10) as client:
        return client.ask("GET_BROKER_CLUSTER_INFO").code == 0


@pytest.fixture
def sockets() -> Iterator[Callable[[Running, int], list[socket.socket]]]:
    with ExitStack() as stack:
        def connect(served: Running, count: int) -> list[socket.socket]:
            return [stack.enter_context(socket.create_connection(
                (served.address.host, served.address.port), 10)) for _ in range(count)]
        yield connect


def test_connections_that_ask_nothing_turn_nobody_away(
        root: Path, sockets: Callable[[Running, int], list[socket.socket]]) -> None:
    with serving(root, limits=Limits(connections=20)) as served:
        sockets(served, 60)
        until(lambda: served.server.accepted == 60)
        assert _alive(served)
        assert served.server.turned_away == 0
        assert len(served.server.connections) <= 20


def test_answers_that_nobody_takes_are_bounded_together_and_freed(
        root: Path, sockets: Callable[[Running, int], list[socket.socket]],
        monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(server_module, "_SIZABLE", 1000)
    monkeypatch.setattr(server_module.malloc_tuning, "give_back", lambda: given_back.append(1))
    limit = 2 << 20
    with serving(root, limits=Limits(unsent_in_all=limit)) as served:
        most: list[int] = []
        change = Shared.change

        def counted(self: Shared, more: int) -> bool:
            found = change(self, more)
            if self is served.server.unsent:
                most.append(self.held)
            return found

        monkeypatch.setattr(Shared, "change", counted)
        request = write_command(Command(105, 1, 0, {"topic": "x" * 2000})) * 100
        for each in sockets(served, 8):
            each.settimeout(0.05)
            try:
                while True:
                    each.sendall(request)
            except OSError:
                pass
        assert limit < max(most) < limit + (4 << 20)  # the answer under way is counted, too
        assert served.server.unsent.held <= limit
        assert _alive(served)
    served.server._expire()
    assert served.server.unsent.held == 0
    assert given_back


def test_a_frame_that_is_never_whole_keeps_nobody_from_sending(
        root: Path, sockets: Callable[[Running, int], list[socket.socket]]) -> None:
    with serving(root, limits=Limits(held=1 << 20)) as served:
        hogs = sockets(served, 4)
        for each in hogs:
            each.sendall(struct.pack(">ii", 15 << 20, 10) + bytes(200_000))
        until(lambda: served.server.unfinished.held > 799_000)
        with served.client() as client:
            for _ in range(4):
                assert client.ask("GET_BROKER_CLUSTER_INFO", bytes(900_000)).code == 0
        assert served.server.unfinished.held <= 1 << 20


def test_requests_over_sockets_are_answered_in_turns(root: Path) -> None:
    """Of 30 connections that do not read, none has more than a turn before another's."""
    order: list[str] = []
    with serving(root) as served:
        server = served.server
        clock = iter(range(10**9))
        server.turns.clock = lambda: next(clock) * TURN_S / 4
        pair: list[tuple[socket.socket, socket.socket]] = []

        async def feed() -> None:
            from rmqctl.serve.connection import ClientConnection

            loop = asyncio.get_running_loop()
            made = []
            for _ in range(30):
                pair.append(socket.socketpair())
                pair[-1][0].setblocking(False)
                _, protocol = await loop.connect_accepted_socket(
                    lambda: ClientConnection(server, served.brokers[0]), pair[-1][0])
                made.append(protocol)
            data = write_command(Command(105, 1, 0, {"topic": "x"})) * 200
            for number, protocol in enumerate(made):
                work = protocol.work
                protocol.work = lambda late, work=work, number=number: (  # type: ignore[method-assign, misc]
                    order.append(str(number)), work(late))[1]
                server.received[:len(data)] = data
                protocol.buffer_updated(len(data))

        asyncio.run_coroutine_threadsafe(feed(), served.loop).result(10)
        until(lambda: not any(each._frames.held for each in server.connections))
        for _, other in pair:
            other.close()
        until(lambda: not server.connections)
    longest = max(len(list(run)) for run in _runs(order))
    assert len(order) > 30 * 10
    assert longest <= 2


def _runs(order: list[str]) -> Iterator[list[str]]:
    run: list[str] = []
    for each in order:
        if run and run[-1] != each:
            yield run
            run = []
        run.append(each)
    yield run
