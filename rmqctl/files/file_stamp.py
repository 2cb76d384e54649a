"""State of a file that is known without reading its content: length, modification time, inode."""

from __future__ import annotations

import os
import stat

from rmqctl.files.durable import failed
from rmqctl.lazy_dataclass import dataclass

_FOLDER = -1
_CLOCKS = (1, 100, 1_000, 1_000_000, 1_000_000_000)
"""Precisions (ns) with which file systems and archives store modification times."""
_GONE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class FileStamp:
    """State of a file.

    ``size``: in bytes; -1 for a folder. ``mtime_ns``: modification time in ns; 0 for a folder.
    """

    size: int
    mtime_ns: int
    inode: int

    @property
    def is_folder(self) -> bool:
        return self.size == _FOLDER

    def fits(self, other: FileStamp | None) -> bool:
        """Return whether `other` is the same unchanged file, or an unchanged copy.

        A copy has another inode. Its time may be less precise, as in archives and other file
        systems.
        """
        if other is None or self.is_folder != other.is_folder:
            return False
        return self.is_folder or (self.size == other.size and any(
            self.mtime_ns // unit * unit == other.mtime_ns for unit in _CLOCKS))


def stamp_of(about: os.stat_result) -> FileStamp:
    """Return the stamp for a result of `os.stat`."""
    if stat.S_ISDIR(about.st_mode):
        return FileStamp(_FOLDER, 0, about.st_ino)
    return FileStamp(about.st_size, about.st_mtime_ns, about.st_ino)


def stat_file(path: str) -> FileStamp | None:
    """Return the stamp of ``path`` itself, not of a link's target; None if it does not exist.

    Raises: StoreIOError.
    """
    try:
        return stamp_of(os.lstat(path))
    except _GONE:
        return None
    except OSError as error:
        raise failed(error, path, "look at") from None


def is_regular(path: str) -> bool:
    """Return whether the path is a regular file, not a link to a file.

    Raises: StoreIOError.
    """
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except _GONE:
        return False
    except OSError as error:
        raise failed(error, path, "look at") from None
