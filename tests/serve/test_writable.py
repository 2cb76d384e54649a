"""A store that is served for writing: what is sent can be pulled, and is there afterwards."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.settings import Settings as StoreSettings
from rmqctl.engine.config.create import create_store
from rmqctl.errors import StoreHeldError
from rmqctl.formats.local import properties
from rmqctl.formats.local.message import Record
from rmqctl.remoting.client import Client, records
from rmqctl.remoting.command import Command
from rmqctl.serve.serving import Settings
from tests.conftest import Runner
from tests.serve.running import Running, serving
from tests.serve.test_groups import join

WRITABLE = Settings(writable=True)


@pytest.fixture(params=["4.9.3", "5.3.3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    create_store(tmp_path / "store", StoreSettings(
        version=request.param, commitlog_file_size=1 << 16, consumequeue_file_size=2000,
        index_slots=100, index_max=400))
    return tmp_path / "store"


@pytest.fixture
def served(root: Path) -> Iterator[Running]:
    with serving(root, settings=WRITABLE) as running:
        yield running


def sent(client: Client, topic: str, body: bytes, *, queue: int = 0, text: str = "", **more: Any
         ) -> Command:
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0,
              "g": int(time.time() * 1000), "h": 0, "i": text, "j": 0, "k": False, "m": False,
              **more}
    return client.ask("SEND_MESSAGE_V2", body, **fields)


def pulled(client: Client, topic: str, queue: int = 0) -> list[Record]:
    found: list[Record] = []
    while (answer := client.pull(topic, queue, len(found))).code == 0:
        found += records(answer.body)
    return found


def verified(rmqctl: Runner, root: Path) -> None:
    rmqctl("verify", str(root)).expect(0)


def test_what_is_sent_can_be_pulled_at_once(served: Running, root: Path, rmqctl: Runner) -> None:
    bodies = [f"message {number}".encode() * (number % 40) for number in range(300)]
    with served.client() as client:
        for number, body in enumerate(bodies):
            answer = sent(client, "orders", body,
                          text=f"TAGS\x01T{number % 3}\x02KEYS\x01k{number}")
            assert (answer.code, answer.ext["queueOffset"]) == (0, str(number)), answer.remark
            assert answer.ext["TRACE_ON"] == "true"
        assert [record.body for record in pulled(client, "orders")] == bodies
        (last,) = records(client.pull("orders", 0, 299).body)
        known = properties.parse(last.properties.decode())
        assert (known["TAGS"], known["CLUSTER"]) == ("T2", "DefaultCluster")
        assert client.ask("GET_MAX_OFFSET", topic="orders", queueId=0).ext["offset"] == "300"
        tagged = client.pull("orders", 0, 0, expression="T1")
        assert [record.queue_offset for record in records(tagged.body)] == list(range(1, 96, 3))
        assert client.ask("GET_ROUTEINFO_BY_TOPIC", topic="orders").json()["queueDatas"][0][
            "perm"] == 6
        assert sent(client, "orders", b"x", queue=9).code == 1
        assert sent(client, "no way", b"x").code in (1, 17)
        assert sent(client, "orders", bytes(5 << 20)).code == 13
    served.do(lambda: None)


def test_afterwards_the_store_is_one_that_was_shut_down(root: Path, rmqctl: Runner) -> None:
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        for number in range(50):
            sent(client, "orders", b"x" * 3000, queue=number % 4)
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="g", topic="orders", queueId=0,
                   commitOffset=5)
        with pytest.raises(StoreHeldError), serving(root, settings=WRITABLE):
            pass
    verified(rmqctl, root)
    assert not (root / "abort").exists()
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        assert sum(len(pulled(client, "orders", queue)) for queue in range(4)) == 50
        answer = client.ask("QUERY_CONSUMER_OFFSET", consumerGroup="g", topic="orders", queueId=0)
        assert answer.ext["offset"] == "5"
        assert sent(client, "orders", b"again").ext["queueOffset"] == "13"
    verified(rmqctl, root)


def test_a_batch_is_many_messages_of_one_queue(served: Running) -> None:
    def item(body: bytes, text: str) -> bytes:
        raw = text.encode()
        return struct.pack(">iiiii", 22 + len(body) + len(raw), 0, 0, 7, len(body)) + body + (
            struct.pack(">h", len(raw)) + raw)

    whole = b"".join(item(f"b{number}".encode(), f"TAGS\x01T{number}") for number in range(5))
    with served.client() as client:
        fields = {"a": "P", "b": "orders", "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 1, "h": 0,
                  "i": "", "m": True}
        answer = client.ask("SEND_BATCH_MESSAGE", whole, **fields)
        assert (answer.code, answer.ext["queueOffset"]) == (0, "0")
        assert answer.ext["msgId"].count(",") == 4
        found = pulled(client, "orders", 1)
        assert [(record.body, record.flag) for record in found] == [
            (f"b{number}".encode(), 7) for number in range(5)]
        for end in range(1, len(whole) - 1, 7):
            assert client.ask("SEND_BATCH_MESSAGE", whole[:end], **fields).code in (0, 13)


def test_a_delayed_message_comes_when_it_is_due(root: Path, rmqctl: Runner) -> None:
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        begun = time.monotonic()
        assert sent(client, "orders", b"late", queue=2, text="DELAY\x011").code == 0
        assert sent(client, "orders", b"much later", queue=2, text="DELAY\x0118").code == 0
        assert pulled(client, "orders", 2) == []
        opaque = client.send("PULL_MESSAGE", ext={
            "consumerGroup": "g", "topic": "orders", "queueId": 2, "queueOffset": 0,
            "maxMsgNums": 32, "sysFlag": 6, "suspendTimeoutMillis": 15_000, "subscription": "*"})
        answer = client.receive()
        assert (answer.opaque, answer.code) == (opaque, 0)
        assert 0.8 < time.monotonic() - begun < 6
        (record,) = records(answer.body)
        assert (record.body, record.queue_id, record.queue_offset) == (b"late", 2, 0)
    verified(rmqctl, root)
    delays = rmqctl("config", str(root), "delay", "-o", "jsonl").jsonl()
    assert [(row["level"], row["offset"]) for row in delays] == [(1, 1)]
    with serving(root, settings=WRITABLE) as served:
        waiting = served.brokers[0].delays
        assert waiting is not None
        assert [each[2] for each in waiting.waiting] == [18]


def test_what_is_sent_back_is_written(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with served.client() as client:
        sent(client, "orders", b"bad")
        join(client, "one", "orders")
        (first,) = pulled(client, "orders")
        assert client.ask("CONSUMER_SEND_MSG_BACK", offset=first.physical_offset, group="CG",
                          delayLevel=1).code == 0
        for _ in range(60):
            again = pulled(client, "%RETRY%CG")
            if again:
                break
            time.sleep(0.1)
        assert [(record.body, record.reconsume_times) for record in again] == [(b"bad", 1)]
        assert client.ask("CONSUMER_SEND_MSG_BACK", offset=again[0].physical_offset, group="CG",
                          delayLevel=-1).code == 0
        (dead,) = pulled(client, "%DLQ%CG")
        assert (dead.body, dead.reconsume_times) == (b"bad", 2)


def test_a_waiting_pull_gets_what_is_sent(served: Running) -> None:
    with served.client() as waiting, served.client() as sender:
        sent(sender, "orders", b"first")
        waiting.send("PULL_MESSAGE", ext={
            "consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": 1,
            "maxMsgNums": 32, "sysFlag": 6, "suspendTimeoutMillis": 15_000, "subscription": "A"})
        sent(sender, "orders", b"other", text="TAGS\x01B")
        begun = time.monotonic()
        sent(sender, "orders", b"wanted", text="TAGS\x01A")
        (record,) = records(waiting.receive().body)
        assert record.body == b"wanted"
        assert time.monotonic() - begun < 1


def test_topics_are_made_and_changed(served: Running) -> None:
    with served.client() as client:
        fields = {"topic": "made", "defaultTopic": "TBW102", "readQueueNums": 3,
                  "writeQueueNums": 3, "perm": 6, "topicFilterType": "SINGLE_TAG",
                  "topicSysFlag": 0, "order": False}
        assert client.ask("UPDATE_AND_CREATE_TOPIC", **fields).code == 0
        route = client.ask("GET_ROUTEINFO_BY_TOPIC", topic="made").json()["queueDatas"][0]
        assert (route["readQueueNums"], route["writeQueueNums"], route["perm"]) == (3, 3, 6)
        assert client.ask("UPDATE_AND_CREATE_TOPIC", **{**fields, "topic": "TBW102"}).code == 1
