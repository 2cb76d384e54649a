"""Handlers of requests from administration tools to change consumer groups and name server values.

Spec: remoting.md §3.5. Topics are created and changed in `producing.sending`.
"""

from __future__ import annotations

from typing import Any

from rmqctl.engine.config.topics import is_system
from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.consuming.clients import body_of, objects
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.formats.config import properties_file

_MAX_KEPT = 10_000
_MAX_VALUE = 4096
"""Maximum number of values in the name server, and maximum length in characters of each value
together with its key and namespace.
"""
_MAX_GROUPS = 1000
_TOPICS = "autoCreateTopicEnable"
_SETTINGS = {_TOPICS: "makes", "autoCreateSubscriptionGroup": "makes_groups"}


def update_group(broker: Broker, call: Call) -> Response:
    """Create or change a consumer group."""
    return _update_groups(broker, [body_of(call)])


def update_groups(broker: Broker, call: Call) -> Response:
    """Create or change several groups."""
    return _update_groups(broker, objects(body_of(call).get("groupConfigList")))


def _update_groups(broker: Broker, wanted: list[dict[str, Any]]) -> Response:
    writer, new = broker.writer, {}
    assert writer is not None
    if len(wanted) > _MAX_GROUPS:
        raise Failed(Status.SYSTEM_ERROR, f"more than {_MAX_GROUPS} groups in one request")
    for config in wanted:
        name = config.get("groupName")
        if not isinstance(name, str):
            raise Failed(Status.SYSTEM_ERROR, "groupName is missing")
        new[name] = {**(writer.groups.get(name) or {}), **writer.groups.bean(name, config)}
    if new:
        writer.groups.put(new)
        writer.source.learn_groups(new)
    return Response()


def delete_group(broker: Broker, call: Call) -> Response:
    """Delete a consumer group's configuration and, if requested, its consumer offsets. Messages are
    not deleted.
    """
    writer, name = broker.writer, call.fields["groupName"]
    assert writer is not None
    if call.fields["removeOffset"] or call.fields["cleanOffset"]:
        broker.positions.forget(name)
        writer.source.offsets = broker.positions.stored
    if writer.groups.get(name) is not None:
        writer.groups.remove(name)
        writer.source.refresh(force=True)
    return Response()


def delete_topic(broker: Broker, call: Call) -> Response:
    """Delete a topic that never contained a message. Raises: Failed for any other topic."""
    writer, name = broker.writer, call.fields["topic"]
    assert writer is not None
    if is_system(name, writer.settings.profile.generation, broker.cluster.name):
        raise Failed(Status.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")
    topic = broker.topic(name)
    if topic is not None and any(broker.queue(name, queue_id).end for queue_id in range(
            max(topic.read_queues, topic.write_queues))):
        raise Failed(Status.SYSTEM_ERROR, f"the topic[{name}] has had messages; rmqctl serve "
                     "deletes only topics that never had any")
    if writer.topics.get(name) is not None:
        writer.topics.remove(name)
        writer.source.forget(name)
    return Response()


def delete_route(broker: Broker, call: Call) -> Response:
    """Delete a topic from the name server. Raises: Failed for a topic that a broker has.

    The name server has the topics of its brokers. Only a topic that no broker has can be deleted.
    """
    name = call.fields["topic"]
    if any(name in member.source.topics for member in broker.cluster.brokers.values()):
        raise Failed(Status.SYSTEM_ERROR, f"the topic[{name}] still exists on a broker")
    return Response()


def update_settings(broker: Broker, call: Call) -> Response:
    """Change settings of the broker until the server ends. If one of the changes is invalid, none
    is made.
    """
    writer, wanted = broker.writer, {
        entry.key: entry.value for entry in properties_file.parse(bytes(call.command.body))}
    assert writer is not None
    for name, value in wanted.items():
        if name not in _SETTINGS:
            raise Failed(Status.SYSTEM_ERROR, f"rmqctl serve cannot change {name}, only "
                         f"{' and '.join(_SETTINGS)}; change broker.conf instead")
        if value not in ("true", "false"):
            raise Failed(Status.SYSTEM_ERROR, f"{name}={value}: expected true or false")
    for name, value in wanted.items():
        setattr(writer.topics if name == _TOPICS else writer,
                _SETTINGS[name], value == "true")
    return Response()


def wipe_writes(broker: Broker, call: Call) -> Response:
    """Remove the write permission from a broker's routes, so that producers avoid it."""
    return Response({"wipeTopicCount": _let_write(broker, call, False)})


def add_writes(broker: Broker, call: Call) -> Response:
    """Restore the write permission in a broker's routes, after `wipe_writes`."""
    return Response({"addTopicCount": _let_write(broker, call, True)})


def _let_write(broker: Broker, call: Call, wanted: bool) -> str:
    target = broker.cluster.brokers.get(call.fields["brokerName"])
    if target is None:
        return "0"
    target.is_wiped = not wanted
    return str(len(target.topics))


def put_value(broker: Broker, call: Call) -> Response:
    """Store a value in the name server, in memory, until the server ends."""
    kept, (namespace, key, value) = broker.cluster.kv, (
        call.fields[name] for name in ("namespace", "key", "value"))
    size = sum(map(len, kept.values()))
    if size >= _MAX_KEPT or len(namespace) + len(key) + len(value) > _MAX_VALUE:
        raise Failed(Status.SYSTEM_BUSY, "the limit for stored KV configs is reached")
    kept.setdefault(namespace, {})[key] = value
    return Response()


def delete_value(broker: Broker, call: Call) -> Response:
    """Delete a value from the name server."""
    space = broker.cluster.kv.get(call.fields["namespace"], {})
    space.pop(call.fields["key"], None)
    if not space:
        broker.cluster.kv.pop(call.fields["namespace"], None)
    return Response()


HANDLERS: Table = {
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP": update_group,
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST": update_groups,
    "DELETE_SUBSCRIPTIONGROUP": delete_group,
    "DELETE_TOPIC_IN_BROKER": delete_topic,
    "DELETE_TOPIC_IN_NAMESRV": delete_route,
    "UPDATE_BROKER_CONFIG": update_settings,
    "WIPE_WRITE_PERM_OF_BROKER": wipe_writes,
    "ADD_WRITE_PERM_OF_BROKER": add_writes,
    "PUT_KV_CONFIG": put_value,
    "DELETE_KV_CONFIG": delete_value,
}
