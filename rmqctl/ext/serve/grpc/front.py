"""A proxy in front of the gRPC library (the *core*) that checks every HTTP/2 frame from clients.

The core does not limit the memory that clients can use for:

* header fields before the core's settings are acknowledged
* requests that are never completed
* calls that arrive faster than they start

Therefore clients connect to this module, which opens a separate connection to the core for each
client. Frames are forwarded unchanged, a few at a time. Requests of other clients are served in
between.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol, cast
from urllib.parse import unquote

from rmqctl.ext.serve import connection
from rmqctl.ext.serve.limits import AddressConnections, network_of
from rmqctl.ext.serve.remoting.frame import FrameError
from rmqctl.ext.serve.turns import Hosts
from rmqctl.parse_values import Address

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 8, 9
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_HEAD, _PREFIX = 9, 5
"""Sizes in bytes of the header of a frame and of the prefix of a gRPC message."""
MAX_FRAME = 16 << 10
"""Maximum bytes of a frame's content; HTTP/2's default."""
_MAX_HEADER, _MAX_PARTS = 32 << 10, 8
"""Maximum size of a header in bytes, and maximum number of its frames. The core refuses calls with
more than 16 KiB of fields.
"""
_WAITING = 64 << 10
"""Maximum bytes of a client's frames that wait to be forwarded; above this limit, nothing is read
from the client.
"""
_CALLS_AT_ONCE = 16
"""Maximum number of calls that were forwarded but have not started."""
_LOOKS, _LOOK_S = 6, 0.01
"""A forwarded call is considered gone if no call has started in `_LOOKS` checks, `_LOOK_S` seconds
apart. (A call that was reset never starts.)
"""
_END_S = 0.02
"""Seconds between closing two connections to the core that have open calls."""
_IN_CORE = 2
"""Bytes of memory that the core uses for one byte of an incomplete request."""
_SMALL = 64
"""Frames with less content than this (bytes) count as small. Handling many small frames takes more
time than handling their content.
"""
_SMALL_RATE, _MAX_SMALL, _PAUSE_S = 200.0, 2000.0, 0.05
"""Limits on a connection's small frames and resets. ``_SMALL_RATE``: frames per second.
``_MAX_SMALL``: frames in a burst. ``_PAUSE_S``: pause in seconds after a limit is exceeded.
"""


class GrpcState(connection.SharedState, Protocol):
    """The state that clients of all protocols share, and the connections of the gRPC port."""

    pipes: set[Pipe]

    async def listen(self, protocol: Callable[[], asyncio.BaseProtocol], bound: socket.socket
                     ) -> asyncio.Server: ...


class Gate:
    """Limits the number of calls that start at the same time.

    Among the waiting calls, the call of the client with the fewest calls starts first.
    """

    def __init__(self) -> None:
        self._line = Hosts[Pipe]()
        self._under_way = self._begun = 0
        self._looks = False

    def take(self, pipe: Pipe) -> bool:
        """Return whether a call may start now. If it must wait, `Pipe.may_call` is called when it
        may start.
        """
        if self._line or self._under_way >= _CALLS_AT_ONCE:
            self._line.push(pipe.host, 1.0 + pipe.calls, pipe)
            return False
        self._go()
        return True

    def begun(self) -> None:
        """Record that a call has started, or can no longer start."""
        self._begun += 1
        self._under_way = max(self._under_way - 1, 0)
        self._next()

    def _go(self) -> None:
        self._under_way += 1
        if self._under_way >= _CALLS_AT_ONCE and not self._looks:
            self._look(self._begun, _LOOKS)

    def _look(self, begun: int, left: int) -> None:
        """Check at intervals whether a call has started, while `_CALLS_AT_ONCE` calls are starting.

        If none has started after ``left`` more checks, let the next calls start.
        """
        self._looks = False
        if begun != self._begun:
            left = _LOOKS
        elif not left:
            self._under_way = 0
            self._next()
        if self._under_way >= _CALLS_AT_ONCE and not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_later(_LOOK_S, self._look, self._begun, left - 1)

    def _next(self) -> None:
        while self._line and self._under_way < _CALLS_AT_ONCE:
            pipe = self._line.pop()
            if pipe.is_open:
                self._line.spent(pipe.host, 1.0)
                self._go()
                pipe.may_call()


class Front:
    """The port to which gRPC clients connect. ``server``: the state that clients of all protocols
    share.
    """

    def __init__(self, server: GrpcState, connections: int, part: float) -> None:
        self.server, self.gate = server, Gate()
        self.places = AddressConnections(connections, part)
        self._folder = tempfile.mkdtemp(prefix="rmqctl-grpc-")
        self.core = os.path.join(self._folder, "core")
        self.pipes: dict[str, Pipe] = {}
        """Connections of clients, by the name of the socket that connects each of them to the core.
        The core reports this name as the peer.
        """
        self._ended: deque[asyncio.Transport] = deque()
        self._numbers = count(1)
        self._listens: asyncio.Server | None = None

    async def listen(self, bound: socket.socket) -> None:
        self._listens = await self.server.listen(partial(Pipe, self), bound)

    def peer(self, peer: str) -> str:
        """Return the address and port of the client behind ``peer``, the name that the core
        reports.
        """
        pipe = self.pipes.get(unquote(peer.partition(":")[2]))
        return "" if pipe is None else pipe.peer

    def connect(self, pipe: Pipe) -> tuple[str, socket.socket]:
        """Open a connection to the core. Return the name of its socket, and the socket. Raises:
        OSError.
        """
        name = os.path.join(self._folder, str(next(self._numbers)))
        core_socket = socket.socket(socket.AF_UNIX)
        try:
            core_socket.setblocking(False)
            core_socket.bind(name)
            core_socket.connect(self.core)
        except OSError:
            core_socket.close()
            raise
        finally:
            if os.path.lexists(name):
                os.unlink(name)
        self.pipes[name] = pipe
        return name, core_socket

    def let_go(self, core: asyncio.Transport, calls: int) -> None:
        """Close a connection to the core. Connections with open calls are closed one at a time,
        with pauses.

        Closing a connection ends all its calls at once, and no request is answered during this
        time.
        """
        if not calls:
            core.abort()
            return
        self._ended.append(core)
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_soon(self._end_next)

    def _end_next(self) -> None:
        if self._ended:
            self._ended[0].abort()
            self._ended.popleft()
        if self._ended:
            asyncio.get_running_loop().call_later(_END_S, self._end_next)

    def close(self) -> None:
        if self._listens is not None:
            self._listens.close()
        for pipe in list(self.pipes.values()):
            pipe.end()
        while self._ended:
            self._ended.pop().abort()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Call:
    """An open call; counts the received bytes of a message that is incomplete."""

    __slots__ = ("came", "missing", "prefix")

    def __init__(self) -> None:
        self.came = self.missing = 0
        self.prefix = b""

    def bring(self, data: bytes | bytearray) -> None:
        self.came += len(data)
        while data:
            if not self.missing:
                self.prefix, data = (self.prefix + data[:_PREFIX - len(self.prefix)],
                                     data[_PREFIX - len(self.prefix):])
                if len(self.prefix) < _PREFIX:
                    return
                self.missing, self.prefix = int.from_bytes(self.prefix[1:], "big"), b""
            present = min(self.missing, len(data))
            self.missing, data = self.missing - present, data[present:]
        if not self.missing:
            self.came = 0


class _CoreResponses(asyncio.Protocol):
    """A connection to the core, from which the core's responses are forwarded to the client."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._head, self._skip = b"", 0

    def data_received(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip, at = self._skip - step, at + step
                continue
            step = _HEAD - len(self._head)
            self._head, at = self._head + data[at:at + step], at + step
            if len(self._head) < _HEAD:
                break
            kind, flags = self._head[3], self._head[4]
            if kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                self._pipe.over(int.from_bytes(self._head[5:], "big"))
            self._skip, self._head = int.from_bytes(self._head[:3], "big"), b""
        self._pipe.answer(data)

    def pause_writing(self) -> None:
        self._pipe.core_takes(more=False)

    def resume_writing(self) -> None:
        self._pipe.core_takes(more=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pipe.core_ended()


class Pipe(asyncio.Protocol):
    """A client's connection, and the connection to the core that forwards its calls."""

    def __init__(self, front: Front) -> None:
        self._front, self._server = front, front.server
        self.peer = self.host = ""  # `host` as of `network_of`
        self.turn: float | None = None
        self.last = self._since = self._stamp = self._begun = time.monotonic()
        self._in = bytearray()
        self._calls: dict[int, _Call] = {}
        self._greeted = self._acknowledged = self._has_asked = False
        self._at_gate = self._may_call = self._core_full = self._paused = False
        self._waits = self._reads_later = self._busy = self._slow = False
        self._scanned = self._unfinished = self._held = 0
        self._small = _MAX_SMALL
        self._name = ""
        self._transport: asyncio.Transport | None = None
        self._core: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None

    # -- what the event loop says -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.peer, self.host = str(Address(*peer[:2])), network_of(peer[0])
        if not self._front.places.take(self, self.last):
            self._server.turned_away += 1
            self._transport.abort()
            return
        self._server.pipes.add(self)
        self._server.accepted += 1
        self._read_on()
        try:
            self._name, core = self._front.connect(self)
        except OSError:
            self.end()
            return
        self._connecting = asyncio.get_running_loop().create_task(self._connect(core))

    async def _connect(self, core: socket.socket) -> None:
        transport, _ = await asyncio.get_running_loop().create_unix_connection(
            partial(_CoreResponses, self), sock=core)
        self._core = transport
        if not self.is_open:
            transport.abort()
        self._go_on()  # Python before 3.11.4 reads although that was paused in `connection_made`
        self._read_on()

    def data_received(self, data: bytes) -> None:
        self._in += data
        self.last = time.monotonic()
        if not self._waits:
            self._server.turns.come(self)
        self._count()
        if self._held and not self._waits:
            self._server.intake.came(self, len(data))

    def eof_received(self) -> None:
        self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.end()

    def pause_writing(self) -> None:
        self._paused, self._since = True, time.monotonic()
        if self._core is not None:
            self._core.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._core is not None and not self._core.is_closing():
            self._core.resume_reading()

    @property
    def is_open(self) -> bool:
        return self in self._server.pipes

    def end(self) -> None:
        """Close the client's connection and the connection to the core at once."""
        self.gone()
        if self._transport is not None:
            self._transport.abort()

    def gone(self) -> None:
        """Remove the connection from the server; the event loop may report its end later."""
        if not self.is_open:
            return
        self._server.pipes.discard(self)
        self._front.places.leave(self)
        self._front.pipes.pop(self._name, None)
        self._server.last_used = time.monotonic()
        if self._core is not None:
            self._front.let_go(self._core, len(self._calls))
        self._in.clear()
        self._calls.clear()
        if self._may_call:
            self._front.gate.begun()
        self._server.unfinished.change(self.host, -self._held)
        self._held = self._unfinished = 0

    # -- what the core says -------------------------------------------------------------------

    def answer(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def over(self, stream: int) -> None:
        """Record the end of a call that the core has answered or the client has reset."""
        call = self._calls.pop(stream, None)
        if call is not None:
            self._unfinished -= call.came

    def core_takes(self, *, more: bool) -> None:
        self._core_full = not more
        if more:  # not at once: the connection may end, which the event loop does not expect here
            asyncio.get_running_loop().call_soon(self._go_on)

    def core_ended(self) -> None:
        """The core has closed its connection: close the client's connection after the last
        response.
        """
        self._core = None
        self.gone()
        if self._transport is not None:
            self._transport.close()

    # -- turns, as `turns.Worker` and `turns.Reader` have them --------------------------------

    def in_line(self, *, waits: bool) -> None:
        self._waits = waits
        self._read_on()

    def read_later(self, *, waits: bool) -> None:
        self._reads_later = waits
        self._read_on()

    @property
    def missing(self) -> int:
        return min((call.missing for call in self._calls.values() if call.missing), default=_HEAD)

    def may_call(self) -> None:
        """Forward the call that waits at the gate, which may start now."""
        self._at_gate, self._may_call = False, True
        self._go_on()

    def _go_on(self) -> None:
        self._slow = False
        if self.is_open and not self._waits:
            self._server.turns.come(self)
            self._count()

    def _read_on(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._core is None or self._waits or self._reads_later or len(self._in) > _WAITING:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def work(self, late: float) -> bool:
        """Forward frames until ``late`` (monotonic seconds). Return whether more frames can be
        forwarded.
        """
        if self._busy or self._core is None:
            return False
        self._busy, more, at = True, False, 0
        clock = self._server.turns.clock
        try:
            while self.is_open and not (self._core_full or self._slow or self._at_gate):
                end = self._passed(at)
                if end == at:
                    break
                at = end
                if clock() > late:
                    more = True
                    break
            if at and self.is_open:
                self._core.write(bytes(memoryview(self._in)[:at]))
                del self._in[:at]
        except FrameError:
            self._server.broken += 1
            self.end()
        finally:
            self._busy = False
        self._read_on()
        return more and self.is_open

    # -- frames -------------------------------------------------------------------------------

    def _whole(self, at: int) -> int:
        """Return the position of the end of the frame at ``at``; 0 if the frame is incomplete.
        Raises: FrameError.
        """
        frames = self._in
        if len(frames) < at + _HEAD:
            return 0
        size = int.from_bytes(frames[at:at + 3], "big")
        if size > MAX_FRAME:
            raise FrameError(f"frame too large: {size:,} bytes")
        end = at + _HEAD + size
        return end if end <= len(frames) else 0

    def _passed(self, at: int) -> int:
        """Return the position up to which the frames at ``at`` may be forwarded.

        Either one frame or a header with all its frames is forwarded. Return ``at`` if the frames
        cannot be forwarded yet. Raises: FrameError.
        """
        # The preface of HTTP/2 comes first.
        frames = self._in
        if not self._greeted:
            if not _PREFACE.startswith(frames[:len(_PREFACE)]):
                raise FrameError("not an HTTP/2 client")
            self._greeted = len(frames) >= len(_PREFACE)
            return at + len(_PREFACE) if self._greeted else at
        # A complete frame, by its kind.
        end = self._whole(at)
        if not end:
            return at
        kind, flags = frames[at + 3], frames[at + 4]
        stream = int.from_bytes(frames[at + 5:at + _HEAD], "big")
        is_small = kind != _WINDOW
        if kind == _HEADERS:
            is_small = stream in self._calls
            end = self._header(at, end, flags, stream)
        elif kind == _DATA:
            is_small = end - at - _HEAD < _SMALL and not flags & _END_STREAM
            call = self._calls.get(stream)
            if call is not None:
                before = call.came
                call.bring(frames[at + _HEAD:end])
                self._unfinished += call.came - before
        elif kind == _CONTINUATION:
            raise FrameError("a CONTINUATION frame without a header")
        elif kind == _SETTINGS and flags & _ACK:
            self._acknowledged = True
        elif kind == _RESET:
            self.over(stream)
        # Small frames cost the core as much as others.
        if is_small:
            self._take_time()
        return end

    def _header(self, at: int, end: int, flags: int, stream: int) -> int:
        """Return the end position of the header at ``at`` if the header is complete and may be
        forwarded.

        Return ``at`` if not. Raises: FrameError.
        """
        frames, parts = self._in, 1
        while not flags & _END_HEADERS:
            parts += 1
            follows = self._whole(end)
            if parts > _MAX_PARTS or max(follows, end) - at > _MAX_HEADER:
                raise FrameError("header too large")
            if not follows:
                return at
            if frames[end + 3] != _CONTINUATION or (
                    int.from_bytes(frames[end + 5:end + _HEAD], "big") != stream):
                raise FrameError("header not continued by a CONTINUATION frame")
            flags, end = frames[end + 4], follows
        if stream in self._calls:
            return end
        if not self._acknowledged:
            return self._acknowledgement(at, end)
        if not self._may_call and not self._front.gate.take(self):
            self._at_gate = True
            return at
        self._may_call, self._has_asked = False, True
        self._calls[stream] = _Call()
        return end

    def _acknowledgement(self, at: int, end: int) -> int:
        """Find the client's acknowledgement of the core's settings after the header at ``at``.

        The acknowledgement is moved before the header: the core limits the size of headers only
        after it has received the acknowledgement. Return the end of the frames that may be
        forwarded. Raises: FrameError.
        """
        place = max(end, at + self._scanned)
        while follows := self._whole(place):
            frame = self._in[place:follows]
            if frame[3] == _SETTINGS and frame[4] & _ACK:
                del self._in[place:follows]
                self._in[at:at] = frame
                self._acknowledged = True
                return at + len(frame)
            place = follows
        self._scanned = place - at
        if len(self._in) > _WAITING:
            raise FrameError("the client does not acknowledge the settings")
        return at

    def _take_time(self) -> None:
        """Count a small frame or a reset; after too many, pause the connection."""
        now = time.monotonic()
        self._small = min(self._small + (now - self._stamp) * _SMALL_RATE, _MAX_SMALL) - 1
        self._stamp = now
        if self._small < 0 and not self._slow:
            self._slow = True
            asyncio.get_running_loop().call_later(_PAUSE_S, self._go_on)

    # -- what it holds, as `limits.Holder` has it ---------------------------------------------

    def _count(self) -> None:
        """Update the number of bytes of incomplete requests; their sum over all connections is
        limited.
        """
        if not self.is_open:
            return
        held = len(self._in) + _IN_CORE * self._unfinished
        if not held or held < self._held:
            self._since = self.last
        more, self._held = held - self._held, held
        if self._server.unfinished.change(self.host, more):
            self._server.end_unfinished()

    @property
    def held(self) -> int:
        return self._held

    @property
    def held_since(self) -> float:
        return self._since

    @property
    def calls(self) -> int:
        """Number of open calls."""
        return len(self._calls)

    def spare_since(self) -> float | None:
        if not self._has_asked:
            return 0.0
        return None if self._calls else self.last

    def is_stale(self, now: float) -> bool:
        """Return whether the client is too slow.

        A slow client has not acknowledged the settings in time, or has stalled in the middle of a
        request or response. (Idle connections without calls are closed by the core.)
        """
        since = self._since if self._acknowledged else self._begun
        is_waiting = self._paused or self._held > 0 or not self._acknowledged
        return is_waiting and now - since > self._server.limits.idle
