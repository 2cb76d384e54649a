"""The service for clients of RocketMQ 5, call by call: what is received, acked, sent."""

from __future__ import annotations

import gzip
import hmac
import json
import queue
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc

from rmqctl.broker.settings import Settings as StoreSettings
from rmqctl.engine.config.create import create_store
from rmqctl.ext.serve.access import Access
from rmqctl.ext.serve.consuming import popping
from rmqctl.ext.serve.grpc import sessions
from rmqctl.ext.serve.grpc.protocol import MESSAGES, SERVICE
from rmqctl.ext.serve.remoting.codes import Failed
from rmqctl.ext.serve.remoting.command import Command
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats.local import properties
from rmqctl.formats.local.message import decode
from rmqctl.store.objects import plain_body
from rmqctl.store.store import Store
from rmqctl.testing import RocketMQ
from tests.conftest import GoldenFolder
from tests.serve.running import Running, serving, until
from tests.serve.stubs import NONE, OK, Stub
from tests.serve.test_pull import expected

BAD_HANDLE, FORBIDDEN = 40013, 40300
WAITS: dict[str, tuple[Any, list[float]]] = {
    "STEPS": ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [200, 3500]}}, [0.2, 3.5]),
    "DOUBLE": ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 500}}, [0.5, 7200, 2]),
    "NEGATIVE": ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": -1}}, [5, 7200, 2]),
    "NONE": ("often", [1, 5]), "EMPTY": ({"customizedRetryPolicy": {"next": []}}, [1, 5]),
    "HUGE": ({"customizedRetryPolicy": {"next": [1, 1 << 70]}}, [1, 5])}
"""Retry policies of groups, and the first seconds of their clients; initial, longest, factor."""
Wanted = dict[int, list[bytes]]


@pytest.fixture
def root(golden: GoldenFolder) -> Path:
    return golden("5.3.3/basic") / "store"


def bodies(root: Path, topic: str | None = None) -> tuple[str, Wanted]:
    """A topic, by itself the largest, and the bodies of its queues as their producers sent them."""
    wanted = expected(root)
    topic = topic or max(wanted, key=lambda key: len(wanted[key]))[0]
    return topic, {queue_id: [plain_body(record.sys_flag, record.body)[0]
                              for record in map(decode, messages)]
                   for (name, queue_id), messages in wanted.items() if name == topic and messages}


def drained(stub: Stub, **wish: Any) -> Wanted:
    """All messages there are, acked."""
    bodies_by_queue: dict[int, list[bytes]] = defaultdict(list)
    while messages := stub.got(**wish):
        for message in messages:
            bodies_by_queue[message.system_properties.queue_id].append(message.body)
        assert stub.ack(*messages) == OK
    return dict(bodies_by_queue)


