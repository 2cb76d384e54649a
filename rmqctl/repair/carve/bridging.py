"""Create fillers for missing parts of a carved log, like those of `recover`.

A gap in the log gets a filler for each message of a queue that is missing there, so later messages
keep their queue offsets. The rest of the gap gets fillers without a queue. A missing file gets at
least one filler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import islice
from typing import NamedTuple

from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import NOWHERE
from rmqctl.formats.local.message import BLANK_SIZE, Record, decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.salvage.filler import (
    MAX_FILLER,
    Filler,
    FillerEntry,
    Style,
    filler,
    least_filler,
)
from rmqctl.scan.overlay import Parts

MAX_FILES = 1024
"""Maximum number of files created in place of missing log files, each with at least one filler."""
_MAX_GAPS = 1 << 16
_MAX_LOOKS = 1 << 12
_SEALED = Style(sealed=True)
_MIN_FILLER, _MIN_SEALED = least_filler(Style()), least_filler(_SEALED)


class MissingOffsets(NamedTuple):
    """Missing messages of a queue: ``number`` consecutive queue offsets, from ``first`` on."""

    topic: str
    queue_id: int
    first: int
    number: int

    def filler(self, number: int = 0) -> Filler:
        return Filler((FillerEntry(self.topic, self.queue_id, self.first + number),))


class Bridge:
    """Fillers for the missing parts of a log whose files have ``file_size`` bytes.

    ``room``: maximum total size in bytes of the gaps to fill; missing files do not count.
    """

    def __init__(self, file_size: int, room: int) -> None:
        self.file_size, self._room, self._files = file_size, room, MAX_FILES
        self.fillers = self.queue_fillers = 0

    def spans(self, end: int, physical: int) -> bool:
        """Return whether a log that ends at `end` can continue at `physical`."""
        missing, start = self._missing(end, physical)
        gap = physical - start
        return (physical >= end and (not gap or gap >= _MIN_FILLER)
                and gap <= self._room and len(missing) <= self._files)

    def take(self, end: int, physical: int) -> list[int]:
        """Plan how to bridge a gap; return the sizes of the ranges in it that fillers can fill."""
        missing, start = self._missing(end, physical)
        self._files -= len(missing)
        self._room -= physical - start
        return [stop - at for at, stop, _ in self._stretches(end, physical)]

    def _missing(self, end: int, physical: int) -> tuple[range, int]:
        """Return (the base offsets of the missing files in the gap, the start of the gap in the
        file that contains ``physical``).
        """
        size = self.file_size
        base, last = physical - physical % size, end - end % size
        return range(last + size if end % size else last, base, size), max(base, end)

    def _stretches(self, end: int, physical: int) -> Iterator[tuple[int, int, bool]]:
        """Yield (start, end, whether fillers must reach the end) for each part of the gap to fill.
        A part is a missing file, or a range that one filler can cover.
        """
        missing, at = self._missing(end, physical)
        for base in missing:
            yield base, base + self.file_size - BLANK_SIZE, False
        while at < physical:
            left = physical - at
            size = left if left <= MAX_FILLER else MAX_FILLER - _MIN_SEALED
            yield at, at + size, True
            at += size

    def records(self, end: int, before: Record, lacking: Sequence[MissingOffsets] = ()) -> Iterator[
            Record]:
        """Yield the fillers between ``end``, the end of the log, and the message ``before``.

        ``lacking``: missing messages that some of the fillers replace.
        """
        physical = before.physical_offset
        rows = deque(gap.filler(number) for gap in lacking for number in range(gap.number))
        room = sum(stop - at for at, stop, _ in islice(self._stretches(end, physical), 8))
        is_marked = sum(row.wanted(_SEALED) for row in rows) <= room // 2
        for start, stop, is_exact in self._stretches(end, physical):
            at = start
            # Messages that queues lack; a rest too small for a filler is added to the last one.
            while rows:
                size = rows[0].wanted(_SEALED) if is_marked else rows[0].least(_SEALED)
                left = stop - at - size
                if left < 0:
                    break
                if is_exact and left < _MIN_SEALED:
                    size += left
                yield self._record(at, size, before, rows.popleft())
                at += size
            # The rest, or one filler in an empty file.
            if is_exact and at < stop:
                yield self._record(at, stop - at, before)
            elif not is_exact and at == start:
                yield self._record(at, _MIN_SEALED, before)

    def _record(self, physical: int, size: int, before: Record, row: Filler | None = None
                ) -> Record:
        raw = bytearray(size)
        host = before.store_host if len(before.store_host[0]) == len(NOWHERE[0]) else NOWHERE
        style = Style(props.CRC32.encode() in before.properties, host)
        if row is None and size < least_filler(style):
            style = Style(host=host)
        time = before.store_timestamp
        parts: Parts = filler(physical, size, time, style) if row is None else row.parts(
            physical, size, time, style)
        for at, data in parts:
            raw[at:at + len(data)] = data
        self.fillers += 1
        self.queue_fillers += row is not None
        return decode(bytes(raw))


@dataclass(slots=True)
class _Gap:
    physical: int
    stretches: list[int]


@dataclass(slots=True)
class Lacking:
    """The missing messages of queues in each gap of a log. Gaps and messages are added in log
    order.

    ``rows``: the missing messages, by the physical offset of the message after the gap.
    """

    rows: dict[int, list[MissingOffsets]] = field(default_factory=dict)
    _gaps: list[_Gap] = field(default_factory=list)
    _ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each queue: (the next queue offset, the number of gaps before the queue's last message).

    The offset -1 means that later messages of the queue get new queue offsets.
    """

    def gap(self, physical: int, stretches: list[int]) -> None:
        """Add a gap before the message at ``physical``. ``stretches``: sizes of the ranges to
        fill.
        """
        if len(self._gaps) < _MAX_GAPS:
            self._gaps.append(_Gap(physical, stretches))

    def met(self, number: int, queue: tuple[str, int], offset: int) -> None:
        """Add the next message: its queue's number, its queue, and its queue offset."""
        expected, first = self._ends.get(number, (offset, 0))
        if expected >= 0:
            fits = offset >= expected and self._put(
                MissingOffsets(*queue, expected, offset - expected), first)
            self._ends[number] = (offset + 1, len(self._gaps)) if fits else (-1, 0)

    def _put(self, missing: MissingOffsets, first: int) -> bool:
        """Assign missing messages to the gaps, starting with the gap at index ``first``; return
        whether all of them fit.
        """
        left, parts = missing.number, []
        size = missing.filler().least(_SEALED)
        for gap in islice(self._gaps, first, first + _MAX_LOOKS):
            if not left:
                break
            for number, free in enumerate(gap.stretches):
                if count := min(left, free // size):
                    parts.append((gap, number, count))
                    left -= count
        if left:
            return False
        offset = missing.first
        for gap, number, count in parts:
            gap.stretches[number] -= count * size
            self.rows.setdefault(gap.physical, []).append(
                missing._replace(first=offset, number=count))
            offset += count
        return True
