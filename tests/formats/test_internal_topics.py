"""What RocketMQ itself writes: meanings of its topics, ops, POP states, traces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmqctl.formats.internal_topics import half_offsets, meaning, reader_of, traces


@pytest.mark.parametrize(("topic", "properties", "wanted"), [
    ("orders", {"REAL_TOPIC": "x"}, None),
    ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "orders", "REAL_QID": "3", "DELAY": "18"},
     {"kind": "schedule", "topic": "orders", "queue_id": 3, "delay_level": 18}),
    ("SCHEDULE_TOPIC_XXXX", {"REAL_QID": "1_0"}, {"kind": "schedule", "queue_id": "1_0"}),
    ("rmq_sys_wheel_timer", {"REAL_TOPIC": "orders", "REAL_QID": "0", "TIMER_OUT_MS": "17"},
     {"kind": "timer", "topic": "orders", "queue_id": 0, "timer_out_ms": 17}),
    ("RMQ_SYS_TRANS_HALF_TOPIC",
     {"REAL_TOPIC": "t", "REAL_QID": "0", "PGROUP": "p", "UNIQ_KEY": "u"},
     {"kind": "half", "topic": "t", "queue_id": 0, "producer_group": "p", "transaction_id": "u"}),
    ("RMQ_SYS_TRANS_OP_HALF_TOPIC", {"TAGS": "d"}, {"kind": "op"}),
    ("rmq_sys_REVIVE_LOG_C", {"TAGS": "bAck"}, {"kind": "pop-batch-ack"}),
    ("%RETRY%g", {"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "7F"},
     {"kind": "retry", "group": "g", "topic": "t", "origin_message_id": "7F"}),
    ("%RETRY%g+t", {}, {"kind": "retry", "group": "g", "topic": "t"}),
    ("%DLQ%g", {"RETRY_TOPIC": "t", "DLQ_ORIGIN_TOPIC": "o"},
     {"kind": "dlq", "group": "g", "topic": "o"}),
    ("rmq_sys_TRACE_DATA_x", {}, {"kind": "trace"}),
])
def test_meanings(topic: str, properties: dict[str, str], wanted: dict[str, Any] | None) -> None:
    assert meaning(topic, properties) == wanted


def test_ops() -> None:
    assert half_offsets(b"17") == [17]
    assert half_offsets(b"17,18,") == [17, 18]
    for wrong in (b"", b",", b"a", b"-1", b"\xff", b"9" * 20, "\u0663".encode()):
        with pytest.raises(ValueError, match="queue offsets"):
            half_offsets(wrong)


def test_pop_states_get_the_names_of_their_fields() -> None:
    read = reader_of("rmq_sys_REVIVE_LOG_DefaultCluster")
    assert read is not None
    body = b'{"bm":0,"bn":"b","c":"g","d":[0,1],"it":60000,"n":2,"pt":17,"q":3,"so":5,"t":"T"}'
    assert read(body, {"TAGS": "ck"}, json.loads) == ({
        "bitMap": 0, "brokerName": "b", "consumerGroup": "g", "queueOffsetDiff": [0, 1],
        "invisibleTime": 60000, "num": 2, "popTime": 17, "queueId": 3, "startOffset": 5,
        "topic": "T"}, "pop-checkpoint")
    assert read(b'{"aol":[1,2],"ackOffset":7}', {"TAGS": "bAck"}, json.loads) == (
        {"ackOffsetList": [1, 2], "ackOffset": 7}, "pop-batch-ack")
    with pytest.raises(ValueError, match="expected a JSON object"):
        read(b"[]", {}, json.loads)


# -- traces, as TraceDataEncoder writes them ------------------------------------------------------

PUB = ["Pub", "1700000000000", "DefaultRegion", "group", "orders", "7F01", "TagA", "k1 k2",
       "10.0.0.1:10911", "26", "245", "0", "0A0000", "true"]
NAMED = {"traceType": "Pub", "timeStamp": 1700000000000, "regionId": "DefaultRegion",
         "groupName": "group", "topic": "orders", "msgId": "7F01", "tags": "TagA",
         "keys": "k1 k2", "storeHost": "10.0.0.1:10911", "bodyLength": 26, "costTime": 245,
         "msgType": "Normal_Msg", "offsetMsgId": "0A0000", "success": True}


def encoded(*lines: list[str]) -> bytes:
    return "".join("\x01".join(line) + "\x02" for line in lines).encode()


def test_traces() -> None:
    before = ["SubBefore", "17", "R", "g", "req", "7F01", "0", "k"]
    after = ["SubAfter", "req", "7F01", "12", "true", "k", "0", "18", "g"]
    after_of_cloud = [*after[:7], ""]
    end = ["EndTransaction", "17", "R", "g", "T", "7F01", "", "", "h", "2", "tx", "COMMIT_MESSAGE",
           "false"]
    recall = ["Recall", "17", "R", "g", "T", "7F01", "true"]
    assert traces(encoded(PUB, before, after, after_of_cloud, end, recall)) == [
        NAMED,
        {"traceType": "SubBefore", "timeStamp": 17, "regionId": "R", "groupName": "g",
         "requestId": "req", "msgId": "7F01", "retryTimes": 0, "keys": "k"},
        {"traceType": "SubAfter", "requestId": "req", "msgId": "7F01", "costTime": 12,
         "success": True, "keys": "k", "contextCode": 0, "timeStamp": 18, "groupName": "g"},
        {"traceType": "SubAfter", "requestId": "req", "msgId": "7F01", "costTime": 12,
         "success": True, "keys": "k", "contextCode": 0},
        {"traceType": "EndTransaction", "timeStamp": 17, "regionId": "R", "groupName": "g",
         "topic": "T", "msgId": "7F01", "tags": "", "keys": "", "storeHost": "h",
         "msgType": "Trans_msg_Commit", "transactionId": "tx",
         "transactionState": "COMMIT_MESSAGE", "fromTransactionCheck": False},
        {"traceType": "Recall", "timeStamp": 17, "regionId": "R", "groupName": "g", "topic": "T",
         "msgId": "7F01", "success": True}]


def test_traces_of_old_and_of_later_clients() -> None:
    assert traces(encoded([*PUB[:12], "true"])) == [
        {name: value for name, value in NAMED.items() if name != "offsetMsgId"}]
    assert traces(encoded([*PUB, "10.0.0.7", "new"])) == [
        NAMED | {"clientHost": "10.0.0.7", "more": ["new"]}]
    assert traces(encoded(PUB, ["Later", "a"])) == [
        NAMED, {"traceType": "Later", "fields": ["a"]}]
    for wrong in (b"", b"hello", b"\xff\xff", encoded(PUB[:5])):
        with pytest.raises(ValueError, match="not a trace"):
            traces(wrong)
