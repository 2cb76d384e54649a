"""Processes that die at a chosen system call, and what a power failure leaves there.

`Trap` counts the calls that change something, and kills its process at one of them. With a `Disk`
it keeps account of what was forced to the device: then the tree as a power failure would leave it
is written beside the store before the process dies.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import unforced

CALLS = ("open", "pwrite", "pwritev", "write", "fsync", "fdatasync", "rename", "link", "ftruncate",
         "mkdir", "unlink", "rmdir")
MODES = ("before", "torn", "after")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_REAL = {name: getattr(os, name) for name in CALLS} | dict.fromkeys(unforced.CALLS, unforced.forced)
Tell = Callable[[int], Any]


def in_child(work: Callable[[Tell], int]) -> tuple[bool, int, int]:
    """(killed, exit code, what it told) of a forked child; ``work`` gives the exit code, and may
    tell a number.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 99
        try:
            code = work(lambda number: _REAL["write"](write, str(number).encode()))
        except BaseException:  # noqa: BLE001  # nothing may get back into the parent's work
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    os.close(write)
    status = os.waitpid(child, 0)[1]
    number = int(os.read(read, 100) or 0)
    os.close(read)
    killed = os.WIFSIGNALED(status)
    return killed, -1 if killed else os.waitstatus_to_exitcode(status), number


class Left(NamedTuple):
    """What a power failure leaves besides what was forced: all ``names``; folders where they were
    ``moved`` to; folders of these names as a ``whole``, which the system had written by itself.
    """

    names: bool = False
    moved: bool = False
    whole: tuple[str, ...] = ()


class Trap:
    """Kills the process at its changing call number ``at`` (0: never): before it, after half of its
    bytes, or after it. ``power`` names the folders that are given what is ``left`` of ``root``.
    """

    def __init__(self, at: int, mode: str, tell: Tell, root: Path, power: str | None = None,
                 left: Mapping[str, Left] | None = None) -> None:
        self.calls, self._at, self._mode, self._tell = 0, at, mode, tell
        self._power, self._left = power, left or {}
        self._disk = Disk(root) if power is not None else None
        self._still = threading.Lock()

    def arm(self) -> None:
        for name, real in _REAL.items():
            setattr(os, name, self._wrap(name, real))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if name == "open" and not args[1] & _WRITING:
                return real(*args, **more)
            self.calls += 1
            here = self.calls == self._at
            if here and self._mode != "after":
                if self._mode == "torn" and name in ("pwrite", "write"):
                    real(args[0], memoryview(args[1])[:max(1, len(args[1]) // 2)], *args[2:])
                self._die()
            try:
                returned = real(*args, **more)
                if self._disk is not None and name in ("fsync", "fdatasync"):
                    with self._still:
                        self._disk.forced(args[0], data_only=name == "fdatasync")
            finally:
                if here:
                    self._die()
            return returned
        return call

    def _die(self) -> None:
        if self._disk is not None:
            self._still.acquire()  # for good: what other threads force now comes too late
            for name, left in self._left.items():
                self._disk.write(Path(f"{self._power}-{name}"), left)
        self._tell(self.calls)
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()


class Disk:
    """What of a tree survives: content by fsync of the file, names by fsync of the folder.
    Everything that is there at the beginning has been forced.

    A folder is known by its inode, so it keeps its content when it is moved; moving one is
    atomic, as it is in a file system with a journal. Files are not so lucky: between the two
    folders of a rename a file may have both names.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._content: dict[int, tuple[bytes, int, int]] = {}
        self._names: dict[int, dict[str, tuple[int, str]]] = {}
        self._held: dict[int, int] = {}  # keeps inode numbers from being used again
        for folder, _, files in os.walk(root):
            self._folder(os.open(folder, os.O_RDONLY), folder)
            for name in files:
                path = os.path.join(folder, name)
                if name != "lock" and not os.path.islink(path):
                    self._file(os.open(path, os.O_RDONLY), data_only=False)

    def forced(self, fd: int, *, data_only: bool) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.basename(path) == "lock":  # opening it again would drop the lock
            return
        again = _REAL["open"](f"/proc/self/fd/{fd}", os.O_RDONLY)
        if os.path.isdir(path):  # of a file without a name the path is made up
            self._folder(again, path)
        else:
            self._file(again, data_only=data_only)

    def _hold(self, fd: int) -> os.stat_result:
        about = os.fstat(fd)
        if about.st_ino in self._held:
            os.close(fd)
        else:
            self._held[about.st_ino] = fd
        return about

    def _file(self, fd: int, *, data_only: bool) -> None:
        size = os.fstat(fd).st_size
        data = os.pread(fd, size, 0) if size else b""
        about = self._hold(fd)
        before = self._content.get(about.st_ino)
        time = before[1] if before is not None and data_only else about.st_mtime_ns
        self._content[about.st_ino] = data, time, about.st_mode

    def _folder(self, fd: int, path: str) -> None:
        inode = self._hold(fd).st_ino
        names = _listed(path)
        moved = {inode for inode, kind in names.values() if kind == "folder"}
        for other in self._names.values():
            for name in [name for name, (inode, _) in other.items() if inode in moved]:
                del other[name]
        self._names[inode] = names

    def write(self, target: Path, left: Left) -> None:
        """The tree after a power failure."""
        self._write(str(self._root), os.stat(self._root).st_ino, str(target), left, fresh=False)

    def _write(self, path: str | None, inode: int, target: str, left: Left, *,
               fresh: bool) -> None:
        """``path`` is where the folder lies now, None if that is not known."""
        _REAL["mkdir"](target)
        names = dict(self._names.get(inode, {}))
        if path is not None and (fresh or left.names or left.moved):
            now = _listed(path)
            # Where folders lie is one thing in the whole tree: never in two places, nor in none.
            names = {
                **{name: key for name, key in names.items() if key[1] == "file"},
                **{name: item for name, item in now.items() if fresh or item[1] == "folder"},
            } if left.moved else now
        for name, (number, kind) in names.items():
            here = os.path.join(path, name) if path is not None else None
            if here is not None and (not os.path.lexists(here)
                                     or os.lstat(here).st_ino != number):
                here = None
            there = os.path.join(target, name)
            if kind == "folder":
                self._write(here, number, there, left, fresh=fresh or name in left.whole)
                continue
            data, time, mode = self._content.get(number, (b"", 0, 0o100644))
            if fresh and here is not None:
                data, time = Path(here).read_bytes(), os.stat(here).st_mtime_ns
            fd = _REAL["open"](there, os.O_WRONLY | os.O_CREAT, 0o600)
            view = memoryview(data)
            while view:
                view = view[_REAL["write"](fd, view):]
            os.fchmod(fd, stat.S_IMODE(mode))
            os.utime(fd, ns=(time, time))
            os.close(fd)


def _listed(path: str) -> dict[str, tuple[int, str]]:
    with os.scandir(path) as entries:
        return {entry.name: (entry.inode(), "folder" if entry.is_dir(follow_symlinks=False)
                             else "file")
                for entry in entries}
