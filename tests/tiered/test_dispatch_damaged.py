"""Dispatch and commit on any bytes: clear words and an exit code, never a loop or a traceback."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.support import cli
from tests.support.share import sample
from tests.tiered.dispatching import (
    BROKER,
    METADATA,
    SMALL,
    assert_consistent,
    dispatched,
    local_store,
    put,
    segments,
)

MEANT = (0, 1, 3, 5, 6)


@pytest.fixture(scope="module")
def fed(tmp_path_factory) -> Path:
    store = local_store(cli.run, tmp_path_factory.mktemp("fed") / "store", 48)
    dispatched(cli.run, store, store / "tier", *SMALL)
    put(cli.run, store, 48, 24)
    return store


def spoil(path: Path, dice: random.Random) -> None:
    """Bytes changed, cut off, added, or all of it gone."""
    data = bytearray(path.read_bytes())
    how = dice.randrange(5)
    if how == 0 or not data:
        data += dice.randbytes(dice.randrange(1, 50))
    elif how == 1:
        del data[dice.randrange(len(data)):]
    elif how == 2:
        path.unlink()
        return
    else:
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
    path.write_bytes(data)


def files_of(store: Path) -> list[Path]:
    return sorted(path for top in ("tier", "config", "tiered_index_file", ".rmqctl")
                  for path in (store / top).rglob("*") if path.is_file() and path.name != "lock")


@pytest.mark.parametrize("number", sample(range(24), 10, "damaged tiers of dispatch"))
def test_a_damaged_tier(fed, tmp_path, seed, number):
    dice = random.Random(seed + number)
    store = shutil.copytree(fed, tmp_path / "store")
    for path in dice.sample(files_of(store), dice.randrange(1, 4)):
        spoil(path, dice)
    for words in (("commit", store / "tier", "--metadata", store / METADATA, "--dry-run"),
                  ("dispatch", store, store / "tier", *BROKER, "--dry-run"),
                  ("commit", store / "tier", "--metadata", store / METADATA),
                  ("dispatch", store, store / "tier", *BROKER),
                  ("dispatch", store, store / "tier", *BROKER, "--no-index", "--verify-after")):
        if words[0] == "commit" and not (store / METADATA).exists():
            continue
        done = cli.run("tiered", *words)
        assert done.code in MEANT, done.describe()
        if done.code in (5, 6):
            assert "error: " in done.err


@pytest.mark.parametrize("number", range(12))
def test_a_damaged_store(fed, tmp_path, seed, number):
    """What is uploaded of it is right; what was uploaded before stays as it was."""
    dice = random.Random(seed + number)
    store = shutil.copytree(fed, tmp_path / "store")
    before = segments(store / "tier")
    files = sorted(path for top in ("commitlog", "consumequeue")
                   for path in (store / top).rglob("*") if path.is_file())
    for path in dice.sample(files, 2):
        if dice.random() < 0.3:
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            for _ in range(4):
                data[dice.randrange(len(data))] = dice.randrange(256)
            path.write_bytes(data)
    done = cli.run("tiered", "dispatch", store, store / "tier", *BROKER, "--verify-after", "-o",
                   "json").expect(0, 1)
    assert done.json()["checked"]["problems"] == []
    after = segments(store / "tier")
    for name, data in before.items():
        assert after[name][:len(data)] == data


def test_a_tier_that_is_a_file(fed, tmp_path):
    store = shutil.copytree(fed, tmp_path / "store")
    (tmp_path / "file").write_bytes(b"")
    cli.run("tiered", "dispatch", store, tmp_path / "file", *BROKER).expect(2, 3)
    cli.run("tiered", "dispatch", tmp_path / "file", tmp_path / "tier", *BROKER).expect(3)
    assert_consistent(store, store / "tier")


def test_fillers_are_counted_in_the_tier(tmp_path: Path) -> None:
    """What `recover` put in the place of lost messages is uploaded, and stays to be seen."""
    store = local_store(cli.run, tmp_path / "store", 30)
    hit = [row["physical_offset"] for row in cli.run("read", store, "-o", "jsonl").jsonl()[4:7]]
    with (store / "commitlog" / f"{0:020d}").open("r+b") as log:
        for place in hit:
            log.seek(place)
            log.write(bytes(88))
    cli.run("recover", store, "--apply", "--yes", "--correct", "off").expect(1)
    dispatched(cli.run, store, tmp_path / "tier", *SMALL)
    result = cli.run("tiered", "verify", tmp_path / "tier", "--metadata", store / METADATA)
    assert "3 (fillers for lost messages" in result.out
    cover = cli.run("tiered", "verify", tmp_path / "tier", "--metadata", store / METADATA, "-o",
                    "json").json()["coverage"]
    local = cli.run("verify", store, "-o", "json").json()["coverage"]
    assert cover["messages_replaced"] == local["messages_replaced"] == 3
    assert (cover["messages_undecided"], cover["messages"]) == (0, 30)
