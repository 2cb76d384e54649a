"""Rules of a broker that a client seldom meets: odd topics, settings of groups, codes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.serve.consuming import groups
from rmqctl.ext.serve.remoting.client import Client, records
from rmqctl.ext.serve.remoting.codes import CODE_OF
from rmqctl.ext.serve.remoting.command import Command, write_command
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.ext.serve.source import MAX_QUEUES
from rmqctl.store.broker_conf import read_conf
from rmqctl.store.store import Sizes
from tests.conftest import GoldenFolder
from tests.serve.running import Running, empty_store, serving, until
from tests.serve.test_groups import join, members
from tests.serve.test_pop import only, pop
from tests.serve.test_writable import pulled, sent

WRITABLE = ServeSettings(writable=True)
FORBIDDEN, NO_TOPIC, NOT_FOUND, NO_GROUP = 16, 17, 22, 26
MOST = (1 << 31) - 1


@pytest.fixture(params=["4.9.3", "5.3.3"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def illegal(version: str) -> int:
    """The code for what names no topic or queue."""
    return 29 if version == "5.3.3" else 1


@pytest.fixture
def served(version: str, tmp_path: Path) -> Iterator[Running]:
    with serving(empty_store(tmp_path / "store", version), settings=WRITABLE) as running:
        yield running


@pytest.fixture
def client(served: Running) -> Iterator[Client]:
    with served.client() as connected:
        yield connected


def queues(client: Client, topic: str) -> int:
    (data,) = client.ask("GET_ROUTEINFO_BY_TOPIC", topic=topic).json()["queueDatas"]
    assert data["readQueueNums"] == data["writeQueueNums"]
    return int(data["readQueueNums"])


def set_group(client: Client, name: str, **settings: Any) -> None:
    assert client.ask("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
                      {"groupName": name, **settings}).code == 0


# -- topics -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topic", "most"), [
    ("TBW102", 8), ("BenchmarkTest", 1024), ("DefaultCluster", 16), ("RMQ_SYS_TRACE_TOPIC", 4),
    ("DefaultCluster_REPLY_TOPIC", 1)])
def test_topics_that_a_broker_has_by_itself_have_so_many_queues(
        client: Client, illegal: int, topic: str, most: int) -> None:
    if topic != "RMQ_SYS_TRACE_TOPIC":  # which is made when the first trace comes
        assert queues(client, topic) == most
    assert sent(client, topic, b"last", queue=most - 1).code == 0
    assert queues(client, topic) == most
    assert sent(client, topic, b"last", queue=most - 1).ext["queueOffset"] == "1"
    for queue in (most, MOST):
        assert sent(client, topic, b"beyond", queue=queue).code == illegal
    assert client.ask("GET_MAX_OFFSET", topic=topic, queueId=most - 1).ext["offset"] == "2"


def test_no_queue_id_holds_the_others_up(client: Client) -> None:
    sent(client, "TBW102", b"", queue=MOST)
    client.ask("QUERY_MESSAGE", topic="TBW102", key="k", maxNum=1, beginTimestamp=0,
               endTimestamp=MOST)
    sent(client, "TBW102", b"x")
    begun = time.monotonic()
    client.ask("NOTIFICATION", consumerGroup="G", topic="TBW102", queueId=2, pollTime=0, bornTime=0)
    assert queues(client, "TBW102") == 8
    assert time.monotonic() - begun < 2


def test_a_topic_has_no_more_queues_than_are_served(client: Client, illegal: int) -> None:
    wanted = {"topic": "many", "perm": 6, "topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102"}
    for read, write in ((MOST, 1), (1, MAX_QUEUES + 1)):
        assert client.ask("UPDATE_AND_CREATE_TOPIC", readQueueNums=read, writeQueueNums=write,
                          **wanted).code == 1
    assert client.ask("UPDATE_AND_CREATE_TOPIC", readQueueNums=MAX_QUEUES,
                      writeQueueNums=MAX_QUEUES, **wanted).code == 0
    assert sent(client, "many", b"x", queue=MAX_QUEUES - 1).code == 0
    assert sent(client, "many", b"x", queue=MAX_QUEUES).code == illegal


def test_more_queues_than_are_served_take_nothing(tmp_path: Path, version: str, illegal: int
                                                  ) -> None:
    root = empty_store(tmp_path / "store", version)
    (root / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"many":{"perm":6,"readQueueNums":2147483647,"topicName":"many",'
        '"writeQueueNums":2147483647}}}')
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        assert queues(client, "many") == MAX_QUEUES
        for queue, code in ((0, 0), (MAX_QUEUES - 1, 0), (MAX_QUEUES, illegal), (MOST, illegal)):
            assert sent(client, "many", b"x", queue=queue).code == code


def test_a_topic_is_made_with_the_queues_that_its_producer_asks_for(client: Client, illegal: int
                                                                    ) -> None:
    for wanted, queue_count in ((8, 8), (2, 2), (100, 8), (1, 1)):
        topic = f"T{wanted}"
        assert sent(client, topic, b"x", queue=queue_count - 1, d=wanted).code == 0
        assert queues(client, topic) == queue_count
        assert sent(client, topic, b"x", queue=queue_count).code == illegal
    assert sent(client, "none", b"x", d=0).code == illegal
    assert sent(client, "T2", b"any", queue=-1).code == 0


def test_a_topic_is_made_after_the_one_that_its_producer_names(client: Client) -> None:
    refused = sent(client, "lost", b"x", c="no-such-topic")
    assert refused.code == NO_TOPIC
    assert "no-such-topic" in refused.remark
    assert client.ask("GET_ROUTEINFO_BY_TOPIC", topic="lost").code == NO_TOPIC
    assert sent(client, "known", b"x").code == 0
    assert sent(client, "lost", b"x", c="known").code == NO_TOPIC  # which lets none be made
    assert sent(client, "found", b"x", c="DefaultCluster", d=32, queue=15).code == 0
    assert sent(client, "%RETRY%G", b"x", c="no-such-topic").code == 0
    assert queues(client, "%RETRY%G") == 1


def test_a_topic_keeps_what_it_was_made_with(client: Client) -> None:
    assert client.ask("UPDATE_AND_CREATE_TOPIC", topic="T", readQueueNums=2, writeQueueNums=2,
                      perm=6, defaultTopic="TBW102", topicFilterType="MULTI_TAG",
                      topicSysFlag=1).code == 0
    assert sent(client, "of-a-unit", b"x", k=True).code == 0
    assert sent(client, "%RETRY%U", b"x", k=True).code == 0
    table = client.ask("GET_ALL_TOPIC_CONFIG").json()["topicConfigTable"]
    assert (table["T"]["topicFilterType"], table["T"]["topicSysFlag"]) == ("MULTI_TAG", 1)
    assert table["of-a-unit"]["topicSysFlag"] == 1
    assert table["%RETRY%U"]["topicSysFlag"] == 2
    assert client.ask("UPDATE_AND_CREATE_TOPIC", topic="U", readQueueNums=2, writeQueueNums=2,
                      perm=6, defaultTopic="TBW102", topicFilterType="NO_TAG").code == 1


def test_refused_sends_have_the_codes_of_a_broker(client: Client, version: str, illegal: int
                                                  ) -> None:
    for topic, code in (("", illegal), (" ", illegal), ("a b", illegal), ("x" * 128, illegal),
                        ("SCHEDULE_TOPIC_XXXX", FORBIDDEN),
                        ("SELF_TEST_TOPIC", FORBIDDEN if version == "5.3.3" else 0),
                        ("RMQ_SYS_TRANS_HALF_TOPIC", FORBIDDEN if version == "5.3.3" else 0)):
        answer = sent(client, topic, b"x")
        assert answer.code == code, (topic, answer.remark)
        assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")


def test_a_topic_that_is_not_to_be_written_to_says_so_in_its_route_alone(client: Client) -> None:
    assert client.ask("UPDATE_AND_CREATE_TOPIC", topic="closed", readQueueNums=2, writeQueueNums=2,
                      perm=4, defaultTopic="TBW102", topicFilterType="SINGLE_TAG",
                      order="true").code == 0
    route = client.ask("GET_ROUTEINFO_BY_TOPIC", topic="closed").json()
    assert route["queueDatas"][0]["perm"] == 4
    assert "orderTopicConf" not in route
    assert sent(client, "closed", b"x", queue=1).code == 0


def test_several_topics_are_made_at_once(client: Client, version: str) -> None:
    value = [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 3, "perm": 6, "order": False,
              "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
              "attributes": {"+message.type": "FIFO"}} for name in ("A", "B")]
    assert client.ask("UPDATE_AND_CREATE_TOPIC_LIST", {"topicConfigList": value}).code == 0
    table = client.ask("GET_ALL_TOPIC_CONFIG").json()["topicConfigTable"]
    for name in ("A", "B"):
        assert (table[name]["readQueueNums"], table[name]["writeQueueNums"]) == (2, 3)
        assert (version == "4.9.3") or table[name]["attributes"] == {"message.type": "FIFO"}
    for wrong in ([{"topicName": "C"}], [{"topicName": "TBW102", **value[0]}][:1] * 1001):
        assert client.ask("UPDATE_AND_CREATE_TOPIC_LIST", {"topicConfigList": wrong}).code == 1
    assert client.ask("GET_ROUTEINFO_BY_TOPIC", topic="C").code == NO_TOPIC


def test_what_the_brokers_own_configuration_switches_off(tmp_path: Path, version: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\n"
                    "maxMessageSize=1000\nbrokerName=b1\n")
    root = empty_store(tmp_path / "store", version)
    read = read_conf(str(conf))
    with serving(root, settings=WRITABLE, sizes=Sizes(conf=read)) as served, (
            served.client()) as client:
        assert sent(client, "UNKNOWN", b"x").code == NO_TOPIC
        assert client.ask("GET_ROUTEINFO_BY_TOPIC", topic="TBW102").code == NO_TOPIC
        assert sent(client, "found", b"x", c="DefaultCluster").code == 0
        assert sent(client, "found", bytes(2000)).code == 13
        join(client, "one", "found")
        assert members(client) == []
        assert client.pull("found", 0, 0, group="CG").code == NO_GROUP
        set_group(client, "CG")
        join(client, "one", "found")
        assert members(client) == ["one"]
        assert client.pull("found", 0, 0, group="CG").code == 0
        lines = client.ask("GET_BROKER_CONFIG").body.decode().splitlines()
        assert {"autoCreateTopicEnable=false", "autoCreateSubscriptionGroup=false",
                "maxMessageSize=1000"} <= set(lines)


def test_a_store_that_is_only_read_says_the_region_too(golden: GoldenFolder) -> None:
    with serving(golden("5.3.3/basic") / "store") as served, served.client() as client:
        answer = sent(client, "T", b"x")
        assert (answer.code, answer.ext["TRACE_ON"]) == (FORBIDDEN, "true")


# -- consumers ----------------------------------------------------------------------------------


def test_a_message_that_was_retried_most_often_holds_nobody_up(client: Client, version: str
                                                               ) -> None:
    sent(client, "R", b"often", j=MOST)
    sent(client, "R", b"once")
    if version == "5.3.3":
        first, second = (pop(client, "R", maxMsgNums=1, invisibleTime=200) for _ in range(2))
        assert [only(popped).body for popped in (first, second)] == [b"often", b"once"]
        time.sleep(0.3)
        assert only(pop(client, "R", maxMsgNums=1)).body == b"often"
    join(client, "one", "R")
    often, _ = pulled(client, "R")
    assert client.ask("CONSUMER_SEND_MSG_BACK", offset=often.physical_offset, group="CG",
                      delayLevel=0).code == 0
    (dead,) = pulled(client, "%DLQ%CG")
    assert (dead.body, dead.reconsume_times) == (b"often", -MOST - 1)


def test_a_negative_position_is_none(client: Client) -> None:
    sent(client, "T", b"x")
    for group in ("G", "H"):
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup=group, topic="T", queueId=0,
                   commitOffset=1)
    assert client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="G", topic="T", queueId=0,
                      commitOffset=-5).code == 0
    answers = [client.ask("QUERY_CONSUMER_OFFSET", consumerGroup=group, topic="T", queueId=0)
               for group in ("G", "H")]
    assert [answer.ext["offset"] for answer in answers] == ["0", "1"]


def test_a_compacted_queue_begins_where_its_rows_do(golden: GoldenFolder) -> None:
    folder = golden("5.3.3/compaction")
    expected = json.loads((folder / "expect.json").read_text())
    with serving(folder / "store") as served, served.client() as client:
        for queue in expected["queues"]:
            answer = client.ask("GET_MIN_OFFSET", topic=queue["topic"], queueId=queue["queueId"])
            assert int(answer.ext["offset"]) == queue["min"], queue["topic"]
            asked = client.ask("QUERY_CONSUMER_OFFSET", consumerGroup="new", topic=queue["topic"],
                               queueId=queue["queueId"])
            assert asked.code == (0 if queue["min"] == 0 else NOT_FOUND)


def test_a_group_that_may_not_broadcast_gets_nothing_that_way(client: Client) -> None:
    sent(client, "T", b"x")
    set_group(client, "CG", consumeBroadcastEnable=False)
    for model, code in (("BROADCASTING", FORBIDDEN), ("CLUSTERING", 0)):
        client.ask("HEART_BEAT", {"clientID": "c", "consumerDataSet": [{
            "groupName": "CG", "messageModel": model, "subscriptionDataSet": [
                {"topic": "T", "subString": "*", "subVersion": 1}]}]})
        for _ in range(2):
            assert client.ask("PULL_MESSAGE", consumerGroup="CG", topic="T", queueId=0,
                              queueOffset=0, maxMsgNums=1, sysFlag=0, subVersion=1).code == code


def test_a_group_without_retry_queues_gets_nothing_again(client: Client) -> None:
    sent(client, "T", b"x")
    (record,) = pulled(client, "T")
    set_group(client, "CG", retryQueueNums=0)
    for level in (1, -1):
        assert client.ask("CONSUMER_SEND_MSG_BACK", offset=record.physical_offset, group="CG",
                          delayLevel=level).code == 0
    names = client.ask("GET_ALL_TOPIC_CONFIG").json()["topicConfigTable"]
    assert not {"%RETRY%CG", "%DLQ%CG"} & set(names)


def test_retries_go_into_any_queue_of_the_group(served: Running, client: Client) -> None:
    sent(client, "T", b"x")
    (record,) = pulled(client, "T")
    set_group(client, "CG", retryQueueNums=4)
    join(client, "one", "T")
    assert queues(client, "%RETRY%CG") == 4
    served.do(served.brokers[0].keep)
    assert queues(client, "%RETRY%CG") == 4
    for _ in range(24):
        assert client.ask("CONSUMER_SEND_MSG_BACK", offset=record.physical_offset, group="CG",
                          delayLevel=1).code == 0
    waiting = pulled(client, "SCHEDULE_TOPIC_XXXX")
    assert len(waiting) == 24
    queue_ids = {record.properties.decode().partition("REAL_QID\x01")[2][0] for record in waiting}
    assert len(queue_ids) > 1
    assert queue_ids <= set("0123")


@pytest.mark.parametrize(("says", "topic"), [(63, "%RETRY%CG"), (120, "%RETRY%CG"),
                                             (121, "%DLQ%CG"), (399, "%DLQ%CG")])
def test_old_clients_do_not_say_how_often(client: Client, says: int, topic: str) -> None:
    sent(client, "T", b"x", j=3)
    (record,) = pulled(client, "T")
    join(client, "one", "T")
    command = Command(CODE_OF["CONSUMER_SEND_MSG_BACK"], 77, ext={
        "offset": str(record.physical_offset), "group": "CG", "delayLevel": "1",
        "maxReconsumeTimes": "3"}, version=says)
    client.socket.sendall(write_command(command))
    answer = client.receive()
    assert (answer.opaque, answer.code) == (77, 0)
    until(lambda: len(pulled(client, topic)) == 1)


def test_a_group_is_deleted_with_its_positions_where_asked_to(client: Client) -> None:
    sent(client, "T", b"x")
    for field in ("removeOffset", "cleanOffset", "another"):
        set_group(client, "CG")
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="CG", topic="T", queueId=0,
                   commitOffset=1)
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="H", topic="T", queueId=0,
                   commitOffset=1)
        assert client.ask("DELETE_SUBSCRIPTIONGROUP", groupName="CG", **{field: "true"}).code == 0
        table = client.ask("GET_ALL_CONSUMER_OFFSET").json()["offsetTable"]
        assert ("T@CG" in table, "T@H" in table) == (field == "another", True)


def test_a_deleted_position_is_not_there_again_afterwards(tmp_path: Path, version: str) -> None:
    root = empty_store(tmp_path / "store", version)
    for wanted in (True, False):
        with serving(root, settings=WRITABLE) as served, served.client() as client:
            sent(client, "T", b"x")
            if wanted:
                client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="CG", topic="T", queueId=0,
                           commitOffset=1)
            else:
                assert client.ask("DELETE_SUBSCRIPTIONGROUP", groupName="CG",
                                  removeOffset="true").code == 0
        assert ("CG" in (root / "config" / "consumerOffset.json").read_text()) == wanted


def test_a_group_may_be_told_nothing_of_its_members(served: Running, client: Client) -> None:
    set_group(client, "CG", notifyConsumerIdsChangedEnable=False)
    join(client, "one", "T")
    with served.client() as other:
        join(other, "two", "T")
        join(other, "two", "T", group="H")
    assert sorted(members(client)) in (["one"], ["one", "two"])
    until(lambda: members(client) == ["one"])
    assert client.unsolicited == []
    with served.client() as other:
        join(client, "one", "T", group="H")
        join(other, "two", "T", group="H")
        until(lambda: (members(client), len(client.unsolicited))[1] > 0)


def test_two_clients_with_one_id_are_two_members(client: Client, served: Running) -> None:
    join(client, "one", "T")
    for _ in range(2):
        with served.client() as twin:
            join(twin, "one", "T")
            assert members(client) == ["one"]
            count = len(client.unsolicited)
            for connection in (client, twin, client, twin):  # who was there before brings no news
                join(connection, "one", "T")
            members(client)
            assert len(client.unsolicited) == count
            answer = client.ask("GET_CONSUMER_CONNECTION_LIST", consumerGroup="CG").json()
            assert len(answer["connectionSet"]) == 2
            del client.unsolicited[:]
        until(lambda: (members(client), len(client.unsolicited))[1] > 0)
        assert members(client) == ["one"]
    assert client.ask("UNREGISTER_CLIENT", clientID="one", consumerGroup="CG").code == 0
    assert members(client) == []


def test_only_who_is_silent_in_a_group_leaves_it(served: Running, client: Client,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    join(client, "one", "T", group="A")
    time.sleep(0.3)
    client.ask("HEART_BEAT", {"clientID": "one", "producerDataSet": [{"groupName": "P"}],
                              "consumerDataSet": [{"groupName": "B"}]})
    monkeypatch.setattr(groups, "EXPIRY_S", 0.2)
    served.do(served.brokers[0].expire)
    assert (list(served.brokers[0].groups.consumers), list(served.brokers[0].groups.producers)
            ) == (["B"], ["P"])


def test_a_group_that_may_not_consume_hears_so_of_any_topic(client: Client) -> None:
    set_group(client, "off", consumeEnable=False)
    assert client.pull("no-such-topic", 0, 0, group="off").code == FORBIDDEN
    assert client.pull("no-such-topic", 0, 0, group="on").code == NO_TOPIC


def test_a_store_is_written_as_it_was_begun(golden: GoldenFolder, version: str, illegal: int,
                                            tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden(f"{version}/basic") / "store", root)
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        writer = served.brokers[0].writer
        assert writer is not None
        assert writer.settings.version == version
        topic = next(iter(served.brokers[0].source.topics))
        assert sent(client, topic, b"x", queue=1000).code == illegal
        assert sent(client, "made", b"x").code == 0
        assert ("attributes" in writer.topics.table["made"]) == (version == "5.3.3")


# -- tools --------------------------------------------------------------------------------------


def test_rows_of_what_was_just_sent_are_there(client: Client) -> None:
    for count in (1, 2):
        sent(client, "T", b"x")
        body = client.ask("QUERY_CONSUME_QUEUE", topic="T", queueId=0, index=0, count=5).json()
        assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, count)
        assert [row["physicSize"] > 0 for row in body["queueData"]] == [True] * count


def test_no_body_takes_long_to_read(client: Client) -> None:
    body = b'{"clientID":"b","consumerDataSet":[' + b"{}," * 5_000_000 + b"{}]}"
    begun = time.monotonic()
    for code in ("HEART_BEAT", "LOCK_BATCH_MQ"):
        answer = client.ask(code, body)
        assert (answer.code, f"{len(body):,}" in answer.remark) == (1, True)
    assert time.monotonic() - begun < 2
    assert client.ask("HEART_BEAT", body[:38 + 3 * 300_000] + b"{}]}").code == 0


def test_a_dead_letter_of_a_poisoned_message_is_that_message(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    from tests.serve.stubs import Stub

    root = empty_store(tmp_path / "store")
    with serving(root, settings=WRITABLE, grpc=True) as served, served.client() as client:
        set_group(client, "G", retryMaxTimes=1)
        sent(client, "R", b"often", j=MOST)
        sent(client, "R", b"once")
        with Stub(served, "R") as stub:
            assert [message.body for message in stub.got()] == [b"once"]
        (dead,) = pulled(client, "%DLQ%G")
        assert dead.body == b"often"
        assert next(records(client.pull("R", 0, 0).body)).body == b"often"
