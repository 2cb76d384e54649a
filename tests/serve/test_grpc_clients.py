"""The official clients of RocketMQ 5 for Python and Node.js against a served store.

As in test_clients.py they are skipped where no package registry answers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from rmqctl.broker.settings import Settings as StoreSettings
from rmqctl.engine.config.create import create_store
from rmqctl.ext.serve.grpc.protocol import MESSAGES
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats.local import properties
from rmqctl.formats.local.message import decode
from rmqctl.store.objects import plain_body
from tests.conftest import GoldenFolder
from tests.serve.running import Running, serving
from tests.serve.test_clients import SCRIPTS, Message, Start, installed, start, wait_until
from tests.serve.test_pull import expected
from tests.support.share import sample

__all__ = ["start"]  # a fixture
pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.area]


@pytest.fixture(scope="session")
def python(golden_base: Path) -> list[str]:
    """The command that runs the client for Python."""
    folder = golden_base.parent / "grpc-python-client"
    installed(folder, [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile",
                       "--target", str(folder), "rocketmq-python-client==5.1.2"])
    return ["env", f"PYTHONPATH={folder}", sys.executable, str(SCRIPTS / "grpc_python.py")]


@pytest.fixture(scope="session")
def node(golden_base: Path) -> list[str]:
    """The command that runs the client for Node.js."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("there is no node")
    folder = golden_base.parent / "grpc-node-client"
    installed(folder, ["npm", "install", "--silent", "--prefix", str(folder),
                       "rocketmq-client-nodejs@1.0.8"])
    return ["env", f"NODE_PATH={folder / 'node_modules'}", "node", str(SCRIPTS / "grpc_node.js")]


@pytest.fixture(params=sample(["python", "node"], 1, "clients of gRPC"))
def client(request: pytest.FixtureRequest) -> list[str]:
    command: list[str] = request.getfixturevalue(request.param)
    return command


@pytest.fixture
def store(golden: GoldenFolder) -> Path:
    return golden("4.9.3/basic") / "store"


@pytest.fixture
def subject(store: Path) -> tuple[str, list[tuple[str, str]]]:
    """A topic, and (id, body) of its messages."""
    wanted = expected(store)
    topic = max(wanted, key=lambda key: len(wanted[key]))[0]
    values = []
    for (name, _), messages in wanted.items():
        for record in map(decode, messages if name == topic else ()):
            parsed_properties = properties.parse(record.properties.decode())
            values.append((parsed_properties.get(properties.UNIQUE_KEY, record.message_id),
                           plain_body(record.sys_flag, record.body)[0].hex()))
    return topic, sorted(values)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Running]:
    create_store(tmp_path / "store", StoreSettings(
        version="5.3.3", commitlog_file_size=1 << 20, index_slots=100, index_max=400))
    (tmp_path / "store" / "config" / "subscriptionGroup.json").write_text(json.dumps(
        {"subscriptionGroupTable": {"ORDERED": {
            "groupName": "ORDERED", "consumeMessageOrderly": True}}}))
    with serving(tmp_path / "store", settings=ServeSettings(writable=True), grpc=True) as running:
        yield running


def seen(messages: list[Message]) -> list[tuple[str, str]]:
    assert not any(message["bad"] for message in messages)
    return sorted((message["id"], message["body"]) for message in messages)


def test_the_table_of_messages_is_that_of_the_client(python: list[str]) -> None:
    done = subprocess.run([*python, "127.0.0.1:1", "T", "table", "G"], capture_output=True,
                          text=True, timeout=60, check=True)
    theirs = {document["name"]: document["fields"]
              for document in map(json.loads, done.stdout.splitlines())}
    for name, ours in MESSAGES.items():
        for field in ours.DESCRIPTOR.fields:
            kind: Any = field.message_type.name if field.message_type else field.type
            number, their_kind, many = theirs[name][field.name]
            assert (field.number, field.is_repeated) == (number, many), (name, field.name)
            assert kind == (field.TYPE_INT32 if their_kind == "int" else their_kind)


