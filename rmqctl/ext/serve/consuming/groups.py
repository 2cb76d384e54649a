"""State of connected clients: their groups, and the queues that members have locked (spec:
remoting.md §3.3).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any, Protocol

from rmqctl.ext.serve.consuming.subscriptions import Subscription
from rmqctl.ext.serve.remoting.command import Command
from rmqctl.lazy_dataclass import dataclass

EXPIRY_S = 120.0
"""Seconds without a heartbeat after which a client is considered gone."""
LOCK_S = 60.0
"""Seconds until a queue lock expires unless the member renews it."""
CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"
_MODELS = (BROADCASTING, CLUSTERING)
_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
_FROM = ("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
         "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET",
         "CONSUME_FROM_TIMESTAMP")
"""The names of enum values, in the order of the numbers that C++ clients send instead of names."""


class Peer(Protocol):
    """A client's connection, as groups use it."""

    peer: str

    @property
    def is_full(self) -> bool: ...

    def send(self, command: Command) -> None: ...

    def ask(self, command: Command, then: Callable[[Command | None], None], seconds: float
            ) -> None: ...


@dataclass(slots=True)
class Member:
    """A client in a group. ``seen``: time of the client's last heartbeat (monotonic seconds)."""

    client_id: str
    peer: Peer
    language: str
    version: int
    seen: float

    def as_dict(self) -> dict[str, Any]:
        return {"clientAddr": self.peer.peer, "clientId": self.client_id,
                "language": self.language, "version": self.version}


