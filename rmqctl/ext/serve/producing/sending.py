"""Handlers for producers: messages, batches, and topics that sending creates (spec: remoting.md
§3.4).
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

from rmqctl.broker.settings import Host, packed
from rmqctl.engine.config.table import Config
from rmqctl.engine.config.topics import (
    BEAN_QUEUES,
    name_problem,
    number,
    takes_no_messages,
)
from rmqctl.engine.put.message import (
    TIMER_ILLEGAL,
    BatchItem,
    Outgoing,
    OutgoingBatch,
    PutResult,
)
from rmqctl.errors import RefusedError, RmqctlError
from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.consuming.clients import body_of, objects
from rmqctl.ext.serve.consuming.returning import make_topic, most_times
from rmqctl.ext.serve.producing.properties import REGION
from rmqctl.ext.serve.producing.timing import recall_handle, timed
from rmqctl.ext.serve.producing.transactions import is_half
from rmqctl.ext.serve.producing.writing import Writer
from rmqctl.ext.serve.remoting.codes import CODE_OF, REQUESTS, Failed, Status
from rmqctl.ext.serve.source import MAX_QUEUES
from rmqctl.formats import layout
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import delay_level_of
from rmqctl.formats.local.message import (
    PROPERTIES_LENGTH_SIZE,
    BatchRequestItem,
    properties_length_at,
)
from rmqctl.formats.local.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from rmqctl.parse_values import parse_address

_CODES = {
    "PUT_OK": Status.SUCCESS, "FLUSH_DISK_TIMEOUT": Status.FLUSH_DISK_TIMEOUT,
    "MESSAGE_ILLEGAL": Status.MESSAGE_ILLEGAL,
    "PROPERTIES_SIZE_EXCEEDED": Status.MESSAGE_ILLEGAL,
    TIMER_ILLEGAL: Status.MESSAGE_ILLEGAL,
    "SERVICE_NOT_AVAILABLE": Status.SERVICE_NOT_AVAILABLE}
_MAX_TOPICS = 1000
_TOPIC_FIELDS = ("readQueueNums", "writeQueueNums", "perm", "topicFilterType", "topicSysFlag",
                 "order")
_OF_A_UNIT, _FOR_UNITS = 1, 2
"""The topicSysFlag of a topic that a unit's producer creates, and of a unit's retry topic."""
_KEY = props.UNIQUE_KEY + props.NAME_VALUE_SEPARATOR
_ITEM = layout.reader(BatchRequestItem, "flag", "body_length")
"""The fields before the body of each message in a batch."""


def send_message(broker: Broker, call: Call) -> None:
    """Store one message, or a batch."""
    # Check that the message may be sent.
    wanted = call.fields
    writer, queue_id = admitted(broker, wanted)
    topic = wanted["topic"]
    born = host_of(call.connection.peer)
    given = wanted["properties"] or ""
    message: Outgoing | OutgoingBatch
    # A batch, or one message: a retry, a half message, or an ordinary one.
    if wanted["batch"]:
        if topic.startswith(props.RETRY_PREFIX) and writer.settings.profile.generation >= 5:
            raise Failed(Status.MESSAGE_ILLEGAL, f"batch request does not support retry group "
                         f"{topic}")
        message = OutgoingBatch(
            topic, _items(call.command.body), writer.properties.batch(given), queue_id,
            wanted["sysFlag"], wanted["bornTimestamp"], born,
            reconsume_times=wanted["reconsumeTimes"] or 0)
    else:
        put_into = queue_id
        if topic.startswith(props.RETRY_PREFIX):
            topic, given = _retried(broker, writer, call, given)
            put_into = queue_id if topic == wanted["topic"] else 0
        transactions = None
        if is_half(given) and not (_is_old_retry(wanted, given) and (
                writer.settings.profile.generation >= 5)):
            transactions = broker.transactions
        message = Outgoing(
            topic, call.command.body,
            writer.properties(given) if transactions is None else given, put_into,
            wanted["flag"], wanted["sysFlag"], wanted["bornTimestamp"], born,
            reconsume_times=wanted["reconsumeTimes"] or 0)
        if transactions is not None:
            message = transactions.half(message)
    message = timed(message, writer)

    def then(result: PutResult) -> None:
        if not call.command.is_one_way:
            response = put_answer(result, queue_id)
            if result.stored and response.ext and writer.settings.profile.generation >= 5:
                response.ext |= _transaction_id(message.properties)
                if isinstance(message, Outgoing) and (
                        handle := recall_handle(message, broker.name)) is not None:
                    response.ext["recallHandle"] = handle
            call.reply(response)

    writer.put(message, then)


def _is_old_retry(wanted: dict[str, Any], given: str) -> bool:
    """Return whether a consumer before 4.6.1 sends a message back for retry.

    Such a message still has the transaction flags of the original message.
    """
    try:
        return (wanted["reconsumeTimes"] or 0) > 0 and delay_level_of(props.parse(given)) > 0
    except ValueError:
        return False


def _transaction_id(properties: str) -> dict[str, str]:
    """Return the response field that 5.x brokers add: the message's unique key."""
    at = properties.find(_KEY)
    if at < 0:
        return {}
    if at and properties[at - 1] != props.PROPERTY_SEPARATOR:
        key = props.parse(properties).get(props.UNIQUE_KEY)
        return {} if key is None else {"transactionId": key}
    end = properties.find(props.PROPERTY_SEPARATOR, at)
    return {"transactionId": properties[at + len(_KEY):end if end >= 0 else None]}


