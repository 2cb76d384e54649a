"""Results kept of a survey of a log, so that the next survey reads only what has changed.

A log is surveyed again after each mending, when a few of its bytes are others. Of each stretch of a
file it is kept what it gave, what was known when the walk came there, and how far it looked. A
stretch of which no byte is another one, and which is reached with the same knowledge, gives the
same again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from rmqctl.damage.survey.survey import Survey
from rmqctl.scan.frames import Array
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import Source

MIN_LENGTH, STRETCHES = 1 << 20, 256
"""Bytes of a stretch at least, and how many a log has about, besides one for each file."""
_MAX_ROWS = 2 << 20
"""Columns of runs (40 bytes each) that all stretches keep."""


class Passed(NamedTuple):
    """The state of a survey before its current place: the last message's store time; its place and
    end; places and store times of the last two; whether one had a CRC appended.
    """

    time: int | None = None
    last: tuple[int, int] = (-1, -1)
    times: tuple[tuple[int, int], ...] = ()
    sealed: bool = False


@dataclass(slots=True)
class Stretch:
    """Results of positions ``[start, end)`` of a file, frame by frame.

    ``before`` and ``behind``: what was known at its ends. ``reach``: where the bytes end that were
    asked for. ``found`` without runs, these in ``rows``. ``first``: the store time of its first
    message, None without one. ``waiting``: how many of its last regions have no message behind.
    """

    start: int
    end: int
    reach: int
    before: Passed
    behind: Passed
    found: Survey
    rows: Array
    first: int | None
    waiting: int


class Stretches:
    """The stretches of the last survey that hold, and those of this one."""

    def __init__(self) -> None:
        self._parts: Sequence[LogPart] = ()
        self._rejected: set[int] = set()
        self._confirmed: set[tuple[int, int]] = set()
        self._known: dict[int, list[Stretch]] = {}
        self._new: dict[int, list[Stretch]] = {}
        self._room = _MAX_ROWS
        self.length = MIN_LENGTH

    def begin(self, parts: Sequence[LogPart], rejected: Collection[int],
              confirmed: Mapping[int, int]) -> None:
        """Another survey: what these are now decides which stretches of the last one hold."""
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
        self._known = {number: [
            stretch for stretch in self._new.get(number, ()) if ends[bisect_left(
                starts, parts[number].base + stretch.reach)] <= parts[number].base + stretch.start]
            for number in same}
        self._parts, self._rejected = [*parts], {*rejected}
        self._confirmed, self._new, self._room = {*confirmed.items()}, {}, _MAX_ROWS
        self.length = max(MIN_LENGTH, sum(part.size for part in parts) // STRETCHES)

    def known(self, number: int, position: int, at: Passed) -> Stretch | None:
        """Return the stretch of file ``number`` that begins there and would give the same again."""
        stretches = self._known.get(number, [])
        index = bisect_left(stretches, position, key=lambda stretch: stretch.start)
        stretch = stretches[index] if index < len(stretches) else None
        if stretch is not None and (stretch.start, stretch.before) == (position, at):
            return stretch
        return None

    def border(self, number: int, position: int) -> int | None:
        """Return where the next one after a position begins."""
        stretches = self._known.get(number, [])
        index = bisect_right(stretches, position, key=lambda stretch: stretch.start)
        return stretches[index].start if index < len(stretches) else None

    def keep(self, number: int, stretch: Stretch) -> None:
        self._room -= stretch.rows.shape[1]
        if self._room >= 0:
            self._new.setdefault(number, []).append(stretch)


def _differing(was: LogPart, part: LogPart) -> Iterator[tuple[int, int]]:
    """Yield the physical bytes that only one of two has a piece for, or each another one."""
    same = {id(piece) for piece in was.pieces} & {id(piece) for piece in part.pieces}
    for piece in (*was.pieces, *part.pieces):
        if id(piece) not in same:
            yield part.base + piece.at, part.base + piece.end


class Asked:
    """A source that notes in ``reach`` where the bytes end that were looked at beyond the walk."""

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
