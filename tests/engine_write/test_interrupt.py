"""Ctrl-C and SIGTERM: append stops between two messages, flushes, and says what it did."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqctl.output.streams import Sink
from tests.conftest import Runner
from tests.engine_write.durable import (
    acknowledged,
    append,
    assert_whole,
    line,
    lines,
    new_store,
    numbers_in_log,
)
from tests.support.cli import DROPPED_ENV, QUIET_ENV
from tests.support.share import sample

ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in (*DROPPED_ENV, "PYTHONUNBUFFERED")} | QUIET_ENV
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}
EACH_SIGNAL = pytest.mark.parametrize("number", SIGNALS,
                                      ids=lambda signal_number: signal_number.name)
FLUSH = pytest.mark.parametrize("flush", ["sync", "async"])
SOME = pytest.mark.parametrize(("number", "flush"), sample(
    [(number, flush) for number in SIGNALS for flush in ("sync", "async")], 2, "interrupted"))


@contextmanager
def running(root: Path, source: Path | str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
            [sys.executable, "-m", "rmqctl", "append", root, source, *more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=ENVIRONMENT) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def store(tmp_path: Path, rmqctl: Runner) -> Path:
    return new_store(rmqctl, tmp_path / "store", "--commitlog-file-size", "1MiB",
                     "--consumequeue-file-size", "20000", "--index-max", "20000")


def drained(process: subprocess.Popen[bytes]) -> tuple[list[bytes], threading.Thread]:
    """All that is printed from now on, read in the background."""
    parts: list[bytes] = []

    thread = threading.Thread(target=lambda: parts.append(process.stdout.read()))
    thread.start()
    return parts, thread


def check(rmqctl: Runner, root: Path, printed: bytes, first: int = 0) -> int:
    """Everything in the log was printed and the other way round; how many there are."""
    assert printed.endswith(b"\n")
    acks = acknowledged(printed, first)
    numbers = numbers_in_log(root)
    assert numbers == list(range(len(numbers)))
    assert [ack.number for ack in acks] == numbers[first:]
    assert_whole(rmqctl, root, acks)
    return len(numbers)


@pytest.mark.long
@SOME
def test_from_a_file(store, tmp_path, rmqctl, number, flush):
    """Long input: the signal comes while it works, not while it waits."""
    total = 40_000
    source = tmp_path / "source"
    source.write_bytes(lines(0, total))
    with running(store, source, "--flush", flush, "-o", "jsonl") as process:
        first = process.stdout.readline()
        parts, reader = drained(process)
        process.send_signal(number)
        assert process.wait(60) == SIGNALS[number]
        reader.join(20)
        output = process.stderr.read()
    assert output.count(b"\n") == 1, output
    assert output.startswith(b"rmqctl: "), output
    done = check(rmqctl, store, first + b"".join(parts))
    assert 0 < done < total
    # A second run goes on where the first one stopped.
    more = append(rmqctl, store, lines(done, 100), first=done)
    assert numbers_in_log(store) == list(range(done + 100))
    assert_whole(rmqctl, store, more)


@SOME
def test_from_a_slow_pipe(store, rmqctl, number, flush):
    """The signal comes while it waits for the next line."""
    with running(store, "-", "--flush", flush, "-o", "jsonl") as process:
        printed = b""
        for index in range(7):
            process.stdin.write(line(index))
            process.stdin.flush()
            printed += process.stdout.readline()
        process.stdin.write(line(7)[:20])  # half a line is no message
        process.stdin.flush()
        time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(30) == SIGNALS[number]
        assert process.stdout.read() == b""
    assert check(rmqctl, store, printed) == 7


@EACH_SIGNAL
def test_a_summary_tells_how_far_it_came(store, rmqctl, number):
    with running(store, "-", "-o", "json") as process:
        process.stdin.write(lines(0, 25))
        process.stdin.flush()
        until = time.monotonic() + 30
        while not (store / "commitlog").exists() or len(list((store / "commitlog").iterdir())) < 1:
            assert time.monotonic() < until
            time.sleep(0.01)
        while len(numbers_in_log(store)) < 25:
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(30) == SIGNALS[number]
        summary = json.loads(process.stdout.read())
    assert summary["messages"] == 25
    assert numbers_in_log(store) == list(range(25))
    with (store / "checkpoint").open("rb") as page:
        assert page.read(8).strip(b"\0")
    assert_whole(rmqctl, store, [])


@EACH_SIGNAL
def test_at_any_moment(tmp_path, rmqctl, number):
    """Before the store is opened, while it is, or in the midst: never half, never stuck."""
    outcomes = set()
    source = tmp_path / "source"
    source.write_bytes(lines(0, 3000))
    for step in range(5):
        root = new_store(rmqctl, tmp_path / f"store{step}", "--commitlog-file-size", "1MiB",
                         "--consumequeue-file-size", "20000", "--index-max", "20000")
        with running(root, source, "-o", "jsonl") as process:
            time.sleep(0.1 + step * 0.12)
            process.send_signal(number)
            out, output = process.communicate(timeout=60)
        outcomes.add(process.returncode)
        if b"Could not import runpy module" in output:
            continue  # the interpreter's own answer, before it runs anything of ours
        # While the interpreter itself starts the system's own answer is the right one.
        assert process.returncode in (0, SIGNALS[number], -number), output
        assert process.returncode == -number or b"Traceback" not in output
        if process.returncode != -number and out:
            check(rmqctl, root, out)
        assert not (root / "abort").exists()
    assert outcomes


@pytest.mark.long
def test_a_second_signal_does_not_tear_the_end(store, tmp_path, rmqctl):
    source = tmp_path / "source"
    source.write_bytes(lines(0, 40_000))
    with running(store, source, "-o", "jsonl") as process:
        first = process.stdout.readline()
        parts, reader = drained(process)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            if process.poll() is None:
                process.send_signal(number)
            time.sleep(0.005)
        assert process.wait(60) in (130, 143)
        reader.join(20)
        assert b"Traceback" not in process.stderr.read()
    check(rmqctl, store, first + b"".join(parts))


def test_no_result_is_lost_where_stdout_is_not_buffered():
    """With PYTHONUNBUFFERED a signal cuts a write to a full pipe short: the rest must follow."""

    class Raw(io.RawIOBase):
        def __init__(self):
            self.data = bytearray()

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)[:7]
            return min(len(data), 7)

    class Stream:
        buffer = Raw()
        encoding = "utf-8"

        def flush(self):
            pass

    sink = Sink(Stream())
    sink.write('{"line": 1, "status": "PUT_OK"}\n')
    sink.flush()
    assert bytes(Stream.buffer.data) == b'{"line": 1, "status": "PUT_OK"}\n'
