"""Run a child process and measure its costs. Linux only; standard library only.

A child process inherits its parent's memory peak, so the parent must stay small for `max_rss_mib`
to be that of the child.
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
    """Costs of a process: seconds, CPU seconds including its child processes, memory in MiB.

    ``max_rss_mib``: largest resident set of any process of the tree, including mapped files.
    ``anon_mib``: sampled peak of the tree's memory, without mapped files.
    """

    exit_code: int
    wall_s: float
    cpu_s: float
    max_rss_mib: float
    anon_mib: float
    stdout: str
    stderr: str


def tree(pid: int) -> list[int]:
    """Return the process and its living descendants."""
    pids, todo = [], [pid]
    while todo:
        pid = todo.pop()
        pids.append(pid)
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:  # it has ended
            continue
        for thread in threads:
            with contextlib.suppress(OSError):  # the thread has ended
                children = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                todo += map(int, children.split())
    return pids


def anonymous_mib(pid: int) -> float:
    """Return the sum of RssAnon and RssShmem of the process tree: its memory without mapped
    files.
    """
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
    """Thread that samples the memory of a process tree until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.stopped = pid, 0.0, threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(SAMPLE_S):
            self.peak = max(self.peak, anonymous_mib(self.pid))


def run(argv: list[str], timeout_s: float = 600.0, *, discards: bool = False) -> Usage:
    """Run argv in the project's folder; kill it after timeout_s."""
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
    """Return the command line of this interpreter with arguments."""
    return [sys.executable, *arguments]


@contextlib.contextmanager
def cores(count: int) -> Iterator[None]:
    """Limit processes started in the block to ``count`` cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def remove(folder: Path) -> None:
    """Remove the files of a measurement, so that the next measurement does not wait for
    writeback.
    """
    if folder.exists():
        shutil.rmtree(folder)
        os.sync()
