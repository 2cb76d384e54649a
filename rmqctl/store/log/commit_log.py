"""The commitlog of a store as one stream of physical offsets over its files.

A multi-path log consists of the files of all its folders, sorted by file name (commitlog.md §1).
Gaps (missing files) and expired files at the start are not errors here. `records_at` reads many
records by their offsets: one read covers all records that are close to each other.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.message import MIN_SIZE, START_SIZE, Record, decode, total_size_at
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import BLANK, Array, Batch, distinct, examine
from rmqctl.scan.resync import MAX_RECORD, is_blank
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk, start_of
from rmqctl.store.files import StoreFile, common_size

_WINDOW = 4 << 20
_LONG_MAX = (1 << 63) - 1
_NEAR = 64 << 10
"""Two records are read together if at most this many bytes are between them."""
_FEW_APART = 4
"""Records are read from a memory mapping if more than one record in this many is not adjacent to
the previous record.
"""


@dataclass(frozen=True, slots=True)
class Gap:
    """Physical offsets ``[start, end)`` that no file covers, between two files."""

    start: int
    end: int


class CommitLog:
    """The commitlog files as one read-only stream. A file is opened at its first access."""

    def __init__(self, files: list[StoreFile], file_size: int | None = None) -> None:
        self.files = sorted(files, key=lambda file: (file.name, file.path))
        self.file_size = file_size or common_size(self.files) or 1 << 30
        self._bases = [file.base for file in self.files]
        self._end = max((file.end for file in self.files), default=0)
        self._open: dict[int, FileSource] = {}
        self._zeros_from: Sequence[int] = ()
        self._something_at, self._nothing_from = -1, math.inf
        """Cached results of `has_record_from`: the offset of the last found record, and an offset
        from which no record starts.
        """

    def zeros_from(self, positions: Sequence[int]) -> None:
        """For each file: the position after which all bytes are known to be zero and are not read
        again.
        """
        self._zeros_from = positions

    @property
    def min_offset(self) -> int:
        """Physical offset of the first file; 0 if there are no files (an empty log)."""
        return self.files[0].base if self.files else 0

    @property
    def end(self) -> int:
        """The physical offset after the last file, whether that file is used or not."""
        return self._end

    @property
    def size(self) -> int:
        """The total size of all files in bytes."""
        return sum(file.size for file in self.files)

    def gaps(self) -> list[Gap]:
        return [Gap(a.end, b.base) for a, b in zip(self.files, self.files[1:], strict=False)
                if a.end < b.base]

    def source(self, number: int) -> FileSource:
        """Return the opened source of file ``number``. At most 16 files are kept open."""
        source = self._open.pop(number, None)
        if source is None:
            if len(self._open) >= 16:
                self._open.pop(next(iter(self._open))).close()
            source = self.files[number].open()
            if number < len(self._zeros_from):
                source.zeros_from = self._zeros_from[number]
        self._open[number] = source
        return source

    def let_go(self, start: int, end: int) -> None:
        """Release the memory of the mapped physical offsets ``[start, end)``."""
        for source in self._open.values():
            source.let_go(start - source.base, end - source.base)

    def locate(self, physical: int) -> tuple[FileSource, int] | None:
        """Return (source, position in that source) for a physical offset; None in gaps and outside
        the log.
        """
        number = bisect_right(self._bases, physical) - 1
        if number < 0 or physical >= self.files[number].end:
            return None
        source = self.source(number)
        return source, physical - source.base

    def file_of(self, physical: int) -> StoreFile | None:
        number = bisect_right(self._bases, physical) - 1
        if number < 0 or physical >= self.files[number].end:
            return None
        return self.files[number]

    def record_at(self, physical: int, size: int | None = None) -> Record | None:
        """Return the record that starts at ``physical``; None if no record does. Never raises for
        damage on disk.

        ``size`` (from a consumequeue) saves a read; the record must have this size. The body CRC is
        not checked (`Record.crc_ok`).
        """
        raw = self.raw_at(physical, size)
        if raw is None:
            return None
        try:
            record = decode(raw)
        except FormatError:
            return None
        if record.physical_offset != physical or (size is not None and record.total_size != size):
            return None
        return record

    def raw_at(self, physical: int, size: int | None = None) -> bytes | None:
        """Return the bytes of the record at ``physical``: ``size`` bytes, or as many as its size
        field says.
        """
        try:
            place = self.locate(physical) if physical >= 0 else None
            if place is None:
                return None
            source, position = place
            head = source.read(position, size if size and MIN_SIZE <= size <= MAX_RECORD else 1024)
            if len(head) < START_SIZE:
                return None
            total = total_size_at(head)
            if not MIN_SIZE <= total <= min(MAX_RECORD, source.size - position):
                return None
            return head[:total] if total <= len(head) else source.read(position, total)
        except StoreIOError:
            return None

    def explain(self, physical: int) -> str:
        """Return the reason, in words, why `record_at` finds no record at ``physical``."""
        if not self.files:
            return "the store has no commitlog files"
        if physical < self.min_offset:
            return f"before the first file of the log ({self.min_offset}): expired or deleted"
        place = self.locate(physical)
        if place is None:
            return "beyond the end of the log" if physical >= self.end else "in a missing file"
        raw = self.raw_at(physical)
        if raw is None:
            return "no record there"
        try:
            record = decode(raw)
        except FormatError as error:
            return f"field {error.path}: {error.reason}"
        if record.physical_offset != physical:
            return f"the record there has physicalOffset {record.physical_offset}"
        return "a record is there"

    def walk(self, start: int = 0, end: int | None = None, *,
             whole: bool = False) -> Iterator[Batch]:
        """Yield all records (in frames) that start in ``[start, end)``, file by file, in physical
        order.

        ``start`` may be any offset; the scan starts with the first frame at or after that offset.
        For ``whole`` see `Walk`.

        Raises: StoreIOError for files that vanish or cannot be opened.
        """
        for number, file in enumerate(self.files):
            if file.end <= start or (end is not None and file.base >= end):
                continue
            source = self.source(number)
            inside = max(start - file.base, 0)
            limit = None if end is None else end - file.base - file.head
            yield from Walk(source, start_of(source, inside), limit, whole=whole)

    def record_border(self, physical: int) -> int | None:
        """Return the offset of the first provable record or blank record at or after ``physical``
        in the same file.
        """
        place = self.locate(physical)
        if place is None:
            return None
        source, position = place
        return _first_border(Walk(source, start_of(source, position)))

    def has_record_from(self, physical: int) -> bool:
        """Return whether a provable record or blank record starts at or after ``physical``, in any
        file.
        """
        # The result for one offset answers for others too: each of many queues may ask.
        if self._nothing_from <= physical or physical <= self._something_at:
            return physical <= self._something_at
        border = self.record_border(physical)
        for number in range(bisect_right(self._bases, physical), len(self.files)):
            if border is not None:
                break
            border = _first_border(Walk(self.source(number)))
        if border is None:
            self._nothing_from = physical
            return False
        self._something_at = border
        return True

    def is_blank_at(self, physical: int) -> bool:
        place = self.locate(physical)
        return place is not None and is_blank(place[0], place[1])

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()


def _first_border(walk: Walk) -> int | None:
    """Return the physical offset of the first record or blank record in a scan; None if the scan
    finds no record.
    """
    for batch in walk:
        if len(batch):
            return int(batch.offset[0])
        for span in batch.spans:
            if span.kind == BLANK:
                return span.offset
    return None


@dataclass(slots=True)
class ProofWindow:
    """Adjacent records of a request.

    ``rows``: indexes of the records in the request.
    ``is_proved``: for each record, whether it was found to be complete.
    ``batch``: only the proved records, in the order of ``rows[is_proved]``; None if the file is
    missing or unreadable.
    """

    rows: Array
    is_proved: Array
    batch: Batch | None


def records_at(log: CommitLog, offset: Array, size: Array) -> Iterator[ProofWindow]:
    """Look up the records at the physical offsets ``offset`` (ascending, unique).

    ``size``: for each record, the number of bytes to read. A larger record is not found. Each
    requested record is in exactly one of the windows that are yielded.
    """
    if not len(offset):
        return
    bases = np.array([file.base for file in log.files], np.int64)
    ends = np.array([min(file.end, _LONG_MAX) for file in log.files] or [0], np.int64)
    number = np.searchsorted(bases, offset, "right") - 1
    number[offset >= ends[number]] = -1
    cuts = np.flatnonzero(np.diff(number)) + 1
    for rows in np.split(np.arange(len(offset)), cuts):
        file = int(number[rows[0]])
        try:
            source = log.source(file) if file >= 0 else None
        except StoreIOError:
            source = None
        if source is None:
            yield ProofWindow(rows, np.zeros(len(rows), bool), None)
            continue
        yield from _in_file(source, rows, offset[rows] - source.base, size[rows])


def packed_records(log: CommitLog, offset: Array, size: Array,
                   into: Array | None = None) -> tuple[Batch, Array]:
    """Read the records at the physical offsets ``offset`` (ascending, unique), without the bytes
    between them. Return (batch, proved).

    ``batch``: all of the records in one buffer.
    ``proved``: boolean array: whether each record is complete and has exactly ``size`` bytes.
    Unreadable records, and records that extend beyond the end of their file, are not proved.
    ``into``: a reusable buffer (uint8) that is large enough for all records.
    """
    end = np.cumsum(size)
    start = end - size
    total = int(end[-1]) if len(end) else 0
    data: Array = np.empty(total, np.uint8) if into is None else into[:total]
    # A mapping is faster for scattered records, a system call for adjacent ones.
    apart = np.count_nonzero(offset[1:] != offset[:-1] + size[:-1]) > len(offset) // _FEW_APART
    is_read = (np.ones(len(offset), bool) if into is not None and apart
               and _mapped(log, offset, size, data)
               else _read_parts(log, offset, size, start, data))
    batch, ok = examine(data, offset - start, start)
    ok &= is_read
    ok &= batch.column("total_size") == size
    return batch, ok


def _mapped(log: CommitLog, offset: Array, size: Array, data: Array) -> bool:
    """Read records through a memory mapping of the one file that contains all of them; return False
    if that is not possible.
    """
    with suppress(StoreIOError):
        location = log.locate(int(offset[0])) if len(offset) else None
        if location is not None and location[0].read_records(data.data, offset, size, None):
            log.let_go(int(offset[0]), int(offset[-1] + size[-1]))
            return True
    return False


def _read_parts(log: CommitLog, offset: Array, size: Array, start: Array, data: Array) -> Array:
    """Read the records into ``data`` at ``start``; return a boolean array: whether each record
    could be read.
    """
    bases = np.array([file.base for file in log.files], np.int64)
    number = np.searchsorted(bases, offset, "right") - 1
    # Adjacent records are read at once.
    begins: Array = np.ones(len(offset), bool)
    begins[1:] = (offset[1:] != offset[:-1] + size[:-1]) | (number[1:] != number[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(offset)) - 1
    is_read: Array = np.zeros(len(offset), bool)
    # Offsets are ascending: usually one file contains all of them.
    files = number[:1] if len(number) and number[0] == number[-1] else distinct(number)
    for file in files[files >= 0].tolist():
        runs = number[first] == file
        with suppress(StoreIOError):
            source = log.source(file)
            source.read_parts(data.data, start[first[runs]], start[last[runs]] + size[last[runs]],
                              offset[first[runs]] - source.base)
            is_read |= (number == file) & (offset + size - source.base <= source.size)
    return is_read


def _in_file(source: FileSource, rows: Array, start: Array, size: Array) -> Iterator[ProofWindow]:
    end = np.minimum(start + np.clip(size, MIN_SIZE, _WINDOW), source.size)
    first = 0
    starts, ends = start.tolist(), end.tolist()
    for row in range(1, len(starts) + 1):
        if (row == len(starts) or starts[row] > ends[row - 1] + _NEAR
                or ends[row] - starts[first] > _WINDOW):
            yield _window(source, rows[first:row], start[first:row], max(ends[first:row]))
            first = row


def _window(source: FileSource, rows: Array, start: Array, end: int) -> ProofWindow:
    base = int(start[0])
    try:
        data = np.frombuffer(source.read(base, max(end - base, 0)), np.uint8)
    except StoreIOError:
        return ProofWindow(rows, np.zeros(len(rows), bool), None)
    batch, ok = examine(data, source.base + base, start - base)
    # Two overlapping records cannot both be in the log: the second one does not count.
    reach = np.maximum.accumulate(np.where(ok, batch.start + batch.column("total_size"), 0))
    ok[1:] &= batch.start[1:] >= reach[:-1]
    return ProofWindow(rows, ok, batch.select(np.flatnonzero(ok)))
