"""``recover --strategy broker`` on consume queues in RocksDB leaves what the engine left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmqctl.formats.rocksdb import consume_queue as keys
from rmqctl.store.rocksdb.database import Database
from tests.support import snapshot
from tests.support.cli import run
from tests.support.golden import GoldenSet, rocksdb_sets

DAMAGED = [golden_set for golden_set in rocksdb_sets() if golden_set.is_damaged]
WORDS = ("--strategy", "broker", "--broker-version", "5.3.3", "--consumequeue", "rocksdb")


def contents(store: Path) -> dict[str, dict[bytes, bytes]]:
    with Database.open(str(store / "consumequeue")) as database:
        return {family: dict(database.items(family)) for family in (keys.ROWS, keys.OFFSETS)}


@pytest.mark.parametrize("golden_store", DAMAGED, ids=lambda golden_store: golden_store.id)
def test_what_the_engine_left(golden, golden_copy, golden_store: GoldenSet):
    """Every entry and everything noted, faults of the engine included (spec: rocksdb.md §4)."""
    store, folder = golden_copy(f"{golden_store.id}/before"), golden(golden_store.id)
    kept = snapshot.copy_tree(store, store.parent / "kept")
    run("recover", store, *WORDS, "--apply", "--yes").expect(0, 1)
    ours, theirs = contents(store), contents(folder / "after")
    assert ours[keys.ROWS] == theirs[keys.ROWS]

    def noted(database: dict[bytes, bytes]) -> dict[bytes, bytes]:
        # The first entry of a queue is noted once somebody asks for it: the engine was asked.
        return {key: value for key, value in database.items()
                if key == keys.CHECKPOINT_KEY or keys.parse_offset_key(key)[1] == keys.MAX}

    assert noted(ours[keys.OFFSETS]) == noted(theirs[keys.OFFSETS])
    assert not (store / "abort").exists()
    assert (store / "checkpoint").read_bytes() == (folder / "after/checkpoint").read_bytes()
    assert json.loads((folder / "expect.json").read_text())["maxPhyOffsetAfterLoad"] is not None
    run("undo", store, "--yes").expect(0)
    shutil.rmtree(store / ".rmqctl")
    differences = snapshot.take(kept, inodes=False).differences(snapshot.take(store, inodes=False))
    assert [line for line in differences if not line.startswith("changed: . ")] == []


def test_a_second_time_there_is_nothing_to_do(golden_copy):
    store = golden_copy("5.3.3/rocksdb-crash/before")
    run("recover", store, *WORDS, "--apply", "--yes").expect(0)
    assert run("recover", store, *WORDS, "-o", "json").expect(0).json()["actions"] == []


def test_a_damaged_block_is_refused(golden_copy):
    store = golden_copy("5.3.3/rocksdb-crash/before")
    table = max((store / "consumequeue").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[100] ^= 4
    table.write_bytes(data)
    assert "recover without --strategy broker" in run("recover", store, *WORDS).expect(6).err
