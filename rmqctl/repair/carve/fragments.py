"""Collect the chains of records in a source, and prove where a file system split a log.

A *chain* is a series of consecutive records with the same shift (`rmqctl.repair.carve.scan`). If a
log breaks off at the end of a chain, there are two possible reasons:

* A record is damaged. The following records may be part of its body.
* A fragment of the file ends. The following records are unrelated.

A fragment is proven if two parts at different positions can be joined to one record with matching
lengths and CRC.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rmqctl.errors import FormatError
from rmqctl.formats import dledger
from rmqctl.formats.local.message import MIN_SIZE, START_SIZE, decode, total_size_at
from rmqctl.repair.carve.window import Window
from rmqctl.scan.frames import Array

REACH = (4 << 20) + (64 << 10)
"""Maximum size of a body in bytes: more than the largest record that brokers write by default."""
NEXT = (0, dledger.HEAD_SIZE)
"""Possible numbers of bytes between consecutive messages: none, or a DLedger entry header."""
SECTOR = 512
_MAX_CHAINS = 1 << 20
_MAX_NEXT = 4
_WORK = 4 << 30
_MAX_READS = 1 << 16


class RecordChain(NamedTuple):
    """Consecutive records in positions ``[start, end)``, all with the same shift.

    ``file_end``: size in bytes of the end-of-file record or mark after the records; 0 if there is
    none.
    """

    shift: int
    start: int
    end: int
    file_end: int


class Chains:
    """The chains of a source in the order of the scan. Call `start` and `end` for each chain, then
    `cut`.

    At most a million chains are kept. ``unknown_from``: start of the first chain that is not kept.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._rows = array("q")
        self._is_open = False
        self.unknown_from: int | None = None
        self._starts: Array | None = None
        self._work, self._reads = _WORK, _MAX_READS
        self._cuts: dict[tuple[int, int], int | None] = {}

    def start(self, shift: int, at: int) -> None:
        """Record that records with this shift start at ``at``; they may continue the last chain."""
        rows = self._rows
        if rows and rows[-4] == shift and (self._is_open or (
                not rows[-1] and at - rows[-2] in NEXT)):
            self._is_open = True
        elif len(rows) < 4 * _MAX_CHAINS:
            rows.extend((shift, at, at, 0))
            self._is_open = True
        elif self.unknown_from is None:
            self.unknown_from = at

    def end(self, shift: int, at: int, file_end: int) -> None:
        """Record that the chain ends at ``at``."""
        if self._is_open and self._rows[-4] == shift:
            self._rows[-2:] = array("q", (at, file_end))
        self._is_open = False

    def __iter__(self) -> Iterator[RecordChain]:
        rows = self._rows
        return (RecordChain(*rows[at:at + 4]) for at in range(0, len(rows), 4))

    def cut(self, shift: int, at: int) -> int | None:
        """Return the proven end of the fragment in which the record at ``at`` breaks off, or None.

        ``shift``: the shift of the record's log. No byte after the returned end belongs to the
        record.
        Raises: StoreIOError.
        """
        key = shift, at
        if key not in self._cuts:
            if len(self._cuts) >= _MAX_CHAINS:
                return None
            self._cuts[key] = self._cut(shift, at)
        return self._cuts[key]

    def apart(self, shift: int, at: int, end: int) -> int | None:
        """Return the greatest possible end of the record at ``at``, the position at which a log of
        this shift breaks off.

        This end is the position that the log's next record would have here. Return None if no other
        fragment contains such a record outside of positions ``[at, end)``.
        """
        physical, positions = self._after(shift, at, end)
        apart = ((physical - positions - shift) % SECTOR == 0) & (
            (positions < at) | (positions >= end))
        return int(physical[apart.argmax()]) - shift if apart.any() else None

    def goes_on(self, shift: int, at: int) -> int | None:
        """Return the position at which a log of this shift continues after ``at``. Return None if
        no such position is within the maximum length of a record.
        """
        physical, positions = self._after(shift, at, at + REACH)
        own = physical - positions == shift
        return int(positions[own.argmax()]) if own.any() else None

    def _after(self, shift: int, at: int, end: int) -> tuple[Array, Array]:
        """Return (physical offsets, positions) of the chain starts whose physical offset minus
        ``shift`` is in ``[at, end)``.
        """
        physical, positions = self._sorted()
        first, after = np.searchsorted(physical, (at + shift, end + shift))
        return physical[first:after], positions[first:after]

    def _sorted(self) -> Array:
        """Return (physical offsets, positions) of the chain starts, in order of physical offset."""
        if self._starts is None:
            table = np.frombuffer(self._rows, np.int64).reshape(-1, 4)
            places = np.stack([table[:, 0] + table[:, 1], table[:, 1]])
            self._starts = places[:, np.lexsort(places[::-1])]
        return self._starts

    def _cut(self, shift: int, at: int) -> int | None:
        physical, positions = self._sorted()
        first = int(np.searchsorted(physical, at + shift))
        for row in range(first, min(first + _MAX_NEXT, len(physical))):
            size, position = int(physical[row]) - at - shift, int(positions[row])
            if size > REACH or position == at + size:  # the log continues here, after damage
                return None
            if (int(physical[row]) - position - shift) % SECTOR:
                continue  # fragments consist of sectors
            if not size:
                return at
            if size >= MIN_SIZE and self._reads > 0:
                self._reads -= 1
                if end := self._joined(shift, at, position, size):
                    return end
        return None

    def _joined(self, shift: int, at: int, position: int, size: int) -> int | None:
        """Return the end of the fragment with the first part of the record at ``at``, or None.

        The rest of the record must end at ``position``, in another fragment.

        ``size``: length of the record in bytes; in a DLedger log, including the entry headers
        before and after the record.
        """
        first = self._window.read(at, size)
        rest = self._window.read(max(position - size, 0), min(size, position))
        framed = dledger.HEAD_SIZE if dledger.head_at(first, at + shift) is not None else 0
        # If the sector with the size is complete, it decides at once whether this is possible.
        cut = at - at % SECTOR + SECTOR
        if cut - at >= framed + START_SIZE and total_size_at(first[framed:]) != size - 2 * framed:
            return None
        for end in range(cut, at + size, SECTOR):
            kept, self._work = end - at, self._work - size
            if self._work < 0:
                break
            if size - kept > len(rest):
                continue
            data = first[:kept] + rest[len(rest) - (size - kept):]
            try:
                record = decode(data, framed)
            except FormatError:
                continue
            if (record.total_size == size - 2 * framed and record.crc_ok
                    and record.physical_offset == at + shift + framed):
                return end
        return None
