"""Consumequeues of one form become those of the other, and back, with nothing lost on the way."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rmqctl.store import Store
from tests.support import snapshot
from tests.support.cli import run

SIZE = ("--consumequeue-file-size", "400")
FILES, ROCKSDB = "5.3.3/lmq/store", "5.3.3/rocksdb/store"


def rows(store: Path) -> dict:
    with Store.open(store) as opened:
        return {key: (queue.disk_end, queue.units(queue.first_index, queue.disk_end
                                                  - queue.first_index).tolist())
                for key, queue in opened.queues.items() if queue.exists}


def converted(store: Path, to: str) -> dict:
    plan = run("convert", store, "--consumequeue", to, *SIZE, "--apply", "-o",
               "json").expect(0).json()
    assert run("info", store, "-o", "json").json()["layout"]["consumequeue"] == to
    verdict = run("verify", store, "-o", "json").expect(0).json()
    assert [one for one in verdict["findings"] if one["structure"] == "consumequeue"] == []
    return plan


@pytest.mark.parametrize(("name", "to"), [(FILES, "rocksdb"), (ROCKSDB, "file"),
                                          ("4.9.3/delay/store", "rocksdb")])
def test_there_and_back(golden_copy, name: str, to: str):
    store = golden_copy(name)
    kept = snapshot.copy_tree(store, store.parent / "kept")
    before = rows(store)
    back = "file" if to == "rocksdb" else "rocksdb"
    planned = run("convert", store, "--consumequeue", to, *SIZE, "-o", "json").expect(0).json()
    assert not snapshot.take(kept, inodes=False).differences(snapshot.take(store, inodes=False))
    assert converted(store, to)["actions"] == planned["actions"]
    assert rows(store) == before
    converted(store, back)
    assert rows(store) == before
    for _ in range(2):
        run("undo", store, "--yes").expect(0)
    shutil.rmtree(store / ".rmqctl")
    differences = snapshot.take(kept, inodes=False).differences(snapshot.take(store, inodes=False))
    assert [line for line in differences if not line.startswith("changed: . ")] == []


def test_the_rows_are_those_that_the_engine_wrote(golden_copy):
    """Double-written rows: those made of the log into a data base are the engine's own."""
    from rmqctl.formats.rocksdb import consume_queue as keys
    from rmqctl.store.rocksdb.database import Database

    store = golden_copy("5.3.3/rocksdb-double/store")
    folder = store / "consumequeue"
    with Database.open(str(folder)) as database:
        expected = dict(database.items(keys.ROWS)), dict(database.items(keys.OFFSETS))
    for name in os.listdir(folder):
        if (folder / name).is_file():
            (folder / name).unlink()
    converted(store, "rocksdb")
    with Database.open(str(folder)) as database:
        made = dict(database.items(keys.ROWS)), dict(database.items(keys.OFFSETS))
    assert made[0] == expected[0]
    assert expected[1].items() <= made[1].items()


def test_a_queue_whose_messages_have_expired_goes_on_where_it_stood(golden_copy):
    store = golden_copy(ROCKSDB)
    files = sorted(os.listdir(store / "commitlog"))
    for file in files[:-2]:
        (store / "commitlog" / file).unlink()
    with Store.open(store) as opened:
        ends = {key: queue.disk_end for key, queue in opened.queues.items() if queue.disk_end}
        log_min = opened.log.min_offset
        expired = [key for key, queue in opened.queues.items() if queue.disk_end and queue.unit(
            queue.disk_end - 1).physical_offset < log_min]
    assert expired
    for to in ("file", "rocksdb", "file"):
        run("convert", store, "--consumequeue", to, *SIZE, "--apply").expect(0)
        run("verify", store, "--only", "consumequeue").expect(0)
        with Store.open(store) as opened:
            assert {key: opened.queues[key].disk_end for key in ends} == ends


def test_what_is_refused(golden_copy):
    store = golden_copy(ROCKSDB)
    assert "already" in run("convert", store, "--consumequeue", "rocksdb").expect(0).err
    with (store / "commitlog" / "00000000000000000000").open("r+b") as log:
        log.seek(300)
        log.write(b"\xff" * 50)
    assert "recover" in run("convert", store, "--consumequeue", "file").expect(6).err
    batches = golden_copy("5.3.3/batchcq/store")
    assert "batch" in run("convert", batches, "--consumequeue", "rocksdb").expect(6).err
    double = golden_copy("5.3.3/rocksdb-double/store")
    assert "twice" in run("convert", double, "--consumequeue", "file").expect(3).err
