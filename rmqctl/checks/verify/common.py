"""Helpers for the checks of small structures: limits on findings, and reading without
exceptions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.errors import StoreIOError
from rmqctl.formats import layout
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import HostV4, HostV6, Message
from rmqctl.phrases import Phrase, counted
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource

MAX_SINGLE = 100
"""Maximum number of findings of one category in one file that are reported one by one; further
findings are only counted.
"""
LOOK = "rmqctl dump FILE --at OFFSET --hex"


def bounded(findings: Iterable[Finding], *, by_folder: bool = False,
            most: int = MAX_SINGLE) -> Iterator[Finding]:
    """Yield the first ``most`` findings of each category, structure and file (or folder).

    Further findings are only counted, and reported at the end as one finding for each category,
    structure and file. So random bytes in a large file do not hide everything else.
    """
    given: dict[tuple[str, str, str], int] = {}
    over: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        where = finding.file or ""
        key = finding.category, finding.structure, os.path.dirname(where) if by_folder else where
        given[key] = given.get(key, 0) + 1
        if given[key] <= most:
            yield finding
            continue
        before = over.get(key)
        count = finding.count + (before.count if before else 0)
        over[key] = replace(before or finding, count=count)
    for first in over.values():
        yield replace(first, detail=f"{first.count} more findings of this kind (only counted); the "
                      f"first: {first.detail}")


def runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first number and the length of each run of consecutive numbers."""
    first = last = None
    for number in numbers:
        if first is None or last is None:
            first = last = number
        elif number == last + 1:
            last = number
        else:
            yield first, last - first + 1
            first = last = number
    if first is not None and last is not None:
        yield first, last - first + 1


def unreadable(structure: str, path: str, error: StoreIOError) -> Finding:
    """Return the finding for a file that cannot be opened or read."""
    return Finding("file-unreadable", structure, str(error), file=path)


def read_start(path: str, most: int) -> tuple[bytes, int]:
    """Return the first ``most`` bytes of a regular file, and the size of the file in bytes.
    Raises: StoreIOError.
    """
    with FileSource(path) as source:
        return source.read(0, min(source.size, most)), source.size


def pages(source: FileSource, unit: int, per_page: int, end: int | None = None) -> Iterator[
        tuple[int, bytes]]:
    """Yield each page that may contain data: the number of its first unit, and its complete units.

    Holes are skipped, so a sparse file of a terabyte costs nothing. ``end``: number of the unit to
    stop at (None: the end of the file).
    """
    unit_number, last = 0, source.size // unit if end is None else min(end, source.size // unit)
    while unit_number < last:
        ahead = source.next_data(unit_number * unit) // unit - unit_number
        unit_number += ahead - ahead % per_page
        if unit_number >= last:
            return
        data = source.read(unit_number * unit, min(per_page, last - unit_number) * unit)
        data = data[:len(data) - len(data) % unit]
        if not data:
            return
        yield unit_number, data
        unit_number += len(data) // unit


def used_units(data: bytes, unit: int) -> Array:
    """Return a boolean array: whether each unit contains a non-zero byte."""
    return np.asarray(np.frombuffer(data, np.uint8).reshape(-1, unit).any(axis=1))


class Gaps:
    """Search for holes in a file: runs of unused entries followed by used entries.

    Garbage in the unused part at the end does not count as used entries after a hole.
    """

    def __init__(self) -> None:
        self.used = 0
        """Index after the last entry that is not all zeros."""
        self._pending: list[tuple[int, int]] = []

    def add(self, number: Array, valid: Array) -> list[tuple[int, int]]:
        """Add the next entries that are not all zeros; return the holes that these entries prove.

        A hole is returned as the index of its first entry and its number of entries.
        ``number``: indices of the added entries, ascending.
        ``valid``: whether each of them is valid.
        """
        before = np.concatenate([[self.used - 1], number[:-1]])
        self._pending += [(int(before[row]) + 1, int(number[row] - before[row]) - 1)
                          for row in np.flatnonzero(number - before > 1)[:MAX_SINGLE].tolist()]
        self.used = int(number[-1]) + 1
        last = int(number[valid][-1]) if valid.any() else -1
        certain = [gap for gap in self._pending if gap[0] < last]
        self._pending = self._pending[len(certain):][:MAX_SINGLE]
        return certain


_NEVER_CONFIRMED = sum(layout.width_of(Message, name)[0] for name in (
    "flag", "born_timestamp", "reconsume_times", "prepared_transaction_offset"))
BY_QUEUE = sum(layout.width_of(Message, name)[0] for name in ("queue_id", "queue_offset"))
"""Number of bytes of a message, in addition to its topic, that its consume queue entry confirms."""
_BY_INDEX = layout.width_of(Message, "store_timestamp")[0]


def unconfirmed_bytes(sys_flag: Array, properties: Array, *, by_index: bool) -> int:
    """Return the number of bytes of messages that neither a consume queue nor the index confirms.

    ``properties``: for each message, the number of bytes of its properties that were not compared.
    ``by_index``: whether the store times were compared with the index.
    """
    wide = sum(int((sys_flag & bit != 0).sum()) for bit in (
        sysflag.BORN_HOST_V6, sysflag.STORE_HOST_V6))
    return (len(sys_flag) * (_NEVER_CONFIRMED + (0 if by_index else _BY_INDEX))
            + wide * layout.size_of(HostV6) + (2 * len(sys_flag) - wide) * layout.size_of(HostV4)
            + int(properties.sum()))


def nowhere(_: int) -> bool:
    """Return False for every physical offset: no part of the log is damaged."""
    return False


def plural(count: int, noun: str, many: str | None = None) -> Phrase:
    """Return a count with its noun, such as ``1 row`` or ``2 rows``; ``many``: irregular plural."""
    return counted(count, noun, many or "")
