"""Handlers that show and change the progress of groups in topics (spec: remoting.md §3.5).

The server keeps consumer offsets in memory or in a file outside the store. If a group is not
connected, a reset of its offsets takes effect when the group connects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.consuming.offsets import at_time
from rmqctl.ext.serve.naming import json_response
from rmqctl.ext.serve.remoting.codes import RESET_CONSUMER_CLIENT_OFFSET, Failed, Status
from rmqctl.ext.serve.remoting.command import ONE_WAY, Command, write_json
from rmqctl.ext.serve.source import ServedTopic
from rmqctl.formats.local.message import decode
from rmqctl.parse_values import now_ms

MAX_QUEUES = 50_000
"""Maximum number of queues in one response, because other requests wait while it is created."""
_MAX_LONG = (1 << 63) - 1
_C_PLUS_PLUS = "CPP"


def message_queue(broker: Broker, topic: str, queue_id: int) -> dict[str, Any]:
    """Return a queue's JSON object, as clients expect it."""
    return {"brokerName": broker.name, "queueId": queue_id, "topic": topic}


def _key(broker: Broker, topic: str, queue_id: int) -> str:
    """Return the name of a JSON field for a queue: the queue's JSON object as a string.

    This is strict JSON; Java clients accept it, too.
    """
    return write_json(message_queue(broker, topic, queue_id)).decode()


def store_time(broker: Broker, topic: str, queue_id: int, offset: int) -> int:
    """Return the store time (ms) of the message at a queue offset; -1 if it cannot be read."""
    queue = broker.queue(topic, queue_id)
    if not queue.first <= offset < queue.end:
        return -1
    try:
        pulled = queue.pull(offset, 1, None)
    except RmqctlError as error:
        raise Failed(Status.SYSTEM_ERROR, str(error)) from None
    if not pulled.parts or pulled.skipped:
        return -1
    return decode(pulled.parts[0]).store_timestamp


def _queue_ids(topic: ServedTopic) -> range:
    return _bounded(range(max(topic.read_queues, topic.write_queues)))


def _bounded(queues: range) -> range:
    if len(queues) > MAX_QUEUES:
        raise Failed(Status.SYSTEM_ERROR, f"{len(queues)} queues are too many for one response, "
                     f"which has at most {MAX_QUEUES}")
    return queues


def topic_stats(broker: Broker, call: Call) -> Response:
    """Answer with the bounds of each queue of a topic, and the store time of its last message."""
    name = call.fields["topic"]
    table = {}
    for queue_id in _queue_ids(broker.require_topic(name)):
        queue = broker.queue(name, queue_id)
        last = store_time(broker, name, queue_id, queue.end - 1) if queue.end else 0
        table[_key(broker, name, queue_id)] = {
            "lastUpdateTimestamp": last, "maxOffset": queue.end, "minOffset": queue.first}
    return json_response({"offsetTable": table, "topicPutTps": 0.0})


def _is_consumed(broker: Broker, group: str, topic: str) -> bool:
    """Return whether a group may consume a topic: False if the group is connected and does not
    subscribe to the topic.
    """
    connected = broker.groups.consumers.get(group)
    return connected is None or not connected.subscriptions or topic in connected.subscriptions


def _stood(broker: Broker, group: str, topic: str, queue_id: int) -> int:
    return max(broker.positions.get(group, topic, queue_id) or 0, 0)


def _stats(broker: Broker, group: str, topics: Iterable[str]) -> dict[str, Any]:
    """Return the consumer offsets of a group in each queue of some topics, and the ends of these
    queues.
    """
    table: dict[str, dict[str, int]] = {}
    chosen = [topic for name in topics if _is_consumed(broker, group, name)
              and (topic := broker.topic(name)) is not None]
    _bounded(range(sum(topic.read_queues for topic in chosen)))
    for topic in chosen:
        name = topic.name
        for queue_id in range(topic.read_queues):
            offset = _stood(broker, group, name, queue_id)
            stored = store_time(broker, name, queue_id, offset - 1) if offset else 0
            table[_key(broker, name, queue_id)] = {
                "brokerOffset": broker.queue(name, queue_id).end, "consumerOffset": offset,
                "lastTimestamp": max(stored, 0), "pullOffset": offset}
    return {"consumeTps": _rate(broker, group, topics), "offsetTable": table}


