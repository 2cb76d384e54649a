"""A sound store is called sound while a broker writes to it, whatever moment a command meets."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.store import Store, live
from tests.adversary.writer import Layout, Writer
from tests.support import cli
from tests.support.holder import held

READERS = (("info",), ("offsets",), ("stats",), ("read", "--fields", "topic"),
           ("read", "--topic", "orders", "--fields", "topic"),
           ("query", "key", "--topic", "orders", "--key", "hot"))
FINE = ("being written to", "no consumequeue for queue 3", "because a broker is writing")
"""What may be said: a queue to which nothing was sent, an index some messages behind."""


@contextmanager
def _broker(*words: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-m", "tests.adversary.broker", *map(str, words)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        yield process
    finally:
        process.kill()
        process.wait()


def _look(folder: Path) -> int:
    """One look with every command; the number of messages verify saw."""
    verified = cli.run("verify", folder, "-o", "json").expect(0).json()
    assert {finding["severity"] for finding in verified["findings"]} <= {"info"}
    assert not verified["coverage"]["bytes_damaged"]
    predicted = cli.run("preflight", folder, "-o", "json").json()
    assert predicted["messages_lost"] == 0
    assert predicted["starts"]
    assert cli.run("recover", folder, "-o", "json").expect(0).json()["actions"] == []
    for words in READERS:
        result = cli.run(words[0], *words[1:2] * (words[0] == "query"), folder,
                         *words[1 + (words[0] == "query"):], "-o", "json").expect(0)
        lines = [line for line in result.err.splitlines()
                 if not any(fine in line for fine in FINE)]
        assert not lines, result.describe()
    return int(verified["coverage"]["messages"])


@pytest.mark.parametrize(("seconds", "seed"), [
    pytest.param(2, 1, marks=pytest.mark.long),
    *(pytest.param(40, seed, marks=pytest.mark.exhaustive) for seed in (2, 3, 4))])
def test_nothing_is_wrong_beside_a_running_broker(tmp_path: Path, seconds: int,
                                                  seed: int) -> None:
    with _broker(tmp_path, seconds + 30, seed):
        until, counts = time.monotonic() + seconds, []
        while time.monotonic() < until or len(counts) < 2:
            counts.append(_look(tmp_path))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def _torn(folder: Path) -> tuple[Path, int, bytes]:
    """A store whose last record is written by half: its file, the place and bytes of the rest."""
    writer = Writer(Layout(log_file_size=64 << 10))
    for number in range(20):
        last = writer.put("orders", b"x" * 300, keys=f"k{number}", row=number < 19,
                          indexed=number < 19)
    writer.write(folder)
    file = folder / "commitlog" / f"{0:020d}"
    place = last.physical + last.size // 2
    with file.open("r+b") as log:
        log.seek(place)
        log.write(bytes(last.end - place))
    return file, place, last.raw[last.size // 2:]


def test_a_record_that_becomes_whole_is_no_finding(tmp_path: Path) -> None:
    file, place, rest = _torn(tmp_path)

    def write_rest() -> None:
        with file.open("r+b") as log:
            log.seek(place)
            log.write(rest)

    with held(tmp_path):
        later = Timer(0.2, write_rest)
        later.start()
        answer = cli.run("verify", tmp_path, "-o", "json").expect(0).json()
        later.join()
    assert [finding["category"] for finding in answer["findings"]
            if finding["structure"] == "commitlog"] == []


def test_a_record_that_stays_torn_is_no_part_of_a_plan(tmp_path: Path) -> None:
    """A broker that waits in the midst of a record, however long."""
    _torn(tmp_path)
    with held(tmp_path):
        planned = cli.run("recover", tmp_path, "-o", "json").expect(0)
    assert planned.json()["actions"] == []
    assert "the process that locks the store is writing" in planned.err
    # Nobody holds it any more: now it is damage.
    assert [action["action"]
            for action in cli.run("recover", tmp_path, "-o", "json").json()["actions"]
            ][:1] == ["zero"]


def test_a_record_that_stays_torn_is_said(tmp_path: Path) -> None:
    _torn(tmp_path)
    with held(tmp_path):
        answer = cli.run("verify", tmp_path, "-o", "json").json()
    assert "in-progress" in [finding["category"] for finding in answer["findings"]]
    assert "torn-tail" in [finding["category"] for finding in cli.run(
        "verify", tmp_path, "-o", "json").json()["findings"]]


@pytest.mark.parametrize("command", [("verify",), ("read", "--topic", "orders"), ("doctor",)])
def test_a_file_that_is_begun_while_the_end_is_fixed(tmp_path: Path, command: tuple[str, ...],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker rolls its log and a queue just then: what they hold is part of the picture."""
    writer = Writer(Layout(log_file_size=4096, queue_file_units=20, index_slots=16,
                           index_entries=100))
    for _ in range(20):
        writer.put("orders", b"x" * 80)
    writer.write(tmp_path / "store")
    begun = len(writer.log), len(writer.puts)
    while len(writer.log) == begun[0] or len(writer.puts) < begun[1] + 30:
        writer.put("orders", b"x" * 80)
    writer.write(tmp_path / "later")
    take = live.take

    def late(store: live.SnapshotStore) -> live.Snapshot:
        shutil.copytree(tmp_path / "later", tmp_path / "store", dirs_exist_ok=True)
        return take(store)

    monkeypatch.setattr(live, "take", late)
    with held(tmp_path / "store"):
        done = cli.run(command[0], tmp_path / "store", *command[1:], "-o", "json").expect(0)
    assert "beyond" not in done.err


