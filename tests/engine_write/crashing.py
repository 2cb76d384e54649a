"""Runs rmqctl many times in forked children that kill themselves at a chosen system call.

`Crasher` (in the test) starts this file as a process that has everything imported, and hands it
one job at a time. A job may also keep account of what was forced to the device: then the tree as
a power failure would leave it is written beside the store before the child dies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.deaths import Left, Tell, Trap, in_child

READ_SIZE = 700
"""Bytes of input that one read gives: two or three lines, as from a slow pipe."""


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
        job = {"args": [os.fspath(arg) for arg in args], "input": str(source), "output": str(out),
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


NEWEST = {"forced": Left(), "log": Left(whole=("commitlog",)),
          "rest": Left(whole=("consumequeue", "index", "consumequeue_ext"))}
"""What the system wrote by itself before the power failed, by the name of the folder it gets."""


def _child(job: dict[str, Any], tell: Tell) -> int:
    from rmqctl.cli import main
    from rmqctl.engine.input.lines import LineReader

    for fd, path, flags in ((0, job["input"], os.O_RDONLY), (1, job["output"], os.O_WRONLY),
                            (2, job["output"] + ".err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    LineReader.__init__.__kwdefaults__["read_size"] = READ_SIZE
    trap = Trap(job["at"], job["mode"], tell, Path(job["root"]), job["power"], NEWEST)
    trap.arm()
    code = main(job["args"])
    sys.stdout.flush()
    sys.stderr.flush()
    tell(trap.calls)
    return code


def _serve() -> None:
    import rmqctl.cli
    import rmqctl.commands.write.append
    import rmqctl.commands.write.write
    import rmqctl.engine.input.append_stream

    with suppress(ModuleNotFoundError):  # where the core is tested alone
        import rmqctl.ext.tiered.dispatch.session
        import rmqctl.ext.tiered.index.writer  # noqa: F401
    for text in sys.stdin:
        killed, code, calls = in_child(partial(_child, json.loads(text)))
        answer = {"killed": killed, "calls": calls, "code": code}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
