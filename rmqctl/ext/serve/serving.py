"""Opening of the stores to serve, as the brokers of one server."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import field
from functools import partial
from typing import Any

from rmqctl.errors import UsageError
from rmqctl.ext.serve.access import Access
from rmqctl.ext.serve.broker import Broker, Cluster
from rmqctl.ext.serve.consuming.memory import Memory
from rmqctl.ext.serve.consuming.plain import PlainPulls
from rmqctl.ext.serve.consuming.popping import Pops
from rmqctl.ext.serve.consuming.positions import Positions, PositionsFile
from rmqctl.ext.serve.producing.writing import Writer
from rmqctl.ext.serve.reading import PageCache
from rmqctl.ext.serve.server import Save
from rmqctl.ext.serve.source import ServedStore
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import Address
from rmqctl.store.inside_store import refuse_in_store
from rmqctl.store.store import Store

CLUSTER = "DefaultCluster"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class RequestedStore:
    """A store to serve.

    * ``root``: the store's path
    * ``open``: function that opens the store
    * ``address``: the broker's address for clients
    * ``folders``: log folders that the user named
    * ``outside``: folders outside the store that may be written to
    """

    root: str
    open: Callable[[], Store]
    address: Address = field(default_factory=lambda: Address("127.0.0.1", 10911))
    name: str | None = None
    """The broker's name; None to derive a name from the store's position in the list."""
    folders: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings for serving stores.

    ``start``: see `Broker`. ``stored``: whether to use the consumer offsets in the stores.
    ``retry_memory``: maximum bytes of memory, in each read-only broker, for messages that consumers
    send back.
    """

    view: str = "disk"
    start: str | int = "stored"
    stored: bool = True
    offsets: str | None = None
    retry_memory: int = 64 << 20
    cluster: str = CLUSTER
    writable: bool = False
    flush: str | None = None
    access: Access = field(default_factory=Access)


def open_brokers(wanted: Sequence[RequestedStore], settings: ServeSettings,
                 on_event: Callable[..., None],
                 warn: Callable[[str], None] = lambda _text: None) -> tuple[list[Broker], Save]:
    """Return the brokers, and the function that saves their consumer offsets.
    Raises: NotAStoreError, StoreIOError, FormatError, UsageError.
    """
    if len({os.path.realpath(store.root) for store in wanted}) < len(wanted):
        raise UsageError("the same store is given twice")
    if settings.offsets is not None:
        refuse_in_store(settings.offsets)
    cluster, pages = Cluster(settings.cluster, access=settings.access), PageCache()
    names = [store.name or _name(number) for number, store in enumerate(wanted)]
    file = None if settings.offsets is None else PositionsFile(settings.offsets)
    keys = [f"{name} {os.path.realpath(store.root)}"
            for name, store in zip(names, wanted, strict=True)]
    served: list[tuple[str, str, RequestedStore, Writer | None, ServedStore]] = []
    with ExitStack() as opened:  # closed again where one cannot be opened
        for name, key, store in zip(names, keys, wanted, strict=True):
            writer = None
            if settings.writable:
                from rmqctl.ext.serve.producing.opening import open_writer

                writer = open_writer(store.open, settings.flush, pages, store.address,
                                     settings.cluster, store.folders, store.outside)
                opened.callback(writer.close)
            source = ServedStore(store.open, settings.view, pages) if writer is None else (
                writer.source)
            opened.callback(source.close)
            served.append((name, key, store, writer, source))
        # With the stores open, their logs identify their entries in the file.
        saved: dict[str, Any] = {} if file is None else file.load(
            keys, [source.store.log for *_, source in served])
        for text in () if file is None else file.warnings:
            warn(text)
        for name, key, store, writer, source in served:
            positions = Positions(source.offsets if settings.stored else {}, saved.get(key, {}))
            cluster.brokers[name] = broker = Broker(
                name, cluster, source, positions, Memory(settings.retry_memory), settings.start,
                store.address, writer=writer, on_event=on_event)
            broker.pops = Pops(broker)
            broker.pulls = PlainPulls(broker)
            if writer is not None:
                _join(broker, writer)
        opened.pop_all()
    brokers = list(cluster.brokers.values())

    def save() -> Callable[[], None] | None:
        changed = [broker for broker in brokers if broker.positions.changed]
        if not changed:
            return None
        now = {broker.name: broker.positions.snapshot() for broker in brokers}
        if file is not None:
            for key, broker in zip(keys, brokers, strict=True):
                file.know(key, broker.source.store.log)
        jobs = [] if file is None else [partial(file.save, {
            key: now[broker.name] for key, broker in zip(keys, brokers, strict=True)})]
        if settings.writable:
            from rmqctl.ext.serve.producing.opening import keep_positions

            jobs += [partial(keep_positions, broker.source, now[broker.name]) for broker in changed
                     if broker.writer is not None and broker.writer.failure is None]

        def write() -> None:
            for job in jobs:
                job()
            for broker in changed:
                broker.positions.written = now[broker.name].changes

        return write

    return brokers, save


def _join(broker: Broker, writer: Writer) -> None:
    """Connect a writer with its broker.

    Also continue to deliver the store's delayed and timed messages, and to check its half messages.
    """
    from rmqctl.ext.serve.producing.checking import Checks
    from rmqctl.ext.serve.producing.delaying import Delays
    from rmqctl.ext.serve.producing.plain import PlainSends
    from rmqctl.ext.serve.producing.timing import Timers
    from rmqctl.ext.serve.producing.transactions import Transactions

    delays, timers = Delays(writer), Timers(writer)
    delays.load()
    if writer.settings.profile.timer:
        timers.load()
        writer.timed, broker.timers = timers.add, timers
    writer.arrived, writer.scheduled = broker.arrived, delays.add
    broker.delays = delays
    broker.transactions = Transactions(writer, broker.raw_at)
    broker.checks = Checks(broker, broker.transactions)
    broker.sends = PlainSends(broker)


def _name(number: int) -> str:
    """Return the default broker name: broker-a, broker-b, …, broker-27, …"""
    return f"broker-{_LETTERS[number] if number < len(_LETTERS) else number + 1}"
