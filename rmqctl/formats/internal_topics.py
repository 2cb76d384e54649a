"""Messages that RocketMQ itself writes: its internal topics, and the bodies of internal messages.

`meaning` explains a message in an internal topic. `reader_of` returns the reader of bodies that no
application created: traces, transaction ops, POP check points and acks.

Spec: recovery.md §9 and §10, timer-and-others-5x.md §1 and §6. Traces have the format
of the Java client's TraceDataEncoder (4.4 to 5.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmqctl.formats.budget import at_most
from rmqctl.formats.local import properties as props

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_TRACE_PREFIX = "rmq_sys_TRACE_DATA_"
_V2_SEPARATOR = "+"
"""Separator of group and topic in the name of a POP retry topic of 5.x; no group name contains
it."""
_MOVED = (props.HALF_TOPIC, props.SCHEDULE_TOPIC, props.TIMER_TOPIC)
"""Topics in which messages for other topics wait."""
_POP = {"ck": "pop-checkpoint", "ack": "pop-ack", "bAck": "pop-batch-ack"}
_POP_NAMES = {
    "so": "startOffset", "pt": "popTime", "it": "invisibleTime", "bm": "bitMap", "n": "num",
    "q": "queueId", "t": "topic", "c": "consumerGroup", "ro": "reviveOffset",
    "d": "queueOffsetDiff", "bn": "brokerName", "rp": "rePutTimes", "ao": "ackOffset",
    "aol": "ackOffsetList"}


def real_topic(topic: str, properties: Mapping[str, str]) -> str:
    """Return the topic to which a message belongs while it waits in another topic."""
    return properties.get(props.REAL_TOPIC, topic) if topic in _MOVED else topic


def meaning(topic: str, properties: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the meaning of a message in an internal topic, with the known fields; None for other
    topics.
    """
    fields = _kind(topic, properties)
    return None if fields is None else {
        name: value for name, value in fields.items() if value is not None}


def _kind(topic: str, properties: Mapping[str, str]) -> dict[str, Any] | None:
    get = properties.get
    if topic in _MOVED:
        place = {"topic": get(props.REAL_TOPIC), "queue_id": _number(get(props.REAL_QUEUE_ID))}
        if topic == props.SCHEDULE_TOPIC:
            return {"kind": "schedule", **place, "delay_level": _number(get(props.DELAY))}
        if topic == props.TIMER_TOPIC:
            return {"kind": "timer", **place, "timer_out_ms": _number(get(props.TIMER_OUT_MS))}
        return {"kind": "half", **place, "producer_group": get("PGROUP"),
                "transaction_id": get("__transactionId__", get(props.UNIQUE_KEY))}
    if topic == props.OP_HALF_TOPIC:
        return {"kind": "op"}
    if topic == TRACE_TOPIC or topic.startswith(_TRACE_PREFIX):
        return {"kind": "trace"}
    if topic.startswith(props.REVIVE_PREFIX):
        return {"kind": _POP.get(get(props.TAGS, ""), "pop")}
    if topic.startswith(props.RETRY_PREFIX):
        group, _, of_topic = topic.removeprefix(props.RETRY_PREFIX).partition(_V2_SEPARATOR)
        return {"kind": "retry", "group": group, "topic": of_topic or get(props.RETRY_TOPIC),
                "origin_message_id": get(props.ORIGIN_MESSAGE_ID)}
    if topic.startswith(props.DLQ_PREFIX):
        return {"kind": "dlq", "group": topic.removeprefix(props.DLQ_PREFIX),
                "topic": get(props.DLQ_ORIGIN_TOPIC, get(props.RETRY_TOPIC)),
                "origin_message_id": get("DLQ_ORIGIN_MESSAGE_ID", get(props.ORIGIN_MESSAGE_ID))}
    return None


def _number(text: str | None) -> int | str | None:
    """Convert a text of digits to an int. Return any other text, and texts of more than 20
    characters, unchanged.
    """
    if text is None or len(text) > 20 or not text.isascii() or not text.removeprefix(
            "-").isdigit():
        return text
    return int(text)


def reader_of(topic: str) -> Callable[[bytes, Mapping[str, str], Callable[[bytes], Any]],
                                      tuple[Any, str]] | None:
    """Return the body reader for a topic to which only brokers and client libraries write; None for
    other topics.

    The reader receives the body, the properties and a JSON reader. It returns (value, kind) or
    raises ValueError.
    """
    if topic == TRACE_TOPIC or topic.startswith(_TRACE_PREFIX):
        return lambda body, _properties, _json: (traces(body), "trace")
    if topic == props.OP_HALF_TOPIC:
        return lambda body, _properties, _json: (half_offsets(body), "op")
    if topic.startswith(props.REVIVE_PREFIX):
        return lambda body, properties, json: (
            pop_state(json(body)), _POP.get(properties.get(props.TAGS, ""), "pop"))
    return None


