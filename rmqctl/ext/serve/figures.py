"""Statistics of a server: for the live view, for monitoring, and as events each second.

The number of statistics is limited, because clients can name any number of groups and topics.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from heapq import nlargest
from itertools import chain, islice
from typing import Any

from rmqctl.ext.serve.broker import Broker
from rmqctl.ext.serve.remoting.codes import Failed
from rmqctl.ext.serve.server import Server
from rmqctl.lazy_dataclass import dataclass

MAX_LABELS = 1000
"""Maximum number of groups and topics that a metric shows separately; all others are added up."""
REST = "*"
"""The label for the sum of all other groups and topics, including those with this name."""
_MAX_EVENTS = 50
"""Maximum number of events of one kind per second. Further events are combined into one event with
their total.
"""
_LAG_S = 0.02
"""Time limit (s) for one computation of the lags. They are computed at most once a second."""
_MAX_QUEUES = 1000


@dataclass(frozen=True, slots=True)
class Second:
    """Counts since the previous sample. ``seconds``: the time since that sample."""

    seconds: float
    sent: Mapping[tuple[str, str], int]
    """Number of stored messages by broker and topic."""
    delivered: Mapping[tuple[str, str, str], int]
    """Number of delivered messages for each broker, group and topic."""
    delivered_bytes: int
    committed: Sequence[tuple[str, str, str]]
    """Broker, group and topic of consumer offsets that were committed."""
    damaged: Mapping[str, int]
    """Number of damaged messages that were skipped, by broker."""
    connections: Mapping[str, int]
    """The result of `connections`; empty if it has not changed."""


@dataclass(eq=False)
class CountWatch:
    """Takes samples of a server's counts. Commits of consumer offsets are counted from the first
    sample on.
    """

    server: Server
    _last: float = field(default_factory=time.monotonic)
    _sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    _delivered: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _bytes: int = 0
    _damaged: Counter[str] = field(default_factory=Counter)
    _connections: dict[str, int] = field(default_factory=lambda: dict.fromkeys(
        ("connections", "accepted", "turned_away", "broken"), 0))

    def look(self) -> Second:
        """Return the counts since the previous sample."""
        brokers, now = self.server.brokers, time.monotonic()
        sent = Counter({(broker.name, topic): count for broker in brokers
                        for topic, count in broker.received.items()})
        delivered = Counter({(broker.name, *key): count for broker in brokers
                             for key, count in broker.delivered.items()})
        size = sum(broker.delivered_bytes for broker in brokers)
        damaged = Counter({broker.name: broker.skipped for broker in brokers})
        connected = connections(self.server)
        committed: list[tuple[str, str, str]] = []
        for broker in brokers:
            touched, broker.positions.touched = broker.positions.touched, set()
            committed += [(broker.name, *key) for key in sorted(touched or ())]
        second = Second(
            max(now - self._last, 1e-3), sent - self._sent, delivered - self._delivered,
            size - self._bytes, committed, damaged - self._damaged,
            connected if connected != self._connections else {})
        self._last, self._sent, self._delivered, self._bytes = now, sent, delivered, size
        self._damaged, self._connections = damaged, connected
        return second


def connections(server: Server) -> dict[str, int]:
    """Return the number of open connections, and counts since the start.

    ``accepted``: all accepted connections. ``turned_away``: refused connections. ``broken``:
    connections closed because of invalid data.
    """
    return {"connections": len(server.connections), "accepted": server.accepted,
            "turned_away": server.turned_away, "broken": server.broken}


def events(server: Server, second: Second) -> Iterator[dict[str, Any]]:
    """Yield the events of the last second as JSON objects."""
    brokers = {broker.name: broker for broker in server.brokers}
    if second.connections:
        yield {"event": "connections", **second.connections}
    yield from _counted("sent", ("broker", "topic"), second.sent)
    yield from _counted("delivered", ("broker", "group", "topic"), second.delivered)
    if len(second.committed) > _MAX_EVENTS:
        yield {"event": "committed", "positions": len(second.committed)}
    else:
        late = time.monotonic() + _LAG_S
        for name, group, topic in second.committed:
            yield {"event": "committed", "broker": name, "group": group, "topic": topic,
                   "lag": lag_of(brokers[name], group, topic, late)}
    for name, count in second.damaged.items():
        yield {"event": "damaged", "broker": name, "messages": count}


def _counted(event: str, names: Sequence[str], counts: Mapping[Any, int]
             ) -> Iterator[dict[str, Any]]:
    if len(counts) > _MAX_EVENTS:
        yield {"event": event, "messages": sum(counts.values())}
        return
    for key, count in counts.items():
        yield {"event": event, **dict(zip(names, key, strict=True)), "messages": count}


# Lag of groups ---------------------------------------------------------------------------------


def lag_of(broker: Broker, group: str, topic: str, late: float) -> int | None:
    """Return the number of messages of a topic that a group has not consumed.

    Only queues with a consumer offset count. Return None if no queue has a consumer offset, or if
    the queues cannot all be read before ``late`` (monotonic seconds).
    """
    topic_config = broker.topic(topic)
    if topic_config is None or topic_config.read_queues > _MAX_QUEUES:
        return None
    lag = None
    for queue_id in range(topic_config.read_queues):
        if time.monotonic() > late:
            return None
        offset = broker.positions.get(group, topic, queue_id)
        if offset is not None and offset >= 0:
            try:
                end = broker.queue(topic, queue_id).end
            except Failed:
                continue
            lag = (lag or 0) + max(end - offset, 0)
    return lag


def lags(broker: Broker, most: int = MAX_LABELS) -> Iterator[tuple[str, str, int]]:
    """Yield groups with their topics and lags, connected groups first, as many as the time limit
    permits.
    """
    late = time.monotonic() + _LAG_S
    connected = ((group.name, topic) for group in broker.groups.consumers.values()
                 for topic in group.subscriptions)
    keys = chain(connected, broker.positions.committed, broker.positions.stored)
    seen: set[tuple[str, str]] = set()
    for key in islice(keys, 2 * most):
        if len(seen) >= most or time.monotonic() > late:
            return
        if key in seen:
            continue
        seen.add(key)
        lag = lag_of(broker, *key, late)
        if lag is not None:
            yield *key, lag


# At the moment ----------------------------------------------------------------------------------


def groups_now(server: Server, second: Second, most: int) -> list[dict[str, Any]]:
    """Return the connected groups that got the most messages.

    Each has its topic, number of members, lag, and messages per second.
    """
    connected = ((broker, group.name, topic) for broker in server.brokers
                 for group in broker.groups.consumers.values()
                 for topic in group.subscriptions or ("",))
    chosen = nlargest(most, islice(connected, 20 * MAX_LABELS), key=lambda row: (
        second.delivered.get((row[0].name, row[1], row[2]), 0)))
    late = time.monotonic() + _LAG_S
    return [{
        "broker": broker.name, "group": name, "topic": topic,
        "members": len(broker.groups.consumers[name].ids),
        "lag": lag_of(broker, name, topic, late),
        "out/s": second.delivered.get((broker.name, name, topic), 0) / second.seconds,
    } for broker, name, topic in chosen]


def topics_now(second: Second, most: int) -> list[dict[str, Any]]:
    """Return at most ``most`` topics, busiest first, each with its stored messages per second."""
    chosen = nlargest(most, second.sent.items(), key=lambda row: row[1])
    return [{"broker": broker, "topic": topic, "in/s": count / second.seconds}
            for (broker, topic), count in chosen]


def clients_now(server: Server, most: int) -> list[dict[str, Any]]:
    """Return at most ``most`` of the clients that sent heartbeats; ``groups``: number of groups."""
    clients: dict[tuple[str, str], dict[str, Any]] = {}
    for broker in server.brokers:
        for member in broker.groups.members():
            key = member.client_id, member.peer.peer
            if key not in clients and len(clients) == most:
                continue
            client = clients.setdefault(key, {
                "client": member.client_id, "address": member.peer.peer,
                "language": member.language, "groups": 0})
            client["groups"] += 1
    return list(clients.values())


# Metrics ----------------------------------------------------------------------------------------

HELP = {
    "rmqctl_serve_connections": "Connected clients.",
    "rmqctl_serve_connections_accepted_total": "Connections accepted.",
    "rmqctl_serve_connections_turned_away_total": "Connections refused because the limit was "
                                                  "reached.",
    "rmqctl_serve_connections_broken_total": "Connections closed because of invalid data.",
    "rmqctl_serve_requests_total": "Requests by name.",
    "rmqctl_serve_messages_received_total": "Messages stored, by topic.",
    "rmqctl_serve_messages_delivered_total": "Messages delivered, by group and topic.",
    "rmqctl_serve_delivered_bytes_total": "Bytes of delivered messages.",
    "rmqctl_serve_messages_damaged_total": "Damaged messages skipped.",
    "rmqctl_serve_group_members": "Connected clients of a consumer group.",
    "rmqctl_serve_group_diff": "Messages of a topic that a group has not consumed.",
    "rmqctl_serve_pulls_waiting": "Pull requests waiting for messages.",
    "rmqctl_serve_retry_bytes": "Memory used by messages that were sent back.",
}
Sample = tuple[str, dict[str, str], float]


def samples(server: Server) -> Iterator[Sample]:
    """Yield (metric, labels, value) for every metric in `HELP`."""
    for name, value in connections(server).items():
        yield ("rmqctl_serve_connections" if name == "connections" else
               f"rmqctl_serve_connections_{name}_total"), {}, value
    for broker in server.brokers:
        yield from _of(broker, {"broker": broker.name})


def _of(broker: Broker, label: dict[str, str]) -> Iterator[Sample]:
    def samples_of(metric: str, names: Sequence[str],
                   counts: Iterable[tuple[tuple[str, ...], float]]) -> Iterator[Sample]:
        remainder, count = 0.0, 0
        for count, (key, value) in enumerate(counts, start=1):
            if count <= MAX_LABELS and REST not in key:
                yield metric, {**label, **dict(zip(names, key, strict=True))}, value
            else:
                remainder += value
        if count > MAX_LABELS or remainder:
            yield metric, {**label, **dict.fromkeys(names, REST)}, remainder

    # Requests, messages received and delivered.
    yield from samples_of("rmqctl_serve_requests_total", ("request",), (
        ((name,), count) for name, count in broker.requests.items()))
    yield from samples_of("rmqctl_serve_messages_received_total", ("topic",), (
        ((topic,), count) for topic, count in broker.received.items()))
    yield from samples_of("rmqctl_serve_messages_delivered_total", ("group", "topic"),
                          broker.delivered.items())
    yield "rmqctl_serve_delivered_bytes_total", label, broker.delivered_bytes
    yield "rmqctl_serve_messages_damaged_total", label, broker.skipped
    # Groups, and waiting requests.
    yield from samples_of("rmqctl_serve_group_members", ("group",), (
        ((group.name,), len(group.ids)) for group in broker.groups.consumers.values()))
    yield from samples_of("rmqctl_serve_group_diff", ("group", "topic"), (
        ((group, topic), lag) for group, topic, lag in lags(broker)))
    yield "rmqctl_serve_pulls_waiting", label, (
        sum(map(len, broker.waiting.values())) + broker.pops.lines.behind)
    yield "rmqctl_serve_retry_bytes", label, broker.memory.size
