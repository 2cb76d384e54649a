"""Dispatch, killed at any call, without power, and with calls that fail: a second run completes it.

The commit logs and consume queues are then those of a run that nobody disturbed, byte for byte,
and every key of every message is in the index once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine_write.crashing import Crasher
from tests.engine_write.faults import broken, failing, out_of_space
from tests.support import cli
from tests.support.deaths import MODES
from tests.tiered.dispatching import (
    BROKER,
    METADATA,
    SMALL,
    assert_consistent,
    assert_metadata,
    dispatched,
    index_items,
    local_store,
    put,
    segments,
    wanted_items,
)

BEFORE, COUNT = 30, 78
"""Messages that were uploaded before, and all of them."""


@dataclass(frozen=True)
class Place:
    """Stores with ``tier`` in them that begin alike, and what an undisturbed run makes of one."""

    folder: Path
    first: Path
    wanted: dict[str, bytes]
    calls: int

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def fresh(self) -> Path:
        shutil.rmtree(self.store, ignore_errors=True)
        return shutil.copytree(self.first, self.store)


def args(store: Path) -> list[str | Path]:
    return ["tiered", "dispatch", store, store / "tier", *BROKER, *SMALL, "-o", "json"]


@pytest.fixture(scope="module", params=[0, BEFORE])
def place(request, tmp_path_factory, crasher) -> Place:
    folder = tmp_path_factory.mktemp("place")
    first = folder / "first"
    local_store(cli.run, first, request.param or 1)
    if request.param:
        dispatched(cli.run, first, first / "tier", *SMALL)
    put(cli.run, first, request.param or 1, COUNT - (request.param or 1))
    store = shutil.copytree(first, folder / "store")
    killed, printed, calls = crasher.run(*args(store), folder=folder)
    assert not killed
    assert json.loads(printed)["messages"] == COUNT - request.param
    return Place(folder, first, segments(store / "tier"), calls)


def assert_completed(store: Path, wanted: dict[str, bytes]) -> None:
    """What a disturbed run left can be read, and the next one completes it."""
    root = store / "tier"
    if segments(root):
        try_to_read(store)
    done = dispatched(cli.run, store, root, *SMALL, "--verify-after")
    assert done["checked"]["problems"] == []
    assert segments(root) == wanted
    assert_consistent(store, root)
    assert_metadata(store, root)
    assert index_items(store, root, 16, 40) == wanted_items(store, root)
    assert dispatched(cli.run, store, root)["messages"] == 0
    cli.run("tiered", "verify", root, "--metadata", store / METADATA, "--local", store,
            "--index-slots", "16", "--index-max", "40").expect(0)


def try_to_read(store: Path) -> None:
    """Whatever has a unit is a whole message: nothing that was uploaded is lost or shifted."""
    if (store / METADATA).exists():
        assert_consistent(store, store / "tier")


def places(place: Place, count: int, seed: int) -> range:
    """About ``count`` calls, evenly apart."""
    step = max(1, place.calls // count)
    return range(2 + seed % step, place.calls, step)


def kill_and_check(place: Place, crasher: Crasher, at: int, mode: str) -> bool:
    store = place.fresh()
    killed, _, _ = crasher.run(*args(store), at=at, mode=mode, folder=place.folder)
    assert_completed(store, place.wanted)
    return killed


@pytest.mark.long
def test_killed_at_some_calls(place, crasher, seed):
    assert place.calls > 80
    chosen = random.Random(seed).sample(range(2, place.calls - 4), 3)
    for number, at in enumerate(sorted(chosen)):
        assert kill_and_check(place, crasher, at, MODES[number % 3]), at


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
def test_killed_at_many_calls(place, crasher, mode, seed):
    """Which calls follows from the seed: RMQCTL_SEED takes others."""
    for at in places(place, 20, seed):
        # The calls of the two threads are not always in the same order.
        assert kill_and_check(place, crasher, at, mode) or at > place.calls - 12, at


@pytest.mark.long
def test_killed_twice(place, crasher, seed):
    chosen = random.Random(seed)
    for _ in range(2):
        store = place.fresh()
        for most in (place.calls - 4, 60):
            crasher.run(*args(store), at=chosen.randrange(2, most), mode=chosen.choice(MODES),
                        folder=place.folder)
        assert_completed(store, place.wanted)


def killed_and_compacted(place: Place, crasher: Crasher, at: int) -> bool:
    """Index files that an interrupted run has to put right do not go up before; others do."""
    store = place.fresh()
    crasher.run(*args(store), at=at, folder=place.folder)
    waits = False
    if segments(store / "tier") and (store / METADATA).exists():
        result = cli.run("tiered", "compact", store / "tier", "--metadata", store / METADATA,
                         "--cluster", "DefaultCluster", *BROKER, "--index-slots", "16",
                         "--index-max", "40").expect(0)
        waits = "was interrupted" in result.err
    assert_completed(store, place.wanted)
    return waits


def test_killed_and_compacted(place, crasher, seed):
    assert any(killed_and_compacted(place, crasher, at) for at in places(place, 6, seed))


@pytest.mark.exhaustive
def test_killed_at_many_calls_and_compacted(place, crasher, seed):
    for at in places(place, 24, seed):
        killed_and_compacted(place, crasher, at)


def cut_power(place: Place, crasher: Crasher, at: int) -> bool:
    store, power = place.fresh(), place.folder / "power"
    killed, _, _ = crasher.run(*args(store), at=at, folder=place.folder, power=str(power),
                               root=store)
    for left in place.folder.glob("power-*") if killed else ():
        assert_completed(left, place.wanted)
        shutil.rmtree(left)
    return killed


@pytest.mark.long
def test_power_fails_at_some_calls(place, crasher, seed):
    for at in random.Random(seed).sample(range(20, place.calls - 4), 1):
        assert cut_power(place, crasher, at), at


@pytest.mark.exhaustive
def test_power_fails_at_many_calls(place, crasher, seed):
    for at in places(place, 12, seed):
        assert cut_power(place, crasher, at) or at > place.calls - 12, at


@pytest.mark.long
@pytest.mark.parametrize("error", [out_of_space, broken])
def test_a_call_that_fails_ends_the_run_cleanly(place, error, seed):
    calls = random.Random(seed).sample(range(3, place.calls - 4), 8)
    assert sum(fail_and_check(place, at, error) for at in calls[:2]) or any(
        fail_and_check(place, at, error) for at in calls[2:])


@pytest.mark.exhaustive
@pytest.mark.parametrize("error", [out_of_space, broken])
def test_any_call_that_fails_ends_the_run_cleanly(place, error, seed):
    failed = sum(fail_and_check(place, at, error) for at in places(place, 20, seed))
    assert failed > 8


def fail_and_check(place: Place, at: int, error) -> bool:
    store = place.fresh()
    with failing(at, error) as counter:
        done = cli.run(*args(store))
    if counter.failed and done.code:
        done.expect(5)
    assert_completed(store, place.wanted)
    return bool(done.code)


def test_a_disk_that_is_full_from_then_on(place, monkeypatch, seed):
    """Nothing can be written any more, not even to tidy up; later there is room again."""
    store = place.fresh()
    room = random.Random(seed).randrange(2000, 9000)
    real, left = os.pwrite, [room]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise out_of_space()
        return real(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        cli.run(*args(store)).expect(5)
    assert_completed(store, place.wanted)
