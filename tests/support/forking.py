"""Processes of rmqctl that start in milliseconds: forked from one that has everything imported.

What a test wants of a process of its own is an address space that can be limited, a run that can be
ended when it hangs, file descriptors and an exit code. A fresh interpreter costs 0.5 s for each;
a fork of a warm one costs 10 ms. One server for each test process, started when it is first used.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import moment, roomy, unforced

_LOADED = ("rmqctl.cli", "rmqctl.output", "rmqctl.store.store", "rmqctl.store.info",
           "rmqctl.checks.verify.verify", "rmqctl.engine.engine", "rmqctl.repair.recover")
_TICK = 0.002


def run(words: Sequence[str], environment: Mapping[str, str], stdin: bytes, timeout: float,
        memory: int | None, cwd: str | None) -> tuple[int, bytes, bytes]:
    """(exit code, stdout, stderr) of ``rmqctl WORDS``; killed by a signal: its number, negative.

    subprocess.TimeoutExpired after ``timeout`` seconds; the process is killed then.
    """
    with tempfile.TemporaryDirectory(prefix="rmqctl-run-") as folder:
        place = Path(folder)
        (place / "in").write_bytes(stdin)
        job = {"words": list(words), "environment": dict(environment), "folder": folder,
               "timeout": timeout, "memory": memory, "cwd": cwd or os.getcwd()}
        code = _server().ask(job)
        if code is None:
            raise subprocess.TimeoutExpired(["rmqctl", *words], timeout)
        return code, (place / "out").read_bytes(), (place / "err").read_bytes()


class _Server:
    def __init__(self) -> None:
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forking"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=environment,
            cwd=Path(__file__).parents[2])
        atexit.register(self._process.kill)

    def ask(self, job: Mapping[str, Any]) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the server of forked runs has died"
        code: int | None = json.loads(answer)
        return code


@cache
def _server() -> _Server:
    return _Server()


def _child(job: Mapping[str, Any]) -> int:
    place = Path(job["folder"])
    for fd, name, flags in ((0, "in", os.O_RDONLY), (1, "out", os.O_WRONLY | os.O_CREAT),
                            (2, "err", os.O_WRONLY | os.O_CREAT)):
        opened = os.open(place / name, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    streams = ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
    sys.stdin, sys.stdout, sys.stderr = (
        open(fd, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        for fd, mode, errors in streams)
    os.environ.clear()
    os.environ.update(job["environment"])
    time.tzset()
    os.chdir(job["cwd"])
    if job["memory"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (job["memory"], job["memory"]))
    sys.argv = ["rmqctl", *job["words"]]
    from rmqctl.cli import main

    code = main(job["words"])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _wait(child: int, timeout: float) -> int | None:
    """The exit code of a child; None when its time was up and it was killed."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_TICK)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _serve() -> None:
    import importlib

    unforced.install()
    roomy.install()
    moment.install()
    for name in _LOADED:
        importlib.import_module(name)
    for text in sys.stdin:
        job = json.loads(text)
        child = os.fork()
        if not child:
            code = 99
            try:
                os.setpgid(0, 0)
                code = _child(job)
            except BaseException:  # noqa: BLE001  # nothing may get back into the loop
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(code)
        sys.stdout.write(json.dumps(_wait(child, job["timeout"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