def _rate(broker: Broker, group: str, topics: Iterable[str]) -> float:
    """Return the number of messages per second delivered to a group in the last minute."""
    keys = [(group, name) for name in topics]
    return round(broker.sums.rate(sum(broker.delivered[key] for key in keys), lambda before: sum(
        before.got.get(key, 0) for key in keys)), 3)


def consume_stats(broker: Broker, call: Call) -> Response:
    """Answer with the consumer offsets of a group in one topic or in all topics."""
    group, topic = call.fields["consumerGroup"], call.fields["topic"]
    return json_response(_stats(broker, group, [topic] if topic
                                else list(broker.positions.of_group(group))))


def _lag(stats: dict[str, Any]) -> int:
    return sum(queue["brokerOffset"] - queue["consumerOffset"]
               for queue in stats["offsetTable"].values())


def all_consume_stats(broker: Broker, call: Call) -> Response:
    """Answer with the consumer offsets of all groups; with ``isOrder``, only in ordered topics."""
    by_group: dict[str, list[str]] = {}
    count = 0
    for group, name, _ in broker.positions.all():
        topic = broker.topic(name)
        if topic is not None and (topic.order or not call.fields["isOrder"]):
            count += topic.read_queues
            by_group.setdefault(group, []).append(name)
    _bounded(range(count))
    stats_by_group = {group: [_stats(broker, group, [name]) for name in names if _is_consumed(
        broker, group, name)] for group, names in by_group.items()}
    return json_response({
        "brokerAddr": str(broker.address),
        "consumeStatsList": [{group: stats} for group, stats in stats_by_group.items()],
        "totalDiff": sum(_lag(entry) for stats in stats_by_group.values() for entry in stats)})


def groups_of_topic(broker: Broker, call: Call) -> Response:
    """Answer with the groups that consume a topic: connected groups, and groups with consumer
    offsets in the topic.
    """
    name = call.fields["topic"]
    return json_response({"groupList": sorted({
        *(group.name for group in broker.groups.consumers.values() if name in group.subscriptions),
        *(group for group, topic, _ in broker.positions.all() if topic == name)})})


def topics_of_group(broker: Broker, call: Call) -> Response:
    """Answer with the topics in which a group has consumer offsets."""
    return json_response({"brokerAddr": str(broker.address),
                          "topicList": sorted(broker.positions.of_group(call.fields["group"]))})


def subscription(broker: Broker, call: Call) -> Response:
    """Answer with a connected group's subscription to a topic."""
    group, name = call.fields["group"], call.fields["topic"]
    connected = broker.groups.consumers.get(group)
    subscribed = None if connected is None else connected.subscriptions.get(name)
    value: dict[str, Any] = {"group": group, "topic": name}
    if subscribed is not None:
        value["subscriptionData"] = subscribed.as_dict()
    return json_response(value)


def time_span(broker: Broker, call: Call) -> Response:
    """Answer with the store times of three messages in each queue of a topic.

    These are the first and the last message of the queue, and the last message that a group
    consumed.
    """
    name, group = call.fields["topic"], call.fields["group"]
    spans = []
    for queue_id in _queue_ids(broker.require_topic(name)):
        queue = broker.queue(name, queue_id)
        offset = _stood(broker, group, name, queue_id)
        first = store_time(broker, name, queue_id, queue.first)
        following = store_time(broker, name, queue_id, offset)
        spans.append({
            "consumeTimeStamp": store_time(broker, name, queue_id, offset - 1) if offset else first,
            "delayTime": now_ms() - following if following >= 0 else 0,
            "maxTimeStamp": store_time(broker, name, queue_id, queue.end - 1),
            "messageQueue": message_queue(broker, name, queue_id), "minTimeStamp": first})
    return json_response({"consumeTimeSpanSet": spans})


def correction_offsets(broker: Broker, call: Call) -> Response:
    """Answer with the lowest consumer offset in each queue of a topic.

    Groups in ``filterGroups`` are excluded. If the consumer offset of ``compareGroup`` in a queue
    is even lower, answer with the maximum integer for this queue.
    """
    wanted = call.fields
    left_out = set((wanted["filterGroups"] or "").split(","))
    least: dict[int, int] = {}
    for group, name, queues in broker.positions.all():
        if name == wanted["topic"] and group not in left_out:
            for queue_id, offset in queues.items():
                if offset >= broker.queue(name, queue_id).first:
                    least[queue_id] = min(least.get(queue_id, offset), offset)
    compared = broker.positions.of_group(wanted["compareGroup"]).get(wanted["topic"], {})
    for queue_id, offset in compared.items():
        if least.get(queue_id, _MAX_LONG) > offset:
            least[queue_id] = _MAX_LONG
    return json_response({"correctionOffsets": {
        str(queue_id): offset for queue_id, offset in sorted(least.items())}})