def half_offsets(body: bytes) -> list[int]:
    """Return the queue offsets of the half messages that an op message commits or rolls back.

    Raises: ValueError.
    """
    at_most(body.count(b","))
    parts = [part for part in body.decode("ascii", "replace").split(",") if part]
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 20
                            for part in parts):
        raise ValueError("not an op message: expected queue offsets separated by commas")
    return [int(part) for part in parts]


def pop_state(document: Any) -> dict[str, Any]:
    """Return a POP check point or an ack with the long names of its fields.

    Raises: ValueError.
    """
    if not isinstance(document, dict):
        raise ValueError("not a POP check point or ack: expected a JSON object")  # noqa: TRY004
    return {_POP_NAMES.get(str(name), str(name)): value for name, value in document.items()}


# -- traces ---------------------------------------------------------------------------------------

_TRACE_FIELD, _TRACE_END = "\x01", "\x02"
_TRACE_FIELDS = {
    "Pub": ("timeStamp", "regionId", "groupName", "topic", "msgId", "tags", "keys", "storeHost",
            "bodyLength", "costTime", "msgType", "offsetMsgId", "success", "clientHost"),
    "SubBefore": ("timeStamp", "regionId", "groupName", "requestId", "msgId", "retryTimes",
                  "keys"),
    "SubAfter": ("requestId", "msgId", "costTime", "success", "keys", "contextCode", "timeStamp",
                 "groupName"),
    "EndTransaction": ("timeStamp", "regionId", "groupName", "topic", "msgId", "tags", "keys",
                       "storeHost", "msgType", "transactionId", "transactionState",
                       "fromTransactionCheck"),
    "Recall": ("timeStamp", "regionId", "groupName", "topic", "msgId", "success"),
}
"""The fields of each trace type after its name, in the order in which they are written."""
_MIN_FIELDS = {"Pub": 11, "SubBefore": 7, "SubAfter": 5, "EndTransaction": 12, "Recall": 6}
"""The minimum number of fields for each type: every client writes at least this many."""
_OLD_PUB = 12
"""The number of fields in a Pub trace that the earliest clients wrote, without an offsetMsgId."""
_TRACE_NUMBERS = {"timeStamp", "bodyLength", "costTime", "retryTimes", "contextCode"}
_TRACE_BOOLS = {"success", "fromTransactionCheck"}
_MESSAGE_TYPES = ("Normal_Msg", "Trans_Msg_Half", "Trans_msg_Commit", "Delay_Msg", "Order_Msg")


def traces(body: bytes) -> list[dict[str, Any]]:
    """Return the traces of one message, with the field names of RocketMQ's classes.

    A trace of an unknown type has only ``traceType`` and ``fields``.

    Raises: ValueError if all types are unknown.
    """
    at_most(body.count(_TRACE_FIELD.encode()) + body.count(_TRACE_END.encode()))
    events = [_trace(line.split(_TRACE_FIELD))
              for line in body.decode("utf-8", "replace").split(_TRACE_END) if line]
    if all("fields" in trace for trace in events):
        raise ValueError("not a trace of a RocketMQ client")
    return events


def _trace(parts: list[str]) -> dict[str, Any]:
    kind, *values = parts
    if len(values) < _MIN_FIELDS.get(kind, len(parts)):
        return {"traceType": kind, "fields": values}
    names = _TRACE_FIELDS[kind]
    if kind == "Pub" and len(values) == _OLD_PUB:
        names = tuple(name for name in names if name != "offsetMsgId")
    named = {name: _trace_value(name, value) for name, value in zip(names, values, strict=False)
             if value or name in ("tags", "keys")}
    more = [value for value in values[len(names):] if value]
    return {"traceType": kind, **named, **({"more": more} if more else {})}


def _trace_value(name: str, value: str) -> Any:
    if name in _TRACE_NUMBERS or name == "msgType":
        number = _number(value)
        if name == "msgType" and isinstance(number, int) and 0 <= number < len(_MESSAGE_TYPES):
            return _MESSAGE_TYPES[number]
        return number
    if name in _TRACE_BOOLS and value in ("true", "false"):
        return value == "true"
    return value