def test_rows_beyond_the_log_stay_findings_beside_a_broker(tmp_path: Path) -> None:
    """They lead where the log never came: no message is on its way there."""
    writer = Writer(Layout(log_file_size=64 << 10))
    for number in range(20):
        writer.put("orders", b"x" * 300, keys=f"k{number}")
    writer.tear(writer.puts[12].physical)
    writer.write(tmp_path)
    with held(tmp_path):
        answer = cli.run("verify", tmp_path, "-o", "json").expect(1).json()
    assert {"cq-ahead", "index-ahead"} <= {finding["category"] for finding in answer["findings"]}


def test_the_newest_index_file_is_found_behind_a_clock_that_was_set_back(tmp_path: Path) -> None:
    """By name it is the first of several. Its last entry is put, and not yet in the header."""
    writer = Writer(Layout(index_slots=5, index_entries=20))
    for number in range(70):
        if number == 57:  # the fourth file begins
            writer.clock -= 3_600_000
        writer.put("orders", b"x", unique_key="", keys=f"k{number}")
    folder = writer.write(tmp_path / "s")
    newest = writer.index[-1]
    assert newest.name == min(index_file.name for index_file in writer.index)
    file = folder / "index" / newest.name
    with held(folder), Store.open(folder) as store:
        assert store.snapshot is not None
        number, physical, seconds, _ = newest.entry[-1]
        with file.open("r+b") as opened:
            opened.seek(40 + 4 * 5 + 20 * newest.count)
            opened.write(struct.pack(">iqii", number, physical, seconds, newest.count - 1))
            opened.seek(40 + 4 * (number % 5))
            opened.write(struct.pack(">i", newest.count))
        findings = Verification(store, VerifyOptions(only=frozenset({"index"}))).findings()
        assert [finding.category for finding in findings if finding.is_trouble] == []


def test_a_lock_of_our_own_hides_nothing(tmp_path: Path) -> None:
    """What a repair reads under its own lock is what lies there."""
    from rmqctl.files.lock_probe import OWN
    from rmqctl.store import Store
    writer = Writer()
    writer.put("orders", b"x")
    writer.write(tmp_path)
    lock = tmp_path / "lock"
    with lock.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        about = lock.stat()
        OWN[about.st_dev, about.st_ino] = os.getpid()
        try:
            with Store.open(tmp_path) as store:
                assert store.lock.held
                assert store.snapshot is None
        finally:
            OWN.clear()
