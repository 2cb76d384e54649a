"""Consumequeues in RocksDB are made anew from the log, as a whole, and what was there is kept."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl.formats.rocksdb import consume_queue as keys
from rmqctl.store import Store
from rmqctl.store.rocksdb.database import Database
from tests.support import snapshot
from tests.support.cli import run

SOUND = "5.3.3/rocksdb-crash/after"
EVERYTHING = "5.3.3/rocksdb/store"


def contents(store: Path) -> dict[str, dict[bytes, bytes]]:
    with Database.open(str(store / "consumequeue")) as database:
        return {family: dict(database.items(family)) for family in (keys.ROWS, keys.OFFSETS)}


def recovered(store: Path, *words: str) -> dict:
    """The plan carried out; nothing is left to find or to do, and it all can be taken back."""
    kept = snapshot.copy_tree(store, store.parent / "kept")
    plan = run("recover", store, *words, "--apply", "-o", "json").expect(0, 1).json()
    assert run("verify", store, "-o", "json").expect(0, 3).json()["ok"]
    assert run("recover", store, "-o", "json").expect(0, 1).json()["actions"] == []
    after = shutil.copytree(store, store.parent / "after")
    run("undo", store, "--yes").expect(0)
    shutil.rmtree(store / ".rmqctl")
    differences = snapshot.take(kept, inodes=False).differences(snapshot.take(store, inodes=False))
    assert [line for line in differences if not line.startswith("changed: . ")] == []
    shutil.rmtree(store)
    shutil.move(after, store)
    return plan


def lose(pattern: str) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        next((store / "consumequeue").glob(pattern)).unlink()
    return change


def flip(store: Path) -> None:
    table = max((store / "consumequeue").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[200] ^= 4
    table.write_bytes(data)


@pytest.mark.parametrize("damage", [lose("CURRENT"), flip], ids=["lost file", "bit"])
def test_a_damaged_data_base_is_made_anew(golden_copy, damage: Callable[[Path], None]):
    store = golden_copy(EVERYTHING)
    before = contents(store)
    damage(store)
    [action] = [planned_action for planned_action in recovered(store)["actions"]
                if planned_action["target"] == "consumequeue"]
    assert (action["action"], action["to"], action["unit"]) == ("rebuild", 387, "row")
    after = contents(store)
    assert after[keys.ROWS] == before[keys.ROWS]
    # The first rows are noted, too, as a broker does once it is asked for them.
    assert {key: value for key, value in after[keys.OFFSETS].items() if b"\1min\1" not in key} == {
        key: value for key, value in before[keys.OFFSETS].items() if b"\1min\1" not in key}
    assert sum(b"\1min\1" in key for key in after[keys.OFFSETS]) == 30


@pytest.mark.parametrize("name", [EVERYTHING, SOUND])
def test_one_that_is_right_stays(golden, name: str):
    with snapshot.assert_unchanged(golden(name)):
        plan = run("recover", golden(name), "-o", "json").expect(0).json()
    assert not [action for action in plan["actions"] if action["target"] == "consumequeue"]


@pytest.mark.parametrize("name", ["rocksdb-crash/before", "rocksdb-clean-trunc-b/after"])
def test_what_the_engine_left_is_put_right(golden_copy, name: str):
    """Rows that were not written before a kill, and last rows noted wrongly."""
    store = golden_copy(f"5.3.3/{name}")
    plan = recovered(store)
    assert "consumequeue" in [action["target"] for action in plan["actions"]]
    with Store.open(store) as opened:
        table = {f"{topic}-{queue}": queue_state.recovered_end(1 << 62)
                 for (topic, queue), queue_state in opened.queues.by_key.items()}
    assert table == plan["topic_queue_table"]


def test_a_queue_without_messages_goes_on_where_it_stood(golden_copy):
    store = golden_copy(EVERYTHING)
    for name in sorted(os.listdir(store / "commitlog"))[:5]:
        (store / "commitlog" / name).unlink()
    shutil.rmtree(store / "index")
    with Store.open(store) as opened:
        before = {key: queue.recovered_end(1 << 62) for key, queue in opened.queues.by_key.items()}
    flip(store)
    recovered(store)
    with Store.open(store) as opened:
        after = {key: queue.recovered_end(1 << 62) for key, queue in opened.queues.by_key.items()}
    assert {key: end for key, end in before.items() if after.get(key) != end} == {}


def test_one_topic_alone(golden_copy):
    """Its queues are made anew, all else stays as it was, wrong or not."""
    store = golden_copy("5.3.3/rocksdb-clean-trunc-b/after")
    before = contents(store)
    run("recover", store, "--topic", "TP_pay_Topic", "--queue", "0", "-o", "json").expect(0)
    assert run("recover", store, "--topic", "TP_pay_Topic", "--queue", "0", "-o",
               "json").json()["actions"] == []
    plan = run("recover", store, "--topic", "TP_pay_Topic", "--apply", "-o", "json").expect(0)
    assert [action["target"] for action in plan.json()["actions"]] == ["consumequeue"]
    after = contents(store)
    own = b"\1TP_pay_Topic\1"
    for family in (keys.ROWS, keys.OFFSETS):
        assert {key: value for key, value in after[family].items() if own not in key} == {
            key: value for key, value in before[family].items() if own not in key}
    answer = run("verify", store, "--only", "consumequeue", "-o", "json").expect(1).json()
    assert {(finding["category"], finding["topic"]) for finding in answer["findings"]
            if finding["category"] == "cq-last"} == {("cq-last", "%LMQ%go1")}
    flip(store)
    assert "damaged" in run("recover", store, "--topic", "TP_pay_Topic").expect(6).err


def test_without_the_library(golden, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    assert "rmqctl[rocksdb]" in run("recover", golden(SOUND)).expect(3).err


def rows_below(store: Path, to: int) -> dict:
    """By queue the rows that lead before a physical offset, and where the queue stands then."""
    result = {}
    with Store.open(store) as opened:
        for key, queue in opened.queues.by_key.items():
            rows = queue.rows(queue.first_index, queue.disk_end - queue.first_index)
            rows = rows[rows["physical_offset"] < to]
            result[key] = queue.first_index + len(rows), rows.tolist()
    return result


@pytest.mark.parametrize("number", [1, 120, 333])
def test_a_log_that_is_cut(golden_copy, number: int):
    store = golden_copy(EVERYTHING)
    kept = snapshot.copy_tree(store, store.parent / "kept")
    with Store.open(store) as opened:
        to = int(sorted(at for batch in opened.log.walk() for at in batch.offset)[number])
    before = rows_below(store, to)
    plan = run("truncate", store, "--to-phy", str(to), "--apply", "-o", "json").expect(0).json()
    [action] = [planned_action for planned_action in plan["actions"]
                if planned_action["target"] == "consumequeue"]
    assert action["to"] == sum(len(rows) for _, rows in before.values())
    assert run("verify", store, "-o", "json").expect(0).json()["ok"]
    assert {key: value for key, value in rows_below(store, to).items() if value[0]} == {
        key: value for key, value in before.items() if value[0]}
    started = run("preflight", store, "-o", "json").expect(0).json()
    assert (started["truncate_to"], started["rows_added"]) == (to, 0)
    run("undo", store, "--yes").expect(0)
    shutil.rmtree(store / ".rmqctl")
    differences = snapshot.take(kept, inodes=False).differences(snapshot.take(store, inodes=False))
    assert [line for line in differences if not line.startswith("changed: . ")] == []


def test_what_has_expired(golden_copy):
    """Only files of the log and the index go; a queue goes on where it stood, cut or not."""
    store = golden_copy(EVERYTHING)
    data = contents(store)
    with Store.open(store) as opened:
        ends = {key: queue.disk_end for key, queue in opened.queues.by_key.items()}
    result = run("expire", store, "--keep-bytes", "100KiB", "--apply", "-o", "json").expect(0)
    assert contents(store) == data
    assert "stay in the consume queue database" in result.err
    first = result.json()["min_phy_offset"]
    assert first == 98304
    with Store.open(store) as opened:
        assert {key: queue.disk_end for key, queue in opened.queues.by_key.items()} == ends
        expired = {key: sum(row[0] < first for row in queue.rows(0, queue.disk_end).tolist())
                   for key, queue in opened.queues.by_key.items()}
    assert sum(expired.values()) > 150
    run("truncate", store, "--to-phy", str(first), "--apply").expect(0)
    with Store.open(store) as opened:
        assert {key: queue.disk_end for key, queue in opened.queues.by_key.items()} == {
            key: count for key, count in expired.items() if count}
    assert run("verify", store, "-o", "json").expect(0).json()["ok"]


@pytest.mark.parametrize("empty", [False, True], ids=["own rows", "no row of its own"])
def test_from_another_store_with_such_queues(golden_copy, golden, empty: bool):
    """Rows of either data base tell which bytes are wanted; then they are made anew."""
    store, source = golden_copy(EVERYTHING), golden(EVERYTHING)
    before = contents(store)
    if empty:  # as a kill leaves a young one
        shutil.rmtree(store / "consumequeue")
        shutil.copytree(golden("5.3.3/rocksdb-config-v1-kill/store") / "consumequeue",
                        store / "consumequeue")
    with (store / "commitlog/00000000000000065536").open("r+b") as log:
        for place, length in ((5000, 3000), (20000, 2000)):
            log.seek(place)
            log.write(b"\xff" * length)
    with snapshot.assert_unchanged(source):
        plan = run("recover", store, "--from", source, "--apply", "-o", "json").expect(0).json()
    assert plan["messages_lost"] == []
    assert {action["action"] for action in plan["actions"]} == {"copy"} | (
        {"rebuild"} if empty else set())
    for path in (source / "commitlog").iterdir():
        assert (store / "commitlog" / path.name).read_bytes() == path.read_bytes()
    assert contents(store)[keys.ROWS] == before[keys.ROWS]
    assert run("verify", store, "-o", "json").expect(0).json()["ok"]


def test_a_database_is_made_once_where_entries_correct_keys(golden_copy):
    """The plan is made a second time once entries have told what a property was."""
    store = golden_copy("5.3.3/rocksdb-clean-trunc/after")
    chance = random.Random(2)
    logs = sorted((store / "commitlog").iterdir())
    for _ in range(40):
        log = chance.choice(logs)
        data = bytearray(log.read_bytes())
        data[chance.randrange(min(len(data), 60_000))] ^= 1 << chance.randrange(8)
        log.write_bytes(data)
    plan = run("recover", store, "-o", "json").expect(1).json()
    assert [action["target"] for action in plan["actions"]].count("consumequeue") == 1
    assert len(set(plan["notes"])) == len(plan["notes"])
    run("recover", store, "--apply", "--yes").expect(1)
    again = run("recover", store, "-o", "json").expect(0, 1).json()
    assert again["actions"] == []
