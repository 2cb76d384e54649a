"""Reading of records from a log for pulls: many records at a time, each checked before delivery."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from isal.isal_zlib import crc32

from rmqctl.errors import StoreIOError
from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    CRC_MASK,
    HOST_BITS,
    MIN_SIZE,
    PROPERTIES_LENGTH_SIZE,
    Message,
    is_magic,
    properties_length_at,
    variant,
)
from rmqctl.scan.frames import Array
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.store.log.commit_log import CommitLog, packed_records

FEW = 12
"""Number of records below which separate reads are faster than reading all records by column."""

_HEAD = layout.reader(Message, "total_size", "magic", "body_crc", "physical_offset", "sys_flag")
_LENGTH = layout.width_of(Message, "body_length")[0]

_WINDOW, _MAX_WINDOWS = 16 << 20, 16
"""Size in bytes of a memory-mapped window of the log, and maximum number of windows (256 MiB in
total).
"""
_ROWS_PER_WINDOW, _ROWS_UNMAPPED = 1000, 1 << 20
"""When to read without mapping. If fewer than `_ROWS_PER_WINDOW` entries were read per window, the
next `_ROWS_UNMAPPED` entries are read separately, because mapping is considered slower.
"""


def is_whole(data: memoryview, physical: int) -> bool:
    """Return whether ``data`` is exactly one complete record that has the given physical offset and
    a matching body CRC.
    """
    size = len(data)
    if size < _HEAD.size:
        return False
    total, magic, crc, place, sys_flag = _HEAD.unpack_from(data)
    if total != size or place != physical or not is_magic(magic):
        return False
    shape = variant(sys_flag & HOST_BITS, magic)
    body = shape.head_size
    topic = body + int.from_bytes(data[body - _LENGTH:body], "big", signed=True)
    behind = topic + shape.topic_length.size
    if not body <= topic <= size or behind > size:
        return False
    properties = behind + shape.topic_length.unpack_from(data, topic)[0] + PROPERTIES_LENGTH_SIZE
    if not behind < properties <= size:
        return False
    length = properties_length_at(data, properties - PROPERTIES_LENGTH_SIZE)
    return length >= 0 and properties + length == size and (
        crc32(data[body:topic]) & CRC_MASK == crc)


class LogReader:
    """The records of one log, by physical offset.

    ``end``: physical offset at which the log ends in this view; None for no limit.
    """

    def __init__(self, log: CommitLog, end: int | None) -> None:
        self._log, self._end = log, end
        self._windows: OrderedDict[int, None] = OrderedDict()
        """The numbers of the mapped windows, the least recently used first."""
        self._given_up = self._rows = self._unmapped = 0
        """Since the last check of whether mapping is faster: the number of windows released, and
        the number of mapped entries read. Then the number of entries still to be read without
        mapping.
        """

    def record(self, physical: int, size: int) -> memoryview | None:
        """Return the bytes of the record of ``size`` bytes at ``physical``.

        Return None if the record is incomplete or its body CRC does not match.
        """
        if self._end is not None and physical + size > self._end:
            return None
        try:
            is_valid = 0 < size <= MAX_RECORD and physical >= 0
            located = self._log.locate(physical) if is_valid else None
            data = memoryview(b"" if located is None else located[0].read(located[1], size))
        except StoreIOError:
            return None
        return data if is_whole(data, physical) else None

    def records(self, place: Array, size: Array) -> tuple[memoryview, Array]:
        """Read and check the records at several physical offsets (int64). Return their bytes and
        positions.

        The bytes are joined in the given order. The positions in these bytes (int64) are the start
        of each record, then the end of the last record. A record that cannot be served has no
        bytes.
        """
        if len(place) < FEW:
            return _joined(list(map(self.record, place.tolist(), size.tolist())))
        wanted = (place >= 0) & (size >= MIN_SIZE) & (size <= MAX_RECORD)
        if wanted.all():
            data = self._whole(place, size)
            if data is not None:
                return data, np.append(0, size.cumsum())
        if self._end is not None:
            wanted &= place + size <= self._end
        wanted[1:] &= place[1:] > np.maximum.accumulate(np.where(wanted, place, -1))[:-1]
        batch, ok = packed_records(self._log, place[wanted], size[wanted])
        ok &= batch.crc_ok()
        data = memoryview(batch.data.data).toreadonly()
        if len(ok) == len(place) and ok.all():
            return data, np.append(batch.start, len(data))
        records: list[memoryview | None] = [None] * len(place)
        good = np.flatnonzero(wanted)[ok]
        for number, start, length in zip(good.tolist(), batch.start[ok].tolist(),
                                         size[good].tolist(), strict=True):
            records[number] = data[start:start + length]
        # Entries that point to the same record as an earlier one, or to a record before it.
        for number in np.flatnonzero(~wanted).tolist():
            records[number] = self.record(int(place[number]), int(size[number]))
        return _joined(records)

    def _whole(self, place: Array, size: Array) -> memoryview | None:
        """Read the records in one go. Return None if they are in several files, or if one of them
        cannot be served.
        """
        data: Array = np.empty(int(size.sum()), np.uint8)
        mapped = not self._unmapped and self._bring_near(place)
        if not mapped:
            self._unmapped = max(self._unmapped - len(place), 0)
        try:
            located = self._log.locate(int(place[0]))
            if located is not None and located[0].read_records(data.data, place, size, self._end,
                                                               mapped):
                return memoryview(data.data).toreadonly()
        except StoreIOError:
            pass
        return None

    def _bring_near(self, place: Array) -> bool:
        """Map the windows that contain these records, and release other windows. Return False if
        the records are too far apart.
        """
        first, last = int(place.min()) // _WINDOW, int(place.max()) // _WINDOW
        if last - first >= _MAX_WINDOWS // 2:
            return False
        self._rows += len(place)
        for number in range(first, last + 1):
            self._windows[number] = None
            self._windows.move_to_end(number)
        while len(self._windows) > _MAX_WINDOWS:
            number, _ = self._windows.popitem(last=False)
            self._log.let_go(number * _WINDOW, (number + 1) * _WINDOW)
            self._given_up += 1
        if self._given_up >= _MAX_WINDOWS:
            if self._rows < self._given_up * _ROWS_PER_WINDOW:
                self._unmapped = _ROWS_UNMAPPED
            self._given_up = self._rows = 0
        return True


def _joined(records: list[memoryview | None]) -> tuple[memoryview, Array]:
    parts = [b"" if record is None else record for record in records]
    return memoryview(b"".join(parts)), np.cumsum([0, *map(len, parts)], dtype=np.int64)
