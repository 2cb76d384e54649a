"""Where a file has data, and where holes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator


def data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """``[from, to)`` within ``[start, end)`` of what may be other than zero, ascending; all that is
    left of it where the system cannot tell.
    """
    position = start
    while position < end:
        try:
            low = os.lseek(fd, position, os.SEEK_DATA)
            high = os.lseek(fd, low, os.SEEK_HOLE) if low < end else low
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no data behind this
                yield position, end
            return
        if low < end:
            yield low, min(high, end)
        position = high
