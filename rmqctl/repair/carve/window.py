"""The part of a source that is in memory while it is carved, and checksums of any part of it.

Both are bounded whatever the bytes say: a record is only loaded as a whole once its lengths add
up, and stretches that overlap are summed up once.
"""

from __future__ import annotations

import numpy as np
from isal.isal_zlib import crc32, crc32_combine

from rmqctl.formats.local.message import CRC_MASK
from rmqctl.scan.frames import Array
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import Source

CHUNK = 2 << 20
_GRID = 4096
_BLOCK = 1 << 20
_DIRECT = 64 << 10


class Window:
    """A moving view of a source: `data` (uint8) are the bytes ``[start, end)``. A source itself.

    ``size`` shrinks when the source turns out to have become shorter.
    """

    def __init__(self, source: Source, chunk: int = CHUNK) -> None:
        self._source, self._chunk = source, chunk
        self.name, self.base, self.size = source.name, source.base, source.size
        self.start = self.end = 0
        self.buffer = bytearray(min(chunk, max(source.size, 1)))
        self.data: Array = np.zeros(0, np.uint8)

    def hold(self, position: int, length: int) -> bool:
        """Loads what is missing of ``[position, position + length)``; whether it is all there.

        When something has to be read, a whole chunk from ``position`` on is.
        """
        wanted = min(position + length, self.size)
        if not (self.start <= position and wanted <= self.end):
            room = max(min(self._chunk, self.size - position), wanted - position, 1)
            if room > len(self.buffer) or len(self.buffer) > max(room, self._chunk):
                self.buffer = bytearray(room)
            got = self._source.read_into(memoryview(self.buffer)[:room], position)
            if got < min(room, self.size - position):  # the file has become shorter
                self.size = position + got
            self.start, self.end = position, position + got
            self.data = np.frombuffer(self.buffer, np.uint8, got)
        return position + length <= self.end

    def read(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes, without moving the window."""
        end = min(position + length, self.size)
        if self.start <= position and end <= self.end:
            return bytes(memoryview(self.buffer)[position - self.start:max(end - self.start, 0)])
        return self._source.read(position, max(0, end - position))

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fills a buffer, without moving the window; the number of bytes that were there."""
        return self._source.read_into(buffer, position)

    def next_data(self, position: int) -> int:
        """The first position that may hold something else than zeros (holes are skipped)."""
        return self._source.next_data(position)


class Checksums:
    """CRC-32 of stretches of a window's source, top bit cleared.

    Long stretches are put together from sums over a grid, so that each byte is read once even if
    every position claims to start a record of the largest size. Stretches must begin in about
    ascending order.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._anchor = 0
        self._sums = [0]
        """The CRC of ``[anchor, anchor + n * grid)``."""

    def crc(self, start: int, end: int) -> int | None:
        """The CRC of ``[start, end)``; None where the source ends before."""
        window = self._window
        if window.start <= start and end <= window.end and end - start <= _DIRECT:
            view = memoryview(window.buffer)[start - window.start:end - window.start]
            return crc32(view) & CRC_MASK
        first, last = -(-start // _GRID) * _GRID, end // _GRID * _GRID
        if last <= first:
            whole = self._direct(start, end)
            return None if whole is None else whole & CRC_MASK
        head, tail = self._direct(start, first), self._direct(last, end)
        middle = self._grid(first, last)
        if head is None or tail is None or middle is None:
            return None
        return self._join(self._join(head, middle, last - first), tail, end - last) & CRC_MASK

    def _direct(self, start: int, end: int) -> int | None:
        data = self._window.read(start, end - start)
        return crc32(data) if len(data) == end - start else None

    @staticmethod
    def _join(one: int, other: int, length: int) -> int:
        return crc32_combine(one, other, length) if length else one

    def _grid(self, first: int, last: int) -> int | None:
        covered = self._anchor + (len(self._sums) - 1) * _GRID
        if not self._anchor <= first <= covered:
            # One step before: the next stretch may begin a little earlier than this one.
            self._anchor, self._sums = max(0, first - _GRID), [0]
        elif len(self._sums) * _GRID > 4 * MAX_RECORD:
            drop = max(0, (first - self._anchor) // _GRID - 1)
            before = self._sums[drop]
            self._anchor += drop * _GRID
            self._sums = [self._apart(one, before, number * _GRID)
                          for number, one in enumerate(self._sums[drop:])]
        while (covered := self._anchor + (len(self._sums) - 1) * _GRID) < last:
            data = self._window.read(covered, min(_BLOCK, last - covered))
            if not data or len(data) % _GRID:
                return None
            view = memoryview(data)
            for at in range(0, len(data), _GRID):
                self._sums.append(crc32(view[at:at + _GRID], self._sums[-1]))
        before = self._sums[(first - self._anchor) // _GRID]
        return self._apart(self._sums[(last - self._anchor) // _GRID], before, last - first)

    @classmethod
    def _apart(cls, whole: int, before: int, length: int) -> int:
        """The CRC of the last ``length`` bytes of ``whole``, from that of what lies before."""
        return whole ^ cls._join(before, 0, length) if length else 0