def _commit(broker: Broker, group: str, topic: str, positions: dict[int, int]) -> None:
    for queue_id, offset in positions.items():
        if not broker.positions.commit(group, topic, queue_id, offset):
            raise Failed(Status.SYSTEM_ERROR, "too many consumer offsets are stored already")


def clone_offsets(broker: Broker, call: Call) -> Response:
    """Copy the consumer offsets of one group to another, in one topic or in all topics."""
    wanted = call.fields
    for name, positions in broker.positions.of_group(wanted["srcGroup"]).items():
        if wanted["topic"] in (None, "", name) and broker.topic(name) is not None and (
                wanted["offline"] or _is_consumed(broker, wanted["srcGroup"], name)):
            _commit(broker, wanted["destGroup"], name, positions)
    return Response({})


def reset_offsets(broker: Broker, call: Call) -> Response:
    """Reset a group's consumer offsets in a topic to a time, and notify the group's members.

    If ``isForce`` is False, offsets are only moved backwards.
    """
    # Check the group, and choose the queues.
    wanted = call.fields
    name, group, when = wanted["topic"], wanted["group"], wanted["timestamp"]
    topic = broker.require_topic(name)
    if not broker.knows_group(group) and not broker.positions.of_group(group):
        raise Failed(Status.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
    only = wanted["queueId"]
    chosen = _queue_ids(topic) if only is None or only < 0 else range(only, only + 1)
    # Determine the new offset in each queue.
    to: dict[int, int] = {}
    for queue_id in chosen:
        if queue_id == only and wanted["offset"] not in (None, -1):
            to[queue_id] = _within(broker, name, queue_id, wanted["offset"])
        else:
            to[queue_id] = at_time(broker, name, queue_id, max(when, -1))
        stood = broker.positions.get(group, name, queue_id)
        if wanted["isForce"] is False and stood is not None:
            to[queue_id] = min(to[queue_id], max(stood, 0))
    # Store the offsets, and notify connected members.
    _commit(broker, group, name, to)
    body = write_json({"offsetTable": {_key(broker, name, queue_id): offset
                                       for queue_id, offset in to.items()}})
    listed = write_json({"offsetTable": [{**message_queue(broker, name, queue_id), "offset": offset}
                                         for queue_id, offset in to.items()]})
    connected = broker.groups.consumers.get(group)
    for member in () if connected is None else connected.members.values():
        member.peer.send(Command(
            RESET_CONSUMER_CLIENT_OFFSET, flag=ONE_WAY,
            ext={"topic": name, "group": group, "timestamp": str(when), "isForce": "true"},
            body=listed if member.language == _C_PLUS_PLUS else body))
    return Response({}, (body,))


def _within(broker: Broker, topic: str, queue_id: int, offset: int) -> int:
    queue = broker.queue(topic, queue_id)
    if not queue.first <= offset <= queue.end:
        raise Failed(Status.SYSTEM_ERROR, f"Target offset {offset} not in consume queue range "
                     f"[{queue.first}-{queue.end}]")
    return offset


HANDLERS: Table = {
    "GET_TOPIC_STATS_INFO": topic_stats,
    "GET_CONSUME_STATS": consume_stats,
    "GET_BROKER_CONSUME_STATS": all_consume_stats,
    "QUERY_TOPIC_CONSUME_BY_WHO": groups_of_topic,
    "QUERY_TOPICS_BY_CONSUMER": topics_of_group,
    "QUERY_SUBSCRIPTION_BY_CONSUMER": subscription,
    "QUERY_CONSUME_TIME_SPAN": time_span,
    "QUERY_CORRECTION_OFFSET": correction_offsets,
    "CLONE_GROUP_OFFSET": clone_offsets,
    "INVOKE_BROKER_TO_RESET_OFFSET": reset_offsets,
}
