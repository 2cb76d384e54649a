"""Limits of clients: bytes and connections, and which connection is closed when a limit is reached.

When all connections together reach a limit, the client address that uses the most loses the
connection that has held its bytes for the longest time. This never closes the connection of a
client that sends and reads at an ordinary pace.

Many clients can share an address. An address may use everything that other addresses do not need.
While an address uses more than others, it cannot displace them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from rmqctl.ext.serve.remoting.frame import MAX_FRAME
from rmqctl.lazy_dataclass import dataclass

SPARE_S = 0.5
"""Seconds after which an idle connection may be closed to free its place for another connection."""
SILENT_S = 40.0
"""Seconds without data after which a connection with waiting requests may be closed to make space
for another connection. (Clients send a heartbeat every 30 s.)
"""
_IPV6_HOST = 64
"""Number of low bits of an IPv6 address that a client can usually choose freely."""
_SCARCE = 0.75
"""Once more than this part of a quota is in use, each address may use at most an equal share."""
_SOME = 8
"""Divisor of a limit: when the limit is reached, one eighth is freed, to avoid reaching it again at
once.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for clients, in bytes and seconds.

    For all connections together, ``held`` limits the bytes of incomplete frames, and
    ``unsent_in_all`` limits the bytes of unread responses. ``part``: the maximum share (0 to 1) of
    each limit that one address may use.
    """

    connections: int = 1000
    frame: int = MAX_FRAME
    held: int = 64 << 20
    unsent: int = 1 << 20
    unsent_in_all: int = 64 << 20
    idle: float = 120.0
    part: float = 1.0


def network_of(address: str) -> str:
    """Return the part of a client's address to which limits apply: for IPv6 the network, else the
    address.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> _IPV6_HOST << _IPV6_HOST))


class Holder(Protocol):
    """A connection that is counted in `AddressConnections` and may hold bytes.
    ``host``: the result of `network_of` for its client's address.
    """

    host: str
    last: float
    """The time of the last data from the client (monotonic seconds)."""

    @property
    def held_since(self) -> float:
        """The time (monotonic seconds) since which the number of held bytes has not decreased."""
        ...

    def end(self) -> None:
        """Close the connection at once."""

    def gone(self) -> None:
        """Remove the connection from the server, before the event loop reports its end."""

    def spare_since(self) -> float | None:
        """Return the time at which the connection became idle (monotonic seconds).

        An idle connection neither receives data nor expects a response. Return 0 before the
        connection's first request, and None while the connection waits for a response.
        """
        ...


@dataclass(eq=False)
class Shared:
    """The number of bytes of one kind, such as unread responses, that all connections hold.
    ``part``: see `Limits`.
    """

    limit: int
    part: float = 1.0
    held: int = 0
    most: int = 0
    """The maximum of ``held`` since the last call of `freed`."""

    of: Counter[str] = field(default_factory=Counter)
    """Number of held bytes by client address."""

    def change(self, host: str, more: int) -> bool:
        """Add ``more`` bytes (negative: remove bytes). Return whether the addition exceeds a limit;
        removing bytes never does.
        """
        self.held += more
        self.of[host] += more
        if not self.of[host]:
            del self.of[host]
        self.most = max(self.most, self.held)
        return more > 0 and (self.held > self.limit or self.of[host] > self.part * self.limit)

    def make_room(self, holders: Iterable[Holder]) -> None:
        """Close connections until enough bytes are free.

        Each time, choose the address that holds the most bytes, and close its connection that has
        held bytes for the longest time.
        """
        by_host: dict[str, list[Holder]] = {}
        for holder in sorted(holders, key=lambda holder: -holder.held_since):
            by_host.setdefault(holder.host, []).append(holder)
        enough = self.limit - self.limit // _SOME
        is_full = self.held > self.limit
        while by_host:
            host = max(by_host, key=self.of.__getitem__)
            if (self.held <= enough or not is_full) and (
                    self.part >= 1 or self.of[host] <= self.part * enough):
                break
            by_host[host].pop().end()
            if not by_host[host]:
                del by_host[host]

    def freed(self) -> int:
        """Return the number of bytes freed: the difference between the maximum of ``held`` since
        the last call and ``held`` now.
        """
        most, self.most = self.most, self.held
        return most - self.held


