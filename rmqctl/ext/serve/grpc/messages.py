"""Conversion of stored messages for 5.x clients, and of clients' messages for the store, as in
RocketMQ's proxy (spec: remoting.md §7).
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import Any

from rmqctl.ext.serve.broker import Buffer
from rmqctl.ext.serve.consuming.popping import MAX_ATTEMPTS
from rmqctl.ext.serve.grpc.protocol import MESSAGES, Code, Refused, milliseconds, span
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import decode, host_text
from rmqctl.store.objects import java_text, plain_body

NORMAL, FIFO, DELAY, TRANSACTION = 1, 2, 3, 4
_MD5, _IDENTITY, _GZIP = 2, 1, 2
MAX_BODY = 4 << 20
_SHARDING_KEY, _TRACE_CONTEXT = "__SHARDINGKEY", "TRACE_CONTEXT"
_TIMER_MS, _TIMER_S, _BORN_HOST = "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "__BORNHOST"
_DLQ_ORIGIN_ID = "DLQ_ORIGIN_MESSAGE_ID"
_SYSTEM_NAMES = """
TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP
MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG
RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME
TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL
ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS
TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS
TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID
"""
_SYSTEM = frozenset(_SYSTEM_NAMES.split())
"""Properties that clients must not set themselves, and that are not returned as user properties."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_RESERVED = _SYSTEM | {props.MULTI_DISPATCH, props.INNER_NUM, props.INNER_BASE, props.CRC32}


def to_client(record: Buffer, topic: str) -> Any:
    """Return a stored record as a Message for clients, with its body decompressed if possible."""
    # Fields of every message.
    message = decode(record)
    properties = props.parse(java_text(message.properties))
    body, problem = plain_body(message.sys_flag, bytes(message.body))
    system: dict[str, Any] = {
        "keys": props.split_keys(properties.get(props.KEYS)),
        "message_id": properties.get(props.UNIQUE_KEY) or message.message_id,
        "body_digest": {"type": _MD5, "checksum": hashlib.md5(
            body, usedforsecurity=False).hexdigest().upper()},
        "body_encoding": _IDENTITY if problem is None else _GZIP,
        "message_type": _type(properties),
        "born_timestamp": span(message.born_timestamp), "store_timestamp": span(
            message.store_timestamp),
        "born_host": properties.get(_BORN_HOST) or host_text(*message.born_host).rpartition(":")[0],
        "store_host": host_text(*message.store_host),
        "queue_id": message.queue_id, "queue_offset": message.queue_offset,
        "delivery_attempt": min(message.reconsume_times + 1, MAX_ATTEMPTS)}
    # Optional fields.
    for field, name in (("tag", props.TAGS), ("message_group", _SHARDING_KEY),
                        ("trace_context", _TRACE_CONTEXT)):
        if name in properties:
            system[field] = properties[name]
    due = properties.get(_TIMER_MS, "")
    if due.isascii() and due.isdigit() and len(due) < 16:
        system["delivery_timestamp"] = span(int(due))
    if props.DLQ_ORIGIN_TOPIC in properties and _DLQ_ORIGIN_ID in properties:
        system["dead_letter_queue"] = {"topic": properties[props.DLQ_ORIGIN_TOPIC],
                                       "message_id": properties[_DLQ_ORIGIN_ID]}
    return MESSAGES["Message"](
        topic={"name": topic}, body=body, system_properties=system,
        user_properties={name: text for name, text in properties.items() if name not in _SYSTEM})


def _type(properties: dict[str, str]) -> int:
    if properties.get(props.PREPARED) == "true":
        return TRANSACTION
    if any(name in properties for name in (props.DELAY, _TIMER_MS, _TIMER_S)):
        return DELAY
    return FIFO if _SHARDING_KEY in properties else NORMAL


def body_of(message: Any) -> bytes:
    """Return the body to store for a client's message. Raises: Refused.

    A compressed body is decompressed, because clients in other languages could not read it.
    """
    body: bytes = message.body
    if not body:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if message.system_properties.body_encoding == _GZIP:
        codec = zlib.decompressobj(wbits=47)  # gzip or zlib
        try:
            body = codec.decompress(body, MAX_BODY + 1)
        except zlib.error as error:
            raise Refused(Code.MESSAGE_CORRUPTED, f"cannot decompress the body: {error}") from None
        if not codec.eof and len(body) <= MAX_BODY:
            raise Refused(Code.MESSAGE_CORRUPTED, "the compressed body is truncated")
    if len(body) > MAX_BODY:
        raise Refused(Code.MESSAGE_BODY_TOO_LARGE,
                      f"message body cannot exceed the max {MAX_BODY}")
    return body


def properties_of(message: Any, peer: str) -> dict[str, str]:
    """Return the properties to store with a client's message, except those that delay it.
    Raises: Refused.
    """
    # The user's properties, without those that are the broker's own.
    system = message.system_properties
    properties = {_checked(name): _checked(text) for name, text in message.user_properties.items()}
    reserved = _RESERVED & properties.keys()
    if reserved:
        raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                      f"property is used by system: {min(reserved)}")
    # Properties from the message's system properties.
    if not system.message_id.strip():
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    properties[props.UNIQUE_KEY] = _checked(system.message_id, Code.ILLEGAL_MESSAGE_ID)
    tag = _checked(system.tag, Code.ILLEGAL_MESSAGE_TAG)
    if "|" in tag or (tag and not tag.strip()):
        raise Refused(Code.ILLEGAL_MESSAGE_TAG, "tag cannot be blank or contain '|'")
    topic = message.topic.name
    for name, text, code in (
            (props.TAGS, tag, Code.ILLEGAL_MESSAGE_TAG),
            (props.KEYS, " ".join(system.keys), Code.ILLEGAL_MESSAGE_KEY),
            (_SHARDING_KEY, system.message_group, Code.ILLEGAL_MESSAGE_GROUP),
            (_TRACE_CONTEXT, system.trace_context, Code.BAD_REQUEST),
            ("PGROUP", topic, Code.ILLEGAL_TOPIC),
            (_BORN_HOST, system.born_host or peer.rpartition(":")[0], Code.BAD_REQUEST)):
        if text:
            properties[name] = _checked(text, code)
    # Times and transactions.
    if system.HasField("born_timestamp"):
        properties["BORN_TIMESTAMP"] = str(milliseconds(system.born_timestamp))
    if system.message_type == TRANSACTION:
        properties[props.PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(
                system.orphaned_transaction_recovery_duration.seconds)
    return properties


def _checked(text: str, code: Code = Code.ILLEGAL_MESSAGE_PROPERTY_KEY) -> str:
    """Return a property's name or value unchanged.
    Raises: Refused if it contains control characters, which could end the property.
    """
    if _CONTROL.search(text):
        raise Refused(code, "a property cannot contain control characters")
    return text
