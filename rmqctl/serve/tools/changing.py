"""What administration tools change: groups of consumers, and what the name server keeps for them
(spec: remoting.md §3.5). Topics are changed where producers make them.
"""

from __future__ import annotations

from rmqctl.remoting.codes import Answer, Status
from rmqctl.serve.broker import Broker, Call, Response, Table
from rmqctl.serve.consuming.clients import body_of

_MOST_KEPT = 10_000
_LONGEST = 4096
"""Values that the name server keeps, and the characters of each."""


def update_group(broker: Broker, call: Call) -> Response:
    """Makes or changes a group of consumers."""
    writer, wanted = broker.writer, body_of(call)
    assert writer is not None
    name = wanted.get("groupName")
    if not isinstance(name, str):
        raise Answer(Status.SYSTEM_ERROR, "no groupName is given")
    writer.groups.put({name: {**(writer.groups.get(name) or {}),
                              **writer.groups.bean(name, wanted)}})
    writer.source.refresh(force=True)
    return Response()


def delete_group(broker: Broker, call: Call) -> Response:
    """Forgets what was set for a group of consumers; its positions and messages stay."""
    writer, name = broker.writer, call.fields["groupName"]
    assert writer is not None
    if writer.groups.get(name) is not None:
        writer.groups.remove(name)
        writer.source.refresh(force=True)
    return Response()


def put_value(broker: Broker, call: Call) -> Response:
    """Keeps a value for others, until the server ends."""
    kept, (namespace, key, value) = broker.cluster.kv, (
        call.fields[name] for name in ("namespace", "key", "value"))
    size = sum(map(len, kept.values()))
    if size >= _MOST_KEPT or len(namespace) + len(key) + len(value) > _LONGEST:
        raise Answer(Status.SYSTEM_BUSY, "too much is kept already")
    kept.setdefault(namespace, {})[key] = value
    return Response()


def delete_value(broker: Broker, call: Call) -> Response:
    """Forgets such a value."""
    space = broker.cluster.kv.get(call.fields["namespace"], {})
    space.pop(call.fields["key"], None)
    if not space:
        broker.cluster.kv.pop(call.fields["namespace"], None)
    return Response()


HANDLERS: Table = {
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP": update_group,
    "DELETE_SUBSCRIPTIONGROUP": delete_group,
    "PUT_KV_CONFIG": put_value,
    "DELETE_KV_CONFIG": delete_value,
}
