"""Making and opening the files of a commitlog: where they go and how they come to be
(spec: commitlog.md §1).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Sequence

from rmqctl.engine.log_file import ChannelFile, LogFile, MappedFile, PooledFile
from rmqctl.engine.log_pool import BufferPool
from rmqctl.engine.storage import (
    FILE_MODE,
    failed,
    give_to_owner_of,
    make_folders,
    open_file,
)
from rmqctl.errors import RefusedError
from rmqctl.scan.source import FileSource

_READ = 1 << 20
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_NO_NAMING = (errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EINVAL)


def place(folders: Sequence[str], start: int, file_size: int, *,
          read_only: Collection[str] = (), full: Collection[str] = ()) -> str:
    """The folder in which the file that starts at physical offset ``start`` is made.

    Folders that are ``full`` are passed over unless all are. RefusedError when every folder is
    ``read_only``.
    """
    writable = {one for one in folders if one not in read_only}
    candidates = sorted(writable.difference(full) or writable)
    if not candidates:
        raise RefusedError("every commitlog folder is read-only: nowhere to make a file")
    return candidates[start // file_size % len(candidates)]


def is_all_zero(path: str) -> bool:
    """Whether a file holds nothing but zeros; holes are not read. StoreIOError."""
    with FileSource(path) as source:
        at = source.next_data(0)
        while at < source.size:
            data = source.read(at, _READ)
            if data.count(0) != len(data):
                return False
            at = source.next_data(at + _READ)
    return True


class Maker:
    """Makes and opens log files of one length for one way of writing them.

    With a ``pool`` appends go to its buffers and ``mapped`` does not matter, as in a broker.
    """

    def __init__(self, file_size: int, *, mapped: bool = False, warm: bool = False,
                 pool: BufferPool | None = None) -> None:
        self.file_size, self.warm, self.pool = file_size, warm, pool
        self.mapped = mapped and pool is None

    def open(self, path: str, base: int, position: int) -> LogFile:
        """An existing file, to be appended to at ``position``.

        RefusedError when its length is not that of the log's files, StoreIOError.
        """
        fd = open_file(path, os.O_RDWR)
        try:
            size = os.fstat(fd).st_size
            if size != self.file_size:
                raise RefusedError(f"{path}: is {size} bytes long, not {self.file_size}: the "
                                   "store needs to be recovered first")
            self._reserve(fd, path)
            return self._wrap(fd, path, base, position)
        except BaseException:
            os.close(fd)
            raise

    def next(self, path: str, base: int) -> LogFile:
        """The file to go on with: one laid out earlier that holds nothing, or a new one.

        RefusedError when a file with anything in it has the name, StoreIOError.
        """
        fd = self._create(path) if not os.path.lexists(path) else self._take(path)
        try:
            return self._wrap(fd, path, base, 0, fresh=True)
        except BaseException:
            os.close(fd)
            raise

    def _take(self, path: str) -> int:
        """A file laid out earlier. Where it is too short, somebody was killed making it."""
        if not is_all_zero(path):
            raise RefusedError(f"{path}: holds data behind the end of the log: the store needs "
                               "to be recovered first")
        fd = open_file(path, os.O_RDWR)
        try:
            if os.fstat(fd).st_size > self.file_size:
                raise RefusedError(f"{path}: is longer than {self.file_size} bytes")
            self._lay_out(fd, path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _wrap(self, fd: int, path: str, base: int, position: int, *,
              fresh: bool = False) -> LogFile:
        size = self.file_size
        if self.mapped:
            return MappedFile(fd, path, base, size, position, fresh=fresh, warm=self.warm)
        if self.pool is not None:
            return PooledFile(fd, path, base, size, position, fresh=fresh, pool=self.pool)
        return ChannelFile(fd, path, base, size, position, fresh=fresh)

    def _create(self, path: str) -> int:
        """A new file of full length. It gets its name when it has its length, where possible:
        a broker refuses to start on a file that is shorter, so a kill must not leave one.
        """
        folder = os.path.dirname(path)
        make_folders(folder)
        fd = self._unnamed(folder, path)
        if fd >= 0:
            try:
                self._lay_out(fd, path)
                if _give_name(fd, path):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
        fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "make")
        try:
            self._lay_out(fd, path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return fd

    @staticmethod
    def _unnamed(folder: str, path: str) -> int:
        """A file without a name in ``folder``; -1 where the file system knows no such thing."""
        try:
            fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            if error.errno in _NO_UNNAMED:
                return -1
            raise failed(error, path, "make") from None
        give_to_owner_of(folder, fd)
        return fd

    def _lay_out(self, fd: int, path: str) -> None:
        """Gives the file its length, never a smaller one."""
        try:
            if os.fstat(fd).st_size < self.file_size:
                os.ftruncate(fd, self.file_size)
        except OSError as error:
            raise failed(error, path, f"make room for {self.file_size} bytes in") from None
        self._reserve(fd, path)

    def _reserve(self, fd: int, path: str) -> None:
        """For a mapping the space itself: a hole of a full disk would be a SIGBUS."""
        if not self.mapped:
            return
        try:
            os.posix_fallocate(fd, 0, self.file_size)
        except OSError as error:
            raise failed(error, path, f"reserve {self.file_size} bytes for") from None


def _give_name(fd: int, path: str) -> bool:
    """Names a file that has none; False where that cannot be done here."""
    folder = os.path.dirname(path) or "."
    try:
        # With a folder's descriptor Python uses linkat(2), which can follow /proc's link.
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.link(f"/proc/self/fd/{fd}", os.path.basename(path), src_dir_fd=at, dst_dir_fd=at,
                    follow_symlinks=True)
        finally:
            os.close(at)
    except OSError as error:
        if error.errno in _NO_NAMING:
            return False
        raise failed(error, path, "make") from None
    return True