def _retried(broker: Broker, writer: Writer, call: Call, given: str) -> tuple[str, str]:
    """Return the topic and properties of a message that a consumer sends to its retry topic itself.

    The consumer does this because sending the message back failed. After too many attempts, the
    topic is the dead-letter topic.
    """
    topic, times = call.fields["topic"], call.fields["reconsumeTimes"] or 0
    group = topic.removeprefix(props.RETRY_PREFIX)
    most = most_times(broker, group, call)
    if group not in writer.groups.table and len(broker.new_groups) < broker.groups.most:
        broker.new_groups.add(group)
    if writer.settings.profile.generation < 5:
        if times < most:
            return topic, given
    else:
        if times <= most and not broker.locks.holds_any(group):
            return topic, given
        given = props.build({**props.parse(given), props.DELAY: "-1"})
    try:
        make_topic(writer, props.DLQ_PREFIX + group)
    except RmqctlError as error:
        raise Failed(Status.SYSTEM_ERROR, str(error)) from None
    return props.DLQ_PREFIX + group, given


def admitted(broker: Broker, wanted: dict[str, Any]) -> tuple[Writer, int]:
    """Check that a message may be sent. Return the writer and the queue id. Raises: Failed.

    Like a broker, ignore the topic's write permission, which is only used in routes.
    """
    writer = broker.writer
    assert writer is not None
    topic, queue_id = wanted["topic"], wanted["queueId"]
    broker.cluster.faults.refuse(topic)
    if writer.is_busy:
        raise Failed(Status.SYSTEM_BUSY, "too many messages are waiting to be stored, try again "
                     "later")
    if writer.allows(topic, queue_id):
        return writer, queue_id
    generation = writer.settings.profile.generation
    illegal = Status.INVALID_PARAMETER if generation >= 5 else Status.SYSTEM_ERROR
    problem = name_problem(topic)
    if problem is not None:
        raise Failed(illegal, problem)
    if takes_no_messages(topic, generation):
        raise Failed(Status.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
    config = _topic(writer, wanted)
    queues = number(config, "writeQueueNums", BEAN_QUEUES)
    most = min(max(queues, number(config, "readQueueNums", BEAN_QUEUES)), MAX_QUEUES)
    if queue_id < 0 < most:
        queue_id = random.randrange(min(max(queues, 1), most))  # noqa: S311
    if not 0 <= queue_id < most:
        raise Failed(illegal, f"request queueId[{queue_id}] is illegal, topic {topic} has {most} "
                     "queues")
    return writer, queue_id


def _topic(writer: Writer, wanted: dict[str, Any]) -> Config:
    """Return the configuration of a topic; create the topic if a broker would do so.
    Raises: Failed.
    """
    topic = wanted["topic"]
    config = writer.topics.get(topic)
    if config is None and topic in writer.source.topics:
        config = writer.topics.own(topic)
    if config is not None:
        return config
    sys_flag = 0 if not wanted["unitMode"] else (
        _FOR_UNITS if topic.startswith(props.RETRY_PREFIX) else _OF_A_UNIT)
    try:
        created = writer.topics.auto_create(topic, wanted["defaultTopic"],
                                            wanted["defaultTopicQueueNums"], sys_flag)
    except RefusedError as error:
        raise Failed(Status.TOPIC_NOT_EXIST, str(error)) from None
    except RmqctlError as error:
        raise Failed(Status.SYSTEM_ERROR, str(error)) from None
    writer.source.learn(topic, created)
    return created


def put_answer(result: PutResult, queue_id: int) -> Response:
    """Return the response that tells a producer the result of storing its message."""
    code = _CODES.get(result.status, Status.SYSTEM_ERROR)
    if not result.stored:
        return Response(dict(REGION), (), int(code), result.reason or result.status)
    return Response({**REGION, "msgId": result.msg_id or "", "queueId": str(queue_id),
                     "queueOffset": str(result.queue_offset)}, (), int(code))


def _items(body: bytes) -> list[BatchItem]:
    """Return the messages in a batch's body.
    Raises: Failed if the body is incomplete or contains no messages.
    """
    items = []
    at = 0
    while at < len(body):
        flag, length = _ITEM.unpack_from(body, at) if at + _ITEM.size <= len(body) else (0, -1)
        start = at + _ITEM.size
        tail = start + length + PROPERTIES_LENGTH_SIZE
        size = -1
        if length >= 0 and tail <= len(body):
            size = properties_length_at(body, start + length)
        if size < 0 or tail + size > len(body):
            raise Failed(Status.MESSAGE_ILLEGAL, "the batch ends in the middle of a message")
        items.append(BatchItem(body[start:start + length],
                               body[tail:tail + size].decode("utf-8", "surrogateescape"), flag))
        at = tail + size
    if not items:
        raise Failed(Status.MESSAGE_ILLEGAL, "the batch contains no messages")
    return items


@lru_cache(maxsize=1024)
def host_of(peer: str) -> Host:
    """Return a client's address and port in the form in which records contain them."""
    return packed(parse_address(peer))


def end_transaction(broker: Broker, call: Call) -> None:
    """Commit or roll back a half message. Do nothing if the producer reports that the outcome is
    unknown.
    """
    wanted, transactions = call.fields, broker.transactions
    assert transactions is not None
    if wanted["commitOrRollback"] not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
        return
    if transactions.writer.is_busy:
        raise Failed(Status.SYSTEM_BUSY, "too many messages are waiting to be stored, try again "
                     "later")

    def then(result: PutResult | None) -> None:
        code = Status.SUCCESS if result is None or result.stored else _CODES.get(
            result.status, Status.SYSTEM_ERROR)
        call.reply(Response({}, (), int(code), None if result is None else result.reason))

    transactions.end(
        wanted["producerGroup"], wanted["commitLogOffset"], wanted["tranStateTableOffset"],
        commit=wanted["commitOrRollback"] == TRANSACTION_COMMIT,
        asked=bool(wanted["fromTransactionCheck"]), then=then)


def create_topic(broker: Broker, call: Call) -> Response:
    """Create or change a topic."""
    _create(broker, call.fields)
    return Response()


def create_topics(broker: Broker, call: Call) -> Response:
    """Create or change several topics."""
    wanted = objects(body_of(call).get("topicConfigList"))
    if len(wanted) > _MAX_TOPICS:
        raise Failed(Status.SYSTEM_ERROR, f"more than {_MAX_TOPICS} topics in one request")
    for config in wanted:
        attributes = config.get("attributes")
        pairs = attributes.items() if isinstance(attributes, dict) else ()
        _create(broker, REQUESTS[CODE_OF["UPDATE_AND_CREATE_TOPIC"]].read({
            "topic": str(config.get("topicName", "")),
            "attributes": ",".join(f"{name}={value}" for name, value in pairs),
            **{name: _field(config[name]) for name in _TOPIC_FIELDS if name in config}}))
    return Response()


def _field(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _create(broker: Broker, wanted: dict[str, Any]) -> None:
    writer = broker.writer
    assert writer is not None
    try:
        if max(wanted["readQueueNums"], wanted["writeQueueNums"]) > MAX_QUEUES:
            raise Failed(Status.SYSTEM_ERROR, f"a topic can have at most {MAX_QUEUES} queues")
        created = writer.topics.create(wanted["topic"], wanted["readQueueNums"],
                                    wanted["writeQueueNums"], wanted["perm"],
                                    _attributes(writer, wanted["attributes"]),
                                    wanted["order"], wanted["topicFilterType"],
                                    wanted["topicSysFlag"])
    except RmqctlError as error:
        raise Failed(Status.SYSTEM_ERROR, str(error)) from None
    writer.source.learn(wanted["topic"], created)


def _attributes(writer: Writer, text: str | None) -> dict[str, str]:
    """Parse a topic's attributes (``+name=value,…``); 4.x brokers ignore attributes.

    Raises: Failed for attributes other than the message type, because other kinds of queues cannot
    be created while a store is served.
    """
    if writer.settings.profile.generation < 5:
        return {}
    attributes = {}
    for attribute in filter(None, (text or "").split(",")):
        name, equals, value = attribute.partition("=")
        if not equals or name != "+message.type":
            raise Failed(Status.SYSTEM_ERROR, "+message.type=… is the only topic attribute that "
                         f"can be set here, not {attribute[:80]!r}")
        attributes[name[1:]] = value
    return attributes


HANDLERS: Table = {
    "SEND_MESSAGE": send_message,
    "SEND_MESSAGE_V2": send_message,
    "SEND_BATCH_MESSAGE": send_message,
    "END_TRANSACTION": end_transaction,
    "UPDATE_AND_CREATE_TOPIC": create_topic,
    "UPDATE_AND_CREATE_TOPIC_LIST": create_topics,
}
