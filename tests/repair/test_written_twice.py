"""Consume queues in files and in RocksDB: `recover` repairs both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqctl.formats.rocksdb import consume_queue as keys
from rmqctl.store import Store
from tests.checks.test_rocksdb import Changing
from tests.support import snapshot
from tests.support.cli import run

SET = "5.3.3/rocksdb-double/store"
SIZES = ("--consumequeue-file-size", "300")


def of(store: Path) -> tuple[str, int, int]:
    """A queue with rows, and its end."""
    with Store.open(store) as opened:
        (topic, queue_id), queue = next(item for item in opened.queues.by_key.items()
                                        if item[1].disk_end > 5 and not item[0][0].startswith("%"))
        return topic, queue_id, queue.disk_end


def whole(store: Path) -> None:
    """Verify finds nothing, nothing is left to do, and all of it can be undone."""
    findings = run("verify", store, "-o", "json").expect(0).json()["findings"]
    assert {finding["severity"] for finding in findings} <= {"info"}
    assert run("recover", store, "-o", "json").expect(0).json()["actions"] == []


def undone(store: Path, before: snapshot.Snapshot) -> None:
    run("undo", store, "--yes").expect(0)
    shutil.rmtree(store / ".rmqctl")
    assert [line for line in before.differences(snapshot.take(store, inodes=False))
            if not line.startswith("changed: . ")] == []


def test_a_sound_store_needs_nothing(golden):
    assert run("recover", golden(SET), "-o", "json").expect(0).json()["actions"] == []


def test_a_queue_in_files_that_is_gone(golden_copy):
    store = golden_copy(SET)
    topic, queue_id, _ = of(store)
    shutil.rmtree(store / "consumequeue" / topic / str(queue_id))
    before = snapshot.take(store, inodes=False)
    copy = {path.name: path.read_bytes() for path in (store / "consumequeue").iterdir()
            if path.is_file()}
    run("recover", store, *SIZES, "--apply", "--yes").expect(0)
    assert (store / "consumequeue" / topic / str(queue_id)).is_dir()
    assert {path.name: path.read_bytes() for path in (store / "consumequeue").iterdir()
            if path.is_file()} == copy
    whole(store)
    undone(store, before)


def test_rows_that_the_copy_lacks_are_left(golden_copy):
    store = golden_copy(SET)
    topic, queue_id, _ = of(store)
    with Changing(store) as (rows, _):
        del rows[keys.row_key(topic.encode(), queue_id, 4)]
    assert run("recover", store, "-o", "json").expect(0).json()["actions"] == []


@pytest.mark.parametrize("damage", ["wrong row", "CURRENT", "*.sst"])
def test_a_wrong_copy_is_replaced(golden_copy, damage: str):
    store = golden_copy(SET)
    topic, queue_id, _ = of(store)
    if damage == "wrong row":
        with Changing(store) as (rows, _):
            rows[keys.row_key(topic.encode(), queue_id, 2)] = keys.ROW.build((77, 100, 0, 0))
    else:
        max((store / "consumequeue").glob(damage), key=lambda path: path.stat().st_size).unlink()
    before = snapshot.take(store, inodes=False)
    plan = run("recover", store, "--apply", "--yes", "-o", "json").expect(0).json()
    assert [(action["action"], action["target"]) for action in plan["actions"]] == [
        ("rebuild", "consumequeue")]
    whole(store)
    with Store.open(store) as opened:
        assert opened.layout.consumequeue == "double"
        for key, queue in opened.queues.by_key.items():
            copy = opened.queues.rocksdb.queues[key]
            assert (copy.units(0, queue.disk_end) == queue.units(0, queue.disk_end)).all()
    undone(store, before)


def test_a_damaged_log_is_mended_with_both(golden_copy):
    store = golden_copy(SET)
    log = store / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[9000:9400] = bytes(400)
    log.write_bytes(data)
    run("recover", store, "--apply", "--yes").expect(1)
    whole(store)


def test_other_repairs_are_still_refused(golden_copy):
    store = golden_copy(SET)
    assert "exist twice" in run("truncate", store, "--to-phy", "0").expect(3).err
    assert "exist twice" in run("recover", store, "--strategy", "broker").expect(3).err
