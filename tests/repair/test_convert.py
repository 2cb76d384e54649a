"""Consumequeues of one form become those of the other, and back, with nothing lost on the way."""

from __future__ import annotations

import csv
import io
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmqctl.repair.convert.new_store import OffsetMapping
from rmqctl.store import Store
from tests.support import snapshot
from tests.support.cli import run

SIZE = ("--consumequeue-file-size", "400")
FILES, ROCKSDB = "5.3.3/lmq/store", "5.3.3/rocksdb/store"


def rows(store: Path) -> dict:
    with Store.open(store) as opened:
        return {key: (queue.disk_end, queue.units(queue.first_index, queue.disk_end
                                                  - queue.first_index).tolist())
                for key, queue in opened.queues.by_key.items() if queue.exists}


def converted(store: Path, to: str) -> dict:
    plan = run("convert", store, "--consumequeue", to, *SIZE, "--apply", "-o",
               "json").expect(0).json()
    assert run("info", store, "-o", "json").json()["layout"]["consumequeue"] == to
    verdict = run("verify", store, "-o", "json").expect(0).json()
    assert [finding for finding in verdict["findings"]
            if finding["structure"] == "consumequeue"] == []
    return plan


@pytest.mark.parametrize(("name", "to"), [(FILES, "rocksdb"), (ROCKSDB, "file")])
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
        pairs = dict(database.items(keys.ROWS)), dict(database.items(keys.OFFSETS))
    assert pairs[0] == expected[0]
    assert expected[1].items() <= pairs[1].items()


def test_a_queue_whose_messages_have_expired_goes_on_where_it_stood(golden_copy):
    store = golden_copy(ROCKSDB)
    files = sorted(os.listdir(store / "commitlog"))
    for file in files[:-2]:
        (store / "commitlog" / file).unlink()
    with Store.open(store) as opened:
        ends = {key: queue.disk_end for key, queue in opened.queues.by_key.items()
                if queue.disk_end}
        log_min = opened.log.min_offset
        expired = [key for key, queue in opened.queues.by_key.items()
                   if queue.disk_end and queue.unit(
            queue.disk_end - 1).physical_offset < log_min]
    assert expired
    for to in ("file", "rocksdb"):
        run("convert", store, "--consumequeue", to, *SIZE, "--apply").expect(0)
        run("verify", store, "--only", "consumequeue").expect(0)
        with Store.open(store) as opened:
            assert {key: opened.queues.by_key[key].disk_end for key in ends} == ends


def test_what_is_refused(golden_copy):
    store = golden_copy(ROCKSDB)
    assert "already" in run("convert", store, "--consumequeue", "rocksdb").expect(0).err
    with (store / "commitlog" / "00000000000000000000").open("r+b") as log:
        log.seek(300)
        log.write(b"\xff" * 50)
    assert "recover" in run("convert", store, "--consumequeue", "file").expect(6).err
    batches = golden_copy("5.3.3/batchcq/store")
    assert "batch" in run("convert", batches, "--consumequeue", "rocksdb").expect(6).err


# -- a new store ----------------------------------------------------------------------------------


def records(store: Path) -> dict:
    with Store.open(store) as opened:
        return {int(place): opened.log.record_at(int(place))
                for batch in opened.log.walk() for place in batch.offset}


def first_file_gone(store: Path) -> None:
    min((store / "dledger-n0/data").iterdir()).rename(store.parent / "gone")


def whole(_store: Path) -> None:
    pass


@pytest.mark.parametrize(("name", "before"), [
    ("4.9.3/dledger/store", whole), ("5.3.3/dledger-mixed/store", whole),
    ("5.3.3/dledger/store", first_file_gone)])
def test_a_plain_log_of_dledgers(golden_copy, tmp_path: Path, name: str, before):
    store, new = golden_copy(name), tmp_path / "new"
    before(store)
    with snapshot.assert_unchanged(store):
        done = run("convert", store, "--commitlog", "plain", "--out", new, "-o",
                   "json").expect(0).json()
    assert run("info", new, "-o", "json").json()["layout"] == {
        "commitlog": "plain", "consumequeue": "file", "config": "json"}
    assert run("verify", new, "-o", "json").expect(0).json()["findings"] == []
    run("diff", store, new, "--by", "queue").expect(0)
    # Every message is the one it was but for its physical offset, which the table tells.
    with open(done["mapping"], newline="", encoding="utf-8") as file:
        moved = {int(row["old"]): int(row["new"]) for row in csv.DictReader(file)}
    old, listed_records = records(store), records(new)
    assert len(old) == len(listed_records) == done["messages"]
    for place, record in old.items():
        there = moved.get(place, place)
        expected = replace(record, physical_offset=there, prepared_transaction_offset=moved.get(
            record.prepared_transaction_offset, record.prepared_transaction_offset))
        assert listed_records[there] == expected
    assert {key: end for key, (end, _) in rows(store).items()} == {
        key: end for key, (end, _) in rows(new).items()}


