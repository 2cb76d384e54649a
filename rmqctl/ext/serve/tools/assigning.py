"""Assignment of queues to clients by the broker, and request modes of groups: pull or POP (spec:
remoting.md §3.3).
"""

from __future__ import annotations

from typing import Any

from rmqctl.ext.serve.broker import ANY_QUEUE, Broker, Call, Mode, Response, Table
from rmqctl.ext.serve.consuming.clients import body_of
from rmqctl.ext.serve.consuming.groups import BROADCASTING
from rmqctl.ext.serve.consuming.pop_requests import has_batches
from rmqctl.ext.serve.naming import json_response
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.ext.serve.source import READ
from rmqctl.ext.serve.tools.progress import MAX_QUEUES, message_queue
from rmqctl.formats.local.properties import RETRY_PREFIX

PULL, POP = "PULL", "POP"
_FILE, _TABLE = "messageRequestMode.json", "messageRequestModeMap"
_MAX_MODES, _MAX_NAME = 10_000, 255
_MAX_SHARED = (1 << 31) - 1
_STRATEGIES = ("AVG", "AVG_BY_CIRCLE")


def assignment(broker: Broker, call: Call) -> Response:
    """Answer with the queues of a topic that a group member must read.

    This is for clients that do not divide the queues among themselves. If the assignment is
    unknown, the response contains no queues, and the client keeps its queues.
    """
    value = body_of(call)
    name, group = str(value.get("topic") or ""), str(value.get("consumerGroup") or "")
    strategy = value.get("strategyName") or _STRATEGIES[0]
    queues = [message_queue(member, name, queue_id)
              for _, member in sorted(broker.cluster.brokers.items())
              if (topic := member.topic(name)) is not None and topic.perm & READ
              for queue_id in range(min(topic.read_queues, MAX_QUEUES))]
    mode, shared = _mode(broker, name, group)
    if value.get("messageModel") != BROADCASTING:
        connected = broker.groups.consumers.get(group)
        if connected is None or not queues or strategy not in _STRATEGIES:
            return json_response({})
        clients = sorted(connected.ids)
        client = str(value.get("clientId") or "")
        place = clients.index(client) if client in clients else None
        queues = share_to_pop(queues, len(clients), place, strategy, shared) if mode == POP else (
            share(queues, len(clients), place, strategy))
    return json_response({"messageQueueAssignments": [
        {"messageQueue": queue, "mode": mode} for queue in queues]})


def share(queues: list[Any], clients: int, place: int | None, strategy: str = "AVG") -> list[Any]:
    """Return the queues of the client at position ``place``, from the sorted list ``queues``.

    Queues are divided as group members divide them: into contiguous ranges, or round-robin
    (``AVG_BY_CIRCLE``). If ``place`` is None, the client gets no queues.
    """
    if place is None:
        return []
    if strategy == "AVG_BY_CIRCLE":
        return queues[place::clients]
    per_client, more = divmod(len(queues), clients)
    start = place * per_client + min(place, more)
    return queues[start:start + per_client + (place < more)]


def share_to_pop(queues: list[Any], clients: int, place: int | None, strategy: str, shared: int
                 ) -> list[Any]:
    """Return the queues from which a client of a POP group reads.

    These are the queues that `share` assigns to the client and to the next ``shared`` clients. If
    the client would read all queues, or if ``shared`` is not positive, return one entry for each
    broker instead. Such an entry means any queue of the broker.
    """
    if shared <= 0 or shared >= clients - 1:
        by_broker = {queue["brokerName"]: {**queue, "queueId": ANY_QUEUE} for queue in queues}
        return list(by_broker.values())
    if place is None:
        return []
    if clients > len(queues):
        return [queues[place % len(queues)]] if queues else []
    return [queue for number in range(shared + 1)
            for queue in share(queues, clients, (place + number) % clients, strategy)]


def _mode(broker: Broker, topic: str, group: str) -> Mode:
    """Return the request mode of a group in a topic."""
    if topic.startswith(RETRY_PREFIX) or any(
            has_batches(member, topic) for member in broker.cluster.brokers.values()):
        return PULL, 0
    mode = broker.modes.get((topic, group))
    if mode is None:
        mode = _read(_stored(broker, topic).get(topic, {}).get(group, {}))
    return mode


def _read(entry: dict[str, Any]) -> Mode:
    shared = entry.get("popShareQueueNum")
    return (POP if entry.get("mode") == POP else PULL), min(max(shared, -1), _MAX_SHARED) if (
        isinstance(shared, int)) else 0


def _stored(broker: Broker, wanted: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the request modes in the store: topic -> group -> mode as a JSON object.

    ``wanted``: only this topic. Invalid objects are omitted.
    """
    config = broker.source.config(_FILE)
    value = None if config is None else config.value
    table = value.get(_TABLE) if isinstance(value, dict) else None
    if not isinstance(table, dict):
        return {}
    some = table.items() if wanted is None else [(wanted, table.get(wanted))]
    return {topic: {group: entry for group, entry in groups.items() if isinstance(entry, dict)}
            for topic, groups in some if isinstance(groups, dict)}


def set_mode(broker: Broker, call: Call) -> Response:
    """Set the request mode of a group in a topic: in memory, and in a writable 5.x store."""
    value = body_of(call)
    topic, group = str(value.get("topic") or ""), str(value.get("consumerGroup") or "")
    if topic.startswith(RETRY_PREFIX):
        raise Failed(Status.NO_PERMISSION, "retry topic is not allowed to set mode")
    broker.require_topic(topic)
    if not 0 < len(group) <= _MAX_NAME:
        raise Failed(Status.SUBSCRIPTION_GROUP_NOT_EXIST, "invalid consumer group name")
    if (topic, group) not in broker.modes and len(broker.modes) >= _MAX_MODES:
        raise Failed(Status.SYSTEM_BUSY, "too many request modes are set already")
    broker.modes[topic, group] = _read(value)
    if broker.is_writable and broker.source.view.generation >= 5:
        from rmqctl.ext.serve.producing.opening import keep_json

        table = _stored(broker)
        for (name, of_group), (mode, shared) in broker.modes.items():
            table.setdefault(name, {})[of_group] = {
                "consumerGroup": of_group, "mode": mode, "popShareQueueNum": shared, "topic": name}
        keep_json(broker.source, _FILE, {_TABLE: table})
    return Response()


HANDLERS: Table = {
    "QUERY_ASSIGNMENT": assignment,
    "SET_MESSAGE_REQUEST_MODE": set_mode,
}
