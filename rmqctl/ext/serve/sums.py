"""Numbers of messages sent and delivered in the last minute, hour and day, for a broker's tools
(spec: remoting.md §3.5, VIEW_BROKER_STATS_DATA).

Counts are recorded every 10 seconds, 10 minutes and hour; a sum is the difference between the
current count and the oldest record.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_WINDOWS = (("statsMinute", 10, 6), ("statsHour", 600, 6), ("statsDay", 3600, 24))
"""Name of each period, seconds between two records, and number of records kept."""
_SLACK_S = 1.0
"""Tolerance in seconds: records may be taken a little early."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of messages: sent, by topic; delivered, by group and topic. ``seconds``: monotonic
    time.
    """

    seconds: float
    put: Mapping[str, int]
    got: Mapping[tuple[str, str], int]


def _start() -> dict[str, deque[Counts]]:
    first = Counts(time.monotonic(), {}, {})
    return {name: deque([first], most) for name, _, most in _WINDOWS}


@dataclass(slots=True)
class BrokerCounts:
    """The recorded counts of a broker."""

    notes: dict[str, deque[Counts]] = field(default_factory=_start)
    mornings: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """Counts of messages sent and delivered at the last two midnights (local time), as brokers
    report.
    """
    _day: int = field(default_factory=lambda: time.localtime().tm_yday)

    def note(self, put: Mapping[str, int], delivered: Mapping[tuple[str, str], int]) -> None:
        """Record the counts; call it every 10 seconds."""
        now, day = time.monotonic(), time.localtime().tm_yday
        if day != self._day:
            self._day = day
            self.mornings = self.mornings[1], (sum(put.values()), sum(delivered.values()))
        new = None
        for name, step, _ in _WINDOWS:
            if now - self.notes[name][-1].seconds >= step - _SLACK_S:
                new = new or Counts(now, dict(put), dict(delivered))
                self.notes[name].append(new)

    def of(self, count: int, before: Callable[[Counts], int]) -> dict[str, dict[str, Any]]:
        """Return sums and rates of a count; ``count``: its current value, ``before``: returns its
        value in a record.
        """
        now = time.monotonic()
        return {name: {"sum": count - before(notes[0]), "tps": (
            count - before(notes[0])) / max(now - notes[0].seconds, 1.0)}
            for name, notes in self.notes.items()}

    def rate(self, count: int, before: Callable[[Counts], int]) -> float:
        """Return the rate per second in the last minute."""
        return float(self.of(count, before)["statsMinute"]["tps"])
