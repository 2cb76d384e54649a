"""Whoever else has the store: rmqctl refuses and leaves every byte; readers are let in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Runner
from tests.engine_write.durable import (
    acknowledged,
    append,
    assert_whole,
    lines,
    new_store,
    numbers_in_log,
)
from tests.support import snapshot
from tests.support.cli import DROPPED_ENV, QUIET_ENV
from tests.support.holder import KINDS, held


@contextmanager
def appending(root: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running ``rmqctl append`` that waits for its input."""
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED_ENV}
    with subprocess.Popen(
            [sys.executable, "-m", "rmqctl", "append", root, "-", "-o", "jsonl", *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment | QUIET_ENV) as process:
        try:
            yield process
        finally:
            process.kill()


def feed(process: subprocess.Popen[bytes], data: bytes, count: int) -> bytes:
    """Gives lines and waits for so many results."""
    process.stdin.write(data)
    process.stdin.flush()
    return b"".join(process.stdout.readline() for _ in range(count))


@pytest.fixture
def store(tmp_path: Path, rmqctl: Runner) -> Path:
    root = new_store(rmqctl, tmp_path / "store")
    append(rmqctl, root, lines(0, 100))
    return root


def commands(root: Path, source: Path) -> list[tuple[str | Path, ...]]:
    return [("write", root, "--topic", "T1", "--body", "x"),
            ("write", root, "--topic", "T9", "--body", "x", "--auto-create-topic"),
            ("append", root, source), ("append", root, source, "--batch"),
            ("flush", root), ("topic", "create", root, "T9")]


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_has_the_store(store, tmp_path, rmqctl, kind, dry_run):
    source = tmp_path / "source"
    source.write_bytes(lines(1000, 3))
    with held(store, kind) as holder:
        for words in commands(store, source):
            if dry_run and words[0] == "topic":
                continue  # reads one small file, whoever has the store
            with snapshot.assert_unchanged(store):
                done = rmqctl(*words, *(["--dry-run"] if dry_run else [])).expect(4)
            assert str(holder.pid) in done.err, done.describe()
            assert str(store) in done.err
            assert done.out == ""
        with snapshot.assert_unchanged(store):
            rmqctl("init", store).expect(4, 6)
    for words in commands(store, source):
        rmqctl(*words).expect(0)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_crash_too_nothing_is_touched(store, rmqctl, kind):
    """The holder may be a broker that is just recovering."""
    (store / "abort").touch()
    with (store / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.seek(-5000, os.SEEK_END)
        file.write(b"torn")
    with held(store, kind), snapshot.assert_unchanged(store):
        rmqctl("write", store, "--topic", "T1", "--body", "x").expect(4)


def test_a_lock_file_without_a_holder_is_no_hindrance(store, rmqctl):
    rmqctl("write", store, "--topic", "T1", "--body", "x").expect(0)
    (store / "lock").unlink()
    rmqctl("write", store, "--topic", "T1", "--body", "x").expect(0)


def settle(store):
    """Waits until the running append has dispatched what it printed, and waits for input."""
    before = None
    while (now := snapshot.take(store).to_json()) != before:
        before = now
        time.sleep(0.3)


def test_one_of_two_wins(store, tmp_path, rmqctl):
    with appending(store, "--flush", "sync") as first:
        printed = feed(first, lines(1000, 3), 3)
        source = tmp_path / "source"
        source.write_bytes(lines(2000, 3))
        settle(store)
        with snapshot.assert_unchanged(store):
            for words in commands(store, source):
                done = rmqctl(*words).expect(4)
                assert str(first.pid) in done.err, done.describe()
        printed += feed(first, lines(1003, 2), 2)
        rest, output = first.communicate(timeout=30)
        assert (first.returncode, rest) == (0, b""), output
    acks = acknowledged(printed, 1000)
    assert len(acks) == 5
    acks += append(rmqctl, store, lines(2000, 3), first=2000)
    assert_whole(rmqctl, store, acks)


@pytest.mark.long
def test_of_many_at_once_those_that_lose_change_nothing(store, rmqctl):
    """Started together: each ends with 0 or 4, and the log holds just what the winners put."""
    processes = []
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED_ENV}
    for number in range(4):
        process = subprocess.Popen(
            [sys.executable, "-m", "rmqctl", "append", store, "-", "-o", "jsonl"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment | QUIET_ENV)
        process.stdin.write(lines(1000 * (number + 1), 30))
        process.stdin.flush()
        processes.append(process)
    acks = []
    for number, process in enumerate(processes):
        out, output = process.communicate(timeout=60)
        assert process.returncode in (0, 4), output
        mine = acknowledged(out, 1000 * (number + 1))
        assert len(mine) == (0 if process.returncode else 30)
        assert (b"held by process" in output) == (process.returncode == 4), output
        acks += mine
    assert acks
    assert sorted(numbers_in_log(store)) == sorted([*range(100), *(ack.number for ack in acks)])
    assert_whole(rmqctl, store, acks)


def test_readers_are_let_in(store, rmqctl):
    """A running append is seen as the holder, and what it has put is read and found sound."""
    with appending(store, "--flush", "sync") as process:
        printed = feed(process, lines(1000, 40), 40)
        settle(store)
        with snapshot.assert_unchanged(store):
            answer = rmqctl("info", store, "-o", "json").expect(0).json()
            assert answer["lock"]["held"]
            assert answer["lock"]["pid"] == process.pid
            assert answer["abort"]
            rows = rmqctl("read", store, "-o", "jsonl").expect(0).jsonl()
            assert [int(row["body"].split()[1]) for row in rows] == [*range(100),
                                                                     *range(1000, 1040)]
            verdict = rmqctl("verify", store, "-o", "json").expect(0)
            assert str(process.pid) in verdict.err
        printed += feed(process, lines(1040, 40), 40)
        process.communicate(timeout=30)
        assert process.returncode == 0
    assert_whole(rmqctl, store, acknowledged(printed, 1000))
