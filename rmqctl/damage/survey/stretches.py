"""Cached results of a log survey, so that the next survey reads only what has changed.

A log is surveyed again after each step of a repair. Each step changes only a few bytes. The cache
contains for each stretch of a file: the results, the state of the scan at its start, and the end of
the bytes read for it. The results are reused if none of these bytes has changed and the scan
reaches the stretch in the same state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from rmqctl.damage.survey.survey import Survey
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import Source

MIN_LENGTH, STRETCHES = 1 << 20, 256
"""``MIN_LENGTH``: minimum length of a stretch in bytes.
``STRETCHES``: approximate number of stretches in a log, plus one for each file.
"""
_MAX_ROWS = 2 << 20
"""Maximum number of columns of runs (40 bytes each) that all stretches keep in total."""


class SurveyState(NamedTuple):
    """The state of a survey at its current position.

    ``time``: store time of the last message.
    ``last``: start and end of the last message.
    ``times``: physical offsets and store times of the last two messages.
    ``sealed``: a message had an appended CRC.
    """

    time: int | None = None
    last: tuple[int, int] = (-1, -1)
    times: tuple[tuple[int, int], ...] = ()
    sealed: bool = False


@dataclass(slots=True)
class Stretch:
    """The survey of a stretch: the frames at positions ``[start, end)`` of a file.

    ``before`` and ``behind``: state of the survey at the start and at the end.
    ``reach``: end of the bytes that were read.
    ``rows``: the runs.
    ``survey``: all other results.
    ``first``: store time of the first message; None if there are no messages.
    ``waiting``: number of damaged regions after the last message.
    """

    start: int
    end: int
    reach: int
    before: SurveyState
    behind: SurveyState
    survey: Survey
    rows: Array
    first: int | None
    waiting: int


class Stretches:
    """The stretches of the last survey that are still valid, and those of the current survey."""

    def __init__(self) -> None:
        self._parts: Sequence[LogPart] = ()
        self._rejected: set[int] = set()
        self._confirmed: set[tuple[int, int]] = set()
        self._by_file: dict[int, list[Stretch]] = {}
        self._new: dict[int, list[Stretch]] = {}
        self._room = _MAX_ROWS
        self.length = MIN_LENGTH

    def begin(self, parts: Sequence[LogPart], rejected: Collection[int],
              confirmed: Mapping[int, int]) -> None:
        """Begin another survey, and determine from the arguments which stretches of the last survey
        are still valid.
        """
        places = self._rejected ^ {*rejected}
        changed = [(place, place + 1) for place in places] + [
            (place, place + size) for place, size in self._confirmed ^ {*confirmed.items()}]
        same = {number for number, (was, part) in enumerate(zip(self._parts, parts, strict=False))
                if replace(was, pieces=()) == replace(part, pieces=())}
        for number in same:
            changed += _differing(self._parts[number], parts[number])
        changed.sort()
        starts, ends = [start for start, _ in changed], [*accumulate((
            end for _, end in changed), max, initial=-1)]
        self._by_file = {number: [
            stretch for stretch in self._new.get(number, ()) if ends[bisect_left(
                starts, parts[number].base + stretch.reach)] <= parts[number].base + stretch.start]
            for number in same}
        self._parts, self._rejected = [*parts], {*rejected}
        self._confirmed, self._new, self._room = {*confirmed.items()}, {}, _MAX_ROWS
        self.length = max(MIN_LENGTH, sum(part.size for part in parts) // STRETCHES)

    def cached(self, number: int, position: int, at: SurveyState) -> Stretch | None:
        """Return the cached stretch of file ``number`` that begins at this position with the state
        ``at``; None if it is not cached.
        """
        stretches = self._by_file.get(number, [])
        index = bisect_left(stretches, position, key=lambda stretch: stretch.start)
        stretch = stretches[index] if index < len(stretches) else None
        if stretch is not None and (stretch.start, stretch.before) == (position, at):
            return stretch
        return None

    def border(self, number: int, position: int) -> int | None:
        """Return the start of the next cached stretch of file ``number`` after a position; None if
        no further stretch is cached.
        """
        stretches = self._by_file.get(number, [])
        index = bisect_right(stretches, position, key=lambda stretch: stretch.start)
        return stretches[index].start if index < len(stretches) else None

    def keep(self, number: int, stretch: Stretch) -> None:
        self._room -= stretch.rows.shape[1]
        if self._room >= 0:
            self._new.setdefault(number, []).append(stretch)


def _differing(was: LogPart, part: LogPart) -> Iterator[tuple[int, int]]:
    """Yield the physical ranges of the replacements in which the old and the new state of a part
    differ.
    """
    same = {id(piece) for piece in was.pieces} & {id(piece) for piece in part.pieces}
    for piece in (*was.pieces, *part.pieces):
        if id(piece) not in same:
            yield part.base + piece.at, part.base + piece.end


class Asked:
    """A source that records, in ``reach``, the end of the bytes that were read with `read` or
    `next_data`.
    """

    def __init__(self, source: Source) -> None:
        self.name, self.base, self.size, self.witness = (
            source.name, source.base, source.size, source.witness)
        self.head = source.head
        self._source, self.reach = source, 0
        self.read_into = source.read_into

    def read(self, position: int, length: int) -> bytes:
        self.reach = max(self.reach, position + length)
        return self._source.read(position, length)

    def next_data(self, position: int) -> int:
        start = self._source.next_data(position)
        self.reach = max(self.reach, start + 1)
        return start
