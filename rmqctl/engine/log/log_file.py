"""A commitlog file opened for writing, in three variants.

All variants write the same bytes:

* `ChannelFile` with system calls, at once
* `MappedFile` by copying them into a mapping
* `PooledFile` by collecting them in a buffer of the transient store pool until `commit`

spec: commitlog.md §1, recovery.md §7, §11.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from rmqctl.errors import InternalError, StoreIOError
from rmqctl.files.durable import Part, failed, sync, sync_folder, write_all, write_parts

_WARM_STEP = 1024
"""Number of pages that are touched at once; between two such steps, other threads can run."""


class LogFile(ABC):
    """A commitlog file with its full length. One thread appends to it, and another thread flushes
    it.

    * ``base``: its physical offset
    * ``size``: its length in bytes
    * ``wrote``: the position of the next byte
    * ``synced``: the position up to which bytes are on disk
    * ``fresh``: whether its directory entry has not been fsynced yet

    `close` closes ``fd``.
    """

    def __init__(self, fd: int, path: str, base: int, size: int, position: int = 0, *,
                 fresh: bool = False) -> None:
        self._fd = fd
        self.path, self.base, self.size = path, base, size
        self.wrote = self.synced = position
        self.fresh = fresh
        self._syncing = threading.Lock()
        self._failure: StoreIOError | None = None

    @property
    def committed(self) -> int:
        """The position up to which the bytes are in the file, where readers see them."""
        return self.wrote

    @property
    def full(self) -> bool:
        return self.wrote == self.size

    def append(self, parts: Sequence[Part]) -> None:
        """Append the parts, which must fit into the file.

        The items of memory views must be single bytes. After a StoreIOError, nothing was appended.
        """
        end = self.wrote + sum(map(len, parts))
        if end > self.size:
            raise InternalError(f"{self.path}: {end - self.wrote} bytes do not fit at position "
                                f"{self.wrote} of {self.size}")
        self._put(parts, self.wrote, end)
        self.wrote = end

    @abstractmethod
    def _put(self, parts: Sequence[Part], position: int, end: int) -> None:
        """Store the parts at ``[position, end)``. Raises: StoreIOError."""

    def declare_full(self) -> None:
        """Mark the file as full without writing the rest of it."""
        self.wrote = self.size

    def commit(self) -> None:  # noqa: B027  # nothing to do for most
        """Write the collected bytes to the file, if this kind of file collects bytes. Raises:
        StoreIOError.
        """

    def sync(self) -> None:
        """Commit and flush everything that was appended.

        After a failed flush, every later call raises the same error. The operating system may have
        dropped the unwritten pages, and a second attempt would wrongly succeed.
        Raises: StoreIOError.
        """
        self.commit()
        with self._syncing:
            if self._failure is not None:
                raise StoreIOError(str(self._failure))
            upto = self.committed
            try:
                # On Linux this also flushes writes through a mapping: msync(2) is the same call
                # for a range. Unlike mmap.flush it does not block other threads.
                sync(self._fd, self.path, whole=self.fresh)
                if self.fresh:
                    sync_folder(os.path.dirname(self.path))
            except StoreIOError as error:
                self._failure = error
                raise
            self.fresh = False
            self.synced = upto

    def close(self) -> None:
        """Close the file without flushing it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:
                raise failed(error, self.path, "close") from None


class ChannelFile(LogFile):
    """A sparse file that is written by position; if the disk is full, an error is raised."""

    def _put(self, parts: Sequence[Part], position: int, end: int) -> None:
        write_parts(self._fd, parts, position, self.path)