@dataclass(slots=True)
class Group:
    """A consumer group with its members and subscriptions.

    The keys of members are client id and connection, because two clients may have the same id.
    """

    name: str
    members: dict[tuple[str, Peer], Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    model: str = CLUSTERING
    type: str = _TYPES[1]
    from_where: str = _FROM[0]
    size: int = 0
    """Approximate memory of the group's subscriptions in bytes."""

    @property
    def ids(self) -> list[str]:
        """The client ids of the members, without duplicates."""
        return list(dict.fromkeys(client_id for client_id, _ in self.members))

    def member(self, client_id: str) -> Member | None:
        """Return the member with a client id; None if no such member exists. If several members
        have this id, return the one that joined last.
        """
        return next((member for member in reversed(self.members.values())
                     if member.client_id == client_id), None)

    def describe(self, value: dict[str, Any]) -> None:
        """Set the group's properties from the group's object in a heartbeat."""
        self.model = _named(value.get("messageModel"), _MODELS, self.model)
        self.type = _named(value.get("consumeType"), _TYPES, self.type)
        self.from_where = _named(value.get("consumeFromWhere"), _FROM, self.from_where)

    def subscribe(self, wanted: list[Subscription]) -> bool:
        """Replace the group's subscriptions with those of a member. Return whether topics were
        added or removed.
        """
        topics = {subscription.topic for subscription in wanted}
        changed = topics != set(self.subscriptions)
        self.subscriptions = {topic: current for topic, current in self.subscriptions.items()
                              if topic in topics}
        for subscription in wanted:
            current = self.subscriptions.get(subscription.topic)
            if current is None or current.version < subscription.version:
                self.subscriptions[subscription.topic] = subscription
        self.size = size_of(self.subscriptions.values())
        return changed


def size_of(subscriptions: Iterable[Subscription]) -> int:
    """Return the approximate memory use of subscriptions in bytes."""
    return sum(200 + len(subscription.topic) + len(subscription.expression) + len(subscription.kind)
               for subscription in subscriptions)


def _named(value: object, names: tuple[str, ...], default: str) -> str:
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return value if isinstance(value, str) and value in names else default


@dataclass(slots=True)
class Groups:
    """The groups of a broker with connected clients; at most ``most`` members in total."""

    most: int = 10_000
    consumers: dict[str, Group] = field(default_factory=dict)
    producers: dict[str, dict[str, Member]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(len(group.members) for group in self.consumers.values()) + sum(
            map(len, self.producers.values()))

    @property
    def size(self) -> int:
        """Approximate memory use of all subscriptions in bytes."""
        return sum(group.size for group in self.consumers.values())

    def members(self) -> Iterator[Member]:
        for group in self.consumers.values():
            yield from group.members.values()
        for producers in self.producers.values():
            yield from producers.values()

    def drop(self, client_id: str | None = None, peer: Peer | None = None,
             group: str | None = None, heard_by: float = math.inf) -> list[Group]:
        """Remove the consumers that meet all given conditions. Return the groups that lost a
        member.

        The conditions are client id, connection (``peer``), group, and a last heartbeat before
        ``heard_by``.
        """
        is_gone = _selected(client_id, peer, heard_by)
        touched = []
        for name, consumers in list(self.consumers.items()):
            left = {key: member for key, member in consumers.members.items() if not is_gone(member)}
            if group in (None, name) and len(left) < len(consumers.members):
                consumers.members = left
                touched.append(consumers)
                if not left:
                    del self.consumers[name]
        return touched

    def drop_producers(self, client_id: str | None = None, peer: Peer | None = None,
                       group: str | None = None, heard_by: float = math.inf) -> None:
        """Remove the producers that meet all given conditions, as in `drop`."""
        is_gone = _selected(client_id, peer, heard_by)
        for name, members in list(self.producers.items()):
            if group not in (None, name):
                continue
            for key, member in list(members.items()):
                if is_gone(member):
                    del members[key]
            if not members:
                del self.producers[name]

    def drop_silent(self) -> list[Group]:
        """Remove clients without a heartbeat in the last `EXPIRY_S` seconds. Return the consumer
        groups that lost a member.
        """
        heard_by = time.monotonic() - EXPIRY_S
        self.drop_producers(heard_by=heard_by)
        return self.drop(heard_by=heard_by)


def _selected(client_id: str | None, peer: Peer | None, heard_by: float
              ) -> Callable[[Member], bool]:
    return lambda member: (peer is None or member.peer is peer) and (
        client_id is None or member.client_id == client_id) and member.seen < heard_by


@dataclass(slots=True)
class QueueLocks:
    """Queue locks of group members, for orderly consumption. ``most``: maximum number of locks."""

    most: int = 100_000
    _held: dict[str, dict[tuple[str, int], tuple[str, float]]] = field(default_factory=dict)

    def take(self, group: str, client_id: str, queues: list[tuple[str, int]]) -> list[
            tuple[str, int]]:
        """Lock queues for a client. Return the queues now locked for the client.

        A queue can be locked if it is not locked, if this client has already locked it, or if its
        lock has expired.
        """
        now = time.monotonic()
        room = self.most - sum(map(len, self._held.values()))
        held = self._held.get(group, {})
        locked = []
        for queue in queues:
            owner = held.get(queue)
            if owner is None and room <= 0:
                continue
            room -= owner is None
            if owner is None or owner[0] == client_id or now - owner[1] > LOCK_S:
                held[queue] = client_id, now
                locked.append(queue)
        if held:
            self._held[group] = held
        return locked

    def holds_any(self, group: str) -> bool:
        """Return whether a member of the group holds a queue lock."""
        now = time.monotonic()
        return any(now - since <= LOCK_S for _, since in self._held.get(group, {}).values())

    def expire(self) -> None:
        """Remove expired locks."""
        now = time.monotonic()
        for group, held in list(self._held.items()):
            left = {queue: owner for queue, owner in held.items() if now - owner[1] <= LOCK_S}
            if left:
                self._held[group] = left
            else:
                del self._held[group]

    def give_back(self, group: str, client_id: str, queues: list[tuple[str, int]] | None = None
                  ) -> None:
        held = self._held.get(group, {})
        for queue in list(held) if queues is None else queues:
            if held.get(queue, ("", 0.0))[0] == client_id:
                del held[queue]
        if not held:
            self._held.pop(group, None)
