"""Sockets: connections of clients, their limits, and what is done every now and then.

One thread, one event loop. A connection whose client does not read is not read from either, so no
request is answered that nobody takes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from rmqctl.errors import RmqctlError, StoreIOError, UsageError
from rmqctl.parse_values import Address
from rmqctl.remoting.codes import Status
from rmqctl.remoting.command import Command, read_command, response_head, write_command
from rmqctl.remoting.frame import MAX_FRAME, FrameError, FrameReader
from rmqctl.serve.broker import Broker, Buffer, Response
from rmqctl.serve.dispatch import answer

if TYPE_CHECKING:
    from rmqctl.serve.grpc.server import Proxy

Save = Callable[[], Callable[[], None] | None]
"""Gives what writes positions down as they are now, in a thread if need be; None if nothing
changed. StoreIOError, RefusedError, both of them.
"""
_LOOK_S = 1.0
_DELIVER_S = 0.1
_EXPIRE_S = 10.0
_SAVE_S = 5.0
_BACKLOG = 512
_LAST_PORT = 65_535
_LARGEST_BODY = MAX_FRAME - (1 << 20)
_TURN_S = 0.02
"""So long requests of one connection are answered before it is the others' turn."""
_MOST_ASKED = 64
"""Requests to one client that wait for its response."""
_RECEIVED = 256 << 10
"""Bytes that are received at once."""
_GATHERED = 320 << 10
"""Bytes of answers to one client that wait for others of this turn, to be sent together."""
_MOST_BUFFERS = 512
"""Parts of answers that wait; the last answer may bring as many (IOV_MAX is 1024)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take. Bytes and seconds; ``held``: of frames that are not whole, and of
    answers that are not taken, of all connections together.
    """

    connections: int = 1000
    frame: int = MAX_FRAME
    held: int = 256 << 20
    unsent: int = 1 << 20
    idle: float = 120.0


