"""A system call that fails: a clear error, the right code, and a store that is still whole."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest import mock

import pytest

from tests.conftest import Runner
from tests.engine_write import files_support
from tests.engine_write.durable import (
    Ack,
    acknowledged,
    append,
    assert_in_log,
    assert_recovers,
    assert_whole,
    lines,
    new_store,
    numbers_in_log,
    old_lines,
)
from tests.support import snapshot
from tests.support.share import RUN

CALLS = ("pwrite", "pwritev", "ftruncate", "fsync", "fdatasync", "open", "mkdir", "rename", "link",
         "unlink")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT)
MANY = 110
OLD = 60


def failing(at: int, error: int = errno.EIO, *,
            for_ever: bool = False) -> AbstractContextManager[files_support.Faults]:
    return files_support.failing(at, error, CALLS, for_ever=for_ever, reading=False)


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """No thread and no descriptor stays behind, whatever went wrong."""
    threads, fds = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) <= fds


def said_clearly(root: Path, err: str) -> None:
    """One line that names what is broken."""
    errors = [line for line in err.splitlines() if line.startswith("rmqctl: error:")]
    assert len(errors) == 1, err
    assert str(root) in errors[0]
    assert "defect" not in errors[0]


class Case:
    """A store that is copied afresh for each fault, and a command to run on it."""

    def __init__(self, folder: Path, rmqctl: Runner, *words: str, version: str = "5.3.3",
                 old: int = 0, unclean: bool = False) -> None:
        self.rmqctl, self.words = rmqctl, words
        self.first = new_store(rmqctl, folder / "first", version=version)
        self.old = append(rmqctl, self.first, old_lines(0, old), "--as-recorded") if old else []
        if unclean:
            (self.first / "abort").touch()
        self.root = folder / "store"
        self.source = folder / "source"
        self.source.write_bytes(lines(1000, MANY))

    def run(self, at: int, error: int = errno.EIO, *, for_ever: bool = False) -> bool:
        """One run with a fault at call ``at``, and all that must hold then; whether it came."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.first, self.root)
        words = [{"STORE": self.root, "SOURCE": self.source}.get(word, word) for word in self.words]
        # A module that is not there yet would be compiled and written in the midst of it.
        with mock.patch.object(sys, "dont_write_bytecode", True), nothing_left_open(), failing(
                at, error, for_ever=for_ever) as fault:
            done = self.rmqctl(*words)
        acks = list(self.old)
        if self.words[0] == "append":
            acks += acknowledged(done.out, 1000)
        if not fault.fired:
            done.expect(0)
            assert_whole(self.rmqctl, self.root, acks)
            return False
        if done.code != 0:
            done.expect(5)
            said_clearly(self.root, done.err)
        self.still_whole(acks)
        return True

    def still_whole(self, acks: list[Ack]) -> None:
        assert_in_log(self.root, acks)
        if self.words[0] == "append":
            numbers = numbers_in_log(self.root)[len(self.old):]
            assert numbers == list(range(1000, 1000 + len(numbers)))
            assert len(numbers) >= len(acks) - len(self.old)
        assert_recovers(self.rmqctl, self.root, acks)

    def count(self) -> int:
        """How many calls a run without a fault makes."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.first, self.root)
        words = [{"STORE": self.root, "SOURCE": self.source}.get(word, word) for word in self.words]
        with failing(0) as fault:
            self.rmqctl(*words).expect(0)
        return len(fault.calls)


WRITE = ("write", "STORE", "--topic", "T1", "--body", "message 5000", "--key", "k5000",
         "--auto-create-topic")
APPEND = ("append", "STORE", "SOURCE", "-o", "jsonl")
RUNS = {
    "write": WRITE,
    "append": APPEND,
    "append-sync": (*APPEND, "--flush", "sync"),
    "flush": ("flush", "STORE"),
    "topic-create": ("topic", "create", "STORE", "T1"),
}


def at_every_call(case: Case, step: int = 1, start: int = 1) -> int:
    """Faults at every ``step``-th call, until a run sees none; how many there were."""
    at = number = 0
    for number, at in enumerate(range(start, 1000, step)):
        if not case.run(at, ERRORS[number % len(ERRORS)], for_ever=number % 3 == 2):
            break
    return at


@pytest.mark.long
@pytest.mark.parametrize("name", ["write", "flush", "topic-create"])
def test_each_third_call_of_a_short_command(tmp_path, rmqctl, name):
    case = Case(tmp_path, rmqctl, *RUNS[name], old=OLD)
    assert at_every_call(case, 1 if RUN.exhaustive else 3, 1 + RUN.seed % 3) > 4


@pytest.mark.long
@pytest.mark.parametrize("name", ["append", "append-sync"])
def test_some_calls_of_append(tmp_path, rmqctl, name):
    case = Case(tmp_path, rmqctl, *RUNS[name], old=OLD)
    assert at_every_call(case, 28, 1 + RUN.seed % 28) > 30


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
@pytest.mark.parametrize("name", ["write", "append", "append-sync"])
def test_every_call(tmp_path, rmqctl, name, version):
    """Every second call for each version, and so all for both."""
    case = Case(tmp_path, rmqctl, *RUNS[name], old=OLD, version=version)
    assert at_every_call(case, 2, 1 + (version > "5")) > 20


@pytest.mark.long
@pytest.mark.parametrize("name", ["write", "append-sync"])
def test_some_calls_of_a_recovery(tmp_path, rmqctl, name):
    case = Case(tmp_path, rmqctl, *RUNS[name], old=OLD, unclean=True)
    assert at_every_call(case, 20, 1 + RUN.seed % 20) > 20


@pytest.mark.exhaustive
def test_every_call_of_a_recovery(tmp_path, rmqctl):
    case = Case(tmp_path, rmqctl, *RUNS["write"], old=OLD, unclean=True)
    assert at_every_call(case) > 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("error", ERRORS)
def test_every_error_for_ever(tmp_path, rmqctl, error):
    case = Case(tmp_path, rmqctl, *RUNS["write"], old=OLD)
    for at in range(1, case.count() + 1):
        assert case.run(at, error, for_ever=True)


@pytest.mark.long
def test_a_new_store_that_was_never_written_to(tmp_path, rmqctl):
    case = Case(tmp_path, rmqctl, *RUNS["append"])
    assert at_every_call(case, 22) > 30


def test_flush_leaves_the_checkpoint_when_forcing_fails(tmp_path, rmqctl):
    """The checkpoint never says that something is on disk which may not be."""
    case = Case(tmp_path, rmqctl, *RUNS["flush"], old=OLD)
    append(rmqctl, case.first, lines(1000, 5))
    before = (case.first / "checkpoint").read_bytes()
    for at in range(1, case.count() + 1):
        shutil.rmtree(case.root, ignore_errors=True)
        shutil.copytree(case.first, case.root)
        with failing(at):
            rmqctl("flush", case.root).expect(5)
        assert (case.root / "checkpoint").read_bytes() == before


# -- media that take nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("words", [RUNS["write"], RUNS["append"], RUNS["topic-create"]])
def test_a_file_system_that_is_read_only(tmp_path, rmqctl, words):
    case = Case(tmp_path, rmqctl, *words, old=OLD)
    shutil.copytree(case.first, case.root)
    with snapshot.assert_unchanged(case.root), failing(1, errno.EROFS, for_ever=True):
        done = rmqctl(*[{"STORE": case.root, "SOURCE": case.source}.get(word, word)
                        for word in words]).expect(5)
    said_clearly(case.root, done.err)
    assert "read-only" in done.err


@pytest.mark.parametrize("words", [RUNS["write"], RUNS["append"], RUNS["topic-create"]])
def test_a_folder_nobody_may_write_to(tmp_path, rmqctl, words):
    case = Case(tmp_path, rmqctl, *words, old=OLD)
    shutil.copytree(case.first, case.root)
    closed = tmp_path / "closed"
    closed.mkdir(0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("root may write anywhere")
    everything = [case.root, *case.root.rglob("*")]
    modes = {entry: entry.stat().st_mode for entry in everything}
    for entry in everything:
        entry.chmod(modes[entry] & ~0o222)
    try:
        with snapshot.assert_unchanged(case.root):
            done = rmqctl(*[{"STORE": case.root, "SOURCE": case.source}.get(word, word)
                            for word in words]).expect(5)
        said_clearly(case.root, done.err)
    finally:
        for entry, mode in modes.items():
            entry.chmod(mode)


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_short_writes_are_gone_on_with(tmp_path, rmqctl, limit):
    root = new_store(rmqctl, tmp_path / "store")
    real = os.pwrite

    def some(fd, data, offset):
        return real(fd, memoryview(data).cast("B")[:limit], offset)

    with mock.patch.object(os, "pwrite", some), mock.patch.object(
            os, "pwritev", lambda fd, parts, offset: some(fd, b"".join(parts), offset)):
        acks = append(rmqctl, root, lines(0, 90), "--flush", "sync")
    assert len(acks) == 90
    assert_whole(rmqctl, root, acks)


@pytest.mark.long
def test_a_disk_that_fills_up_in_the_middle_of_a_write(tmp_path, rmqctl):
    """Half of the bytes go in, then no more: what was half written does not count."""
    case = Case(tmp_path, rmqctl, *RUNS["append-sync"], old=OLD)
    real = os.pwrite
    for room in range(0, 60_000, 4999):
        left = [room]

        def pwrite(fd, data, offset, left=left):
            if not left[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            part = memoryview(data).cast("B")[:left[0]]
            left[0] -= len(part)
            return real(fd, part, offset)

        shutil.rmtree(case.root, ignore_errors=True)
        shutil.copytree(case.first, case.root)
        with mock.patch.object(os, "pwrite", pwrite):
            done = rmqctl("append", case.root, case.source, "-o", "jsonl", "--flush", "sync")
        if left[0]:
            done.expect(0)
            break
        done.expect(5)
        assert "no space left" in done.err
        case.still_whole([*case.old, *acknowledged(done.out, 1000)])
