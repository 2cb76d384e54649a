"""Groups: who is in one, how queues are shared, where it stands, what it sends back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.errors import FormatError, UsageError
from rmqctl.ext.serve.consuming import groups
from rmqctl.ext.serve.remoting.client import Client, records
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats.local import properties
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.serve.running import Running, serving

GROUP = "CG"


@pytest.fixture
def root(golden: GoldenFolder) -> Path:
    return golden("5.3.3/basic") / "store"


@pytest.fixture
def topic(root: Path) -> str:
    with Store.open(root) as store:
        return next(iter(store.queues.by_key))[0]


@pytest.fixture
def served(root: Path) -> Iterator[Running]:
    with serving(root) as running:
        yield running


def join(client: Client, name: str, topic: str, *, tags: str = "*", version: int = 1,
         group: str = GROUP) -> None:
    value: dict[str, Any] = {"clientID": name, "consumerDataSet": [{
        "groupName": group, "consumeType": 1, "messageModel": "CLUSTERING", "consumeFromWhere": 4,
        "subscriptionDataSet": [{"topic": topic, "subString": tags, "subVersion": str(version)}]}]}
    assert client.ask("HEART_BEAT", value).code == 0


def members(client: Client) -> list[str]:
    answer = client.ask("GET_CONSUMER_LIST_BY_GROUP", consumerGroup=GROUP)
    return list(answer.json()["consumerIdList"]) if answer.code == 0 else []


def pull(client: Client, topic: str, *, version: int = 1) -> int:
    return client.ask("PULL_MESSAGE", consumerGroup=GROUP, topic=topic, queueId=0, queueOffset=0,
                      maxMsgNums=32, sysFlag=0, subVersion=version).code


def test_members_are_told_of_each_other(served: Running, topic: str) -> None:
    with served.client() as client:
        assert members(client) == []
        join(client, "one", topic)
        with served.client() as two:
            join(two, "two", topic)
            assert members(two) == ["one", "two"]
            assert client.receive().code == 40
        command = client.receive()  # the other connection was closed
        assert (command.code, command.ext, command.is_one_way) == (
            40, {"consumerGroup": GROUP}, True)
        assert members(client) == ["one"]
        client.ask("UNREGISTER_CLIENT", clientID="one", consumerGroup=GROUP, producerGroup="")
        assert members(client) == []
    assert [event["event"] for event in served.events] == ["joined", "joined", "left"]


def test_who_sends_no_heartbeat_is_gone(served: Running, topic: str,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    with served.client() as client:
        join(client, "one", topic)
        served.do(served.brokers[0].expire)
        assert members(client) == ["one"]
        monkeypatch.setattr(groups, "EXPIRY_S", -1.0)
        served.do(served.brokers[0].expire)
        assert members(client) == []


def test_a_pull_needs_a_subscription_that_is_not_older(served: Running, topic: str) -> None:
    with served.client() as client:
        assert pull(client, topic) == 24
        join(client, "one", "other")
        assert pull(client, topic) == 24
        join(client, "one", topic, version=5)
        assert [pull(client, topic, version=number) for number in (4, 5, 6)] == [0, 0, 25]
        join(client, "one", topic, version=6, tags="no-such-tag")
        assert pull(client, topic, version=6) == 20


def test_a_queue_is_locked_for_one_member(served: Running, topic: str) -> None:
    def take(client: Client, name: str, request: str = "LOCK_BATCH_MQ") -> int:
        body = {"clientId": name, "consumerGroup": GROUP, "mqSet": [
            {"brokerName": "broker-a", "queueId": queue, "topic": topic} for queue in range(2)]}
        answer = client.ask(request, body)
        return len(answer.json()["lockOKMQSet"]) if answer.body else answer.code

    with served.client() as client:
        assert [take(client, "one"), take(client, "two"), take(client, "one")] == [2, 0, 2]
        assert take(client, "one", "UNLOCK_BATCH_MQ") == 0
        assert take(client, "two") == 2


def test_positions_are_kept_in_a_file_beside_the_store(root: Path, topic: str, tmp_path: Path
                                                       ) -> None:
    def asked(client: Client, queue: int = 0) -> tuple[int, str | None]:
        answer = client.ask("QUERY_CONSUMER_OFFSET", consumerGroup=GROUP, topic=topic,
                            queueId=queue)
        return answer.code, answer.ext.get("offset")

    settings = ServeSettings(offsets=str(tmp_path / "positions.json"))
    for expected in ("0", "3", "2"):
        with serving(root, settings=settings) as served, served.client() as client:
            assert asked(client) == (0, expected)
            if expected == "0":
                client.one_way("UPDATE_CONSUMER_OFFSET", consumerGroup=GROUP, topic=topic,
                               queueId=0, commitOffset=3)
                assert asked(client) == (0, "3")
            else:
                client.ask("PULL_MESSAGE", consumerGroup=GROUP, topic=topic, queueId=0,
                           queueOffset=0, maxMsgNums=1, sysFlag=5, commitOffset=2, subscription="*")
                assert asked(client) == (0, "2")
    (tmp_path / "positions.json").write_text("[1]")
    with pytest.raises(FormatError, match=r"positions\.json"), serving(root, settings=settings):
        pass
    with pytest.raises(UsageError, match="in the store"), serving(
            root, settings=ServeSettings(offsets=str(root / "config" / "mine.json"))):
        pass


@pytest.mark.parametrize(("start", "offset"), [("stored", 7), ("earliest", 0), ("latest", -1)])
def test_where_a_group_begins(root: Path, topic: str, tmp_path: Path, start: str, offset: int
                              ) -> None:
    import shutil

    copy = tmp_path / "store"
    shutil.copytree(root, copy)
    (copy / "config").mkdir(exist_ok=True)
    (copy / "config" / "consumerOffset.json").write_text(json.dumps(
        {"offsetTable": {f"{topic}@{GROUP}": {"0": 7}}}))
    settings = ServeSettings(start=start, stored=start == "stored")
    with serving(copy, settings=settings) as served, served.client() as client:
        answer = client.ask("QUERY_CONSUMER_OFFSET", consumerGroup=GROUP, topic=topic, queueId=0)
        if offset < 0:
            offset = int(client.ask("GET_MAX_OFFSET", topic=topic, queueId=0).ext["offset"])
        assert answer.ext == {"offset": str(offset)}
        retry = client.ask("GET_ROUTEINFO_BY_TOPIC", topic=f"%RETRY%{GROUP}")
        assert (retry.code == 0) or start != "stored"


def test_what_is_sent_back_comes_again_and_is_given_up_at_last(
        served: Running, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = served.brokers[0]
    monkeypatch.setattr(broker, "later", lambda _seconds, then: then())
    with served.client() as client:
        assert client.ask("CONSUMER_SEND_MSG_BACK", offset=0, group=GROUP, delayLevel=0).code == 26
        join(client, "one", topic)
        first = next(records(client.pull(topic, 0, 0).body))
        retry, dead = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
        place = first.physical_offset
        for times in range(1, 4):
            assert client.ask("CONSUMER_SEND_MSG_BACK", offset=place, group=GROUP, delayLevel=0,
                              maxReconsumeTimes=3).code == 0
            queue = client.ask("GET_ROUTEINFO_BY_TOPIC", topic=retry).json()["queueDatas"][0][
                "readQueueNums"] - 1
            (again,) = records(client.pull(retry, queue, times - 1).body)
            assert (again.body, again.reconsume_times, again.queue_offset) == (
                first.body, times, times - 1)
            assert again.crc_ok
            assert again.topic == retry.encode()
            parsed_properties = properties.parse(again.properties.decode())
            assert parsed_properties["RETRY_TOPIC"] == topic
            assert parsed_properties["ORIGIN_MESSAGE_ID"] == first.message_id
            place = again.physical_offset
        assert client.ask("CONSUMER_SEND_MSG_BACK", offset=place, group=GROUP, delayLevel=0,
                          maxReconsumeTimes=3).code == 0
        (given_up,) = records(client.pull(dead, 0, 0).body)
        assert (given_up.body, given_up.reconsume_times) == (first.body, 4)
        assert client.ask("CONSUMER_SEND_MSG_BACK", offset=10 ** 15, group=GROUP, delayLevel=0
                          ).code == 1


def test_memory_for_what_is_sent_back_is_bounded(root: Path, topic: str) -> None:
    with serving(root, settings=ServeSettings(retry_memory=100)) as served, \
            served.client() as client:
        join(client, "one", topic)
        place = next(records(client.pull(topic, 0, 0).body)).physical_offset
        answer = client.ask("CONSUMER_SEND_MSG_BACK", offset=place, group=GROUP, delayLevel=-1)
        assert answer.code == 16
        assert "is full" in str(answer.remark)


def test_several_stores_are_brokers_of_one_cluster(golden: GoldenFolder, root: Path) -> None:
    other = golden("4.9.3/basic") / "store"
    with serving(root, other) as served, served.client() as client:
        info = client.ask("GET_BROKER_CLUSTER_INFO").json()
        assert info["clusterAddrTable"] == {"DefaultCluster": ["broker-a", "broker-b"]}
        with Store.open(other) as store:
            topic, queue_id = next(iter(store.queues.by_key))
        route = client.ask("GET_ROUTEINFO_BY_TOPIC", topic=topic).json()
        assert "broker-b" in [queue["brokerName"] for queue in route["queueDatas"]]
        address = next(broker["brokerAddrs"]["0"] for broker in route["brokerDatas"]
                       if broker["brokerName"] == "broker-b")
        assert address == str(served.brokers[1].address)
        with served.client(1) as second:
            assert second.pull(topic, queue_id, 0).code == 0
    with pytest.raises(UsageError, match="twice"), serving(root, root):
        pass


def test_a_group_may_have_an_at_sign_in_its_name(root: Path, topic: str, tmp_path: Path) -> None:
    settings = ServeSettings(offsets=str(tmp_path / "positions.json"))
    for expected in (None, "4"):
        with serving(root, settings=settings) as served, served.client() as client:
            fields = {"consumerGroup": "a@b", "topic": topic, "queueId": 0}
            if expected is None:
                client.ask("UPDATE_CONSUMER_OFFSET", **fields, commitOffset=4)
            else:
                assert client.ask("QUERY_CONSUMER_OFFSET", **fields).ext["offset"] == expected


def test_a_heartbeat_of_many_groups_is_told_in_turns(golden: GoldenFolder) -> None:
    with serving(golden("5.3.3/basic") / "store") as served, served.client() as client:
        groups = [{"groupName": f"g{number}"} for number in range(200)]
        assert client.ask("HEART_BEAT", {"clientID": "c", "consumerDataSet": groups}).code == 0
        consumer_groups = {event.ext["consumerGroup"] for event in client.unsolicited}
        while len(consumer_groups) < 200:
            consumer_groups.add(client.receive().ext["consumerGroup"])
        (event,) = [item for item in served.events if item["event"] == "joined"]
        assert event["groups"] == 200
