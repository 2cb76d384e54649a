"""Transactions of a server that takes messages: half messages, their ends, producers asked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker import transactions as rules
from rmqctl.broker.settings import Settings as StoreSettings
from rmqctl.engine.put import transactions as ended
from rmqctl.engine.put.message import Outgoing
from rmqctl.ext.serve.broker import Broker
from rmqctl.ext.serve.producing import checking, transactions
from rmqctl.ext.serve.remoting.client import Client
from rmqctl.ext.serve.remoting.codes import CHECK_TRANSACTION_STATE
from rmqctl.ext.serve.remoting.command import Command
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats.local import properties
from rmqctl.formats.local.message import Record, decode
from rmqctl.formats.local.properties import HALF_TOPIC, OP_HALF_TOPIC
from rmqctl.parse_values import Address, parse_address
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder, Runner
from tests.serve.running import Running, empty_store, serving
from tests.serve.test_writable import pulled, sent

WRITABLE = ServeSettings(writable=True)
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def at_once(broker: Broker) -> None:
    """Rounds follow each other, and messages need not be old."""
    assert isinstance(broker.checks, checking.Checks)
    broker.checks.every_s, broker.checks.immunity_ms = 0.05, 0


@pytest.fixture(params=["4.9.3", "5.3.3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return empty_store(tmp_path / "store", request.param)


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
        command = client.unsolicited.pop(0) if client.unsolicited else client.receive()
        if command.code == CHECK_TRANSACTION_STATE and not command.is_response:
            return command


def stored(root: Path, topic: str, queue: int = 0) -> list[Record]:
    """What lies in a queue of a store that nobody writes to."""
    with Store.open(root) as store:
        queue_state = store.queues.find(topic, queue)
        if queue_state is None or not queue_state.exists:
            return []
        return [record for _, rows in queue_state.pages(0, queue_state.disk_end)
                for place in rows["physical_offset"].tolist()
                if (record := store.log.record_at(place)) is not None]


def properties_of(record: Record) -> dict[str, str]:
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
        assert (properties_of(half)["REAL_TOPIC"], properties_of(half)["REAL_QID"]) == ("orders",
                                                                                        "1")
        assert end(client, kept).code == 0
        assert end(client, gone, ROLLBACK).code == 0
        (record,) = pulled(client, "orders", 1)
        assert (record.body, record.sys_flag, record.prepared_transaction_offset) == (
            b"kept", COMMIT, half.physical_offset)
        assert record.properties == half.properties
        wait(lambda: sum(map(len, map(rules.ended_by, pulled(client, OP_HALF_TOPIC)))) == 2)
        bodies = [bytes(record.body) for record in pulled(client, OP_HALF_TOPIC)]
        assert b",".join(bodies).replace(b",,", b",") in (b"0,1", b"0,1,")
        assert {bytes(record.properties).rstrip(b"\2") for record in pulled(client, OP_HALF_TOPIC)
                } == {b"WAIT\1true\2TAGS\1d"}  # as brokers of both versions write it


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
            assert properties_of(record)["TRANSACTION_CHECK_TIMES"] == str(number)
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
        time.sleep(0.25)
        count = len(pulled(client, HALF_TOPIC))
        time.sleep(0.25)
        assert len(pulled(client, HALF_TOPIC)) == count
        assert len(pulled(client, "orders", 1)) == 1
        position = client.ask("QUERY_CONSUMER_OFFSET", consumerGroup=rules.READER,
                              topic=HALF_TOPIC, queueId=0)
        assert position.ext["offset"] == str(count)


def test_what_nobody_answers_for_is_given_up(served: Running, root: Path, rmqctl: Runner,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MAX_CHECKS", 2)
    with served.client() as client:
        prepared(client, b"lost", "k\x01v")
        wait(lambda: bool(pulled(client, rules.GIVEN_UP_TOPIC)))
        (record,) = pulled(client, rules.GIVEN_UP_TOPIC)
        assert (record.body, properties_of(record)["TRANSACTION_CHECK_TIMES"]) == (b"lost", "2")
        time.sleep(0.25)
        assert len(pulled(client, rules.GIVEN_UP_TOPIC)) == 1
        assert len(pulled(client, HALF_TOPIC)) == 3


def test_a_producer_may_ask_to_be_left_alone(served: Running) -> None:
    with served.client() as client:
        ready(client)
        half = prepared(client, b"slow", f"{rules.IMMUNITY}\x0130")
        wait(lambda: len(pulled(client, HALF_TOPIC)) > 2)
        assert not client.unsolicited
        copies = pulled(client, HALF_TOPIC)
        assert {properties_of(record).get("TRAN_PREPARED_QUEUE_OFFSET")
                for record in copies} == {None, "0"}
        assert end(client, half).code == 0
        assert [record.body for record in pulled(client, "orders", 1)] == [b"slow"]
        time.sleep(0.25)
        count = len(pulled(client, HALF_TOPIC))
        time.sleep(0.25)
        assert len(pulled(client, HALF_TOPIC)) == count  # its copy is taken for ended, too


def test_a_restart_goes_on_with_it(root: Path, rmqctl: Runner, monkeypatch: pytest.MonkeyPatch
                                   ) -> None:
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        halves = [prepared(client, b"%d" % number) for number in range(4)]
        end(client, halves[1])
        end(client, halves[2], ROLLBACK)
    rmqctl("verify", str(root)).expect(0)
    ops = stored(root, OP_HALF_TOPIC)
    assert [offset for message in ops for offset in rules.ended_by(message)] == [1, 2]
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        assert end(client, halves[0]).code == 0
    with serving(root, settings=WRITABLE, then=[at_once]) as served, served.client() as client:
        ready(client)
        question = asked(client)
        assert decode(question.body).body == b"3"
        answer = Command(0, ext={"msgId": question.ext["offsetMsgId"],
                                 "queueOffset": question.ext["tranStateTableOffset"]})
        assert end(client, answer, asked=True).code == 0
        bodies = [record.body for record in pulled(client, "orders", 1)]
        assert bodies == [b"1", b"0", b"3"]
    rmqctl("verify", str(root)).expect(0)
    offsets = json.loads((root / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert offsets[f"{HALF_TOPIC}@{rules.READER}"]["0"] >= 4
    assert f"{OP_HALF_TOPIC}@{rules.READER}" in offsets


def test_it_goes_on_after_kill_9(root: Path, rmqctl: Runner) -> None:
    """A broker's rows and positions are lost with it, half messages and their ends are not."""
    def start() -> tuple[subprocess.Popen[str], Address]:
        process = subprocess.Popen(
            [sys.executable, "-m", "rmqctl", "serve", str(root), "--writable", "--listen",
             "127.0.0.1:0", "--idle-exit", "20s", "-o", "jsonl"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, parse_address(json.loads(process.stdout.readline())["ready"])

    process, address = start()
    try:
        with Client(address) as client:
            halves = [prepared(client, b"%d" % number) for number in range(3)]
            end(client, halves[0])
    finally:
        process.kill()
        process.wait()
    with serving(root, settings=WRITABLE, then=[at_once]) as served, served.client() as client:
        ready(client)
        assert end(client, halves[1]).code == 0
        seen = set()
        while not {b"2"} <= seen:
            question = asked(client)
            seen.add(decode(question.body).body)
            end(client, Command(0, ext={"msgId": question.ext["offsetMsgId"], "queueOffset":
                                        question.ext["tranStateTableOffset"]}), asked=True)
        bodies = [record.body for record in pulled(client, "orders", 1)]
        assert set(bodies) == {b"0", b"1", b"2"}
    rmqctl("verify", str(root)).expect(0)


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_records_are_those_that_the_engine_wrote(version: str, golden: GoldenFolder) -> None:
    """Half messages and commits of a set, made here from what the producer sent."""
    base = golden(f"{version}/transaction")
    settings = StoreSettings(version=version)
    lines = [json.loads(line) for line in (base / "input.jsonl").read_text().splitlines()]
    count = 0
    with Store.open(base / "store") as store:
        for line in lines:
            if line["op"] != "put" or line["topic"] != HALF_TOPIC:
                continue
            given = dict(line["properties"])
            topic, queue = given.pop("REAL_TOPIC"), int(given.pop("REAL_QID"))
            text = properties.build(given)
            wanted = store.log.record_at(line["result"]["wroteOffset"])
            assert wanted is not None
            record = transactions.half(Outgoing(topic, b"", text, queue, sys_flag=4), settings,
                                       lambda: "unused")
            expected = properties.parse(wanted.properties.decode())
            # The set was put into the store itself: what a broker does before that is not in it.
            own = {"CLUSTER", "UNIQ_KEY", "__transactionId__", "WAIT"}
            names = [[name for name in parsed if name not in own]
                     for parsed in (properties.parse(record.properties), expected)]
            assert names[0] == names[1]
            assert (record.topic, record.queue_id, record.sys_flag) == (HALF_TOPIC, 0, 0)
            assert ended.rebuilt(wanted, settings).encode() == wanted.properties
            count += 1
    assert count == 20


def test_a_brokers_store_goes_on_here(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    """What the engine left half done is asked for, what it ended is not."""
    root = golden_copy("4.9.3/transaction/store")
    ended = {offset for message in stored(root, OP_HALF_TOPIC)
             for offset in rules.ended_by(message)}
    waiting = [message for message in stored(root, HALF_TOPIC) if message.queue_offset not in ended]
    assert waiting
    assert ended
    with serving(root, settings=WRITABLE, then=[at_once]) as served, served.client() as client:
        wait(lambda: len(pulled(client, rules.GIVEN_UP_TOPIC)) == len(waiting))
        given_up = pulled(client, rules.GIVEN_UP_TOPIC)  # they are years old
        assert [record.body for record in given_up] == [message.body for message in waiting]
        assert [properties_of(record)["REAL_TOPIC"] for record in given_up] == [
            properties_of(message)["REAL_TOPIC"] for message in waiting]
        checks = served.brokers[0].checks
        assert isinstance(checks, checking.Checks)
        wait(lambda: checks._at == {HALF_TOPIC: 20, OP_HALF_TOPIC: len(stored(root, OP_HALF_TOPIC))}
             )
    rmqctl("verify", str(root)).expect(0)


def test_positions_beyond_the_end_are_taken_back(root: Path) -> None:
    config = root / "config"
    config.mkdir(exist_ok=True)
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": {
        f"{topic}@{rules.READER}": {"0": 99} for topic in (HALF_TOPIC, OP_HALF_TOPIC)}}))
    with serving(root, settings=WRITABLE, then=[at_once]) as served, served.client() as client:
        ready(client)
        time.sleep(0.2)
        prepared(client, b"half")
        assert decode(asked(client).body).body == b"half"