@pytest.mark.parametrize("mode", ["simple", "push"])
def test_every_message_once_and_as_it_was_sent(client: list[str], mode: str, start: Start,
                                               store: Path, subject: Any) -> None:
    topic, wanted = subject
    with serving(store, grpc=True) as served:
        consumer = start(client, served, topic, mode, "G")
        wait_until(lambda: len(consumer.messages) >= len(wanted))
        broker = served.brokers[0]
        ends = {number: broker.queue(topic, number).end
                for number in range(broker.require_topic(topic).read_queues)}
        wait_until(lambda: all(broker.positions.get("G", topic, number) == end
                               for number, end in ends.items() if end))
        if mode == "push":
            consumer.process.kill()  # it would wait for its last call, 20 s
        else:
            consumer.stop()
            assert "G" not in broker.groups.consumers  # it has taken its leave
        assert seen(consumer.messages) == wanted
        assert all(broker.positions.get("G", topic, number) == end
                   for number, end in ends.items() if end)


@pytest.mark.exhaustive
def test_what_is_not_acked_comes_again_after_its_time(python: list[str], start: Start,
                                                      written: Running) -> None:
    start(python, written, "T", "send", "P").process.wait(30)
    consumer = start(python, written, "T", "again", "G")
    wait_until(lambda: sum(message["attempt"] == 2 for message in consumer.messages) >= 6)
    consumer.stop()
    first = [message for message in consumer.messages if message["attempt"] == 1]
    assert seen(first) == seen([message for message in consumer.messages
                                if message["attempt"] == 2])


def test_a_failing_consumer_gets_its_messages_again(python: list[str], start: Start,
                                                    written: Running) -> None:
    start(python, written, "T", "send", "P").process.wait(30)
    consumer = start(python, written, "T", "retry", "G")
    wait_until(lambda: sum(message["attempt"] > 1 for message in consumer.messages) >= 2)
    consumer.stop()
    assert sum(message["attempt"] == 2 for message in consumer.messages) == 2


def test_what_one_client_sends_the_other_gets(python: list[str], node: list[str], start: Start,
                                              written: Running) -> None:
    for command in (python, node):
        producer = start(command, written, "T", "send", "P")
        producer.process.wait(40)
        assert producer.messages == [{"sent": True}]
    texts = ["hello", "hello", "ordered 0", "ordered 1", "ordered 2", "delayed", "commit"]
    for number, command in enumerate((python, node)):
        consumer = start(command, written, "T", "simple", f"G{number}")
        wait_until(lambda consumer=consumer: len(  # type: ignore[misc]
            consumer.messages) >= len(texts))
        consumer.stop()
        lines = [bytes.fromhex(message["body"]).decode() for message in consumer.messages]
        assert sorted(lines) == sorted(texts)
        assert {message["tag"] for message in consumer.messages} == {"TagA"}


def test_a_group_in_order_gets_its_messages_in_order(python: list[str], start: Start,
                                                     written: Running) -> None:
    for _ in range(2):
        start(python, written, "T", "send", "P").process.wait(30)
    consumer = start(python, written, "T", "push", "ORDERED")
    wait_until(lambda: sum(message["group"] == "M" for message in consumer.messages) >= 6)
    consumer.stop()
    assert [bytes.fromhex(message["body"]).decode() for message in consumer.messages
            if message["group"] == "M"] == [f"ordered {number}" for number in (0, 1, 2, 0, 1, 2)]


def test_producers_are_refused(client: list[str], start: Start, store: Path, subject: Any) -> None:
    with serving(store, grpc=True) as served:
        producer = start(client, served, subject[0], "send", "P")
        producer.process.wait(40)
        (message,) = producer.messages
        assert "the broker is read-only" in message["refused"]
