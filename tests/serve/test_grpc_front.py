"""Frames of HTTP/2 that gRPC's core would keep, or work on, without a limit."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("grpc")

from rmqctl.ext.serve.grpc import front, server
from rmqctl.ext.serve.grpc.protocol import SERVICE
from tests.serve.running import Running, serving, until
from tests.serve.stubs import OK, Stub
from tests.serve.test_grpc import bodies, root

__all__ = ["root"]  # a fixture
DATA, HEADERS, RESET, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
ACK = END_STREAM = 1
END_HEADERS = 4
CANCEL = (8).to_bytes(4, "big")


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return (len(data).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
            + data)


def fields(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
                    for name, value in pairs)


HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
HEADER = fields(
    (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"),
    (b":path", f"/{SERVICE}/QueryRoute".encode()), (b"te", b"trailers"),
    (b"content-type", b"application/grpc"), (b"x-mq-client-id", b"c"))
EMPTY = bytes(5)
"""A message without a content."""
ACKED = frame(SETTINGS, ACK, 0)


def call(stream: int) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, HEADER) + frame(DATA, END_STREAM, stream, EMPTY)


@contextmanager
def connected(served: Running) -> Iterator[socket.socket]:
    assert served.server.proxy is not None
    address = served.server.proxy.address
    with socket.create_connection((address.host, address.port), 10) as client:
        yield client


def answered(client: socket.socket, stream: int) -> bool:
    """Whether a call is answered before the connection ends."""
    data = b""
    while True:
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            if data[3] == HEADERS and data[4] & END_STREAM and (
                    int.from_bytes(data[5:9], "big") == stream):
                return True
            data = data[9 + int.from_bytes(data[:3], "big"):]
        try:
            more = client.recv(1 << 16)
        except ConnectionError:
            return False
        if not more:
            return False
        data += more


@pytest.fixture
def served(root: Path) -> Iterator[Running]:
    with serving(root, grpc=True) as running:
        yield running
        assert not running.failures


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\n\r\n",
    HELLO + ACKED + frame(HEADERS, 0, 1, HEADER) + frame(CONTINUATION, 0, 1, b"") * 20,
    HELLO + ACKED + frame(HEADERS, 0, 1, HEADER) + frame(
        CONTINUATION, 0, 1, fields((b"k", b"x" * 100)) * 140) * 3,
    HELLO + ACKED + frame(HEADERS, 0, 1, HEADER) + frame(PING, 0, 0, bytes(8)),
    HELLO + ACKED + frame(CONTINUATION, END_HEADERS, 1, HEADER),
    HELLO + ACKED + frame(DATA, 0, 1, bytes(front.MAX_FRAME + 1)),
    HELLO + call(1) + frame(PING, ACK, 0, bytes(8)) * 4000,
], ids=["other protocol", "empty parts", "large parts", "not continued", "continues nothing",
        "large frame", "settings not acknowledged"])
def test_what_the_core_would_keep_ends_the_connection(data: bytes, served: Running) -> None:
    with connected(served) as client:
        client.sendall(data)
        assert not answered(client, 1)
    assert served.server.broken == 1
    until(lambda: not served.server.pipes)
    assert served.server.unfinished.held == 0


@pytest.mark.parametrize("data", [
    HELLO + ACKED + call(1),
    HELLO + call(1) + ACKED,  # as a client may that does not wait for the server's settings
    HELLO + call(1) + frame(PING, ACK, 0, bytes(8)) * 3 + ACKED + frame(SETTINGS, 0, 0),
    HELLO + ACKED + frame(HEADERS, 0, 1, HEADER[:50]) + frame(CONTINUATION, 0, 1, HEADER[50:60])
    + frame(CONTINUATION, END_HEADERS, 1, HEADER[60:]) + frame(DATA, END_STREAM, 1, EMPTY),
], ids=["usual", "settings last", "settings among others", "parts"])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_call_is_answered_however_it_comes(data: bytes, size: int, served: Running) -> None:
    with connected(served) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(data), size):
            client.sendall(data[at:at + size])
        assert answered(client, 1)
    until(lambda: not served.server.pipes)


def test_a_call_may_be_there_before_the_core_is(served: Running,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    connect = front.Pipe._connect

    async def late(pipe: front.Pipe, core: socket.socket) -> None:
        assert pipe._transport is not None
        pipe._transport.resume_reading()  # as Python before 3.11.4 does by itself
        while not pipe._in.endswith(EMPTY):
            await asyncio.sleep(0.001)
        await connect(pipe, core)

    monkeypatch.setattr(front.Pipe, "_connect", late)
    with connected(served) as client:
        client.sendall(HELLO + ACKED + call(1))
        assert answered(client, 1)


def test_calls_wait_until_the_settings_are_acknowledged(served: Running) -> None:
    with connected(served) as client:
        client.sendall(HELLO + call(1))
        until(lambda: any(pipe.held for pipe in served.server.pipes))
        assert served.server.proxy is not None
        assert not any(pipe.calls for pipe in served.server.pipes)
        client.sendall(ACKED)
        assert answered(client, 1)


@pytest.mark.parametrize("end", [b"", frame(RESET, 0, 1, CANCEL)],
                         ids=["complete", "reset"])
def test_what_came_of_a_request_counts_until_it_is_complete(end: bytes, served: Running) -> None:
    held = served.server.unfinished
    with connected(served) as client:
        client.sendall(HELLO + ACKED + frame(HEADERS, END_HEADERS, 1, HEADER)
                       + frame(DATA, 0, 1, b"\0" + (5000).to_bytes(4, "big") + bytes(4000)))
        until(lambda: held.held == 2 * 4005)
        client.sendall(end or frame(DATA, END_STREAM, 1, bytes(1000)))
        until(lambda: held.held == 0)


def test_requests_that_are_not_complete_end_the_one_that_has_it_the_longest(
        served: Running) -> None:
    held = served.server.unfinished
    held.limit = 20_000
    part = frame(HEADERS, END_HEADERS, 1, HEADER) + frame(
        DATA, 0, 1, b"\0" + (9000).to_bytes(4, "big") + bytes(4000))
    with connected(served) as first, connected(served) as second, connected(served) as third:
        for number, client in enumerate((first, second, third)):
            client.sendall(HELLO + ACKED + part)
            until(lambda: held.held == min(number + 1, 2) * 2 * 4005)  # noqa: B023
        assert not answered(first, 1)
        for client in (second, third):
            client.sendall(frame(DATA, END_STREAM, 1, bytes(5000)))
            assert answered(client, 1)


def test_calls_that_bring_nothing_hold_nobody_up(served: Running, root: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(served) as client, Stub(served, bodies(root)[0]) as stub:
        client.sendall(HELLO + ACKED + b"".join(
            frame(HEADERS, END_HEADERS, stream, HEADER) for stream in range(1, 200, 2)))
        until(lambda: sum(pipe.calls for pipe in served.server.pipes) == 100)
        assert stub.code("QueryRoute", topic=stub.topic, timeout=5) == OK
    with connected(served) as client:
        monkeypatch.setattr(server, "_READ_S", 0.1)
        client.sendall(HELLO + ACKED + frame(HEADERS, END_HEADERS, 1, HEADER))
        assert answered(client, 1)


def test_streams_that_are_opened_and_reset_take_nothing_from_others(
        served: Running, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "_MAX_SMALL", 100.0)
    monkeypatch.setattr(front, "_SMALL_RATE", 0.0)
    with connected(served) as client, Stub(served, bodies(root)[0]) as stub:
        client.sendall(HELLO + ACKED)
        assert stub.code("QueryRoute", topic=stub.topic) == OK  # a connection from before
        client.setblocking(False)
        flood = b"".join(frame(HEADERS, END_HEADERS, stream, HEADER)
                         + frame(RESET, 0, stream, CANCEL) for stream in range(1, 2001, 2))
        client.send(flood)
        assert stub.code("QueryRoute", topic=stub.topic) == OK
        # No more is passed on, and no more is read.
        until(lambda: any(pipe._slow and pipe.held > 64 << 10 for pipe in served.server.pipes))
        assert stub.code("QueryRoute", topic=stub.topic) == OK


@pytest.mark.parametrize("kind", [PING, SETTINGS, RESET, DATA])
def test_small_frames_are_passed_on_slowly(kind: int, served: Running,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "_MAX_SMALL", 20.0)
    monkeypatch.setattr(front, "_SMALL_RATE", 0.0)
    with connected(served) as client:
        client.sendall(HELLO + ACKED + frame(kind, kind == PING, 0 if kind in (PING, SETTINGS)
                                             else 1, bytes(8) if kind == PING else b"")
                       * 15_000)
        until(lambda: any(pipe.held > 64 << 10 for pipe in served.server.pipes)
              or not served.server.pipes)  # the core ends some of these itself


# -- the gate -----------------------------------------------------------------------------------


class _Pipe:
    """A connection with so many calls, of which one waits."""

    is_open, host = True, "h"

    def __init__(self, calls: int, let: list[int]) -> None:
        self.calls, self._let = calls, let

    def may_call(self) -> None:
        self._let.append(self.calls)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What the event loop is to do later."""
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(
        call_later=lambda _, work, *given: waiting.append(lambda: work(*given))))
    return waiting


