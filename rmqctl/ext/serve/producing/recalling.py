"""Recall of messages before they are due (spec: timer-and-others-5x.md §1.3).

To recall a message, a delete message is stored. It waits in the same slot of the timer wheel.
"""

from __future__ import annotations

import base64
import binascii

from rmqctl.engine.put.message import Outgoing, PutResult
from rmqctl.engine.put.rewrite import TIMER_DELIVER_MS, timer_rewrite
from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.producing.sending import host_of
from rmqctl.ext.serve.producing.timing import HANDLE_VERSION
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import properties as props
from rmqctl.parse_values import now_ms

_TAG = "_RECALL_TAG_"
_MAX_HANDLE = 64 << 10
"""Maximum length of a recall handle in characters. A handle contains a topic and a key, which
together fit into 32 KiB of properties.
"""


def recall(broker: Broker, call: Call) -> None:
    """Recall a message that is not due yet."""
    # Refuse what cannot be recalled, in a broker's order.
    writer, wanted = broker.writer, call.fields
    assert writer is not None
    if writer.settings.profile.generation < 5:
        raise Failed(Status.REQUEST_CODE_NOT_SUPPORTED, " request type 370 not supported")
    if writer.is_busy:
        raise Failed(Status.SYSTEM_BUSY, "too many messages are waiting to be stored, try again "
                     "later")
    topic = wanted["topic"]
    if writer.topics.get(topic) is None:
        raise Failed(Status.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
    named, name, due, key = handle_of(wanted["recallHandle"])
    if named != topic:
        raise Failed(Status.ILLEGAL_OPERATION, "recall failed, topic not match")
    if name != broker.name:
        raise Failed(Status.ILLEGAL_OPERATION, "recall failed, broker service not available")
    now = now_ms()
    left = int(due) - now if due.isdecimal() and due.isascii() and len(due) < 19 else 0
    if not 0 < left < writer.settings.timer_max_delay:
        raise Failed(Status.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
    group = wanted["producerGroup"]
    if group is not None and not _is_value(group):
        raise Failed(Status.ILLEGAL_OPERATION, "recall failed, producer group invalid")
    # Store the message that deletes it.
    properties = JavaMap()  # as a message has them that the broker makes by itself
    for field_name, value in (
            (props.TAGS, _TAG), (props.TIMER_DELETE, f"{topic}+{key}"), (props.UNIQUE_KEY, key),
            (TIMER_DELIVER_MS, due), ("BORN_TIMESTAMP", str(now)), ("TRACE_CONTEXT", ""),
            ("PGROUP", group)):
        if value is not None:
            properties.put(field_name, value)
    marker = Outgoing(topic, b"0", properties.text(trailing=True), born_timestamp=now,
                    born_host=host_of(call.connection.peer))
    message = timer_rewrite(marker, properties, now, writer.settings)
    if isinstance(message, PutResult):
        raise Failed(Status.SYSTEM_ERROR, "recall failed, execute error")

    def then(result: PutResult) -> None:
        call.reply(Response({"MSG_REGION": "DefaultRegion", "msgId": key}) if result.stored else (
            Response({}, (), int(Status.SYSTEM_ERROR), "recall failed, execute error")))

    writer.put(message, then)


def handle_of(text: str) -> list[str]:
    """Return the topic, broker, time and unique key in a recall handle. Raises: Failed."""
    try:
        parts = base64.b64decode(text[:_MAX_HANDLE].encode() + b"=" * (-len(text) % 4), b"-_",
                                 validate=True).decode().split(" ", 5)
    except (binascii.Error, ValueError):
        parts = []
    if len(text) > _MAX_HANDLE or len(parts) < 5 or parts[0] != HANDLE_VERSION or not all(
            map(_is_value, parts[1:5])):
        raise Failed(Status.ILLEGAL_OPERATION, "recall handle is invalid")
    return parts[1:5]


def _is_value(text: str) -> bool:
    """Return whether a text can be a property's value, that is, contains no property separators."""
    return props.NAME_VALUE_SEPARATOR not in text and props.PROPERTY_SEPARATOR not in text


HANDLERS: Table = {"RECALL_MESSAGE": recall}
