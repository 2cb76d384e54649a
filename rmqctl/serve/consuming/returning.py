"""Messages that consumers send back: retried after a while, given up after too many times
(spec: remoting.md §3.4, CONSUMER_SEND_MSG_BACK).

A server that writes nothing keeps them in memory.
"""

from __future__ import annotations

from dataclasses import replace

from rmqctl.engine.put.admission import MAX_PROPERTIES
from rmqctl.engine.put.message import Outgoing, PutResult
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import DEFAULT_LEVELS
from rmqctl.formats.local.javahash import tags_code
from rmqctl.formats.local.message import Record, decode
from rmqctl.parse_values import now_ms
from rmqctl.remoting.codes import Answer, Status
from rmqctl.serve.broker import Broker, Call, Response, Table
from rmqctl.serve.consuming.memory import EACH
from rmqctl.serve.producing.writing import Writer
from rmqctl.serve.source import READ, WRITE
from rmqctl.store.objects import java_text

MOST_TIMES = 16
_FIRST_LEVEL = 3


def send_back(broker: Broker, call: Call) -> Response | None:
    """Takes a message back: into the group's retry topic after a delay, or its dead letters."""
    wanted = call.fields
    group, level = wanted["group"], wanted["delayLevel"]
    if not broker.knows_group(group):
        raise Answer(Status.SUBSCRIPTION_GROUP_NOT_EXIST,
                     f"subscription group not exist, {group}")
    raw = broker.raw_at(wanted["offset"])
    if raw is None:
        raise Answer(Status.SYSTEM_ERROR, f"look message by offset failed, {wanted['offset']}")
    record = decode(raw)
    if broker.writer is None and not broker.memory.has_room(record):
        raise Answer(Status.NO_PERMISSION, "the store is read-only, and no memory is left for "
                     "messages that are sent back")
    settings = broker.source.groups.get(group, {})
    most = wanted["maxReconsumeTimes"] or settings.get("retry_max_times") or MOST_TIMES
    given_up = record.reconsume_times >= most or level < 0
    returned, tags = _returned(record)
    if len(returned.properties) > MAX_PROPERTIES:
        raise Answer(Status.MESSAGE_ILLEGAL, f"its properties have {len(returned.properties)} "
                     f"bytes, and a message takes {MAX_PROPERTIES}")
    level = level if level > 0 else max(_FIRST_LEVEL + record.reconsume_times, 1)
    if broker.writer is not None:
        topic = (props.DLQ_PREFIX if given_up else props.RETRY_PREFIX) + group
        _put(broker.writer, call, returned, topic, 0 if given_up else level)
        return None
    if given_up:
        _append(broker, returned, props.DLQ_PREFIX + group, tags)
        return Response({})
    delay = DEFAULT_LEVELS[min(level, max(DEFAULT_LEVELS))]
    topic = props.RETRY_PREFIX + group
    broker.memory.size += len(returned.body) + EACH
    broker.later(delay / 1000, lambda: _due(broker, returned, topic, tags))
    return Response({})


def _put(writer: Writer, call: Call, record: Record, topic: str, level: int) -> None:
    """Puts it into the store: into the topic, or into the schedule with that delay."""
    if writer.topics.get(topic) is None:
        writer.source.learn(topic, writer.topics.create(topic, 1, 1, READ | WRITE))
    known = props.parse(java_text(record.properties))
    known.pop(props.DELAY, None)
    if level:
        known[props.DELAY] = str(level)
    message = Outgoing(topic, record.body, props.build(known), 0, record.flag, record.sys_flag,
                       record.born_timestamp, record.born_host,
                       reconsume_times=record.reconsume_times)

    def then(result: PutResult) -> None:
        if not call.command.is_one_way:
            code = Status.SUCCESS if result.stored else Status.SYSTEM_ERROR
            call.reply(Response({}, (), int(code), None if result.stored else result.status))

    writer.put(message, then)


def _due(broker: Broker, record: Record, topic: str, tags: int) -> None:
    broker.memory.size -= len(record.body) + EACH
    _append(broker, record, topic, tags)


def _append(broker: Broker, record: Record, topic: str, tags: int) -> None:
    queue_id = broker.memory_queue(topic)
    broker.memory.append(replace(record, store_timestamp=now_ms()), topic, queue_id, tags)
    broker.told(event="returned", broker=broker.name, topic=topic)
    broker.arrived(topic, queue_id)


def _returned(record: Record) -> tuple[Record, int]:
    """A copy as a broker makes it, and the tags code of its row."""
    known = props.parse(java_text(record.properties))
    topic = record.topic.decode("utf-8", "replace")
    known.setdefault(props.RETRY_TOPIC, topic)
    known.setdefault(props.ORIGIN_MESSAGE_ID, record.message_id)
    known["WAIT"] = "false"
    made = props.build(known).encode("utf-8", "replace")
    return replace(record, properties=made,
                   reconsume_times=record.reconsume_times + 1), tags_code(known.get(props.TAGS))


HANDLERS: Table = {"CONSUMER_SEND_MSG_BACK": send_back}
