"""Handlers that list connected clients, and that forward requests of tools to a client (spec:
remoting.md §3.3, §3.5).
"""

from __future__ import annotations

import json
import re
import time
from functools import partial

from rmqctl.ext.serve.broker import Broker, Buffer, Call, Response, Table
from rmqctl.ext.serve.consuming.groups import Member
from rmqctl.ext.serve.naming import json_response
from rmqctl.ext.serve.remoting.codes import GET_CONSUMER_STATUS_FROM_CLIENT, Failed, Status
from rmqctl.ext.serve.remoting.command import Command, read_json, write_json
from rmqctl.ext.serve.remoting.frame import FrameError
from rmqctl.formats.local.message import parse_message_id
from rmqctl.parse_values import now_ms

_MAX_ASKED, _MAX_BODY = 100, 1 << 20
"""Maximum number of clients that are asked for one response, and maximum bytes of a client's
response.
"""
_QUEUE = ("brokerName", "queueId", "topic")
_POSITION = re.compile(r'(\{[^{}]*+\}|"(?:[^"\\]|\\.?)*+(?:"|$))(?::(-?[0-9]{1,18})\b)?')
"""Matches a JSON key and its offset. The pattern matches texts completely, so that no byte is
examined twice.
"""
PATIENCE_S = 10.0
"""Maximum seconds to wait for a client's response."""


def consumers(broker: Broker, call: Call) -> Response:
    """Answer with the connected members of a consumer group, and its subscriptions."""
    name = call.fields["consumerGroup"]
    group = broker.groups.consumers.get(name)
    if group is None:
        raise Failed(Status.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    return json_response({
        "connectionSet": [member.as_dict() for member in group.members.values()],
        "consumeFromWhere": group.from_where, "consumeType": group.type,
        "messageModel": group.model, "subscriptionTable": {
            topic: subscription.as_dict() for topic, subscription in group.subscriptions.items()}})


def producers(broker: Broker, call: Call) -> Response:
    """Answer with the connected members of a producer group."""
    name = call.fields["producerGroup"]
    members = broker.groups.producers.get(name)
    if not members:
        raise Failed(Status.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    return json_response({"connectionSet": [member.as_dict() for member in members.values()]})


def all_producers(broker: Broker, _call: Call) -> Response:
    """Answer with the connected members of all producer groups."""
    now, now_seen = now_ms(), time.monotonic()
    return json_response({"data": {name: [
        {"clientId": member.client_id, "remoteIP": member.peer.peer, "language": member.language,
         "version": member.version,
         "lastUpdateTimestamp": now - int((now_seen - member.seen) * 1000)}
        for member in members.values()] for name, members in broker.groups.producers.items()}})


# Asking a client ------------------------------------------------------------------------------


def running_info(broker: Broker, call: Call) -> None:
    """Ask a client for its runtime information, and forward the client's response."""
    _pass_on(broker, call, b"")


def consume_directly(broker: Broker, call: Call) -> None:
    """Let a client consume one message now, and forward the client's response."""
    text = call.fields["msgId"] or ""
    try:
        physical = parse_message_id(text)[2]
    except ValueError:
        raise Failed(Status.SYSTEM_ERROR, f"not a message id: {text[:80]}") from None
    raw = broker.raw_at(physical)
    if raw is None:
        raise Failed(Status.SYSTEM_ERROR, f"can not find message by the offset, {physical}")
    _pass_on(broker, call, raw, brokerName=broker.name)


def client_positions(broker: Broker, call: Call) -> None:
    """Answer with the consumer offsets that connected members of a group have in memory for a
    topic.

    Raises: Failed if no member is connected.
    """
    wanted = call.fields
    connected = broker.groups.consumers.get(wanted["group"])
    if connected is None:
        raise Failed(Status.SYSTEM_ERROR,
                     f"No Any Consumer online in the consumer group: [{wanted['group']}]")
    asked = [member for member in connected.members.values()
             if wanted["clientAddr"] in (None, "", member.client_id)][:_MAX_ASKED]
    table: dict[str, dict[str, int]] = {}
    answered = 0

    def collect(member: Member, response: Command | None) -> None:
        nonlocal answered
        answered += 1
        if response is not None and response.code == Status.SUCCESS:
            table[member.client_id] = _positions(response.body)
        if answered == len(asked):
            call.reply(json_response({"consumerTable": table}))

    if not asked:
        call.reply(json_response({"consumerTable": {}}))
    for member in asked:
        member.peer.ask(Command(GET_CONSUMER_STATUS_FROM_CLIENT, ext={
            "topic": wanted["topic"], "group": wanted["group"]}), partial(collect, member),
            PATIENCE_S)


def _positions(body: bytes) -> dict[str, int]:
    """Return the offset of each queue in a client's response. The keys in the response are JSON
    objects, either as such or as strings.
    """
    offsets = {}
    for key, offset in _POSITION.findall(body[:_MAX_BODY].decode("utf-8", "replace")):
        if not offset or "queueId" not in key:
            continue  # the name of another field
        try:
            queue = read_json((json.loads(key) if key[0] == '"' else key).encode())
            offsets[write_json({name: queue[name] for name in _QUEUE}).decode()] = int(offset)
        except (FrameError, ValueError, TypeError, KeyError):
            continue
    return offsets


def _pass_on(broker: Broker, call: Call, body: Buffer, **more: str) -> None:
    """Forward a request to a group member, and the member's response to the sender."""
    group = call.fields["consumerGroup"]
    member = _member(broker, group, call.fields["clientId"])

    def then(response: Command | None) -> None:
        if response is None:
            call.reply(Response(code=Status.CONSUME_MSG_TIMEOUT, remark=(
                f"consumer <{group}> <{member.client_id}> Timeout: no response within "
                f"{PATIENCE_S:g} s, or its connection was closed")))
        else:
            call.reply(Response(response.ext, (response.body,), response.code, response.remark))

    member.peer.ask(Command(call.command.code, ext={**call.command.ext, **more}, body=bytes(body)),
                    then, PATIENCE_S)


def _member(broker: Broker, group: str, client_id: str | None) -> Member:
    connected = broker.groups.consumers.get(group)
    member = None if connected is None else connected.member(client_id or "")
    if member is None:
        raise Failed(Status.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    return member


HANDLERS: Table = {
    "INVOKE_BROKER_TO_GET_CONSUMER_STATUS": client_positions,
    "GET_CONSUMER_CONNECTION_LIST": consumers,
    "GET_PRODUCER_CONNECTION_LIST": producers,
    "GET_ALL_PRODUCER_INFO": all_producers,
    "GET_CONSUMER_RUNNING_INFO": running_info,
    "CONSUME_MESSAGE_DIRECTLY": consume_directly,
}
