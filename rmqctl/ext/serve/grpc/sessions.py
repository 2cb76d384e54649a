"""Sessions of connected 5.x clients: their settings and streams.

Spec: remoting.md §7; Telemetry, Heartbeat, NotifyClientTermination. For the brokers, such a client
is an ordinary group member that sends heartbeats to each broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import field
from itertools import count
from typing import Any

from rmqctl.ext.serve.broker import Broker, Response
from rmqctl.ext.serve.consuming.returning import MAX_TIMES
from rmqctl.ext.serve.consuming.subscriptions import SQL, TAG
from rmqctl.ext.serve.dispatch import answer
from rmqctl.ext.serve.grpc.messages import MAX_BODY, to_client
from rmqctl.ext.serve.grpc.protocol import MESSAGES, Code, Refused, span, status
from rmqctl.ext.serve.limits import network_of
from rmqctl.ext.serve.remoting.codes import CHECK_TRANSACTION_STATE, CODE_OF
from rmqctl.ext.serve.remoting.command import Command, write_json
from rmqctl.formats.local.delay import DEFAULT_LEVELS
from rmqctl.formats.local.message import decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.objects import java_text

MAX_CLIENTS = 10_000
"""Maximum number of clients at a time."""
MAX_BYTES = 64 << 20
"""Maximum approximate memory, in bytes, for the settings of all clients."""
AWAY_S = 30.0
"""Seconds after which a client without a stream and without a heartbeat is considered gone."""
_TURN_S = 0.02
_MAX_NAME = 255
_MAX_ENTRIES, _ENTRY = 10_000, 100
"""Maximum number of topics and addresses in a client's settings, and memory in bytes that each of
them needs besides its text.
"""
_MAX_UNSENT = 1 << 20
"""Maximum approximate memory, in bytes, for commands that wait to be sent to a client; the first
command is always accepted.
"""
_BATCH, _POLL_MS = 32, 20_000
_PRODUCER_ATTEMPTS = 3
_MAX_WAIT_MS = 12 * 3_600_000
"""Maximum time (ms) that a group's retry policy may set between two attempts."""
_MAX_WAITS = 64
_EXPONENTIAL = {"initial": 5000, "max": 2 * 3_600_000, "multiplier": 2}


def name_of(resource: Any, code: Code, noun: str) -> str:
    """Return the name of a topic or group. Raises: Refused if the name is invalid."""
    name: str = resource.name
    if not name.strip() or len(name) > _MAX_NAME or any(character < " " for character in name):
        raise Refused(code, f"the {noun} name is empty, too long, or contains control characters")
    return name


def transaction_id(broker: Broker, physical: int | str, queue_offset: int | str) -> str:
    """Return a half message's transaction id for clients: broker name, physical offset, and queue
    offset in the half topic.
    """
    return f"{broker.name}.{physical}.{queue_offset}"


def host_of(peer: str) -> str:
    """Return the part of a client's address, without the port, to which limits apply."""
    return network_of(peer.rpartition(":")[0].strip("[]"))


class BrokerLink:
    """A client's virtual connection to one broker, on which the client's calls are sent as
    requests.
    """

    _numbers = count(1)

    def __init__(self, broker: Broker, peer: str, language: str = "OTHER") -> None:
        self.broker, self.peer, self.language = broker, peer, language
        self.host = host_of(peer)
        self.at_end: set[Callable[[], None]] = set()
        self.is_full, self.local_host = False, ""
        self.commands: asyncio.Queue[Any] | None = None
        """The queue of commands to the client; None if the client has no open stream."""
        self._asked: dict[int, asyncio.Future[Response]] = {}

    async def request(self, name: str, body: bytes = b"", **fields: object) -> Response:
        """Send a request of the remoting protocol to the broker. Return the response."""
        command = Command(CODE_OF[name], next(self._numbers), 0, {
            field: str(value) for field, value in fields.items()}, None, body, self.language)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._asked[command.opaque] = future
        try:
            answer(self.broker, self, command, is_known=True)
            return await future
        finally:
            del self._asked[command.opaque]

    def reply(self, request: Command, response: Response) -> None:
        future = self._asked.get(request.opaque)
        if future is not None and not future.done():
            future.set_result(response)

    def send(self, command: Command) -> None:
        """Send a transaction check to the producer; ignore other commands from brokers, which
        5.x clients do not support.
        """
        if command.code != CHECK_TRANSACTION_STATE or self.commands is None or (
                self.commands.full()):
            return
        record = decode(command.body)
        message = to_client(command.body, java_text(record.topic))
        if self.commands.qsize() * message.ByteSize() > _MAX_UNSENT:
            return
        self.commands.put_nowait(MESSAGES["TelemetryCommand"](
            status=status(Code.OK), recover_orphaned_transaction_command={
                "message": message, "transaction_id": transaction_id(
                    self.broker, command.ext["commitLogOffset"],
                    command.ext["tranStateTableOffset"])}))

    def ask(self, _command: Command, then: Callable[[Command | None], None], _seconds: float
            ) -> None:
        """Call ``then`` with None immediately: 5.x clients accept no requests from brokers."""
        then(None)


