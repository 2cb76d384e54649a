"""The rounds in which a broker uploads a queue: where one ends and whether one is due (§7).

A round ends before the message with which it would reach the size, or after the count. A message
that alone is larger is a round of its own; a broker stops there for ever (tiered.md §7, 12).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rmqctl.tiered.dispatch.settings import TierSettings

Array = np.ndarray[Any, np.dtype[Any]]


class Rounds:
    """Cuts one queue's messages, which come in pieces, into rounds."""

    def __init__(self, settings: TierSettings) -> None:
        self._settings = settings
        self._count = 0
        self._bytes = 0

    def starts(self, sizes: Array) -> list[int]:
        """The places in the next piece at which a round begins."""
        most, limit = self._settings.group_commit_count, self._settings.group_commit_size
        until = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
        found: list[int] = []
        at, count = 0, len(sizes)
        while at < count:
            if self._count:
                room = limit - self._bytes + int(until[at])
                fits = int(np.searchsorted(until, room, "left")) - 1
                stop = max(at, min(count, at + most - self._count, fits))
                self._count += stop - at
                self._bytes += int(until[stop] - until[at])
                at = stop
                if at == count:
                    break
            found.append(at)
            self._count, self._bytes = 1, int(sizes[at])
            at += 1
        return found


def is_due(settings: TierSettings, oldest: int, waiting: int, now: int) -> bool:
    """Whether a broker would start a round: the oldest pending message is old enough (its store
    time, ms), or more than the count are waiting.
    """
    return (oldest + settings.group_commit_timeout < now
            or waiting > settings.group_commit_count)
