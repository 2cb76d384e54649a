"""SIGKILL and power failures: no acknowledged message is lost, and a broker can start."""

from __future__ import annotations

import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import Runner
from tests.engine_write.crashing import NEWEST, Crasher
from tests.engine_write.durable import (
    acknowledged,
    append,
    assert_recovers,
    assert_whole,
    lines,
    new_store,
    numbers_in_log,
    old_lines,
)
from tests.support.cli import DROPPED_ENV, QUIET_ENV
from tests.support.deaths import MODES
from tests.support.share import sample

APPEND = ("-", "--flush", "sync", "-o", "jsonl")
MANY = 120
"""Messages of a short run: two files of the log and of the index, many of the queues."""
FEW = 30
"""Enough to roll the log, an index file and queues that are nearly full."""


class Place:
    """Stores that begin alike, one for each kill."""

    def __init__(self, folder: Path, rmqctl: Runner, version: str, before: int = 0) -> None:
        self.folder, self.rmqctl = folder, rmqctl
        self.first = new_store(rmqctl, folder / "first", version=version)
        self.before = before
        self.old = []
        if before:
            self.old = append(rmqctl, self.first, old_lines(0, before), "--as-recorded")
            assert len(self.old) == before
        self.store = folder / "store"

    def fresh(self) -> Path:
        shutil.rmtree(self.store, ignore_errors=True)
        return shutil.copytree(self.first, self.store)


def kill_and_check(place: Place, crasher: Crasher, at: int, mode: str, *,
                   count: int = MANY) -> bool:
    """One run that dies at its call ``at``; False when it came to its end before."""
    store = place.fresh()
    killed, printed, _ = crasher.run("append", store, *APPEND, at=at, mode=mode,
                                     data=lines(place.before, count), folder=place.folder)
    acks = [*place.old, *acknowledged(printed, place.before)]
    if killed:
        assert_recovers(place.rmqctl, store, acks)
    else:
        assert len(acks) == place.before + count
    return killed


def calls_of_a_run(place: Place, crasher: Crasher, count: int = MANY) -> int:
    killed, _, calls = crasher.run("append", place.fresh(), *APPEND,
                                   data=lines(place.before, count), folder=place.folder)
    assert not killed
    return calls


# -- at chosen system calls -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("version", "before"), sample(
    [(version, before) for version in ("4.9.3", "5.3.3") for before in (0, 70)], 2, "kills"))
def test_killed_at_some_calls(tmp_path, rmqctl, crasher, seed, version, before):
    place = Place(tmp_path, rmqctl, version, before)
    calls = calls_of_a_run(place, crasher)
    assert calls > MANY
    chosen = random.Random(seed).sample(range(1, calls), 5)
    killed = [kill_and_check(place, crasher, at, MODES[number % 3])
              for number, at in enumerate([1, *sorted(chosen)])]
    # How often a run flushes depends on the time, so one may end before its last calls.
    assert sum(killed) >= len(killed) - 1, (killed, chosen)


@pytest.mark.long
def test_a_torn_record_leaves_nothing_behind_the_next_one(tmp_path, rmqctl, crasher):
    """A dozen calls in a row: some of them write the log."""
    place = Place(tmp_path, rmqctl, "5.3.3")
    for at in range(40, 52):
        assert kill_and_check(place, crasher, at, "torn"), at


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
def test_killed_at_every_call(tmp_path, rmqctl, crasher, mode):
    place = Place(tmp_path, rmqctl, "5.3.3", 70)
    calls = calls_of_a_run(place, crasher, FEW)
    for at in range(1, calls + 1):
        killed = kill_and_check(place, crasher, at, mode, count=FEW)
        # How often a run flushes depends on the time, so one may have fewer calls than another.
        assert killed or at > calls * 3 // 4


def kill_twice(place: Place, crasher: Crasher, first: int, second: int, mode: str) -> bool:
    """A kill while the store recovers from a kill; False when the second one came too late."""
    store = place.fresh()
    killed, printed, _ = crasher.run("append", store, *APPEND, at=first, folder=place.folder,
                                     data=lines(place.before, MANY))
    assert killed
    acks = [*place.old, *acknowledged(printed, place.before)]
    killed, printed, _ = crasher.run("append", store, *APPEND, at=second, mode=mode,
                                     data=lines(1000, 3), folder=place.folder)
    acks += acknowledged(printed, 1000)
    assert_recovers(place.rmqctl, store, acks)
    return killed


@pytest.mark.long
def test_killed_while_recovering(tmp_path, rmqctl, crasher, seed):
    place = Place(tmp_path, rmqctl, "5.3.3", 300)
    chosen = random.Random(seed)
    for number in range(6):
        kill_twice(place, crasher, 50 + chosen.randrange(100), 1 + chosen.randrange(40),
                   MODES[number % 3])


@pytest.mark.exhaustive
def test_killed_at_every_second_call_of_a_recovery(tmp_path, rmqctl, crasher, seed):
    place = Place(tmp_path, rmqctl, "5.3.3", 200)
    at = 1 + seed % 2
    while kill_twice(place, crasher, 140, at, MODES[at % 3]):
        at += 2
    assert at > 15


# -- power failures -------------------------------------------------------------------------------


