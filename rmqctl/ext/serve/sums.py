"""Number of messages sent and delivered in the last minute, hour and day, for administration tools.

Counts are recorded every 10 seconds for the minute, every 10 minutes for the hour, and every hour
for the day. The sum for a period is the difference between the current count and the period's
oldest record. Spec: remoting.md §3.5, VIEW_BROKER_STATS_DATA.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from rmqctl.lazy_dataclass import dataclass

_WINDOWS = (("statsMinute", 10, 6), ("statsHour", 600, 6), ("statsDay", 3600, 24))
"""Periods: name, interval in seconds between two records, and number of records kept."""
_SLACK_S = 1.0
"""Tolerance in seconds: counts may be recorded this long before the interval ends."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Message counts at a time. ``seconds``: the time (monotonic); ``put``: messages sent, by
    topic; ``got``: messages delivered, by group and topic.
    """

    seconds: float
    put: Mapping[str, int]
    got: Mapping[tuple[str, str], int]


def _start() -> dict[str, deque[Counts]]:
    first = Counts(time.monotonic(), {}, {})
    return {name: deque([first], most) for name, _, most in _WINDOWS}


@dataclass(slots=True)
class BrokerCounts:
    """The message counts that are recorded for a broker."""

    notes: dict[str, deque[Counts]] = field(default_factory=_start)
    mornings: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """Numbers of messages sent and delivered up to each of the last two midnights (local time), as
    brokers report them.
    """
    _day: int = field(default_factory=lambda: time.localtime().tm_yday)

    def note(self, put: Mapping[str, int], delivered: Mapping[tuple[str, str], int]) -> None:
        """Record the current counts if it is time; call this function every 10 seconds."""
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
        """Return the sums and rates of a count for all periods.

        ``count``: the count's current value. ``before``: returns the count's value in a record.
        """
        now = time.monotonic()
        return {name: {"sum": count - before(notes[0]), "tps": (
            count - before(notes[0])) / max(now - notes[0].seconds, 1.0)}
            for name, notes in self.notes.items()}

    def rate(self, count: int, before: Callable[[Counts], int]) -> float:
        """Return a count's rate per second over the last minute; for the parameters, see `of`."""
        return float(self.of(count, before)["statsMinute"]["tps"])
