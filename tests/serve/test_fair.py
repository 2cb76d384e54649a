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

from rmqctl.ext.serve import server as server_module
from rmqctl.ext.serve.limits import (
    SILENT_S,
    SPARE_S,
    AddressConnections,
    Limits,
    Quota,
    Shared,
    network_of,
)
from rmqctl.ext.serve.reading import PAGE_BYTES, PageCache, QueuePage
from rmqctl.ext.serve.remoting.command import Command, write_command
from rmqctl.ext.serve.turns import ROUND_S, TURN_S, Intake, Turns
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

    def goes_on(self) -> None:
        """What the event loop does next."""
        self.soon.popleft()()


@dataclass(eq=False)
class Asking:
    """A connection with so many requests that take so long each."""

    loop: Loop
    requests: int
    seconds: float
    host: str = "h"
    answered: float = 0.0
    turn: float | None = None
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

    def asks(self, turns: Turns) -> float:
        """Asks for one thing; how long the answer takes."""
        came, self.requests = self.loop.now, 1
        turns.come(self)
        while self.requests:
            self.loop.goes_on()
        assert not self.waits
        return self.answered - came


HOGS = [(1, 0.001), (100, 0.001), (100, 0.03), (800, 0.004)]
"""How many ask for more than there is time for, and how long each request takes."""


def hogs(loop: Loop, turns: Turns, many: int, seconds: float, host: str = "h") -> list[Asking]:
    """So many that have asked, and had their first turn."""
    askings = [Asking(loop, 10_000, seconds, host) for _ in range(many)]
    for asking in askings:
        turns.come(asking)
    while any(asking.turn is None for asking in askings):
        loop.goes_on()
    return askings


@pytest.mark.parametrize(("many", "seconds"), HOGS)
def test_who_asks_for_little_is_answered_within_two_rounds(many: int, seconds: float) -> None:
    """Even where it asks for more than its share, and all are behind one address."""
    loop = Loop()
    turns = loop.turns()
    honest = Asking(loop, 0, 0.0005)
    honest.asks(turns)
    there = hogs(loop, turns, many, seconds)
    longest = ROUND_S + TURN_S + seconds
    for _ in range(50):
        assert honest.asks(turns) < 2 * longest
        loop.goes_on()
    assert all(client.requests for client in there)


@pytest.mark.parametrize(("many", "seconds"), HOGS)
def test_who_is_new_is_answered_within_four_rounds(many: int, seconds: float) -> None:
    loop = Loop()
    turns = loop.turns()
    hogs(loop, turns, many, seconds)
    longest = ROUND_S + 2 * (TURN_S + seconds)
    for _ in range(50):
        assert Asking(loop, 0, 0.0005).asks(turns) < 4 * longest
        loop.goes_on()


def test_one_long_request_does_not_make_a_client_wait_for_ever() -> None:
    loop = Loop()
    turns = loop.turns()
    honest = Asking(loop, 0, 0.5)
    honest.asks(turns)
    hogs(loop, turns, 100, 0.001)
    honest.seconds = 0.0005
    waits = [honest.asks(turns) for _ in range(8)]
    assert max(waits) < 1.5
    assert waits[-1] < 2 * (ROUND_S + TURN_S + 0.001)


def test_nobody_waits_for_ever() -> None:
    loop = Loop()
    turns = loop.turns()
    heavy = [Asking(loop, 20, 0.004) for _ in range(10)]
    for asking in heavy:
        turns.come(asking)
    first = Asking(loop, 1, 0.001)
    turns.come(first)
    askings = [Asking(loop, 1, 0.001) for _ in range(40)]
    while any(item.requests for item in heavy):  # others come all the time, and are too many
        for asking in [*askings, *(Asking(loop, 1, 0.001) for _ in range(40))]:
            if not asking.waits:
                asking.requests = 1
                turns.come(asking)
        loop.goes_on()
        assert loop.now < 2000
    assert first.answered
    assert not any(asking.waits for asking in heavy)