def test_many_half_messages_are_gone_through_in_windows(
        served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_WINDOW", 7)
    with served.client() as client:
        checks = served.brokers[0].checks
        assert isinstance(checks, checking.Checks)
        checks.every_s = checks._next = 1e9
        halves = [prepared(client, b"%d" % number) for number in range(100)]
        for number, message in enumerate(halves):
            if number % 10:
                end(client, message, ROLLBACK)
        wait(lambda: not checks.transactions.ending)
        ready(client)
        checks._next = 0.1
        bodies = [int(decode(asked(client).body).body) for _ in range(10)]
        assert bodies == list(range(0, 100, 10))
        wait(lambda: checks._task is None)
        assert checks._at[HALF_TOPIC] == 100
        assert checks._at[OP_HALF_TOPIC] == served.brokers[0].queue(OP_HALF_TOPIC, 0).end
        assert served.brokers[0].queue(HALF_TOPIC, 0).end == 110


def test_what_no_half_message_should_be_harms_nobody(served: Running) -> None:
    """A 4.9.3 broker takes messages for these topics from anybody."""
    with served.client() as client:
        ready(client)
        for topic in (HALF_TOPIC, OP_HALF_TOPIC):
            for text in ("", "TAGS\x01d", "TRANSACTION_CHECK_TIMES\x01x\x02PGROUP\x01PG",
                         "PGROUP\x01PG\x02REAL_TOPIC\x01../x\x02REAL_QID\x011",
                         "CHECK_IMMUNITY_TIME_IN_SECONDS\x01y\x02PGROUP\x01PG",
                         "CHECK_IMMUNITY_TIME_IN_SECONDS\x0199\x02TRAN_PREPARED_QUEUE_OFFSET\x01z"):
                sent(client, topic, b"1" * 30 + b",x,-1,99999999999999999999", text=text)
        for body in (b"," * 100_000, b"99999999"):
            sent(client, OP_HALF_TOPIC, body, text="TAGS\x01d")
        half = prepared(client, b"good")
        assert decode(asked(client).body).body == b"good"
        end(client, half, ROLLBACK)
        checks = served.brokers[0].checks
        assert isinstance(checks, checking.Checks)
        wait(lambda: checks._at.get(OP_HALF_TOPIC) == served.brokers[0].queue(
            OP_HALF_TOPIC, 0).end > 0)
        assert not served.events or all(event.get("event") != "unchecked"
                                        for event in served.events)
