"""Accidents for commands that repair: failing system calls, kills, power failures.

One line puts a whole command through them::

    faults_of(lambda root: rmqctl("truncate", root, "--to-phy", "0", "--apply", "--yes"),
              make_store, tmp_path)

``make_store(folder)`` makes a store in a folder that is not there yet. After each accident every
byte of the store is old or new, the same command run again completes it, and undo restores
content, names and times exactly.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import stat
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rmqctl.errors import RmqctlError
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.executor.journal import history
from tests.engine_write.files_support import failing
from tests.support import snapshot

Command = Callable[[Path], Any]
MakeStore = Callable[[Path], Any]
State = dict[str, tuple[str, int, str]]
"""Path below the root -> (kind, modification time in ns, content); without .rmqctl and lock."""

CALLS = ("open", "pwrite", "pwritev", "write", "fsync", "fdatasync", "rename", "link", "ftruncate",
         "mkdir", "unlink", "rmdir")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES)
LEFT_OUT = (".rmqctl", "lock")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


# -- what a store is --------------------------------------------------------------------------


def state(root: Path, *, times: bool = True) -> State:
    """The store without rmqctl's own files. Without ``times`` these are all 0."""
    found: State = {}
    for folder, folders, files in os.walk(root):
        if Path(folder) == root:
            folders[:] = [one for one in folders if one not in LEFT_OUT]
            files[:] = [one for one in files if one not in LEFT_OUT]
        for name in (*folders, *files):
            path = Path(folder, name)
            about = path.lstat()
            kind = stat.filemode(about.st_mode)
            content = str(path.readlink()) if path.is_symlink() else (
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
            found[str(path.relative_to(root))] = (kind, about.st_mtime_ns if times else 0, content)
    return found


def differences(found: State, wanted: State) -> list[str]:
    return [f"{path}: {found.get(path)} instead of {wanted.get(path)}"
            for path in sorted({*found, *wanted}) if found.get(path) != wanted.get(path)]


def without_folder_times(found: State) -> State:
    return {path: (kind, 0 if kind[0] == "d" else time, content)
            for path, (kind, time, content) in found.items()}


def bytes_of(root: Path) -> dict[str, bytes]:
    return {path: (root / path).read_bytes() for path, (kind, _, _) in state(root).items()
            if kind[0] == "-"}


def undo_all(root: Path) -> int:
    """Takes back every repair, the newest first; how many there were."""
    count = 0
    for one in reversed(history(str(root))):
        if one.state not in ("undone", "abandoned"):
            with Repair(str(root), "undo", finish=False) as repair:
                repair.undo(one.id)
            count += 1
    return count


def _succeeds(command: Command, root: Path) -> None:
    done = command(root)
    code = getattr(done, "code", 0)
    assert code in (0, 1), done.describe()


class Trial:
    """A store before and after a command; fresh copies of it, and what must hold."""

    def __init__(self, command: Command, make_store: MakeStore, folder: Path, *,
                 undo: bool = True, exact: bool = False) -> None:
        self.command, self.folder, self.undo, self.exact = command, folder, undo, exact
        self._first = folder / "first"
        make_store(self._first)
        self.root = folder / "store"
        self.old_state, self.old_bytes = state(self._first), bytes_of(self._first)
        _succeeds(command, self.fresh())
        self.new_state, self.new_bytes = state(self.root, times=exact), bytes_of(self.root)
        assert self.new_bytes != self.old_bytes, "the command does nothing"

    def fresh(self) -> Path:
        shutil.rmtree(self.root, ignore_errors=True)
        return snapshot.copy_tree(self._first, self.root)

    def assert_old_or_new(self) -> None:
        """Every byte is what it was or what it becomes; a file may be there or not."""
        for path, data in bytes_of(self.root).items():
            choices = [one[path] for one in (self.old_bytes, self.new_bytes) if path in one]
            if data in choices:
                continue
            assert choices, f"{path}: a file neither before nor after has"
            longest = max(map(len, choices))
            padded = [one.ljust(longest, b"\0") for one in choices]
            assert len(data) in {len(one) for one in choices}, path
            assert all(byte in both for byte, *both in zip(
                data.ljust(longest, b"\0"), *padded, strict=True)), f"{path}: other bytes"

    def assert_completes(self, *, folder_times: bool = True) -> None:
        """Run again it comes to its end, and undo brings everything back."""
        self.assert_old_or_new()
        _succeeds(self.command, self.root)
        now, new = state(self.root, times=self.exact), self.new_state
        if not folder_times:
            now, new = without_folder_times(now), without_folder_times(new)
        found = differences(now, new)
        assert not found, "\n".join(found)
        if not self.undo:
            return
        assert undo_all(self.root), "the command cannot be undone"
        now, old = state(self.root), self.old_state
        if not folder_times:
            now, old = without_folder_times(now), without_folder_times(old)
        found = differences(now, old)
        assert not found, "\n".join(found)

    def assert_undoes(self) -> None:
        """Taken back right after the accident, whether it was carried out or not."""
        undo_all(self.root)
        found = differences(state(self.root), self.old_state)
        assert not found, "\n".join(found)


# -- failing system calls ---------------------------------------------------------------------


def faults_of(command: Command, make_store: MakeStore, folder: Path, *,
              errors: Sequence[int] = ERRORS, every_error: bool = False, step: int = 1,
              undo: bool = True, exact: bool = False, calls: tuple[str, ...] = CALLS) -> int:
    """The command with its n-th system call failing, for n = 1, 2, 3 … until none fails.

    Each n with the call failing once and with all from then on; with one of the ``errors`` in
    turn, or with every one. ``step`` above 1 leaves numbers out. ``undo`` False: it cannot be
    undone; ``exact``: times too are always the same after it. How many accidents there were.
    """
    trial = Trial(command, make_store, folder, undo=undo, exact=exact)
    number, count = 1, 0
    while True:
        fired = False
        for for_ever in (False, True):
            chosen = errors if every_error else [errors[(number + for_ever) % len(errors)]]
            for error in chosen:
                trial.fresh()
                with failing(number, error, calls, for_ever=for_ever) as faults:
                    failed = _fails(command, trial.root)
                count += bool(faults.fired)
                fired = fired or bool(faults.fired)
                assert faults.fired or not failed, "it fails without a fault"
                if undo and number % 3 == 0:
                    trial.assert_undoes()
                trial.assert_completes()
        if not fired:
            return count
        number += step


def _fails(command: Command, root: Path) -> bool:
    """Whether it says that it failed; anything but a clear error is one of the test."""
    try:
        done = command(root)
    except RmqctlError as error:
        assert str(error)
        return True
    return getattr(done, "code", 0) not in (0, 1)


# -- kills ------------------------------------------------------------------------------------


def kills_of(command: Command, make_store: MakeStore, folder: Path, *,
             points: Iterable[int] | None = None, most: int | None = None, undo: bool = True,
             exact: bool = False, power: bool = False) -> int:
    """The command killed by SIGKILL at its n-th changing system call, in a child process.

    At each of ``points``, else at every call, or at ``most`` of them evenly spread. In turn
    before the call, after half of its bytes, and after it. With ``power`` the store is also
    what a power failure leaves of it. How many kills there were.
    """
    trial = Trial(command, make_store, folder, undo=undo, exact=exact)
    trial.fresh()
    calls = _in_child(trial, 0, "before", None)[1]
    if points is None:
        points = range(1, calls + 1)
        if most is not None and calls > most:
            points = sorted({1 + number * (calls - 1) // (most - 1) for number in range(most)})
    count = 0
    for number in points:
        mode = ("before", "torn", "after")[number % 3]
        trial.fresh()
        lost = folder / "power" if power else None
        killed, _ = _in_child(trial, number, mode, lost)
        assert killed, f"no call {number}"
        count += 1
        if lost is not None:
            for variant in VARIANTS:
                shutil.rmtree(trial.root)
                (folder / f"power-{variant}").rename(trial.root)
                trial.assert_completes(folder_times=False)
            continue
        if undo and number % 4 == 0:
            trial.assert_undoes()
        trial.assert_completes()
    return count


def _in_child(trial: Trial, at: int, mode: str, power: Path | None) -> tuple[bool, int]:
    """(killed, number of calls) of the command in a child that dies at its call ``at``."""
    for variant in VARIANTS if power is not None else ():
        shutil.rmtree(f"{power}-{variant}", ignore_errors=True)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            trap = _Trap(at, mode, trial.root, power)
            trap.arm()
            _succeeds(trial.command, trial.root)
            os.write(write, str(trap.calls).encode())
        except BaseException:  # noqa: BLE001  # nothing may get back into the test
            traceback.print_exc()
            os._exit(99)
        os._exit(0)
    os.close(write)
    status = os.waitpid(child, 0)[1]
    answer = int(os.read(read, 100) or 0)
    os.close(read)
    killed = os.WIFSIGNALED(status)
    assert killed or status == 0, "the command failed in the child"
    return killed, answer


class _Trap:
    def __init__(self, at: int, mode: str, root: Path, power: Path | None) -> None:
        self.calls, self._at, self._mode, self._power = 0, at, mode, power
        self._disk = Disk(root) if power is not None else None

    def arm(self) -> None:
        for name in CALLS:
            setattr(os, name, self._wrap(name, getattr(os, name)))

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
                found = real(*args, **more)
                if self._disk is not None and name in ("fsync", "fdatasync"):
                    self._disk.forced(args[0], data_only=name == "fdatasync")
            finally:
                if here:
                    self._die()
            return found
        return call

    def _die(self) -> None:
        if self._disk is not None:
            for variant in VARIANTS:
                self._disk.write(Path(f"{self._power}-{variant}"), variant)
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()


# -- power failures ---------------------------------------------------------------------------

VARIANTS = ("forced", "names", "own")
"""What is there afterwards: only what was forced; all names, but only forced content; what is
below .rmqctl with new names and those that went, and else what was forced."""
_REAL = {name: getattr(os, name) for name in ("open", "mkdir", "write")}


class Disk:
    """What of a tree survives: content by fsync of the file, names by fsync of the folder.

    A folder is known by its inode, so it keeps its content when it is moved; moving one is
    atomic, as it is in a file system with a journal. Files are not so lucky: between the two
    folders of a rename a file may have both names.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._content: dict[int, tuple[bytes, int, int]] = {}
        self._names: dict[int, dict[str, tuple[int, str]]] = {}
        self._held: list[int] = []  # keeps inode numbers from being used again
        self._real_open, self._real_write = os.open, os.write
        for folder, _, files in os.walk(root):
            self._folder(os.open(folder, os.O_RDONLY), folder)
            for name in files:
                path = os.path.join(folder, name)
                if name != "lock" and not os.path.islink(path):
                    fd = os.open(path, os.O_RDONLY)
                    self._file(fd, data_only=False)

    def forced(self, fd: int, *, data_only: bool) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.basename(path) == "lock":  # opening it again would drop the lock
            return
        again = self._real_open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        if os.path.isdir(path):
            self._folder(again, path)
        else:
            self._file(again, data_only=data_only)

    def _file(self, fd: int, *, data_only: bool) -> None:
        self._held.append(fd)
        about = os.fstat(fd)
        before = self._content.get(about.st_ino)
        time = before[1] if before is not None and data_only else about.st_mtime_ns
        data = os.pread(fd, about.st_size, 0) if about.st_size else b""
        self._content[about.st_ino] = data, time, about.st_mode

    def _folder(self, fd: int, path: str) -> None:
        self._held.append(fd)
        with os.scandir(path) as entries:
            names = {one.name: (one.inode(), _kind(one)) for one in entries}
        moved = {inode for inode, kind in names.values() if kind == "folder"}
        for other in self._names.values():
            for name in [name for name, (inode, _) in other.items() if inode in moved]:
                del other[name]
        self._names[os.fstat(fd).st_ino] = names

    def write(self, target: Path, variant: str) -> None:
        self._write(str(self._root), os.stat(self._root).st_ino, str(target), variant, fresh=False)

    def _write(self, path: str | None, inode: int, target: str, variant: str, *,
               fresh: bool) -> None:
        """``path`` is where the folder lies now, None if that is not known."""
        _REAL["mkdir"](target)
        names = dict(self._names.get(inode, {}))
        if path is not None and variant != "forced":
            with os.scandir(path) as entries:
                now = {one.name: (one.inode(), _kind(one)) for one in entries}
            # Where folders lie is one thing in the whole tree: never in two places, nor in none.
            names = now if variant == "names" else {
                **{name: one for name, one in names.items() if one[1] == "file"},
                **{name: one for name, one in now.items() if fresh or one[1] == "folder"}}
        for name, (number, kind) in names.items():
            here = os.path.join(path, name) if path is not None else None
            if here is not None and (not os.path.lexists(here)
                                     or os.lstat(here).st_ino != number):
                here = None
            there = os.path.join(target, name)
            if kind == "folder":
                self._write(here, number, there, variant,
                            fresh=fresh or (variant == "own" and name == ".rmqctl"))
                continue
            data, time, mode = self._content.get(number, (b"", 0, 0o100644))
            if fresh and here is not None:
                data, time = Path(here).read_bytes(), os.stat(here).st_mtime_ns
            fd = self._real_open(there, os.O_WRONLY | os.O_CREAT, 0o600)
            view = memoryview(data)
            while view:
                view = view[self._real_write(fd, view):]
            os.fchmod(fd, stat.S_IMODE(mode))
            os.utime(fd, ns=(time, time))
            os.close(fd)


def _kind(entry: os.DirEntry[str]) -> str:
    return "folder" if entry.is_dir(follow_symlinks=False) else "file"