@dataclass(eq=False)
class Session:
    """A connected client. ``settings``: the settings that the server returned to it."""

    client_id: str
    links: list[BrokerLink]
    settings: Any
    size: int = 0
    streams: int = 0
    seen: float = field(default_factory=time.monotonic)


class Sessions:
    """The sessions of all connected clients. ``gone`` is called with the id of each client that
    left.
    """

    def __init__(self, brokers: Iterable[Broker], gone: Callable[[str], None]) -> None:
        self._brokers, self._gone = list(brokers), gone
        self.by_client: dict[str, Session] = {}
        self._size = 0

    def is_there(self, client_id: str) -> bool:
        """Return whether a client has an open stream, or sent a heartbeat recently."""
        session = self.by_client.get(client_id)
        return session is not None and (
            session.streams > 0 or time.monotonic() - session.seen < AWAY_S)

    async def settle(self, client_id: str, peer: str, language: str, wanted: Any) -> Session:
        """Store a client's settings, completed by the server. Return the client's session.
        Raises: Refused.
        """
        if not (wanted.HasField("publishing") or wanted.HasField("subscription")):
            raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "the client is neither a producer nor a "
                          "consumer")
        entries = sum(map(len, (wanted.publishing.topics, wanted.access_point.addresses,
                                wanted.subscription.subscriptions)))
        session = self.by_client.get(client_id)
        size = wanted.ByteSize() + _ENTRY * entries
        more = size - (0 if session is None else session.size)
        if entries > _MAX_ENTRIES or self._size + more > MAX_BYTES:
            raise Refused(Code.TOO_MANY_REQUESTS, "the clients' settings have reached their memory "
                          "limit")
        if session is None:
            if len(self.by_client) >= MAX_CLIENTS:
                raise Refused(Code.TOO_MANY_REQUESTS, "too many clients")
            links = [BrokerLink(broker, peer, language) for broker in self._brokers]
            session = Session(client_id, links, MESSAGES["Settings"]())
            self.by_client[client_id] = session
        try:
            session.settings = completed(self._brokers, wanted)
            session.size = size
            self._size += more
            await self.beat(session)
        except Refused:
            self.leave(client_id)
            raise
        return session

    async def beat(self, session: Session) -> None:
        """Record that the client is connected, and send its heartbeat to every broker.
        Raises: Refused.
        """
        session.seen = time.monotonic()
        body = write_json(_heartbeat(session))
        for link in session.links:
            answer = await link.request("HEART_BEAT", body)
            if answer.code:
                raise Refused(Code.TOO_MANY_REQUESTS, answer.remark or "try again later")

    def closed(self, session: Session, commands: asyncio.Queue[Any]) -> None:
        """Record that a client's stream was closed. The session continues: the client may open
        another stream.
        """
        session.streams -= 1
        session.seen = time.monotonic()
        for link in session.links:
            if link.commands is commands:
                link.commands = None

    def leave(self, client_id: str) -> None:
        """End a client's session."""
        session = self.by_client.pop(client_id, None)
        if session is None:
            return
        self._size -= session.size
        for link in session.links:
            link.broker.forget(link)
        self._gone(client_id)

    def expire(self) -> None:
        """End the sessions of clients without a recent heartbeat; many sessions are ended in
        several turns.
        """
        late = time.monotonic() + _TURN_S
        for client_id in [name for name in self.by_client if not self.is_there(name)]:
            self.leave(client_id)
            if time.monotonic() > late:
                self._brokers[0].later(0, self.expire)
                return


