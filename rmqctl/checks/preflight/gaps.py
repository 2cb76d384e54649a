"""Gaps in the log that prove lost messages.

The queue offsets of a queue are consecutive in the log. If some are missing between two records,
and the damaged bytes between these records have enough space for them, messages were lost there. A
damaged record also proves its message if its queue and queue offset are still readable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np

from rmqctl.broker.consume_queue import PLAIN, QueueState
from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array

_MAX_RUNS = 1 << 20
"""Maximum number of gapless runs of records in memory, for all queues."""
_LOW, _FIRST, _HIGH, _END = range(4)
_MAX_AHEAD = 1000
"""Maximum distance, in queue offsets, from a queue's last intact record to a damaged record whose
queue offset is trusted.
"""


class OffsetGap(NamedTuple):
    """Queue offsets of lost messages that only the log proves. The messages were between the
    positions ``low`` and ``high`` of the log.
    """

    low: int
    high: int
    offsets: OffsetRuns


class DamagedBytes:
    """Damaged spans of a log, ascending and without overlap, and a count of their bytes between any
    two positions.
    """

    def __init__(self, starts: Array, ends: Array) -> None:
        self._starts, self._ends = starts, np.append(0, ends)
        self._before = np.append(0, np.cumsum(ends - starts))

    def within(self, low: Array, high: Array) -> Array:
        """Return the number of damaged bytes at the positions ``[low, high)``, for each pair."""
        within: Array = np.maximum(self._up_to(high) - self._up_to(low), 0)
        return within

    def _up_to(self, place: Array) -> Array:
        number = np.searchsorted(self._starts, place)
        before: Array = self._before[number] - np.maximum(self._ends[number] - place, 0)
        return before


@dataclass(slots=True)
class LogGaps:
    """Finds gaps in the queue offsets of records, which are collected while a log is scanned. The
    ranges of the log may be scanned in any order.
    """

    _pieces: dict[int, list[Array]] = field(default_factory=dict)
    """For each queue, its messages as gapless runs. Each run is (position of the first message,
    first queue offset, position of the last message, queue offset after the run).
    """
    _held: int = 0
    _is_consecutive: list[bool] = field(default_factory=list)
    """For each queue, whether its offsets are consecutive in the log."""
    _named: dict[int, list[tuple[Array, Array, Array]]] = field(default_factory=dict)
    """Queue offsets in damaged records, by queue number, as columns: first queue offset, number of
    queue offsets, position of the record.
    """

    def look(self, states: Sequence[QueueState], number: Array, offset: Array, count: Array,
             place: Array, good: Array) -> None:
        """Add the records of a scan, in log order, as columns.

        ``number``: queue number.
        ``offset``: first queue offset.
        ``count``: number of queue offsets.
        ``place``: position.
        ``good``: whether the record is intact.
        """
        self._is_consecutive += [state.kind == PLAIN and not state.key[0].startswith(LMQ_PREFIX)
                                 for state in states[len(self._is_consecutive):]]
        order = np.argsort(number, kind="stable")
        order = order[np.array(self._is_consecutive, bool)[number[order]]]
        bad = order[~good[order]]
        for rows in np.split(bad, np.flatnonzero(np.diff(number[bad])) + 1) if len(bad) else ():
            self._named.setdefault(int(number[rows[0]]), []).append(
                (offset[rows], count[rows], place[rows]))
        self._take(*(column[order[good[order]]] for column in (number, offset, count, place)))

    def know(self, number: int, pieces: Array, damaged: Array, places: Array) -> None:
        """Add a queue without a scan.

        ``pieces``: the queue's messages as gapless runs.
        ``damaged``: queue offsets in damaged records.
        ``places``: positions of these records.
        """
        self._pieces[number] = [pieces]
        if len(damaged):
            self._named.setdefault(number, []).append(
                (damaged, np.ones_like(damaged), places))

    def _take(self, number: Array, offset: Array, count: Array, place: Array) -> None:
        """Add intact records, sorted by queue number."""
        if not len(number) or self._held >= _MAX_RUNS:
            return
        end = offset + count
        begins = np.append(True, (number[1:] != number[:-1]) | (offset[1:] != end[:-1])
                           | (place[1:] <= place[:-1]))
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(number)) - 1
        runs = np.column_stack([place[first], offset[first], place[last], end[last]])
        queues = number[first]
        for part in np.split(np.arange(len(runs)), np.flatnonzero(np.diff(queues)) + 1):
            new, pieces = runs[part], self._pieces.setdefault(int(queues[part[0]]), [])
            if pieces and pieces[-1][-1, _END] == new[0, _FIRST] and (
                    pieces[-1][-1, _HIGH] < new[0, _LOW]):
                pieces[-1][-1, _HIGH:] = new[0, _HIGH:]
                new = new[1:]
            if len(new):
                pieces.append(new)
                self._held += len(new)

    def _in_order(self, number: int) -> Array:
        """Return the runs of a queue in the order of their first messages."""
        pieces = np.concatenate([np.zeros((0, 4), np.int64), *self._pieces.get(number, ())])
        return pieces[np.argsort(pieces[:, _LOW], kind="stable")]

    def odd_places(self, damage: DamagedBytes) -> list[int]:
        """Return, ascending, the positions of the records before and after each jump in a queue's
        offsets. Jumps that are explained by damage between the two records are omitted.
        """
        places: set[int] = set()
        for number in self._pieces:
            pieces = self._in_order(number)
            last, low = pieces[:-1], pieces[1:, _LOW]
            odd = (low > last[:, _HIGH]) & ((pieces[1:, _FIRST] < last[:, _END]) | (
                damage.within(last[:, _HIGH] + 1, low) == 0))
            places.update(last[odd, _HIGH].tolist(), low[odd].tolist())
        return sorted(places)

    def gaps(self, number: int, accounted: OffsetRuns, damage: DamagedBytes, *,
             from_zero: bool, end: int) -> Iterator[OffsetGap]:
        """Yield the gaps of a queue before physical offset ``end``.

        ``accounted``: queue offsets that are already counted.
        ``damage``: all spans of the log without intact data.
        ``from_zero``: whether the log, and so the queue, begins at offset 0.
        """
        # Most queues are at most one run from their first offset on, without damaged records.
        known_pieces = self._pieces.get(number, ())
        if number not in self._named and (not known_pieces or (
                len(known_pieces) == len(run := known_pieces[0]) == 1 and (
                    not from_zero or run[0, _FIRST] <= 0))):
            return
        pieces = self._in_order(number)
        pieces = pieces[pieces[:, _LOW] < end]
        if from_zero:
            pieces = np.concatenate([[(-1, 0, -1, 0)], pieces])
        # For each run, the run before it. Two walks may have read the same part of the log.
        high = np.maximum.accumulate(pieces[:, _HIGH])
        reaches = np.append(True, high[1:] > high[:-1])[:len(pieces)]
        before = np.maximum.accumulate(np.where(reaches, np.arange(len(pieces)), 0))
        low, first = pieces[1:, _LOW], pieces[1:, _FIRST]
        given, reached = pieces[before[:-1], _END], high[:-1]
        lacks = (low > reached) & (first > given)
        lacks[lacks] = accounted.counts(given[lacks], first[lacks]) < (first - given)[lacks]
        for row, room in zip(np.flatnonzero(lacks).tolist(), damage.within(
                reached[lacks] + 1, low[lacks]).tolist(), strict=True):
            missing = OffsetRuns()
            missing.add_run(int(given[row]), int(first[row]))
            missing = missing.without(accounted)
            if 0 < missing.count() <= room // MIN_SIZE:
                yield OffsetGap(int(reached[row]), int(low[row]), missing)
        if not len(pieces) or high[-1] < 0:
            return
        # A damaged record after the last intact one still shows which message it was.
        named = OffsetRuns()
        for offset, count, place in self._named.get(number, ()):
            named.add(offset[place < end], count[place < end])
        last = int(pieces[before[-1], _END])
        near = OffsetRuns()
        near.add_run(last, last + _MAX_AHEAD)
        behind = named.without(named.without(near)).without(accounted)
        if behind.count():
            yield OffsetGap(int(high[-1]),
                            1 + max(int(place[behind.has(offset)].max(initial=int(high[-1])))
                                    for offset, _, place in self._named[number]), behind)
