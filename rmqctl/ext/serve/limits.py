"""Limits of clients: bytes, connections, and which client gives way.

Where a limit of all connections together is reached, the address gives way that has the most, and
of its connections the one that has kept its part for the longest time: a client that sends and
reads at an ordinary pace is never the oldest. So an address may have all that no other wants, as
many clients behind one address need it, and no address can take from others more than is left to
itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from rmqctl.ext.serve.remoting.frame import MAX_FRAME

SPARE_S = 0.5
"""Seconds for which a connection that asked before, and waits for nothing, keeps its place."""
SILENT_S = 40.0
"""And one that waits: clients send a heartbeat every 30 s, and ask again before that."""
_IPV6_HOST = 64
"""Bits of an IPv6 address that one client can choose."""
_SCARCE = 0.75
"""So much of all places may be taken before addresses get their share only."""
_SOME = 8
"""The divisor of what is freed when a limit is reached, not to reach it again at once."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of clients. Bytes and seconds; ``held``: of frames that are incomplete, and
    ``unsent_in_all``: of answers that are not taken, of all connections together. ``part``: what
    one address may have of anything at most, of 1.
    """

    connections: int = 1000
    frame: int = MAX_FRAME
    held: int = 64 << 20
    unsent: int = 1 << 20
    unsent_in_all: int = 64 << 20
    idle: float = 120.0
    part: float = 1.0


def network_of(address: str) -> str:
    """Return what identifies a client: of an IPv6 address its network."""
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
    """A connection, as far as its memory and its place are concerned. ``host``: `network_of` its
    client.
    """

    host: str
    last: float
    """The monotonic time at which anything came from it."""

    @property
    def held_since(self) -> float:
        """Since when it has kept what it holds; monotonic seconds."""
        ...

    def end(self) -> None:
        """Close it at once."""

    def gone(self) -> None:
        """Forget it, whether or not the event loop has said so."""

    def spare_since(self) -> float | None:
        """Return the time since when it has neither got nor expected a response, monotonic seconds;
        0 if it has asked for nothing yet, None if it waits.
        """
        ...


@dataclass(eq=False)
class Shared:
    """Bytes that all connections hold together, of one kind. ``part`` as `Limits` has it."""

    limit: int
    part: float = 1.0
    held: int = 0
    most: int = 0
    """The most that was held since `freed` was asked."""

    of: Counter[str] = field(default_factory=Counter)
    """By address."""

    def change(self, host: str, more: int) -> bool:
        """Count so many bytes more or less; whether it is too much now."""
        self.held += more
        self.of[host] += more
        if not self.of[host]:
            del self.of[host]
        self.most = max(self.most, self.held)
        return more > 0 and (self.held > self.limit or self.of[host] > self.part * self.limit)

    def make_room(self, holders: Iterable[Holder]) -> None:
        """End connections until there is room again: of the address that holds the most the one
        that has held its bytes for the longest time.
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
        """Return how much less is held than at the peak since the last call."""
        most, self.most = self.most, self.held
        return most - self.held


class Places:
    """Connections by the address of their client, up to a number of them."""

    def __init__(self, most: int, part: float = 1.0) -> None:
        self._most, self._part = most, part
        self._of: dict[str, dict[Holder, None]] = {}
        self._taken = 0

    def take(self, newcomer: Holder, now: float) -> bool:
        """Return whether there is a place. Where all are taken, an unused connection gives way, of
        the address that has the most, if that has no fewer than the newcomer's; else, if that has
        more, or is silent for long, the one from which nothing came for the longest time.
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
        """Give the place back."""
        there = self._of[holder.host]
        del there[holder]
        self._taken -= 1
        if not there:
            del self._of[holder.host]

    def _giving_way(self, fewest: int, now: float) -> Holder | None:
        by_size = sorted(self._of.values(), key=len, reverse=True)
        for there in by_size:
            if len(there) < fewest:
                break
            place = _spare(there, now)
            if place is not None:
                return place
        there = by_size[0]
        place = min(there, key=lambda candidate: candidate.last)
        is_silent = len(there) >= fewest and place.last < now - SILENT_S
        return place if is_silent or len(there) > fewest + 1 else None


def _spare(there: Iterable[Holder], now: float) -> Holder | None:
    """Return the connection that has been unused for the longest time; None if all are in use."""
    oldest, spare = now - SPARE_S, None
    for candidate in there:
        since = candidate.spare_since()
        if since is not None and since < oldest:
            oldest, spare = since, candidate
            if not since:
                break
    return spare


class Quota:
    """Places that need not be given back: waiting requests, streams of clients."""

    def __init__(self, most: int, part: float = 1.0) -> None:
        self.most, self.part = most, part
        self.taken = 0
        self._of: Counter[str] = Counter()

    def has_room(self, host: str, weight: int = 1) -> bool:
        """Return whether an address may hold that much more. Where few are left, only an address
        below its share may, and one share is kept free for a newcomer.
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
