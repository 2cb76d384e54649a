"""A process that holds a store, as a broker that runs does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
if sys.argv[2] == "fcntl":
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, 0)
else:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""
KINDS = ("fcntl", "flock")
"""How a Java and a Rust broker hold the lock."""


@contextmanager
def held(root: Path, kind: str = "fcntl") -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock of the store ``root``."""
    with subprocess.Popen([sys.executable, "-c", SOURCE, str(root / "lock"), kind], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
