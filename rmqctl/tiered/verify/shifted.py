"""Messages that lie behind their place: a write was cut, then repeated behind its part (§8.4).

Consume queue and embedded offsets of the repeated block still describe the place where it should
be; messages of later blocks say where they lie, and only their units are wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import plural
from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.local import message
from rmqctl.scan.frames import Array, Span
from rmqctl.tiered.flat_file import FlatFile
from rmqctl.tiered.verify.queue import Loose, QueueCheck

_SEARCHED = 4 << 20
_MOST_TRIED = 10_000
_MAX_RECORD = 128 << 20
_MAGIC_AT = layout.field(message.Message, "magic").offset
_MAGICS = re.compile(b"|".join(
    re.escape(magic.to_bytes(4, "big")) for magic in message.VERSIONS))


class Unit(NamedTuple):
    """A unit that no message was found for."""

    queue_offset: int
    offset: int
    size: int


def record_at(log: FlatFile, offset: int, size: int | None = None) -> message.Record | None:
    """The record at a logical offset, wherever it says it lies; None where there is none.

    ``size``: only one of that size. StoreIOError.
    """
    head = log.read(offset, message.START_SIZE)
    if len(head) < message.START_SIZE:
        return None
    total = int.from_bytes(head[:4], "big", signed=True)
    if not message.MIN_SIZE <= total <= _MAX_RECORD or size not in (None, total):
        return None
    try:
        return message.decode(log.read(offset, total))
    except FormatError:
        return None


class Shifts:
    """Distances by which messages of a queue lie behind their places, and how many."""

    def __init__(self, check: QueueCheck) -> None:
        self._check, self._log = check, check.queue.commit_log
        self._shifts: Counter[int] = Counter()
        self._first: tuple[int, int] | None = None
        self._searched: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._shifts)

    def frames(self, loose: Loose, claimed: Array) -> None:
        """Marks the provable messages a distance behind what their units say as ``claimed``."""
        distance = loose.offset - loose.unit_offset
        rows = np.flatnonzero(loose.known & (loose.unit_size == loose.size) & (distance > 0)
                              & (loose.unit_offset >= self._log.start))
        for at in rows.tolist():
            queue_offset = int(loose.queue_offset[at])
            if not self._check.seen.has(queue_offset, 1)[0]:
                claimed[at] = True
                self._note(int(distance[at]), queue_offset, int(loose.offset[at]))
                self._check.seen.add(loose.queue_offset[at:at + 1])

    def _note(self, distance: int, queue_offset: int, offset: int) -> None:
        self._shifts[distance] += 1
        if self._first is None or queue_offset < self._first[0]:
            self._first = queue_offset, offset

    def explains(self, unit: Unit, number: int | None) -> bool:
        """Whether the message of a unit lies a known distance behind.

        ``number``: which of the check's spans the unit leads into, where new distances are looked
        for once.
        """
        if number is not None and number not in self._searched:
            self._searched.add(number)
            self._search(self._check.spans[number])
        for distance in self._shifts:
            record = record_at(self._log, unit.offset + distance, unit.size)
            if record is not None and (record.queue_offset, record.physical_offset) == unit[:2]:
                self._note(distance, unit.queue_offset, unit.offset + distance)
                return True
        return False

    def _search(self, span: Span) -> None:
        """Finds a message in a span of no records that says it lies further ahead, with a unit."""
        data = self._log.read(span.offset, min(span.length, _SEARCHED))
        for tried, found in enumerate(_MAGICS.finditer(data, _MAGIC_AT)):
            at = span.offset + found.start() - _MAGIC_AT
            record = record_at(self._log, at)
            if record is not None and record.physical_offset < at:
                units = self._check.units.at(np.array([record.queue_offset], np.int64))
                if units.known[0] and int(units.offset[0]) == record.physical_offset and int(
                        units.size[0]) == record.total_size:
                    self._shifts.setdefault(at - record.physical_offset, 0)
                    return
            if tried > _MOST_TRIED:
                return

    def findings(self) -> Iterator[Finding]:
        if self._first is None:
            return
        queue_offset, offset = self._first
        count = sum(self._shifts.values())
        distance = self._shifts.most_common(1)[0][0]
        yield self._check.place.log(
            "tiered-shifted", f"{plural(count, 'message')} from queue offset {queue_offset} on lie "
            f"{distance} bytes behind where their units lead: a write was cut and then repeated "
            "behind its first part", offset, queue_offset=queue_offset, count=count)
