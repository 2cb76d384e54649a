"""Output of ``rmqctl serve`` while it runs: lines, a live view, an endpoint for metrics."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rmqctl.commands.app.exit_codes import silence_stdout
from rmqctl.errors import RmqctlError
from rmqctl.ext.serve import figures
from rmqctl.output import Human, Output
from rmqctl.output.units import count_text, duration_text, rate_text, size_text
from rmqctl.parse_values import Address

if TYPE_CHECKING:
    import socket

    from rmqctl.ext.serve.server import Server
    from rmqctl.output.screen import Screen

_MAX_NAME = 255
"""Maximum length of a name in an event, in UTF-16 code units; longer names are cut. In JSON a code
unit has at most six bytes. So a line with two such names fits into a pipe without blocking.
"""
_FRESH_S = 1.0
_PATIENCE_S = 10.0
_RETRY_S = 0.01
_MAX_CLIENTS, _MAX_HEAD = 64, 8 << 10
"""Limits of the metrics endpoint: simultaneous connections, and bytes of a request header."""
_HEAD_LINES = 18
"""Number of lines of the live view that are not table rows of groups, topics or clients."""


class ServeOutput:
    """Output of a server's events, problems and figures.

    A server never waits for the program that reads its output. While that program does not read,
    events are dropped, and the next event contains their number.
    """

    def __init__(self, out: Output) -> None:
        self._out = out
        self._wanted = out.format == "jsonl"
        self._left_out = 0
        self._screen: Screen | None = None
        self._notes: deque[str] = deque(maxlen=3)
        self._held_back: deque[str] = deque(maxlen=100)
        self._metrics: Address | None = None
        self._ends: dict[str, str] = {}
        self._http: asyncio.Task[None] | None = None

    @contextmanager
    def of(self, server: Server, metrics: Address | None) -> Iterator[None]:
        """Show the events and figures of ``server`` while the ``with`` block runs."""
        self._server, self._metrics = server, metrics
        self._watch = figures.CountWatch(server)
        self._started = time.monotonic()
        try:
            if self._wanted:
                self._watch.look()
                server.each_second = self._tell_of_second
            screen = self._out.screen()
            if screen is None:
                yield
                return
            server.each_second = self._draw
            with screen:
                self._screen = screen
                yield
        finally:
            self._screen = None
            for text in self._held_back:
                self._out.warn(text)

    def ready(self) -> None:
        """Open the port for metrics, and print that clients can connect.
        Raises: StoreIOError if the port is not available.
        """
        # The proxy already listens; the port for metrics is opened now.
        server = self._server
        if server.proxy is not None:
            self._ends["grpc"] = str(server.proxy.address)
        if self._metrics is not None:
            from rmqctl.ext.serve.server import bind

            ((address, bound),) = bind(self._metrics, 1)
            self._http = asyncio.create_task(_Metrics(server).serve(bound))
            self._ends["metrics"] = str(address)
        # A terminal shows the live view instead of lines.
        if self._screen is not None:
            self._draw()
            return
        # Programs wait for this line, so it is written and flushed only when clients can connect.
        first = server.brokers[0]
        rows = [{"broker": broker.name, "address": str(broker.address),
                 "store": broker.source.store.root, "topics": len(broker.source.topics)}
                for broker in server.brokers]

        def say(page: Human) -> None:
            page.text(f"ready {first.address}")
            for row in rows:
                page.text(f"{row['broker']} {row['address']} {row['store']}")
            for name, address in self._ends.items():
                page.text(f"{name} {address}")

        self._out.document({"ready": str(first.address), "brokers": rows, "grpc": None,
                            **self._ends}, say)
        self._out.flush()

    # -- events -------------------------------------------------------------------------------

    def tell(self, **event: Any) -> None:
        """Print an event, or drop it if the reader of the output does not read."""
        if not self._wanted:
            return
        if not self._out.takes_a_line:
            self._left_out += 1
            return
        line = {name: _cut(value) if isinstance(value, str) else value
                for name, value in event.items()}
        if self._left_out:
            line["left_out"], self._left_out = self._left_out, 0
        try:
            self._out.document(line)
            self._out.flush()
        except (BrokenPipeError, RmqctlError):  # the reader is gone, or its disk is full
            self._wanted = False
            # The stream still buffers the event; its last flush would end the run with an error.
            silence_stdout(discard=True)

    def answer(self, **event: Any) -> None:
        """Print an event; wait up to `_PATIENCE_S` seconds for the reader of the output."""
        end = time.monotonic() + _PATIENCE_S
        while not self._out.takes_a_line and time.monotonic() < end:
            time.sleep(_RETRY_S)
        self.tell(**event)

    def _tell_of_second(self) -> None:
        for event in figures.events(self._server, self._watch.look()):
            self.tell(**event)

    def warn(self, text: str) -> None:
        """Print a warning: in the live view, and again on stderr when the live view is closed."""
        self._notes.append(text)
        if self._screen is None:
            self._out.warn(text)
        else:
            self._held_back.append(text)

    def failed(self, name: str, error: Exception) -> None:
        """Print a warning about an unexpected exception in the handler ``name``."""
        self.warn(f"{name}: {type(error).__name__}: {error} (a defect of rmqctl, please report it)")
        if self._out.verbose > 1:
            self.warn("".join(traceback.format_exception(error)))

    # -- the screen ---------------------------------------------------------------------------

    def _draw(self) -> None:
        if self._screen is not None:
            second = self._watch.look()
            rows = max(self._screen.height - _HEAD_LINES - len(self._server.brokers), 3)
            self._screen.show(lambda page: overview(
                page, self._server, second, rows=rows, notes=[*self._notes],
                seconds=time.monotonic() - self._started, **self._ends))


_COUNTED = {"connections": "connected", "turned_away": "rejected"}


def _cut(name: str) -> str:
    return name.encode("utf-16-le", "surrogatepass")[:2 * _MAX_NAME].decode("utf-16-le", "replace")


def overview(page: Human, server: Server, second: figures.Second, *, rows: int, notes: list[str],
             seconds: float, **ends: str) -> None:
    """Show the live view: connections, rates, and tables of groups, topics and clients with
    ``rows`` rows in total.

    * ``notes``: recent problems
    * ``seconds``: time since the start
    * ``ends``: addresses of other services, by name
    """
    # Totals of the last second, over all brokers.
    brokers = server.brokers
    page.heading(f"serving on {brokers[0].address} for {duration_text(int(seconds) * 1000)}; "
                 "Ctrl-C stops")
    elapsed = second.seconds
    damaged = sum(broker.skipped for broker in brokers)
    counts = figures.connections(server)
    page.pairs({
        "clients": ", ".join(f"{count_text(count)} {_COUNTED.get(name, name)}"
                             for name, count in counts.items()),
        "in": f"{rate_text(sum(second.sent.values()) / elapsed, ' messages/s')}, "
              f"{count_text(sum(sum(b.received.values()) for b in brokers))} in total",
        "out": f"{rate_text(sum(second.delivered.values()) / elapsed, ' messages/s')}, "
               f"{size_text(int(second.delivered_bytes / elapsed))}/s, "
               f"{count_text(sum(sum(b.delivered.values()) for b in brokers))} in total",
        "damaged": f"{count_text(damaged)} skipped",
        **ends,
    }, styles={"damaged": "warn"} if damaged else None)
    for broker in brokers:
        page.text(f"{broker.name} {broker.address} {broker.source.store.root}")
    # Divide the free lines among groups, topics and clients; groups are the most important.
    groups = figures.groups_now(server, second, max(rows // 2, 1))
    topics = figures.topics_now(second, max(rows // 4, 1))
    several = ("broker",) if len(brokers) > 1 else ()
    page.table(groups, (*several, "group", "topic", "members", "lag", "out/s"), "groups",
               render={"out/s": _rate}, styles={"lag": _lag_style})
    if topics:
        page.table(topics, (*several, "topic", "in/s"), "topics",
                   render={"in/s": _rate})
    page.table(figures.clients_now(server, max(rows - len(groups) - len(topics), 1)), (
        "client", "address", "language", "groups"), "clients")
    for text in notes:
        page.text(text, "warn")


def _rate(value: Any) -> str:
    return rate_text(value, "")


def _lag_style(value: Any) -> str | None:
    return "warn" if value else None


# Metrics ----------------------------------------------------------------------------------------


class _Metrics:
    """HTTP endpoint with metrics for Prometheus, in the server's event loop. Its figures are at
    most one second old. If too many clients connect, the oldest connection is closed.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clients: dict[asyncio.StreamWriter, None] = {}
        self._lock = asyncio.Lock()
        self._asked = -_FRESH_S
        self._page = b""

    async def serve(self, bound: socket.socket) -> None:
        """Answer HTTP requests until this task is cancelled."""
        async with await asyncio.start_server(
                self._answer, sock=bound, limit=_MAX_HEAD) as http:
            await http.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= _MAX_CLIENTS:
            first = next(iter(self._clients))
            del self._clients[first]
            first.transport.abort()
        self._clients[writer] = None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, page = "405 Method Not Allowed", b""
                if head.startswith(b"GET "):
                    status, page = "200 OK", await self._now()
                writer.write(f"HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4; "
                             f"charset=utf-8\r\nContent-Length: {len(page)}\r\n\r\n".encode())
                writer.write(page)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError,
                asyncio.CancelledError):  # end of the server: nothing to report
            pass
        finally:
            self._clients.pop(writer, None)
            writer.transport.abort()

    async def _now(self) -> bytes:
        from rmqctl.output.prometheus import Metric, exposition

        async with self._lock:
            if time.monotonic() - self._asked >= _FRESH_S:
                samples = list(figures.samples(self._server))
                self._page = await asyncio.to_thread(exposition, [
                    Metric(name, text, [(labels, value) for metric, labels, value in samples
                                        if metric == name])
                    for name, text in figures.HELP.items()])
                self._asked = time.monotonic()
            return self._page
