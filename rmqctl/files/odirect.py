"""Writing of large blocks with O_DIRECT, which bypasses the page cache.

Data uploaded to a tier or copied to a backup is not read again soon. A gigabyte of it would evict
pages that a broker on the same machine needs. Direct writes are also faster on virtual machines
that allocate memory page by page. On file systems that do not support O_DIRECT (tmpfs, some FUSE
file systems), bytes are written as usual.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

from rmqctl.errors import StoreIOError
from rmqctl.files import durable
from rmqctl.scan.source import Closing, FileSource

BLOCK = 4096
"""Alignment of positions, lengths and memory; no device needs more."""
FROM = 1 << 17
"""Minimum size in bytes of a direct write; smaller blocks would need too many device writes."""
_PIECE = 4 << 20
_WRITERS = 2
"""Number of blocks that a `DirectCopy` writes while it reads the next one."""
_FLAG = getattr(os, "O_DIRECT", 0)


class DirectWriter:
    """Writer of large blocks with O_DIRECT. For one thread at a time; allocates 4 MiB on
    first use.
    """

    def __init__(self) -> None:
        self._room: mmap.mmap | None = None
        self._refused = not _FLAG

    def write(self, fd: int, data: durable.Part, position: int, where: str) -> None:
        """Write all of ``data`` at ``position``.

        Raises: StoreIOError, possibly after a part was written.
        """
        view = memoryview(data)
        head = min(-position % BLOCK, len(view))
        full_blocks = (len(view) - head) // BLOCK * BLOCK
        if self._refused or full_blocks < FROM:
            durable.write_all(fd, view, position, where)
            return
        durable.write_all(fd, view[:head], position, where)
        try:
            with _directly(fd):
                done = head + self._pieces(fd, view[head:head + full_blocks], position + head)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise durable.failed(error, where, "write to") from None
            self._refused, done = True, head
        durable.write_all(fd, view[done:], position + done, where)

    def _pieces(self, fd: int, view: memoryview, position: int) -> int:
        """Write aligned bytes; return the number written, which is less if the system wrote only a
        part of a block.
        """
        if self._room is None:
            self._room = mmap.mmap(-1, _PIECE)  # memory aligned to a page
        done = 0
        with memoryview(self._room) as room:
            while done < len(view):
                size = min(_PIECE, len(view) - done)
                room[:size] = view[done:done + size]
                with room[:size] as piece:
                    count = os.pwrite(fd, piece, position + done)
                done += count
                if count % BLOCK or not count:
                    break
        return done

    def close(self) -> None:
        """Release the aligned buffer."""
        if self._room is not None:
            self._room.close()
            self._room = None


class DirectCopy(Closing):
    """Copy of large ranges of a file into another file. Each block is written with O_DIRECT by
    another thread while the next block is read. For one thread at a time.

    * ``fd``: descriptor of the copy, for blocks that the system does not write with O_DIRECT
    * ``rooms``: buffers of an earlier copy, which are used again; new ones are added
    """

    def __init__(self, fd: int, path: str, rooms: list[mmap.mmap]) -> None:
        self._fd, self._path, self._direct, self._rooms = fd, path, -1, rooms
        if _FLAG:
            with suppress(OSError):
                self._direct = os.open(path, os.O_RDWR | os.O_CLOEXEC | _FLAG)
        self._refused = self._direct < 0
        while len(rooms) <= _WRITERS and not self._refused:
            rooms.append(mmap.mmap(-1, _PIECE))
        self._writing: deque[tuple[Future[None], mmap.mmap]] = deque()
        self._writers = ThreadPoolExecutor(_WRITERS, "rmqctl-write")

    def copy(self, source: FileSource, position: int, length: int) -> int:
        """Copy up to ``length`` bytes at ``position``. Return the number of bytes that are written
        or will be; 0 if the caller must copy them: they are not aligned, too few, or cannot be
        read, or the system does not support O_DIRECT.

        Raises: StoreIOError if an earlier block could not be written.
        """
        length = min(length, _PIECE) // BLOCK * BLOCK
        if self._refused or position % BLOCK or length < FROM:
            return 0
        if not self._rooms:
            done, room = self._writing.popleft()
            self._rooms.append(room)  # even after an error
            done.result()
        room = self._rooms.pop()
        with memoryview(room) as whole, whole[:length] as view:
            try:
                count = source.read_into(view, position)
            except StoreIOError:
                count = 0
        if count < length:
            self._rooms.append(room)
            return 0
        self._writing.append((self._writers.submit(self._write, room, length, position), room))
        return length

    def _write(self, room: mmap.mmap, length: int, position: int) -> None:
        done = 0
        with memoryview(room) as whole:
            try:
                while done < length and not done % BLOCK and not self._refused:
                    with whole[done:length] as rest:
                        done += os.pwrite(self._direct, rest, position + done)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise durable.failed(error, self._path, "write to") from None
                self._refused = True
            with whole[done:length] as rest:
                durable.write_all(self._fd, rest, position + done, self._path)

    def finish(self) -> None:
        """Wait until all blocks are written. Raises: StoreIOError."""
        while self._writing:
            done, room = self._writing.popleft()
            self._rooms.append(room)
            done.result()

    def close(self) -> None:
        """Wait for the writing threads."""
        wait([done for done, _ in self._writing])
        self._writers.shutdown()
        self._rooms += [room for _, room in self._writing]
        self._writing.clear()
        direct, self._direct, self._refused = self._direct, -1, True
        if direct >= 0:
            os.close(direct)


@contextmanager
def _directly(fd: int) -> Iterator[None]:
    """Bypass the page cache for writes to a descriptor while the context is open.

    Raises: OSError.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | _FLAG)
    try:
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