class AddressConnections:
    """The open connections by client address, up to a maximum total number."""

    def __init__(self, most: int, part: float = 1.0) -> None:
        self._most, self._part = most, part
        self._of: dict[str, dict[Holder, None]] = {}
        self._taken = 0

    def take(self, newcomer: Holder, now: float) -> bool:
        """Give a place to a new connection. Return False if this is impossible.

        If the newcomer's address has reached its share, an idle connection of this address is
        closed. If all places are taken, an idle connection of an address with at least as many
        connections as the newcomer's is closed. Addresses with the most connections are searched
        first.

        If these addresses have no idle connection, the address with the most connections may lose
        the connection that was silent longest. This happens in two cases:

        * The address has clearly more connections than the newcomer's address.
        * The address has at least as many connections, and the silence is long.
        """
        own = self._of.get(newcomer.host, {})
        if self._part < 1 and len(own) >= max(self._part * self._most, 1):
            place = _spare(own, now)
        elif self._taken >= self._most:
            place = self._giving_way(len(own), now)
        else:
            place = newcomer
        if place is None:
            return False
        if place is not newcomer:
            place.end()
            place.gone()
        self._of.setdefault(newcomer.host, {})[newcomer] = None
        self._taken += 1
        return True

    def leave(self, holder: Holder) -> None:
        """Remove a connection, so that another can take its place."""
        neighbours = self._of[holder.host]
        del neighbours[holder]
        self._taken -= 1
        if not neighbours:
            del self._of[holder.host]

    def _giving_way(self, fewest: int, now: float) -> Holder | None:
        by_size = sorted(self._of.values(), key=len, reverse=True)
        for neighbours in by_size:
            if len(neighbours) < fewest:
                break
            place = _spare(neighbours, now)
            if place is not None:
                return place
        neighbours = by_size[0]
        place = min(neighbours, key=lambda candidate: candidate.last)
        is_silent = len(neighbours) >= fewest and place.last < now - SILENT_S
        return place if is_silent or len(neighbours) > fewest + 1 else None


def _spare(holders: Iterable[Holder], now: float) -> Holder | None:
    """Return the connection that has been idle for the longest time; None if all are in use."""
    oldest, spare = now - SPARE_S, None
    for candidate in holders:
        since = candidate.spare_since()
        if since is not None and since < oldest:
            oldest, spare = since, candidate
            if not since:
                break
    return spare


class Quota:
    """A maximum number of waiting requests or streams.

    Unlike `AddressConnections`, a quota closes nothing to make space for a new request or stream.
    """

    def __init__(self, most: int, part: float = 1.0) -> None:
        self.most, self.part = most, part
        self.taken = 0
        self._of: Counter[str] = Counter()

    def has_room(self, host: str, weight: int = 1) -> bool:
        """Return whether an address may add ``weight`` to its use of the quota.

        If the quota is nearly used up, each address may use at most an equal share. One more share
        is kept free for a new address.
        """
        own, taken = self._of.get(host, 0) + weight, self.taken + weight
        if taken > self.most or own > self.part * self.most:
            return False
        hosts = len(self._of) + (host not in self._of)
        return taken <= self.most * _SCARCE or own <= self.most / (hosts + 1)

    def take(self, host: str, weight: int = 1) -> None:
        self.taken += weight
        self._of[host] += weight

    def leave(self, host: str, weight: int = 1) -> None:
        self.taken -= weight
        self._of[host] -= weight
        if not self._of[host]:
            del self._of[host]
