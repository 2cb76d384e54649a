"""The server: its sockets and periodic tasks, run by one thread with one event loop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from rmqctl.errors import RmqctlError, StoreIOError, UsageError
from rmqctl.ext.serve.broker import Broker
from rmqctl.ext.serve.connection import ClientConnection
from rmqctl.ext.serve.limits import AddressConnections, Limits, Shared
from rmqctl.ext.serve.turns import Intake, Turns
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import Address
from rmqctl.scan import malloc_tuning

if TYPE_CHECKING:
    from rmqctl.ext.serve.grpc.front import Pipe
    from rmqctl.ext.serve.grpc.server import Proxy

Save = Callable[[], Callable[[], None] | None]
"""Function that prepares saving the consumer offsets. It returns None if the offsets have not
changed, or else a function that writes them and may run in another thread. Both functions raise
StoreIOError, RefusedError.
"""
_LOOK_S = 1.0
_DELIVER_S = 0.1
_EXPIRE_S = 10.0
_SAVE_S = 5.0
_BACKLOG, _ACCEPTED = 512, 8
"""``_BACKLOG``: maximum number of connections that wait in the operating system to be accepted.
``_ACCEPTED``: maximum number of connections accepted in one turn.
"""
_LAST_PORT = 65_535
_RECEIVED = 256 << 10
"""Maximum number of bytes received per call."""
_SIZABLE = 8 << 20
"""Number of bytes that must have been freed before memory is returned to the operating system."""


@dataclass(eq=False)
class Server:
    """The brokers of a cluster, each on a separate port. Every port also serves requests to the
    name server.
    """

    brokers: Sequence[Broker]
    limits: Limits = field(default_factory=Limits)
    save: Save = lambda: None
    problem: Callable[[str], None] = lambda _text: None
    once_idle: float | None = None
    proxy: Proxy | None = None
    """The gRPC service for 5.x clients, if enabled."""
    fast: Address | None = None
    """A second address of the first broker, for old clients: its port number is 2 less than that of
    the first address. Only used if the port is free (spec: remoting.md §1.5).
    """
    each_second: Callable[[], None] = lambda: None
    """Callback, called once a second and at the end."""
    connections: set[ClientConnection] = field(default_factory=set)
    pipes: set[Pipe] = field(default_factory=set)
    """Connections of 5.x clients."""
    accepted: int = 0
    turned_away: int = 0
    broken: int = 0
    """Number of connections closed because of invalid data."""
    last_used: float = field(default_factory=time.monotonic)
    received: memoryview = field(default_factory=lambda: memoryview(bytearray(_RECEIVED)))
    """The receive buffer that all connections share; received bytes are copied from it at once."""
    answered: list[ClientConnection] = field(default_factory=list)
    """Connections whose collected responses are sent at the end of this turn."""
    turns: Turns = field(default_factory=lambda: Turns(
        lambda work: asyncio.get_running_loop().call_soon(work)))
    intake: Intake = field(default_factory=lambda: Intake(
        lambda work: asyncio.get_running_loop().call_soon(work)))
    _saving: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    """The thread that writes consumer offsets; a single thread, so that no two writes overlap."""
    _resident: int = 0
    """Lowest memory use of the process so far, in bytes. When the use is much higher, freed memory
    is returned to the system. (The memory of gRPC is not counted elsewhere.)
    """
    _problem: str | None = None
    """The last problem reported, so that a persistent problem is reported only once."""

    def __post_init__(self) -> None:
        part = self.limits.part
        self.places = AddressConnections(self.limits.connections, part)
        for broker in self.brokers:
            broker.waits.part = part
        self.unfinished = Shared(self.limits.held, part)
        """Bytes of frames that are incomplete or are waiting for their connection's turn."""
        self.unsent = Shared(self.limits.unsent_in_all, part)
        """Bytes of responses that clients have not read."""

    async def run(self, sockets: Iterable[socket.socket], ready: Callable[[], None],
                  stop: asyncio.Event) -> None:
        """Serve clients until ``stop`` is set, or no client has been connected for ``once_idle``
        seconds.

        ``sockets``: a socket from `bind` for each broker. Raises: StoreIOError if a store can no
        longer be written to.
        """
        # Listen on all ports, on that of gRPC last.
        servers = []
        try:
            for broker, bound in zip(self.brokers, sockets, strict=True):
                try:
                    servers.append(await self.listen(
                        partial(ClientConnection, self, broker), bound))
                except OSError as error:
                    raise StoreIOError.from_oserror(
                        error, str(broker.address), "listen on") from None
            if self.fast is not None:
                with suppress(OSError, StoreIOError):  # only old clients ask there
                    ((_, bound),) = bind(self.fast, 1)
                    servers.append(await self.listen(
                        partial(ClientConnection, self, self.brokers[0]), bound))
            if self.proxy is not None:
                ((address, bound),) = bind(self.proxy.address, 1)
                await self.proxy.start(self, address, bound)
            # Start the periodic tasks.
            tasks = [asyncio.create_task(self._every(*job)) for job in (
                (_DELIVER_S, self._deliver), (_LOOK_S, partial(self._look, stop)),
                (min(_EXPIRE_S, self.limits.idle), self._expire), (1.0, self.each_second))]
            tasks.append(asyncio.create_task(self._save_beside()))
            self._resident = malloc_tuning.resident()
            ready()
            if self.once_idle is not None:
                tasks.append(asyncio.create_task(self._every(0.2, partial(self._idle, stop))))
            await stop.wait()
            for task in tasks:
                task.cancel()
            self._do(self.each_second)
        finally:
            # Stop accepting clients, close their connections, and save.
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
            raise StoreIOError(f"{self.failure}; no more messages are accepted")

    async def listen(self, protocol: Callable[[], asyncio.BaseProtocol], bound: socket.socket
                     ) -> asyncio.Server:
        """Listen on a socket. Raises: OSError.

        The event loop accepts as many connections at once as the backlog passed to it. Therefore
        this backlog is small, and the system's queue is longer.
        """
        server = await asyncio.get_running_loop().create_server(
            protocol, sock=bound, backlog=_ACCEPTED)
        bound.listen(_BACKLOG)
        return server

    @property
    def failure(self) -> str | None:
        """The reason why a store can no longer be written to; None if all stores are writable."""
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
            self._report(error)

    def _report(self, error: Exception) -> None:
        problem = str(error) if isinstance(error, RmqctlError) else (
            f"{type(error).__name__}: {error}")
        if problem != self._problem:
            self._problem = problem
            self.problem(problem)

    def send_soon(self, connection: ClientConnection) -> None:
        """Send a connection's collected responses at the end of this turn, including those added
        until then.
        """
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
        freed = self.brokers[0].source.pages.rest()  # all brokers share them
        if self.proxy is not None:
            self.proxy.expire()
        for connection in self._all():
            if connection.is_stale(now):
                connection.end()
        freed += self.unfinished.freed() + self.unsent.freed()
        if freed > _SIZABLE or malloc_tuning.resident() > self._resident + _SIZABLE:
            malloc_tuning.give_back()
            self._resident = min(self._resident, malloc_tuning.resident())

    def end_unfinished(self) -> None:
        """If incomplete requests take up too much memory in total, close connections that have sent
        them.
        """
        self.unfinished.make_room(holder for holder in self._all() if holder.held)

    def _all(self) -> list[ClientConnection | Pipe]:
        return [*self.connections, *self.pipes]

    def make_room(self) -> None:
        """If unread responses take up too much memory in total, close connections that do not read
        them.
        """
        paused = [client for client in self.connections if client.is_full]
        for connection in paused:
            connection.count_unsent()
        self.unsent.make_room(paused)

    async def _save_beside(self) -> None:
        """Save consumer offsets every few seconds, in another thread."""
        while True:
            await asyncio.sleep(_SAVE_S)
            try:
                write = self.save()
                if write is not None:
                    await asyncio.get_running_loop().run_in_executor(self._saving, write)
                for broker in self.brokers:
                    broker.keep()
            except Exception as error:  # noqa: BLE001 - it is tried again
                self._report(error)

    def _save(self) -> None:
        """Save consumer offsets in this thread."""
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
    """Bind a socket for each of ``count`` brokers. Return the addresses and sockets.

    Raises: StoreIOError if a port is not available; UsageError if there are not enough ports.
    """
    if listen.port + count - 1 > _LAST_PORT:
        raise UsageError(f"{listen}: each of the {count} stores needs its own port, and the "
                         f"highest port is {_LAST_PORT}")
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