def group_settings(brokers: Iterable[Broker], group: str) -> dict[str, Any]:
    """Return a group's settings from the first store that contains the group."""
    return next((settings for broker in brokers
                 if (settings := broker.source.groups.get(group))), {})


def is_fifo(brokers: Iterable[Broker], group: str) -> bool:
    """Return whether a group consumes the messages of each queue in order."""
    return bool(group_settings(brokers, group).get("consume_message_orderly"))


def most_attempts(brokers: Iterable[Broker], group: str) -> int:
    """Return the maximum number of deliveries of a message to a group."""
    most = group_settings(brokers, group).get("retry_max_times")
    return (most if isinstance(most, int) and most >= 0 else MAX_TIMES) + 1


def backoff(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group's retry policy for clients: the times between attempts.

    The times come from the group's ``groupRetryPolicy``. If this policy is missing or invalid,
    default times are used.
    """
    given = group.get("group_retry_policy")
    policy = given if isinstance(given, dict) else {}
    if policy.get("type") == "EXPONENTIAL":
        chosen = policy.get("exponentialRetryPolicy")
        wanted = _EXPONENTIAL | (chosen if isinstance(chosen, dict) else {})
        if not all(_is_wait(wanted[name]) for name in _EXPONENTIAL):
            wanted = _EXPONENTIAL
        return {"exponential_backoff": {"initial": span(wanted["initial"]), "max": span(
            wanted["max"]), "multiplier": wanted["multiplier"]}}
    chosen = policy.get("customizedRetryPolicy")
    waits = chosen.get("next") if isinstance(chosen, dict) else None
    if not isinstance(waits, list) or not 0 < len(waits) <= _MAX_WAITS or (
            not all(map(_is_wait, waits))):
        waits = list(DEFAULT_LEVELS.values())
    return {"customized_backoff": {"next": [span(wait) for wait in waits]}}


def _is_wait(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_WAIT_MS


def completed(brokers: Iterable[Broker], wanted: Any) -> Any:
    """Return a client's settings, completed by the server. Raises: Refused."""
    settings = MESSAGES["Settings"]()
    settings.CopyFrom(wanted)
    settings.metric.SetInParent()
    settings.metric.on = False
    policy = settings.backoff_policy
    if settings.HasField("publishing"):
        settings.publishing.validate_message_type = True
        settings.publishing.max_body_size = MAX_BODY
        policy.CopyFrom(MESSAGES["RetryPolicy"](
            max_attempts=_PRODUCER_ATTEMPTS, exponential_backoff={
                "initial": span(10), "max": span(1000), "multiplier": 2}))
        return settings
    consumer = settings.subscription
    group = name_of(consumer.group, Code.ILLEGAL_CONSUMER_GROUP, "group")
    consumer.fifo = is_fifo(brokers, group)
    consumer.receive_batch_size = _BATCH
    consumer.long_polling_timeout.CopyFrom(MESSAGES["Settings"](
        request_timeout=span(_POLL_MS)).request_timeout)
    policy.CopyFrom(MESSAGES["RetryPolicy"](
        max_attempts=most_attempts(brokers, group), **backoff(group_settings(brokers, group))))
    return settings


def _heartbeat(session: Session) -> dict[str, Any]:
    """Return the body of the heartbeat that a session sends to brokers for its client."""
    settings = session.settings
    value: dict[str, Any] = {"clientID": session.client_id}
    if settings.HasField("publishing"):
        value["producerDataSet"] = [{"groupName": topic.name}
                                    for topic in settings.publishing.topics]
        return value
    value["consumerDataSet"] = [{
        "groupName": settings.subscription.group.name, "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [
            {"topic": entry.topic.name, "subString": entry.expression.expression or "*",
             "expressionType": SQL if entry.expression.type == 2 else TAG, "subVersion": "1"}
            for entry in settings.subscription.subscriptions]}]
    return value
