"""The consume queue of one topic and queue id: entries by queue offset, and a broker's bounds.

The bounds follow the broker's recovery of a queue (spec: consumequeue.md §5-§6). The queue ends at
the first unused entry of a file. Entries whose record is not in the log do not count, and padding
entries are not messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from weakref import ref

import numpy as np

from rmqctl import vfs
from rmqctl.errors import StoreIOError
from rmqctl.formats.local import consume_queue as layout
from rmqctl.formats.local.consume_queue import FILLER, UNIT, UNIT_SIZE, UnitRecord
from rmqctl.scan.frames import Array, used_length
from rmqctl.scan.holes import PAGE, data_end, used_end
from rmqctl.scan.source import FileSource, read_short
from rmqctl.store.files import StoreFile, Trouble, common_size

_PAGE = 1 << 20
_FIRST_PAGE = 4096
"""Number of bytes of a file's first page, and of the first read at its start."""
_FEW = 32 * UNIT_SIZE
"""Maximum number of bytes of entries that are examined without an array."""
_ZEROS = bytes(UNIT_SIZE)
_EDGES = 4
"""Maximum number of entries of a queue that are cached decoded."""
_LAST, _PROBES = 20 * UNIT_SIZE, 16
"""Limits for files whose end was found by sampling.

* ``_LAST``: number of bytes to read before that end, to check it.
* ``_PROBES``: number of units that each step of a search for a physical offset reads at once.
"""
MAX_OPEN = 128
"""Maximum number of queues that keep a file open: a process may have only 1,024 descriptors."""
_opened: deque[ref[FileQueue]] = deque()
_PAGE_OF_ONE = 200 * UNIT_SIZE
"""Number of bytes that are read around a single entry, because adjacent entries are usually
requested next.
"""
MAX_KEPT = 32 << 20
"""Maximum number of bytes of entries that all queues together cache."""


