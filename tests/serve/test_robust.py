"""Hostile and careless clients: the server answers the others all the same, and stays small."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rmqctl.remoting.codes import REQUESTS
from rmqctl.remoting.command import Command, write_command
from rmqctl.serve.dispatch import HANDLERS
from rmqctl.serve.server import Limits
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.serve.running import Running, serving
from tests.support.share import RUN


@pytest.fixture
def root(golden: GoldenFolder) -> Path:
    return golden("5.3.3/basic") / "store"


@pytest.fixture
def served(root: Path) -> Iterator[Running]:
    with serving(root) as running:
        yield running


def _wait_until(holds: Callable[[], bool]) -> None:
    due = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < due
        time.sleep(0.01)


def alive(served: Running) -> bool:
    with served.client(timeout=10) as client:
        return client.ask("GET_BROKER_CLUSTER_INFO").code == 0


@pytest.mark.parametrize("data", [
    b"\x00\x00\x00\x00" * 4, b"\x7f\xff\xff\xff\x00\x00\x00\x00", b"\xff" * 100,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\x00\x00\x08\x00\x00\x00\x04null",
    b"\x00\x00\x00\x06\x09\x00\x00\x02{}"])
def test_what_cannot_be_understood_ends_the_connection(served: Running, data: bytes) -> None:
    with socket.create_connection((served.address.host, served.address.port), 10) as client:
        client.sendall(data)
        with suppress(ConnectionResetError):
            assert client.recv(100) == b""
    assert alive(served)


def test_any_request_with_any_fields_is_answered(served: Running, root: Path) -> None:
    rng = random.Random(RUN.seed)
    with Store.open(root) as store:
        topic = next(iter(store.queues))[0]
    values = ["", "0", "1", "-1", "9" * 19, "9" * 40, "x", "true", topic, "%RETRY%g", "../x", "\0",
              "a" * 70_000, "\ud800".encode("utf-8", "replace").decode()]
    bodies = [b"", b"{}", b"[]", b"null", b"{", b'{"clientID":1}', b'{"mqSet":[1,{}]}',
              b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}']
    with served.client() as client:
        for code in sorted(HANDLERS):
            fields = REQUESTS[code].fields
            for _ in range(12):
                ext = {name: rng.choice(values) for name in fields if rng.random() < 0.9}
                answer = client.ask(code, rng.choice(bodies), **ext)
                assert answer.code >= 0
        assert client.ask(31_337).code == 3
        assert client.ask("SEND_MESSAGE_V2", b"x").code == 16
    assert alive(served)


def test_one_way_requests_are_never_answered(served: Running) -> None:
    with served.client() as client:
        client.one_way("GET_MAX_OFFSET")
        client.one_way(31_337)
        assert client.ask("GET_BROKER_CLUSTER_INFO").opaque == 3


def test_pipelined_requests_are_answered_in_order(served: Running) -> None:
    with served.client() as client:
        sent = [client.send("GET_BROKER_CLUSTER_INFO", ext={}) for _ in range(500)]
        assert [client.receive().opaque for _ in sent] == sent


def test_who_takes_no_answers_is_not_read_from(served: Running, root: Path) -> None:
    with Store.open(root) as store:
        (topic, queue_id), _ = max(store.queues.items(), key=lambda each: each[1].written)
    request = write_command(Command(11, 1, 0, {
        "consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "subscription": "*"}))
    with socket.create_connection((served.address.host, served.address.port), 10) as client:
        client.settimeout(0.5)
        sent = 0
        with suppress(TimeoutError):
            while sent < 64 << 20:
                sent += client.send(request * 100)
        assert sent < 64 << 20
        (connection,) = served.server.connections
        assert connection.unsent < 4 << 20
        assert alive(served)
        served.do(lambda: None)
        assert connection.is_stale(time.monotonic() + 1000)
    assert alive(served)


def test_connections_are_limited_and_given_back(root: Path) -> None:
    with serving(root, limits=Limits(connections=3)) as served:
        for _ in range(300):
            socket.create_connection((served.address.host, served.address.port), 10).close()
        server = served.server
        _wait_until(lambda: server.accepted + server.turned_away == 300 and not server.connections)
        open_ones = [served.client() for _ in range(3)]
        assert all(each.ask("GET_BROKER_CLUSTER_INFO").code == 0 for each in open_ones)
        with served.client() as fourth, pytest.raises((EOFError, ConnectionError)):
            fourth.ask("GET_BROKER_CLUSTER_INFO")
        open_ones.pop().close()
        _wait_until(lambda: len(served.server.connections) == 2)
        assert alive(served)
        for each in open_ones:
            each.close()
    assert served.server.turned_away >= 1
    assert served.server.held == 0


def test_frames_that_are_not_whole_are_held_up_to_a_limit(root: Path) -> None:
    with serving(root, limits=Limits(held=1 << 20)) as served:
        begun = struct.pack(">ii", 15 << 20, 10) + bytes(600_000)
        clients = [socket.create_connection((served.address.host, served.address.port), 10)
                   for _ in range(2)]
        clients[0].sendall(begun)
        clients[1].sendall(begun)
        ended = 0
        for client in clients:
            client.settimeout(1)
            try:
                ended += client.recv(1) == b""
            except ConnectionResetError:
                ended += 1
            except TimeoutError:
                pass
            client.close()
        assert ended == 1
        assert alive(served)