@dataclass(eq=False)
class Server:
    """The brokers of a cluster, each behind a port of its own. Any port answers for the name
    server, too.
    """

    brokers: Sequence[Broker]
    limits: Limits = field(default_factory=Limits)
    save: Save = lambda: None
    problem: Callable[[str], None] = lambda _text: None
    once_idle: float | None = None
    proxy: Proxy | None = None
    """The service for 5.x clients, where it is wanted."""
    fast: Address | None = None
    """Where the first broker listens, too, if that port is free: two below its own, for old clients
    (spec: remoting.md §1.5).
    """
    each_second: Callable[[], None] = lambda: None
    """Called each second, and once more at the end."""
    connections: set[_Connection] = field(default_factory=set)
    held: int = 0
    accepted: int = 0
    turned_away: int = 0
    broken: int = 0
    """Connections that sent what cannot be understood."""
    last_used: float = field(default_factory=time.monotonic)
    received: memoryview = field(default_factory=lambda: memoryview(bytearray(_RECEIVED)))
    """Where what arrives is put, for whichever connection: it is taken out at once."""
    answered: list[_Connection] = field(default_factory=list)
    """Connections with answers that are sent at the end of this turn."""
    _saving: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    """One thread: positions are written down once at a time."""
    _problem: str | None = None
    """The last one that was told: one that stays is told once."""

    async def run(self, sockets: Iterable[socket.socket], ready: Callable[[], None],
                  stop: asyncio.Event) -> None:
        """Serves until ``stop`` is set, or nobody was there for ``once_idle`` seconds; each broker
        on a socket from `bind`. StoreIOError where a store can no longer be written to.
        """
        loop = asyncio.get_running_loop()
        servers = []
        try:
            for broker, bound in zip(self.brokers, sockets, strict=True):
                try:
                    servers.append(await loop.create_server(
                        partial(_Connection, self, broker), sock=bound, backlog=_BACKLOG))
                except OSError as error:
                    raise StoreIOError.from_oserror(
                        error, str(broker.address), "listen on") from None
            if self.fast is not None:
                with suppress(OSError):  # only old clients ask there
                    servers.append(await loop.create_server(
                        partial(_Connection, self, self.brokers[0]), self.fast.host,
                        self.fast.port, backlog=_BACKLOG))
            if self.proxy is not None:
                await self.proxy.start()
            tasks = [asyncio.create_task(self._every(*each)) for each in (
                (_DELIVER_S, self._deliver), (_LOOK_S, partial(self._look, stop)),
                (min(_EXPIRE_S, self.limits.idle), self._expire), (1.0, self.each_second))]
            tasks.append(asyncio.create_task(self._save_beside()))
            ready()
            if self.once_idle is not None:
                tasks.append(asyncio.create_task(self._every(0.2, partial(self._idle, stop))))
            await stop.wait()
            for task in tasks:
                task.cancel()
            self._do(self.each_second)
        finally:
            for server in servers:
                server.close()
            if self.proxy is not None:
                await self.proxy.stop()
            for connection in list(self.connections):
                connection.end()
            self._saving.shutdown(cancel_futures=True)
            self._save()
            for broker in self.brokers:
                broker.close()
        if self.failure is not None:
            raise StoreIOError(f"{self.failure}; no message is taken any more")

    @property
    def failure(self) -> str | None:
        """Why a store cannot be written to any more."""
        return next((broker.writer.failure for broker in self.brokers
                     if broker.writer is not None and broker.writer.failure is not None), None)

    async def _every(self, seconds: float, work: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            self._do(work)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - what is done now and then goes on
            self._say(error)

    def _say(self, error: Exception) -> None:
        problem = str(error) if isinstance(error, RmqctlError) else (
            f"{type(error).__name__}: {error}")
        if problem != self._problem:
            self._problem = problem
            self.problem(problem)

    def send_soon(self, connection: _Connection) -> None:
        """Has a connection send its answers when others of this turn may have joined them."""
        if not self.answered:
            asyncio.get_running_loop().call_soon(self._send_answers)
        self.answered.append(connection)

    def _send_answers(self) -> None:
        answered, self.answered = self.answered, []
        for connection in answered:
            connection.flush()

    def _look(self, stop: asyncio.Event) -> None:
        if self.failure is not None:
            stop.set()
        for broker in self.brokers:
            broker.look_again()

    def _deliver(self) -> None:
        for broker in self.brokers:
            broker.deliver()

    def _expire(self) -> None:
        now = time.monotonic()
        for broker in self.brokers:
            broker.expire()
        if self.proxy is not None:
            self.proxy.expire()
        for connection in list(self.connections):
            if connection.is_stale(now):
                connection.end()

    async def _save_beside(self) -> None:
        """Saves now and then, in a thread."""
        while True:
            await asyncio.sleep(_SAVE_S)
            try:
                write = self.save()
                if write is not None:
                    await asyncio.get_running_loop().run_in_executor(self._saving, write)
                for broker in self.brokers:
                    broker.keep()
            except Exception as error:  # noqa: BLE001 - it is tried again
                self._say(error)

    def _save(self) -> None:
        """Saves here and now."""
        try:
            write = self.save()
            if write is not None:
                write()
            for broker in self.brokers:
                broker.keep()
        except RmqctlError as error:
            self.problem(str(error))

    def _idle(self, stop: asyncio.Event) -> None:
        if self.connections or (self.proxy is not None and self.proxy.in_use):
            self.last_used = time.monotonic()
        elif time.monotonic() - self.last_used > (self.once_idle or 0):
            stop.set()


def bind(listen: Address, count: int) -> list[tuple[Address, socket.socket]]:
    """Sockets for so many brokers, each with its address from now on. StoreIOError where a port is
    not to be had, UsageError where there are not so many behind it.
    """
    if listen.port + count - 1 > _LAST_PORT:
        raise UsageError(f"{listen}: each of the {count} stores needs a port, and the last one is "
                         f"{_LAST_PORT}")
    sockets: list[tuple[Address, socket.socket]] = []
    for number in range(count):
        port = listen.port + number if listen.port else 0
        try:
            family, _, _, _, address = socket.getaddrinfo(
                listen.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            bound = socket.create_server(address[:2], family=family)
            sockets.append((Address(listen.host, bound.getsockname()[1]), bound))
        except OSError as error:
            raise StoreIOError.from_oserror(
                error, str(Address(listen.host, port)), "listen on") from None
    return sockets


class _Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, server: Server, broker: Broker) -> None:
        self._server, self._broker = server, broker
        self._frames = FrameReader(server.limits.frame)
        self._paused = False
        self._busy = self._waits = False
        self.at_end: set[Callable[[], None]] = set()
        self.peer = self.local_host = ""
        self._last = self._since = time.monotonic()
        self._held = 0
        self._out: list[Buffer] = []
        self._out_size = 0
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, tuple[Callable[[Command | None], None], asyncio.TimerHandle]] = {}
        self._numbers = count(1)

    def _forget_held(self) -> None:
        self._server.held -= self._held
        self._held = 0

    # -- what the event loop says -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = cast("asyncio.Transport", transport)
        if len(server.connections) >= server.limits.connections:
            server.turned_away += 1
            self._transport.abort()
            return
        server.connections.add(self)
        server.accepted += 1
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.peer = str(Address(*peer[:2]))
        self.local_host = (transport.get_extra_info("sockname") or ("",))[0]
        self._fd = transport.get_extra_info("socket").fileno()
        self._transport.set_write_buffer_limits(high=server.limits.unsent)

    def connection_lost(self, exc: Exception | None) -> None:
        server = self._server
        if self not in server.connections:
            return
        server.connections.discard(self)
        server.last_used = time.monotonic()
        self._forget_held()
        for end in list(self.at_end):
            end()
        for number in list(self._asked):
            self._heard(number, None)
        self._broker.forget(self)
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.received

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.feed(self._server.received[:nbytes])
        self._work()

    def pause_writing(self) -> None:
        self._paused = True
        self._since = time.monotonic()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._work()
        self._read_on()

    def _read_on(self) -> None:
        if not (self._paused or self._waits or self._transport is None
                or self._transport.is_closing()):
            self._transport.resume_reading()

    def _go_on(self) -> None:
        """It is this connection's turn again."""
        self._waits = False
        self._work()
        self._read_on()

    # -- requests -----------------------------------------------------------------------------

    def _work(self) -> None:
        """Answers what is there, as long as the client takes the answers."""
        if self._busy or self._waits:
            return
        self._busy = True
        late = time.monotonic() + _TURN_S
        pulls, sends = self._broker.pulls, self._broker.sends
        try:
            while not self._paused and (transport := self._transport) is not None:
                if not pulls.take_all(self, self._frames, late) and (
                        sends is None or not sends.take_all(self, self._frames)):
                    frame = self._frames.next()
                    if frame is None:
                        break
                    command = read_command(frame)
                    if command.is_response:
                        self._heard(command.opaque, command)
                    else:
                        answer(self._broker, self, command)
                if not self._frames.held:
                    break
                if time.monotonic() > late and not transport.is_closing():
                    self._waits = True
                    transport.pause_reading()
                    asyncio.get_running_loop().call_soon(self._go_on)
                    break
        except FrameError:
            self._server.broken += 1
            self.end()
        finally:
            self._busy = False
            self.flush()
        self._count()

    def _count(self) -> None:
        """What is held of frames that are not whole, against what all may hold."""
        if self._transport is None or self._transport.is_closing():
            return
        self._last = time.monotonic()
        held = self._frames.held
        if not held or held < self._held:
            self._since = self._last
        if held == self._held:
            return
        self._server.held += held - self._held
        self._held = held
        if held and self._server.held > self._server.limits.held:
            self.end()

    def is_stale(self, now: float) -> bool:
        """Whether nothing came for too long, or only a part of something, or nothing is taken."""
        idle = self._server.limits.idle
        return now - self._last > idle or (
            (self._paused or self._held > 0) and now - self._since > idle)

    @property
    def is_full(self) -> bool:
        return self._paused

    @property
    def unsent(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- answers ------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        if self._transport is not None and not (self._paused or self._transport.is_closing()):
            data = write_command(command)
            self._write([data], len(data))

    def ask(self, command: Command, then: Callable[[Command | None], None], seconds: float) -> None:
        if self._transport is None or len(self._asked) >= _MOST_ASKED:
            then(None)
            return
        number = next(self._numbers)
        timer = asyncio.get_running_loop().call_later(seconds, self._heard, number, None)
        self._asked[number] = then, timer
        self.send(replace(command, opaque=number))

    def _heard(self, number: int, response: Command | None) -> None:
        """The response to what the client was asked, if it still counts."""
        then, timer = self._asked.pop(number, (None, None))
        if then is not None and timer is not None:
            timer.cancel()
            then(response)

    def reply(self, request: Command, response: Response) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        parts = response.parts
        size = sum(map(len, parts)) if parts else 0
        if size > _LARGEST_BODY:
            size, parts, response = 0, (), Response(code=Status.SYSTEM_ERROR, remark=(
                f"the answer has {size} bytes, and a frame takes {_LARGEST_BODY} of them"))
        head = response_head(request.opaque, response.code, response.ext or {}, response.remark,
                             size)
        self._write([head, *parts], len(head) + size)

    def send_bytes(self, data: bytes) -> None:
        self.send_parts([data], len(data))

    def send_parts(self, parts: list[Buffer], size: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._write(parts, size)

    def _write(self, parts: list[Buffer], size: int) -> None:
        """Sends at the end of this turn, or when it is enough."""
        if not (self._out or self._busy):
            self._server.send_soon(self)
        self._out += parts
        self._out_size += size
        if self._out_size >= _GATHERED or len(self._out) >= _MOST_BUFFERS:
            self.flush()

    def flush(self) -> None:
        """Gives answers to the system as they are, copied only if it does not take them all."""
        parts, size, transport = self._out, self._out_size, self._transport
        if not parts:
            return
        self._out, self._out_size = [], 0
        if transport is None or transport.is_closing():
            return
        sent = 0
        if not transport.get_write_buffer_size() and len(parts) < 2 * _MOST_BUFFERS:
            try:
                sent = os.writev(self._fd, parts)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                transport.abort()
                return
            if sent == size:
                return
        for number, part in enumerate(parts):
            if sent < len(part):
                transport.write(b"".join((part[sent:], *parts[number + 1:])))
                return
            sent -= len(part)

    def end(self) -> None:
        """Closes the connection at once; what was answered before is on its way."""
        self.flush()
        self._forget_held()
        if self._transport is not None:
            self._transport.abort()
