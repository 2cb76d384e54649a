"""Writing of large blocks with O_DIRECT, which bypasses the page cache.

Data uploaded to a tier is not read again soon. A gigabyte of it would evict pages that a broker on
the same machine needs. Direct writes are also faster on virtual machines that allocate memory page
by page. On file systems that do not support O_DIRECT (tmpfs, some FUSE file systems), bytes are
written as usual.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rmqctl.files import durable

BLOCK = 4096
"""Alignment of positions, lengths and memory; no device needs more."""
FROM = 1 << 17
"""Minimum size in bytes of a direct write; smaller blocks would need too many device writes."""
_PIECE = 4 << 20
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
