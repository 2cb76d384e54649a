"""``rmqctl tail``: what is shown at once, and a process that follows another one's writing."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GoldenFolder, Runner
from tests.support import cli
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores
from tests.support.writer import Part, Writer, parts_of

PATIENT = 30.0
"""Seconds after which a process that says nothing has failed."""


# -- without following ----------------------------------------------------------------------------


def test_read_last_is_tail(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    for new, old in ((["--last", "3"], ["-n", "3"]), (["--last", "0"], ["-n", "0"]),
                     (["--last", "5", "--topic", "TopicTest"], ["-n", "5", "-t", "TopicTest"])):
        done = rmqctl("read", tiny_base.root, *new, "-o", "json").expect(0)
        same = rmqctl("tail", tiny_base.root, *old, "-o", "json")
        assert (done.code, done.out, done.err) == (same.code, same.out, same.err)
    for words in (["--limit", "1"], ["--since", "-1h"], ["--group", "g", "--unconsumed"]):
        rmqctl("read", tiny_base.root, "--last", "3", *words).expect(2)
    assert "has no end" in rmqctl("read", tiny_base.root, "--follow", "-o", "json").expect(2).err


@pytest.mark.parametrize("store", [pytest.param(golden_store, id=golden_store.id)
                                   for golden_store in golden_sets.clean_stores()])
def test_the_last_of_every_clean_store(store: golden_sets.GoldenStore, golden: GoldenFolder,
                                       rmqctl: Runner) -> None:
    root = golden(store.id)
    every = rmqctl("read", root, *store.options, "-o", "jsonl").expect(0).jsonl()
    for words, count in (([], 10), (["-n", "3"], 3), (["-n", "0"], 0), (["--lines", "9999"], 9999)):
        done = rmqctl("tail", root, *store.options, *words, "-o", "jsonl").expect(0)
        assert done.jsonl() == every[max(len(every) - count, 0):]
        assert done.err == ""


def test_filters(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden("5.3.3/basic/store")
    for words in (["--topic", "TP_ship_evt-x"], ["--topic", "TP_ship_evt-x", "--queue", "1"],
                  ["--tag", "A"], ["--key", "order-63"], ["--where", "queue_offset<9"],
                  ["--topic", "nix"]):
        expected = rmqctl("read", root, *words, "-o", "jsonl").jsonl()
        rows = rmqctl("tail", root, *words, "-o", "jsonl", "-n", "7").expect(0).jsonl()
        assert rows == expected[-7:]


def test_the_formats(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden("5.3.3/basic/store")
    rows = rmqctl("tail", root, "-o", "jsonl").jsonl()
    assert rmqctl("tail", root, "-o", "json").json() == rows
    csv = rmqctl("tail", root, "-o", "csv", "--fields", "physical_offset,topic").out.splitlines()
    assert csv == ["physical_offset,topic",
                   *(f"{row['physical_offset']},{row['topic']}" for row in rows)]
    for form in ("table", "plain", "markdown"):
        assert str(rows[-1]["physical_offset"]) in rmqctl("tail", root, "-o", form).out


@pytest.mark.parametrize(("kind", "place"), [
    ("crash-trunc-zero", 173239), ("crash-trunc-garbage", 173239), ("crash-crc-prev", None)])
def test_damage_at_the_end(kind: str, place: int | None, golden: GoldenFolder,
                           rmqctl: Runner) -> None:
    done = rmqctl("tail", golden(f"5.3.3/{kind}/before"), "-o", "jsonl")
    assert done.expect(0 if place is None else 1).err.count("damage") == (place is not None)
    assert str(place or "") in done.err
    assert len(done.jsonl()) == 10


def test_usage(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    assert "jsonl" in rmqctl("tail", tiny.root, "-f", "-o", "json").expect(2).err
    rmqctl("tail", tiny.root, "--interval", "1").expect(2)
    rmqctl("tail", tiny.root, "-n", "-1").expect(2)


# -- following ------------------------------------------------------------------------------------


class Following:
    """A ``tail -f`` in a process of its own, and the lines it has written."""

    def __init__(self, *words: str | Path) -> None:
        environment = {name: value for name, value in os.environ.items()
                       if name not in cli.DROPPED_ENV} | cli.QUIET_ENV
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rmqctl", "tail", *map(str, words), "-f", "--interval", "20"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        self._rest = b""

    def line(self, patience: float = PATIENT) -> Any:
        """The next line as JSON; None when none came in time."""
        assert self.process.stdout is not None
        until = time.monotonic() + patience
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [],
                                        max(until - time.monotonic(), 0))
            if not ready:
                return None
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            assert piece, f"it ended: {self.end()}"
            self._rest += piece
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def places(self, count: int) -> list[int]:
        return [self.line()["physical_offset"] for _ in range(count)]

    def end(self, how: signal.Signals | None = None) -> tuple[int, str]:
        """(exit code, stderr) after a signal, or of itself."""
        if how is not None:
            self.process.send_signal(how)
        _, output = self.process.communicate(timeout=PATIENT)
        return self.process.returncode, output.decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def log(golden: GoldenFolder, tmp_path: Path) -> tuple[Writer, list[Part]]:
    """A store with the first messages of another one, short of the end of its first file."""
    folder = golden("5.3.3/crash-base/store/commitlog")
    parts = parts_of(folder)
    writer = Writer(tmp_path / "store", min(folder.iterdir()).stat().st_size)
    first_blank = next(number for number, part in enumerate(parts) if not part.is_message)
    for part in parts[:first_blank - 3]:
        writer.write(part.offset, part.raw)
    return writer, parts[first_blank - 5:]


def test_following_a_writer_over_a_roll(log: tuple[Writer, list[Part]]) -> None:
    """Half a head, half a body, then the rest; the blank; the next file. Nothing comes early."""
    writer, parts = log
    following = Following(writer.folder.parent, "-n", "2", "-o", "jsonl")
    try:
        assert following.places(2) == [part.offset for part in parts[:2]]
        assert sum(not part.is_message for part in parts[2:9]) == 1, "no roll"
        for part in parts[2:9]:
            cuts = (20, len(part.raw) // 2) if part.is_message else (4,)
            for there in writer.append(part, cuts=cuts):
                if there < len(part.raw):
                    assert following.line(0.06) is None
            if part.is_message:
                assert following.line()["physical_offset"] == part.offset
        code, output = following.end(signal.SIGINT)
    finally:
        following.close()
    assert (code, output.strip()) == (130, "rmqctl: interrupted")


def test_following_with_filters_and_sigterm(log: tuple[Writer, list[Part]]) -> None:
    writer, parts = log
    following = Following(writer.folder.parent, "-n", "1", "-o", "jsonl", "--where",
                          f"physical_offset!={parts[3].offset}")
    try:
        assert following.places(1) == [parts[1].offset]
        for part in parts[2:5]:
            writer.write(part.offset, part.raw)
        assert following.places(2) == [parts[2].offset, parts[4].offset]
        code, output = following.end(signal.SIGTERM)
    finally:
        following.close()
    assert (code, output.strip()) == (143, "rmqctl: terminated")


def test_it_stops_when_nobody_reads_any_more(log: tuple[Writer, list[Part]]) -> None:
    """Nothing is appended, so no write can fail: it must notice all the same."""
    writer, _ = log
    following = Following(writer.folder.parent, "-n", "1", "-o", "jsonl")
    try:
        assert following.line() is not None
        assert following.process.stdout is not None
        following.process.stdout.close()
        following.process.stdout = None
        code, output = following.end()
    finally:
        following.close()
    assert (code, output) == (141, "")


def test_a_store_that_is_cut_and_written_again(log: tuple[Writer, list[Part]]) -> None:
    writer, parts = log
    following = Following(writer.folder.parent, "-n", "1", "-o", "jsonl")
    try:
        assert following.places(1) == [parts[1].offset]
        writer.write(parts[1].offset, bytes(len(parts[1].raw)))
        assert following.line(0.3) is None
        writer.write(parts[1].offset, parts[1].raw)
        assert following.places(1) == [parts[1].offset]
        code, output = following.end(signal.SIGINT)
    finally:
        following.close()
    assert code == 130
    assert f"physical offset {parts[1].offset}" in output
    assert "was truncated" in output


def test_newer_messages_that_the_log_lost_are_named(golden_copy: GoldenFolder,
                                                    rmqctl: Runner) -> None:
    """`tail` and `read` of a whole log without its last file say so."""
    root = golden_copy("5.3.3/basic/store")
    max((root / "commitlog").iterdir()).unlink()
    for command in ("tail", "read"):
        assert "are already lost" in " ".join(rmqctl(command, root).err.split())
    assert "already lost" not in rmqctl("read", root, "--limit", "1").err
