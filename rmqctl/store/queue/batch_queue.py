"""The batch consumequeue of a topic and queue (46-byte units; spec: consumequeue.md §9)."""

from __future__ import annotations

import numpy as np

from rmqctl.formats.local import batch_consume_queue as layout
from rmqctl.formats.local.batch_consume_queue import UNIT_SIZE, UnitRecord
from rmqctl.scan.frames import Array
from rmqctl.store.files import StoreFile, Trouble, common_size

_PIECE = UNIT_SIZE << 14


class BatchQueue:
    """The entries of a batch consumequeue, each of which covers several queue offsets. Read-only.

    Files are read completely: a queue has few of them, and they are small (13.8 MB).
    """

    def __init__(self, topic: str, queue_id: int, folder: str, files: list[StoreFile],
                 troubles: list[Trouble], file_size: int | None = None) -> None:
        self.topic, self.queue_id, self.folder = topic, queue_id, folder
        self.files, self.troubles = files, troubles
        self.file_size = file_size or common_size(files) or layout.DEFAULT_FILE_SIZE

    @property
    def exists(self) -> bool:
        """Return whether a file of the queue exists."""
        return bool(self.files)

    def rows_of(self, number: int) -> Array:
        """Return all entries of file ``number``, used or not; a hole in the file is one entry."""
        parts, place = [], 0
        with self.files[number].open() as source:
            while place < source.size:
                data_at = source.next_data(place)
                data_at = max(place, data_at - data_at % UNIT_SIZE)
                if data_at > place:
                    parts.append(bytes(UNIT_SIZE))
                parts.append(source.read(data_at, min(_PIECE, source.size - data_at)))
                place = data_at + _PIECE
        return layout.UNIT.array(b"".join(parts))

    def used(self, number: int, log_end: int | None = None) -> Array:
        """Return the valid entries at the start of file ``number``; with ``log_end``, only those
        whose record starts before that offset.
        """
        rows = self.rows_of(number)
        good = valid(rows)
        if log_end is not None:
            good &= rows["physical_offset"] < log_end
        return rows if good.all() else rows[:int(good.argmin())]

    def all_used(self, log_end: int | None = None) -> Array:
        """Return the used entries of all files, up to the first unused entry."""
        parts = []
        for number in range(len(self.files)):
            rows = self.used(number, log_end)
            parts.append(rows)
            if len(rows) * UNIT_SIZE < self.file_size:
                break
        return np.concatenate(parts) if parts else np.zeros(0, layout.dtype())

    def bounds(self, log_min: int, log_end: int | None = None) -> tuple[int, int]:
        """Return (min offset, max offset) of the queue; (0, 0) if the queue is empty.

        The min offset is that of the first entry whose record has not expired.
        """
        rows = self.all_used(log_end)
        if not len(rows):
            return 0, 0
        most = int(rows[-1]["msg_base_offset"]) + int(rows[-1]["batch_size"])
        inside = np.flatnonzero(rows["physical_offset"] >= log_min)
        least = int(rows[inside[0]]["msg_base_offset"]) if len(inside) else most
        return least, most

    def find(self, queue_offset: int, log_end: int | None = None) -> UnitRecord | None:
        """Return the entry that covers a queue offset; None outside the queue."""
        rows = self.all_used(log_end)
        number = int(np.searchsorted(rows["msg_base_offset"], queue_offset, "right")) - 1
        if number < 0:
            return None
        row = UnitRecord(*(int(value) for value in rows[number]))
        return row if queue_offset < row.next_offset else None


def valid(rows: Array) -> Array:
    """Return a boolean array: whether a broker accepts each unit as valid."""
    mask: Array = ((rows["physical_offset"] >= 0) & (rows["size"] > 0)
                   & (rows["msg_base_offset"] >= 0) & (rows["batch_size"] > 0))
    return mask
