"""Used space of a store's file systems, as a broker computes it (spec: recovery.md §12)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import failed

BLOCK = 512
"""Size in bytes of a block that ``st_blocks`` counts."""
_SECONDS = 1.0
"""Seconds between two checks of the used space."""


def used_ratio(folder: str) -> float:
    """Return the used share of the file system, rounded up to whole hundredths.

    Space reserved for the administrator counts neither as used nor as free. For a missing folder,
    the nearest existing parent folder is examined.

    Raises: StoreIOError.
    """
    existing = os.path.abspath(folder)
    while True:
        try:
            system = os.statvfs(existing)
            break
        except FileNotFoundError:
            existing = os.path.dirname(existing)
        except OSError as error:
            raise failed(error, folder, "determine the free space of") from None
    used = system.f_blocks - system.f_bfree
    entire = used + system.f_bavail
    if not system.f_blocks or not entire:  # a file system without a size
        return 0.0
    return -(-used * 100 // entire) / 100


def over_watermark(folders: Iterable[str], ratio: float) -> bool:
    """Return whether the used share of each folder's file system exceeds `ratio`.

    A ratio of 1 or more is never exceeded, and no file system is checked then.

    Raises: StoreIOError.
    """
    if ratio >= 1:
        return False
    return min((used_ratio(folder) for folder in folders), default=0.0) > ratio


def full_folders(folders: Iterable[str], ratio: float) -> frozenset[str]:
    """Return the folders whose file system is fuller than ``ratio``. A folder that cannot be
    checked is omitted.
    """
    full = set()
    for folder in folders:
        try:
            if used_ratio(folder) > ratio:
                full.add(folder)
        except StoreIOError:
            continue
    return frozenset(full)


def free_bytes(folder: str) -> int | None:
    """Return the number of bytes that can still be written to the file system of a folder; None if
    unknown.

    Raises: OSError.
    """
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize if system.f_blocks else None


class Watch:
    """Calls `over_watermark` for folders, at most once a second."""

    def __init__(self, folders: Iterable[str], ratio: float) -> None:
        self._folders, self._ratio = list(folders), ratio
        self._next, self._full = 0.0, False

    def is_full(self) -> bool:
        """Return the last result of `over_watermark`.

        Raises: StoreIOError.
        """
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _SECONDS
            self._full = over_watermark(self._folders, self._ratio)
        return self._full


def bytes_below(folder: str) -> int:
    """Return the number of bytes on disk that all files below a folder occupy. Unreadable files are
    skipped.
    """
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * BLOCK
    return total
