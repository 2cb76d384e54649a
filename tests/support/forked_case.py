"""Commands of a case run in forks of a warm process: a fresh interpreter costs half a second."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Sequence
from typing import IO

from rmqctl.case import runs
from tests.support import forking
from tests.support.cli import DROPPED_ENV, QUIET_ENV


class Forked:
    """As much of `subprocess.Popen` as a case needs; the command has ended when it is made."""

    def __init__(self, words: Sequence[str], *, stdin: int, stdout: IO[bytes] | int,
                 stderr: IO[bytes], pass_fds: Sequence[int]) -> None:
        assert stdin == subprocess.DEVNULL
        passed = {f"/dev/fd/{fd}": f"/proc/{os.getpid()}/fd/{fd}" for fd in pass_fds}
        environment = {name: value for name, value in os.environ.items()
                       if name not in DROPPED_ENV} | QUIET_ENV
        own = [passed.get(word, word) for word in words[len(runs._PROGRAM):]]
        self.returncode, out, err = forking.run(own, environment, b"", 60, None, None)
        self.stdout = io.BytesIO(out) if stdout == subprocess.PIPE else None
        if not isinstance(stdout, int):
            stdout.write(out)
        stderr.write(err)

    def wait(self) -> int:
        return self.returncode

    poll = wait
