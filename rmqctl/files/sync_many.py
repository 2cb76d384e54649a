"""Flushing many files and folders to the device at low cost."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import sync_file, sync_folder

MANY = 256
"""Minimum number of files and folders for which the entire file system is flushed at once."""


def sync_many(paths: Sequence[str], folder: str) -> None:
    """Flush files and folders, all on the file system of ``folder``, to the device.

    Each fsync takes some milliseconds. For `MANY` or more files and folders, the entire file system
    is flushed instead, if the operating system supports that.

    Raises: StoreIOError.
    """
    if len(paths) >= MANY and _whole_file_system(folder):
        return
    for path in paths:
        (sync_folder if os.path.isdir(path) else sync_file)(path)


def _whole_file_system(folder: str) -> bool:
    """Flush the file system to the device; return False if the operating system has no call for
    that.
    """
    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError):
        return False
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreIOError.from_oserror(error, folder, "open") from None
    try:
        done, number = call(fd), ctypes.get_errno()
    finally:
        os.close(fd)
    if done != 0 and number not in (errno.ENOSYS, errno.EINVAL):
        refusal = OSError(number, os.strerror(number))
        raise StoreIOError.from_oserror(refusal, folder, "force to disk")
    return bool(done == 0)
