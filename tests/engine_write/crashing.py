"""Runs rmqctl many times in forked children that kill themselves at a chosen system call.

`Crasher` (in the test) starts this file as a process that has everything imported, and hands it
one job at a time. A job may also keep account of what was forced to the device: then the tree as
a power failure would leave it is written beside the store before the child dies.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

CHANGING = ("pwrite", "pwritev", "fsync", "fdatasync", "ftruncate", "unlink", "rename", "link",
            "mkdir", "open")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
REAL = {name: getattr(os, name) for name in CHANGING}
READ_SIZE = 700
"""Bytes of input that one read gives: two or three lines, as from a slow pipe."""
MODES = ("before", "torn", "after")


class Crasher:
    """The process that runs the jobs."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2])

    def run(self, *args: str | Path, at: int = 0, mode: str = "before", data: bytes = b"",
            folder: Path, power: str | None = None,
            root: Path | None = None) -> tuple[bool, bytes, int]:
        """(killed, what was printed, number of calls): rmqctl, killed at call ``at`` (0: never).

        ``mode``: before the call, after half of its bytes were written, or after it. ``power``
        names a folder that is given the store (``root``, else the first argument behind the
        command) as it would be after a power failure.
        """
        source, out = folder / "input", folder / "output"
        source.write_bytes(data)
        out.write_bytes(b"")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"args": [os.fspath(one) for one in args], "input": str(source), "output": str(out),
               "at": at, "mode": mode, "power": power,
               "root": os.fspath(args[1] if root is None else root)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        printed = out.read_bytes()
        err = Path(f"{out}.err").read_text()
        assert answer["killed"] or answer["code"] == 0, err
        assert "Traceback" not in err
        return answer["killed"], printed, answer["calls"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._process.stdout.close()


# -- in the child ---------------------------------------------------------------------------------


class Disk:
    """What of a tree would survive a power failure: only what was forced.

    Content survives by fsync of the file, names by fsync of the folder. Everything that is there
    at the beginning has been forced.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._content: dict[int, bytes] = {}
        self._names: dict[str, dict[str, tuple[int, bool]]] = {}
        self._kept: list[int] = []
        for folder, _, files in os.walk(root):
            self._folder(folder)
            for name in files:
                if name != "lock":
                    fd = REAL["open"](os.path.join(folder, name), os.O_RDONLY)
                    self._file(fd)
                    self._kept.append(fd)  # keeps its inode number from being used again

    def forced(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path):  # of a file without a name the path is made up
            self._folder(path)
            return
        if self._file(fd):
            self._kept.append(os.dup(fd))

    def _file(self, fd: int) -> bool:
        about = os.fstat(fd)
        new = about.st_ino not in self._content
        self._content[about.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()
        return new

    def _folder(self, path: str) -> None:
        with os.scandir(path) as entries:
            self._names[path] = {one.name: (one.inode(), one.is_dir()) for one in entries}

    def write(self, target: str, newest: tuple[str, ...]) -> None:
        """The tree after a power failure; of ``newest`` the system had written everything."""
        self._write(self.root, target, newest)

    def _write(self, folder: str, target: str, newest: tuple[str, ...]) -> None:
        REAL["mkdir"](target)
        fresh = os.path.relpath(folder, self.root).split(os.sep)[0] in newest
        names = dict(self._names.get(folder, {}))
        if fresh:
            with os.scandir(folder) as entries:
                names = {one.name: (one.inode(), one.is_dir()) for one in entries}
        for name, (inode, is_folder) in names.items():
            path, there = os.path.join(folder, name), os.path.join(target, name)
            if is_folder:
                self._write(path, there, newest)
                continue
            data = self._content.get(inode, b"")
            if fresh:
                data = Path(path).read_bytes()
            with open(there, "wb") as file:
                file.write(data)


NEWEST = {"forced": (), "log": ("commitlog",),
          "rest": ("consumequeue", "index", "consumequeue_ext")}
"""What the system wrote by itself before the power failed, by the name of the folder it gets."""


class Trap:
    """Counts the calls that change something and springs at one of them."""

    def __init__(self, job: dict[str, Any], tell: Callable[[int], None]) -> None:
        self.calls = 0
        self._job, self._tell = job, tell
        self._power = job["power"]
        self._disk = Disk(job["root"]) if self._power else None
        self._still = threading.Lock()

    def arm(self) -> None:
        for name in CHANGING:
            setattr(os, name, self._wrap(name, REAL[name]))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if name == "open" and not args[1] & _WRITING:
                return real(*args, **more)
            self.calls += 1
            here = self.calls == self._job["at"]
            if here and self._job["mode"] != "after":
                if self._job["mode"] == "torn" and name == "pwrite":
                    real(args[0], memoryview(args[1])[:max(1, len(args[1]) // 2)], args[2])
                self._die()
            found = real(*args, **more)
            if self._disk is not None and name in ("fsync", "fdatasync"):
                with self._still:
                    self._disk.forced(args[0])
            if here:
                self._die()
            return found
        return call

    def _die(self) -> None:
        if self._disk is not None:
            self._still.acquire()  # for good: what other threads force now comes too late
            for name, newest in NEWEST.items():
                self._disk.write(f"{self._power}-{name}", newest)
        self._tell(self.calls)
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()


def _child(job: dict[str, Any], tell: Callable[[int], None]) -> int:
    from rmqctl.cli import main
    from rmqctl.engine.input.lines import LineReader

    for fd, path, flags in ((0, job["input"], os.O_RDONLY), (1, job["output"], os.O_WRONLY),
                            (2, job["output"] + ".err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    LineReader.__init__.__kwdefaults__["read_size"] = READ_SIZE
    trap = Trap(job, tell)
    trap.arm()
    code = main(job["args"])
    sys.stdout.flush()
    sys.stderr.flush()
    tell(trap.calls)
    return code


def _tell(fd: int, calls: int) -> None:
    os.write(fd, str(calls).encode())


def _serve() -> None:
    import rmqctl.cli
    import rmqctl.commands.write.append
    import rmqctl.commands.write.write
    import rmqctl.engine.input.append_stream
    import rmqctl.tiered.dispatch.session
    import rmqctl.tiered.index.writer  # noqa: F401

    for text in sys.stdin:
        job = json.loads(text)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                code = _child(job, partial(_tell, write))
            except BaseException:  # noqa: BLE001  # nothing may get back into the loop
                traceback.print_exc()
                code = 99
            sys.stderr.flush()
            os._exit(code)
        os.close(write)
        status = os.waitpid(child, 0)[1]
        calls = int(os.read(read, 100) or 0)
        os.close(read)
        killed = os.WIFSIGNALED(status)
        answer = {"killed": killed, "calls": calls,
                  "code": -1 if killed else os.waitstatus_to_exitcode(status)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
