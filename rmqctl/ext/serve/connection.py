"""A client's connection: receives frames with requests, and sends responses.

While a client does not read its responses, the server does not read the client's requests. More
responses would only take up memory.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol, cast

from msgspec.structs import replace

from rmqctl.ext.serve.broker import Broker, Buffer, Response
from rmqctl.ext.serve.dispatch import answer
from rmqctl.ext.serve.limits import AddressConnections, Limits, Shared, network_of
from rmqctl.ext.serve.remoting.codes import Status
from rmqctl.ext.serve.remoting.command import Command, read_command, response_head, write_command
from rmqctl.ext.serve.remoting.frame import MAX_FRAME, FrameError, FrameReader
from rmqctl.ext.serve.turns import Intake, Turns
from rmqctl.parse_values import Address

_MAX_BODY = MAX_FRAME - (1 << 20)
_MAX_ASKED = 64
"""Maximum number of requests to one client for which the server awaits responses."""
_GATHERED = 320 << 10
"""Number of bytes of responses to one client that are collected in a turn before they are sent."""
_FIRST_READ = 64 << 10
"""Maximum number of bytes to read at the start of a frame. The value is small because many
connections may start a frame at once.
"""
_MAX_BUFFERS = 512
"""Collected responses are sent when they have this number of buffers. The last response may add
almost as many. A system call accepts at most 1024 buffers (IOV_MAX).
"""


class SharedState(Protocol):
    """The state that all connections of a server share; see `server.Server`."""

    limits: Limits
    turns: Turns
    intake: Intake
    places: AddressConnections
    unfinished: Shared
    unsent: Shared
    connections: set[ClientConnection]
    accepted: int
    turned_away: int
    broken: int
    last_used: float
    received: memoryview

    def send_soon(self, connection: ClientConnection) -> None: ...

    def make_room(self) -> None: ...

    def end_unfinished(self) -> None: ...


class ClientConnection(asyncio.BufferedProtocol):
    """A client's connection."""

    def __init__(self, server: SharedState, broker: Broker) -> None:
        self._server, self._broker = server, broker
        self._frames = FrameReader(server.limits.frame)
        self._paused = False
        self._busy = self._waits = self._reads_later = self._has_asked = False
        self.turn: float | None = None
        self.at_end: set[Callable[[], None]] = set()
        self.peer = self.host = self.local_host = ""  # `host` as of `network_of`
        self.last = self._since = time.monotonic()
        self._held = self._unsent = 0
        self._out: list[Buffer] = []
        self._out_size = 0
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, tuple[Callable[[Command | None], None], asyncio.TimerHandle]] = {}
        self._numbers = count(1)

    def _forget_held(self) -> None:
        self._server.unfinished.change(self.host, -self._held)
        self._server.unsent.change(self.host, -self._unsent)
        self._held = self._unsent = 0

    # -- what the event loop says -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.peer, self.host = str(Address(*peer[:2])), network_of(peer[0])
        if not server.places.take(self, self.last):
            server.turned_away += 1
            self._transport.abort()
            return
        server.connections.add(self)
        server.accepted += 1
        self.local_host = (transport.get_extra_info("sockname") or ("",))[0]
        self._fd = transport.get_extra_info("socket").fileno()
        self._transport.set_write_buffer_limits(high=server.limits.unsent)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone()

    def gone(self) -> None:
        """Remove the connection from the server; the event loop may report its end later."""
        server = self._server
        if self not in server.connections:
            return
        server.connections.discard(self)
        server.places.leave(self)
        server.last_used = time.monotonic()
        self._forget_held()
        for end in list(self.at_end):
            end()
        for number in list(self._asked):
            self._on_response(number, None)
        self._broker.forget(self)
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        received = self._server.received
        return received if self._frames.held else received[:_FIRST_READ]

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.feed(self._server.received[:nbytes])
        if not self._waits:
            self._server.turns.come(self)
        self._count()
        if self._held and not self._waits:
            self._server.intake.came(self, nbytes)

    def pause_writing(self) -> None:
        self._paused = True
        self._since = time.monotonic()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self.count_unsent()
        if not self._waits:
            self._server.turns.come(self)
        self._read_on()

    def _read_on(self) -> None:
        if not (self._paused or self._waits or self._reads_later or self._transport is None
                or self._transport.is_closing()):
            self._transport.resume_reading()

    @property
    def missing(self) -> int:
        """Number of bytes that are still missing from the last received frame."""
        return self._frames.missing

    def read_later(self, *, waits: bool) -> None:
        """Stop reading this connection's incomplete frame while frames of other connections are
        read (``waits``), or resume reading it.
        """
        self._reads_later = waits
        if waits and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        elif not waits:
            self._read_on()

    # -- requests -----------------------------------------------------------------------------

    def in_line(self, *, waits: bool) -> None:
        """Stop reading while the connection waits for its turn (``waits``), or resume reading."""
        self._waits = waits
        if waits and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        elif not waits:
            self._read_on()

    def work(self, late: float) -> bool:
        """Answer received requests until ``late`` (monotonic seconds), as long as the client reads
        the responses. Return whether unanswered requests remain.
        """
        # One turn at a time.
        if self._busy:
            return False
        self._busy, more = True, False
        pulls, sends, frames = self._broker.pulls, self._broker.sends, self._frames
        if self._broker.cluster.faults.times:
            sends = None
        clock = self._server.turns.clock
        try:
            # Pulls and sends of many frames at once, other requests one by one.
            while not (self._paused or self._transport is None or self._transport.is_closing()):
                if not pulls.take_all(self, frames, late) and (
                        sends is None or not sends.take_all(self, frames)):
                    frame = frames.next()
                    if frame is None:
                        break
                    command = read_command(frame)
                    if command.is_response:
                        self._on_response(command.opaque, command)
                    else:
                        answer(self._broker, self, command)
                self._has_asked = True
                if not frames.held:
                    break
                if clock() > late:
                    more = True
                    break
        except FrameError:
            # An invalid frame ends the connection.
            self._server.broken += 1
            self.end()
        finally:
            self._busy = False
            self.flush()
        self._count()
        return more and not self._paused

    def _count(self) -> None:
        """Update the number of bytes of incomplete frames; their sum over all connections is
        limited.
        """
        if self._transport is None or self._transport.is_closing():
            return
        self.last = time.monotonic()
        held = self._frames.held
        if not held or held < self._held:
            self._since = self.last
        if held == self._held:
            return
        more, self._held = held - self._held, held
        if self._server.unfinished.change(self.host, more):
            self._server.end_unfinished()

    @property
    def held(self) -> int:
        """Number of bytes of incomplete requests."""
        return self._held

    def count_unsent(self) -> bool:
        """Update the number of bytes of unread responses. Return whether all connections together
        exceed the limit.
        """
        unsent = 0 if self._transport is None or self._transport.is_closing() else (
            self._transport.get_write_buffer_size())
        if unsent < self._unsent:
            self._since = time.monotonic()
        more, self._unsent = unsent - self._unsent, unsent
        return self._server.unsent.change(self.host, more)

    @property
    def held_since(self) -> float:
        """The time (monotonic seconds) since which the number of held bytes has not decreased."""
        return self._since

    def spare_since(self) -> float | None:
        """Return the time since which the connection has been idle, see `limits.Holder`."""
        if not self._has_asked:
            return 0.0
        if self._paused:
            return self._since
        return None if self.at_end or self._asked or self._waits else self.last

    def is_stale(self, now: float) -> bool:
        """Return whether the client has sent nothing for too long, has not completed a request, or
        does not read responses.
        """
        idle = self._server.limits.idle
        return now - self.last > idle or (
            (self._paused or self._held > 0) and now - self._since > idle)

    @property
    def is_full(self) -> bool:
        return self._paused

    @property
    def unsent(self) -> int:
        """Number of bytes of responses that the client has not read yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- answers ------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        if self._transport is not None and not (self._paused or self._transport.is_closing()):
            data = write_command(command)
            self._write([data], len(data))

    def ask(self, command: Command, then: Callable[[Command | None], None], seconds: float) -> None:
        if self._transport is None or len(self._asked) >= _MAX_ASKED:
            then(None)
            return
        number = next(self._numbers)
        timer = asyncio.get_running_loop().call_later(seconds, self._on_response, number, None)
        self._asked[number] = then, timer
        self.send(replace(command, opaque=number))

    def _on_response(self, number: int, response: Command | None) -> None:
        """Pass a client's response to the sender of the request, unless the request has expired."""
        then, timer = self._asked.pop(number, (None, None))
        if then is not None and timer is not None:
            timer.cancel()
            then(response)

    def reply(self, request: Command, response: Response) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        parts = response.parts
        size = sum(map(len, parts)) if parts else 0
        if size > _MAX_BODY:
            size, parts, response = 0, (), Response(code=Status.SYSTEM_ERROR, remark=(
                f"the response has {size:,} bytes; a frame can contain at most {_MAX_BODY:,}"))
        head = response_head(request.opaque, response.code, response.ext or {}, response.remark,
                             size)
        self._write([head, *parts], len(head) + size)

    def send_bytes(self, data: bytes) -> None:
        self.send_parts([data], len(data))

    def send_parts(self, parts: list[Buffer], size: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._write(parts, size)

    def _write(self, parts: list[Buffer], size: int) -> None:
        """Send a response at the end of this turn, or immediately if enough bytes are collected.

        If an order (`orders`) delays responses, send the response later.
        """
        slow = self._broker.cluster.faults.slow
        if slow:
            answer: list[Buffer] = [b"".join(parts)]
            asyncio.get_running_loop().call_later(slow, self._write_now, answer, size)
        else:
            self._write_now(parts, size)

    def _write_now(self, parts: list[Buffer], size: int) -> None:
        if not (self._out or self._busy):
            self._server.send_soon(self)
        self._out += parts
        self._out_size += size
        if self._out_size >= _GATHERED or len(self._out) >= _MAX_BUFFERS:
            self.flush()

    def flush(self) -> None:
        """Write the collected responses to the socket; copy only the bytes that the socket does not
        accept at once.
        """
        parts, size, transport = self._out, self._out_size, self._transport
        if not parts:
            return
        self._out, self._out_size = [], 0
        if transport is None or transport.is_closing():
            return
        sent = 0
        if not transport.get_write_buffer_size() and len(parts) < 2 * _MAX_BUFFERS:
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
                if self.count_unsent():
                    self._server.make_room()
                return
            sent -= len(part)

    def end(self) -> None:
        """Write the collected responses, as far as the socket accepts them, and close the
        connection.
        """
        self.flush()
        self._forget_held()
        self._frames = FrameReader(self._server.limits.frame)
        if self._transport is not None:
            self._transport.abort()
