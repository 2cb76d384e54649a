"""``rmqctl serve``: serve stores over RocketMQ's remoting protocol."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Annotated, Any, Literal

import typer

from rmqctl.commands import STORE_VARIABLE
from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.applying import WriteOutside
from rmqctl.commands.shared.options import LayoutOptions, Out, StoreOptions, complete_folders
from rmqctl.commands.shared.spark_options import roots_named
from rmqctl.errors import UsageError, require
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.units import counted
from rmqctl.parse_values import Address, parse_address, parse_duration, parse_size

_HERE = Address("127.0.0.1", 9876)
_STDIN = 0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_FAST_PORT = 2
_STARTS = ("stored", "earliest", "latest")
_NAME = re.compile(r"[%|\w.-]{1,127}", re.ASCII)
_MIN_LIMIT = 1 << 10
_MAX_KEPT = 1 << 20
"""Maximum size in bytes of a buffer that is kept for reuse; larger buffers are freed when their
clients disconnect.
"""
_LIMITS = "Client limits"


def _seconds(text: str | int) -> int:
    """Parse a duration such as ``10s``, or a number of seconds. Return milliseconds."""
    if isinstance(text, str) and text.isascii() and text.isdigit():
        return int(text[:9]) * 1000
    return parse_duration(text)


def _limit(name: str, text: str) -> Any:
    return typer.Option(name, metavar="SIZE", parser=parse_size, rich_help_panel=_LIMITS, help=text)


@dataclass(frozen=True, kw_only=True)
class LimitOptions(OptionGroup):
    """Limits for clients, per connection and in total. The defaults are those of `Limits`."""

    connections: Annotated[int, typer.Option(
        "--max-connections", metavar="N", min=1, rich_help_panel=_LIMITS,
        help="Maximum connections; at this limit, an unused connection is closed for a new "
             "one.")] = 1000
    frame: Annotated[int | None, _limit(
        "--max-frame", "Maximum request size; larger requests close the connection  [default: "
                       "16MiB]")] = None
    unsent: Annotated[int | None, _limit(
        "--max-unsent", "Stop reading from a client that leaves more than SIZE of responses "
                        "unread  [default: 1MiB]")] = None
    unsent_in_all: Annotated[int | None, _limit(
        "--max-unsent-total", "Limit for all unread responses; above it, drop the client that "
                              "has not read for longest  [default: 64MiB]")] = None
    held: Annotated[int | None, _limit(
        "--max-unfinished", "If incomplete requests together exceed SIZE, close the "
                            "connection with the oldest one  [default: 64MiB]")] = None
    idle: Annotated[int | None, typer.Option(
        "--max-silence", metavar="DURATION", parser=_seconds, rich_help_panel=_LIMITS,
        help="Close connections that neither send nor read for this long (such as 10s)  "
             "[default: 2m]")] = None
    address_share: Annotated[int, typer.Option(
        "--max-address-share", metavar="PERCENT", min=1, max=100, rich_help_panel=_LIMITS,
        help="Share of each of these limits that one client address may use.")] = 100
    retry_memory: Annotated[int | None, _limit(
        "--retry-memory", "Memory for messages that consumers send back, per store  [default: "
                          "64MiB]",
        )] = None

    def checked(self) -> dict[str, Any]:
        """Return the values given on the command line, by their names in `Limits`.
        Raises: UsageError.
        """
        for name, value in (("--max-frame", self.frame), ("--max-unsent", self.unsent),
                            ("--max-unsent-total", self.unsent_in_all),
                            ("--max-unfinished", self.held)):
            if value is not None and value < _MIN_LIMIT:
                raise UsageError(f"{name} {value}: must be at least {_MIN_LIMIT} bytes for clients "
                                 "to work")
        if self.idle is not None and self.idle < 1000:
            raise UsageError("--max-silence must be at least one second")
        values = {"connections": self.connections, "frame": self.frame, "unsent": self.unsent,
                  "unsent_in_all": self.unsent_in_all, "held": self.held,
                  "part": self.address_share / 100,
                  "idle": None if self.idle is None else self.idle / 1000}
        return {name: value for name, value in values.items() if value is not None}


def command(
    *,
    roots: Annotated[list[str] | None, typer.Argument(
        metavar="STORE", envvar=STORE_VARIABLE, autocompletion=complete_folders,
        show_default=False, help="Store roots; a pattern such as '/backup/*/store' selects all "
                                 "matching folders. Omit with --temp.")] = None,
    listen: Annotated[Address, typer.Option(
        "--listen", metavar="HOST:PORT", parser=parse_address,
        help="Address of the name server and the first broker; other stores get the next ports. "
             "Port 0: any free ports.")] = _HERE,
    grpc: Annotated[Address | None, typer.Option(
        "--grpc", metavar="HOST:PORT", parser=parse_address,
        help="Also serve RocketMQ 5 clients (gRPC) here, as its proxy (often 127.0.0.1:8081); "
             "needs the extra `grpc`.")] = None,
    start: Annotated[str, typer.Option(
        "--from", metavar="stored|earliest|latest|TIME",
        help="Where consumer groups start: stored offsets, earliest, latest or a "
             "time.")] = "stored",
    from_stored_offsets: Annotated[bool, typer.Option(
        "--from-stored-offsets", hidden=True,
        help="No effect: --from stored is the default.")] = False,
    offsets: Annotated[str | None, typer.Option(
        "--offsets", metavar="FILE", help="Keep committed offsets in FILE across runs; otherwise "
                                          "they are lost when the run ends.")] = None,
    view: Annotated[Literal["disk", "broker"], typer.Option(
        "--view", help="Serve everything readable (disk), or only what a broker would "
                       "keep.")] = "disk",
    idle_exit: Annotated[int | None, typer.Option(
        "--idle-exit", "--once-idle", metavar="DURATION", parser=_seconds,
        help="Stop when no client has been connected for this long (such as 10s).")] = None,
    end_with_stdin: Annotated[bool, typer.Option(
        "--end-with-stdin", help="Stop when the pipe on standard input closes. With --temp, "
                                 "the parent program can inject faults through it.")] = False,
    writable: Annotated[bool, typer.Option(
        "--writable", help="Also accept messages: the store is locked and written as by a broker; "
                           "offsets and topics go to its config/.")] = False,
    write_outside: WriteOutside = None,
    temp: Annotated[bool, typer.Option(
        "--temp", help="Serve a new, empty, writable store in a temporary folder, which is removed "
                       "at the end; no STORE is given.")] = False,
    topic: Annotated[list[str] | None, typer.Option(
        "--topic", "-t", metavar="TOPIC",
        help="Create a topic with 4 queues if it does not exist; repeatable; requires --writable "
             "or --temp.")] = None,
    key_file: Annotated[list[str] | None, typer.Option(
        "--key-file", metavar="FILE", help="Require signed requests (RocketMQ's ACL 1.0) with the "
                                           "AccessKey and SecretKey in FILE; repeatable.")] = None,
    flush: Annotated[Literal["async", "sync"] | None, typer.Option(
        "--flush", help="sync: acknowledge a send only after fsync.")] = None,
    metrics: Annotated[Address | None, typer.Option(
        "--metrics", metavar="HOST:PORT", parser=parse_address,
        help="Serve metrics for Prometheus at this address; port 0: any free port.")] = None,
    uvloop: Annotated[bool, typer.Option(
        "--uvloop", help="Use the uvloop event loop, which saves some CPU time per request; "
                         "requires the extra `uvloop`.")] = False,
    limits: LimitOptions,
    layout: LayoutOptions,
    out: Out,
) -> None:
    """Serve store directories to RocketMQ clients: consumers, mqadmin, Dashboard.

    One process is name server and broker. Stores are opened read-only without a lock; sends are
    rejected and damaged messages skipped. Committed offsets stay in memory or in --offsets FILE;
    messages sent back are retried from memory. A terminal shows the activity; otherwise a line
    `ready HOST:PORT` is printed, followed by one line per event with -o jsonl. SIGTERM and Ctrl-C
    stop it with exit code 0.

        rmqctl serve /data/store
        rmqctl serve /backup/a /backup/b --listen 127.0.0.1:0 -o jsonl
        rmqctl serve /data/store --offsets positions.json --from earliest
    """
    from rmqctl.commands.shared.serve_shown import ServeOutput
    from rmqctl.ext.serve.access import read_keys
    from rmqctl.ext.serve.limits import Limits
    from rmqctl.ext.serve.orders import Orders
    from rmqctl.ext.serve.producing.opening import temporary_store
    from rmqctl.ext.serve.server import Server, bind
    from rmqctl.ext.serve.serving import CLUSTER, RequestedStore, ServeSettings, open_brokers
    from rmqctl.scan import malloc_tuning
    from rmqctl.store.broker_conf import NO_CONF

    # Reject contradictions before any port or store is opened.
    if from_stored_offsets and start != "stored":
        raise UsageError("--from-stored-offsets and --from are mutually exclusive")
    if from_stored_offsets:
        out.note("--from-stored-offsets has no effect: groups continue from the stored offsets")
    if temp and roots:
        raise UsageError("--temp creates its own store and cannot be combined with STORE")
    if not temp and not roots:
        raise UsageError("no STORE given; pass --temp to serve an empty one")
    if topic and not (temp or writable):
        raise UsageError("--topic requires --writable or --temp")
    allowed = Limits(**limits.checked())
    if end_with_stdin:
        _require_pipe()
    if grpc is not None:
        require("grpc", "google.protobuf")
    if uvloop:
        require("uvloop")
    # Open all stores with their settings, from options and from broker.conf.
    with temporary_store(temp) as temp_root:
        named = [temp_root] if temp_root else roots_named(roots[0], roots[1:]) if roots else []
        stores = [StoreOptions(root=root, **vars(layout)) for root in named]
        for store in stores:
            for text in store.warnings():
                out.warn(text)
        conf = layout.broker_conf or NO_CONF
        settings = ServeSettings(view, _start(start), start == "stored", offsets,
                                 cluster=conf.values.get("cluster", CLUSTER),
                                 writable=writable or temp, flush=flush,
                                 access=read_keys(key_file or []))
        if limits.retry_memory is not None:
            settings = replace(settings, retry_memory=limits.retry_memory)

        # A broker.conf belongs to one broker: with several stores it is unclear to which.
        name = conf.name if len(stores) == 1 and _NAME.fullmatch(conf.name or "") else None
        shown = ServeOutput(out)
        orders = Orders(_STDIN, shown.answer, is_allowed=temp) if end_with_stdin else None
        # RocketMQ clients expect the fast port two below the normal port.
        fast = replace(listen, port=listen.port - _FAST_PORT) if (
            len(stores) == 1 and listen.port > _FAST_PORT) else None
        # Warn about every address that other machines can reach.
        for address in (listen, grpc):
            if address is not None and address.host not in _LOOPBACK:
                shown.warn(f"{address}: anyone who can reach this address can read " + (
                    "requests and responses of clients" if key_file else "every message"))
        if metrics is not None and metrics.host not in _LOOPBACK:
            shown.warn(f"{metrics}: anyone who can reach this address can read the names of topics "
                       "and groups")
        malloc_tuning.keep_freed_memory(_MAX_KEPT)
        malloc_tuning.collect_rarely()
        again, at_sigterm = True, signal.getsignal(signal.SIGTERM)
        while again:
            # Bind the ports first: brokers announce the addresses that they really got.
            bound = bind(listen, len(stores))
            wanted = [RequestedStore(store.root, store.open, address, name, store.folders,
                             tuple(write_outside or ()))
                      for store, (address, _) in zip(stores, bound, strict=True)]
            # Clients see a broker only after its topics exist and its gaps were reported.
            brokers, save = open_brokers(wanted, settings, shown.tell, shown.warn)
            _make_topics(brokers, topic or [])
            for broker in brokers:
                broker.failed = shown.failed
                missing = 0 if broker.source.store.lock.held else broker.source.without_rows()
                if missing:
                    shown.warn(f"{broker.source.store.root}: {counted(missing, 'message')} at the "
                               "end of the log have no consume queue entry and are not served; run "
                               "`rmqctl recover`")
            server = Server(brokers, allowed, save, shown.warn,
                            None if idle_exit is None else idle_exit / 1000, fast=fast)
            if grpc is not None:
                from rmqctl.ext.serve.grpc.server import Proxy

                server.proxy = Proxy(brokers, grpc, allowed.connections, allowed.part)
            if orders is not None:
                brokers[0].cluster.faults = orders.faults
            # Serve until a signal, the idle time, an order or the end of standard input.
            with shown.of(server, metrics), asyncio.Runner(loop_factory=import_module(
                    "uvloop").new_event_loop if uvloop else None) as runner:
                runner.run(_run(server, [socket for _, socket in bound], shown.ready, orders))
            signal.signal(signal.SIGTERM, at_sigterm)  # the loop has set the default
            # A server that was stopped by an order starts again at the same address.
            again = orders is not None and orders.wait_for_start()
            listen = bound[0][0]
            grpc = None if server.proxy is None else server.proxy.address


def _make_topics(brokers: list[Any], names: list[str]) -> None:
    """Create topics as a broker does when a message to an unknown topic arrives. Raises:
    RefusedError for names that brokers reject.
    """
    try:
        for broker in brokers if names else ():
            for name in names:
                broker.writer.topics.auto_create(name)
            broker.source.refresh(force=True)
    except BaseException:
        for broker in brokers:
            broker.close()
        raise


async def _run(server: Any, sockets: list[Any], ready: Callable[[], None],
               orders: Any) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def end() -> None:
        loop.remove_reader(_STDIN)
        stop.set()

    def started() -> None:
        ready()
        if orders is not None:
            loop.add_reader(_STDIN, orders.carry_out, end)
            orders.started(end)

    await server.run(sockets, started, stop)


def _require_pipe() -> None:
    """Raise UsageError unless standard input is a pipe that another program can close."""
    mode = 0 if sys.stdin is None else os.fstat(_STDIN).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (mode and os.isatty(_STDIN))):
        raise UsageError("--end-with-stdin requires a pipe as standard input")


def _start(text: str) -> str | int:
    from rmqctl.parse_values import parse_time

    return text if text in _STARTS else parse_time(text)
