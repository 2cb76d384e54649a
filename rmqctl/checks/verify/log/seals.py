"""Search for messages without an appended CRC among messages that have one (commitlog.md §5.4).

A broker appends a CRC to every message while enabledAppendPropCRC is on. So a few messages without
a CRC are suspicious; many messages without a CRC show that the option was off for a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import NamedTuple

import numpy as np

from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array

MAX_SUSPICIOUS = 3
"""Maximum number of messages in a suspicious run of messages without an appended CRC.

Longer runs may be due to a restart with another setting.
"""
MAX_LISTED = 1000


class UnsealedRun(NamedTuple):
    """Consecutive messages without an appended CRC: physical offsets ``[start, end)``, and the
    number of messages.
    """

    start: int
    end: int
    messages: int


@dataclass(slots=True)
class Seals:
    """Runs of messages without an appended CRC, in log order.

    * ``sealed``: whether any message has a CRC
    * ``before``: the run before the first message with a CRC
    * ``between``: the first `MAX_LISTED` runs between two messages with a CRC
    * ``behind``: the run after the last message with a CRC
    """

    sealed: bool = False
    before: UnsealedRun | None = None
    between: list[UnsealedRun] = field(default_factory=list)
    behind: UnsealedRun | None = None

    def add(self, offset: Array, size: Array, sealed: Array, ok: Array) -> None:
        """Add the next messages, by column; messages that are not ``ok`` are ignored."""
        lacking = ok & ~sealed
        if not lacking.any():
            self._seal(bool(sealed.any()))
            return
        if not sealed.any():
            rows = np.flatnonzero(lacking)
            self._lack(UnsealedRun(int(offset[rows[0]]), int(offset[rows[-1]] + size[rows[-1]]),
                                   len(rows)))
            return
        rows = np.flatnonzero(lacking | sealed)
        for part in np.split(rows, np.flatnonzero(np.diff(sealed[rows])) + 1):
            first, last = int(part[0]), int(part[-1])
            if sealed[first]:
                self._seal(True)
            else:
                self._lack(UnsealedRun(int(offset[first]), int(offset[last] + size[last]),
                                       len(part)))

    def add_run(self, run: UnsealedRun, *, sealed: bool) -> None:
        """Add the next messages. ``sealed``: True if all of them have an appended CRC, False if
        none of them has one.
        """
        if sealed:
            self._seal(True)
        else:
            self._lack(run)

    def merge(self, other: Seals) -> None:
        """Merge the runs of the next part of the log."""
        if other.before is not None:
            self._lack(other.before)
        if other.sealed:
            self._seal(True)
            self.between += other.between[:max(0, MAX_LISTED - len(self.between))]
            self.behind = other.behind

    def suspicious(self) -> Iterator[UnsealedRun]:
        """Yield the runs that are too short to be explained by a change of the broker's setting."""
        last = [self.behind] if self.behind is not None else []
        yield from (run for run in [*self.between, *last] if run.messages <= MAX_SUSPICIOUS)

    def _seal(self, any_sealed: bool) -> None:
        if not any_sealed:
            return
        if self.behind is not None and len(self.between) < MAX_LISTED:
            self.between.append(self.behind)
        self.sealed, self.behind = True, None

    def _lack(self, run: UnsealedRun) -> None:
        open_run = self.behind if self.sealed else self.before
        joined = run if open_run is None else UnsealedRun(
            open_run.start, run.end, open_run.messages + run.messages)
        if self.sealed:
            self.behind = joined
        else:
            self.before = joined
