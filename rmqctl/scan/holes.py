"""The positions of the data in a file, and the end of the data, found without reading holes.

A hole within the data is not taken for the end of the data. A file without holes is read from its
end, in growing pieces. So a file with few used bytes is quick to examine.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from rmqctl.scan.frames import used_length
from rmqctl.scan.source import Source

PAGE = 4096
"""Holes consist of pages of this size, or of larger ones."""
_MAX_PIECE = 1 << 20


def data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges ``[from, to)`` within ``[start, end)`` that may contain nonzero bytes,
    ascending. If the system does not report holes, yield the remaining range in one piece.
    """
    position = start
    while position < end:
        try:
            low = os.lseek(fd, position, os.SEEK_DATA)
            high = os.lseek(fd, low, os.SEEK_HOLE) if low < end else low
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no data after this
                yield position, end
            return
        if low < end:
            yield low, min(high, end)
        position = high


def data_end(source: Source, start: int, end: int) -> int:
    """Return the end of the data in ``[start, end]``, or a position up to a page later. From
    there to ``end``, there are only holes. Return ``start`` if the range contains no data.
    """
    low = source.next_data(start)
    if low >= end:
        return start
    # There is data at `low`. Search ahead in growing steps, up to where none is left.
    high, step = end, PAGE
    while (ahead := low + step) < end:
        next_data = source.next_data(ahead)
        if next_data >= end:
            high = ahead
            break
        low, step = next_data, step * 2
    # No data is left at `high`: the system reports whether some is left at a position.
    while high - low > PAGE:
        middle = (low + high) // 2
        next_data = source.next_data(middle)
        if next_data >= end:
            high = middle
        else:
            low = next_data
    return high


def used_end(source: Source, start: int, end: int) -> int:
    """Return the position after the last nonzero byte in ``[start, end)``; ``start`` if all are
    zero.

    Holes are not read. All other bytes after that position are read once.
    """
    high, piece = data_end(source, start, end), PAGE
    while high > start:
        low = max(start, high - piece)
        used = used_length(source.read(low, high - low))
        if used:
            return low + used
        high, piece = low, min(piece * 4, _MAX_PIECE)
        if source.next_data(max(start, high - PAGE)) >= high:
            high = data_end(source, start, high)
    return start
