"""What tells a file's state without reading it: length, modification time, inode."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from rmqctl.files.durable import failed

_FOLDER = -1
_GONE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class Mark:
    """``size`` in bytes, -1 for a folder, whose time says nothing of what lies below it."""

    size: int
    mtime_ns: int
    inode: int

    @property
    def is_folder(self) -> bool:
        return self.size == _FOLDER

    def fits(self, other: Mark | None, *, inodes: bool) -> bool:
        """Whether ``other`` is the same file, unchanged. Without ``inodes`` a copy is too."""
        if other is None or self.is_folder != other.is_folder:
            return False
        if inodes and self.inode != other.inode:
            return False
        return self.is_folder or (self.size, self.mtime_ns) == (other.size, other.mtime_ns)


def mark_of(about: os.stat_result) -> Mark:
    """The mark of what was looked at."""
    if stat.S_ISDIR(about.st_mode):
        return Mark(_FOLDER, 0, about.st_ino)
    return Mark(about.st_size, about.st_mtime_ns, about.st_ino)


def look(path: str) -> Mark | None:
    """The mark of what ``path`` names, itself and not what it leads to; None: nothing is there.

    StoreIOError.
    """
    try:
        return mark_of(os.lstat(path))
    except _GONE:
        return None
    except OSError as error:
        raise failed(error, path, "look at") from None


def is_regular(path: str) -> bool:
    """Whether it is a regular file, not a link to one. StoreIOError."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except _GONE:
        return False
    except OSError as error:
        raise failed(error, path, "look at") from None
