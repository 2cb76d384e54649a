"""What the log itself tells of messages that it no longer has.

The queue offsets of a queue follow each other in the log. Where some are missing between two
records, and damaged bytes between these have room for them, the messages were there. A damaged
record that still says which message it was tells of that message, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rmqctl.broker.consume_queue import PLAIN, QueueState
from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.checks.preflight.queues import Claims
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.scan.frames import Array

_MOST = 1 << 20
"""Pieces of queues without a gap that are kept apart."""
_NEAR = 1000
"""How far beyond the last record of its queue a damaged record is believed."""


class Gap(NamedTuple):
    """Queue offsets of which only the log tells, all between two places of the log."""

    low: int
    high: int
    offsets: OffsetRuns


@dataclass(slots=True)
class _Piece:
    """Records of a queue without a gap: places of the first and last, offsets from … to before."""

    low: int
    first: int
    high: int
    end: int


class DamagedBytes:
    """Spans of a log, ascending, that do not overlap: how many bytes of them lie where."""

    def __init__(self, starts: Array, ends: Array) -> None:
        self._starts, self._ends = starts, ends
        self._before = np.append(0, np.cumsum(ends - starts))

    def within(self, low: int, high: int) -> int:
        """Bytes from ``low`` to before ``high``."""
        return max(0, self._up_to(high) - self._up_to(low)) if high > low else 0

    def _up_to(self, place: int) -> int:
        number = int(np.searchsorted(self._starts, place))
        whole = int(self._before[number])
        return whole - max(0, int(self._ends[number - 1]) - place) if number else whole


@dataclass(slots=True)
class LogGaps:
    """Goes along with the walks of a log, in any order of its ranges."""

    _pieces: dict[int, list[_Piece]] = field(default_factory=dict)
    _held: int = 0
    _named: dict[int, OffsetRuns] = field(default_factory=dict)

    def look(self, states: Sequence[QueueState], claim: Claims, good: Array) -> None:
        """The own rows of a batch's records, of which ``good`` (bool) are intact."""
        order = np.argsort(claim.number, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(claim.number[order])) + 1):
            if not len(rows):
                continue
            number = int(claim.number[rows[0]])
            state = states[number]
            if state.kind != PLAIN or state.key[0].startswith(LMQ_PREFIX):
                continue
            intact = good[rows]
            if not intact.all():
                bad = rows[~intact]
                self._named.setdefault(number, OffsetRuns()).add(claim.offset[bad],
                                                                 claim.count[bad])
            self._take(number, claim, rows[intact])

    def know(self, number: int, pieces: Iterable[tuple[int, int, int, int]],
             damaged: Array) -> None:
        """What is known of a queue without a walk: messages without a gap, as (places of the first
        and the last, queue offsets from … to before …), and queue offsets of damaged records.
        """
        self._pieces[number] = [_Piece(low, first, high, end) for low, first, high, end in pieces]
        if len(damaged):
            self._named.setdefault(number, OffsetRuns()).add(damaged)

    def _take(self, number: int, claim: Claims, rows: Array) -> None:
        if not len(rows) or self._held >= _MOST:
            return
        offset, place = claim.offset[rows], claim.place[rows]
        end = offset + claim.count[rows]
        pieces = self._pieces.setdefault(number, [])
        borders = np.flatnonzero(offset[1:] != end[:-1]) + 1
        starts = [0, *borders.tolist()]
        for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True):
            piece = _Piece(int(place[start]), int(offset[start]), int(place[stop - 1]),
                           int(end[stop - 1]))
            if pieces and pieces[-1].end == piece.first and pieces[-1].high < piece.low:
                pieces[-1].high, pieces[-1].end = piece.high, piece.end
            else:
                pieces.append(piece)
                self._held += 1

    def gaps(self, number: int, known: OffsetRuns, damage: DamagedBytes, *,
             from_zero: bool) -> Iterator[Gap]:
        """Of a queue. ``known``: queue offsets that something else tells of; ``damage``: all that
        is not intact in the log; ``from_zero``: the log begins with 0, and so did the queue.
        """
        pieces = sorted(self._pieces.get(number, ()), key=lambda piece: piece.low)
        last = _Piece(-1, 0, -1, 0) if from_zero else None
        for piece in pieces:
            if last is not None and piece.low <= last.high:
                # A part of the log that two walks have passed.
                last = piece if piece.high > last.high else last
                continue
            if last is not None and piece.first > last.end and (
                    known.count(last.end, piece.first) < piece.first - last.end):
                room = damage.within(last.high + 1, piece.low)
                missing = OffsetRuns()
                missing.add_run(last.end, piece.first)
                missing = missing.without(known)
                if 0 < missing.count() <= room // MIN_SIZE:
                    yield Gap(last.high, piece.low, missing)
            last = piece
        # A damaged record behind the last intact one says itself which message it was.
        named = self._named.get(number)
        if named is not None and last is not None and last.high >= 0:
            near = OffsetRuns()
            near.add_run(last.end, last.end + _NEAR)
            behind = named.without(named.without(near)).without(known)
            if behind.count():
                yield Gap(last.high, 1 << 62, behind)
