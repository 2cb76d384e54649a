"""Messages given out for a while over the remoting protocol: once, and again when not acked."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqctl.broker.settings import Settings as StoreSettings
from rmqctl.engine.config.create import create_store
from rmqctl.ext.serve.consuming import popping
from rmqctl.ext.serve.limits import Quota
from rmqctl.ext.serve.remoting.client import Client, records
from rmqctl.ext.serve.remoting.command import Command
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.ext.serve.tools import assigning
from rmqctl.formats.local.message import Record, decode
from tests.conftest import GoldenFolder
from tests.serve.running import Running, serving, until
from tests.serve.test_groups import GROUP, join
from tests.serve.test_pull import expected
from tests.serve.test_writable import sent

NOTHING, NO_MESSAGE, FULL = 210, 208, 209
Places = dict[str, list[int]]


@pytest.fixture
def root(golden: GoldenFolder) -> Path:
    return golden("5.3.3/basic") / "store"


@pytest.fixture
def topic(root: Path) -> str:
    wanted = expected(root)
    return max(wanted, key=lambda key: len(wanted[key]))[0]


@pytest.fixture
def client(root: Path) -> Iterator[Client]:
    with serving(root) as served, served.client() as client:
        yield client


@pytest.fixture(params=["5.3.3"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """An empty store that takes messages."""
    create_store(tmp_path / "store", StoreSettings(
        version=request.param, commitlog_file_size=1 << 16, index_slots=100, index_max=400))
    with serving(tmp_path / "store", settings=ServeSettings(writable=True)) as running:
        yield running


def asked(topic: str, **more: object) -> dict[str, object]:
    return {"consumerGroup": "G", "topic": topic, "queueId": -1, "maxMsgNums": 32,
            "invisibleTime": 60_000, "pollTime": 0, "bornTime": 0, "initMode": 0, **more}


def pop(client: Client, topic: str, **more: object) -> Command:
    return client.ask("POP_MESSAGE", **asked(topic, **more))


def places(answer: Command) -> Places:
    """Queue offsets by what stands for the topic and by queue id, as clients read them."""
    numbers = {}
    for part in filter(None, answer.ext.get("msgOffsetInfo", "").split(";")):
        mark, queue_id, offsets = part.split(" ")
        numbers[f"{mark} {queue_id}"] = [int(part) for part in offsets.split(",")]
    return numbers


def receipt(answer: Command, topic: str, queue_id: int, offset: int, mark: str = "0"
            ) -> dict[str, object]:
    """What a client acks a message by, made as the Java client makes it."""
    begin = {" ".join(part.split(" ")[:2]): part.split(" ")[2]
             for part in answer.ext["startOffsetInfo"].split(";")}[f"{mark} {queue_id}"]
    return {"consumerGroup": "G", "topic": topic, "queueId": queue_id, "offset": offset,
            "extraInfo": " ".join((begin, answer.ext["popTime"], answer.ext["invisibleTime"],
                                   answer.ext["reviveQid"], mark, "broker-a", str(queue_id),
                                   str(offset)))}


def stands(client: Client, topic: str, queue_id: int) -> int:
    """The queue offset of the first message that the group has not acked."""
    return int(client.ask("QUERY_CONSUMER_OFFSET", consumerGroup="G", topic=topic,
                          queueId=queue_id).ext["offset"])


def only(answer: Command) -> Record:
    (record,) = records(answer.body)
    return record


def acked(client: Client, answer: Command, topic: str) -> None:
    for key, offsets in places(answer).items():
        mark, queue_id = key.split(" ")
        for offset in offsets:
            assert client.ask("ACK_MESSAGE", **receipt(
                answer, topic, int(queue_id), offset, mark)).code == 0


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/basic", "5.3.3/lmq"])
def test_every_message_once_as_it_is_stored(golden: GoldenFolder, name: str) -> None:
    root = golden(name) / "store"
    wanted = {key: raws for key, raws in expected(root).items() if raws}
    assert name != "5.3.3/lmq" or any(topic.startswith("%LMQ%") for topic, _ in wanted)
    with serving(root) as served, served.client() as client:
        for topic in {topic for topic, _ in wanted}:
            bodies_by_queue: dict[tuple[str, int], list[bytes]] = defaultdict(list)
            while (answer := pop(client, topic)).code == 0:
                given = [(topic, int(key.split(" ")[1])) for key, offsets in places(answer).items()
                         for _ in offsets]
                for key, record in zip(given, records(answer.body), strict=True):
                    bodies_by_queue[key].append(answer.body[:record.total_size])
                    answer.body = answer.body[record.total_size:]
                acked(client, answer, topic)
            assert answer.code == NOTHING
            assert bodies_by_queue == {key: raws for key, raws in wanted.items() if key[0] == topic}
            for _, queue_id in bodies_by_queue:
                assert served.brokers[0].positions.get("G", topic, queue_id) == (
                    served.brokers[0].queue(topic, queue_id).end)


def test_what_is_not_acked_comes_again(client: Client, topic: str) -> None:
    first = pop(client, topic, maxMsgNums=1, invisibleTime=1)
    ((key, (offset,)),) = places(first).items()
    queue_id = int(key.split(" ")[1])
    time.sleep(0.005)
    again = pop(client, topic, maxMsgNums=1, invisibleTime=60_000)
    assert places(again) == places(first)
    before, after = only(first), only(again)
    assert (after.reconsume_times, after.body) == (before.reconsume_times + 1, before.body)
    assert after.crc_ok
    late = receipt(first, topic, queue_id, offset)
    assert client.ask("ACK_MESSAGE", **late).code == 0  # as a broker answers
    assert client.ask("CHANGE_MESSAGE_INVISIBLETIME", **late, invisibleTime=0).code == NO_MESSAGE
    changed = client.ask("CHANGE_MESSAGE_INVISIBLETIME",
                         **receipt(again, topic, queue_id, offset), invisibleTime=0)
    assert changed.code == 0
    for ext in ({}, changed.ext):
        assert stands(client, topic, queue_id) == offset  # none of these acks counted
        again.ext |= ext
        assert client.ask("ACK_MESSAGE", **receipt(again, topic, queue_id, offset)).code == 0
    assert stands(client, topic, queue_id) == offset + 1
    assert places(pop(client, topic, maxMsgNums=1)) != places(first)


def test_one_queue_is_asked_by_itself(client: Client, topic: str) -> None:
    assert set(places(pop(client, topic, queueId=2))) == {"0 2"}
    refused = pop(client, topic, queueId=99)
    assert (refused.code, refused.remark and refused.remark[:11]) == (29, "queueId[99]")
    assert [pop(client, topic, **wrong).code for wrong in (
        {"maxMsgNums": 33}, {"exp": "a ==", "expType": "SQL92"},
        {"consumerGroup": "G" * 256})] == [29, 23, 26]
    assert pop(client, "none").code == 17


def test_who_waits_is_answered_when_something_comes(written: Running) -> None:
    with written.client() as client, written.client() as other:
        sent(other, "T", b"0")
        acked(client, pop(client, "T"), "T")
        assert pop(client, "T", pollTime=20).code == NOTHING
        client.send("POP_MESSAGE", ext=asked("T", pollTime=10_000, invisibleTime=50))
        client.send("NOTIFICATION", ext=asked("T", pollTime=10_000))
        client.send("POP_MESSAGE", ext=asked("T", pollTime=10_000, consumerGroup="H"))
        assert [other.ask("POLLING_INFO", **asked("T", consumerGroup=group)).ext["pollingNum"]
                for group in ("G", "H", "I")] == ["1", "0", "0"]  # H got the message at once
        client.receive()
        sent(other, "T", b"1")
        answers = sorted((client.receive(), client.receive()),
                         key=lambda response: len(response.body))
        assert answers[0].ext == {"hasMsg": "true", "pollingFull": "false"}
        assert only(answers[1]).body == b"1"
        # Nothing new comes, but this one does again, and its time is not over yet.
        again = pop(client, "T", pollTime=10_000)
        assert only(again).reconsume_times == 1
        assert client.ask("NOTIFICATION", **asked("T", pollTime=5)).ext["hasMsg"] == "false"
    assert not written.brokers[0].waiting
    assert written.brokers[0].waits.taken == 0


def test_of_those_who_wait_for_the_same_one_hears_of_news(
        written: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    real = popping.GroupDeliveries.take
    monkeypatch.setattr(popping.GroupDeliveries, "take",
                        lambda *args: (looks.append(1), real(*args))[1])  # type: ignore[func-returns-value]
    with written.client() as client, written.client() as other, written.client() as gone:
        sent(other, "T", b"")
        acked(client, pop(client, "T"), "T")
        wish = asked("T", pollTime=10_000, maxMsgNums=1)
        for other_client in (gone, client, gone, *[client] * 7):
            other_client.send("POP_MESSAGE", ext=wish)
        until(lambda: len(looks) == 11)
        assert other.ask("POLLING_INFO", **wish).ext["pollingNum"] == "10"
        assert sum(map(len, written.brokers[0].waiting.values())) == 1
        gone.close()  # the first of the line, and another one
        until(lambda: other.ask("POLLING_INFO", **wish).ext["pollingNum"] == "8")
        before = len(looks)
        client.send("POP_MESSAGE", ext=asked("T", pollTime=10_000, queueId=3))  # for another
        for number in range(3):
            sent(other, "T", b"%d" % number)
        assert sorted(only(client.receive()).body for _ in range(3)) == [b"0", b"1", b"2"]
        assert len(looks) - before <= 1 + 3 * 3
        for _ in range(5):
            sent(other, "T", b"more")
        assert {only(client.receive()).body for _ in range(5)} == {b"more"}
    until(lambda: not written.brokers[0].waiting)
    assert not written.brokers[0].pops.lines._all


def test_requests_that_wait_are_bounded(root: Path, topic: str, monkeypatch: pytest.MonkeyPatch
                                        ) -> None:
    with serving(root) as served, served.client() as client:
        _fills(client, topic, served.brokers[0].waits, monkeypatch)


def _fills(client: Client, topic: str, waits: Quota, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popping, "TURN_S", 0.0)  # one queue each turn
    while (answer := pop(client, topic, pollTime=50)).code == 0:
        acked(client, answer, topic)
    assert client.ask("NOTIFICATION", **asked(topic)).ext["hasMsg"] == "true"  # it is not known
    monkeypatch.undo()
    waits.most = 10
    assert pop(client, topic, pollTime=1).code == NOTHING
    for name in ("attemptId", "expType"):  # each text is kept while it waits
        assert pop(client, topic, pollTime=10_000, **{name: "x" * 1000}).code == FULL
    waits.most = 0
    assert pop(client, topic, pollTime=10_000).code == FULL
    full = client.ask("NOTIFICATION", **asked(topic, pollTime=10_000))
    assert (full.code, full.ext["pollingFull"]) == (0, "true")


def test_messages_in_order_wait_for_those_before(written: Running) -> None:
    with written.client() as client:
        for body in (b"0", b"1"):
            sent(client, "T", body)
        first = pop(client, "T", maxMsgNums=1, order=True)
        assert only(first).body == b"0"
        assert first.ext["reviveQid"] == "999"
        assert pop(client, "T", order=True).code == NOTHING
        assert client.ask("NOTIFICATION", **asked("T", order=True)).ext["hasMsg"] == "false"
        acked(client, first, "T")
        assert only(pop(client, "T", order=True)).body == b"1"


def test_groups_that_are_gone_leave_room_for_others(client: Client, topic: str,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popping, "MAX_FLYING", 3)
    wish: dict[str, object] = {"queueId": 0, "maxMsgNums": 3}
    first = pop(client, topic, **wish, invisibleTime=1)
    time.sleep(0.005)
    later = pop(client, topic, **wish, invisibleTime=60_000, consumerGroup="H")
    assert len(places(first)["0 0"]) == len(places(later)["0 0"]) == 3
    for group in ("G", "I"):  # their time is not over
        assert pop(client, topic, **wish, consumerGroup=group).code == 2
    assert client.ask("ACK_MESSAGE", **receipt(first, topic, 0, 0)).code == 0
    assert stands(client, topic, 0) == 0  # it was forgotten that it has them
    for offset in range(3):
        assert client.ask("ACK_MESSAGE", **{**receipt(later, topic, 0, offset),
                                            "consumerGroup": "H"}).code == 0
    assert places(pop(client, topic, **wish)) == places(first)


def test_who_asks_again_in_order_has_not_got_them(written: Running) -> None:
    with written.client() as client:
        for body in (b"0", b"1"):
            sent(client, "T", body)
        first, again = (pop(client, "T", order=True, maxMsgNums=1, attemptId="a")
                        for _ in range(2))
        assert (only(first).body, only(again)) == (b"0", only(first))  # it was not tried yet
        for name, given in (("b", False), ("", False), ("a", True), ("a" * 256, False)):
            assert client.ask("NOTIFICATION", **asked("T", order=True, attemptId=name)).ext[
                "hasMsg"] == str(given).lower()
            assert (pop(client, "T", order=True, attemptId=name).code == 0) == given
        assert places(pop(client, "T", order=False, attemptId="a")) == {"0 0": [1]}


def test_many_are_acked_at_once(client: Client, topic: str) -> None:
    answer = pop(client, topic, queueId=0, maxMsgNums=3)
    offsets = places(answer)["0 0"]
    ack = {"c": "G", "t": topic, "r": "0", "so": offsets[0], "q": 0, "rq": 0,
           "pt": int(answer.ext["popTime"]), "it": 60_000}
    sets = (b64encode(bytes([1])), b64encode(bytes([4, 255])))
    assert client.ask("BATCH_ACK_MESSAGE", {"brokerName": "broker-a", "acks": [
        {**ack, "b": golden_set.decode()} for golden_set in sets]}).code == 0
    assert stands(client, topic, 0) == offsets[1]
    assert client.ask("ACK_MESSAGE", **receipt(answer, topic, 0, offsets[1])).code == 0
    assert stands(client, topic, 0) == offsets[2] + 1
    for body, code in ((b"{}", NO_MESSAGE), (b"[", 1), (b'{"acks": [{}]}', 0),
                       (json.dumps({"acks": [{**ack, "b": "!"}]}).encode(), 1),
                       (json.dumps({"acks": [{**ack, "b": "/" * 2052}] * 2}).encode(), 1),
                       (json.dumps({"acks": [{**ack, "b": ""}] * 1025}).encode(), 1),
                       (json.dumps({"acks": [{**ack, "b": 5, "so": "x"}]}).encode(), 0),
                       (json.dumps({"acks": [{**ack, "c": "G" * 256}]}).encode(), 0)):
        assert client.ask("BATCH_ACK_MESSAGE", body).code == code, body


def test_an_unknown_topic_does_not_hold_other_acks_up(client: Client, topic: str) -> None:
    answer = pop(client, topic, queueId=0, maxMsgNums=1)
    ack = {"c": "G", "r": "0", "so": 0, "q": 0, "pt": int(answer.ext["popTime"]), "b": "AQ=="}
    assert client.ask("BATCH_ACK_MESSAGE", {"acks": [
        {**ack, "t": "gone"}, {**ack, "t": topic}]}).code == 0
    assert stands(client, topic, 0) == 1


def test_receipts_that_are_none(client: Client, topic: str) -> None:
    good = receipt(pop(client, topic, queueId=0, maxMsgNums=1), topic, 0, 0)
    for wrong, code in (({"extraInfo": "x"}, 1), ({"extraInfo": "0 1 2 0 0 broker-a 0 0"}, 0),
                        ({"queueId": 99}, 13), ({"queueId": -1}, 13), ({"offset": 1 << 62}, 208),
                        ({"offset": -1}, 208), ({"topic": "none"}, 17),
                        ({"topic": "%RETRY%G+" + topic}, 17), ({"consumerGroup": "H"}, 0)):
        for name, more in (("ACK_MESSAGE", {}),
                           ("CHANGE_MESSAGE_INVISIBLETIME", {"invisibleTime": 1})):
            assert client.ask(name, **{**good, **wrong, **more}).code == (
                code if code or not more else NO_MESSAGE), wrong
    assert stands(client, topic, 0) == 0


def test_where_a_group_begins(golden: GoldenFolder) -> None:
    root = golden("4.9.3/clean-trunc-zero") / "before"
    with serving(root) as served, served.client() as client:
        topic, queue_id = max(expected(root), key=lambda key: len(expected(root)[key]))
        first = served.brokers[0].queue(topic, queue_id).first
        answer = pop(client, topic, queueId=queue_id, maxMsgNums=1, initMode=1)
        assert (answer.code == NOTHING) == (first > 0)


# Modes ------------------------------------------------------------------------------------------


def modes(client: Client, name: str, topic: str) -> list[tuple[int, str]]:
    answer = client.ask("QUERY_ASSIGNMENT", {
        "topic": topic, "consumerGroup": GROUP, "clientId": name, "strategyName": "AVG",
        "messageModel": "CLUSTERING"})
    return sorted((assignment["messageQueue"]["queueId"], assignment["mode"])
                  for assignment in answer.json()["messageQueueAssignments"])


def set_mode(client: Client, topic: str, mode: str = "POP", shared: int = 0) -> int:
    return client.ask("SET_MESSAGE_REQUEST_MODE", {
        "topic": topic, "consumerGroup": GROUP, "mode": mode, "popShareQueueNum": shared}).code


def test_a_group_is_told_to_pop(client: Client, topic: str) -> None:
    join(client, "one", topic)
    assert modes(client, "one", topic) == [(number, "PULL") for number in range(4)]
    assert set_mode(client, topic) == 0
    assert modes(client, "one", topic) == [(-1, "POP")]
    assert [set_mode(client, other) for other in ("none", "%RETRY%" + GROUP)] == [17, 16]
    assert set_mode(client, topic, "PULL") == 0
    assert modes(client, "one", topic) == [(number, "PULL") for number in range(4)]


def test_shares_of_those_who_pop() -> None:
    queues = [{"brokerName": name, "queueId": number} for name in "ab" for number in range(2)]
    names = list("wxyz")

    def shares(shared: int, clients: list[str]) -> list[list[int]]:
        return [[queues.index(queue) if queue in queues else -1 for queue in
                 assigning.share_to_pop(queues, len(clients), place, "AVG", shared)]
                for place in range(len(clients))]

    assert shares(0, names) == shares(3, names) == [[-1, -1]] * 4
    assert shares(1, names) == [[0, 1], [1, 2], [2, 3], [3, 0]]
    assert shares(1, list("uvwxyz")) == [[0], [1], [2], [3], [0], [1]]
    begun = time.monotonic()  # with many clients, too
    assert assigning.share_to_pop([*range(20_000)], 10_000, 1, "AVG", 9_998) == [
        *range(2, 20_000)]
    assert time.monotonic() - begun < 1


def test_modes_are_bounded(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assigning, "_MAX_MODES", 1)
    assert set_mode(client, topic) == 0
    assert client.ask("SET_MESSAGE_REQUEST_MODE", {
        "topic": topic, "consumerGroup": "H", "mode": "POP"}).code == 2
    assert set_mode(client, topic, shared=10**30) == 0  # one that is there may be changed
    join(client, "one", topic)
    assert modes(client, "one", topic) == [(-1, "POP")]


@pytest.mark.parametrize("written", ["4.9.3", "5.3.3"], indirect=True)
def test_modes_stand_in_a_5x_store(written: Running, tmp_path: Path) -> None:
    file = tmp_path / "store" / "config" / "messageRequestMode.json"
    with written.client() as client:
        sent(client, "T", b"")
        sent(client, "T", b"0")
        assert set_mode(client, "T", shared=2) == 0
        assert set_mode(client, "T", shared=10**30) == 0
    if written.brokers[0].source.view.generation < 5:
        assert not file.exists()
        return
    assert json.loads(file.read_text())["messageRequestModeMap"] == {"T": {GROUP: {
        "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": (1 << 31) - 1, "topic": "T"}}}
    written.do(written.brokers[0].modes.clear)
    with written.client() as client:
        join(client, "one", "T")
        written.do(written.brokers[0].source._config.clear)
        assert modes(client, "one", "T") == [(-1, "POP")]


def test_queues_of_batches_are_pulled_from(golden: GoldenFolder) -> None:
    with serving(golden("5.3.3/batchcq") / "store") as served, served.client() as client:
        topic = next(topic for topic, _ in served.brokers[0].source.store.queues.batch)
        join(client, "one", topic)
        assert set_mode(client, topic) == 0
        assert {mode for _, mode in modes(client, "one", topic)} == {"PULL"}
        assert pop(client, topic).code == 1


def test_a_group_has_one_state_for_clients_of_both_protocols(root: Path, topic: str) -> None:
    pytest.importorskip("grpc")
    from tests.serve.stubs import Stub

    with serving(root, grpc=True) as served, Stub(served, topic) as stub, served.client() as client:
        given = {(message.system_properties.queue_id, message.system_properties.queue_offset)
                 for message in stub.got()}
        answer = pop(client, topic)
        mine = {(int(key.split(" ")[1]), offset) for key, offsets in places(answer).items()
                for offset in offsets}
        assert len(mine) == 32
        assert not given & mine
        assert {decode(answer.body).queue_id} <= {queue_id for queue_id, _ in mine}