@pytest.fixture(autouse=True)
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call gets all that it wants at once, also on a slow machine."""
    monkeypatch.setattr(popping, "TURN_S", 5)


@pytest.fixture
def served(root: Path) -> Iterator[Running]:
    with serving(root, grpc=True) as running:
        yield running


@pytest.fixture
def stub(served: Running, root: Path) -> Iterator[Stub]:
    with Stub(served, bodies(root)[0]) as stub:
        yield stub


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Running]:
    """An empty store that takes messages."""
    create_store(tmp_path / "store", StoreSettings(
        version="5.3.3", commitlog_file_size=8 << 20, index_slots=100, index_max=400))
    group = {"groupName": "ORDERED", "consumeMessageOrderly": True, "retryMaxTimes": 1}
    (tmp_path / "store" / "config" / "subscriptionGroup.json").write_text(json.dumps(
        {"subscriptionGroupTable": {"ORDERED": group, "TWICE": {
            "groupName": "TWICE", "retryMaxTimes": 1}, "OFF": {
            "groupName": "OFF", "consumeEnable": False}, **{
                name: {"groupName": name, "groupRetryPolicy": policy}
                for name, (policy, _) in WAITS.items()}}}))
    with serving(tmp_path / "store", settings=ServeSettings(writable=True), grpc=True) as running:
        yield running


def position(served: Running, stub: Stub, queue_id: int = 0) -> int | None:
    return served.brokers[0].positions.get(stub.group["name"], stub.topic["name"], queue_id)


# -- receiving ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["4.9.3/basic/store", "5.3.3/basic/store", "5.3.3/ipv6/store",
                                  "5.3.3/crash-crc/before"])
def test_every_message_once_and_as_it_was_sent(golden: GoldenFolder, name: str) -> None:
    version, kind, state = name.split("/")
    root = golden(f"{version}/{kind}") / state
    with serving(root, grpc=True) as served:
        for topic in {topic for topic, _ in expected(root)}:
            _, wanted = bodies(root, topic)
            with Stub(served, topic) as stub, served.client() as remoting:
                assert drained(stub) == wanted
                for queue_id in wanted:
                    # A client of the other protocol goes on where this group stands.
                    answer = remoting.ask("QUERY_CONSUMER_OFFSET", consumerGroup="G", topic=topic,
                                          queueId=queue_id)
                    assert int(answer.ext["offset"]) == served.brokers[0].queue(
                        topic, queue_id).end


def test_a_message_has_what_its_producer_and_the_store_say(stub: Stub, root: Path) -> None:
    records = [decode(raw) for (topic, queue_id), raws in expected(root).items()
               for raw in raws if topic == stub.topic["name"]]
    by_place = {(record.queue_id, record.queue_offset): record for record in records}
    for message in stub.got():
        system = message.system_properties
        record = by_place[system.queue_id, system.queue_offset]
        parsed_properties = properties.parse(record.properties.decode())
        assert system.message_id == parsed_properties.get("UNIQ_KEY", record.message_id)
        assert system.tag == parsed_properties.get("TAGS", "")
        assert list(system.keys) == properties.split_keys(parsed_properties.get("KEYS"))
        assert system.born_timestamp.ToMilliseconds() == record.born_timestamp
        assert system.delivery_attempt == record.reconsume_times + 1
        assert not {"UNIQ_KEY", "TAGS", "KEYS", "WAIT"} & set(message.user_properties)
        assert set(message.user_properties) <= set(parsed_properties)


def test_damaged_messages_are_passed_over(root: Path, tmp_path: Path) -> None:
    topic, wanted = bodies(root)
    shutil.copytree(root, tmp_path / "store")
    queue_id = min(wanted)
    broken = decode(expected(root)[topic, queue_id][1])
    with Store.open(tmp_path / "store") as store:
        file = store.log.file_of(broken.physical_offset)
    assert file is not None
    data = bytearray(Path(file.path).read_bytes())
    data[data.index(broken.body, broken.physical_offset - file.base)] ^= 1
    Path(file.path).write_bytes(data)
    with serving(tmp_path / "store", grpc=True) as served, Stub(served, topic) as stub:
        messages = drained(stub)
        del wanted[queue_id][1]
        assert messages == wanted
        assert served.brokers[0].skipped == 1


def test_what_is_not_acked_comes_again(stub: Stub, served: Running) -> None:
    (first,) = stub.got(most=1)
    queue_id = first.system_properties.queue_id
    attempt = first.system_properties.delivery_attempt
    assert position(served, stub, queue_id) in (None, 0)
    old = first.system_properties.receipt_handle
    stub.hide(first, 0)
    assert stub.code("AckMessage", topic=stub.topic, group=stub.group, entries=[
        {"receipt_handle": old}]) == BAD_HANDLE
    (again,) = stub.got(most=1)
    assert again.system_properties.message_id == first.system_properties.message_id
    assert again.system_properties.delivery_attempt == attempt + 1
    assert stub.ack(first) == BAD_HANDLE
    assert stub.ack(again) == stub.ack(again) == stub.ack(first) == OK
    assert position(served, stub, queue_id) == 1


def test_a_position_is_that_of_the_first_message_not_acked(stub: Stub, served: Running) -> None:
    messages = stub.got(most=5)
    queue_id = messages[0].system_properties.queue_id
    assert [message.system_properties.queue_offset for message in messages] == list(range(5))
    stub.ack(messages[1], messages[3])
    assert position(served, stub, queue_id) is None
    stub.ack(messages[0])
    assert position(served, stub, queue_id) == 2
    stub.ack(messages[2], messages[4])
    assert position(served, stub, queue_id) == 5


def test_a_position_that_others_set_counts(stub: Stub, served: Running, root: Path) -> None:
    _, wanted = bodies(root)
    messages = stub.got()
    assert stub.ack(*messages[:2]) == OK
    with served.client() as remoting:
        for queue_id, count in wanted.items():
            remoting.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="G", topic=stub.topic["name"],
                         queueId=queue_id, commitOffset=len(count) - 1)
    assert drained(stub) == {queue_id: count[-1:] for queue_id, count in wanted.items()}
    with pytest.raises(AssertionError, match="receipt handle"):
        stub.hide(messages[3], 1)


@pytest.mark.parametrize("handle", [
    "", " ", "broker-a", "broker-a 0 0 0 0", "broker-b 0 0 0 0", "broker-a 9 0 0 0",
    "broker-a 0 0 0 " + "9" * 20, "broker-a " + "9" * 50_000, "broker-a 0 0 0 ٣", "x" * 100_000])
def test_handles_that_are_none_are_refused(stub: Stub, handle: str) -> None:
    stub.got(most=1)
    assert stub.code("AckMessage", topic=stub.topic, group=stub.group,
                     entries=[{"receipt_handle": handle}]) == BAD_HANDLE
    for method in ("ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"):
        assert stub.code(method, topic=stub.topic, group=stub.group,
                         receipt_handle=handle) == BAD_HANDLE


def test_filters_compare_the_tags_themselves(written: Running) -> None:
    with Stub(written, "T") as stub:
        stub.send(*(stub.message(tag.encode(), tag=tag) for tag in ("Aa", "BB", "C")))
        assert [message.body
                for message in stub.got(tags="BB || D")] == [b"BB"]  # Aa has the same hash
        stub.group = {"name": "SQL"}
        assert [message.body for message in stub.got(tags="TAGS IN ('C', 'D')", kind=2)] == [b"C"]
        assert stub.receive(tags="TAGS IN (", kind=2)[0] == 40010
        assert stub.receive(kind=9)[0] == stub.receive(tags="x" * 70_000)[0] == 40010


def test_who_waits_is_answered_in_time(written: Running) -> None:
    with Stub(written, "T") as stub:
        stub.send()
        stub.ack(*stub.got())
        begun = time.monotonic()
        assert stub.receive(wait=20, timeout=3) == (NONE, [])
        assert 0.5 < time.monotonic() - begun < 3
        waiting = stub.receiving(wait=10)
        stub.send(stub.message(b"late"))
        assert [message.message.body for message in waiting
                if message.HasField("message")] == [b"late"]
        assert time.monotonic() - begun < 30


def test_a_client_that_goes_while_it_waits_leaves_nothing(stub: Stub, served: Running) -> None:
    while messages := stub.got():
        stub.ack(*messages)
    waiting = stub.receiving(wait=10)
    broker = served.brokers[0]
    until(lambda: bool(broker.waiting))
    waiting.cancel()
    until(lambda: not broker.waiting)
    assert not broker.waiting


def test_messages_in_order_wait_for_those_before(written: Running) -> None:
    with Stub(written, "T", "ORDERED") as stub:
        for number in range(4):
            stub.send(stub.message(b"%d" % number, message_group="M"))
        lost = stub.got(most=2, attempt="a")
        assert stub.got(attempt="b") == []
        first, second = stub.got(most=2, attempt="a")  # a call again whose answer was lost
        assert [first.body, second.body] == [message.body for message in lost] == [b"0", b"1"]
        assert first.system_properties.delivery_attempt == 1
        assert first.system_properties.message_group == "M"
        assert stub.got() == []
        stub.ack(second)
        assert stub.got() == []
        stub.hide(first, 0)
        (again,) = stub.got(most=1)
        assert (again.body, again.system_properties.delivery_attempt) == (b"0", 2)
        waiting = stub.receiving(wait=10)
        stub.ack(again)
        assert [message.message.body for message in waiting
                if message.HasField("message")] == [b"2", b"3"]


def test_what_fails_too_often_is_a_dead_letter(written: Running) -> None:
    with Stub(written, "T", "TWICE") as stub, written.client() as remoting, stub.consuming():
        stub.send(stub.message(b"bad"))
        for attempt in (1, 2):
            (message,) = stub.got()
            assert message.system_properties.delivery_attempt == attempt
            stub.hide(message, 0)
        assert stub.got() == []
        assert position(written, stub, message.system_properties.queue_id) == 1
        assert remoting.pull("%DLQ%TWICE", 0, 0).code == 0


def test_a_consumer_gives_a_message_up(stub: Stub, served: Running) -> None:
    with stub.consuming(), served.client() as remoting:
        (message,) = stub.got(most=1)
        forward = {"topic": stub.topic, "group": stub.group,
                   "receipt_handle": message.system_properties.receipt_handle}
        assert stub.code("ForwardMessageToDeadLetterQueue", **forward) == OK
        assert stub.code("ForwardMessageToDeadLetterQueue", **forward) == BAD_HANDLE
        assert remoting.pull("%DLQ%G", 0, 0).code == 0
        assert position(served, stub, message.system_properties.queue_id) == 1


def test_what_is_kept_for_a_client_comes_again_when_it_is_gone(
        stub: Stub, served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popping, "RENEWED_S", 0.2)
    monkeypatch.setattr(popping, "_SOON_S", 0.0)
    with stub.consuming(), Stub(served, stub.topic["name"], name="other") as other:
        monkeypatch.setattr("rmqctl.ext.serve.grpc.consuming.RENEWED_S", 0.2)
        (message,) = stub.got(most=1, renew=True)
        time.sleep(0.3)
        key = message.system_properties.message_id
        assert key not in {message.system_properties.message_id for message in other.got()}
        assert stub.code("NotifyClientTermination", group=stub.group) == OK
        assert key in {message.system_properties.message_id for message in other.got()}


def test_retries_of_a_5x_broker_belong_to_the_topic(written: Running) -> None:
    with Stub(written, "%RETRY%G_T") as other:
        assert other.send(other.message(b"again")).status.code == OK
    with Stub(written, "T") as stub:
        stub.send(stub.message(b"new"))
        messages = stub.got()
        assert {message.body for message in messages} == {b"again", b"new"}
        assert {message.topic.name for message in messages} == {"T"}
        assert stub.ack(*messages) == OK


def test_tables_are_bounded(stub: Stub, served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popping, "MAX_FLYING", 3)
    until(lambda: stub.receive()[0] == 42900)
    assert served.brokers[0].pops.flying == 3
    monkeypatch.setattr(popping, "MAX_FLYING", 1000)
    monkeypatch.setattr(popping, "MAX_QUEUES", 3)
    stub.group = {"name": "OTHER"}
    assert stub.receive()[0] == 42900
    with stub.consuming() as (answer, _):
        assert answer.status.code == OK
    assert stub.code("NotifyClientTermination") == OK
    monkeypatch.setattr(sessions, "MAX_BYTES", 20)
    with stub.consuming() as (answer, _):
        assert answer.status.code == 42900
    monkeypatch.setattr(sessions, "MAX_BYTES", 10_000)
    assert served.server.proxy._endpoint.sessions._size == 0
    monkeypatch.setattr(sessions, "MAX_CLIENTS", 0)
    with stub.consuming() as (answer, _):
        assert answer.status.code == 42900


def test_what_cannot_be_read_now_comes_again_later(stub: Stub, served: Running,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = stub.got(most=1)
    stub.hide(message, 0)
    real = popping.pull

    def broken(*_: Any) -> None:
        raise Failed(1, "the disk is gone")

    monkeypatch.setattr(popping, "pull", broken)
    assert stub.receive(most=1)[0] == 50001
    monkeypatch.setattr(popping, "pull", real)
    (again,) = stub.got(most=1)
    assert again.system_properties.message_id == message.system_properties.message_id


def test_a_stream_that_is_not_read_ends(written: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqctl.ext.serve.grpc.server._TAKEN_S", 0.3)
    monkeypatch.setattr(popping, "_SOON_S", 0.0)
    with Stub(written, "T") as stub:
        stub.send(*(stub.message(bytes(1 << 20)) for _ in range(4)))
        proxy = written.server.proxy
        assert proxy is not None
        waiting = stub.receiving()
        until(lambda: proxy._endpoint.unsent.taken > 0)
        until(lambda: proxy._endpoint.unsent.taken == 0)
        waiting.cancel()
        assert len(drained(stub)) >= 1


# -- routes and clients -------------------------------------------------------------------------


def test_routes(stub: Stub, served: Running, root: Path) -> None:
    answer = stub.call("QueryRoute", topic=stub.topic)
    assert answer.status.code == OK
    assert {queue.id for queue in answer.message_queues} >= set(bodies(root)[1])
    queue = answer.message_queues[0]
    assert (queue.broker.name, queue.permission) == ("broker-a", 4)
    assert f"{queue.broker.endpoints.addresses[0].host}:" + str(
        queue.broker.endpoints.addresses[0].port) == str(served.server.proxy.address)
    seen = {"scheme": 3, "addresses": [{"host": "front", "port": 80}]}
    answer = stub.call("QueryRoute", topic=stub.topic, endpoints=seen)
    assert answer.message_queues[0].broker.endpoints.addresses[0].host == "front"
    for name, code in (("nobody", 40402), ("", 40002), ("x" * 300, 40002), ("a\0b", 40002)):
        assert stub.code("QueryRoute", topic={"name": name}) == code
    (only,) = stub.call("QueryAssignment", topic=stub.topic, group=stub.group).assignments
    assert only.message_queue.id == -1


def test_each_store_is_a_broker(golden: GoldenFolder) -> None:
    roots = [golden("5.3.3/basic") / "store", golden("4.9.3/basic") / "store"]
    topics = [bodies(root) for root in roots]
    with serving(*roots, grpc=True) as served, Stub(served, topics[1][0]) as stub:
        names = {queue.broker.name for queue in stub.call("QueryRoute", topic=stub.topic
                                                          ).message_queues}
        assert "broker-b" in names
        assert drained(stub, broker="broker-b") == topics[1][1]
        assert stub.receive(broker="nobody")[0] == FORBIDDEN


def test_a_client_says_what_it_is(stub: Stub, served: Running) -> None:
    assert stub.code("Heartbeat", group=stub.group) == 40015
    with stub.consuming("A||B") as (answer, _), served.client() as remoting:
        assert answer.status.code == OK
        consumer = answer.settings.subscription
        assert (consumer.fifo, consumer.receive_batch_size) == (False, 32)
        assert consumer.long_polling_timeout.seconds == 20
        assert answer.settings.backoff_policy.max_attempts == 17
        assert len(answer.settings.backoff_policy.customized_backoff.next) == 18
        assert answer.settings.metric.on is False
        assert stub.code("Heartbeat", group=stub.group) == OK
        seen = remoting.ask("GET_CONSUMER_CONNECTION_LIST", consumerGroup="G").json()
        assert seen["connectionSet"][0]["clientId"] == "me"
        assert seen["subscriptionTable"][stub.topic["name"]]["tagsSet"] == ["A", "B"]
        assert stub.code("NotifyClientTermination", group=stub.group) == OK
        assert remoting.ask("GET_CONSUMER_CONNECTION_LIST", consumerGroup="G").code == 206
        assert stub.code("Heartbeat", group=stub.group) == 40015
    with stub.telemetry(client_type=1, publishing={"topics": [stub.topic]}) as (answer, _):
        assert answer.settings.publishing.max_body_size == 4 << 20
        assert answer.settings.backoff_policy.max_attempts == 3
    with stub.telemetry(client_type=1) as (answer, _):
        assert answer.status.code == 40015


@pytest.mark.parametrize("group", WAITS)
def test_a_group_waits_between_attempts_as_its_configuration_says(written: Running, group: str
                                                                  ) -> None:
    with Stub(written, "T", group) as stub, stub.consuming() as (answer, _):
        policy = answer.settings.backoff_policy
        if policy.HasField("exponential_backoff"):
            exponential_backoff = policy.exponential_backoff
            seconds = [*map(_seconds, (exponential_backoff.initial, exponential_backoff.max)),
                       exponential_backoff.multiplier]
        else:
            seconds = list(map(_seconds, policy.customized_backoff.next))[:2]
        assert seconds == WAITS[group][1]


def _seconds(span: Any) -> float:
    return float(span.seconds + span.nanos / 1e9)


def test_a_group_that_may_not_consume_gets_nothing(written: Running) -> None:
    with Stub(written, "T", "OFF") as stub:
        stub.send()
        assert stub.receive() == (FORBIDDEN, [])


def test_a_client_that_is_not_heard_of_is_gone(stub: Stub, served: Running,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = served.server.proxy
    assert proxy is not None
    with stub.consuming():
        served.do(proxy.expire)
        assert "G" in served.brokers[0].groups.consumers
    until(lambda: all(not session.streams
                      for session in proxy._endpoint.sessions.by_client.values()))
    assert proxy.in_use
    monkeypatch.setattr(sessions, "AWAY_S", 0.0)
    served.do(proxy.expire)
    assert "G" not in served.brokers[0].groups.consumers
    until(lambda: not proxy.in_use)


def test_calls_without_a_client_id_and_calls_that_are_not_there(served: Running) -> None:
    with Stub(served, "T", name="") as nobody:
        for method in ("QueryRoute", "Heartbeat", "AckMessage", "SendMessage", "EndTransaction"):
            assert nobody.code(method) == 40017
        assert nobody.receive()[0] == 40017
        with nobody.consuming() as (answer, _):
            assert answer.status.code == 40017
    with Stub(served, "T") as stub:
        for method in ("SyncLiteSubscription",):
            assert stub.code(method) == 50100
        for method in ("PullMessage", "QueryOffset", "GetOffset", "UpdateOffset", "Nothing"):
            with pytest.raises(grpc.RpcError) as caught:
                stub.channel.unary_unary(f"/apache.rocketmq.v2.MessagingService/{method}")(b"")
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


# -- sending ------------------------------------------------------------------------------------


def test_a_store_that_is_only_read_takes_nothing(stub: Stub) -> None:
    answer = stub.send()
    assert (answer.status.code, answer.status.message) == (FORBIDDEN, "the broker is read-only")


def test_what_is_sent_is_received(written: Running) -> None:
    with Stub(written, "T") as stub:
        assert len(stub.call("QueryRoute", topic=stub.topic).message_queues) == 4
        assert stub.receive() == (NONE, [])
        message = stub.message(b"body", tag="A", keys=["k1", "k2"], message_group="")
        answer = stub.send(message | {"user_properties": {"mine": "yes"}})
        assert (answer.status.code, answer.entries[0].message_id) == (OK, "ID")
        (record,) = stub.got()
        system = record.system_properties
        assert (record.body, system.tag, list(system.keys)) == (b"body", "A", ["k1", "k2"])
        assert record.user_properties["mine"] == "yes"
        assert (system.message_id, system.born_host, system.message_type) == ("ID", "127.0.0.1", 1)
        many = stub.send(*(stub.message(b"%d" % number) for number in range(5)))
        assert [entry.status.code for entry in many.entries] == [OK] * 5


@pytest.mark.parametrize(("change", "code"), [
    ({"body": bytes((4 << 20) + 1)}, 41301), ({"body": b""}, 41302),
    ({"user_properties": {"a": "x" * 32_767}}, 43101),
    ({"user_properties": {"a": "x" * 65_536}}, 43101),
    ({"user_properties": {"KEYS": "x"}}, 40007),
    ({"user_properties": {"a": "x\x02UNIQ_KEY\x01y"}}, 40007),
    ({"system_properties": {}}, 40009),
    ({"system_properties": {"message_id": "x", "tag": "a|b"}}, 40004),
    ({"system_properties": {"message_id": "x", "keys": ["a\1"]}}, 40005),
    ({"system_properties": {"message_id": "x", "message_group": "\2"}}, 40006),
    ({"system_properties": {"message_id": "x", "body_encoding": 2}}, 40016),
    ({"system_properties": {"message_id": "x", "delivery_timestamp": {"seconds": 1 << 40}}}, 40012),
    ({"topic": {"name": "no topic"}}, 40402),
    ({"topic": {"name": ""}}, 40002),
])
def test_messages_that_are_refused(written: Running, change: dict[str, Any], code: int) -> None:
    with Stub(written, "T") as stub:
        assert stub.send(stub.message() | change).status.code == code
        assert stub.call("SendMessage").status.code == 40016
        assert stub.send(stub.message(), stub.message() | {"topic": {"name": "U"}}
                         ).status.code == 40016


def test_compressed_bodies_are_stored_as_they_were(written: Running) -> None:
    with Stub(written, "T") as stub:
        for packed in (gzip.compress(b"plain"), zlib.compress(b"plain")):
            assert stub.send(stub.message(packed, body_encoding=2)).status.code == OK
        assert [message.body for message in stub.got()] == [b"plain"] * 2
        bomb = gzip.compress(bytes(64 << 20))
        assert stub.send(stub.message(bomb, body_encoding=2)).status.code == 41301
        assert stub.send(stub.message(packed[:-3], body_encoding=2)).status.code == 40016
        many = [stub.message(zlib.compress(bytes(4 << 20)), body_encoding=2)] * 5
        assert stub.send(*many).status.code == 41301


def test_a_message_group_stays_in_one_queue(written: Running) -> None:
    with Stub(written, "T") as stub:
        for number in range(12):
            stub.send(stub.message(b"%d" % number, message_group=f"M{number % 3}"))
        queues = defaultdict(set)
        for message in stub.got():
            queues[message.system_properties.message_group].add(message.system_properties.queue_id)
        assert sorted(queues) == ["M0", "M1", "M2"]
        assert all(len(queue) == 1 for queue in queues.values())


def test_delayed_messages_come_when_they_are_due(written: Running) -> None:
    with Stub(written, "T") as stub:
        due = time.time() + 0.9
        assert stub.send(stub.message(b"later", message_type=3, delivery_timestamp={
            "seconds": int(due), "nanos": int(due % 1 * 1e9)})).status.code == OK
        assert stub.got() == []
        (message,) = stub.got(wait=8)
        assert message.body == b"later"
        assert time.time() >= due


def test_a_message_is_recalled(written: Running) -> None:
    with Stub(written, "T") as stub:
        due = {"delivery_timestamp": {"seconds": int(time.time()) + 60}}
        (entry,) = stub.send(stub.message(b"later", message_type=3, **due)).entries
        topic = {"name": "T"}
        answer = stub.call("RecallMessage", topic=topic, recall_handle=entry.recall_handle)
        assert (answer.status.code, answer.message_id) == (OK, "ID")
        for handle in ("", "x", entry.recall_handle[:-9]):
            assert stub.call("RecallMessage", topic=topic, recall_handle=handle
                             ).status.code == 50001
        assert stub.send(stub.message()).entries[0].recall_handle == ""


def test_a_request_that_does_not_come_is_not_waited_for(
        served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqctl.ext.serve.grpc.server._READ_S", 0.2)
    with Stub(served, "T") as stub:
        pending: queue.Queue[Any] = queue.Queue()
        call = stub.channel.stream_unary(
            f"/{SERVICE}/QueryRoute", MESSAGES["QueryRouteRequest"].SerializeToString,
            MESSAGES["QueryRouteResponse"].FromString)
        answer = call(iter(pending.get, None), timeout=8, metadata=stub.metadata)
        pending.put(None)
        assert answer.status.code == 40000
        with pytest.raises(grpc.RpcError) as caught:
            stub.send(stub.message(bytes(6 << 20)))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


# -- who may call -------------------------------------------------------------------------------


def test_where_keys_are_given_calls_are_signed(root: Path) -> None:
    access = Access({"me": "secret"})
    with serving(root, settings=ServeSettings(access=access), grpc=True) as served, (
            Stub(served, bodies(root)[0])) as stub:
        assert stub.code("QueryRoute", topic=stub.topic) == 40100
        assert stub.receive()[0] == 40100
        named = stub.metadata
        for secret, code in (("wrong", 40100), ("secret", OK)):
            signed = hmac.new(secret.encode(), b"20240102T030405Z", "sha1").hexdigest()
            text = ("MQv2-HMAC-SHA1 Credential=me, SignedHeaders=x-mq-date-time, "
                    f"Signature={signed}")
            stub.metadata = (*named, ("x-mq-date-time", "20240102T030405Z"),
                             ("authorization", text))
            assert stub.code("QueryRoute", topic=stub.topic) == code
        assert drained(stub) == bodies(root)[1]
        with stub.consuming() as (answer, _):
            assert answer.status.code == OK
            assert "G" in served.brokers[0].groups.consumers


# -- transactions -------------------------------------------------------------------------------


@pytest.mark.parametrize(("resolution", "expected"), [(1, [b"half"]), (2, []), (0, [])])
def test_transactions_end_as_their_producer_says(written: Running, resolution: int,
                                                 expected: list[bytes]) -> None:
    with Stub(written, "T") as stub:
        sent = stub.send(stub.message(b"half", message_type=4)).entries[0]
        assert stub.got() == []
        ended = {"topic": stub.topic, "message_id": sent.message_id, "resolution": resolution,
                 "source": 1}
        assert stub.code("EndTransaction", transaction_id=sent.transaction_id, **ended) == OK
        assert [message.body for message in stub.got(wait=1 if expected else 0)] == expected
        for wrong in ("", "x", "broker-a.1", "broker-z.1.1", "broker-a.9.9" + "9" * 30):
            assert stub.code("EndTransaction", transaction_id=wrong, **ended) == 40008
        if resolution:
            assert stub.code("EndTransaction", transaction_id="broker-a.99999.0", **ended) == 50001


def test_a_producer_is_asked_for_its_transaction(written: Running) -> None:
    with Stub(written, "T") as stub, stub.telemetry(
            client_type=1, publishing={"topics": [stub.topic]}) as (_, stream):
        sent = stub.send(stub.message(b"half", message_type=4)).entries[0]
        broker = written.brokers[0]
        (member,) = broker.groups.producers["T"].values()
        half = broker.raw_at(int(sent.transaction_id.split(".")[1]))
        assert half is not None
        written.do(lambda: member.peer.send(Command(39, body=bytes(half), ext={
            "commitLogOffset": sent.transaction_id.split(".")[1], "tranStateTableOffset": "0"})))
        asked = next(stream).recover_orphaned_transaction_command
        assert (asked.message.body, asked.transaction_id) == (b"half", sent.transaction_id)
        assert asked.message.system_properties.message_type == 4


# -- the command --------------------------------------------------------------------------------


def test_the_command_says_where_it_listens_and_ends_at_once() -> None:
    command = [sys.executable, "-m", "rmqctl", "serve", "--temp", "--listen", "127.0.0.1:0",
               "--grpc", "127.0.0.1:0", "-o", "jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                          ) as process:
        assert process.stdout is not None
        place = json.loads(process.stdout.readline())["grpc"]
        taken = subprocess.run([*command[:-3], place], capture_output=True, text=True)
        assert (taken.returncode, taken.stderr.count("\n")) == (5, 1)
        assert f"cannot listen on {place}" in taken.stderr
        with Stub(place, "T") as stub, stub.consuming():
            waiting = stub.receiving(wait=10)
            assert stub.send().status.code == OK
            assert [message.message.body for message in waiting
                    if message.HasField("message")] == [b"hello"]
            stub.receiving(wait=10)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")


def test_calls_that_come_at_the_end_are_cut_off_too(written: Running) -> None:
    proxy = written.server.proxy
    assert proxy is not None
    proxy._ends = True
    with Stub(written, "T") as stub:
        assert not list(stub.receiving(wait=60, timeout=8))
        message = stub.call("QueryRoute", topic=stub.topic).status.message
        assert message == "the server is shutting down"


def test_a_server_for_tests_says_where_it_is_found() -> None:
    with RocketMQ("--grpc", "127.0.0.1:0") as server, Stub(server.grpc, "T") as stub:
        assert stub.send().status.code == OK
        assert [message.body for message in server.messages("T")] == [b"hello"]


def test_faults_for_clients_of_rocketmq_5() -> None:
    with RocketMQ("--grpc", "127.0.0.1:0") as server:
        topic = server.topic()
        with server.refuse_sends(1, code=2), Stub(server.grpc, topic) as stub:
            message = {"topic": {"name": topic}, "body": b"x", "system_properties": {
                "message_id": "m", "message_type": 1}}
            assert [stub.call("SendMessage", messages=[message]).status.code
                    for _ in range(2)] == [42900, OK]
            assert len(server.messages(topic)) == 1
            with server.slow(60), pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
                stub.call("QueryRoute", 0.1, topic={"name": topic})
        before = server.grpc
        server.restart()
        with Stub(before, topic, own=True) as stub:
            assert stub.code("QueryRoute", topic={"name": topic}) == OK
