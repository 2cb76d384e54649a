"""The store's lock against real processes: a Java broker's fcntl lock, a Rust broker's flock."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from rmqctl.errors import StoreHeldError, StoreIOError
from rmqctl.files.lock import StoreLock, held_here
from rmqctl.files.lock_probe import probe
from tests.engine_write.files_support import ERRORS, failing
from tests.support import snapshot

HOLDERS = {
    "fcntl": "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, 0)",
    "flock": "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
}
FOREIGN = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
{take}
print("held", flush=True)
sys.stdin.read()
"""
OURS = """
import sys
from rmqctl.files.lock import StoreLock
from rmqctl.errors import StoreHeldError
try:
    with StoreLock(sys.argv[1]):
        print("held", flush=True)
        sys.stdin.read()
except StoreHeldError as error:
    print(error, flush=True)
"""


@contextmanager
def process(source: str, argument: Path):
    """A Python process that says one line and waits until its input ends: (process, line)."""
    started = subprocess.Popen([sys.executable, "-c", source, str(argument)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    try:
        yield started, started.stdout.readline().strip()
    finally:
        started.stdin.close()
        assert started.wait(20) == 0
        started.stdout.close()


@pytest.mark.parametrize("kind", HOLDERS)
@pytest.mark.parametrize("content", [b"", b"lock", b"something else"])
def test_refuses_while_a_broker_holds_it(tmp_path, kind, content):
    path = tmp_path / "lock"
    path.write_bytes(content)
    with process(FOREIGN.format(take=HOLDERS[kind]), path) as (holder, line):
        assert line == "held"
        with snapshot.assert_unchanged(tmp_path), pytest.raises(StoreHeldError) as caught:
            StoreLock(tmp_path).acquire()
        assert str(caught.value) == (
            f"{tmp_path}: the store is held by process {holder.pid} ({kind})")
        assert not held_here(path)
    with StoreLock(tmp_path):
        assert path.read_bytes() == (content or b"lock")


@pytest.mark.parametrize("kind", HOLDERS)
def test_brokers_are_refused_while_we_hold_it(tmp_path, kind):
    with StoreLock(tmp_path) as lock:
        assert lock.held
        tried = subprocess.run(
            [sys.executable, "-c", FOREIGN.format(take=HOLDERS[kind]), str(tmp_path / "lock")],
            stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert tried.returncode == 1
        assert "BlockingIOError" in tried.stderr
    with process(FOREIGN.format(take=HOLDERS[kind]), tmp_path / "lock") as (_, line):
        assert line == "held"


def test_of_two_rmqctl_one_wins(tmp_path):
    with process(OURS, tmp_path) as (first, line):
        assert line == "held"
        with process(OURS, tmp_path) as (_, output):
            assert output == f"{tmp_path}: the store is held by process {first.pid} (fcntl)"
    with process(OURS, tmp_path) as (_, line):
        assert line == "held"
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_a_second_lock_in_one_process_is_refused_and_costs_the_first_nothing(tmp_path):
    other = tmp_path / "by another name"
    with StoreLock(tmp_path):
        other.symlink_to(tmp_path)
        for root in (tmp_path, other):
            with pytest.raises(StoreHeldError, match="held by this process"):
                StoreLock(root).acquire()
        assert held_here(tmp_path / "lock")
        assert held_here(other / "lock")
        with process(OURS, tmp_path) as (_, output):
            assert output.endswith(f"held by process {os.getpid()} (fcntl)")
    with StoreLock(other):
        pass
    assert not held_here(tmp_path / "lock")


def test_of_many_threads_one_wins(tmp_path):
    got, refused = [], []

    def take():
        lock = StoreLock(tmp_path)
        try:
            lock.acquire()
            got.append(lock)
        except StoreHeldError as error:
            refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 7)
    got[0].release()
    got[0].release()


def test_one_who_only_asks_does_not_refuse_us(tmp_path):
    """`probe` holds a shared flock for a moment."""
    (tmp_path / "lock").write_bytes(b"lock")
    real, calls = fcntl.flock, []

    def flock(fd, operation):
        calls.append(operation)
        if operation & fcntl.LOCK_EX and len(calls) <= 2:
            raise BlockingIOError(errno.EAGAIN, "")
        return real(fd, operation)

    with mock.patch.object(fcntl, "flock", flock), StoreLock(tmp_path) as lock:
        assert lock.held
    assert len(calls) == 3


def test_a_child_that_goes_does_not_take_the_lock_along(tmp_path):
    with StoreLock(tmp_path) as lock:
        child = os.fork()
        if not child:
            lock.release()
            os._exit(0 if not held_here(tmp_path / "lock") else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for kind, take in HOLDERS.items():
            tried = subprocess.run([sys.executable, "-c", FOREIGN.format(take=take),
                                    str(tmp_path / "lock")], stdin=subprocess.DEVNULL,
                                   capture_output=True, text=True)
            assert tried.returncode == 1, kind


def test_the_lock_goes_with_a_killed_process(tmp_path):
    with subprocess.Popen([sys.executable, "-c", OURS, str(tmp_path)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True,
                          cwd=Path(__file__).parents[2]) as process:
        assert process.stdout.readline() == "held\n"
        assert probe(str(tmp_path / "lock")).pid == process.pid
        process.kill()
        process.wait()
    with StoreLock(tmp_path):
        pass


@pytest.mark.parametrize("error", ERRORS)
def test_what_fails_is_named_and_nothing_is_held_afterwards(tmp_path, error):
    for number in range(1, 12):
        root = tmp_path / str(number)
        root.mkdir()
        with failing(number, error) as faults:
            lock = StoreLock(root)
            try:
                lock.acquire()
            except StoreIOError as caught:
                assert str(root) in str(caught)
                assert not lock.held
                assert not held_here(root / "lock")
            else:
                assert lock.held
                lock.release()
                assert not faults.fired
        with StoreLock(root):
            assert (root / "lock").read_bytes() == b"lock"
        if not faults.fired:
            assert number >= 4
            return
    pytest.fail("never ran without a fault")


def test_a_system_without_locks_is_an_error(tmp_path):
    refusal = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    with (mock.patch.object(fcntl, "lockf", side_effect=refusal),
          pytest.raises(StoreIOError, match="cannot lock")):
        StoreLock(tmp_path).acquire()


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_a_lock_that_is_no_file(tmp_path, kind):
    (os.mkdir if kind == "folder" else os.mkfifo)(tmp_path / "lock")
    with pytest.raises(StoreIOError, match="lock"):
        StoreLock(tmp_path).acquire()


def test_a_store_that_is_not_there(tmp_path):
    with pytest.raises(StoreIOError, match="cannot open"):
        StoreLock(tmp_path / "none").acquire()