class BufferPool:
    """A pool of at most ``count`` anonymous buffers of ``size`` bytes, created on demand.

    A returned buffer is reused without being cleared, because its old bytes are never read.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._lock = threading.Lock()
        self._idle: list[mmap.mmap] = []
        self._out = 0

    @property
    def free(self) -> int:
        """Number of buffers that are available."""
        return self.count - self._out

    def take(self) -> mmap.mmap:
        """Take a buffer from the pool.
        Raises: InternalError if none is free; StoreIOError if the system has no memory.
        """
        with self._lock:
            if self._out >= self.count:
                raise InternalError("all buffers of the transient store pool are in use")
            try:
                buffer = self._idle.pop() if self._idle else mmap.mmap(-1, self.size)
            except (OSError, ValueError, OverflowError):
                raise StoreIOError(f"cannot get a buffer of {self.size} bytes for the transient "
                                   "store pool: out of memory") from None
            self._out += 1
            return buffer

    def give(self, buffer: mmap.mmap) -> None:
        """Return a buffer to the pool."""
        with self._lock:
            self._out -= 1
            self._idle.append(buffer)

    def close(self) -> None:
        """Free the idle buffers."""
        with self._lock:
            for buffer in self._idle:
                buffer.close()
            self._idle.clear()


class PooledFile(LogFile):
    """A file whose appended bytes stay in a buffer of ``pool`` until `commit` writes them.

    The buffer is taken at the first append and returned when the full file is committed. After the
    closing blank, a broker also writes the buffer's old content; here these bytes remain zero.
    """

    def __init__(self, fd: int, path: str, base: int, size: int, position: int = 0, *,
                 pool: BufferPool, fresh: bool = False) -> None:
        super().__init__(fd, path, base, size, position, fresh=fresh)
        self._pool = pool
        self._buffer: mmap.mmap | None = None
        self._committing = threading.Lock()
        self._committed = position
        self._filled = position
        """The position after the last appended byte; after `declare_full`, `wrote` is greater."""

    @property
    def committed(self) -> int:
        return self._committed

    def _put(self, parts: Sequence[Part], position: int, end: int) -> None:
        if self._buffer is None:
            self._buffer = self._pool.take()
        self._buffer[position:end] = parts[0] if len(parts) == 1 else b"".join(parts)
        self._filled = end

    def commit(self) -> None:
        with self._committing:
            wrote, filled = self.wrote, self._filled
            start = min(self._committed, filled)
            if self._buffer is not None:
                with memoryview(self._buffer) as content, content[start:filled] as part:
                    write_all(self._fd, part, start, self.path)
            # `wrote` was read first: if it shows a full file, nothing was appended since.
            self._committed = self.size if wrote == self.size else filled
            if self._committed == self.size:
                self._return()

    def _return(self) -> None:
        if self._buffer is not None:
            self._pool.give(self._buffer)
            self._buffer = None

    def close(self) -> None:
        """Close the file. Bytes that were not committed are lost."""
        with self._committing:
            self._return()
        super().close()


class MappedFile(LogFile):
    """A file that is written through a shared mapping of its full length.

    The caller reserves the file's space first (`log_create`): a write into a hole on a full disk
    would end the process with SIGBUS. ``warm``: touch each page without changing it, and lock the
    pages. ``locked``: whether the system allowed the locking.
    """

    def __init__(self, fd: int, path: str, base: int, size: int, position: int = 0, *,
                 fresh: bool = False, warm: bool = False) -> None:
        super().__init__(fd, path, base, size, position, fresh=fresh)
        try:
            self._map = mmap.mmap(fd, size, access=mmap.ACCESS_WRITE)
        except (OSError, ValueError) as error:
            reason = error if isinstance(error, OSError) else OSError(str(error))
            raise failed(reason, path, "map") from None
        self.locked = False
        if warm:
            self._warm()

    def _put(self, parts: Sequence[Part], position: int, end: int) -> None:
        self._map[position:end] = parts[0] if len(parts) == 1 else b"".join(parts)

    def _warm(self) -> None:
        """Touch, advise and lock every page. If the system refuses, this is not an error."""
        step = mmap.PAGESIZE * _WARM_STEP
        for start in range(0, self.size, step):
            pages = slice(start, min(start + step, self.size), mmap.PAGESIZE)
            self._map[pages] = self._map[pages]
        try:
            self._map.madvise(mmap.MADV_WILLNEED)
        except OSError:
            return
        self.locked = _lock_pages("mlock", self._map)

    def close(self) -> None:
        """Unlock and unmap the file. The system writes unflushed pages to disk later."""
        if not self._map.closed:
            if self.locked:
                _lock_pages("munlock", self._map)
                self.locked = False
            self._map.close()
        super().close()


def _lock_pages(name: str, pages: mmap.mmap) -> bool:
    """Call ``mlock`` or ``munlock`` for a complete mapping; return whether it succeeded."""
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return False
    call.argtypes, call.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    # The address object keeps the mapping open, so it must not outlive this call.
    first = ctypes.c_char.from_buffer(pages)
    done: int = call(ctypes.addressof(first), len(pages))
    del first
    return done == 0
