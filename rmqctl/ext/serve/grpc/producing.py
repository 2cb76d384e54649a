"""Methods that send messages and end transactions (spec: remoting.md §7)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from rmqctl.engine.put.admission import MAX_PROPERTIES
from rmqctl.engine.put.rewrite import TIMER_DELIVER_MS
from rmqctl.ext.serve.broker import Broker
from rmqctl.ext.serve.grpc.calls import Caller, Endpoint, code_of, refused_by
from rmqctl.ext.serve.grpc.messages import MAX_BODY, TRANSACTION, body_of, properties_of
from rmqctl.ext.serve.grpc.protocol import (
    MESSAGES,
    Code,
    Refused,
    milliseconds,
    response,
    status,
)
from rmqctl.ext.serve.grpc.routes import brokers_with
from rmqctl.ext.serve.grpc.sessions import name_of, transaction_id
from rmqctl.ext.serve.producing.recalling import handle_of
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.ext.serve.source import WRITE, ServedTopic
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.javahash import string_hash
from rmqctl.formats.local.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rmqctl.parse_values import now_ms

_DEFAULT_TOPIC, _DEFAULT_QUEUES = "TBW102", 4
_MAX_AT_ONCE, _MAX_BYTES = 1024, 4 * MAX_BODY
"""Maximum number of messages in one request, and maximum total size in bytes of their bodies."""
_MAX_PROPERTIES = 64 << 10
"""Maximum size in bytes of a message in a request, without its body. (The maximum size of the
properties in a record is smaller.)
"""
_FROM_CHECK = 2
_RESOLUTIONS = {1: TRANSACTION_COMMIT, 2: TRANSACTION_ROLLBACK}
_TRANSACTION = re.compile(r"(.{1,80})\.(\d{1,19})\.(\d{1,19})")
_LCG, _U64 = 2862933555777941757, (1 << 64) - 1


async def send(endpoint: Endpoint, caller: Caller, request: Any) -> Any:
    """Store one message, or several messages of the same topic."""
    # Check that all messages have one topic, and none is too large.
    messages = request.messages
    if not 0 < len(messages) <= _MAX_AT_ONCE:
        raise Refused(Code.MESSAGE_CORRUPTED, f"a request must contain 1 to {_MAX_AT_ONCE} "
                      "messages")
    name = name_of(messages[0].topic, Code.ILLEGAL_TOPIC, "topic")
    if any(message.topic != messages[0].topic for message in messages):
        raise Refused(Code.MESSAGE_CORRUPTED, "topic in message is not same")
    if any(message.ByteSize() - len(message.body) > _MAX_PROPERTIES for message in messages):
        raise Refused(Code.MESSAGE_PROPERTIES_TOO_LARGE,
                      "the properties of a message are too large")
    # Choose a writable broker, and one of its queues.
    candidates = brokers_with(endpoint.brokers, name)
    writable = [(broker, topic) for broker, topic in candidates
                if broker.writer is not None and topic.perm & WRITE]
    if not writable:
        read_only = all(broker.writer is None for broker, _ in candidates)
        raise Refused(Code.FORBIDDEN, "the broker is read-only" if read_only else (
            f"sending to topic {name} is forbidden"))
    ordered = messages[0].system_properties.message_group if len(messages) == 1 else ""
    broker, queue_id = _queue(endpoint, writable, ordered)
    # Store all; the response has the code of all, if it is the same.
    requests = []
    size = 0
    for message in messages:
        requests.append(_fields(broker, caller, message, name, queue_id))
        size += len(requests[-1][0])
        if size > _MAX_BYTES:
            raise Refused(Code.MESSAGE_BODY_TOO_LARGE, "the messages of the request are too large "
                          "in total")
    entries = await asyncio.gather(*(
        _sent(broker, caller, message, body, fields)
        for message, (body, fields) in zip(messages, requests, strict=True)))
    codes = {entry.status.code for entry in entries}
    code = Code(codes.pop()) if len(codes) == 1 else Code.MULTIPLE_RESULTS
    return response("SendMessage", code,
                    entries[0].status.message if code != Code.OK else None, entries=entries)


def _queue(endpoint: Endpoint, writable: list[tuple[Broker, ServedTopic]], ordered: str
           ) -> tuple[Broker, int]:
    """Return the broker and the queue id for a message.

    Messages of the same group (``ordered``) always get the same queue. Other messages go to each of
    the brokers in turn, with the queue id -1: the broker chooses the queue.
    """
    if not ordered:
        endpoint.turn += 1
        return writable[endpoint.turn % len(writable)][0], -1
    queues = [(broker, number) for broker, topic in writable
              for number in range(topic.write_queues)]
    return queues[_bucket(string_hash(ordered), len(queues))]


def _bucket(key: int, buckets: int) -> int:
    """Return the bucket for a key by jump consistent hash (Lamping and Veach).

    Proxies map message groups to queues with this hash.
    """
    state, bucket, following = key & _U64, 0, 0
    while following < buckets:
        bucket = following
        state = (_LCG * state + 1) & _U64
        following = int((bucket + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return bucket


def _fields(broker: Broker, caller: Caller, message: Any, topic: str, queue_id: int
            ) -> tuple[bytes, dict[str, object]]:
    """Return the body and the header fields of the remoting request that stores a message.
    Raises: Refused.
    """
    system = message.system_properties
    properties = properties_of(message, caller.peer)
    if system.HasField("delivery_timestamp"):
        properties |= _delivered_at(broker, milliseconds(system.delivery_timestamp))
    text = props.build(properties)
    if len(text.encode()) > MAX_PROPERTIES:
        raise Refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"the properties have more than "
                      f"{MAX_PROPERTIES} bytes")
    born = milliseconds(system.born_timestamp) if system.HasField("born_timestamp") else now_ms()
    return body_of(message), {
        "producerGroup": topic, "topic": topic, "defaultTopic": _DEFAULT_TOPIC,
        "defaultTopicQueueNums": _DEFAULT_QUEUES, "queueId": queue_id,
        "sysFlag": TRANSACTION_PREPARED if system.message_type == TRANSACTION else 0,
        "bornTimestamp": born, "flag": 0, "properties": text, "reconsumeTimes": 0}


def _delivered_at(broker: Broker, when: int) -> dict[str, str]:
    """Return the property that delays a message until ``when`` (ms). Raises: Refused.

    For a 4.x store, the property contains the shortest delay level that is long enough.
    """
    assert broker.writer is not None
    wanted, settings = when - now_ms(), broker.writer.settings
    if settings.profile.timer:
        if wanted > settings.timer_max_delay:
            raise Refused(Code.ILLEGAL_DELIVERY_TIME, "messages can be delayed by at most "
                          f"{settings.timer_max_delay} ms")
        return {TIMER_DELIVER_MS: str(when)}
    levels = sorted((ms, level) for level, ms in broker.writer.levels.items() if ms >= wanted)
    if not levels:
        raise Refused(Code.ILLEGAL_DELIVERY_TIME, "this store delays messages by levels, "
                      "and its longest level is shorter than this delay")
    return {props.DELAY: str(levels[0][1])}


async def _sent(broker: Broker, caller: Caller, message: Any, body: bytes,
                fields: dict[str, object]) -> Any:
    """Store a message. Return its SendResultEntry for the response."""
    answer = await caller.link(broker).request("SEND_MESSAGE", body, **fields)
    entry = MESSAGES["SendResultEntry"]
    ext = answer.ext or {}
    if answer.code != Status.SUCCESS:
        return entry(status=status(code_of(answer.code), answer.remark))
    message_id, offset = message.system_properties.message_id, int(ext["queueOffset"])
    half = ""
    if message.system_properties.message_type == TRANSACTION:
        half = transaction_id(broker, int(ext["msgId"][-16:], 16), offset)
    return entry(status=status(Code.OK), message_id=message_id, transaction_id=half, offset=offset,
                 recall_handle=ext.get("recallHandle", ""))


async def end_transaction(endpoint: Endpoint, caller: Caller, request: Any) -> Any:
    """Commit or roll back a half message. Do nothing if the producer reports that the outcome is
    unknown.
    """
    place = _TRANSACTION.fullmatch(request.transaction_id)
    broker = next((candidate for candidate in endpoint.brokers
                   if place is not None and candidate.name == place[1]), None)
    if place is None or broker is None:
        raise Refused(Code.INVALID_TRANSACTION_ID, "unknown transaction id")
    resolution = _RESOLUTIONS.get(request.resolution)
    if resolution is not None:
        answer = await caller.link(broker).request(
            "END_TRANSACTION", producerGroup=name_of(request.topic, Code.ILLEGAL_TOPIC, "topic"),
            commitLogOffset=place[2], tranStateTableOffset=place[3], commitOrRollback=resolution,
            fromTransactionCheck=request.source == _FROM_CHECK, msgId=request.message_id)
        if answer.code != Status.SUCCESS:
            raise refused_by(answer)
    return response("EndTransaction")


async def recall(endpoint: Endpoint, caller: Caller, request: Any) -> Any:
    """Recall a message that is not due yet."""
    topic = name_of(request.topic, Code.ILLEGAL_TOPIC, "topic")
    try:
        _, name, _, key = handle_of(request.recall_handle)
    except Failed as error:
        raise Refused(Code.INTERNAL_SERVER_ERROR, error.remark) from None
    broker = next((candidate for candidate in endpoint.brokers if candidate.name == name), None)
    if broker is None:
        raise Refused(Code.INTERNAL_SERVER_ERROR, "recall failed, broker service not available")
    answer = await caller.link(broker).request(
        "RECALL_MESSAGE", topic=topic, recallHandle=request.recall_handle)
    if answer.code != Status.SUCCESS:
        raise refused_by(answer)
    return response("RecallMessage", message_id=key)


async def sync_lite(_endpoint: Endpoint, _caller: Caller, _request: Any) -> Any:
    """Raise Refused: lite topics are not supported."""
    raise Refused(Code.NOT_IMPLEMENTED, "lite topics are not supported")
