"""What mqadmin and Dashboard ask: topics, groups, progress, figures, and clients through a broker.

Positions and topics are written beside an engine-written store; what is answered is held against
the engine's own answers and against what `rmqctl offsets` makes of the same files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.ext.serve import connection
from rmqctl.ext.serve.dispatch import HANDLERS
from rmqctl.ext.serve.remoting.client import Client, records
from rmqctl.ext.serve.remoting.codes import GET_CONSUMER_STATUS_FROM_CLIENT, REQUESTS
from rmqctl.ext.serve.remoting.command import RESPONSE, Command, write_command
from rmqctl.ext.serve.tools import assigning, relay
from rmqctl.store.config.offsets import Lag
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.serve.running import Running, serving
from tests.serve.test_groups import join
from tests.support.share import examples

SYSTEM = "rmq_sys_wheel_timer"
TOPIC, OTHER = "TP_fraud_Topic", "TP_ship_Event2"
GROUP, BEHIND = "CG", "CG_behind"
CONFIG: dict[str, dict[str, Any]] = {
    "topics.json": {
        "dataVersion": {"counter": 7, "stateVersion": 0, "timestamp": 1700000000000},
        "topicConfigTable": {
            TOPIC: {"attributes": {"message.type": "NORMAL"}, "order": False, "perm": 6,
                    "readQueueNums": 4, "topicFilterType": "SINGLE_TAG", "topicName": TOPIC,
                    "topicSysFlag": 0, "writeQueueNums": 4},
            OTHER: {"order": True, "perm": 6, "readQueueNums": 4, "topicFilterType": "MULTI_TAG",
                    "topicName": "another", "topicSysFlag": "no number", "writeQueueNums": 5},
            SYSTEM: {"perm": 6, "readQueueNums": 1, "topicName": SYSTEM, "writeQueueNums": 1}}},
    "subscriptionGroup.json": {
        "dataVersion": {"counter": 2, "timestamp": 5}, "subscriptionGroupTable": {
            GROUP: {"groupName": GROUP, "consumeEnable": True, "retryMaxTimes": 3,
                    "retryQueueNums": 2, "brokerId": 0}}},
    "consumerOffset.json": {"offsetTable": {
        f"{TOPIC}@{GROUP}": {"0": 100, "1": 67, "2": 0, "3": 13},
        f"{OTHER}@{GROUP}": {"0": 5, "1": 200},
        f"{TOPIC}@{BEHIND}": {"0": 7, "1": 3}}},
    "delayOffset.json": {"offsetTable": {"3": 17}},
}


@pytest.fixture
def root(golden_copy: GoldenFolder) -> Path:
    store = golden_copy("5.3.3/basic/store")
    (store / "config").mkdir(exist_ok=True)
    for name, value in CONFIG.items():
        (store / "config" / name).write_text(json.dumps(value))
    return store


@pytest.fixture
def queues(golden: GoldenFolder) -> list[dict[str, Any]]:
    """What the engine said of each queue."""
    return list(json.loads((golden("5.3.3/basic") / "expect.json").read_text())["queues"])


@pytest.fixture
def served(root: Path) -> Iterator[Running]:
    with serving(root) as running:
        yield running


@pytest.fixture
def client(served: Running) -> Iterator[Client]:
    with served.client() as client:
        yield client


def answer(client: Client, request: str, **ext: object) -> dict[str, Any]:
    result = client.ask(request, **ext)
    assert (result.code, result.remark) == (0, None)
    return dict(result.json())


def by_queue(table: dict[str, Any]) -> dict[tuple[str, int], Any]:
    """A table by the JSON of its queues, by topic and queue id."""
    keys = [(json.loads(key), value) for key, value in table.items()]
    assert all(key["brokerName"] == "broker-a" for key, _ in keys)
    return {(key["topic"], key["queueId"]): value for key, value in keys}


def store_time(root: Path, physical: int) -> int:
    with Store.open(root) as store:
        record = store.log.record_at(physical)
        assert record is not None
        return record.store_timestamp


def test_every_request_that_changes_nothing_is_answered():
    assert {request.name for code, request in REQUESTS.items()
            if code not in HANDLERS and not request.changes} == set()


def test_topics_have_the_engines_bounds(client, root, queues):
    for topic in {queue["topic"] for queue in queues}:
        offsets_by_queue = by_queue(answer(client, "GET_TOPIC_STATS_INFO",
                                           topic=topic)["offsetTable"])
        for queue in queues:
            if queue["topic"] == topic:
                assert offsets_by_queue.pop((topic, queue["queueId"])) == {
                    "minOffset": queue["min"], "maxOffset": queue["max"],
                    "lastUpdateTimestamp": store_time(root, queue["cq"][-1][1])}
        assert all(value["maxOffset"] == 0
                   for value in offsets_by_queue.values())  # a fifth write queue
    assert client.ask("GET_TOPIC_STATS_INFO", topic="none").code == 17


def test_progress_is_that_of_rmqctl_offsets(client, root):
    with Store.open(root) as store:
        lag = Lag(store, View(store))
        rows = list(lag.rows())
    totals = {group: lag.totals[group] for group in (GROUP, BEHIND)}
    assert totals == {GROUP: 27, BEHIND: 185}  # a position ahead of its queue counts, too
    for group in (GROUP, BEHIND):
        offsets_by_queue = by_queue(answer(client, "GET_CONSUME_STATS",
                                           consumerGroup=group)["offsetTable"])
        assert offsets_by_queue == {(row["topic"], row["queue_id"]): {
            "brokerOffset": row["max_offset"], "consumerOffset": row["consumer_offset"],
            "lastTimestamp": row["last_store_timestamp"] or 0,
            "pullOffset": row["consumer_offset"]} for row in rows if row["group"] == group}
    offset_table = answer(client, "GET_CONSUME_STATS", consumerGroup=GROUP,
                          topic=OTHER)["offsetTable"]
    assert {topic for topic, _ in by_queue(offset_table)} == {OTHER}
    assert answer(client, "GET_CONSUME_STATS", consumerGroup="none") == {
        "consumeTps": 0.0, "offsetTable": {}}
    everybody = answer(client, "GET_BROKER_CONSUME_STATS", isOrder=False)
    assert everybody["totalDiff"] == sum(totals.values())
    assert [list(statistics) for statistics in everybody["consumeStatsList"]] == [[GROUP], [BEHIND]]
    ordered = answer(client, "GET_BROKER_CONSUME_STATS", isOrder=True)["consumeStatsList"]
    assert [list(statistics) for statistics in ordered] == [[GROUP]]


def test_topics_a_group_does_not_subscribe_any_more_are_left_out(client):
    join(client, "one", OTHER, group=GROUP)
    offset_table = answer(client, "GET_CONSUME_STATS", consumerGroup=GROUP)["offsetTable"]
    assert {topic for topic, _ in by_queue(offset_table)} == {OTHER}


def test_who_consumes_what(client):
    assert answer(client, "QUERY_TOPIC_CONSUME_BY_WHO", topic=TOPIC)["groupList"] == [GROUP, BEHIND]
    assert answer(client, "QUERY_TOPICS_BY_CONSUMER", group=GROUP)["topicList"] == [TOPIC, OTHER]
    assert "subscriptionData" not in answer(
        client, "QUERY_SUBSCRIPTION_BY_CONSUMER", group="new", topic=OTHER)
    join(client, "one", OTHER, group="new", tags="a || b", version=9)
    assert answer(client, "QUERY_TOPIC_CONSUME_BY_WHO", topic=OTHER)["groupList"] == [GROUP, "new"]
    document = answer(client, "QUERY_SUBSCRIPTION_BY_CONSUMER", group="new", topic=OTHER)
    subscribed = document["subscriptionData"]
    assert (subscribed["tagsSet"], subscribed["codeSet"], subscribed["subVersion"]) == (
        ["a", "b"], [97, 98], 9)
    members = answer(client, "GET_CONSUMER_CONNECTION_LIST", consumerGroup="new")
    assert [connection["clientId"] for connection in members["connectionSet"]] == ["one"]
    assert members["subscriptionTable"] == {OTHER: subscribed}
    assert members["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert client.ask("GET_CONSUMER_CONNECTION_LIST", consumerGroup=GROUP).code == 206
    assert client.ask("GET_PRODUCER_CONNECTION_LIST", producerGroup="PG").code == 1
    client.ask("HEART_BEAT", {"clientID": "p", "producerDataSet": [{"groupName": "PG"}]})
    document = answer(client, "GET_PRODUCER_CONNECTION_LIST", producerGroup="PG")
    assert [connection["clientId"] for connection in document["connectionSet"]] == ["p"]


def test_time_spans(client, root, queues):
    spans = answer(client, "QUERY_CONSUME_TIME_SPAN", topic=TOPIC, group=GROUP)[
        "consumeTimeSpanSet"]
    places = {queue["queueId"]: [row[1] for row in queue["cq"]] for queue in queues
              if queue["topic"] == TOPIC}
    for span, (queue_id, consumed) in zip(spans, {0: 99, 1: 66, 2: 0, 3: 12}.items(), strict=True):
        rows = places[queue_id]
        assert span["messageQueue"] == {
            "brokerName": "broker-a", "queueId": queue_id, "topic": TOPIC}
        assert [span["minTimeStamp"], span["maxTimeStamp"], span["consumeTimeStamp"]] == [
            store_time(root, rows[at]) for at in (0, -1, consumed)]
        assert (span["delayTime"] == 0) is (queue_id in {1, 3})  # all consumed


def test_topics_and_groups_are_those_of_the_configuration(client):
    table = answer(client, "GET_ALL_TOPIC_CONFIG")
    assert table["dataVersion"] == CONFIG["topics.json"]["dataVersion"]
    stored = CONFIG["topics.json"]["topicConfigTable"]
    assert table["topicConfigTable"][TOPIC] == stored[TOPIC]
    # a name or a number of another type than clients read is not passed on
    assert table["topicConfigTable"][OTHER] == {
        **stored[OTHER], "attributes": {}, "topicName": OTHER, "topicSysFlag": 0}
    unlisted = table["topicConfigTable"]["TP_ship_evt-x"]
    assert (unlisted["readQueueNums"], unlisted["perm"]) == (4, 6)
    assert answer(client, "GET_TOPIC_CONFIG", topic=TOPIC) == stored[TOPIC]
    assert answer(client, "GET_TOPIC_CONFIG", topic="%RETRY%" + GROUP)["readQueueNums"] == 1
    assert client.ask("GET_TOPIC_CONFIG", topic="none").code == 17
    groups = answer(client, "GET_ALL_SUBSCRIPTIONGROUP_CONFIG")["subscriptionGroupTable"]
    assert set(groups) == {GROUP, BEHIND}
    assert (groups[GROUP]["retryMaxTimes"], groups[BEHIND]["retryMaxTimes"]) == (3, 16)
    assert answer(client, "GET_SUBSCRIPTIONGROUP_CONFIG", group=GROUP) == groups[GROUP]
    assert client.ask("GET_SUBSCRIPTIONGROUP_CONFIG", group="none").code == 26
    assert answer(client, "GET_ALL_CONSUMER_OFFSET") == CONFIG["consumerOffset.json"]
    assert answer(client, "GET_ALL_DELAY_OFFSET") == CONFIG["delayOffset.json"]
    system = answer(client, "GET_SYSTEM_TOPIC_LIST_FROM_BROKER")["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a",
            SYSTEM} <= set(system)


def test_a_configuration_that_cannot_be_read(golden_copy):
    store = golden_copy("5.3.3/basic/store")
    (store / "config").mkdir()
    for name in CONFIG:
        (store / "config" / name).write_text('{"topicConfigTable": [1], "offsetTable": {"3": {}')
    with serving(store) as served, served.client() as client:
        assert len(answer(client, "GET_ALL_TOPIC_CONFIG")["topicConfigTable"]) == 3
        for request in ("GET_ALL_SUBSCRIPTIONGROUP_CONFIG", "GET_ALL_CONSUMER_OFFSET",
                        "GET_ALL_DELAY_OFFSET", "GET_BROKER_RUNTIME_INFO"):
            answer(client, request)


LONGS = ("msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow "
         "msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow "
         "sendThreadPoolQueueSize pullThreadPoolQueueSize sendThreadPoolQueueHeadWaitTimeMills "
         "pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills earliestMessageTimeStamp "
         "timerReadBehind timerOffsetBehind timerCongestNum").split()
DOUBLES = ("commitLogDiskRatio consumeQueueDiskRatio putMessageAverageSize timerEnqueueTps "
           "timerDequeueTps").split()


def test_runtime_figures_have_what_tools_read_without_asking(client, root):
    records_of = len(list(records(client.pull(TOPIC, 0, 0).body)))
    table = answer(client, "GET_BROKER_RUNTIME_INFO")["table"]
    assert all(isinstance(value, str) for value in table.values())
    longs = {name: int(table[name]) for name in LONGS}
    assert all(float(table[name]) >= 0 for name in DOUBLES)
    for name in ("putTps", "getTransferedTps", "getTransferredTps"):
        assert len([float(part) for part in table[name].split(" ")]) == 3
    assert longs["msgGetTotalTodayNow"] == records_of
    got = answer(client, "VIEW_BROKER_STATS_DATA", statsName="GROUP_GET_NUMS",
                 statsKey=f"{TOPIC}@rmqctl")
    assert {message["sum"] for message in got.values()} == {records_of}
    assert longs["earliestMessageTimeStamp"] == store_time(root, 0)
    assert (table["commitLogMinOffset"], table["commitLogMaxOffset"]) == ("0", "326126")
    assert table["scheduleMessageOffset_3"] == "17,0"
    assert (table["brokerActive"], table["brokerVersionDesc"]) == ("true", "V4_9_3")
    response = client.ask("GET_BROKER_CONFIG")
    values = dict(line.split("=", 1) for line in response.body.decode().splitlines())
    assert values["brokerName"] == "broker-a"
    assert values["brokerPermission"] == "4"
    assert response.ext["version"]
    assert b"listenPort=" in client.ask("GET_NAMESRV_CONFIG").body
    refused = client.ask("VIEW_BROKER_STATS_DATA", statsName="TOPIC_PUT_NUMS", statsKey=TOPIC)
    assert (refused.code, refused.remark) == (1, f"The stats <TOPIC_PUT_NUMS> <{TOPIC}> not exist")


def test_rows_of_a_queue_are_the_engines(client, queues):
    for queue in queues[::5]:
        document = answer(client, "QUERY_CONSUME_QUEUE", topic=queue["topic"],
                          queueId=queue["queueId"], index=queue["min"] + 2, count=3)
        assert (document["minQueueIndex"], document["maxQueueIndex"]) == (queue["min"],
                                                                          queue["max"])
        assert [[row["physicOffset"], row["physicSize"], row["tagsCode"]]
                for row in document["queueData"]] == [row[1:] for row in queue["cq"][2:5]]
    group = answer(client, "QUERY_CONSUME_QUEUE", topic=TOPIC, queueId=0, index=0, count=1,
                   consumerGroup="none")
    assert group["filterData"] == f"none@{TOPIC} is not online!"
    for index in (-1, 107):
        beyond = client.ask("QUERY_CONSUME_QUEUE", topic=TOPIC, queueId=0, index=index, count=1)
        assert (beyond.code, beyond.remark) == (0, f"Index {index} of 0@{TOPIC} is not exist!")
    for topic, queue_id in ((TOPIC, 99), (TOPIC, -1), ("none", 0), ("../config", 0)):
        refused = client.ask("QUERY_CONSUME_QUEUE", topic=topic, queueId=queue_id, index=0, count=1)
        assert (refused.code, refused.remark) == (1, f"{queue_id}@{topic} is not exist!")
    assert not answer(client, "QUERY_CONSUME_QUEUE", topic=TOPIC, queueId=0, index=0, count=-5)[
        "queueData"]


def test_rows_whose_tags_code_stands_elsewhere_say_so(golden):
    with serving(golden("5.3.3/cqext/store")) as served, served.client() as client:
        topic = next(name for name in answer(client, "GET_ALL_TOPIC_CONFIG")["topicConfigTable"]
                     if name.startswith("TP_"))
        rows = answer(client, "QUERY_CONSUME_QUEUE", topic=topic, queueId=0, index=0, count=2)[
            "queueData"]
    assert len(rows) == 2
    assert all(row["tagsCode"] < -(1 << 31) and "consumequeue_ext" in row["msg"] for row in rows)


def test_answers_are_bounded(root, monkeypatch):
    topics = {"big": {"readQueueNums": 1 << 30, "writeQueueNums": 1 << 30, "perm": 6}}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable": {"big@CG": {"0": 1}}}')
    with serving(root) as served, served.client() as client:
        for request, ext in (
                ("GET_TOPIC_STATS_INFO", {"topic": "big"}),
                ("GET_CONSUME_STATS", {"consumerGroup": GROUP}),
                ("GET_BROKER_CONSUME_STATS", {"isOrder": False}),
                ("QUERY_CONSUME_TIME_SPAN", {"topic": "big", "group": GROUP}),
                ("INVOKE_BROKER_TO_RESET_OFFSET", {"topic": "big", "group": GROUP,
                                                   "timestamp": 0, "isForce": True})):
            refused = client.ask(request, **ext)
            assert (refused.code, "too many for one response" in refused.remark) == (1, True)
        monkeypatch.setattr(connection, "_MAX_BODY", 100)
        refused = client.ask("GET_ALL_TOPIC_CONFIG")
        assert (refused.code, "a frame can contain at most 100" in refused.remark) == (1, True)


def test_a_topic_that_may_not_be_read(root):
    topics = {TOPIC: {"readQueueNums": 4, "writeQueueNums": 4, "perm": 2}}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    with serving(root) as served, served.client() as client:
        assert client.pull(TOPIC, 0, 0).code == 16
        assert client.pull(OTHER, 0, 0).code == 0


def stands(client: Client, group: str, topic: str = TOPIC) -> list[int]:
    offsets_by_queue = by_queue(answer(client, "GET_CONSUME_STATS", consumerGroup=group,
                                       topic=topic)[
                                           "offsetTable"])
    return [offsets_by_queue[topic, queue_id]["consumerOffset"] for queue_id in range(4)]


def test_a_reset_moves_a_group_and_tells_its_members(served, client, root, queues):
    before = (root / "config" / "consumerOffset.json").read_bytes()
    with ExitStack() as stack:
        java, other = (stack.enter_context(served.client()) for _ in range(2))
        join(java, "java", TOPIC, group=GROUP)
        join(other, "c++", TOPIC, group=GROUP)
        served.do(lambda: setattr(
            served.brokers[0].groups.consumers[GROUP].member("c++"), "language", "CPP"))
        half = store_time(root, next(queue["cq"][50][1] for queue in queues
                                     if queue["topic"] == TOPIC and queue["queueId"] == 0))
        wanted = [queue["offsetByTime"] for queue in queues if queue["topic"] == TOPIC]
        assert wanted
        result = client.ask("INVOKE_BROKER_TO_RESET_OFFSET", topic=TOPIC, group=GROUP,
                            timestamp=half, isForce=True)
        table = by_queue(result.json()["offsetTable"])
        assert table[TOPIC, 0] == 50
        assert stands(client, GROUP) == [table[TOPIC, number] for number in range(4)]
        while (completed := java.receive()).code == 40:
            pass
        assert (completed.code, completed.is_one_way, completed.ext["group"]) == (220, True, GROUP)
        assert by_queue(completed.json()["offsetTable"]) == table
        while (completed := other.receive()).code == 40:
            pass
        assert {(offset["topic"], offset["queueId"]): offset["offset"]
                for offset in completed.json()["offsetTable"]} == table
    assert (root / "config" / "consumerOffset.json").read_bytes() == before


def test_other_resets(client):
    def reset(**ext: object) -> int:
        return client.ask("INVOKE_BROKER_TO_RESET_OFFSET", **{
            "topic": TOPIC, "group": BEHIND, "timestamp": -1, "isForce": True, **ext}).code

    assert reset(isForce=False) == 0  # only backwards: to where it is, or its beginning
    assert stands(client, BEHIND)[:2] == [7, 3]
    assert reset() == 0
    assert stands(client, BEHIND) == [107, 67, 8, 13]
    assert reset(timestamp=0) == 0
    assert stands(client, BEHIND) == [0, 0, 0, 0]
    assert reset(queueId=1, offset=44) == 0
    assert stands(client, BEHIND) == [0, 44, 0, 0]
    assert [reset(queueId=1, offset=68), reset(group="none"), reset(topic="none")] == [1, 26, 17]
    assert stands(client, BEHIND) == [0, 44, 0, 0]


def test_positions_cloned_and_compared(client):
    assert client.ask("CLONE_GROUP_OFFSET", srcGroup=GROUP, destGroup="copy", topic=TOPIC).code == 0
    assert stands(client, "copy") == [100, 67, 0, 13]
    assert stands(client, "copy", OTHER) == [0, 0, 0, 0]
    assert client.ask("CLONE_GROUP_OFFSET", srcGroup=GROUP, destGroup="copy").code == 0
    assert stands(client, "copy", OTHER)[:2] == [5, 200]
    document = answer(client, "QUERY_CORRECTION_OFFSET", topic=TOPIC, compareGroup=BEHIND)
    assert document["correctionOffsets"] == {"0": 7, "1": 3, "2": 0, "3": 13}
    document = answer(client, "QUERY_CORRECTION_OFFSET", topic=TOPIC, compareGroup=BEHIND,
                      filterGroups=BEHIND)
    assert document["correctionOffsets"] == {"0": (1 << 63) - 1, "1": (1 << 63) - 1, "2": 0,
                                             "3": 13}


def test_a_client_is_asked_through_the_broker(served, client, queues):
    with served.client() as consumer:
        join(consumer, "one", TOPIC)
        asked = client.send("GET_CONSUMER_RUNNING_INFO", ext={
            "consumerGroup": GROUP, "clientId": "one", "jstackEnable": False})
        request = consumer.receive()
        assert (request.code, request.ext["jstackEnable"]) == (307, "false")
        for opaque in (request.opaque + 1, request.opaque):  # nobody asked the first
            consumer.socket.sendall(write_command(Command(0, opaque, RESPONSE, body=b"{}")))
        response = client.receive()
        assert (response.opaque, response.code, response.body) == (asked, 0, b"{}")
        message = next(records(client.pull(TOPIC, 0, 0, most=1).body))
        client.send("CONSUME_MESSAGE_DIRECTLY", ext={
            "consumerGroup": GROUP, "clientId": "one", "msgId": message.message_id})
        request = consumer.receive()
        assert (request.code, request.ext["brokerName"]) == (309, "broker-a")
        assert next(records(request.body)).physical_offset == queues[0]["cq"][0][1]
        consumer.close()  # while it is asked
        gone = client.receive()
        assert gone.code == 207
    for client_id, message_id in (("one", message.message_id), ("one", "x"), ("one", "")):
        refused = client.ask("CONSUME_MESSAGE_DIRECTLY", consumerGroup=GROUP, clientId=client_id,
                             msgId=message_id)
        assert refused.code == 1
    assert client.ask("GET_CONSUMER_RUNNING_INFO", consumerGroup="none", clientId="one").remark == (
        "The Consumer <none> <one> not online")


def test_how_far_clients_are_by_their_own_word(served, client):
    wanted = {"topic": TOPIC, "group": GROUP}
    assert client.ask("INVOKE_BROKER_TO_GET_CONSUMER_STATUS", **wanted).code == 1
    with served.client() as first, served.client() as second:
        for name, member in (("one", first), ("two", second)):
            join(member, name, TOPIC)
        number = client.send("INVOKE_BROKER_TO_GET_CONSUMER_STATUS", ext=wanted)
        key = '{"brokerName":"broker-a","queueId":%d,"topic":"T"}'
        for member, body in (
                (first, f"{key % 0}:7,{key % 1}:-1"), (second, f"{{}}:1,{json.dumps(key % 2)}:9")):
            asked = member.receive()
            while asked.code != GET_CONSUMER_STATUS_FROM_CLIENT:
                asked = member.receive()
            member.socket.sendall(write_command(Command(0, asked.opaque, 1, body=(
                '{"consumerTable":{},"x":5,"messageQueueTable":{' + body + "}}").encode())))
        answer = client.receive()
        assert (answer.opaque, answer.json()) == (number, {"consumerTable": {
            "one": {key % 0: 7, key % 1: -1}, "two": {key % 2: 9}}})
        assert client.ask("INVOKE_BROKER_TO_GET_CONSUMER_STATUS", **wanted,
                          clientAddr="three").json() == {"consumerTable": {}}


@pytest.mark.parametrize("body", [b'"' + b"\\\"" * 200_000, b"{" * 400_000,
                                  b'{"a":1' * 60_000, b'"' * 400_000 + b"\\"],
                         ids=["quotes", "braces", "keys", "open"])
def test_what_clients_say_is_read_in_one_go(body: bytes) -> None:
    assert relay._positions(body) == {}


def test_a_client_that_does_not_answer(served, client, monkeypatch):
    monkeypatch.setattr(relay, "PATIENCE_S", 0.05)
    with served.client() as consumer:
        join(consumer, "one", TOPIC)
        response = client.ask("GET_CONSUMER_RUNNING_INFO", consumerGroup=GROUP, clientId="one")
        assert response.code == 207
        late = consumer.receive()
        consumer.socket.sendall(write_command(Command(0, late.opaque, RESPONSE)))
        assert client.ask("GET_CONSUMER_RUNNING_INFO", consumerGroup=GROUP, clientId="one").code \
            == 207


def test_queues_are_shared_out(served, client):
    def mine(name: str, **more: object) -> list[int]:
        body = {"topic": TOPIC, "consumerGroup": GROUP, "clientId": name, "strategyName": "AVG",
                "messageModel": "CLUSTERING", **more}
        result = client.ask("QUERY_ASSIGNMENT", body)
        assert result.code == 0
        return [assignment["messageQueue"]["queueId"]
                for assignment in result.json()["messageQueueAssignments"]
                if assignment["mode"] == "PULL"]

    # Who is not known here yet is told nothing, and keeps what it has.
    assert client.ask("QUERY_ASSIGNMENT", {"topic": TOPIC, "consumerGroup": GROUP}).json() == {}
    join(client, "one", TOPIC)
    assert mine("one") == [0, 1, 2, 3]
    with served.client() as second:
        join(second, "two", TOPIC)
        assert [mine("one"), mine("two"), mine("three")] == [[0, 1], [2, 3], []]
        assert mine("two", strategyName="AVG_BY_CIRCLE") == [1, 3]
        assert mine("three", messageModel="BROADCASTING") == [0, 1, 2, 3]
    assert client.ask("QUERY_ASSIGNMENT", {"topic": TOPIC, "consumerGroup": GROUP,
                                           "strategyName": "MACHINE"}).json() == {}
    assert client.ask("QUERY_ASSIGNMENT", b"[").code == 1


@settings(max_examples=examples(100))
@given(st.integers(0, 40), st.integers(1, 12), st.sampled_from(["AVG", "AVG_BY_CIRCLE"]))
def test_shares_are_those_that_clients_work_out(queue_count, client_count, strategy):
    queues = list(range(queue_count))
    shares = [assigning.share(queues, client_count, place, strategy)
              for place in range(client_count)]
    assert sorted(queue for share in shares for queue in share) == queues
    if strategy == "AVG":  # spec: remoting.md §5
        for place, share in enumerate(shares):
            more = queue_count % client_count
            size = 1 if queue_count <= client_count else queue_count // client_count + (
                more > 0 and place < more)
            start = place * size if more > 0 and place < more else place * size + more
            assert share == queues[start:][:min(size, max(queue_count - start, 0))]


def test_producers_slaves_and_cold_reads(client: Client) -> None:
    client.ask("HEART_BEAT", {"clientID": "one", "producerDataSet": [{"groupName": "PG"}]})
    (producer,) = client.ask("GET_ALL_PRODUCER_INFO").json()["data"]["PG"]
    assert (producer["clientId"], producer["remoteIP"].startswith("127.0.0.1:")) == ("one", True)
    assert abs(producer["lastUpdateTimestamp"] / 1000 - time.time()) < 60
    slaves = client.ask("GET_BROKER_HA_STATUS").json()
    figures = client.ask("GET_BROKER_RUNTIME_INFO").json()["table"]
    assert (slaves["master"], slaves["inSyncSlaveNums"], slaves["haConnectionInfo"]) == (
        True, 0, [])
    assert slaves["masterCommitLogMaxOffset"] == int(figures["commitLogMaxOffset"])
    cold = client.ask("GET_COLD_DATA_FLOW_CTR_INFO").json()
    assert (cold["runtimeTable"], cold["configTable"]) == ({}, {})
