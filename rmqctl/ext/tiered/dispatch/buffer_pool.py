"""Reusable memory for large pieces of data.

On many machines, above all virtual ones, getting a fresh page costs more than filling it. Therefore
the data of all windows is kept in a few buffers.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref

_ROUND = 1 << 20


class WindowBuffers:
    """A pool of buffers. A buffer returns to the pool when its last view is deleted."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def take(self, size: int) -> memoryview:
        """Return writable memory of ``size`` bytes. It may contain data of an earlier use."""
        buffer = None
        while self._free and buffer is None:
            returned = self._free.pop()
            buffer = returned if len(returned) >= size else None
        if buffer is None:
            # Private: shared pages would not be counted as this process's own.
            buffer = mmap.mmap(-1, max(-(-size // _ROUND), 1) * _ROUND,
                               flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Views keep the lease alive, not the buffer, so its end shows when the last view is gone.
        lease = (ctypes.c_char * size).from_buffer(buffer)
        weakref.finalize(lease, self._free.append, buffer)
        return memoryview(lease).cast("B")
