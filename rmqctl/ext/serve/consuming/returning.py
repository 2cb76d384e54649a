"""Messages that consumers send back.

The messages are delivered again after a delay. After too many attempts, they become dead letters. A
read-only server keeps them in memory. Spec: remoting.md §3.4, CONSUMER_SEND_MSG_BACK.
"""

from __future__ import annotations

import random
from dataclasses import replace

from rmqctl.broker.versions import NEWEST, VERSIONS, BrokerVersion
from rmqctl.engine.put.admission import MAX_PROPERTIES
from rmqctl.engine.put.message import Outgoing, PutResult
from rmqctl.engine.put.rewrite import WAIT, is_blank
from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.consuming.memory import OVERHEAD
from rmqctl.ext.serve.producing.writing import Writer
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.ext.serve.source import READ, WRITE
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import DEFAULT_LEVELS
from rmqctl.formats.local.javahash import tags_code
from rmqctl.formats.local.message import Record, decode
from rmqctl.parse_values import now_ms
from rmqctl.store.objects import java_text

MAX_TIMES = 16
_FIRST_LEVEL = 3
_SAYS_TIMES = 121
"""The first client version (3.4.9) from which brokers accept a maximum number of attempts."""
_HALF = 1 << 31


def send_back(broker: Broker, call: Call) -> Response | None:
    """Handle a message that a consumer sends back.

    The message is put into the group's retry topic, to be delivered again after a delay, or into
    the group's dead-letter topic.
    """
    # Find the message; ignore it if the group has no retry queues.
    wanted = call.fields
    group, level = wanted["group"], wanted["delayLevel"]
    if not broker.knows_group(group):
        raise Failed(Status.SUBSCRIPTION_GROUP_NOT_EXIST,
                     f"subscription group not exist, {group}")
    queues = broker.source.retry_queues(group)
    if not queues:
        return Response({})
    raw = broker.raw_at(wanted["offset"])
    if raw is None:
        raise Failed(Status.SYSTEM_ERROR, f"look message by offset failed, {wanted['offset']}")
    record = decode(raw)
    if broker.writer is None and not broker.memory.has_room(record):
        raise Failed(Status.NO_PERMISSION, "the store is read-only, and the memory for messages "
                     "that are sent back is full")
    # Choose the retry topic, or the dead letters after too many attempts.
    given_up = level < 0 or record.reconsume_times >= most_times(broker, group, call)
    level = level or _FIRST_LEVEL + record.reconsume_times
    if broker.writer is None:
        returned = _returned(record, VERSIONS[NEWEST], None)
    else:
        returned = _returned(record, broker.writer.settings.profile, 0 if given_up else level)
    if len(returned.properties) > MAX_PROPERTIES:
        raise Failed(Status.MESSAGE_ILLEGAL, "the message's properties have "
                     f"{len(returned.properties):,} bytes; the limit is {MAX_PROPERTIES:,}")
    topic = (props.DLQ_PREFIX if given_up else props.RETRY_PREFIX) + group
    # Store it like a broker, or keep it in memory until it is due.
    if broker.writer is not None:
        _put(broker.writer, call, returned, topic, 1 if given_up else queues)
        return None
    tags = tags_code(props.parse(java_text(returned.properties)).get(props.TAGS))
    if given_up:
        _append(broker, returned, topic, tags)
        return Response({})
    delay = DEFAULT_LEVELS[min(max(level, 1), max(DEFAULT_LEVELS))]
    broker.memory.size += len(returned.body) + OVERHEAD
    broker.later(delay / 1000, lambda: _due(broker, returned, topic, tags))
    return Response({})


def most_times(broker: Broker, group: str, call: Call) -> int:
    """Return the maximum number of retries before a message becomes a dead letter.

    This is the number in the request, if brokers accept it from this client, else the group's
    setting.
    """
    asked: int | None = call.fields["maxReconsumeTimes"]
    if asked is not None and call.command.version >= _SAYS_TIMES:
        return asked
    times = broker.source.groups.get(group, {}).get("retry_max_times")
    return times if isinstance(times, int) else MAX_TIMES


def make_topic(writer: Writer, topic: str, queues: int = 1) -> int:
    """Create a retry or dead-letter topic with ``queues`` queues, if the topic does not exist.

    Return how many of its queues to use. Raises: RefusedError, StoreIOError.
    """
    if writer.topics.get(topic) is None:
        writer.source.learn(topic, writer.topics.create(topic, queues, queues, READ | WRITE))
    return min(queues, max(writer.source.topics[topic].write_queues, 1))


def _put(writer: Writer, call: Call, record: Record, topic: str, queues: int) -> None:
    """Put a record into one of the topic's first ``queues`` queues, chosen at random.

    A record with a delay level goes into the schedule topic first.
    """
    queue_id = random.randrange(make_topic(writer, topic, queues))  # noqa: S311
    message = Outgoing(topic, record.body, java_text(record.properties), queue_id, record.flag,
                       record.sys_flag, record.born_timestamp, record.born_host,
                       store_host=record.store_host if writer.settings.profile.generation < 5
                       else None, reconsume_times=record.reconsume_times)

    def then(result: PutResult) -> None:
        if not call.command.is_one_way:
            code = Status.SUCCESS if result.stored else Status.SYSTEM_ERROR
            call.reply(Response({}, (), int(code), None if result.stored else result.status))

    writer.put(message, then)


def _due(broker: Broker, record: Record, topic: str, tags: int) -> None:
    broker.memory.size -= len(record.body) + OVERHEAD
    _append(broker, record, topic, tags)


def _append(broker: Broker, record: Record, topic: str, tags: int) -> None:
    queue_id = broker.memory_queue(topic)
    broker.memory.append(replace(record, store_timestamp=now_ms()), topic, queue_id, tags)
    broker.on_event(event="returned", broker=broker.name, topic=topic)
    broker.arrived(topic, queue_id)


def _returned(record: Record, profile: BrokerVersion, level: int | None) -> Record:
    """Return a copy of a message with the properties that a broker of this version sets.

    ``level``: the delay level to set (None: no delay level).
    """
    properties = JavaMap.from_properties(java_text(record.properties), profile.map_capacity)
    if props.RETRY_TOPIC not in properties:
        properties.put(props.RETRY_TOPIC, record.topic.decode("utf-8", "replace"))
    properties.put(WAIT, "false")
    if level is not None:
        properties.put(props.DELAY, str(level))
    if is_blank(properties.get(props.ORIGIN_MESSAGE_ID)):
        properties.put(props.ORIGIN_MESSAGE_ID, record.message_id)
    text = properties.text(trailing=profile.trailing_separator).encode("utf-8", "replace")
    # Overflow to negative numbers, as in Java.
    times = (record.reconsume_times + 1 + _HALF) % (2 * _HALF) - _HALF
    return replace(record, properties=text, reconsume_times=times)


HANDLERS: Table = {"CONSUMER_SEND_MSG_BACK": send_back}
