"""Code shared by all gRPC methods: the brokers, the calling client, and error codes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

from rmqctl.ext.serve.broker import Broker, Response
from rmqctl.ext.serve.grpc.protocol import Code, Refused
from rmqctl.ext.serve.grpc.sessions import BrokerLink, Sessions, host_of
from rmqctl.ext.serve.limits import Quota
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import Address

MAX_UNSENT = 64 << 20
"""Maximum total size in bytes of the messages that are being written to all clients."""
_CODES = {
    Status.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    Status.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    Status.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    Status.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    Status.NO_PERMISSION: Code.FORBIDDEN,
    Status.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    Status.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    Status.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    Status.NO_MESSAGE: Code.INVALID_RECEIPT_HANDLE,
}


def code_of(status: int) -> Code:
    """Return the gRPC code for an error status of the remoting protocol."""
    return {int(remoting_status): code for remoting_status, code in _CODES.items()}.get(
        status, Code.INTERNAL_SERVER_ERROR)


def refused_by(response: Response) -> Refused:
    """Return the exception `Refused` for a broker's error response."""
    return Refused(code_of(response.code), response.remark or "refused")


def judged(error: Refused | Failed) -> tuple[Code, str]:
    """Return the code and the text with which an error is reported to the client."""
    if isinstance(error, Failed):
        return code_of(error.status), error.remark
    return error.code, error.text


@dataclass(frozen=True, slots=True)
class Caller:
    """The calling client. ``remaining``: seconds until the call's deadline."""

    client_id: str
    peer: str
    language: str
    remaining: float

    @property
    def host(self) -> str:
        """Return the part of the client's address to which limits apply."""
        return host_of(self.peer)

    def link(self, broker: Broker) -> BrokerLink:
        """Return a connection of the caller to a broker, for requests."""
        return BrokerLink(broker, self.peer, self.language)


@dataclass(eq=False)
class Endpoint:
    """The brokers that one gRPC address serves, and the sessions of their clients."""

    brokers: Sequence[Broker]
    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0))
    part: float = 1.0
    """The maximum share (0 to 1) of any limit that one client address may use, as in `Limits`."""
    turn: int = 0
    """Number of sends without a message group so far, used to distribute them over the brokers."""

    def __post_init__(self) -> None:
        self.unsent = Quota(MAX_UNSENT, self.part)
        """The limit on the bytes of messages that are being written to clients."""
        self.looking = asyncio.Lock()
        """Held during a search of queues. Only one search runs at a time."""
        self.sessions = Sessions(self.brokers, self._gone)
        self.by_name = {broker.name: broker for broker in self.brokers}
        for broker in self.brokers:
            broker.pops.is_there = self.sessions.is_there

    def _gone(self, client_id: str) -> None:
        for broker in self.brokers:
            broker.pops.leave(client_id)

    @contextmanager
    def held(self, caller: Caller, size: int) -> Iterator[None]:
        """Within this context, count ``size`` bytes as being written to the client.

        Raises: Refused if too many bytes are being written already.
        """
        if not self.unsent.has_room(caller.host, size):
            raise Refused(Code.TOO_MANY_REQUESTS, "clients do not read their messages")
        self.unsent.take(caller.host, size)
        try:
            yield
        finally:
            self.unsent.leave(caller.host, size)
