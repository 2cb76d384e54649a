"""Restore up to four adjacent damaged bytes at a known position from the CRC that covers them.

A *run* is a series of adjacent damaged bytes. If the position of a run of up to 31 bits is known,
the 31 stored bits of the CRC determine the only possible original. At a wrong position, k bytes
have 256^k values, of which one in 2^31 matches by chance. So only the few positions that the damage
itself suggests are tried:

* Bytes in a text that are not text: the run is these bytes, possibly with some bytes next to them.
  If they are NULs, the run is exactly these bytes, because other cleared bytes would be NULs, too.
* Each run of NULs in a body that is not text.
* Bytes before and after a 4,096- or 512-byte boundary of the log, where writes are torn.

If the CRC alone is not enough proof, all restored bytes of a text must have values that occur
elsewhere in the text. If that is still not enough, the result must be JSON. A zlib stream must end
with the right checksum.

In benchmarks/stage_yields.py, 31 of 55 bodies with two to four damaged bytes before or after a
sector boundary are restored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.salvage.contents import Odd, is_json, most_json, odd_bytes
from rmqctl.scan.crc_fix import burst
from rmqctl.scan.frames import Array

AS_JSON = "that it is JSON"
MAX_RUN = 4
"""Maximum length of a run in bytes: a longer run has more bits than a CRC."""
_BORDERS = (4096, 512)
_MAX_PLACES = 64
_VALUES, _BITS = 256, 8
_NULS = re.compile(rb"(?<!\0)\0{2,4}(?!\0)")


class TornRange(NamedTuple):
    """A run of ``size`` bytes at ``start`` that may be the damage. ``why``: the reason in words."""

    start: int
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a record in which a run is searched for: ``data``, covered by a CRC.

    * ``physical``: physical offset of the bytes.
    * ``behind``: number of covered bytes after them.
    * ``properties``: whether ``data`` is the properties string.
    * ``share``: share of wrong changes that later checks do not detect.
    * ``seed``: for random samples.
    """

    data: bytes
    physical: int
    behind: int = 0
    properties: bool = False
    share: float = 1.0
    seed: int = 0


class TornBytes(NamedTuple):
    """A solution: the original bytes ``after`` at ``position``, in the run ``place``.

    * ``tried``: number of candidates.
    * ``weight``: number of candidates that other evidence does not exclude.
    * ``witnesses``: that evidence, in words.
    """

    place: TornRange
    position: int
    after: bytes
    tried: int
    weight: float
    witnesses: tuple[str, ...]


def runs(content: Content, syndromes: Sequence[int], most: float) -> Iterator[list[TornBytes]]:
    """Yield lists of solutions, one list per group of equally certain positions, most certain
    first.

    * ``syndromes``: possible differences between the computed and the stored CRC.
    * ``most``: limit for the weight of all candidates. Above this limit, the search ends, unless
      the body is a text and bytes that are not text show which positions are damaged.
    """
    # Only in a text, bytes that are not text show the damage.
    odd = odd_bytes(content.data, properties=content.properties)
    text = odd is None or odd.end - odd.start <= MAX_RUN
    counts = np.bincount(np.frombuffer(content.data, np.uint8), minlength=_VALUES)
    before: list[_Candidates] = []
    # Group after group of positions, until a solution among so many candidates would prove nothing.
    for places in _places(content, odd, text=text):
        if len(before) + len(places) > _MAX_PLACES:
            return
        step = [_Candidates(content, place, counts if text else None) for place in places]
        before += step
        tried = sum(_VALUES ** candidates.place.size for candidates in before)
        # Only if the CRC alone is not enough proof, byte values must occur elsewhere in the text.
        narrow = text and tried * content.share > most
        weight = sum(candidates.weight for candidates in before) if narrow else (
            tried * content.share)
        if weight > most and (odd is None or not text):
            return
        # The solutions. If the CRC is not enough proof, those that are JSON are preferred.
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
    """Yield groups of possible runs, the groups with the fewest candidates first."""
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
    """The candidates for the original bytes of one run.

    ``counts``: how often each byte value occurs in the text; None if the content is not text.
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
        """Return the weight of the candidates whose byte values all occur elsewhere in the text."""
        return float(len(self._values)) ** self.place.size * self._content.share

    @property
    def json_share(self) -> float:
        """Return an upper bound for the share of candidates that make the content valid JSON."""
        values, size = self._values, self.place.size
        if not values:
            return 0.0
        return most_json(len(self._content.data), self._content.seed,
                         lambda luck: self.laid(bytes(luck.choices(values, k=size))))

    def laid(self, after: bytes) -> bytes:
        """Return the content with the run replaced by the bytes ``after``."""
        data, place = self._content.data, self.place
        return data[:place.start] + after + data[place.start + place.size:]

    def solved(self, syndromes: Sequence[int], *, narrow: bool) -> Iterator[bytes]:
        """Yield the candidates that make the CRC match and, in a text, leave only bytes of text.

        ``narrow``: only candidates whose byte values all occur elsewhere in the text.
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
        """Return (position, bytes) for the part of ``after`` from the first to the last byte that
        differs from the damaged bytes.
        """
        differ = [index for index, value in enumerate(after) if value != self._old[index]]
        return self.place.start + differ[0], after[differ[0]:differ[-1] + 1]
