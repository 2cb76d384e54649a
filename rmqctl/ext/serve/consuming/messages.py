"""Lookup of single messages by id and by key (spec: remoting.md §3.2)."""

from __future__ import annotations

from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.broker import Broker, Buffer, Call, Response, Table
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.store.query.lookup import FOR_EVER, by_key

_MAX_BY_KEY = 64
_MAX_UNIQUE = 32
MAX_BYTES = 8 << 20
"""Maximum total size in bytes of the messages in one response; the first message may be larger."""


def view_message(broker: Broker, call: Call) -> Response:
    """Return the message at a physical offset."""
    raw = broker.raw_at(call.fields["offset"])
    if raw is None:
        raise Failed(Status.SYSTEM_ERROR,
                     f"can not find message by the offset, {call.fields['offset']}")
    return Response({}, (raw,))


def query_message(broker: Broker, call: Call) -> Response:
    """Return messages in a topic that have a key or unique key, found through the index."""
    # Search the index, after messages just sent were added to it.
    wanted = call.fields
    is_unique = (wanted["_UNIQUE_KEY_QUERY"] or "").lower() == "true"
    most = _MAX_UNIQUE if is_unique else min(max(wanted["maxNum"], 1), _MAX_BY_KEY)
    try:
        if broker.writer is not None:
            broker.writer.settle_now()
        answer = by_key(broker.source.view, wanted["topic"], wanted["key"],
                        begin=max(wanted["beginTimestamp"], 0),
                        end=min(max(wanted["endTimestamp"], 0), FOR_EVER), most=most,
                        kind="unique" if is_unique else "key")
    except RmqctlError as error:
        raise Failed(Status.SYSTEM_ERROR, str(error)) from None
    # Add as many messages as fit into a response.
    parts: list[Buffer] = []
    size = newest = place = 0
    for record in answer.records:
        raw = broker.raw_at(record.physical_offset)
        if raw is None:
            broker.skipped += 1
        elif not parts or size + len(raw) <= MAX_BYTES:
            parts.append(raw)
            size += len(raw)
            newest = max(newest, record.store_timestamp)
            place = max(place, record.physical_offset)
    ext = {"indexLastUpdatePhyoffset": str(place), "indexLastUpdateTimestamp": str(newest)}
    if not parts:
        return Response(ext, (), int(Status.QUERY_NOT_FOUND),
                        "can not find message, maybe time range not correct")
    return Response(ext, parts)


HANDLERS: Table = {"VIEW_MESSAGE_BY_ID": view_message, "QUERY_MESSAGE": query_message}
