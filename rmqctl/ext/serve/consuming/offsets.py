"""Handlers for queue offsets: bounds, offsets by time, and consumer offsets (spec: remoting.md
§3.2).
"""

from __future__ import annotations

from rmqctl.broker.offset_by_time import offset_by_time
from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.formats.local.message import decode

_V5 = 412
"""The version number that clients of version 5.0 send."""


def _offset(value: int) -> Response:
    return Response({"offset": str(value)})


def max_offset(broker: Broker, call: Call) -> Response:
    """Return the queue offset that the next message will have."""
    return _offset(broker.queue(call.fields["topic"], call.fields["queueId"]).end)


def min_offset(broker: Broker, call: Call) -> Response:
    """Return the queue offset of the oldest message."""
    return _offset(broker.queue(call.fields["topic"], call.fields["queueId"]).first)


def at_time(broker: Broker, topic: str, queue_id: int, when: int, *, upper: bool = False) -> int:
    """Return the queue offset of the first message stored at ``when`` (ms) or later.

    With ``upper``, return the offset of the last message stored at ``when`` or earlier. Raises:
    Failed if the queue cannot be read.
    """
    queue = broker.queue(topic, queue_id)
    if (topic, queue_id) in broker.memory.queues or queue.end == 0:
        return queue.first
    if when < 0:
        return queue.end if when == -1 else queue.first
    try:
        entry = offset_by_time(broker.source.view, topic, queue_id, when, upper=upper)
    except RmqctlError as error:
        raise Failed(Status.SYSTEM_ERROR, str(error)) from None
    offset = None if entry is None else entry.queue_offset
    tail = None if broker.writer is None else broker.writer.queue((topic, queue_id))
    return (offset or 0) if tail is None else tail.at_time(when, offset, upper=upper)


def search_offset(broker: Broker, call: Call) -> Response:
    """Return the queue offset for a time, as 5.x brokers do.

    If the time is after the last message, a 5.x broker returns the offset after the last message.
    Java clients before 5.0 get the offset of the last message instead, as a 4.x broker returns it.
    Dashboard 1.x adds 1 to this answer, so it would show messages twice with the 5.x answer.
    """
    wanted, asked = call.fields, call.command
    upper = (wanted["boundaryType"] or "").upper() == "UPPER"
    topic, queue_id = wanted["topic"], wanted["queueId"]
    offset = at_time(broker, topic, queue_id, max(wanted["timestamp"], 0), upper=upper)
    if asked.language == "JAVA" and asked.version < _V5 and not wanted["boundaryType"]:
        queue = broker.queue(topic, queue_id)
        offset -= offset == queue.end > queue.first
    return _offset(offset)


def earliest_time(broker: Broker, call: Call) -> Response:
    """Return the store time (ms) of the queue's first message; -1 if the queue is empty."""
    queue = broker.queue(call.fields["topic"], call.fields["queueId"])
    pulled = queue.pull(queue.first, 1, None)
    when = decode(pulled.parts[0]).store_timestamp if pulled.parts else -1
    return Response({"timestamp": str(when)})


def position(broker: Broker, group: str, topic: str, queue_id: int, *, zero: bool = True
             ) -> int | None:
    """Return a group's consumer offset, or else the offset from which the group starts.

    Return None if a broker would let the client choose where to start. With ``zero`` False, also
    return None for a queue that still has its first message. Raises: Failed if the queue cannot be
    read.
    """
    committed = broker.positions.get(group, topic, queue_id)
    if committed is not None:
        return committed
    queue = broker.queue(topic, queue_id)
    if isinstance(broker.start, int):
        return at_time(broker, topic, queue_id, broker.start)
    if broker.start == "earliest":
        return queue.first
    if broker.start == "latest":
        return queue.end
    # Like brokers, start at 0 in queues that have all their messages.
    return 0 if zero and queue.first == 0 else None


def query_consumer_offset(broker: Broker, call: Call) -> Response:
    """Return a group's consumer offset; if it does not exist, the offset from which the group
    starts.
    """
    wanted = call.fields
    offset = position(broker, wanted["consumerGroup"], wanted["topic"], wanted["queueId"],
                     zero=wanted["setZeroIfNotFound"] is not False)
    if offset is None:
        raise Failed(Status.QUERY_NOT_FOUND,
                     "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
    return _offset(offset)


def update_consumer_offset(broker: Broker, call: Call) -> Response:
    """Store a group's consumer offset."""
    wanted = call.fields
    if not broker.positions.commit(wanted["consumerGroup"], wanted["topic"], wanted["queueId"],
                                   wanted["commitOffset"]):
        raise Failed(Status.SYSTEM_ERROR, "too many consumer offsets are stored already")
    return Response({})


HANDLERS: Table = {
    "GET_MAX_OFFSET": max_offset,
    "GET_MIN_OFFSET": min_offset,
    "SEARCH_OFFSET_BY_TIMESTAMP": search_offset,
    "GET_EARLIEST_MSG_STORETIME": earliest_time,
    "QUERY_CONSUMER_OFFSET": query_consumer_offset,
    "UPDATE_CONSUMER_OFFSET": update_consumer_offset,
}
