"""Clients that others wrote, against a served store: the C++ client and the JavaScript client.

They are installed into a folder of the run; where no package registry answers, these are skipped.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.settings import Settings as StoreSettings
from rmqctl.engine.config.create import create_store
from rmqctl.ext.serve.access import Access
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats.local.message import decode
from rmqctl.store.objects import plain_body
from tests.conftest import GoldenFolder
from tests.serve.running import Running, serving
from tests.serve.test_pull import expected

SCRIPTS = Path(__file__).parent / "clients"
Message = dict[str, Any]
pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.area]


def installed(folder: Path, command: list[str]) -> Path:
    """What the command puts into the folder, once for all workers. Skips where it cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=120)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"{command[0]} could not install the client: {error}")
            done.touch()
    return folder


@pytest.fixture(scope="session")
def cpp(golden_base: Path) -> list[str]:
    """The command that runs the C++ client."""
    folder = golden_base.parent / "cpp-client"
    installed(folder, [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile",
                       "--target", str(folder),  "rocketmq==0.4.4"])
    return [sys.executable, str(SCRIPTS / "cpp.py")]


@pytest.fixture(scope="session")
def ons(golden_base: Path) -> list[str]:
    """The command that runs the JavaScript client."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("there is no node")
    folder = golden_base.parent / "ons-client"
    installed(folder, ["npm", "install", "--silent", "--prefix", str(folder), "ali-ons@3.12.0"])
    return ["node", str(SCRIPTS / "ons.js")]


class Started:
    """A client that runs; ``messages`` are the objects it has printed so far."""

    def __init__(self, command: list[str], served: Running, topic: str, mode: str, group: str,
                 base: Path, folder: Path, **variables: str) -> None:
        self.stop_file = folder / f"stop-{time.monotonic_ns()}"
        self._out = folder / f"out-{time.monotonic_ns()}"
        environment = {**os.environ, "HOME": str(folder), "STOP": str(self.stop_file),
                       "PYTHONPATH": str(base.parent / "cpp-client"),
                       "NODE_PATH": str(base.parent / "ons-client" / "node_modules"),
                       **variables}
        proxy = served.server.proxy
        address = str(served.address if proxy is None else proxy.address)
        with open(self._out, "w") as out:
            self.process = subprocess.Popen(
                [*command, address, topic, mode, group], stdout=out,
                stderr=subprocess.DEVNULL, env=environment)

    @property
    def messages(self) -> list[Message]:
        lines = self._out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line[0] == "{" and line[-1] == "\n"]

    def stop(self) -> None:
        self.stop_file.touch()
        self.process.wait(30)


Start = Callable[..., Started]


@pytest.fixture
def start(golden_base: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a client; all of them are stopped at the end."""
    clients: list[Started] = []

    def begin(command: list[str], served: Running, topic: str, mode: str, group: str,
              **variables: str) -> Started:
        clients.append(Started(command, served, topic, mode, group, golden_base, tmp_path,
                               **variables))
        return clients[-1]

    yield begin
    for client in clients:
        client.stop_file.touch()
        try:
            client.process.wait(20)
        except subprocess.TimeoutExpired:
            client.process.kill()
            client.process.wait()


def wait_until(holds: Callable[[], bool], seconds: float = 40) -> None:
    """Waits for something; the assertion behind it says whether it came."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)


def as_cpp(wanted: dict[int, list[tuple[int, str]]]) -> dict[int, list[tuple[int, str]]]:
    """The same as the C++ client's Python module has it: bodies end at their first zero."""
    return {queue: [(offset, bytes.fromhex(body).partition(b"\0")[0].hex())
                    for offset, body in messages] for queue, messages in wanted.items()}


def by_queue(messages: list[Message]) -> dict[int, list[tuple[int, str]]]:
    messages_by_queue: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for message in messages:
        messages_by_queue[message["queue_id"]].append((message["queue_offset"], message["body"]))
    return dict(messages_by_queue)


@pytest.fixture
def store(golden: GoldenFolder) -> Path:
    return golden("4.9.3/basic") / "store"


@pytest.fixture
def subject(store: Path) -> tuple[str, dict[int, list[tuple[int, str]]]]:
    """A topic, and what lies in each of its queues; bodies as clients see them."""
    wanted = expected(store)
    topic = max(wanted, key=lambda key: len(wanted[key]))[0]
    return topic, {
        queue_id: [(record.queue_offset, plain_body(record.sys_flag, record.body)[0].hex())
                   for record in map(decode, messages)]
        for (name, queue_id), messages in wanted.items() if name == topic}


def test_the_cpp_client_pulls_every_message(cpp: list[str], start: Start, store: Path,
                                            subject: Any) -> None:
    topic, wanted = subject
    with serving(store) as served:
        client = start(cpp, served, topic, "pull", "PULL")
        client.process.wait(60)
        assert by_queue(client.messages) == as_cpp(wanted)


