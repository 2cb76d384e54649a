"""The transient store pool: buffers that take appends before they are committed
(spec: recovery.md §11).
"""

from __future__ import annotations

import mmap
import threading

from rmqctl.errors import InternalError, StoreIOError


class BufferPool:
    """At most ``count`` anonymous buffers of ``size`` bytes, made when first needed.

    A buffer that comes back is handed out again as it is: nobody reads what he has not written.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._lock = threading.Lock()
        self._idle: list[mmap.mmap] = []
        self._out = 0

    @property
    def free(self) -> int:
        """Buffers that can still be taken."""
        return self.count - self._out

    def take(self) -> mmap.mmap:
        """A buffer. InternalError when all are out, StoreIOError when there is no memory."""
        with self._lock:
            if self._out >= self.count:
                raise InternalError("all buffers of the transient store pool are in use")
            try:
                found = self._idle.pop() if self._idle else mmap.mmap(-1, self.size)
            except (OSError, ValueError, OverflowError):
                raise StoreIOError(f"cannot get a buffer of {self.size} bytes for the transient "
                                   "store pool: out of memory") from None
            self._out += 1
            return found

    def give(self, buffer: mmap.mmap) -> None:
        """Takes a buffer back."""
        with self._lock:
            self._out -= 1
            self._idle.append(buffer)

    def close(self) -> None:
        """Gives the idle buffers back to the system."""
        with self._lock:
            for one in self._idle:
                one.close()
            self._idle.clear()
