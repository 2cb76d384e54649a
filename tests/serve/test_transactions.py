"""Transactions of a server that takes messages: half messages, their ends, producers asked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.settings import Settings as StoreSettings
from rmqctl.engine.config.create import create_store
from rmqctl.formats.local import properties
from rmqctl.formats.local.message import Record, decode
from rmqctl.formats.local.properties import HALF_TOPIC, OP_HALF_TOPIC
from rmqctl.remoting.client import Client
from rmqctl.remoting.codes import CHECK_TRANSACTION_STATE
from rmqctl.remoting.command import Command
from rmqctl.serve.broker import Broker
from rmqctl.serve.producing import checking, transactions
from rmqctl.serve.serving import Settings
from rmqctl.store.store import Store
from tests.conftest import Runner
from tests.serve.running import Running, serving
from tests.serve.test_writable import pulled, sent

WRITABLE = Settings(writable=True)
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def at_once(broker: Broker) -> None:
    """Rounds follow each other, and messages need not be old."""
    assert isinstance(broker.checks, checking.Checks)
    broker.checks.every_s, broker.checks.immunity_ms = 0.15, 0


@pytest.fixture(params=["4.9.3", "5.3.3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    create_store(tmp_path / "store", StoreSettings(
        version=request.param, commitlog_file_size=1 << 16, consumequeue_file_size=2000,
        index_slots=100, index_max=400))
    return tmp_path / "store"


@pytest.fixture
def served(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(transactions, "_OP_S", 0.05)
    with serving(root, settings=WRITABLE, then=[at_once]) as running:
        yield running


def prepared(client: Client, body: bytes, text: str = "", queue: int = 1) -> Command:
    answer = sent(client, "orders", body, queue=queue,
                  text=f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K{body.decode()}\x02{text}",
                  f=4)
    assert answer.code == 0, answer.remark
    return answer


def end(client: Client, half: Command, how: int = COMMIT, *, group: str = "PG", asked: bool = False,
        queue_offset: int | None = None, physical: int | None = None) -> Command:
    place = int(half.ext["msgId"][-16:], 16) if physical is None else physical
    return client.ask("END_TRANSACTION", producerGroup=group, commitLogOffset=place,
                      tranStateTableOffset=half.ext["queueOffset"] if queue_offset is None else (
                          queue_offset), commitOrRollback=how, fromTransactionCheck=asked,
                      msgId=half.ext["msgId"], transactionId="x")


def ready(client: Client, group: str = "PG") -> None:
    """The client is a producer of the group."""
    client.ask("HEART_BEAT", {"clientID": "producer", "consumerDataSet": [],
                              "producerDataSet": [{"groupName": group}]})


def wait(holds: Callable[[], bool], seconds: float = 8) -> None:
    late = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < late
        time.sleep(0.02)


def asked(client: Client) -> Command:
    """What the client is asked next."""
    while True:
        found = client.told.pop(0) if client.told else client.receive()
        if found.code == CHECK_TRANSACTION_STATE and not found.is_response:
            return found


def stored(root: Path, topic: str, queue: int = 0) -> list[Record]:
    """What lies in a queue of a store that nobody writes to."""
    with Store.open(root) as store:
        found = store.queue(topic, queue)
        if found is None or not found.exists:
            return []
        return [record for _, rows in found.pages(0, found.disk_end)
                for place in rows["physical_offset"].tolist()
                if (record := store.log.record_at(place)) is not None]


def known(record: Record) -> dict[str, str]:
    return properties.parse(record.properties.decode())


def test_a_half_message_comes_when_it_is_committed(served: Running, root: Path, rmqctl: Runner
                                                   ) -> None:
    with served.client() as client:
        kept, gone = prepared(client, b"kept", "TAGS\x01T"), prepared(client, b"gone")
        assert (kept.ext["queueId"], kept.ext["queueOffset"], gone.ext["queueOffset"]) == (
            "1", "0", "1")
        assert pulled(client, "orders", 1) == []
        (half, _) = pulled(client, HALF_TOPIC)
        assert (half.body, half.sys_flag, half.queue_id) == (b"kept", 0, 0)
        assert (known(half)["REAL_TOPIC"], known(half)["REAL_QID"]) == ("orders", "1")
        assert end(client, kept).code == 0
        assert end(client, gone, ROLLBACK).code == 0
        (record,) = pulled(client, "orders", 1)
        assert (record.body, record.sys_flag, record.prepared_transaction_offset) == (
            b"kept", COMMIT, half.physical_offset)
        assert record.properties == half.properties
        wait(lambda: sum(map(len, map(transactions.ended_by, pulled(client, OP_HALF_TOPIC)))) == 2)
        bodies = [bytes(each.body) for each in pulled(client, OP_HALF_TOPIC)]
        assert b",".join(bodies).replace(b",,", b",") in (b"0,1", b"0,1,")


@pytest.mark.parametrize(("wrong", "remark"), [
    ({"group": "other"}, "group wrong"), ({"queue_offset": 5}, "state table offset wrong"),
    ({"physical": 3}, "Find prepared"), ({"physical": 1 << 60}, "Find prepared"),
    ({"physical": -1}, "Find prepared")])
def test_what_names_no_half_message_of_the_group_is_refused(
        served: Running, wrong: dict[str, Any], remark: str) -> None:
    with served.client() as client:
        half = prepared(client, b"one")
        for how in (COMMIT, ROLLBACK):
            answer = end(client, half, how, **wrong)
            assert answer.code == 1
            assert remark in str(answer.remark)
        plain = sent(client, "orders", b"plain", text="PGROUP\x01PG")
        assert end(client, plain).code == 1
        assert pulled(client, "orders", 1) == pulled(client, OP_HALF_TOPIC) == []


def test_who_does_not_know_is_asked_and_asked_again(served: Running, root: Path) -> None:
    with served.client() as client:
        ready(client)
        half = prepared(client, b"later", "TAGS\x01T")
        client.one_way("END_TRANSACTION", producerGroup="PG", commitLogOffset=0,
                       tranStateTableOffset=0, commitOrRollback=UNKNOWN, msgId="x")
        first, second = asked(client), asked(client)
        for number, question in enumerate((first, second), 1):
            record = decode(question.body)
            assert (record.topic, record.queue_id, record.body) == (b"orders", 1, b"later")
            assert known(record)["TRANSACTION_CHECK_TIMES"] == str(number)
            assert (str(record.queue_offset), str(record.physical_offset)) == (
                question.ext["tranStateTableOffset"], question.ext["commitLogOffset"])
            assert (question.ext["msgId"], question.ext["transactionId"]) == ("Klater", "Klater")
            assert question.is_one_way
        assert first.ext["offsetMsgId"] != second.ext["offsetMsgId"] != half.ext["msgId"]
        again = Command(0, ext={"msgId": second.ext["offsetMsgId"],
                                "queueOffset": second.ext["tranStateTableOffset"]})
        assert end(client, again, asked=True).code == 0
        (record,) = pulled(client, "orders", 1)
        assert record.body == b"later"
        time.sleep(0.5)
        count = len(pulled(client, HALF_TOPIC))
        time.sleep(0.5)
        assert len(pulled(client, HALF_TOPIC)) == count
        assert len(pulled(client, "orders", 1)) == 1
        position = client.ask("QUERY_CONSUMER_OFFSET", consumerGroup=checking.READER,
                              topic=HALF_TOPIC, queueId=0)
        assert position.ext["offset"] == str(count)


def test_what_nobody_answers_for_is_given_up(served: Running, root: Path, rmqctl: Runner,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MOST_TIMES", 2)
    with served.client() as client:
        prepared(client, b"lost", "k\x01v")
        wait(lambda: bool(pulled(client, checking.GIVEN_UP_TOPIC)))
        (record,) = pulled(client, checking.GIVEN_UP_TOPIC)
        assert (record.body, known(record)["TRANSACTION_CHECK_TIMES"]) == (b"lost", "2")
        time.sleep(0.4)
        assert len(pulled(client, checking.GIVEN_UP_TOPIC)) == 1
        assert len(pulled(client, HALF_TOPIC)) == 3


def test_a_producer_may_ask_to_be_left_alone(served: Running) -> None:
    with served.client() as client:
        ready(client)
        half = prepared(client, b"slow", f"{transactions.IMMUNITY}\x0130")
        wait(lambda: len(pulled(client, HALF_TOPIC)) > 2)
        assert not client.told
        copies = pulled(client, HALF_TOPIC)
        assert {known(each).get("TRAN_PREPARED_QUEUE_OFFSET") for each in copies} == {None, "0"}
        assert end(client, half).code == 0
        assert [each.body for each in pulled(client, "orders", 1)] == [b"slow"]
        time.sleep(0.5)
        count = len(pulled(client, HALF_TOPIC))
        time.sleep(0.4)
        assert len(pulled(client, HALF_TOPIC)) == count  # its copy is taken for ended, too


def test_a_restart_goes_on_with_it(root: Path, rmqctl: Runner, monkeypatch: pytest.MonkeyPatch
                                   ) -> None:
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        halves = [prepared(client, b"%d" % number) for number in range(4)]
        end(client, halves[1])
        end(client, halves[2], ROLLBACK)
    rmqctl("verify", str(root)).expect(0)
    ops = stored(root, OP_HALF_TOPIC)
    assert [offset for each in ops for offset in transactions.ended_by(each)] == [1, 2]
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        assert end(client, halves[0]).code == 0
    with serving(root, settings=WRITABLE, then=[at_once]) as served, served.client() as client:
        ready(client)
        question = asked(client)
        assert decode(question.body).body == b"3"
        answer = Command(0, ext={"msgId": question.ext["offsetMsgId"],
                                 "queueOffset": question.ext["tranStateTableOffset"]})
        assert end(client, answer, asked=True).code == 0
        bodies = [each.body for each in pulled(client, "orders", 1)]
        assert bodies == [b"1", b"0", b"3"]
    rmqctl("verify", str(root)).expect(0)
    offsets = json.loads((root / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert offsets[f"{HALF_TOPIC}@{checking.READER}"]["0"] >= 4
    assert f"{OP_HALF_TOPIC}@{checking.READER}" in offsets
