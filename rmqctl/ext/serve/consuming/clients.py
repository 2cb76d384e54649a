"""Handlers for heartbeats of clients and queue locks of group members (spec: remoting.md §3.3)."""

from __future__ import annotations

import re
import time
from typing import Any

from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.consuming.groups import Group, Member, size_of
from rmqctl.ext.serve.consuming.subscriptions import TAG, Subscription
from rmqctl.ext.serve.naming import json_response
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.ext.serve.remoting.frame import FrameError

_MAX_EVENTS = 50
"""Maximum number of groups whose members one heartbeat notifies at once. If a client joins more
groups than that, a single event reports all of them.
"""
_MAX_SUBSCRIPTIONS = 10_000
_MAX_TEXT = 64 << 20
"""Maximum memory in bytes for all subscriptions of a broker."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_BODY = 1 << 20
_MAX_NAME = 1024
"""Maximum length, in characters, of the name of a client, group or topic; brokers allow 255."""


def body_of(call: Call) -> dict[str, Any]:
    """Return the JSON object in a request's body.

    Raises: Failed if the body is too large, is not a JSON object, or cannot be parsed.
    """
    if len(call.command.body) > _MAX_BODY:
        raise Failed(Status.SYSTEM_ERROR, f"the body has {len(call.command.body):,} bytes; the "
                     f"limit for this request is {_MAX_BODY:,}")
    try:
        value = call.command.json()
    except FrameError as error:
        raise Failed(Status.SYSTEM_ERROR, str(error)) from None
    if not isinstance(value, dict):
        raise Failed(Status.SYSTEM_ERROR, "the body is not a JSON object")
    return value


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the JSON objects in a list; an empty list if the value is not a list."""
    return [element for element in value if isinstance(element, dict)] if (
        isinstance(value, list)) else []


def _name(value: Any) -> str:
    """Return ``value`` if it is a valid name.

    Return an empty string if ``value`` is not a string, is too long or cannot be encoded.
    """
    text = value if isinstance(value, str) and len(value) <= _MAX_NAME else ""
    return "" if _SURROGATE.search(text) else text


def heartbeat(broker: Broker, call: Call) -> Response:
    """Register a client with its groups and their subscriptions."""
    value = body_of(call)
    # Identify the client, and compute the space left for groups and subscriptions.
    client_id = _name(value.get("clientID"))
    if not client_id:
        raise Failed(Status.SYSTEM_ERROR, "heartbeat without clientID")
    member = Member(client_id, call.connection, call.command.language, call.command.version,
                    time.monotonic())
    groups = broker.groups
    room = groups.most - groups.count
    text = groups.size
    joined: list[str] = []
    touched: list[Group] = []
    # Register its producer groups, then its consumer groups.
    for entry in objects(value.get("producerDataSet")):
        name = _name(entry.get("groupName"))
        is_new = client_id not in groups.producers.get(name, {})
        if name and (room > 0 or not is_new):
            room -= is_new
            groups.producers.setdefault(name, {})[client_id] = member
    for entry in objects(value.get("consumerDataSet")):
        name = _name(entry.get("groupName"))
        group = groups.consumers.get(name) or Group(name)
        is_new = (client_id, call.connection) not in group.members
        if not name or (is_new and room <= 0) or not broker.takes_group(name):
            continue
        room -= is_new
        groups.consumers[name] = group
        group.members[client_id, call.connection] = member
        group.describe(entry)
        wanted = [Subscription.of(data) for data in objects(entry.get("subscriptionDataSet"))[
            :_MAX_SUBSCRIPTIONS]]
        wanted = [subscription for subscription in wanted if _name(subscription.topic)]
        text += size_of(wanted) - group.size
        if text > _MAX_TEXT:
            raise Failed(Status.SYSTEM_ERROR, "the clients' subscriptions have reached their "
                         "memory limit")
        changed = group.subscribe(wanted)
        if is_new and broker.is_writable and len(broker.new_groups) < groups.most:
            broker.new_groups.add(name)
        if is_new:
            joined.append(name)
        if is_new or changed:
            touched.append(group)
    # Notify the members of changed groups, so that they share queues again.
    for group in touched[:_MAX_EVENTS]:
        broker.notify_members(group)
    broker.notify_in_turns(touched[_MAX_EVENTS:])
    _report_joined(broker, client_id, joined)
    return Response({})


def _report_joined(broker: Broker, client_id: str, joined: list[str]) -> None:
    if len(joined) > _MAX_EVENTS:
        broker.on_event(event="joined", broker=broker.name, client=client_id, groups=len(joined))
        return
    for name in joined:
        broker.on_event(event="joined", broker=broker.name, group=name, client=client_id)


def unregister(broker: Broker, call: Call) -> Response:
    """Remove a client from a group."""
    client_id = call.fields["clientID"]
    if call.fields["consumerGroup"]:
        for group in broker.groups.drop(client_id, call.connection, call.fields["consumerGroup"]):
            broker.locks.give_back(group.name, client_id)
            broker.on_event(event="left", broker=broker.name, group=group.name, client=client_id)
            broker.notify_members(group)
    if call.fields["producerGroup"]:
        broker.groups.drop_producers(client_id, call.connection, call.fields["producerGroup"])
    return Response({})


def consumer_list(broker: Broker, call: Call) -> Response:
    """Return the client ids of a group's members, which use these ids to divide the queues."""
    name = call.fields["consumerGroup"]
    group = broker.groups.consumers.get(name)
    if group is None or not group.members:
        raise Failed(Status.SYSTEM_ERROR, f"no consumer for this group, {name}")
    return json_response({"consumerIdList": group.ids})


def check_client(_broker: Broker, call: Call) -> Response:
    """Check that a client's filter is valid. Clients request this before their first pull."""
    data = body_of(call).get("subscriptionData")
    subscription = Subscription.of(data if isinstance(data, dict) else {})
    if subscription.kind != TAG:
        subscription.accept()
    return Response({})


def _queues(value: dict[str, Any]) -> list[tuple[str, int]]:
    return [(topic, queue_id) for entry in objects(value.get("mqSet"))
            if (topic := _name(entry.get("topic"))) and isinstance(
                queue_id := entry.get("queueId"), int)]


def lock_queues(broker: Broker, call: Call) -> Response:
    """Lock queues for a group member, for orderly consumption. Return the queues that are now
    locked by this member.
    """
    value = body_of(call)
    locked = broker.locks.take(_name(value.get("consumerGroup")), _name(value.get("clientId")),
                               _queues(value))
    return json_response({"lockOKMQSet": [
        {"brokerName": broker.name, "queueId": queue_id, "topic": topic}
        for topic, queue_id in locked]})


def unlock_queues(broker: Broker, call: Call) -> Response:
    """Release a member's queue locks."""
    value = body_of(call)
    broker.locks.give_back(str(value.get("consumerGroup")), str(value.get("clientId")),
                           _queues(value))
    return Response({})


HANDLERS: Table = {
    "HEART_BEAT": heartbeat,
    "UNREGISTER_CLIENT": unregister,
    "GET_CONSUMER_LIST_BY_GROUP": consumer_list,
    "CHECK_CLIENT_CONFIG": check_client,
    "LOCK_BATCH_MQ": lock_queues,
    "UNLOCK_BATCH_MQ": unlock_queues,
}
