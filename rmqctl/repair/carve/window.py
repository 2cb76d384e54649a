"""Read a carved source through a window in memory.

This module also computes checksums of any range, and finds candidates for records: magics with a
plausible size and body length.

Memory and time are bounded for any input. A record is loaded completely only if its lengths add up.
Checksums of overlapping ranges read each byte only once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from isal.isal_zlib import crc32, crc32_combine

from rmqctl.formats.local.message import (
    CRC_MASK,
    HOST_BITS,
    MAGIC_OFFSET,
    MIN_SIZE,
    VARIANTS,
    fixed_field,
)
from rmqctl.scan.frames import Array, distinct, gather_int, shape
from rmqctl.scan.resync import MAX_RECORD, find_magics
from rmqctl.scan.source import Source, Witness

CHUNK = 2 << 20
_GRID = 4096
_BLOCK = 1 << 20
_DIRECT = 64 << 10
_HEAD_SIZE = max(shape(*variant).head_size for variant in VARIANTS)
"""Size in bytes of the largest fixed part before a body; this number of bytes is examined at each
candidate.
"""
_STEP, _LONG_STEP = 64 << 10, 1 << 20


class Window:
    """A moving view of a source. A window is a source itself.

    ``data`` (uint8): the bytes ``[start, end)``.
    ``size``: decreases if the underlying source becomes shorter.
    """

    def __init__(self, source: Source, chunk: int = CHUNK) -> None:
        self._source, self._chunk = source, chunk
        self.name, self.base, self.size = source.name, source.base, source.size
        self.witness, self.head = source.witness, source.head
        self.start = self.end = 0
        self.buffer = bytearray(min(chunk, max(source.size, 1)))
        self.data: Array = np.zeros(0, np.uint8)

    def hold(self, position: int, length: int) -> bool:
        """Load ``[position, position + length)``; return whether the entire range exists.

        If a part of the range is not loaded yet, a complete chunk is read from ``position`` on.
        """
        wanted = min(position + length, self.size)
        if not (self.start <= position and wanted <= self.end):
            room = max(min(self._chunk, self.size - position), wanted - position, 1)
            if room > len(self.buffer) or len(self.buffer) > max(room, self._chunk):
                self.buffer = bytearray(room)
            count = self._source.read_into(memoryview(self.buffer)[:room], position)
            if count < min(room, self.size - position):  # the file has become shorter
                self.size = position + count
            self.start, self.end = position, position + count
            self.data = np.frombuffer(self.buffer, np.uint8, count)
        return position + length <= self.end

    def read(self, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes, without moving the window."""
        end = min(position + length, self.size)
        if self.start <= position and end <= self.end:
            return bytes(memoryview(self.buffer)[position - self.start:max(end - self.start, 0)])
        return self._source.read(position, max(0, end - position))

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill a buffer, without moving the window; return the number of bytes."""
        return self._source.read_into(buffer, position)

    def next_data(self, position: int) -> int:
        """Return the first position whose byte might not be zero; holes are skipped."""
        return self._source.next_data(position)


class AsLog:
    """Presents a window's source as a file of the log whose records have this ``shift``."""

    head = 0

    def __init__(self, window: Window, shift: int, witness: Witness | None) -> None:
        self._window = window
        self.name, self.base, self.size, self.witness = window.name, shift, window.size, witness
        self.read, self.read_into = window.read, window.read_into
        self.next_data = window.next_data


