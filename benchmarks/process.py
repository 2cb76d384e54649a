"""Starts a child process, waits, and says what it took. Linux only; standard library only.

The kernel hands a starting child its parent's memory peak, so the parent must stay small for
`max_rss_mib` to be the child's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_S = 0.02
KIB_PER_MIB = 1024
SHOWN = 2000


@dataclass(frozen=True)
class Usage:
    """What a process took: seconds, CPU of it and its waited-for children, memory in MiB.

    max_rss_mib: largest resident set of any one process of the tree, pages of mapped files
    included. anon_mib: peak of the tree's own memory without them, sampled.
    """

    exit_code: int
    wall_s: float
    cpu_s: float
    max_rss_mib: float
    anon_mib: float
    stdout: str
    stderr: str


def tree(pid: int) -> list[int]:
    """The process and all it started, as far as they are alive."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:  # it has ended
            continue
        for thread in threads:
            with contextlib.suppress(OSError):  # the thread has ended
                children = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                todo += map(int, children.split())
    return found


def anonymous_mib(pid: int) -> float:
    """RssAnon and RssShmem of the whole tree: all but pages of mapped files."""
    total = 0
    for member in tree(pid):
        try:
            lines = Path(f"/proc/{member}/status").read_text().splitlines()
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) for line in lines
                     if line.startswith(("RssAnon:", "RssShmem:")))
    return total / KIB_PER_MIB


class Sampler(threading.Thread):
    """Watches a process tree's own memory until stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.stopped = pid, 0.0, threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(SAMPLE_S):
            self.peak = max(self.peak, anonymous_mib(self.pid))


def run(argv: list[str], timeout_s: float = 600.0, *, discards: bool = False) -> Usage:
    """Runs argv in the project's folder; killed after timeout_s. It may discard its output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        child = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL if discards else out, stderr=err)
        sampler = Sampler(child.pid)
        sampler.start()
        alarm = threading.Timer(timeout_s, child.kill)
        alarm.start()
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        alarm.cancel()
        sampler.stopped.set()
        sampler.join()
        out.seek(0)
        err.seek(0)
        return Usage(
            exit_code=child.returncode,
            wall_s=wall,
            cpu_s=used.ru_utime + used.ru_stime,
            max_rss_mib=used.ru_maxrss / KIB_PER_MIB,
            anon_mib=sampler.peak,
            stdout=out.read(SHOWN).decode(errors="replace"),
            stderr=err.read(SHOWN).decode(errors="replace"),
        )


def python(*arguments: str) -> list[str]:
    """Command line of this interpreter with arguments."""
    return [sys.executable, *arguments]


@contextlib.contextmanager
def cores(count: int) -> Iterator[None]:
    """What is started meanwhile has so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def remove(folder: Path) -> None:
    """Removes what a measurement made; the next one shall not wait for it to reach the disk."""
    if folder.exists():
        shutil.rmtree(folder)
        os.sync()
