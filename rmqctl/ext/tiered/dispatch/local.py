"""Read a local queue's entries in order for dispatch, and determine the messages that cannot be
uploaded.

The local consume queue decides which messages belong to a queue. Entries are read by physical
offset. Therefore all queues are uploaded in one pass over the log.
"""

from __future__ import annotations

import numpy as np

from rmqctl.checks.verify.queue.ext_units import ExtReader
from rmqctl.errors import FormatError
from rmqctl.formats.local import consume_queue as layout
from rmqctl.formats.local import consume_queue_ext as ext
from rmqctl.formats.local import message, properties
from rmqctl.formats.local.consume_queue import FILLER, UnitRecord
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.search import LAST, first_from

_PAGE = 1024
"""Maximum number of entries of a queue that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class QueueFault:
    """The queue offset of the first message that cannot be uploaded, and the reason."""

    queue_offset: int
    reason: str


class LocalQueue:
    """A local queue with the queue offsets ``[first, end)``, read from the offset passed to `seek`.

    ``fault``: why the queue stops before ``end``; None until the reader is at that place.
    """

    def __init__(self, view: View, queue: ConsumeQueue) -> None:
        self.topic, self.queue_id = queue.topic, queue.queue_id
        self._queue, self._view = queue, view
        bounds = view.bounds(queue)
        self.end = bounds.end
        if queue.written <= bounds.end:  # do not silently skip rows after a hole
            self.end = max(self.end, queue.disk_end)
        # A broker deletes files of rows later than files of the log.
        self.first, expired = bounds.first, view.store.log.min_offset
        if expired > 0:
            self.first = first_from(queue, self.first, self.end, expired, gap=LAST)
        queue.close()  # there may be more queues than a process can open files
        self.fault: QueueFault | None = None
        self._cursor = self.end
        self._rows: Array = np.zeros(0, layout.dtype())
        self._next_row = 0
        self._behind = 0
        self._ext: ExtReader | None = None

    @property
    def cursor(self) -> int:
        """The queue offset of the next entry."""
        return self._cursor

    def seek(self, queue_offset: int) -> None:
        """Continue at a queue offset between ``first`` and ``end``."""
        self._cursor, self._next_row, self._behind = queue_offset, 0, 0
        self._rows = self._rows[:0]

    def stop(self, queue_offset: int, reason: str) -> None:
        """Stop the queue at a queue offset, and record the reason."""
        if self.fault is None or queue_offset < self.fault.queue_offset:
            self.fault = QueueFault(queue_offset, reason)
        self.finish()

    def finish(self) -> None:
        """End the queue: no more entries are returned."""
        self._cursor, self._next_row = self.end, 0
        self._rows = self._rows[:0]

    def next_physical(self) -> int | None:
        """Return the physical offset of the next entry's message; None at the end."""
        if self._next_row >= len(self._rows):
            self._load()
        return int(self._rows["physical_offset"][self._next_row]) if len(self._rows) else None

    def take(self, limit: int) -> tuple[int, Array]:
        """Return the queue offset of the next entry, and the next entries whose messages begin
        before physical offset ``limit``.
        """
        first = self._cursor
        parts: list[Array] = []
        while (physical := self.next_physical()) is not None and physical < limit:
            rows = self._rows[self._next_row:]
            count = int(np.searchsorted(rows["physical_offset"], limit))
            parts.append(rows[:count])
            self._next_row += count
            self._cursor += count
        if len(parts) == 1:
            return first, parts[0]
        return first, np.concatenate(parts) if parts else self._rows[:0]

    def _load(self) -> None:
        self._rows, self._next_row = self._rows[:0], 0
        if self._cursor >= self.end:
            return
        wanted = min(_PAGE, self.end - self._cursor)
        rows = self._queue.units(self._cursor, wanted)
        self._queue.close()
        good = _sound(rows, self._behind)
        if good:
            self._rows = rows[:good]
            last = self._rows[-1]
            self._behind = int(last["physical_offset"]) + int(last["size"])
            return
        self.stop(self._cursor, self._why(rows))

    def _why(self, rows: Array) -> str:
        if not len(rows):
            return "no consume queue entry: a file is missing or too short"
        unit = UnitRecord(*(int(value) for value in rows[0]))
        if unit == layout.ZERO:
            return "the consume queue entry was never written"
        if unit == FILLER:
            return "the consume queue entry is padding"
        if not message.MIN_SIZE <= unit.size <= MAX_RECORD or unit.physical_offset < 0:
            return (f"the consume queue entry is damaged: physical offset {unit.physical_offset}, "
                    f"{unit.size} bytes")
        return (f"the consume queue entry points to {unit.physical_offset}, before the end of the "
                "previous message")

    def tags(self, rows: Array) -> tuple[Array, list[int]]:
        """Return the tags code of each entry, and the indexes of the entries whose extension unit
        is unreadable.
        """
        codes = rows["tags_code"].astype(np.int64)
        lost: list[int] = []
        for number in np.flatnonzero(codes <= ext.MAX_ADDRESS).tolist():
            if self._ext is None:
                self._ext = ExtReader(self._view.store, self.topic, self.queue_id)
            unit = self._ext.unit(int(codes[number]))
            if unit is None:
                lost.append(number)
            else:
                codes[number] = unit.tags_code
        if self._ext is not None:
            self._ext.close()
        return codes, lost

    def row(self, queue_offset: int) -> UnitRecord | None:
        """Return the entry at a queue offset; None outside the queue."""
        unit = None
        if self.first <= queue_offset < self.end:
            unit = self._queue.unit(queue_offset)
            self._queue.close()
        return unit

    def raw(self, queue_offset: int) -> bytes | None:
        """Return the record to which the entry at a queue offset points; None if the entry or the
        record is unreadable.
        """
        unit = self.row(queue_offset)
        if unit is None or not unit.is_valid or unit == FILLER:
            return None
        raw = self._view.store.log.raw_at(unit.physical_offset, unit.size)
        return raw if raw is not None and len(raw) == unit.size else None


def computed_tags(raw: bytes) -> int:
    """Return the tags code that a broker computes for a record. Raises: FormatError."""
    record = message.decode(raw)
    try:
        return layout.tags_code(record.topic.decode("utf-8", "replace"),
                                properties.parse(record.properties.decode("utf-8", "replace")),
                                record.store_timestamp)
    except ValueError as error:
        raise FormatError(str(error), path="properties") from None


def _sound(rows: Array, behind: int) -> int:
    """Return the number of leading entries with valid sizes and ascending physical offsets.
    ``behind``: the minimum physical offset of the first entry.
    """
    if not len(rows):
        return 0
    physical, size = rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64)
    good = (size >= message.MIN_SIZE) & (size <= MAX_RECORD) & (physical >= 0)
    good &= physical < 1 << 62
    good[0] &= physical[0] >= behind
    good[1:] &= physical[1:] >= physical[:-1] + size[:-1]
    return len(rows) if good.all() else int(good.argmin())