def _full(gate: front.Gate) -> list[int]:
    let: list[int] = []
    for _ in range(front._CALLS_AT_ONCE):
        assert gate.take(cast("Any", _Pipe(0, let)))
    return let


def test_who_has_few_calls_comes_before_those_with_many(later: list[Callable[[], None]]) -> None:
    gate = front.Gate()
    let = _full(gate)
    for calls in (*range(50, 100), 0):
        assert not gate.take(cast("Any", _Pipe(calls, let)))
    for _ in range(51):
        gate.begun()
    assert let[0] == 0
    assert sorted(let) == [0, *range(50, 100)]
    assert len(later) == 1


def test_calls_that_never_begin_hold_nobody_up_for_long(later: list[Callable[[], None]]) -> None:
    gate = front.Gate()
    let = _full(gate)
    closed = _Pipe(1, let)
    closed.is_open = False
    for pipe in (closed, _Pipe(7, let)):
        gate.take(cast("Any", pipe))
    looks = 0
    while later:
        later.pop()()
        looks += 1
        assert looks < 100
    assert let == [7]
    assert looks == front._LOOKS


@pytest.mark.parametrize("size", [1, 3, 4, 5, 6, 100])
def test_messages_are_told_apart_whatever_the_frames(size: int) -> None:
    call = front._Call()
    data = b"".join(b"\0" + number.to_bytes(4, "big") + bytes(number) for number in (0, 3, 10, 0))
    for at in range(0, len(data), size):
        call.bring(data[at:at + size])
    assert (call.came, call.missing, call.prefix) == (0, 0, b"")
    call.bring(b"\0\0\0\0\5ab")
    assert (call.came, call.missing) == (7, 3)
