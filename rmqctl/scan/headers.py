"""Heads of records that no broker can have written, found along a walk.

The rules are those of `formats.local.header_rules`. Each record is judged once, between the message
before it and the one behind it. So a walk may be cut anywhere: what the parts found merges to what
one walk would have found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rmqctl.formats.local import header_rules as rules
from rmqctl.scan.frames import Array, Batch

KEEP = 100_000
_TIME, _HOST, _AT = len(rules.FIELDS), len(rules.FIELDS) + 1, rules.FIELDS.index("physical_offset")
_WIDTH = _HOST + 1


class HeaderFault(NamedTuple):
    """A record at ``offset`` with the ``categories`` that it breaks; ``before`` and ``behind``: the
    physical offsets of its neighbours, None at an end.
    """

    offset: int
    categories: tuple[str, ...]
    before: int | None
    behind: int | None


def _none() -> Array:
    return np.zeros((0, _WIDTH), np.int64)


@dataclass(slots=True)
class Headers:
    """What is odd in a part of a log. The records at its two ends wait for their neighbours:
    `merge` with the part behind it, or `settle` at the ends of the log.
    """

    faults: list[HeaderFault] = field(default_factory=list)
    unkept: int = 0
    _first: Array = field(default_factory=_none)
    _last: Array = field(default_factory=_none)

    def add(self, batch: Batch, which: Array | None = None) -> None:
        """The messages of a batch (of them ``which``, bool), in log order."""
        if not len(batch) or (which is not None and not which.any()):
            return
        columns = [*(batch.column(name) for name in rules.FIELDS[:_AT]), batch.offset,
                   batch.column("store_timestamp"), batch.store_hosts()]
        rows = np.stack(columns, axis=1)
        self._join(rows if which is None else rows[which])

    def merge(self, other: Headers) -> None:
        """Takes in the part behind this one."""
        inner, self.unkept = other.faults, self.unkept + other.unkept
        if len(other._first):
            self._join(other._first)
            self._last = other._last if len(other._first) > 1 else self._last
        self._keep(inner)

    def settle(self) -> None:
        """Judges the records at both ends, of which one neighbour is missing."""
        ends = [self._first[:1]] if len(self._first) else []
        if len(self._first) > 1:
            ends.append(self._last[-1:])
        for number, row in enumerate(ends):
            beside = (self._first[1:2] if number == 0 else self._last[-2:-1])
            broken = rules.alone(_named(row))
            names = tuple(name for name, found in broken.items() if found[0])
            if names:
                other = int(beside[0, _AT]) if len(beside) else None
                self._keep([HeaderFault(int(row[0, _AT]), names, *(
                    (None, other) if number == 0 else (other, None)))])
        self.faults.sort(key=lambda one: one.offset)

    def _join(self, rows: Array) -> None:
        """Rows behind the last ones, of which the very last one waits for its neighbour."""
        if len(self._first) < 2:
            self._first = np.concatenate([self._first, rows])[:2]
        both = np.concatenate([self._last, rows])
        self._middles(both)
        self._last = both[-2:].copy()

    def _middles(self, rows: Array) -> None:
        if len(rows) < 3:
            return
        before, mine, behind = rows[:-2], rows[1:-1], rows[2:]
        broken = rules.alone(_named(mine))
        broken[rules.STORE_TIME] = rules.stored_at_odd_time(
            before[:, _TIME], mine[:, _TIME], behind[:, _TIME])
        # A broker that listens on both families has a host in each.
        other = (mine[:, _HOST] != before[:, _HOST]) & ((mine ^ before)[:, _HOST] & 1 == 0)
        broken[rules.STORE_HOST] = (before[:, _HOST] == behind[:, _HOST]) & other & (
            ~broken[rules.STORE_PORT])
        odd = np.logical_or.reduce(list(broken.values()))
        self._keep([HeaderFault(
            int(mine[at, _AT]), tuple(name for name, found in broken.items() if found[at]),
            int(before[at, _AT]), int(behind[at, _AT])) for at in np.flatnonzero(odd).tolist()])

    def _keep(self, faults: list[HeaderFault]) -> None:
        room = max(0, KEEP - len(self.faults))
        self.faults += faults[:room]
        self.unkept += len(faults[room:])


def undecodable(batch: Batch) -> Array:
    """Which records of a batch make a client's decoder give up (bool)."""
    broken = rules.alone({name: batch.column(name) for name in rules.FIELDS})
    found: Array = np.logical_or.reduce([broken[name] for name in rules.UNDECODABLE])
    return found


def _named(rows: Array) -> dict[str, Array]:
    return {name: rows[:, number] for number, name in enumerate(rules.FIELDS)}
