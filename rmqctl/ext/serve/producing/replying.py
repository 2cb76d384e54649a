"""Replies to RPC requests (``request`` in clients).

Like a broker with default settings, the server forwards a reply to the waiting producer, and stores
the reply in the cluster's reply topic.
"""

from __future__ import annotations

from msgspec.structs import replace

from rmqctl.engine.put.message import Outgoing, PutResult
from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.consuming.groups import Member
from rmqctl.ext.serve.producing.sending import admitted, host_of, put_answer
from rmqctl.ext.serve.remoting.codes import PUSH_REPLY_MESSAGE_TO_CLIENT, Failed, Status
from rmqctl.ext.serve.remoting.command import Command
from rmqctl.ext.serve.tools.relay import PATIENCE_S
from rmqctl.formats.local import properties as props
from rmqctl.parse_values import now_ms

_TO_CLIENT, _PUSHED = "REPLY_TO_CLIENT", "PUSH_REPLY_TIME"
_PASSED_ON = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId",
              "sysFlag", "bornTimestamp", "flag", "reconsumeTimes", "unitMode")


def send_reply(broker: Broker, call: Call) -> None:
    """Forward a reply to the client that waits for it."""
    wanted = call.fields
    given = wanted["properties"] or ""
    member = _asker(broker, props.parse(given).get(_TO_CLIENT))
    writer, queue_id = admitted(broker, wanted)
    given = writer.properties.sent(given)
    message = Outgoing(
        wanted["topic"], call.command.body, given, queue_id, wanted["flag"], wanted["sysFlag"],
        wanted["bornTimestamp"], host_of(call.connection.peer),
        reconsume_times=wanted["reconsumeTimes"] or 0)

    question = Command(PUSH_REPLY_MESSAGE_TO_CLIENT, ext={
        **{name: _text(wanted[name]) for name in _PASSED_ON if wanted[name] is not None},
        "properties": props.build({**props.parse(given), _PUSHED: str(now_ms())}),
        "bornHost": call.connection.peer, "storeHost": str(broker.address),
        "storeTimestamp": str(now_ms())}, body=bytes(call.command.body))
    asked_by = replace(call.command, body=b"")  # nothing keeps the body until the client answers

    def then(response: Command | None, result: PutResult) -> None:
        answer = put_answer(result, queue_id)
        if response is None or response.code != Status.SUCCESS:
            answer.code = Status.SYSTEM_ERROR
            answer.remark = f"push reply message to {member.client_id} fail."
        elif not result.stored:  # whom it is for has it
            answer = Response({"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"})
        if not asked_by.is_one_way:
            connection.reply(asked_by, answer)

    connection = call.connection
    writer.put(message, lambda result: member.peer.ask(
        question, lambda response: then(response, result), PATIENCE_S))


def _asker(broker: Broker, client_id: str | None) -> Member:
    """Return the producer that sent the original request. Raises: Failed if it is not connected."""
    if client_id is None:
        raise Failed(Status.SYSTEM_ERROR, f"reply message properties[{_TO_CLIENT}] is null")
    for members in broker.groups.producers.values():
        if client_id in members:
            return members[client_id]
    raise Failed(Status.SYSTEM_ERROR,
                 f"push reply message fail, channel of <{client_id[:255]}> not found.")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


HANDLERS: Table = {
    "SEND_REPLY_MESSAGE": send_reply,
    "SEND_REPLY_MESSAGE_V2": send_reply,
}
