"""One queue's consumequeue: rows by queue offset, bounds as a broker sees them.

``bounds`` follows the broker's recovery of a queue (spec: consumequeue.md §5-§6): the unused
rest of a file ends it, rows whose record is not in the log are no rows, fillers are no messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from rmqctl.formats.local import consume_queue as layout
from rmqctl.formats.local.consume_queue import FILLER, UNIT, UNIT_SIZE, UnitRecord
from rmqctl.scan.frames import Array, used_length
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, Trouble, common_size

_PAGE = 1 << 20


class ConsumeQueue:
    """The rows of one topic and queue (plain 20-byte units). Read-only.

    A row's queue offset is its byte offset in the stream over 20, whatever it holds.
    """

    def __init__(self, topic: str, queue_id: int, folder: str, files: list[StoreFile],
                 troubles: list[Trouble], file_size: int | None = None) -> None:
        self.topic, self.queue_id, self.folder = topic, queue_id, folder
        self.files, self.troubles = files, troubles
        self.file_size = file_size or common_size(files) or layout.DEFAULT_FILE_SIZE
        self._bases = [file.base for file in files]
        self._source: tuple[int, FileSource] | None = None
        self._written: int | None = None

    # -- raw rows ---------------------------------------------------------------------------

    def _open(self, number: int) -> FileSource:
        if self._source is None or self._source[0] != number:
            self.close()
            file = self.files[number]
            self._source = number, file.open()
        return self._source[1]

    def close(self) -> None:
        if self._source is not None:
            self._source[1].close()
            self._source = None

    def units(self, first: int, count: int) -> Array:
        """Rows ``[first, first + count)`` as a structured array; stops at a hole or the end."""
        parts: list[bytes] = []
        position, end = first * UNIT_SIZE, (first + count) * UNIT_SIZE
        while position < end:
            number = bisect_right(self._bases, position) - 1
            if number < 0 or position >= self.files[number].end:
                break
            file = self.files[number]
            data = self._open(number).read(position - file.base, min(end, file.end) - position)
            used = len(data) - len(data) % UNIT_SIZE
            parts.append(data[:used])
            if used < min(end, file.end) - position:
                break
            position = file.end
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), layout.dtype())

    def unit(self, queue_offset: int) -> UnitRecord | None:
        """One row; None outside the files."""
        if queue_offset < 0:
            return None
        rows = self.units(queue_offset, 1)
        if not len(rows):
            return None
        return UnitRecord(*(int(value) for value in rows[0]))

    def pages(self, first: int, end: int, page: int = _PAGE // UNIT_SIZE) -> Iterator[
            tuple[int, Array]]:
        """(queue offset of the first, rows) over ``[first, end)``, a bounded page at a time."""
        number = first
        while number < end:
            rows = self.units(number, min(page, end - number))
            if not len(rows):
                return
            yield number, rows
            number += len(rows)

    # -- where the rows end and begin ---------------------------------------------------------

    @property
    def first_index(self) -> int:
        """The queue offset of the first row on disk (expired files are gone)."""
        return self.files[0].base // UNIT_SIZE if self.files else 0

    @property
    def written(self) -> int:
        """The queue offset behind the last used row, as a broker's recovery finds it.

        It looks at the last three files only, unit by unit, up to the first that is not valid.
        """
        if self._written is None:
            self._written = self._find_written()
        return self._written

    def _find_written(self) -> int:
        end = 0
        for number in range(max(0, len(self.files) - 3), len(self.files)):
            file = self.files[number]
            source = self._open(number)
            used = valid_prefix(source, file.size)
            end = file.base + used
            if used < min(file.size, self.file_size):
                break
        return end // UNIT_SIZE

    @property
    def disk_end(self) -> int:
        """The queue offset behind the last unit on disk that is not zero, gaps or not."""
        for number in range(len(self.files) - 1, -1, -1):
            file = self.files[number]
            used = last_used(self._open(number), file.size)
            if used:
                return (file.base + used) // UNIT_SIZE
        return self.first_index

    def filler_end(self) -> int:
        """The first row that is no filler (fillers keep the place of rows never written)."""
        filler = np.array([tuple(FILLER)], layout.dtype())[0]
        for first, rows in self.pages(self.first_index, self.written):
            other = np.flatnonzero(rows != filler)
            if len(other):
                return first + int(other[0])
        return self.written

    def truncated(self, log_end: int) -> int:
        """The queue offset behind the last row a broker keeps when its log ends at ``log_end``.

        spec: consumequeue.md §6, truncateDirtyLogicFiles; including its habit of accepting the
        first unit of a file without looking at its size.
        """
        for number in range(len(self.files) - 1, -1, -1):
            file = self.files[number]
            data = self._open(number).read(0, file.size)
            rows = UNIT.array(data)
            if not len(rows) or int(rows[0]["physical_offset"]) >= log_end:
                continue
            good = valid(rows) & (rows["physical_offset"] < log_end)
            good[0] = True
            good_rows = len(rows) if good.all() else int(good.argmin())
            return (file.base // UNIT_SIZE) + good_rows
        return 0

    def max_physical(self, end: int) -> int:
        """Physical offset + size of row ``end - 1``: how far the log was dispatched; -1 if none."""
        last = self.unit(end - 1) if end > 0 else None
        return last.physical_offset + last.size if last is not None and last.is_valid else -1


def valid(rows: Array) -> Array:
    """The broker's test of a unit, by column."""
    mask: Array = (rows["physical_offset"] >= 0) & (rows["size"] > 0)
    return mask


def valid_prefix(source: FileSource, size: int) -> int:
    """Bytes of the leading run of valid units in a consumequeue file."""
    position = 0
    while position < size:
        if source.next_data(position) >= size:
            return position
        data = source.read(position, min(_PAGE - _PAGE % UNIT_SIZE, size - position))
        used = len(data) - len(data) % UNIT_SIZE
        if not used:
            return position
        good = valid(np.frombuffer(data[:used], UNIT.dtype()))
        if not good.all():
            return position + int(good.argmin()) * UNIT_SIZE
        position += used
    return position


def last_used(source: FileSource, size: int) -> int:
    """Bytes up to and with the last unit that is not all zero in a consumequeue file."""
    end = size - size % UNIT_SIZE
    page = _PAGE - _PAGE % UNIT_SIZE
    starts = []
    position = 0
    while position < end:
        next_used = source.next_data(position)
        if next_used >= end:
            break
        position = next_used - next_used % UNIT_SIZE
        starts.append(position)
        position += page
    for start in reversed(starts):
        used = used_length(source.read(start, min(page, end - start)))
        if used:
            return min(start + -(-used // UNIT_SIZE) * UNIT_SIZE, end)
    return 0