def test_a_commit_names_its_half_message_where_it_is_now(golden):
    record = next(iter(records(golden("4.9.3/dledger/store")).values()))
    table = io.StringIO()
    offsets = OffsetMapping(table)
    for topic, old, new in ((b"orders", 48, 0), (b"RMQ_SYS_TRANS_HALF_TOPIC", 400, 304)):
        offsets.add(old, new, replace(record, topic=topic))
    named = {at: replace(record, prepared_transaction_offset=at) for at in (0, 48, 400, 401)}
    assert [offsets.rename(item) for item in named.values()] == [True, False, True, False]
    assert [item.prepared_transaction_offset for item in named.values()] == [0, 48, 304, 401]
    assert len(table.getvalue().splitlines()) == 3


def test_damage_is_left_out_and_said(golden_copy, tmp_path: Path):
    store = golden_copy("4.9.3/dledger/store")
    place, record = list(records(store).items())[3]
    data = store / "dledger-n0/data/00000000000000000000"
    raw = bytearray(data.read_bytes())
    raw[raw.index(record.body, place)] ^= 1
    data.write_bytes(raw)
    done = run("convert", store, "--commitlog", "plain", "--out", tmp_path / "new", "-o",
               "json").expect(1).json()
    assert (done["left_out"], done["left_out_at"]) == (1, [place])
    assert done["messages"] == len(records(store)) - 1
    assert (done["fillers"], len(records(tmp_path / "new"))) == (1, len(records(store)))
    # A filler keeps its queue offset, so that all others keep theirs.
    new = tmp_path / "new"
    judged = run("verify", new, "-o", "json").expect(0).json()
    assert [finding["category"] for finding in judged["findings"]] == ["fillers"]
    there, before = bodies(new), bodies(store)
    assert there.pop(where_of(record)) == bytes(len(before.pop(where_of(record))))
    assert there == before
    assert rows(new).keys() == rows(store).keys()
    assert all(rows(new)[key][0] == end for key, (end, _) in rows(store).items())


def where_of(record) -> tuple:
    return record.topic, record.queue_id, record.queue_offset


def bodies(store: Path) -> dict:
    return {where_of(record): record.body for record in records(store).values()}


def test_a_copy_with_other_consumequeues(golden_copy, tmp_path: Path):
    store, new = golden_copy(ROCKSDB), tmp_path / "new"
    with snapshot.assert_unchanged(store):
        run("convert", store, "--consumequeue", "file", *SIZE, "--out", new).expect(0)
    assert run("info", new, "-o", "json").json()["layout"]["consumequeue"] == "file"
    run("verify", new).expect(0)
    assert rows(new) == rows(store)
    for path in (*(store / "commitlog").iterdir(), *(store / "index").iterdir()):
        assert (new / path.relative_to(store)).read_bytes() == path.read_bytes()


def test_a_new_store_that_is_refused(golden_copy, tmp_path: Path):
    store = golden_copy("4.9.3/dledger/store")
    run("convert", store).expect(2)
    assert "--out" in run("convert", store, "--commitlog", "plain").expect(2).err
    inside = run("convert", store, "--commitlog", "plain", "--out", store / "new").expect(2)
    assert "must not be inside the store" in inside.err
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    run("convert", store, "--commitlog", "plain", "--out", tmp_path / "taken").expect(6)
    plain = golden_copy(FILES)
    run("convert", plain, "--commitlog", "plain", "--out", tmp_path / "new").expect(2)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("to", ["file", "rocksdb"])
def test_of_queues_that_are_written_twice_one_form_is_left(golden_copy, to: str):
    store = golden_copy("5.3.3/rocksdb-double/store")
    kept = snapshot.copy_tree(store, store.parent / "kept")
    before = rows(store)
    converted(store, to)
    assert rows(store) == before
    is_there = {path.is_dir() for path in (store / "consumequeue").iterdir()}
    assert is_there == {to == "file"}
    run("undo", store, "--yes").expect(0)
    shutil.rmtree(store / ".rmqctl")
    differences = snapshot.take(kept, inodes=False).differences(snapshot.take(store, inodes=False))
    assert [line for line in differences if not line.startswith("changed: . ")] == []
