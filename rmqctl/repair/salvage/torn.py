"""Restore up to four adjacent damaged bytes at a known position from the CRC that covers them.

The 31 stored bits of a CRC determine one pattern for any run of 31 bits, so they prove only what
remains after the choice of the position: k bytes at one position are 256^k candidates of 2^31. So
the bytes themselves must show the position, and further evidence must come from the content:

* bytes that are not text in a text: the run is these bytes, or up to some more next to them. NULs
  are exactly the run, as further cleared bytes next to them would be NULs as well;
* runs of NULs in other bodies, each of them;
* bytes before and after a 4,096- or 512-byte border of the log, where writes are torn.

If that is not enough proof, all restored bytes of a text must be values that the text has
elsewhere, and then the result must be JSON. A zlib stream must end with its right checksum.

Yield (benchmarks/stage_yields.py): 31 of 55 bodies with two to four damaged bytes before or after
the border of a sector.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rmqctl.repair.salvage.contents import Odd, is_json, most_json, odd_bytes
from rmqctl.scan.crc_fix import burst
from rmqctl.scan.frames import Array

AS_JSON = "that it is JSON"
MAX_RUN = 4
"""Longest run in bytes: a longer run has more bits than a CRC."""
_BORDERS = (4096, 512)
_MAX_PLACES = 64
_VALUES, _BITS = 256, 8
_NULS = re.compile(rb"(?<!\0)\0{2,4}(?!\0)")


class TornRange(NamedTuple):
    """A run of ``size`` bytes at ``start`` that may be the damage, and ``why``."""

    start: int
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of a record that a CRC covers; ``behind``: number of covered bytes after them.

    ``physical``: their offset in the log. ``properties``: they are the properties string.
    ``share``: of wrong changes, the share that later checks do not detect. ``seed``: for random
    samples.
    """

    data: bytes
    physical: int
    behind: int = 0
    properties: bool = False
    share: float = 1.0
    seed: int = 0


class TornBytes(NamedTuple):
    """Original bytes ``after`` at ``position`` in ``place``. ``tried``: number of candidates;
    ``weight``: of these, how many count; ``witnesses``: what rules out the others.
    """

    place: TornRange
    position: int
    after: bytes
    tried: int
    weight: float
    witnesses: tuple[str, ...]


def runs(content: Content, syndromes: Sequence[int], most: float) -> Iterator[list[TornBytes]]:
    """Yield lists of solutions, one list per step, at the most certain positions first.

    ``syndromes``: differences between the computed and the stored CRC. Except for positions that
    the text itself shows, the search ends when the weight of all candidates is above ``most``.
    """
    # Text has odd bytes where it was hit; other bytes have not.
    odd = odd_bytes(content.data, properties=content.properties)
    text = odd is None or odd.end - odd.start <= MAX_RUN
    counts = np.bincount(np.frombuffer(content.data, np.uint8), minlength=_VALUES)
    before: list[_Candidates] = []
    # Place after place, until so many were tried that a solution proves nothing.
    for places in _places(content, odd, text=text):
        if len(before) + len(places) > _MAX_PLACES:
            return
        step = [_Candidates(content, place, counts if text else None) for place in places]
        before += step
        tried = sum(_VALUES ** candidates.place.size for candidates in before)
        # What the text has elsewhere is only asked for where the CRC alone is not proof enough.
        narrow = text and tried * content.share > most
        weight = sum(candidates.weight for candidates in before) if narrow else (
            tried * content.share)
        if weight > most and (odd is None or not text):
            return
        # Solutions, those that are JSON before others where the CRC is not proof enough.
        solved = [(candidates, after) for candidates in step for after in candidates.solved(
            syndromes, narrow=narrow)]
        witnesses: tuple[str, ...] = ("the bytes of its text",) if narrow else ()
        counted = weight
        as_json = [(candidates, after) for candidates, after in solved
                   if weight > most and text and is_json(candidates.laid(after))]
        if as_json:
            solved, witnesses = as_json, (*witnesses, AS_JSON)
            counted = sum(candidates.weight * candidates.json_share for candidates in before)
        if solved:
            solutions = (TornBytes(candidates.place, *candidates.changed(after), tried, counted,
                                   witnesses) for candidates, after in solved)
            yield list({(run.position, run.after): run for run in solutions}.values())


