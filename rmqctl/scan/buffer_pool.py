"""Memory for large pieces of data, used again once nobody looks at it.

A fresh page costs more than filling it on many machines (virtual ones above all), so what is made
and dropped window by window lies in a few rooms.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref

_ROUND = 1 << 20


class Rooms:
    """Gives out memory. A room comes back by itself with the last view of it, from any thread."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def take(self, size: int) -> memoryview:
        """Writable memory of ``size`` bytes; what stands in it is of somebody before."""
        room = None
        while self._free and room is None:
            found = self._free.pop()
            room = found if len(found) >= size else None
        if room is None:
            room = mmap.mmap(-1, max(-(-size // _ROUND), 1) * _ROUND)
        # Views keep this alive, and not the room: so it tells when the last one is gone.
        lease = (ctypes.c_char * size).from_buffer(room)
        weakref.finalize(lease, self._free.append, room)
        return memoryview(lease).cast("B")