@pytest.mark.parametrize("kind", ["cpp", "ons"])
def test_push_consumers_get_every_message_once_and_go_on_where_they_stood(
        kind: str, start: Start, store: Path, subject: Any, tmp_path: Path,
        request: pytest.FixtureRequest) -> None:
    command = request.getfixturevalue(kind)
    topic, wanted = subject
    count = sum(map(len, wanted.values()))
    with serving(store) as served:
        client = start(command, served, topic, "push", "PUSH")
        wait_until(lambda: len(client.messages) >= count)
        client.stop()
        offsets_by_queue = by_queue(client.messages)
        assert {queue: sorted(messages) for queue, messages in offsets_by_queue.items()} == (
            as_cpp(wanted) if kind == "cpp" else wanted)
        again = start(command, served, topic, "push", "PUSH")
        wait_until(lambda: "PUSH" in served.brokers[0].groups.consumers)
        wait_until(lambda: bool(again.messages), 2)
        again.stop()
        # What it had not committed when it ended may come once more, nothing else.
        assert len(again.messages) < count


def test_two_members_share_the_queues_and_one_takes_over(cpp: list[str], ons: list[str],
                                                         start: Start, store: Path, subject: Any
                                                         ) -> None:
    topic, wanted = subject
    with serving(store) as served:
        broker = served.brokers[0]
        first = start(ons, served, topic, "push", "SHARE")
        wait_until(lambda: len(first.messages) >= sum(map(len, wanted.values())))
        second = start(cpp, served, topic, "push", "SHARE")
        wait_until(lambda: len(broker.groups.consumers["SHARE"].members) == 2)
        assert len(broker.groups.consumers["SHARE"].members) == 2
        first.stop()
        wait_until(lambda: len(broker.groups.consumers["SHARE"].members) == 1)
        assert len(broker.groups.consumers["SHARE"].members) == 1
        second.stop()


def test_a_failing_consumer_gets_its_messages_again(ons: list[str], start: Start, store: Path,
                                                    subject: Any) -> None:
    topic, _wanted = subject
    stored = sum(decode(raw).reconsume_times > 0 for (name, _), messages in expected(store).items()
                 if name == topic for raw in messages)

    def at_once(broker: Any) -> None:
        later = broker.later
        broker.later = lambda seconds, then: later(0.1 if seconds >= 1 and "returning" in (
            then.__module__) else seconds, then)

    with serving(store, then=[at_once]) as served:
        client = start(ons, served, topic, "retry", "RETRY")
        wait_until(lambda: sum(message["times"] > 0 for message in client.messages)
                   >= stored + 2)
        client.stop()
        again = [message["body"] for message in client.messages if message["times"]]
        before = [message["body"] for message in client.messages if not message["times"]]
        assert len(again) == stored + 2
        assert len(set(again) & set(before)) == 2


def test_what_one_client_sends_the_other_gets(cpp: list[str], ons: list[str], start: Start,
                                              tmp_path: Path) -> None:
    create_store(tmp_path / "store", StoreSettings(commitlog_file_size=1 << 20, index_slots=100,
                                                   index_max=400))
    with serving(tmp_path / "store", settings=ServeSettings(writable=True)) as served:
        for command in (cpp, ons):
            producer = start(command, served, "TopicTest", "send", "PRODUCER")
            producer.process.wait(30)
            assert "sent" in producer.messages[0]
        for command in (cpp, ons):
            client = start(command, served, "TopicTest", "push", f"GROUP-{Path(command[-1]).stem}")
            wait_until(lambda client=client: len(client.messages) >= 2)  # type: ignore[misc]
            client.stop()
            assert [message["body"] for message in client.messages] == [b"hello".hex()] * 2


@pytest.mark.parametrize("kind", ["cpp", "ons"])
def test_producers_are_refused(kind: str, start: Start, store: Path, subject: Any,
                               request: pytest.FixtureRequest) -> None:
    with serving(store) as served:
        client = start(request.getfixturevalue(kind), served, subject[0], "send", "PRODUCER")
        client.process.wait(30)
        (message,) = client.messages
        assert "refused" in message


@pytest.mark.parametrize("kind", ["cpp", "ons"])
def test_clients_sign_what_they_ask(kind: str, start: Start, tmp_path: Path,
                                    request: pytest.FixtureRequest) -> None:
    command = request.getfixturevalue(kind)
    create_store(tmp_path / "store", StoreSettings(commitlog_file_size=1 << 20, index_slots=100,
                                                   index_max=400))

    def topic(broker: Any) -> None:
        broker.writer.topics.auto_create("TopicTest")
        broker.source.refresh(force=True)

    settings = ServeSettings(writable=True, access=Access({"user": "secret"}))
    with serving(tmp_path / "store", settings=settings, then=[topic]) as served:
        for secret, names in (("secret", "sent"), ("another", "refused")):
            producer = start(command, served, "TopicTest", "send", "PRODUCER", ACCESS_KEY="user",
                             SECRET_KEY=secret)
            producer.process.wait(30)
            assert names in producer.messages[0], producer.messages
        client = start(command, served, "TopicTest", "push", "GROUP", ACCESS_KEY="user",
                       SECRET_KEY="secret")
        wait_until(lambda: len(client.messages) >= 1)
        client.stop()
        assert [message["body"] for message in client.messages] == [b"hello".hex()]
