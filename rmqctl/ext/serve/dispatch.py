"""Handlers of requests by request code, and error responses (spec: remoting.md §1.4)."""

from __future__ import annotations

from rmqctl.errors import RmqctlError
from rmqctl.ext.serve import naming
from rmqctl.ext.serve.broker import Broker, Call, Connection, Handler, Response
from rmqctl.ext.serve.consuming import clients, messages, offsets, pop_requests, pulling, returning
from rmqctl.ext.serve.producing import recalling, replying, sending
from rmqctl.ext.serve.producing.properties import REGION
from rmqctl.ext.serve.remoting.codes import CODE_OF, REQUESTS, Failed, Status
from rmqctl.ext.serve.remoting.command import Command
from rmqctl.ext.serve.tools import admin, assigning, changing, cleaning, progress, relay

_ROOMS = (pulling, offsets, clients, returning, messages, pop_requests, naming, admin, assigning,
          progress, relay, changing, cleaning, sending, recalling, replying)
_BY_NAME: dict[str, Handler] = {
    name: handler for room in _ROOMS for name, handler in room.HANDLERS.items()}
HANDLERS: dict[int, Handler] = {
    code: _BY_NAME[request.name] for code, request in REQUESTS.items() if request.name in _BY_NAME}
_FOR_ALL = frozenset(CODE_OF[name] for name in naming.HANDLERS)
"""Codes of requests to the name server, for which clients need no access key."""


def answer(broker: Broker, connection: Connection, command: Command, *, is_known: bool = False
           ) -> None:
    """Handle a request. The response is sent now or later; a one-way request gets no response.

    ``is_known``: whether the client's access was already checked.
    """
    response = _answered(broker, connection, command, is_known)
    if response is not None and not command.is_one_way:
        connection.reply(command, response)


def _answered(broker: Broker, connection: Connection, command: Command, is_known: bool
              ) -> Response | None:
    request = REQUESTS.get(command.code)
    name = "unknown" if request is None else request.name
    broker.requests[name] += 1
    handler = HANDLERS.get(command.code)
    try:
        if command.code not in _FOR_ALL and not is_known:
            broker.cluster.access.check(command)
        if request is None:
            return _unsupported(command.code)
        if request.changes and not broker.is_writable:
            raise Failed(Status.NO_PERMISSION, _refusal(broker, request.name))
        if handler is None:
            return _unsupported(command.code)
        return handler(broker, Call(connection, command, request.read(command.ext)))
    except Failed as refused:
        return Response(_always(name), (), refused.status, refused.remark)
    except RmqctlError as error:
        return Response(_always(name), (), Status.SYSTEM_ERROR, str(error))
    except Exception as error:  # noqa: BLE001 - a defect of ours must not take the other clients with it
        broker.failed(name, error)
        return Response(code=Status.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def _always(name: str) -> dict[str, str] | None:
    """Return the header fields that all responses to a request have, including errors."""
    return dict(REGION) if name.startswith("SEND_") else None


def _unsupported(code: int) -> Response:
    return Response(code=Status.REQUEST_CODE_NOT_SUPPORTED,
                    remark=f" request type {code} not supported")


def _refusal(broker: Broker, name: str) -> str:
    action = "sending message" if name.startswith("SEND_") else name.lower().replace("_", " ")
    return f"the broker[{broker.address}] is read-only, {action} is forbidden"