class ConsumeQueue:
    """The entries of one topic and queue, in files or in RocksDB. Read-only.

    An entry is a unit of 20 bytes, found by its queue offset; an entry that was never written reads
    as zeros. `FileQueue` reads entries from files, `rmqctl.store.rocksdb.queues.RocksQueue` from a
    database.

    * ``exists``: whether any part of the queue exists.
    * ``folder``: its path.
    * ``files``: its files, if it has any.
    * ``troubles``: its unusable parts.
    """

    file_size = 0
    in_rocksdb = False
    why_unread = ""
    """The reason why requested entries could not be read and are returned as zeros; "" if all
    were read."""

    def __init__(self, topic: str, queue_id: int, folder: str, files: list[StoreFile],
                 troubles: list[Trouble]) -> None:
        self.topic, self.queue_id, self.folder = topic, queue_id, folder
        self.files, self.troubles = files, troubles

    def is_unread(self, queue_offset: int) -> bool:
        """Return whether a requested entry could not be read."""
        return False

    @property
    def exists(self) -> bool:
        raise NotImplementedError

    def units(self, first: int, count: int) -> Array:
        """Return the entries ``[first, first + count)`` as a structured array. Raises:
        StoreIOError.

        The array ends early at a missing file or at the end of the queue.
        """
        raise NotImplementedError

    def timed_units(self, first: int, count: int) -> Array:
        """Return entries for readers that continue after damage.

        Entries in a damaged block are returned as zeros. Entries in RocksDB have store times, in
        the last field (``store_timestamp``, ms).
        """
        return self.units(first, count)

    def close(self) -> None:
        """Close the open files. The queue can still be read afterwards."""

    def unit(self, queue_offset: int) -> UnitRecord | None:
        """Return one entry; None outside the files."""
        if queue_offset < 0:
            return None
        rows = self.units(queue_offset, 1)
        if not len(rows):
            return None
        return UnitRecord(*(int(value) for value in rows[0]))

    def noted_time(self, queue_offset: int) -> int | None:
        """Return the store time (ms) in an entry; None for a queue in files, whose entries have
        none.
        """

    def pages(self, first: int, end: int, page: int = _PAGE // UNIT_SIZE) -> Iterator[
            tuple[int, Array]]:
        """Yield (queue offset of the first entry, entries) for each page of ``[first, end)``; the
        size of a page is limited.
        """
        number = first
        while number < end:
            rows = self.units(number, min(page, end - number))
            if not len(rows):
                return
            yield number, rows
            number += len(rows)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """The ranges (first, end) of queue offsets that a broker checks separately.

        Each file is one range. A queue without files is a single range.
        """
        raise NotImplementedError

    def parts(self, page: int) -> Iterator[tuple[int, int]]:
        """Yield (first, count) of ranges with at most ``page`` entries that together cover the
        queue; unreadable parts are omitted.
        """
        raise NotImplementedError

    def next_row(self, first: int, end: int) -> int:
        """Return the first queue offset in ``[first, end)`` that has an entry in RocksDB; ``end``
        if no entry exists.
        """
        raise NotImplementedError

    # -- where the rows end and begin ---------------------------------------------------------

    @property
    def first_index(self) -> int:
        """The queue offset of the first entry on disk; earlier entries have expired."""
        raise NotImplementedError

    @property
    def written(self) -> int:
        """The queue offset after the last entry that a broker's recovery accepts."""
        raise NotImplementedError

    @property
    def disk_end(self) -> int:
        """The queue offset after the last nonzero entry on disk, even if entries before it are
        missing.
        """
        raise NotImplementedError

    @property
    def valid_end(self) -> int:
        """The queue offset after the last valid entry on disk, even if entries before it are
        missing.
        """
        return self.written

    def note_valid(self, end: int) -> None:
        """Remember that the caller has read all entries before ``end``, the end of the queue, and
        that they are valid.
        """

    def late_unit(self) -> UnitRecord | None:
        """Return a late unit of the queue: the last one if it is found without reading the queue,
        otherwise the last one that a recovery finds; None without such a unit.
        """
        return self.unit(self.written - 1)

    def valid_bytes(self, number: int) -> int:
        """Return the length in bytes of the valid units at the start of a file.

        Raises: StoreIOError.
        """
        raise NotImplementedError

    def recovered_end(self, log_end: int) -> int:
        """Return the queue offset after the last entry that a broker keeps when it truncates the
        log at ``log_end``.
        """
        raise NotImplementedError

    def cut_at(self, log_end: int) -> int | None:
        """Return the end to which a broker resets a queue in RocksDB when it truncates the log.

        ``log_end``: the new end of the log. None if the broker does not change the queue.
        """
        raise NotImplementedError

    def filler_end(self) -> int:
        """Return the queue offset of the first entry that is not a padding entry."""
        filler = np.array([tuple(FILLER)], layout.dtype())[0]
        for first, rows in self.pages(self.first_index, self.written):
            other = np.flatnonzero(rows != filler)
            if len(other):
                return first + int(other[0])
        return self.written

    def first_kept(self, end: int, log_min: int, generation: int) -> int:
        """Return the queue's min offset by a broker's rule, if the log begins at ``log_min``.

        The result is the queue offset of the first entry before ``end`` whose record has not
        expired. ``generation``: 4 or 5.
        """
        raise NotImplementedError

    def max_physical(self, end: int) -> int:
        """Return the physical offset up to which the log was dispatched: the end of the record of
        entry ``end - 1``. -1 if that entry does not exist.
        """
        last = self.unit(end - 1) if end > 0 else None
        return last.physical_offset + last.size if last is not None and last.is_valid else -1