class Checksums:
    """CRC-32 of ranges of a window's source, top bit cleared.

    CRCs of long ranges are combined from CRCs of the blocks of a grid. Each byte is therefore read
    only once, even if ranges overlap. The starts of successive ranges must be roughly in ascending
    order.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._anchor = 0
        self._sums = [0]
        """CRCs of ranges: element ``n`` is the CRC of the bytes ``[anchor, anchor + n * grid)``."""

    def crc(self, start: int, end: int) -> int | None:
        """Return the CRC of ``[start, end)``; None if the source ends before ``end``."""
        window = self._window
        if window.start <= start and end <= window.end and end - start <= _DIRECT:
            view = memoryview(window.buffer)[start - window.start:end - window.start]
            return crc32(view) & CRC_MASK
        first, last = -(-start // _GRID) * _GRID, end // _GRID * _GRID
        if last <= first:
            checksum = self._direct(start, end)
            return None if checksum is None else checksum & CRC_MASK
        head, tail = self._direct(start, first), self._direct(last, end)
        middle = self._grid(first, last)
        if head is None or tail is None or middle is None:
            return None
        return self._join(self._join(head, middle, last - first), tail, end - last) & CRC_MASK

    def _direct(self, start: int, end: int) -> int | None:
        data = self._window.read(start, end - start)
        return crc32(data) if len(data) == end - start else None

    @staticmethod
    def _join(first: int, other: int, length: int) -> int:
        return crc32_combine(first, other, length) if length else first

    def _grid(self, first: int, last: int) -> int | None:
        covered = self._anchor + (len(self._sums) - 1) * _GRID
        if not self._anchor <= first <= covered:
            # One step before: the next range may begin a little earlier than this one.
            self._anchor, self._sums = max(0, first - _GRID), [0]
        elif len(self._sums) * _GRID > 4 * MAX_RECORD:
            drop = max(0, (first - self._anchor) // _GRID - 1)
            before = self._sums[drop]
            self._anchor += drop * _GRID
            self._sums = [self._apart(checksum, before, number * _GRID)
                          for number, checksum in enumerate(self._sums[drop:])]
        while (covered := self._anchor + (len(self._sums) - 1) * _GRID) < last:
            data = self._window.read(covered, min(_BLOCK, last - covered))
            if not data or len(data) % _GRID:
                return None
            view = memoryview(data)
            for position in range(0, len(data), _GRID):
                self._sums.append(crc32(view[position:position + _GRID], self._sums[-1]))
        before = self._sums[(first - self._anchor) // _GRID]
        return self._apart(self._sums[(last - self._anchor) // _GRID], before, last - first)

    @classmethod
    def _apart(cls, checksum: int, before: int, length: int) -> int:
        """Return the CRC of the last ``length`` bytes of a range. ``checksum``: CRC of the range;
        ``before``: CRC of its other bytes.
        """
        return checksum ^ cls._join(before, 0, length) if length else 0


# -- where a record might start -------------------------------------------------------------------


class Candidates:
    """Positions in a window's source where the fixed part of a record might be.

    The result for a range is cached, so that continuing after a candidate needs no second search.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._starts: list[int] = []
        self._from = self._to = 0

    def within(self, start: int, end: int) -> Iterator[int]:
        """Yield the candidates in ``[start, end)``, ascending."""
        end = min(end, self._window.size - MIN_SIZE + 1)
        position = start
        while position < end:
            if not self._from <= position < self._to:
                position = self._look(position)
            upto = self._to
            for candidate in self._starts[bisect_left(self._starts, position):]:
                if candidate >= end:
                    return
                yield candidate
            position = max(position, upto)

    def _look(self, position: int) -> int:
        """Search the next range for candidates; return the start of the range, which may be after a
        hole.
        """
        window = self._window
        # A record's size may begin with the last zeros of a hole.
        position = max(position, window.next_data(position) - MAGIC_OFFSET)
        self._starts, self._from, self._to = [], position, position + 1
        if position >= window.size:
            return position
        window.hold(position, min(_STEP + _HEAD_SIZE, window.size - position))
        # As far as the heads are in memory completely, or up to the end of the source.
        step = min(max(window.end - _HEAD_SIZE - position, _STEP), _LONG_STEP)
        self._to = max(min(position + step, window.size), self._to)
        shift = MAGIC_OFFSET - window.start
        magics = find_magics(window.data, position + shift, self._to + shift)
        if len(magics):
            self._starts = self._plausible(magics - MAGIC_OFFSET)
        return position

    def _plausible(self, places: Array) -> list[int]:
        """Return the positions in the source at which size and body length are plausible."""
        window = self._window
        left = window.end - window.start - places
        # Near the end of the source the short head must suffice; the judge checks again.
        plausible = places[left >= MIN_SIZE]
        near = left[left >= MIN_SIZE] < _HEAD_SIZE
        total = _field(window, plausible, "total_size")
        good = (total >= MIN_SIZE) & (total <= np.minimum(
            MAX_RECORD, window.size - window.start - plausible))
        bits = _field(window, plausible, "sys_flag") & HOST_BITS
        for host_bits in distinct(bits).tolist():
            rows = np.flatnonzero((bits == host_bits) & good & ~near)
            length = _field(window, plausible[rows], "body_length", host_bits)
            good[rows] = (length >= 0) & (length <= total[rows] - MIN_SIZE)
        candidates: list[int] = (plausible[good] + window.start).tolist()
        return candidates


def _field(window: Window, places: Array, name: str, host_bits: int = 0) -> Array:
    """Return a field from the fixed part of the records at ``places`` in the window's data."""
    where = fixed_field(name, host_bits)
    return gather_int(window.data, places + where.offset, f"i{where.size}")
