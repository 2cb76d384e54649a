"""Finds the holder of a store's ``lock`` file without writing a byte.

A Java broker takes a POSIX (fcntl) lock on byte 0; the Rust broker takes a flock(2). On Linux these
locks do not exclude each other, so both are probed (spec: checkpoint-and-small-files.md §3).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct

from rmqctl import vfs
from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import open_regular

# struct flock on Linux: l_type, l_whence, l_start, l_len, l_pid (native alignment).
_FLOCK = struct.Struct("hhqqi")


@dataclass(frozen=True, slots=True)
class LockState:
    """State of a lock file. ``kind``: ``fcntl``, ``flock`` or None; ``pid``: None if the system
    does not report it.
    """

    held: bool
    pid: int | None = None
    kind: str | None = None
    note: str = ""


OWN: dict[tuple[int, int], int] = {}
"""Lock files that this program's processes hold: (device, inode) -> process id.

Closing any descriptor of a file drops this process's POSIX lock on it. A locked file must therefore
not even be opened for a probe.
"""


def probe(path: str) -> LockState:
    """Return the state of the lock file at ``path``. Read-only: F_GETLK does not take the lock."""
    if not vfs.lexists(path):
        return LockState(False, note="no lock file")
    if vfs.is_remote(path):
        return LockState(False)
    with contextlib.suppress(OSError):
        about = os.stat(path)
        if OWN.get((about.st_dev, about.st_ino)) == os.getpid():
            return LockState(True, os.getpid(), "fcntl", "by this process")
    try:
        fd = open_regular(path)
    except StoreIOError as error:
        return LockState(False, note=str(error))
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            answer = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        except OSError as error:
            return LockState(False, note=f"locks are not available here: {error.strerror}")
        if answer[0] != fcntl.F_UNLCK:
            return LockState(True, answer[4] if answer[4] > 0 else None, "fcntl")
        return _probe_flock(fd)
    finally:
        os.close(fd)


def _probe_flock(fd: int) -> LockState:
    info = os.fstat(fd)
    try:
        # A shared lock that is released immediately; it changes nothing on disk.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return LockState(True, _flock_pid(info.st_dev, info.st_ino), "flock")
        return LockState(False, note=f"flock is not available here: {error.strerror}")
    fcntl.flock(fd, fcntl.LOCK_UN)
    return LockState(False)


def _flock_pid(device: int, inode: int) -> int | None:
    """Return the holder's PID from ``/proc/locks``; None if it is not listed."""
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    try:
        with open("/proc/locks", encoding="ascii") as lines:
            for line in lines:
                parts = line.split()
                if len(parts) >= 6 and parts[1] == "FLOCK" and parts[5] == wanted:
                    return int(parts[4]) if int(parts[4]) > 0 else None
    except (OSError, ValueError):
        pass
    return None