class FileQueue(ConsumeQueue):
    """A queue in files: an entry's queue offset is its byte offset in the stream of files, divided
    by 20.
    """

    kept = 0
    """Number of bytes of entries that all queues together have cached."""

    def __init__(self, topic: str, queue_id: int, folder: str, files: list[StoreFile],
                 troubles: list[Trouble], file_size: int | None = None) -> None:
        super().__init__(topic, queue_id, folder, files, troubles)
        self.file_size = file_size or common_size(files) or layout.DEFAULT_FILE_SIZE
        self._bases = [file.base for file in files]
        self._source: tuple[int, FileSource] | None = None
        self._written: int | None = None
        self._valid: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._edges: dict[int, UnitRecord] = {}
        """The queue's first and last entry by queue offset, once they have been found. For most
        queues of a broker, no other entries are read.
        """
        self._rows: dict[int, bytes] = {}
        """All entries of each file that has only a few entries, by file index.

        If a broker has many queues, most files have few entries. Written entries do not change, so
        they need not be read again.
        """
        self._leading: dict[int, bytes] = {}
        """Valid entries at the start of each file with many entries, by file index."""
        self._page: tuple[int, int, bytes] | None = None
        """The last page from which a single entry was read: number of the file, position in the
        file, bytes."""
        self._lender: FileQueue | None = None

    def __del__(self) -> None:
        if self._lender is None:
            for kept in (self._rows, self._leading):
                type(self).kept -= sum(map(len, kept.values()))
        if self._page is not None:
            type(self).kept -= len(self._page[2])

    def again(self) -> FileQueue:
        """Return a copy of this queue for another thread, with its own open files and the same
        cache.
        """
        other = FileQueue(self.topic, self.queue_id, self.folder, self.files, self.troubles,
                          self.file_size)
        other._valid, other._used, other._edges = self._valid, self._used, self._edges
        other._rows, other._leading = self._rows, self._leading
        other._written, other._lender = self._written, self
        return other

    @property
    def exists(self) -> bool:
        return bool(self.files)

    def _open(self, number: int) -> FileSource:
        held = self._source
        if held is None or held[0] != number:
            held = self._source = number, self.files[number].open()
            _opened.append(ref(self))
            while len(_opened) > MAX_OPEN:
                oldest = _opened.popleft()()
                if oldest is not None and oldest is not self:
                    # Another thread may read from it: it is closed when no thread does any more.
                    oldest._source = None
        return held[1]

    def close(self) -> None:
        if self._source is not None:
            self._source[1].close()
            self._source = None

    def units(self, first: int, count: int) -> Array:
        parts: list[bytes] = []
        position, end = first * UNIT_SIZE, (first + count) * UNIT_SIZE
        while position < end:
            number = bisect_right(self._bases, position) - 1
            if number < 0 or position >= self.files[number].end:
                break
            file, kept = self.files[number], self._kept(number)
            last = min(end, file.end) - file.base
            data = kept[position - file.base:last] if kept is not None and last <= len(kept) else (
                self._open(number).read(position - file.base, last + file.base - position))
            used = len(data) - len(data) % UNIT_SIZE
            parts.append(data[:used])
            if used < min(end, file.end) - position:
                break
            position = file.end
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), layout.dtype())

    @property
    def stretches(self) -> list[tuple[int, int]]:
        return [(file.base // UNIT_SIZE, file.end // UNIT_SIZE) for file in self.files]

    def parts(self, page: int) -> Iterator[tuple[int, int]]:
        for number, file in enumerate(self.files):
            try:
                count = self.used_bytes(number) // UNIT_SIZE
            except StoreIOError:
                continue
            for first in range(0, count, page):
                yield file.base // UNIT_SIZE + first, min(page, count - first)

    @property
    def first_index(self) -> int:
        return self.files[0].base // UNIT_SIZE if self.files else 0

    @property
    def written(self) -> int:
        """The end of the queue according to a broker's recovery.

        A recovery reads only the last three files, unit by unit, up to the first invalid unit.
        """
        if self._written is None:
            self._written = self._find_written()
        return self._written

    @property
    def valid_end(self) -> int:
        for number in range(len(self.files) - 1, -1, -1):
            file, rows = self.files[number], self._rows.get(number)
            if rows is not None:  # all entries of the file
                good = np.flatnonzero(valid(UNIT.array(rows)))
                if len(good):
                    return file.base // UNIT_SIZE + int(good[-1]) + 1
                continue
            source = self._open(number)
            if source.sampled_end is not None:
                return self.written
            # Bytes after the last valid unit are a torn one, or garbage.
            high = self.used_bytes(number)
            while high > 0:
                low = max(high - _FIRST_PAGE // UNIT_SIZE * UNIT_SIZE, 0)
                good = np.flatnonzero(valid(UNIT.array(source.read(low, high - low))))
                if len(good):
                    return (file.base + low) // UNIT_SIZE + int(good[-1]) + 1
                high = low
        return self.first_index

    def note_valid(self, end: int) -> None:
        for number, file in enumerate(self.files):
            size = file.size - file.size % UNIT_SIZE
            self._valid.setdefault(number, min(max(end * UNIT_SIZE - file.base, 0), size))

    def _find_written(self) -> int:
        end = 0
        for number in range(max(0, len(self.files) - 3), len(self.files)):
            file = self.files[number]
            used = self.valid_bytes(number)
            end = file.base + used
            if used < min(file.size, self.file_size):
                break
        return end // UNIT_SIZE

    def valid_bytes(self, number: int) -> int:
        used = self._valid.get(number)
        if used is None and (rows := self._rows.get(number)) is not None:
            used = self._valid[number] = _leading(rows)
        if used is None:
            rows = self._few(number)
            file, source = self.files[number], None if rows is not None else self._open(number)
            sampled = 0 if source is None else self._sampled(source)
            if source is not None and sampled:
                used = sampled
                self._note_edges(source, file.base, used)
            elif source is not None:
                kept: list[bytes] = []
                used = valid_prefix(source, file.size, kept, MAX_KEPT // 2 - FileQueue.kept)
                if kept:
                    self._leading[number] = b"".join(kept)
                    FileQueue.kept += used
                elif used:
                    self._note_edges(source, file.base, used)
            else:
                used = _leading(rows or b"")
            self._valid[number] = used
        return used

    def _sampled(self, source: FileSource) -> int:
        """Return the length in bytes of the valid units at the start of a sampled file; 0 if the
        file must be read.
        """
        end = source.sampled_end
        if end is None or end <= 2 * _LAST:
            return 0
        data = source.read(end - _LAST, _LAST)
        good = _leading(data)
        return end - _LAST + good if good and not any(data[good:]) else 0

    def used_bytes(self, number: int) -> int:
        """Return the length in bytes of a file up to and including its last nonzero unit.

        Raises: StoreIOError.
        """
        used = self._used.get(number)
        if used is None:
            if self._few(number) is None:
                self._used[number] = last_used(self._open(number), self.files[number].size)
            used = self._used[number]
        return used

    def _few(self, number: int) -> bytes | None:
        """Return all entries of a file if they fit into its first page; None if more data
        follows.
        """
        rows = self._rows.get(number)
        if rows is None and FileQueue.kept < MAX_KEPT:
            file, data = self.files[number], None
            if file.limit is None and self._source is None:
                data = read_short(file.path, file.size, _FIRST_PAGE, _FIRST_PAGE + UNIT_SIZE)
            if data is None:
                source = self._open(number)
                if file.size > _FIRST_PAGE and source.next_data(_FIRST_PAGE) < file.size:
                    return None
                data = source.read(0, min(file.size, _FIRST_PAGE + UNIT_SIZE))
            rows = self._rows[number] = _used_units(data)
            self._used[number] = len(rows)
            FileQueue.kept += len(rows)
        return rows

    def _kept(self, number: int) -> bytes | None:
        """Return the cached entries at the start of a file; None if none of them are cached."""
        return self._rows.get(number, self._leading.get(number))

    def _note_edges(self, source: FileSource, base: int, used: int) -> None:
        for position in {0 if base == self.files[0].base else used - UNIT_SIZE, used - UNIT_SIZE}:
            self._edges[(base + position) // UNIT_SIZE] = layout.decode(
                source.read(position, UNIT_SIZE))

    def unit(self, queue_offset: int) -> UnitRecord | None:
        edge = self._edges.get(queue_offset)
        if edge is None and (self._rows or self._leading) and queue_offset >= 0:
            number = bisect_right(self._bases, queue_offset * UNIT_SIZE) - 1
            kept = self._kept(number) or b""  # nothing is kept before the first file
            position = queue_offset * UNIT_SIZE - self._bases[number]
            if position + UNIT_SIZE <= len(kept) and number >= 0:
                unit = layout.decode(kept, position)
                if len(self._edges) < _EDGES:
                    self._edges[queue_offset] = unit
                return unit
        if edge is None and queue_offset >= 0:
            edge = self._of_page(queue_offset * UNIT_SIZE)
        return super().unit(queue_offset) if edge is None else edge

    def _of_page(self, at: int) -> UnitRecord | None:
        """Return the entry at a byte offset of the queue, from the cached page around this offset.

        None if the page has no valid entry there: the entry may have been written after the page
        was read.
        """
        number = bisect_right(self._bases, at) - 1
        position = at - self._bases[number] if number >= 0 else -1
        if position < 0 or position % UNIT_SIZE or position >= self.files[number].size:
            return None
        held, start = self._page, position - position % _PAGE_OF_ONE
        if held is None or held[:2] != (number, start):
            if held is None and FileQueue.kept + _PAGE_OF_ONE > MAX_KEPT:
                return None
            try:
                data = self._open(number).read(start, _PAGE_OF_ONE)
            except StoreIOError:
                return None
            FileQueue.kept += len(data) - len(held[2] if held else b"")
            held = self._page = number, start, data
        inside = position - start
        if inside + UNIT_SIZE > len(held[2]):
            return None
        unit = layout.decode(held[2], inside)
        return unit if unit.is_valid else None

    @property
    def disk_end(self) -> int:
        for number in range(len(self.files) - 1, -1, -1):
            file = self.files[number]
            used = self.used_bytes(number)
            if used:
                return (file.base + used) // UNIT_SIZE
        return self.first_index

    def late_unit(self) -> UnitRecord | None:
        number = len(self.files) - 1
        is_sampled = bool(self.files) and vfs.reader_of(self.files[number].path) is not None and (
            self._open(number).sampled_end is not None)
        if self.files and not is_sampled and self._few(number) is None:
            source = self._open(number)
            # If a hole follows the entries, the last one is just before it.
            end = data_end(source, 0, source.size)
            start = max(end - PAGE, 0)
            if used := used_length(source.read(start, end - start)):
                unit = self.unit((self.files[-1].base + start + used - 1) // UNIT_SIZE)
                if unit is not None and unit.is_valid:
                    return unit
        return super().late_unit()

    def recovered_end(self, log_end: int) -> int:
        return self.written if self.max_physical(self.written) <= log_end else self.truncated(
            log_end)

    def truncated(self, log_end: int) -> int:
        """Return the queue offset after the last entry that a broker keeps.

        The broker truncates its log at ``log_end`` (spec: consumequeue.md §6). Its
        truncateDirtyLogicFiles accepts the first unit of a file without checking its size.
        """
        for number in range(len(self.files) - 1, -1, -1):
            file = self.files[number]
            kept = self._kept(number)
            if kept is None:
                source = self._open(number)
                used = data_end(source, 0, file.size) + 2 * UNIT_SIZE  # and an invalid unit
                data = source.read(0, min(used, file.size))
            else:
                data = kept.ljust(min(len(kept) + UNIT_SIZE, file.size), b"\0")
            if len(data) <= _FEW:
                good_rows = 0
                for physical_offset, size, _ in UNIT.values(data[:len(data) // UNIT_SIZE
                                                                 * UNIT_SIZE]):
                    # All but the first have to be valid, as for `UnitRecord.is_valid`.
                    if physical_offset >= log_end or (
                            good_rows and (physical_offset < 0 or size <= 0)):
                        break
                    good_rows += 1
                if good_rows:
                    return (file.base // UNIT_SIZE) + good_rows
                continue
            rows = UNIT.array(data)
            if not len(rows) or int(rows[0]["physical_offset"]) >= log_end:
                continue
            good = valid(rows) & (rows["physical_offset"] < log_end)
            good[0] = True
            good_rows = len(rows) if good.all() else int(good.argmin())
            return (file.base // UNIT_SIZE) + good_rows
        return 0

    def first_kept(self, end: int, log_min: int, generation: int) -> int:
        if not self.files:
            return 0
        first = self.first_index
        unit = self.unit(first)
        if unit is None or end <= first:
            return first if generation < 5 else end
        if unit.is_filler and generation >= 5:
            first = self.filler_end()
        return first if log_min == 0 else self._corrected(first, end, log_min, generation)

    def _corrected(self, first: int, end: int, log_min: int, generation: int) -> int:
        """Return the result of a broker's correctMinOffset.

        The result is the queue offset of the first entry in the first file whose record has not
        expired.
        """
        last = self.unit(end - 1)
        if generation >= 5 and last is not None and last.physical_offset < log_min:
            return end
        limit = min(self.files[0].end // UNIT_SIZE, end)
        low, high = self._narrowed(first, limit, log_min)
        for number, rows in self.pages(low, high):
            inside = (rows["physical_offset"] >= log_min).nonzero()[0]
            if len(inside):
                return number + int(inside[0])
        return first

    def _narrowed(self, first: int, end: int, log_min: int) -> tuple[int, int]:
        """Return the range of entries of the first file that must be read to find ``log_min``.

        The range includes the first entry at or after ``log_min``. For a sampled file, the entries
        are assumed to be in the order of the log, and bisection narrows the range. For other files,
        the range is the entire file.
        """
        file, source = self.files[0], self._open(0)
        low, high = first, end
        while source.sampled_end is not None and high - low > 2 * _PROBES:
            step = -(-(high - low) // (_PROBES + 1))
            asked = range(low + step, high, step)
            rows = source.gather([(row * UNIT_SIZE - file.base, UNIT_SIZE) for row in asked])
            below = [row for row, raw in zip(asked, rows, strict=True)
                     if layout.decode(raw).physical_offset < log_min]
            low = max(below, default=low)
            high = min(low + step, high)
        return low, min(high + 1, end)


def plain_units(rows: Array) -> Array:
    """Return the 20-byte unit at the start of each entry. The entries have the form of those from
    `ConsumeQueue.timed_units`.
    """
    raw = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, rows.itemsize)
    units: Array = np.ascontiguousarray(raw[:, :UNIT_SIZE]).view(layout.dtype()).reshape(-1)
    return units


def valid(rows: Array) -> Array:
    """Return a boolean array: whether a broker accepts each unit as valid."""
    mask: Array = (rows["physical_offset"] >= 0) & (rows["size"] > 0)
    return mask


def _used_units(data: bytes) -> bytes:
    """Return the complete units of ``data`` up to the last one with a nonzero byte."""
    data = data[:len(data) - len(data) % UNIT_SIZE]
    end = data.find(_ZEROS)
    # Usually, only zeros follow the first zeros: comparing is faster than searching from the end.
    if end < 0 or data[end:] != bytes(len(data) - end):
        end = len(data)
    return data[:-(-len(data[:end].rstrip(b"\0")) // UNIT_SIZE) * UNIT_SIZE]


def _leading(data: bytes) -> int:
    """Return the length in bytes of the valid units at the start of ``data``."""
    if len(data) <= _FEW:
        for number, (physical_offset, size, _) in enumerate(UNIT.values(data)):
            if physical_offset < 0 or size <= 0:  # as `UnitRecord.is_valid`
                return number * UNIT_SIZE
        return len(data)
    good = valid(np.frombuffer(data, UNIT.dtype()))
    return len(data) if good.all() else int(good.argmin()) * UNIT_SIZE


def valid_prefix(source: FileSource, size: int, kept: list[bytes], room: int) -> int:
    """Return the length in bytes of the valid units at the start of a consume queue file.

    If this length is at most ``room``, the units are added to ``kept``.
    """
    # Zeros follow the data, and a zero unit is invalid: one of them is enough.
    size = min(size, data_end(source, 0, size) + UNIT_SIZE)
    position, page = 0, _FIRST_PAGE
    while position < size:
        data = source.read(position, min(page, size - position))
        used = len(data) - len(data) % UNIT_SIZE
        good = _leading(data[:used]) if used else 0
        if position + good > room:
            kept.clear()
            room = -1
        elif good:
            kept.append(data[:good])
        if not used or good < used:
            return position + good
        position, page = position + used, min(page * 4, _PAGE)
    return position


def last_used(source: FileSource, size: int) -> int:
    """Return the length in bytes of a consume queue file up to and including its last nonzero
    unit.
    """
    end = size - size % UNIT_SIZE
    return min(-(-used_end(source, 0, end) // UNIT_SIZE) * UNIT_SIZE, end)
