"""Write saved messages back into a log at their old physical offsets.

The log is written to a scratch folder, in files of the log's file size, with holes between the
records. The result is a normal log in which many records are missing.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import field

import numpy as np
from isal.isal_zlib import crc32

from rmqctl.errors import FormatError
from rmqctl.files.durable import failed, make_folders, open_file, write_all
from rmqctl.files.row_file import RowFile
from rmqctl.formats.local.message import Record, decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.frames import Array
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import LARGEST_RECORD
from rmqctl.store.files import StoreFile
from rmqctl.store.log.commit_log import CommitLog

_ROW = np.dtype([("offset", "<i8"), ("size", "<i4"), ("crc", "<u4"), ("time", "<i8")])
_HELD = 1 << 14
_OPEN_FILES = 32
_MAX_REASONS = 64
_OTHERS = "for other reasons"


@dataclass(slots=True)
class Unused:
    """Unusable messages of a source: for each reason, the number of messages and the position of
    the first one.
    """

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, where: str = "") -> None:
        if reason not in self.counts and len(self.counts) >= _MAX_REASONS:
            reason, where = _OTHERS, ""
        self.counts[reason] += 1
        self.first.setdefault(reason, where)

    @property
    def total(self) -> int:
        return self.counts.total()


Read = Callable[[str, Unused], Iterator[tuple[str, bytes]]]
"""Function that reads a file and yields (description of the position, bytes) for each record.
Records that it cannot use are added to the second argument.
"""


class KnownPlaces:
    """The known positions of the records in a log built from messages: the
    `rmqctl.scan.source.Witness` of the files of this log.

    ``offset``, ``size``: physical offsets and sizes of the records (int64), ascending and without
    overlaps.
    """

    largest_record = LARGEST_RECORD

    def __init__(self, offset: Array, size: Array) -> None:
        self._offset, self._size = offset, size

    def rows(self, start: int, end: int) -> tuple[Array, Array]:
        low, high = np.searchsorted(self._offset, [start, end]).tolist()
        return self._offset[low:high], self._size[low:high]

    def keys(self, _start: int, _end: int) -> tuple[Array, Array]:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    def confirms(self, record: Record) -> bool:
        low = int(np.searchsorted(self._offset, record.physical_offset))
        return low < len(self._offset) and (
            int(self._offset[low]), int(self._size[low])) == (
                record.physical_offset, record.total_size)

    def confirms_all(self, _topic: str, _queue_id: int, offsets: Array, _places: Array,
                     _sizes: Array) -> Array:
        return np.zeros(len(offsets), bool)

    def entry_of(self, _record: Record) -> None:
        return None

    def record_at(self, _physical: int, _size: int) -> None:
        return None

    def goes_on(self, _physical: int) -> bool:
        return False

    def offsets_before(self, _physical: int) -> None:
        return None

    def offsets_behind(self, _physical: int) -> None:
        return None


class LaidOut:
    """Collector of records, from which `log` builds a log.

    ``size``: size of the log's files.
    ``low``, ``high``: range ``[low, high)`` of the physical offsets in the log.

    Disk space: the bytes of the records. Memory: 67 bytes for each record while the records are
    sorted, then 16.
    """

    def __init__(self, scratch: Scratch, name: str, size: int, low: int, high: int) -> None:
        self._folder = scratch.path(name)
        shutil.rmtree(self._folder, ignore_errors=True)
        make_folders(self._folder, durable=False)
        self._size, self._low, self._high = size, low, high
        self._rows = RowFile(_ROW, "places of messages", held=_HELD, folder=scratch.root)
        self._files: OrderedDict[int, int] = OrderedDict()
        self._names: set[int] = set()
        self.records = 0

    def put(self, raw: bytes) -> str:
        """Store a record. Return the reason if the bytes are not a record of the log; otherwise "".
        Raises: StoreIOError.
        """
        try:
            record = decode(raw)
        except FormatError as error:
            return f"not a complete record: {error.path}: {error.reason}"
        place, size = record.physical_offset, record.total_size
        if len(raw) != size or size > MAX_RECORD:
            return "not a complete record: total_size"
        if record.body and not record.crc_ok:
            return "the body does not match its CRC"
        if place < 0 or not self._low <= place < self._high:
            return "the physical offset is far from this log"
        base = place - place % self._size
        if place + size > base + self._size:
            return f"the record extends beyond the end of a file of {self._size} bytes"
        path = self._path(base)
        write_all(self._open(base), raw, place - base, path)
        row: Array = np.empty(1, _ROW)
        row["offset"], row["size"], row["crc"] = place, size, crc32(raw)
        row["time"] = record.store_timestamp
        self._rows.append(row)
        self.records += 1
        return ""

    def _path(self, base: int) -> str:
        return os.path.join(self._folder, f"{base:020d}")

    def _open(self, base: int) -> int:
        fd = self._files.get(base)
        if fd is None:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
            flags = os.O_RDWR | os.O_CREAT
            fd = self._files[base] = open_file(self._path(base), flags, "make")
            if base not in self._names:
                self._names.add(base)
                try:
                    os.ftruncate(fd, self._size)
                except OSError as error:
                    raise failed(error, self._path(base), "write") from None
        self._files.move_to_end(base)
        return fd

    def log(self, unused: Unused) -> tuple[CommitLog, int]:
        """Return (the log, the physical offset after its last record). Records that overlap are
        skipped and added to ``unused``. Raises: StoreIOError.
        """
        try:
            offset, size, time = self._settled(unused)
        finally:
            self._rows.close()
            self.close()
        witness = KnownPlaces(offset, size)
        files = []
        for base in sorted(self._names):
            low, high = np.searchsorted(offset, [base, base + self._size]).tolist()
            if low < high:
                _date(self._path(base), int(time[low:high].max()))
                files.append(StoreFile(self._path(base), f"{base:020d}", base, self._size,
                                       witness=witness))
        end = int(offset[-1] + size[-1]) if len(offset) else 0
        return CommitLog(files, self._size), end

    def _settled(self, unused: Unused) -> tuple[Array, Array, Array]:
        rows = self._rows.mapped()
        rows = rows[np.lexsort((rows["crc"], rows["offset"]))]
        again = np.zeros(len(rows), bool)
        again[1:] = (rows["offset"][1:] == rows["offset"][:-1]) & (
            rows["crc"][1:] == rows["crc"][:-1]) & (rows["size"][1:] == rows["size"][:-1])
        rows = rows[~again]
        end = rows["offset"] + rows["size"]
        reach = np.maximum.accumulate(end) if len(end) else end
        against = np.zeros(len(rows), bool)
        against[1:] = rows["offset"][1:] < reach[:-1]
        # An overlapped record is as doubtful as the overlapping one.
        against[:-1] |= against[1:]
        for place, length in zip(rows["offset"][against].tolist(),
                                 rows["size"][against].tolist(), strict=True):
            base = place - place % self._size
            write_all(self._open(base), bytes(length), place - base, self._path(base))
            unused.add("other messages of the source are at the same physical offset",
                       f"offset {place}")
        rows = rows[~against]
        return (rows["offset"].astype(np.int64), rows["size"].astype(np.int64), rows["time"])

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])


def _date(path: str, milliseconds: int) -> None:
    """Set the modification time of a log file to the store time of its last message. A broker
    expires files by modification time.
    """
    time = min(max(milliseconds, 0), 1 << 42) * 1_000_000
    try:
        os.utime(path, ns=(time, time))
    except OSError as error:
        raise failed(error, path, "date") from None
