"""``rmqctl exporter``: serve metrics of stores to Prometheus over HTTP."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field, replace
from typing import Annotated, Any

import typer

from rmqctl.commands.app.exit_codes import Terminated
from rmqctl.commands.shared.options import Out, StoreOptions
from rmqctl.commands.shared.spark_options import MoreStores, roots_named
from rmqctl.errors import RmqctlError, StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output import Output
from rmqctl.output.prometheus import Metric, exposition, families
from rmqctl.parse_values import Address, parse_address

_FRESH_S = 5.0
MAX_CONNECTIONS = 32
"""Maximum number of simultaneous connections; a new connection closes the oldest one."""
MAX_WAIT_S = 10.0
"""Maximum seconds to wait until a client sends the next part of a request or reads data."""
_HERE = Address("127.0.0.1", 9877)


def command(
    *,
    more: MoreStores = None,
    listen: Annotated[Address, typer.Option(
        "--listen", metavar="HOST:PORT", parser=parse_address,
        help="Address to listen on; :9877 is every address of this machine, port 0 any free "
             "port.")] = _HERE,
    once: Annotated[bool, typer.Option(
        "--once", help="Print the metrics and exit (for the textfile collector).")] = False,
    store: StoreOptions,
    out: Out,
) -> None:
    """Serve metrics of stores to Prometheus: contents, consumer lag, disk space, locks.

    Each scrape reads only the ends of files and the configuration; results are cached for 5
    seconds. An unreadable store reports rmqctl_store_up 0 and does not affect the others. For the
    health of a store, use `rmqctl verify --format-prometheus`. SIGTERM stops the server with exit
    code 0.

        rmqctl exporter /data/store --listen 127.0.0.1:9877
        rmqctl exporter '/data/*/store' --once
    """
    stores = _Stores([replace(store, root=root) for root in roots_named(store.root, more)])
    if once:
        _print(stores, out)
        return
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(stores)
    try:
        server, thread = start_http_server(listen.port, listen.host, registry)
    except OSError as error:
        raise StoreIOError.from_oserror(error, str(listen), "listen on") from None
    bound(server)
    address = str(replace(listen, port=server.server_port))
    try:
        out.document({"ready": address}, lambda page: page.text(f"ready {address}"))
        out.flush()
        with suppress(Terminated):
            threading.Event().wait()
    finally:
        server.shutdown()
        thread.join()
        stores.end()


def bound(server: Any) -> None:
    """Limit the library's HTTP ``server`` to `MAX_CONNECTIONS` connections, and its wait for a
    client to `MAX_WAIT_S`.

    By default, the server's thread for a connection waits forever for a silent client. At the
    limit, a new connection closes the oldest one. Normal requests are not affected: they end long
    before so many connections are opened.
    """
    lock = threading.Lock()
    kept: dict[Any, None] = {}
    start, answer = server.process_request, server.process_request_thread

    def process_request(request: Any, address: Any) -> None:
        request.settimeout(MAX_WAIT_S)
        with lock:
            if len(kept) >= MAX_CONNECTIONS:
                oldest = next(iter(kept))
                del kept[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # which ends the wait of its thread
            kept[request] = None
        start(request, address)

    def process_request_thread(request: Any, address: Any) -> None:
        try:
            answer(request, address)
        finally:
            with lock:
                kept.pop(request, None)

    server.process_request, server.process_request_thread = process_request, process_request_thread


def _print(stores: _Stores, out: Output) -> None:
    """Print the metrics once. If a store cannot be read, exit with the code for the first error."""
    metrics = stores.metrics()
    if out.is_data:
        out.rows(({"metric": metric.name, **labels, "value": value}
                  for metric in metrics for labels, value in metric.samples),
                 ("metric", "store", "structure", "topic", "group", "value"))
    else:
        out.binary().write(exposition(metrics))
    for error in stores.errors:
        out.warn(str(error))
    if stores.errors:
        raise typer.Exit(int(stores.errors[0].exit_code))


@dataclass(eq=False)
class _Stores:
    """Collector for the Prometheus library: measures the stores, for one request at a time."""

    stores: list[StoreOptions]
    errors: list[RmqctlError] = field(default_factory=list)
    _asked: float = -math.inf
    _ended: bool = False
    _last: list[Metric] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics for a request. Called in the request's thread by the library."""
        with self._lock:
            if self._ended:
                return
            if time.monotonic() - self._asked >= _FRESH_S:
                self._last = self.metrics()
                self._asked = time.monotonic()
            yield from families(self._last)

    def end(self) -> None:
        """Wait until no thread reads the stores, and make further requests return nothing."""
        with self._lock:
            self._ended = True

    def metrics(self) -> list[Metric]:
        from rmqctl.checks.metrics import HELP, measured

        self.errors.clear()
        samples_by_name = measured([(store.root, store.open) for store in self.stores],
                                   self.errors.append)
        return [Metric(name, HELP[name], samples) for name, samples in samples_by_name.items()]
