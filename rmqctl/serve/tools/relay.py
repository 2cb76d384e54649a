"""Who is connected, what tools ask of a client through its broker, and queues shared out here
(spec: remoting.md §3.3, §3.5).
"""

from __future__ import annotations

import time
from typing import Any

from rmqctl.formats.local.message import parse_message_id
from rmqctl.parse_values import now_ms
from rmqctl.remoting.codes import Answer, Status
from rmqctl.remoting.command import Command
from rmqctl.serve.broker import Broker, Buffer, Call, Response, Table
from rmqctl.serve.consuming.clients import body_of
from rmqctl.serve.consuming.groups import BROADCASTING, Member
from rmqctl.serve.naming import json_response
from rmqctl.serve.source import READ
from rmqctl.serve.tools.progress import MOST_QUEUES, message_queue

PATIENCE_S = 10.0
"""A client that was asked something has so long."""


def consumers(broker: Broker, call: Call) -> Response:
    """The members of a group that are here, and what the group subscribes to."""
    name = call.fields["consumerGroup"]
    group = broker.groups.consumers.get(name)
    if group is None:
        raise Answer(Status.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    return json_response({
        "connectionSet": [member.as_dict() for member in group.members.values()],
        "consumeFromWhere": group.from_where, "consumeType": group.type,
        "messageModel": group.model, "subscriptionTable": {
            topic: each.as_dict() for topic, each in group.subscriptions.items()}})


def producers(broker: Broker, call: Call) -> Response:
    """The members of a group of producers that are here."""
    name = call.fields["producerGroup"]
    members = broker.groups.producers.get(name)
    if not members:
        raise Answer(Status.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    return json_response({"connectionSet": [member.as_dict() for member in members.values()]})


def all_producers(broker: Broker, _call: Call) -> Response:
    """The members of all groups of producers that are here."""
    now, now_seen = now_ms(), time.monotonic()
    return json_response({"data": {name: [
        {"clientId": member.client_id, "remoteIP": member.peer.peer, "language": member.language,
         "version": member.version,
         "lastUpdateTimestamp": now - int((now_seen - member.seen) * 1000)}
        for member in members.values()] for name, members in broker.groups.producers.items()}})


# Asking a client ------------------------------------------------------------------------------


def running_info(broker: Broker, call: Call) -> None:
    """What a client says of itself."""
    _pass_on(broker, call, b"")


def consume_directly(broker: Broker, call: Call) -> None:
    """Has a client consume one message now, and says how that went."""
    text = call.fields["msgId"] or ""
    try:
        physical = parse_message_id(text)[2]
    except ValueError:
        raise Answer(Status.SYSTEM_ERROR, f"no message id: {text[:80]}") from None
    raw = broker.raw_at(physical)
    if raw is None:
        raise Answer(Status.SYSTEM_ERROR, f"can not find message by the offset, {physical}")
    _pass_on(broker, call, raw, brokerName=broker.name)


def _pass_on(broker: Broker, call: Call, body: Buffer, **more: str) -> None:
    """Asks a member what was asked of the broker, and answers what it answers."""
    group = call.fields["consumerGroup"]
    member = _member(broker, group, call.fields["clientId"])

    def then(response: Command | None) -> None:
        if response is None:
            call.reply(Response(code=Status.CONSUME_MSG_TIMEOUT, remark=(
                f"consumer <{group}> <{member.client_id}> Timeout: no answer "
                f"within {PATIENCE_S:g} s, or its connection was closed")))
        else:
            call.reply(Response(response.ext, (response.body,), response.code, response.remark))

    member.peer.ask(Command(call.command.code, ext={**call.command.ext, **more}, body=bytes(body)),
                    then, PATIENCE_S)


def _member(broker: Broker, group: str, client_id: str | None) -> Member:
    here = broker.groups.consumers.get(group)
    member = None if here is None else here.members.get(client_id or "")
    if member is None:
        raise Answer(Status.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    return member


# Sharing queues -------------------------------------------------------------------------------


def assignment(broker: Broker, call: Call) -> Response:
    """Which queues of a topic a member has, where clients do not share them among themselves."""
    value = body_of(call)
    name, group = str(value.get("topic") or ""), str(value.get("consumerGroup") or "")
    queues = [message_queue(each, name, queue_id)
              for _, each in sorted(broker.cluster.brokers.items())
              if (topic := each.topic(name)) is not None and topic.perm & READ
              for queue_id in range(min(topic.read_queues, MOST_QUEUES))]
    if value.get("messageModel") != BROADCASTING:
        here = broker.groups.consumers.get(group)
        queues = share(queues, sorted(here.members) if here else [],
                       str(value.get("clientId") or ""), str(value.get("strategyName") or "AVG"))
    return json_response({"messageQueueAssignments": [
        {"messageQueue": queue, "mode": "PULL"} for queue in queues]})


def share(queues: list[Any], clients: list[str], client: str, strategy: str = "AVG") -> list[Any]:
    """A client's share of sorted queues, as the members of a group work it out: in stretches, or
    in turns (``AVG_BY_CIRCLE``). Answer for another strategy.
    """
    if strategy not in ("AVG", "AVG_BY_CIRCLE"):
        raise Answer(Status.SYSTEM_ERROR, f"there is no strategy {strategy[:40]}")
    if client not in clients:
        return []
    place = clients.index(client)
    if strategy == "AVG_BY_CIRCLE":
        return queues[place::len(clients)]
    each, more = divmod(len(queues), len(clients))
    start = place * each + min(place, more)
    return queues[start:start + each + (place < more)]


HANDLERS: Table = {
    "GET_CONSUMER_CONNECTION_LIST": consumers,
    "GET_PRODUCER_CONNECTION_LIST": producers,
    "GET_ALL_PRODUCER_INFO": all_producers,
    "GET_CONSUMER_RUNNING_INFO": running_info,
    "CONSUME_MESSAGE_DIRECTLY": consume_directly,
    "QUERY_ASSIGNMENT": assignment,
}
