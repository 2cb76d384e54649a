"""What clients may take of a server: limits, places for connections, and who gives way.

Where a limit of all connections together is reached, the one gives way that has kept its part for
the longest time: who sends and reads at an ordinary pace is never the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from rmqctl.remoting.frame import MAX_FRAME

SPARE_S = 5.0
"""A connection that asked before, and waits for nothing, keeps its place for so long."""
_SOME = 8
"""Where a limit is reached, one part of so many is freed, not to reach it again at once."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take. Bytes and seconds; ``held``: of frames that are not whole, and
    ``unsent_in_all``: of answers that are not taken, of all connections together.
    """

    connections: int = 1000
    frame: int = MAX_FRAME
    held: int = 128 << 20
    unsent: int = 1 << 20
    unsent_in_all: int = 64 << 20
    idle: float = 120.0


class Holder(Protocol):
    """A connection, as far as its memory and its place are concerned."""

    host: str

    @property
    def held_since(self) -> float:
        """Since when it has kept what it holds; monotonic seconds."""
        ...

    def end(self) -> None:
        """Closes it at once."""

    def gone(self) -> None:
        """Forgets it, whether or not the event loop has said so."""

    def spare_since(self) -> float | None:
        """Since when it has done without an answer and waits for none, monotonic seconds; 0 where
        it has asked for nothing yet, None where it waits.
        """
        ...


@dataclass(eq=False)
class Shared:
    """Bytes that all connections hold together, of one kind."""

    limit: int
    held: int = 0
    most: int = 0
    """The most that was held since `freed` was asked."""

    def change(self, more: int) -> bool:
        """Counts so many bytes more or less; whether it is too much now."""
        self.held += more
        self.most = max(self.most, self.held)
        return more > 0 and self.held > self.limit

    def make_room(self, holders: Iterable[Holder]) -> None:
        """Ends connections, beginning with the one that has held its bytes for the longest time,
        until there is room again.
        """
        for holder in sorted(holders, key=lambda each: each.held_since):
            if self.held <= self.limit - self.limit // _SOME:
                break
            holder.end()

    def freed(self) -> int:
        """How much less is held than at the worst time since this was asked."""
        most, self.most = self.most, self.held
        return most - self.held


class Places:
    """Connections by the address of their client, up to a number of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, dict[Holder, None]] = {}
        self._taken = 0

    def take(self, newcomer: Holder, now: float) -> bool:
        """Whether there is a place; where all are taken, a connection gives way that nobody uses,
        of the address that has the most. No address with fewer than the newcomer's has to.
        """
        if self._taken >= self._most:
            found = self._spare(len(self._of.get(newcomer.host, ())), now)
            if found is None:
                return False
            found.end()
            found.gone()
        self._of.setdefault(newcomer.host, {})[newcomer] = None
        self._taken += 1
        return True

    def leave(self, holder: Holder) -> None:
        """Gives the place back."""
        there = self._of[holder.host]
        del there[holder]
        self._taken -= 1
        if not there:
            del self._of[holder.host]

    def _spare(self, fewest: int, now: float) -> Holder | None:
        for there in sorted(self._of.values(), key=len, reverse=True):
            if len(there) < fewest:
                return None
            oldest, found = now - SPARE_S, None
            for each in there:
                since = each.spare_since()
                if since is not None and since < oldest:
                    oldest, found = since, each
                    if not since:
                        break
            if found is not None:
                return found
        return None
