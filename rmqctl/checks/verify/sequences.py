"""Sequences of files whose names are the offset of their first byte: sizes, gaps, overlaps.

spec: recovery.md §2 (what a broker makes of a folder at load). A broker knows the size from its
configuration; here it follows from names and lengths together, so that any size is legal and
only the file that does not fit the others is told.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from rmqctl.checks.findings import ERROR, INFO, Finding
from rmqctl.formats.local import names
from rmqctl.store.files import Listing, StoreFile

MAX_SIZE = (1 << 31) - 1
"""No broker maps a larger file: sizes are Java integers."""
_CANDIDATES = 20
"""Different lengths and distances that are weighed: a folder may hold anything."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sequence belongs: its structure, and its queue if it is one's."""

    structure: str
    topic: str | None = None
    queue_id: int | None = None
    fix: str | None = None
    row_size: int | None = None
    """Bytes of a row, where a place in the stream is a queue offset."""

    def finding(self, category: str, detail: str, path: str, *, base: int = 0,
                position: int | None = None, length: int | None = None, count: int = 1,
                severity: str = "") -> Finding:
        """A finding about a file; ``base`` is where the file starts in its stream."""
        offset = position
        if self.structure == "commitlog" and position is not None:
            offset = base + position
        row = None
        if self.row_size and position is not None:
            row = (base + position) // self.row_size
        return Finding(category, self.structure, detail, file=path, offset=offset,
                       position=position, length=length, topic=self.topic,
                       queue_id=self.queue_id, queue_offset=row, count=count,
                       severity=severity, next=self.fix)


@dataclass(slots=True)
class Votes:
    """Collects what files say about the size all files of their structure have."""

    unit: int = 1
    lengths: Counter[int] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)

    def add(self, files: Iterable[StoreFile]) -> None:
        known = list(files)
        self.lengths.update(one.size for one in known)
        self.steps.update(b.base - a.base for a, b in pairwise(known) if b.base > a.base)

    def size(self) -> int | None:
        """The size which most lengths and distances of names agree on; None without files.

        A missing file makes a distance a multiple of the size, never a part of it.
        """
        steps = [step for step, _ in self.steps.most_common(_CANDIDATES)]
        lengths = [length for length, _ in self.lengths.most_common(_CANDIDATES)]

        def weight(size: int) -> tuple[int, bool, bool, int]:
            return (self.lengths[size] + self.steps[size],
                    all(step % size == 0 for step in steps), size in self.lengths, size)

        return max((size for size in {*lengths, *steps}
                    if 0 < size <= MAX_SIZE and size % self.unit == 0), key=weight, default=None)

    def sure(self, size: int) -> bool:
        """Whether more than one length or distance says so."""
        return self.lengths[size] + self.steps[size] > 1


def strange(place: Place, folder: str, found: Listing, *, allowed: tuple[str, ...] = (),
            nested: str = INFO) -> Iterator[Finding]:
    """What lies in a folder of a sequence beside its files.

    ``allowed`` names sub-folders that belong there; ``nested`` is the severity of any other one
    ("" for none: 5.1+ passes them over).
    """
    for trouble in found.troubles:
        name = os.path.basename(trouble.path)
        if trouble.unreadable or _in_sequence(name):
            yield place.finding("file-unreadable", trouble.reason, trouble.path)
        elif not (name.endswith(".delete") and allowed):
            yield place.finding("file-name", f"{trouble.reason}: a broker does not start with "
                                "such a name in this folder", trouble.path)
    for name in found.folders:
        path = os.path.join(folder, name)
        if _in_sequence(name):
            yield place.finding("file-unreadable", "a folder with the name of a file", path)
        elif name not in allowed and nested:
            yield place.finding("file-name", "a folder among the files: brokers before 5.1 do "
                                "not start with it", path, severity=nested)


def _in_sequence(name: str) -> bool:
    return names.parse_offset(name) is not None


def occupied(found: Listing) -> list[int]:
    """The offsets of names that are taken by something unreadable: not missing, at least."""
    taken = [os.path.basename(one.path) for one in found.troubles] + found.folders
    return sorted(base for base in map(names.parse_offset, taken) if base is not None)


def check_sequence(place: Place, files: list[StoreFile], size: int, *, unit: int = 1,
                   taken: Iterable[int] = (), gaps: bool = True,
                   aligned: bool = True) -> Iterator[Finding]:
    """Lengths, names and gaps of one sequence, sorted by name; ``size`` is what all should have.

    ``taken``: offsets whose file is there but unreadable. ``gaps``: whether one is damage.
    ``aligned``: whether ``size`` is sure enough to hold it against names.
    """
    known: list[StoreFile] = []
    for number, one in enumerate(files):
        if not os.access(one.path, os.R_OK):
            yield place.finding("file-unreadable", "permission denied", one.path)
        last = number == len(files) - 1
        yield from _length(place, one, size, unit, last)
        if aligned and one.base % size:
            yield place.finding("file-name", f"{one.base} is no multiple of the file size {size}: "
                                "a broker never gives this name", one.path, base=one.base,
                                position=0)
        elif known and one.base == known[-1].base:
            yield place.finding("file-name", f"the same name as {known[-1].path}", one.path,
                                base=one.base, position=0, severity=ERROR)
        else:
            known.append(one)
    if gaps:
        for a, b in pairwise(known):
            yield from _missing(place, a, b.base, size, taken)


def _length(place: Place, one: StoreFile, size: int, unit: int, last: bool) -> Iterator[Finding]:
    if one.size == 0 and last:
        yield place.finding("file-empty", "length zero: brokers before 5.1.3 do not start with "
                            "it, later ones delete it", one.path, base=one.base, position=0,
                            length=size)
    elif one.size != size:
        at = min(one.size, size)
        yield place.finding(
            "file-size", f"has {one.size} bytes, the files of this store have {size}: a broker "
            "does not start with it", one.path, base=one.base, position=at,
            length=abs(one.size - size))
    elif size % unit:
        yield place.finding("file-size", f"{one.size} bytes are no whole number of {unit}-byte "
                            "units", one.path, base=one.base, position=size - size % unit,
                            length=size % unit)


def _missing(place: Place, before: StoreFile, end: int, size: int,
             taken: Iterable[int]) -> Iterator[Finding]:
    """The files missing between ``before`` and the one at ``end``: one finding per stretch."""
    start = max(before.base + size, before.end)
    for stop in [*(base for base in taken if start <= base < end), end]:
        if stop > start:
            count = -(-(stop - start) // size)
            path = os.path.join(os.path.dirname(before.path), names.build_offset(start))
            yield place.finding(
                "file-missing", f"{count} file{'s' if count > 1 else ''} missing: "
                f"[{start}, {stop})", path, base=start, position=0, length=stop - start,
                count=count)
        start = max(start, stop + size)