def cut_power(place: Place, crasher: Crasher, at: int) -> bool:
    """A power failure at a call, with what the system may have written by itself by then."""
    store = place.fresh()
    power = place.folder / "power"
    killed, printed, _ = crasher.run("append", store, *APPEND, at=at, folder=place.folder,
                                     data=lines(place.before, MANY), power=str(power))
    acks = [*place.old, *acknowledged(printed, place.before)]
    for name in NEWEST if killed else ():
        left = Path(f"{power}-{name}")
        assert_recovers(place.rmqctl, left, acks)
        shutil.rmtree(left)
    return killed


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_power_fails_at_some_calls(tmp_path, rmqctl, crasher, seed, version):
    place = Place(tmp_path, rmqctl, version, 70)
    surely = calls_of_a_run(place, crasher) * 3 // 4  # how often a run flushes depends on the time
    for at in random.Random(seed).sample(range(20, surely), 3):
        assert cut_power(place, crasher, at), at


@pytest.mark.exhaustive
def test_power_fails_at_many_calls(tmp_path, rmqctl, crasher, seed):
    place = Place(tmp_path, rmqctl, "5.3.3", 70)
    calls = calls_of_a_run(place, crasher)
    for at in range(1 + seed % 9, calls, 9):
        assert cut_power(place, crasher, at) or at > calls * 3 // 4


# -- at random moments, in a process of its own ---------------------------------------------------


def feed(target, data: bytes, chosen: random.Random) -> None:
    """Line by line or in bursts, with pauses, until there is nobody to read it."""
    rows = data.splitlines(keepends=True)
    at = 0
    try:
        while at < len(rows):
            burst = chosen.choice((1, 1, 3, 20))
            target.write(b"".join(rows[at:at + burst]))
            target.flush()
            at += burst
            time.sleep(chosen.choice((0, 0, 0.002)))
        target.close()
    except (BrokenPipeError, ValueError, OSError):
        pass


def killed_process(store: Path, first: int, chosen: random.Random) -> bytes:
    """What a process printed before it was killed; the clock runs from its first line on."""
    wait = chosen.uniform(0, 0.25)
    process = subprocess.Popen(
        [sys.executable, "-m", "rmqctl", "append", store, *APPEND], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items()
             if name not in DROPPED_ENV} | QUIET_ENV)
    writer = threading.Thread(target=feed, args=(process.stdin, lines(first, 900),
                                                 random.Random(chosen.random())))
    writer.start()
    printed = b""
    until = None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while until is None or time.monotonic() < until:
            if not selector.select(20 if until is None else max(0, until - time.monotonic())):
                break
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                break
            printed += data
            until = until or time.monotonic() + wait
    process.send_signal(signal.SIGKILL)
    printed += process.stdout.read()
    output = process.stderr.read()
    process.wait(20)
    process.stdout.close()
    process.stderr.close()
    writer.join(20)
    assert b"error" not in output, output
    return printed


def kill_at_random(folder: Path, rmqctl: Runner, chosen: random.Random, kills: int) -> None:
    """Again and again the same store: each run recovers from the one before."""
    store = new_store(rmqctl, folder / "store", version=chosen.choice(("4.9.3", "5.3.3")))
    acks = []
    for number in range(kills):
        first = number * 1000
        acks += acknowledged(killed_process(store, first, chosen), first)
        if number % 3 != 1:  # else the next append is what recovers
            assert_recovers(rmqctl, store, acks)
    acks += append(rmqctl, store, lines(900_000, 5), first=900_000)
    assert_whole(rmqctl, store, acks)


@pytest.mark.long
def test_killed_at_a_few_random_moments(tmp_path, rmqctl, seed):
    kill_at_random(tmp_path, rmqctl, random.Random(seed), 4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(5))
def test_killed_at_fifty_random_moments(tmp_path, rmqctl, seed, part):
    kill_at_random(tmp_path, rmqctl, random.Random(seed + part), 10)


# -- what is printed and what is not --------------------------------------------------------------


@pytest.mark.long
def test_what_is_not_printed_is_there_wholly_or_not_at_all(tmp_path, rmqctl, crasher, seed):
    """The log never holds messages out of order or twice, or one behind a missing one."""
    place = Place(tmp_path, rmqctl, "5.3.3")
    for at in random.Random(seed).sample(range(10, 200), 4):
        store = place.fresh()
        _, printed, _ = crasher.run("append", store, *APPEND, at=at, mode="torn",
                                    data=lines(0, MANY), folder=place.folder)
        numbers = numbers_in_log(store)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= len(acknowledged(printed, 0))


# -- a checkpoint that was torn -------------------------------------------------------------------

@pytest.mark.long
def test_a_checkpoint_later_than_any_message_is_not_believed(tmp_path, rmqctl):
    """Half of a time that was written over another can say any time: index files go by it."""
    place = Place(tmp_path, rmqctl, "5.3.3")
    store = place.fresh()
    acks = append(rmqctl, store, lines(0, 250))
    full = min((store / "index").iterdir())
    assert int.from_bytes(full.read_bytes()[36:40]) == 200
    data = bytearray(full.read_bytes())
    data[40 + 50 * 4 + 20 * 3:40 + 50 * 4 + 20 * 9] = bytes(120)
    full.write_bytes(data)
    with (store / "checkpoint").open("r+b") as page:
        page.seek(16)
        page.write((int.from_bytes(data[8:16]) + (1 << 32)).to_bytes(8))
    (store / "abort").touch()
    acks += append(rmqctl, store, lines(250, 3), first=250)
    assert_whole(rmqctl, store, acks)
