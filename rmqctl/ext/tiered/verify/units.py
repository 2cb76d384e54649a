"""Look up the units of a tiered queue by queue offset, even after torn writes (tiered.md §8.4).

If a file ends inside a unit, a broker appends after the partial unit. Every later unit is then some
bytes after its expected position. Such a tear is found by comparing units with messages. Only the
tear is a finding; the later units are still compared with messages.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.formats.local import message
from rmqctl.formats.tiered.units import CODA_SIZE, UNIT, UNIT_SIZE, UnitRecord, is_coda
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, Batch, distinct

WINDOW = 1 << 12
"""Number of units that are read together for messages near each other."""
BLOCK = 1 << 16
_MAX_TEARS = 64


@dataclass(frozen=True, slots=True)
class Tear:
    """From queue offset ``first`` on, units are ``shift`` bytes (1 to 19) after their expected
    positions.
    """

    first: int
    shift: int


@dataclass(slots=True)
class UnitColumns:
    """Units as columns (int64). ``exists`` (bool): whether each unit exists."""

    exists: Array
    offset: Array
    size: Array
    tags_code: Array


class TierUnits:
    """The units of a queue for the queue offsets ``[first, end)``. Reading raises StoreIOError."""

    def __init__(self, queue: FlatQueue) -> None:
        self._queue = queue
        self._file = queue.consume_queue
        self.first = -(-self._file.start // UNIT_SIZE)
        self.tears: list[Tear] = []
        self.end = self._file.end // UNIT_SIZE

    @property
    def torn_bytes(self) -> int:
        """Number of bytes of the flat file that are not part of a complete unit."""
        return (self._file.end - self._file.start) % UNIT_SIZE

    def find_tears(self) -> None:
        """Find the ``tears``. Search only if the length of a file shows a torn write."""
        starts = [segment.base % UNIT_SIZE for segment in self._file.segments if segment.usable]
        if not self.torn_bytes and not any(starts):
            return
        low, shift = self.first, 0
        while len(self.tears) < _MAX_TEARS:
            tear = self._break(low, shift)
            if tear is None:
                break
            more = next((other for other in range(shift + 1, shift + UNIT_SIZE)
                         if self._leads_to_own_record(tear, other)), None)
            if more is None:
                break
            self.tears.append(Tear(tear, more))
            low, shift = tear + 1, more
        if self.tears:
            self.end = (self._file.end - self.tears[-1].shift) // UNIT_SIZE

    def _break(self, low: int, shift: int) -> int | None:
        """Return the first queue offset, from ``low`` on, whose unit does not point to its message.
        Units are read ``shift`` bytes after their expected positions.
        """
        high = (self._file.end - shift) // UNIT_SIZE
        end = high
        while low < high:
            middle = (low + high) // 2
            if self._leads_to_own_record(middle, shift):
                low = middle + 1
            else:
                high = middle
        return low if low < end else None

    def _leads_to_own_record(self, queue_offset: int, shift: int) -> bool:
        data = self._file.read(queue_offset * UNIT_SIZE + shift, UNIT_SIZE)
        if len(data) < UNIT_SIZE:
            return False
        unit = UNIT.decode(data)
        if unit.commit_log_offset < self._queue.commit_log.start:
            return 0 <= unit.commit_log_offset and unit.size >= message.MIN_SIZE
        return self.leads_to(unit, queue_offset)

    def leads_to(self, unit: UnitRecord, queue_offset: int) -> bool:
        """Return whether a unit points to the message with a queue offset."""
        try:
            head = self._queue.commit_log.read(unit.commit_log_offset, message.START_SIZE)
            if len(head) < message.START_SIZE or unit.size < message.MIN_SIZE:
                return False
            raw = self._queue.raw(unit)
            return message.decode(raw).queue_offset == queue_offset
        except (FormatError, StoreIOError):
            return False

    def place(self, queue_offset: int) -> int:
        """Return the logical byte offset of the unit of a queue offset."""
        shift = 0
        for tear in self.tears:
            if tear.first <= queue_offset:
                shift = tear.shift
        return queue_offset * UNIT_SIZE + shift

    def block(self, first: int, count: int) -> Array:
        """Return up to ``count`` units from queue offset ``first`` on, but none after a tear, a gap
        or the end.
        """
        count = min(count, self.end - first)
        for tear in self.tears:
            if first < tear.first:
                count = min(count, tear.first - first)
        if count <= 0:
            return np.zeros(0, UNIT.dtype())
        data = self._file.read(self.place(first), count * UNIT_SIZE)
        return UNIT.array(data)

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """Yield (first queue offset, units) of the whole queue, skipping gaps."""
        number = self.first
        while number < self.end:
            units = self.block(number, BLOCK)
            if len(units):
                yield number, units
                number += len(units)
                continue
            behind = self.place(number) + UNIT_SIZE - 1
            after = [segment.base for segment in self._file.segments if segment.usable
                     and segment.base > behind]
            if not after:
                return
            number = max(number + 1, -(-min(after) // UNIT_SIZE))

    def at(self, queue_offset: Array) -> UnitColumns:
        """Return the units of the given queue offsets (int64), which may be in any order."""
        count = len(queue_offset)
        is_there: Array = np.zeros(count, bool)
        columns = UnitColumns(is_there, *(np.full(count, -1, np.int64) for _ in range(3)))
        inside = np.flatnonzero((queue_offset >= self.first) & (queue_offset < self.end))
        if not len(inside):
            return columns
        windows = queue_offset[inside] // WINDOW
        order = np.argsort(windows, kind="stable")
        cuts = np.flatnonzero(np.diff(windows[order])) + 1
        for rows in np.split(inside[order], cuts):
            wanted = queue_offset[rows]
            self._window(rows, wanted, int(wanted.min()), int(wanted.max()) + 1, columns)
        return columns

    def of(self, batch: Batch) -> tuple[UnitColumns, Array]:
        """Return the units of a batch's queue offsets, and a boolean array: True if the unit points
        to its message.

        A unit may point to the coda before its message (5.1, 5.2).
        """
        units = self.at(batch.column("queue_offset"))
        matched = units.exists & (units.offset == batch.offset)
        for row in np.flatnonzero(units.exists & (units.offset + CODA_SIZE == batch.offset)
                                  ).tolist():
            matched[row] = is_coda(self._queue.commit_log.read(int(units.offset[row]), CODA_SIZE))
        return units, matched & (units.size == batch.column("total_size"))

    def _window(self, rows: Array, wanted: Array, first: int, end: int,
                columns: UnitColumns) -> None:
        while first < end:
            units = self.block(first, end - first)
            step = max(len(units), 1)
            if len(units):
                inside = (wanted >= first) & (wanted < first + len(units))
                row, picked = rows[inside], units[wanted[inside] - first]
                columns.exists[row] = True
                columns.offset[row] = picked["commit_log_offset"]
                columns.size[row] = picked["size"]
                columns.tags_code[row] = picked["tags_code"]
            first += step


class SeenOffsets:
    """The queue offsets seen so far, as blocks of flags; complete blocks need no memory."""

    _BITS = 1 << 14

    def __init__(self) -> None:
        self._blocks: dict[int, Array | None] = {}

    def add(self, queue_offset: Array) -> None:
        number = queue_offset // self._BITS
        for block in distinct(number).tolist():
            flags = self._blocks.setdefault(block, np.zeros(self._BITS, bool))
            if flags is None:
                continue
            flags[queue_offset[number == block] % self._BITS] = True
            if flags.all():
                self._blocks[block] = None

    def has(self, first: int, count: int) -> Array:
        """Return a boolean array: whether each of ``count`` queue offsets, from ``first`` on, was
        seen.
        """
        present: Array = np.zeros(count, bool)
        queue_offset = first
        while queue_offset < first + count:
            number, inside = divmod(queue_offset, self._BITS)
            step = min(self._BITS - inside, first + count - queue_offset)
            if number in self._blocks:
                flags = self._blocks[number]
                present[queue_offset - first:queue_offset - first + step] = (
                    True if flags is None else flags[inside:inside + step])
            queue_offset += step
        return present
