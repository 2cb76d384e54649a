"""A server in a thread of the test, with its brokers at hand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmqctl.broker.settings import Settings as StoreSettings
from rmqctl.engine.config.create import create_store
from rmqctl.ext.serve.broker import Broker
from rmqctl.ext.serve.limits import Limits
from rmqctl.ext.serve.remoting.client import Client
from rmqctl.ext.serve.server import Server, bind
from rmqctl.ext.serve.serving import RequestedStore, ServeSettings, open_brokers
from rmqctl.parse_values import Address
from rmqctl.store.store import Sizes, Store

HERE = Address("127.0.0.1", 0)


@dataclass
class Running:
    """``failures``: what handlers could not do; there must be none."""

    server: Server
    brokers: list[Broker]
    loop: asyncio.AbstractEventLoop
    failures: list[Exception] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def address(self) -> Address:
        return self.brokers[0].address

    def client(self, number: int = 0, timeout: float = 20.0,
               keys: tuple[str, str] | None = None) -> Client:
        return Client(self.brokers[number].address, timeout, keys)

    def do(self, work: Callable[[], None]) -> None:
        """Runs something in the server's thread."""
        done = threading.Event()

        def run() -> None:
            work()
            done.set()

        self.loop.call_soon_threadsafe(run)
        assert done.wait(10)


def empty_store(root: Path, version: str = "5.3.3") -> Path:
    """A store without messages, whose files are so small that some records fill one."""
    create_store(root, StoreSettings(version=version, commitlog_file_size=1 << 16,
                                     consumequeue_file_size=2000, index_slots=100, index_max=400))
    return root


def until(holds: Callable[[], bool], seconds: float = 8) -> None:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    assert holds()


@contextmanager
def serving(*roots: Path, settings: ServeSettings | None = None, limits: Limits | None = None,
            then: Sequence[Callable[[Broker], None]] = (), grpc: bool = False,
            listen: Address = HERE, sizes: Sizes | None = None) -> Iterator[Running]:
    """Serves stores until the block ends; with ``grpc`` to clients of RocketMQ 5, too."""
    events: list[dict[str, Any]] = []
    failures: list[Exception] = []

    def opener(root: Path) -> Callable[[], Store]:
        return lambda: Store.open(root, sizes=sizes)

    bound = bind(listen, len(roots))
    brokers, save = open_brokers([RequestedStore(str(root), opener(root), address)
                                  for root, (address, _) in zip(roots, bound, strict=True)],
                                 settings or ServeSettings(), lambda **event: events.append(event))
    for broker in brokers:
        broker.failed = lambda _name, error: failures.append(error)
        for store in then:
            store(broker)
    server = Server(brokers, limits or Limits(), save)
    if grpc:
        from rmqctl.ext.serve.grpc.server import Proxy

        server.proxy = Proxy(brokers, Address("127.0.0.1", 0), server.limits.connections,
                             server.limits.part)
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    problems: list[BaseException] = []

    def run() -> None:
        try:
            loop.run_until_complete(server.run(
                [item for _, item in bound], ready.set, stop))
        except BaseException as error:  # noqa: BLE001 - said in the test's own thread
            problems.append(error)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    assert not problems, problems
    try:
        yield Running(server, brokers, loop, failures, events)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
    assert not thread.is_alive()
    assert not problems, problems
    assert not failures, failures