@pytest.mark.parametrize("many", [1, 30, 1000])
def test_an_address_with_many_connections_has_no_more_time_than_another(many: int) -> None:
    loop = Loop()
    turns = loop.turns()
    there = hogs(loop, turns, many, 0.001, "many")
    other = hogs(loop, turns, 1, 0.001, "one")[0]
    before = 10_000 * many - sum(client.requests for client in there), other.requests
    for _ in range(400):
        loop.goes_on()
    done = 10_000 * many - sum(client.requests for client in there) - before[0]
    assert 0.8 < (before[1] - other.requests) / done < 1.25


@pytest.mark.parametrize(("address", "network"), [
    ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::"),
    ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"), ("?", "?")])
def test_clients_are_told_apart_by_what_they_cannot_choose(address: str, network: str) -> None:
    assert network_of(address) == network


@dataclass(eq=False)
class Receiving:
    """A connection with a large frame under way, and what is read of it."""

    missing: int
    host: str = "h"
    waits: bool = False

    def read_later(self, *, waits: bool) -> None:
        self.waits = waits

    def reads(self, intake: Intake, size: int = 256 << 10) -> None:
        self.missing = max(self.missing - size, 0)
        if self.missing:
            intake.came(self, size)


def test_of_large_frames_little_is_received_between_two_looks_at_requests() -> None:
    soon: deque[Callable[[], None]] = deque()
    intake = Intake(soon.append)
    large = [Receiving(15 << 20) for _ in range(900)]
    for receiver in large:  # the first of each comes before anybody knows
        receiver.reads(intake, 64 << 10)
    small = Receiving(4 << 20)
    small.reads(intake)
    rounds = 0
    while small.missing:
        soon.popleft()()
        there = [receiving for receiving in (*large, small) if not receiving.waits
                 and receiving.missing]
        for receiver in there:
            receiver.reads(intake)
        rounds += 1
        if rounds > 2:
            assert sum(not receiving.waits for receiving in large) <= 8
    assert rounds < 100  # who needs less is not kept waiting by all who need more
    while any(receiving.missing for receiving in large):
        soon.popleft()()
        for receiver in large:
            if not receiver.waits and receiver.missing:
                receiver.reads(intake, 8 << 20)


@dataclass(eq=False)
class Held:
    """A connection as limits see it."""

    host: str = "h"
    since: float | None = 0.0
    ended: bool = False
    held: int = 0
    shared: Shared | None = None
    places: AddressConnections | None = None
    last: float = 1000.0

    @property
    def held_since(self) -> float:
        return self.since or 0.0

    def end(self) -> None:
        self.ended = True
        if self.shared is not None:
            self.shared.change(self.host, -self.held)

    def gone(self) -> None:
        if self.places is not None:
            self.places.leave(self)

    def spare_since(self) -> float | None:
        return self.since


def test_who_has_the_most_connections_gives_a_place() -> None:
    now = 1000.0
    places = AddressConnections(10)

    def came(host: str, since: float | None) -> tuple[Held, bool]:
        held = Held(host, since, places=places)
        return held, places.take(held, now)

    idle = [came("many", since)[0] for since in (now - 6, 0.0, now - 9, None, now, None, now)]
    few = [came("few", 0.0)[0] for _ in range(3)]
    assert all(came("new", now)[1] for _ in range(3))  # by now `new` and `few` have as many as it
    assert [connection.ended
            for connection in idle] == [True, True, True, False, False, False, False]
    assert not any(connection.ended for connection in few)
    assert not came("many", now)[1]  # all of its own are in use, and the others have fewer
    assert not any(connection.ended for connection in few)
    assert came("few", now)[1]
    assert [connection.ended for connection in few] == [True, False, False]


def test_an_address_with_more_than_others_gives_places_that_are_in_use() -> None:
    """Those behind one address may have all places, as long as no other wants any."""
    places = AddressConnections(6)

    def came(host: str, last: float) -> tuple[Held, bool]:
        held = Held(host, None, places=places, last=990 + last)
        return held, places.take(held, 1000.0)

    many = [came("many", last)[0] for last in (5.0, 3.0, 4.0, 2.0, 6.0, 7.0)]
    assert not came("many", 8.0)[1]
    assert [came("new", 9.0)[1] for _ in range(4)] == [True, True, True, False]
    assert [connection.ended for connection in many] == [False, True, True, True, False, False]
    assert came("third", 9.0)[1]


def test_who_waits_and_is_silent_for_long_gives_a_place() -> None:
    places = AddressConnections(3)
    there = [Held("a", None, places=places, last=1000.0 - silent)
             for silent in (SILENT_S - 1, SILENT_S + 2, SILENT_S + 1)]
    assert all(places.take(held, 0.0) for held in there)
    assert [places.take(Held("a", 1000.0), 1000.0) for _ in range(3)] == [True, True, False]
    assert [held.ended for held in there] == [False, True, True]


def test_an_address_has_no_more_connections_than_its_part() -> None:
    places = AddressConnections(10, 0.3)
    there = [Held("a", since, places=places) for since in (None, 0.0, None, None)]
    assert [places.take(held, 1000.0) for held in there[:3]] == [True] * 3
    assert places.take(there[3], 1000.0)
    assert [held.ended for held in there] == [False, True, False, False]
    assert not places.take(Held("a", None), 1000.0)
    assert places.take(Held("b", None), 1000.0)


def test_requests_that_wait_leave_a_share_for_who_comes_yet() -> None:
    quota = Quota(100)

    def fills(host: str) -> int:
        taken = 0
        while quota.has_room(host):
            quota.take(host)
            taken += 1
        return taken

    assert [fills(host) for host in ("a", "b", "c")] == [75, 25, 0]
    quota.leave("a", 60)
    assert fills("c") == 35  # what is scarce are the last 25
    assert fills("b") == 0
    assert not Quota(100, 0.1).has_room("a", 11)
    assert Quota(100, 0.1).has_room("a", 10)


@pytest.mark.parametrize("silent", [SPARE_S + 1, SPARE_S - 1])
def test_a_place_is_kept_for_a_while(silent: float) -> None:
    places = AddressConnections(1)
    first = Held("a", 1000.0 - silent, places=places)
    assert places.take(first, 0.0)
    assert places.take(Held("a"), 1000.0) == (silent > SPARE_S) == first.ended


def test_the_address_that_holds_the_most_gives_way() -> None:
    shared = Shared(1000)
    honest = Held("one", 1.0, held=300, shared=shared)  # the longest of all
    many = [Held("many", 2.0 + number, held=100, shared=shared) for number in range(8)]
    for held in (honest, *many):
        is_too_much = shared.change(held.host, held.held)
    assert is_too_much
    shared.make_room([honest, *many])
    assert [held.ended for held in (honest, *many)] == [False, *[True] * 3, *[False] * 5]
    assert shared.of == {"one": 300, "many": 500}


def test_an_address_holds_no_more_than_its_part() -> None:
    shared = Shared(1000, 0.4)
    there = [Held("a", float(number), held=150, shared=shared) for number in range(3)]
    other = Held("b", 0.0, held=350, shared=shared)
    assert [shared.change(held.host, held.held) for held in (other, *there)] == [
        False, False, False, True]
    shared.make_room([other, *there])
    assert [held.ended for held in (other, *there)] == [False, True, False, False]


def test_who_has_held_the_longest_gives_way() -> None:
    shared = Shared(1000)
    holders = [Held(since=since, held=200, shared=shared) for since in (3.0, 1.0, 2.0, 5.0, 4.0)]
    assert not any(shared.change(holder.host, holder.held) for holder in holders)
    newest = Held(since=6.0, held=1, shared=shared)
    assert shared.change(newest.host, 1)
    shared.make_room([newest, *holders])
    assert [holder.ended for holder in holders] == [False, True, False, False, False]
    assert not newest.ended
    assert (shared.held, shared.freed(), shared.freed()) == (801, 200, 0)


def test_pages_that_nobody_reads_are_given_up() -> None:
    pages = PageCache()
    page = QueuePage(memoryview(bytes(1000)), [0, 1000], [0], frozenset(), True)
    pages.put((1, 1), page)
    assert pages.rest() == 0
    assert pages.get((1, 1)) is page
    assert pages.rest() == 0
    assert pages.rest() == page.size
    assert pages.get((1, 1)) is None


def test_pages_of_others_and_large_messages_are_not_kept() -> None:
    pages = PageCache()
    large = QueuePage(memoryview(bytes(PAGE_BYTES + 1)), [0, PAGE_BYTES + 1], [0], frozenset(),
                      True)
    pages.put((1, 0), large)
    assert pages.get((1, 0)) is None
    page = QueuePage(memoryview(bytes(1000)), [0, 1000], [0], frozenset(), True)
    for key in ((1, 1), (2, 1)):
        pages.put(key, page)
    assert pages.rest() == 0
    assert pages.get((1, 1)) is page  # while one client reads on
    assert pages.rest() == page.size
    assert pages.get((2, 1)) is None


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


def test_one_address_has_its_part_of_connections_and_bytes(
        root: Path, sockets: Callable[[Running, int], list[socket.socket]]) -> None:
    with serving(root, limits=Limits(connections=20, held=1 << 20, part=0.1)) as served:
        server = served.server
        sockets(served, 5)
        until(lambda: server.accepted == 5)
        assert len(server.connections) <= 2
        (hog,) = sockets(served, 1)
        hog.sendall(struct.pack(">ii", 15 << 20, 10) + bytes(90_000))
        until(lambda: server.unfinished.held > 90_000)
        with served.client() as client:
            assert client.ask("GET_BROKER_CLUSTER_INFO", bytes(60_000)).code == 0
            assert client.ask("GET_BROKER_CLUSTER_INFO", bytes(90_000)).code == 0
        assert server.unfinished.held < 105_000


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

        def counted(self: Shared, host: str, more: int) -> bool:
            change_result = change(self, host, more)
            if self is served.server.unsent:
                most.append(self.held)
            return change_result

        monkeypatch.setattr(Shared, "change", counted)
        request = write_command(Command(105, 1, 0, {"topic": "x" * 2000})) * 100
        for item in sockets(served, 8):
            item.settimeout(0.05)
            try:
                while True:
                    item.sendall(request)
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
        for other_client in hogs:
            other_client.sendall(struct.pack(">ii", 15 << 20, 10) + bytes(200_000))
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
            from rmqctl.ext.serve.connection import ClientConnection

            loop = asyncio.get_running_loop()
            protocols = []
            for _ in range(30):
                pair.append(socket.socketpair())
                pair[-1][0].setblocking(False)
                _, protocol = await loop.connect_accepted_socket(
                    lambda: ClientConnection(server, served.brokers[0]), pair[-1][0])
                protocols.append(protocol)
            data = write_command(Command(105, 1, 0, {"topic": "x"})) * 200
            for number, protocol in enumerate(protocols):
                work = protocol.work
                protocol.work = lambda late, work=work, number=number: (  # type: ignore[method-assign, misc]
                    order.append(str(number)), work(late))[1]
                server.received[:len(data)] = data
                protocol.buffer_updated(len(data))

        asyncio.run_coroutine_threadsafe(feed(), served.loop).result(10)
        until(lambda: not any(connection._frames.held for connection in server.connections))
        for _, other in pair:
            other.close()
        until(lambda: not server.connections)
    longest = max(len(list(run)) for run in _runs(order))
    assert len(order) > 30 * 10
    assert longest <= 2


def _runs(order: list[str]) -> Iterator[list[str]]:
    run: list[str] = []
    for text in order:
        if run and run[-1] != text:
            yield run
            run = []
        run.append(text)
    yield run


def test_memory_that_nobody_counts_goes_back_to_the_system(root: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    has, given = [100 << 20], []
    monkeypatch.setattr(server_module.malloc_tuning, "resident", lambda: has[0])
    monkeypatch.setattr(server_module.malloc_tuning, "give_back", lambda: given.append(has[0]))
    with serving(root) as served:
        for grown in (0, 4, 40, 0, -10, -30):  # what was in use at first is not later on
            has[0] += grown << 20
            served.do(served.server._expire)
    assert given == [144 << 20, 144 << 20, 134 << 20]
