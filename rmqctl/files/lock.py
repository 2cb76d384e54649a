"""The lock of a running broker on its store (spec: checkpoint-and-small-files.md §3).

A Java broker takes a POSIX lock on the first byte of ``lock``; the Rust broker takes a flock(2). On
Linux these locks do not exclude each other, so `StoreLock` acquires both.

A POSIX lock belongs to the process: closing *any* descriptor of the file drops the lock. Therefore:

* While this process holds a `StoreLock` (`held_here`), it must never open the file again, not even
  to find the holder (`rmqctl.files.lock_probe`, ``Store.lock``).
* A second lock in one process is refused before the file is opened. Its flock would fail, and
  closing its descriptor would drop the first POSIX lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rmqctl.errors import RefusedError, StoreHeldError, StoreIOError
from rmqctl.files.durable import (
    failed,
    open_file,
    refuse_own_links,
    sync,
    sync_folder,
    write_all,
)
from rmqctl.files.lock_probe import OWN, probe
from rmqctl.formats.local import lock as lock_format

_REFUSED = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)
_REPLACED = "replaced"
_POINTS = os.path.join(".rmqctl", "backup", "points")
_TRIES = 4
_PAUSE = 0.02
"""Seconds between attempts to take the flock, which a probe may hold for a moment."""

_guard = threading.Lock()


def _identity(path: str) -> tuple[int, int] | None:
    """Return (device, inode) of a file; None if it does not exist."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    return about.st_dev, about.st_ino


def held_here(path: str | os.PathLike[str]) -> bool:
    """Return whether this process holds the lock file at `path`, without opening it."""
    identity = _identity(os.fspath(path))
    return identity is not None and OWN.get(identity) == os.getpid()


class StoreLock:
    """Lock a store against brokers and other rmqctl processes, as a context manager.

    The lock file is created if it is missing, filled only if it is empty, and never deleted.
    `acquire` never waits for a holder, and does not change the file when it fails.

    ``around``: further stores to lock; either all stores are locked or none.
    ``fill``: if False, an empty file stays empty, because it may belong to another process.
    ``of_backup``: whether the caller is a running backup. Any other caller that locks a backup gets
    a RefusedError.

    `acquire` raises StoreHeldError, StoreIOError, or RefusedError if the lock file or an entry of
    ``.rmqctl`` is a link.
    """

    def __init__(self, root: str | os.PathLike[str], around: Iterable[str] = (), *,
                 fill: bool = True, of_backup: bool = False) -> None:
        self.root = os.fspath(root)
        self._of_backup = of_backup
        self._fill = fill
        self._around = [StoreLock(other) for other in around]
        self.path = os.path.join(self.root, "lock")
        self._fd = -1
        self._key: tuple[int, int] = (0, 0)

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def acquire(self) -> None:
        """Acquire the POSIX lock and the flock.

        Raises: StoreHeldError, which names the holder if the system reports it.
        """
        with ExitStack() as stack:
            for lock in self._around:
                stack.enter_context(lock)
            self._acquire()
            stack.pop_all()

    def _acquire(self) -> None:
        with _guard:
            refuse_own_links(self.root)
            if not self._of_backup and os.path.isdir(os.path.join(self.root, _POINTS)):
                raise RefusedError(f"{self.root}: is a backup, which only `rmqctl backup` "
                                   "changes; `rmqctl restore` creates a store from it")
            if held_here(self.path):
                raise StoreHeldError(f"{self.root}: the store is held by this process")
            for attempt in range(_TRIES):
                if self._try(last=attempt == _TRIES - 1):
                    return
                time.sleep(_PAUSE)

    def _try(self, *, last: bool) -> bool:
        """Try once to lock; return False if another attempt may succeed."""
        # Check for the lock file first: a new one needs its folder forced to disk.
        new = not os.path.lexists(self.path)
        fd = open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, "open")
        taken = False
        try:
            kind = self._refused_by(fd)
            if kind is None:
                about = os.fstat(fd)
                # The file may have been replaced between opening and locking.
                if _identity(self.path) != (about.st_dev, about.st_ino):
                    kind = _REPLACED
                else:
                    if not about.st_size and self._fill:
                        write_all(fd, lock_format.CONTENT, 0, self.path)
                        sync(fd, self.path, whole=True)
                    if new:
                        sync_folder(self.root)
                    self._fd, self._key = fd, (about.st_dev, about.st_ino)
                    OWN[self._key] = os.getpid()
                    taken = True
                    return True
        finally:
            if not taken:
                os.close(fd)
        # A broker keeps the POSIX lock while it runs, so another attempt cannot help.
        if kind == "fcntl" or last:
            raise self._refusal(kind)
        return False

    def _refused_by(self, fd: int) -> str | None:
        """Acquire the POSIX lock and the flock; return the kind of the lock that another process
        holds, or None.
        """
        start, length = lock_format.LOCKED_RANGE
        kind = "fcntl"
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start, os.SEEK_SET)
            kind = "flock"
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _REFUSED:
                return kind
            raise failed(error, self.path, "lock") from None
        return None

    def _refusal(self, kind: str) -> StoreHeldError:
        if kind == _REPLACED:
            return StoreHeldError(f"{self.path}: was replaced while it was being locked")
        # The own descriptor is closed by now, so probing cannot drop an own lock.
        state = probe(self.path)
        if state.held:
            kind = state.kind or kind
        who = f"process {state.pid}" if state.held and state.pid else "another process"
        return StoreHeldError(f"{self.root}: the store is held by {who} ({kind})")

    def release(self) -> None:
        """Release the POSIX lock and the flock.

        A forked child only closes the descriptors, without unlocking, because its parent keeps the
        locks.
        """
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with ExitStack() as stack:
            for lock in self._around:
                stack.callback(lock.release)
            self._close(fd)

    def _close(self, fd: int) -> None:
        with _guard:
            OWN.pop(self._key, None)
            try:
                os.close(fd)
            except OSError as error:
                raise failed(error, self.path, "close") from None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self.release()
        except StoreIOError:
            if kind is None:
                raise
