"""Gaps in the log that prove lost messages.

The queue offsets of a queue are consecutive in the log. If some are missing between two records,
and the damaged bytes between these records have enough space for them, messages were lost there. A
damaged record also proves its message if its queue and queue offset are still readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rmqctl.broker.consume_queue import PLAIN, QueueState
from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.scan.frames import Array

_MAX_RUNS = 1 << 20
"""Maximum number of gapless runs of records in memory, for all queues."""
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


@dataclass(slots=True)
class _RecordRun:
    """A gapless run of records of a queue.

    ``low``, ``high``: positions of the first and the last record.
    ``first``, ``end``: half-open range ``[first, end)`` of queue offsets.
    """

    low: int
    first: int
    high: int
    end: int


class DamagedBytes:
    """Damaged spans of a log, ascending and without overlap, and a count of their bytes between any
    two positions.
    """

    def __init__(self, starts: Array, ends: Array) -> None:
        self._starts, self._ends = starts, ends
        self._before = np.append(0, np.cumsum(ends - starts))

    def within(self, low: int, high: int) -> int:
        """Return the number of damaged bytes at the positions ``[low, high)``."""
        return max(0, self._up_to(high) - self._up_to(low)) if high > low else 0

    def _up_to(self, place: int) -> int:
        number = int(np.searchsorted(self._starts, place))
        full = int(self._before[number])
        return full - max(0, int(self._ends[number - 1]) - place) if number else full


@dataclass(slots=True)
class LogGaps:
    """Finds gaps in the queue offsets of records, which are collected while a log is scanned. The
    ranges of the log may be scanned in any order.
    """

    _pieces: dict[int, list[_RecordRun]] = field(default_factory=dict)
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

    def know(self, number: int, pieces: Iterable[tuple[int, int, int, int]],
             damaged: Array, places: Array) -> None:
        """Add a queue without a scan.

        ``pieces``: the queue's messages as gapless runs. Each run is (position of the first
        message, first queue offset, position of the last message, queue offset after the run).
        ``damaged``: queue offsets in damaged records.
        ``places``: positions of these records.
        """
        self._pieces[number] = [_RecordRun(*piece) for piece in pieces]
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
        for queue, *fields in zip(number[first].tolist(), place[first].tolist(),
                                  offset[first].tolist(), place[last].tolist(), end[last].tolist(),
                                  strict=True):
            piece, pieces = _RecordRun(*fields), self._pieces.setdefault(queue, [])
            if pieces and pieces[-1].end == piece.first and pieces[-1].high < piece.low:
                pieces[-1].high, pieces[-1].end = piece.high, piece.end
            else:
                pieces.append(piece)
                self._held += 1

    def odd_places(self, damage: DamagedBytes) -> list[int]:
        """Return, ascending, the positions of the records before and after each jump in a queue's
        offsets. Jumps that are explained by damage between the two records are omitted.
        """
        places: set[int] = set()
        for pieces in self._pieces.values():
            for last, piece in pairwise(sorted(pieces, key=lambda piece: piece.low)):
                if piece.low > last.high and (piece.first < last.end or not damage.within(
                        last.high + 1, piece.low)):
                    places |= {last.high, piece.low}
        return sorted(places)

    def gaps(self, number: int, accounted: OffsetRuns, damage: DamagedBytes, *,
             from_zero: bool, end: int) -> Iterator[OffsetGap]:
        """Yield the gaps of a queue before physical offset ``end``.

        ``accounted``: queue offsets that are already counted.
        ``damage``: all spans of the log without intact data.
        ``from_zero``: whether the log, and so the queue, begins at offset 0.
        """
        pieces = sorted((piece for piece in self._pieces.get(number, ()) if piece.low < end),
                        key=lambda piece: piece.low)
        last = _RecordRun(-1, 0, -1, 0) if from_zero else None
        for piece in pieces:
            if last is not None and piece.low <= last.high:
                # A part of the log that two walks have read.
                last = piece if piece.high > last.high else last
                continue
            if last is not None and piece.first > last.end and (
                    accounted.count(last.end, piece.first) < piece.first - last.end):
                room = damage.within(last.high + 1, piece.low)
                missing = OffsetRuns()
                missing.add_run(last.end, piece.first)
                missing = missing.without(accounted)
                if 0 < missing.count() <= room // MIN_SIZE:
                    yield OffsetGap(last.high, piece.low, missing)
            last = piece
        # A damaged record after the last intact one still shows which message it was.
        named = OffsetRuns()
        for offset, count, place in self._named.get(number, ()):
            named.add(offset[place < end], count[place < end])
        if last is not None and last.high >= 0:
            near = OffsetRuns()
            near.add_run(last.end, last.end + _MAX_AHEAD)
            behind = named.without(named.without(near)).without(accounted)
            if behind.count():
                yield OffsetGap(last.high,
                                1 + max(int(place[behind.has(offset)].max(initial=last.high))
                                        for offset, _, place in self._named[number]), behind)
