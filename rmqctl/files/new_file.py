"""New files of a fixed length, which have their length as soon as they have a name."""

from __future__ import annotations

import contextlib
import errno
import os

from rmqctl.files.durable import FILE_MODE, failed, give_to_owner_of, open_file

_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_NO_NAMING = (errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EINVAL)


def new_file(path: str, size: int, reserve: bool = False) -> int:
    """A descriptor of a new file of ``size`` zero bytes (sparse, unless ``reserve``).

    It gets its name when it has its length, where the file system can do that: a broker refuses
    to start on a file that is shorter, so a kill must not leave one. StoreIOError.
    """
    folder = os.path.dirname(path) or "."
    fd = _unnamed(folder, path)
    if fd >= 0:
        try:
            lay_out(fd, path, size, reserve)
            if _give_name(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "make")
    try:
        lay_out(fd, path, size, reserve)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return fd


def lay_out(fd: int, path: str, size: int, reserve: bool = False) -> None:
    """Gives a file its length, never a smaller one, and with ``reserve`` the space for it."""
    try:
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
    except OSError as error:
        raise failed(error, path, f"make room for {size} bytes in") from None
    if not reserve:
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise failed(error, path, f"reserve {size} bytes for") from None


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
