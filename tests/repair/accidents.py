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
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rmqctl.errors import RmqctlError
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.executor.journal import history
from tests.engine_write.files_support import failing
from tests.support import deaths, snapshot
from tests.support.deaths import CALLS, MODES, Left, Tell, Trap
from tests.support.share import RUN

Command = Callable[[Path], Any]
MakeStore = Callable[[Path], Any]
State = dict[str, tuple[str, int, str]]
"""Path below the root -> (kind, modification time in ns, content); without .rmqctl and lock."""

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES)
LEFT_OUT = (".rmqctl", "lock")
VARIANTS = {"forced": Left(), "names": Left(names=True),
            "own": Left(moved=True, whole=(".rmqctl",))}
"""What a power failure leaves: only what was forced; all names, but only forced content; what is
below .rmqctl with new names and those that went, and else what was forced."""


# -- what a store is --------------------------------------------------------------------------


def state(root: Path, *, times: bool = True) -> State:
    """The store without rmqctl's own files. Without ``times`` these are all 0."""
    state: State = {}
    for folder, folders, files in os.walk(root):
        if Path(folder) == root:
            folders[:] = [directory for directory in folders if directory not in LEFT_OUT]
            files[:] = [file for file in files if file not in LEFT_OUT]
        for name in (*folders, *files):
            path = Path(folder, name)
            about = path.lstat()
            kind = stat.filemode(about.st_mode)
            content = str(path.readlink()) if path.is_symlink() else (
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
            state[str(path.relative_to(root))] = (kind, about.st_mtime_ns if times else 0, content)
    return state


def differences(state: State, wanted: State) -> list[str]:
    return [f"{path}: {state.get(path)} instead of {wanted.get(path)}"
            for path in sorted({*state, *wanted}) if state.get(path) != wanted.get(path)]


def without_folder_times(state: State) -> State:
    return {path: (kind, 0 if kind[0] == "d" else time, content)
            for path, (kind, time, content) in state.items()}


def bytes_of(root: Path) -> dict[str, bytes]:
    return {path: (root / path).read_bytes() for path, (kind, _, _) in state(root).items()
            if kind[0] == "-"}


def undo_all(root: Path, *named: Path) -> int:
    """Takes back every repair, the newest first; how many there were."""
    count = 0
    for kept_repair in reversed(history(str(root))):
        if kept_repair.state not in ("undone", "abandoned"):
            with Repair(str(root), "undo", finish=False, named=[*map(str, named)]) as repair:
                repair.undo(kept_repair.id)
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
            choices = [item[path] for item in (self.old_bytes, self.new_bytes) if path in item]
            if data in choices:
                continue
            assert choices, f"{path}: a file neither before nor after has"
            longest = max(map(len, choices))
            padded = [choice.ljust(longest, b"\0") for choice in choices]
            assert len(data) in {len(choice) for choice in choices}, path
            assert all(byte in both for byte, *both in zip(
                data.ljust(longest, b"\0"), *padded, strict=True)), f"{path}: other bytes"

    def assert_completes(self, *, folder_times: bool = True) -> None:
        """Run again it comes to its end, and undo brings everything back."""
        self.assert_old_or_new()
        _succeeds(self.command, self.root)
        now, new = state(self.root, times=self.exact), self.new_state
        if not folder_times:
            now, new = without_folder_times(now), without_folder_times(new)
        texts = differences(now, new)
        assert not texts, "\n".join(texts)
        if not self.undo:
            return
        assert undo_all(self.root), "the command cannot be undone"
        now, old = state(self.root), self.old_state
        if not folder_times:
            now, old = without_folder_times(now), without_folder_times(old)
        texts = differences(now, old)
        assert not texts, "\n".join(texts)

    def assert_undoes(self) -> None:
        """Taken back right after the accident, whether it was carried out or not."""
        undo_all(self.root)
        texts = differences(state(self.root), self.old_state)
        assert not texts, "\n".join(texts)


# -- failing system calls ---------------------------------------------------------------------


def faults_of(command: Command, make_store: MakeStore, folder: Path, *,
              every_error: bool = False, step: int = 1, undo: bool = True,
              exact: bool = False) -> int:
    """The command with its n-th system call failing, for n = 1, 2, 3 … until none fails.

    Each n with the call failing once and with all from then on; with one of the `ERRORS` in
    turn, or with every one. ``step`` above 1 leaves numbers out, each day others. ``undo`` False:
    it cannot be undone; ``exact``: times too are always the same after it. How many accidents
    there were.
    """
    trial = Trial(command, make_store, folder, undo=undo, exact=exact)
    number, count = 1 + RUN.seed % step, 0
    while True:
        fired = False
        for for_ever in (False, True):
            chosen = ERRORS if every_error else [ERRORS[(number + for_ever) % len(ERRORS)]]
            for error in chosen:
                trial.fresh()
                with failing(number, error, CALLS, for_ever=for_ever) as faults:
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
             most: int | None = None, undo: bool = True, exact: bool = False,
             power: bool = False) -> int:
    """The command killed by SIGKILL at its n-th changing system call, in a child process.

    At every call, or at ``most`` of them evenly spread, each day others. In turn before the call,
    after half of its bytes, and after it. With ``power`` the store is also
    what a power failure leaves of it. How many kills there were.
    """
    trial = Trial(command, make_store, folder, undo=undo, exact=exact)
    trial.fresh()
    calls = in_child(trial, 0, "before")[1]
    points: Iterable[int] = range(1, calls + 1)
    if most is not None and calls > most:
        points = sorted({1 + (number * calls // most + RUN.seed) % calls for number in range(most)})
    count = 0
    for number in points:
        mode = MODES[number % 3]
        trial.fresh()
        lost = folder / "power" if power else None
        killed, _ = in_child(trial, number, mode, lost)
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


def in_child(trial: Trial, at: int, mode: str, power: Path | None = None) -> tuple[bool, int]:
    """(killed, number of calls) of the command in a child that dies at its call ``at``."""
    for variant in VARIANTS if power is not None else ():
        shutil.rmtree(f"{power}-{variant}", ignore_errors=True)

    def work(tell: Tell) -> int:
        trap = Trap(at, mode, tell, trial.root, None if power is None else str(power), VARIANTS)
        trap.arm()
        _succeeds(trial.command, trial.root)
        tell(trap.calls)
        return 0

    killed, code, calls = deaths.in_child(work)
    assert killed or not code, "the command failed in the child"
    return killed, calls
