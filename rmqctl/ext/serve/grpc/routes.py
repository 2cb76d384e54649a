"""Methods that return the routes of topics, and the queues assigned to a consumer (spec:
remoting.md §7).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from rmqctl.engine.config.topics import CLIENT_QUEUES
from rmqctl.ext.serve.broker import Broker
from rmqctl.ext.serve.grpc.calls import Caller, Endpoint
from rmqctl.ext.serve.grpc.protocol import MESSAGES, Code, Refused, response
from rmqctl.ext.serve.grpc.sessions import is_fifo, name_of
from rmqctl.ext.serve.source import READ, WRITE, ServedTopic
from rmqctl.parse_values import Address

_NONE, _READ, _WRITE, _READ_WRITE = 1, 2, 3, 4
_IPV4, _IPV6, _NAME = 1, 2, 3
_TYPES = (1, 2, 3, 4)
"""The message types that queues accept: normal, FIFO, delay and transaction."""
_ANY_QUEUE = -1
_MAX_REQUEST = 4096
"""Maximum bytes of a request; most of the request is repeated in the response for each queue."""


def _topic(request: Any) -> str:
    """Return the name of the topic that a request names. Raises: Refused."""
    if request.ByteSize() > _MAX_REQUEST:
        raise Refused(Code.BAD_REQUEST, "the request is too large")
    return name_of(request.topic, Code.ILLEGAL_TOPIC, "topic")


def brokers_with(brokers: Sequence[Broker], name: str) -> list[tuple[Broker, ServedTopic]]:
    """Return the brokers that have a topic, or else the brokers that would create the topic.

    These brokers create the topic when they receive its first message. Raises: Refused if no broker
    has or would create the topic.
    """
    candidates = [(broker, topic) for broker in brokers
                  if (topic := broker.topic(name)) is not None]
    if not candidates:
        candidates = [(broker, ServedTopic(name, CLIENT_QUEUES, CLIENT_QUEUES, READ | WRITE))
                      for broker in brokers if broker.writer is not None
                      and broker.writer.topics.creation_problem(name) is None]
    if not candidates:
        raise Refused(Code.TOPIC_NOT_FOUND, f"topic {name} does not exist")
    return candidates


def readable(brokers: Sequence[Broker], name: str, broker_name: str) -> list[Broker]:
    """Return the brokers from which a topic can be read.

    ``broker_name``: only this broker, unless empty. Raises: Refused if the topic's messages cannot
    be received.
    """
    candidates = [(broker, topic) for broker, topic in brokers_with(brokers, name)
                  if broker_name in ("", broker.name) and topic.perm & READ]
    if not candidates:
        raise Refused(Code.FORBIDDEN, f"topic {name} cannot be read")
    if any(name == topic for broker, _ in candidates
           for topic, _ in broker.source.store.queues.batch):
        raise Refused(Code.UNSUPPORTED, f"topic {name} has batch consume queues, which are only "
                      "served over the remoting protocol")
    return [broker for broker, _ in candidates]


async def query_route(endpoint: Endpoint, _caller: Caller, request: Any) -> Any:
    """Return all queues of a topic."""
    name = _topic(request)
    queues = []
    for broker, topic in brokers_with(endpoint.brokers, name):
        where = _broker(endpoint, broker, request)
        # A read-only broker stays writable in routes, so that its error reaches the producer.
        can_write = topic.write_queues if broker.writer is None or topic.perm & WRITE else 0
        can_read = topic.read_queues if topic.perm & READ else 0
        queues += [MESSAGES["MessageQueue"](
            topic=request.topic, id=number, broker=where, accept_message_types=_TYPES,
            permission=_permission(number < can_read, number < can_write))
            for number in range(max(topic.read_queues, topic.write_queues))]
    return response("QueryRoute", message_queues=queues)


async def query_assignment(endpoint: Endpoint, _caller: Caller, request: Any) -> Any:
    """Return the queues that a group member reads.

    For a group with ordered messages, the response has one entry per queue. For other groups, it
    has one entry per broker; the entry means any queue of that broker.
    """
    name = _topic(request)
    fifo = is_fifo(endpoint.brokers, name_of(request.group, Code.ILLEGAL_CONSUMER_GROUP, "group"))
    queues = [
        {"message_queue": MESSAGES["MessageQueue"](
            topic=request.topic, id=number, permission=_permission(
                True, bool(topic.perm & WRITE)), broker=_broker(endpoint, broker, request))}
        for broker, topic in brokers_with(endpoint.brokers, name)
        if topic.perm & READ and topic.read_queues
        for number in (range(topic.read_queues) if fifo else (_ANY_QUEUE,))]
    if not queues:
        raise Refused(Code.FORBIDDEN, "no readable queue")
    return response("QueryAssignment", assignments=queues)


def _permission(read: bool, write: bool) -> int:
    if read:
        return _READ_WRITE if write else _READ
    return _WRITE if write else _NONE


def _broker(endpoint: Endpoint, broker: Broker, request: Any) -> Any:
    """Return a Broker message with the address to which the client connected."""
    given = request.endpoints
    return MESSAGES["Broker"](
        name=broker.name, id=0,
        endpoints=given if given.addresses else _endpoints(endpoint.address))


def _endpoints(address: Address) -> dict[str, Any]:
    try:
        scheme = _IPV4 if ip_address(address.host).version == 4 else _IPV6
    except ValueError:
        scheme = _NAME
    return {"scheme": scheme, "addresses": [{"host": address.host, "port": address.port}]}