def _places(content: Content, odd: Odd | None, *, text: bool) -> Iterator[list[TornRange]]:
    """Yield lists of positions, those with the fewest candidates first."""
    data = content.data
    if odd is not None and text:
        length = odd.end - odd.start
        if odd.zero:
            name = "a NUL" if length == 1 else f"{length} NULs"
            yield [TornRange(odd.start, length, f"{name} in a text")]
            return
        for size in range(length, MAX_RUN + 1):
            why = f"{size} bytes that are not all text" if size > 1 else "a byte that is not text"
            yield [TornRange(start, size, why) for start in range(odd.end - size, odd.start + 1)
                   if start >= 0 and start + size <= len(data)]
        return
    nuls = [] if text else [match.span() for match in _NULS.finditer(data)]
    for size in range(2, MAX_RUN + 1):
        some = [TornRange(start, size, f"{size} NULs") for start,
                end in nuls if end - start == size]
        if some:
            yield some
        for border in _BORDERS:
            some = [TornRange(start, size, f"{size} bytes at a border of {border}")
                    for at in range(-content.physical % border, len(data) + 1, border)
                    for start in (at - size, at) if 0 <= start <= len(data) - size]
            if some:
                yield some


class _Candidates:
    """The candidates for one position. ``counts``: how often a text has each byte value; None if
    the content is not text.
    """

    def __init__(self, content: Content, place: TornRange, counts: Array | None) -> None:
        self._content, self.place = content, place
        data = content.data
        self._old = data[place.start:place.start + place.size]
        self._text, self._values = counts is not None, list(range(_VALUES))
        if counts is not None:
            here = np.bincount(np.frombuffer(self._old, np.uint8), minlength=_VALUES)
            self._values = np.flatnonzero(counts > here).tolist()

    @property
    def weight(self) -> float:
        """Return the weight of the candidates made of byte values that the text has elsewhere."""
        return float(len(self._values)) ** self.place.size * self._content.share

    @property
    def json_share(self) -> float:
        """Return an upper bound for the share of candidates that make JSON."""
        values, size = self._values, self.place.size
        if not values:
            return 0.0
        return most_json(len(self._content.data), self._content.seed,
                         lambda luck: self.laid(bytes(luck.choices(values, k=size))))

    def laid(self, after: bytes) -> bytes:
        """Return the content with other bytes at this position."""
        data, place = self._content.data, self.place
        return data[:place.start] + after + data[place.start + place.size:]

    def solved(self, syndromes: Sequence[int], *, narrow: bool) -> Iterator[bytes]:
        """Yield the bytes with which the CRC matches and a text is valid; if ``narrow``, only byte
        values that the text has elsewhere.
        """
        covered = len(self._content.data) + self._content.behind
        for syndrome in syndromes:
            pattern = burst(covered, syndrome, _BITS * self.place.start, _BITS * self.place.size)
            if pattern is None:
                continue
            after = (int.from_bytes(self._old, "little") ^ pattern).to_bytes(
                self.place.size, "little")
            if narrow and not {*self._values}.issuperset(after):
                continue
            if not self._text or odd_bytes(self.laid(after),
                                           properties=self._content.properties) is None:
                yield after

    def changed(self, after: bytes) -> tuple[int, bytes]:
        """Return (position, bytes) from the first to the last byte that differs."""
        differ = [index for index, value in enumerate(after) if value != self._old[index]]
        return self.place.start + differ[0], after[differ[0]:differ[-1] + 1]
