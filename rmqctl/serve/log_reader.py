"""Records of a log for those who pull: many at a time, each checked before it is given out."""

from __future__ import annotations

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
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.store.log.commit_log import CommitLog, packed_records

FEW = 12
"""Records that are looked at one by one: by column it would take longer."""

_HEAD = layout.reader(Message, "total_size", "magic", "body_crc", "physical_offset", "sys_flag")
_LENGTH = layout.width_of(Message, "body_length")[0]


def is_whole(data: memoryview, physical: int) -> bool:
    """Whether ``data`` is just one record, of that physical offset, whose body matches its CRC."""
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
    """The records of one log, by their physical offsets. ``end``: where a view ends it, or None."""

    def __init__(self, log: CommitLog, end: int | None) -> None:
        self._log, self._end = log, end

    def record(self, physical: int, size: int) -> memoryview | None:
        """The bytes of the record of ``size`` bytes at ``physical``; None where none is whole, or
        its body does not match its CRC.
        """
        if self._end is not None and physical + size > self._end:
            return None
        try:
            found = self._log.locate(physical) if 0 < size <= MAX_RECORD and physical >= 0 else None
            data = memoryview(b"" if found is None else found[0].read(found[1], size))
        except StoreIOError:
            return None
        return data if is_whole(data, physical) else None

    def records(self, physical: list[int], sizes: list[int]) -> list[memoryview | None]:
        """The same of several places, read and checked together."""
        if len(physical) < FEW:
            return list(map(self.record, physical, sizes))
        place, size = np.array(physical, np.int64), np.array(sizes, np.int64)
        wanted = (place >= 0) & (size >= MIN_SIZE) & (size <= MAX_RECORD)
        if self._end is not None:
            wanted &= place + size <= self._end
        order = np.flatnonzero(wanted)
        order = order[np.argsort(place[order], kind="stable")]
        found: list[memoryview | None] = [None] * len(physical)
        if not len(order):
            return found
        is_first = np.r_[True, np.diff(place[order]) > 0]
        order, again = order[is_first], order[~is_first]
        batch, ok = packed_records(self._log, place[order], size[order])
        ok &= batch.crc_ok()
        data = memoryview(batch.data.data).toreadonly()
        for number, start, length in zip(order[ok].tolist(), batch.start[ok].tolist(),
                                         size[order][ok].tolist(), strict=True):
            found[number] = data[start:start + length]
        for number in again.tolist():  # rows that lead to one place
            found[number] = self.record(physical[number], sizes[number])
        return found
