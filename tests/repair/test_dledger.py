"""recover of a DLedger store: what follows from its log is made anew, the log is left as it is."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from rmqctl.checks.preflight.preflight import preflight
from rmqctl.formats import dledger
from rmqctl.store.store import Store
from tests.support import config_tables, engine, snapshot
from tests.support.cli import run
from tests.support.layouts import layout_copy, layout_set

SIZES = ("--consumequeue-file-size", "440", "--index-slots", "100", "--index-max", "400")
ONLY = ("--only", "consumequeue,index")


def log_of(store: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(
        (store / "dledger-n0/data").iterdir()))).hexdigest()


@pytest.mark.parametrize(("name", "state", "version"), [
    ("5.3.3/dledger-crash-idle", "before", "5.3.3"),
    ("5.3.3/dledger-crash-idle", "after", "5.3.3"),
    ("5.3.3/dledger-clean-nocq", "after", "5.3.3"),
    ("4.9.3/dledger-crash-nocq", "before", "4.9.3")])
def test_rows_come_back_and_stay(tmp_path: Path, name: str, state: str, version: str) -> None:
    store = layout_copy(name, tmp_path, state)
    log = log_of(store)
    sizes = ("--consumequeue-file-size", "440", "--index-slots", "100", "--index-max", "400")
    run("recover", store, *ONLY, *sizes, "--apply", "--yes").expect(0, 1)
    assert log_of(store) == log
    run("verify", store, "--only", "commitlog,consumequeue,index").expect(0)
    with Store.open(store) as opened:
        predicted = preflight(opened, version)
    assert predicted.queues.unreachable == predicted.queues.cut == 0
    # As 4.9.3 has them, which loses none.
    expect = engine.load(layout_set(f"{version}/dledger-crash-nocq") / "expect.json")
    assert {key: end for key, end in predicted.queues.table.items() if end} == {
        f"{queue.topic}-{queue.queue_id}": queue.max for queue in expect.queues if queue.max}
    run("undo", store, "--yes").expect(0)
    assert log_of(store) == log


def test_what_is_refused(tmp_path: Path) -> None:
    store = layout_copy("5.3.3/dledger-crash-crc", tmp_path, "before")
    assert "Another node of the group" in run("recover", store, *ONLY).expect(6, 4).err
    run("recover", store, "--strategy", "broker").expect(3)


def test_it_is_no_source_for_a_plain_log(tmp_path: Path) -> None:
    plain = layout_copy("5.3.3/controller", tmp_path)
    source = layout_set("5.3.3/dledger") / "store"
    assert "cannot be the source" in run("recover", plain, "--from", source).expect(3).err


@pytest.mark.parametrize("name", ["4.9.3/dledger", "5.3.3/dledger"])
def test_a_member_without_the_folder_commitlog_is_a_source(tmp_path: Path, name: str) -> None:
    """It was taken for a folder of saved configuration, and nothing was copied from it."""
    whole = layout_copy(name, tmp_path / "whole")
    shutil.rmtree(whole / "commitlog", ignore_errors=True)
    (whole / "config").mkdir()
    (whole / "config/consumerOffset.json").write_text('{"offsetTable": {}}')
    store = snapshot.copy_tree(whole, tmp_path / "store")
    data = sorted((store / "dledger-n0/data").iterdir())[1]
    raw = data.read_bytes()
    data.write_bytes(raw[:512] + bytes(512) + raw[1024:])
    damaged = log_of(store)
    run("recover", store, "--from", whole, *SIZES, "--apply", "--yes").expect(0, 1)
    assert log_of(store) == log_of(whole) != damaged


@pytest.mark.parametrize("name", ["4.9.3/dledger", "5.3.3/dledger", "5.3.3/dledger-mixed"])
def test_heads_of_entries_are_no_damage_for_who_carves(tmp_path: Path, name: str) -> None:
    """Nor is DLedger's index, whose files are named like those of a log."""
    store = layout_set(name) / "store"
    read = run("read", store, "-o", "jsonl").expect(0).jsonl()
    carved = run("carve", store, "-o", "jsonl").expect(0)
    assert [row["physical_offset"] for row in carved.jsonl()] == [
        row["physical_offset"] for row in read]
    assert {row["placement"] for row in carved.jsonl()} == {"in-place"}
    assert "broken off" not in carved.err
    new = run("carve", store, "--out", tmp_path / "new", "-o", "json", "--index-slots", "100",
              "--index-max", "400").expect(0).json()
    assert (new["written"], new["fillers"]) == (len(carved.jsonl()), 0)
    assert new["queue_offsets_renumbered"] == 0
    # A file without its name, as one is found in an image.
    data = sorted((store / "dledger-n0/data").iterdir())[1]
    image = tmp_path / "image"
    image.write_bytes(data.read_bytes())
    result = run("carve", image, "-o", "jsonl").expect(0)
    assert [row["physical_offset"] for row in result.jsonl()] == [
        row["physical_offset"] for row in read
        if int(data.name) <= row["physical_offset"] < int(data.name) + data.stat().st_size]
    assert "doubtful" not in result.err
    # A damaged head is one place, and costs no message.
    torn = bytearray(data.read_bytes())
    torn[result.jsonl()[2]["source_offset"] - 24] ^= 0xff
    (tmp_path / data.name).write_bytes(torn)
    broken = run("carve", tmp_path / data.name, "-o", "jsonl")
    assert len(broken.jsonl()) == len(result.jsonl())
    assert "1 place where a log ends early or is interrupted" in broken.err


@pytest.mark.parametrize("name", ["4.9.3/dledger-crash-trunc", "5.3.3/dledger-crash-trunc",
                                  "5.3.3/dledger-crash-idle", "5.3.3/dledger-crash-trunc-header"])
def test_the_view_of_a_broker_is_what_its_start_leaves(name: str) -> None:
    store = layout_set(name) / "before"
    expect = engine.load(layout_set(name) / "expect.json")
    answer = run("info", store, "--view", "broker", "-o", "json").expect(0).json()
    assert answer["max_phy_offset"] == expect.max_physical_offset
    rows = run("read", store, "--view", "broker", "-o", "jsonl").expect(0, 1).jsonl()
    assert all(row["physical_offset"] < expect.max_physical_offset for row in rows)


def test_the_entry_of_a_message(tmp_path: Path) -> None:
    folder = layout_set("5.3.3/dledger3")
    store = folder / "store"
    wanted = json.loads((folder / "expect.json").read_text())["extra"]["entries"][-1]
    place = wanted[2] + 48
    [row] = run("query", "offset", store, "--phy", str(place), "-o", "json").expect(0).json()
    assert [row["entry"][field] for field in (
        "entry_index", "term", "pos", "size", "magic", "channel", "chain_crc", "body_crc")
            ] == wanted[:8]
    shown = run("query", "offset", store, "--phy", str(place)).expect(0).out
    assert "DLedger entries" in shown
    plain = run("query", "id", store, row["msg_id"], "--track", "-o", "json").expect(0).json()
    assert plain[0]["entry"] == row["entry"]


@pytest.mark.parametrize("name", ["4.9.3/dledger", "5.3.3/dledger"])
def test_damaged_properties_stay_and_are_said(tmp_path: Path, name: str) -> None:
    """An entry is not marked, as a message of a plain log is: all members have the same bytes."""
    store = layout_copy(name, tmp_path)
    assert "left_damaged" not in run("recover", store, "-o", "json").expect(0).json()
    data = min((store / "dledger-n0/data").iterdir())
    raw = bytearray(data.read_bytes())
    at = raw.index(b"UNIQ_KEY\x01") + 12
    raw[at:at + 4] = bytes(4)
    data.write_bytes(raw)
    log = log_of(store)
    plan = run("recover", store, "-o", "json", "--apply", "--yes").expect(1).json()
    assert plan["left_damaged"][0] == "commitlog"
    assert any("1 message with damaged properties" in note for note in plan["notes"])
    assert log_of(store) == log


def test_entries_that_no_member_gave_stay_lost(tmp_path: Path) -> None:
    """The plan removes the consume queue entries; DLedger's checkpoint still names the messages."""
    store = layout_copy("4.9.3/dledger-crash-trunc", tmp_path, "before")
    lost = run("doctor", store, "-o", "json").expect(1).json()["messages_already_lost"]
    plan = run("recover", store, "--apply", "-o", "json").expect(1).json()
    assert plan["messages_lost_total"] == lost > len(plan["messages_lost"])
    assert not any("--from COPY" in note for note in plan["notes"])
    for command in ("doctor", "preflight"):
        after = run(command, store, "-o", "json").expect(1).json()
        assert after["messages_already_lost"] == lost


@pytest.mark.long
@pytest.mark.parametrize("at", [0, 2, 30])
@pytest.mark.parametrize("name", [
    "4.9.3/dledger-crash-trunc", "4.9.3/dledger-crash-trunc-header", "5.3.3/dledger-crash-trunc",
    "5.3.3/dledger-crash-trunc-header"])
def test_a_plan_counts_what_the_end_of_the_log_lost_as_doctor_does(tmp_path: Path, name: str,
                                                                  at: int) -> None:
    """The log names no queue of the lost entries, so the plan named no group."""
    store = layout_copy(name, tmp_path, "before")
    names = config_tables.queues(store)
    five = name.startswith("5")
    config_tables.put(store, "topics.json", config_tables.topic_table(names, five=five))
    config_tables.put(store, "subscriptionGroup.json", config_tables.group_table(
        [config_tables.GROUP], five=five))
    config_tables.put(store, "consumerOffset.json", config_tables.offset_table(
        config_tables.committed(store, at), five=five))
    answer = run("doctor", store, "-o", "json").expect(1).json()
    plan = run("recover", store, "-o", "json").expect(1).json()
    assert answer["already_lost"] == plan.get("messages_lost_total", len(plan["messages_lost"])) > 0
    assert answer["groups_affected"] == plan["groups_affected"] > 0
    lost = {(row["group"], row["topic"], row["queue_id"]): (row["lost_before"], row["lost_after"])
            for row in answer["consumers"]}
    assert {place: some for place, some in lost.items() if any(some)} == {
        (row["group"], row["topic"], row["queue_id"]): (row["lost_before"], row["lost_after"])
        for row in plan["consumers"] if row["lost_before"] or row["lost_after"]}
    run("recover", store, "--apply", "--yes").expect(1)
    after = run("doctor", store, "-o", "json").expect(1).json()
    assert after["already_lost"] == answer["already_lost"]


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("field", ["magic", "size", "entry_index", "term", "pos", "body_length",
                                   "entry_index and term"])
def test_a_head_around_an_intact_message_comes_back(tmp_path: Path, field: str, index: bool
                                                    ) -> None:
    """Any value, of an entry in the middle and of one that begins a file."""
    store = layout_copy("5.3.3/dledger-clean-nocq", tmp_path, "before")
    if not index:
        shutil.rmtree(store / "dledger-n0/index")
    files = sorted((store / "dledger-n0/data").iterdir())
    assert len(files) > 1
    size = dledger.parse(files[0].read_bytes()).size
    for number, (file, at) in enumerate([(files[0], size), (files[1], 0)]):
        log = log_of(store)
        raw = bytearray(file.read_bytes())
        head = dledger.parse(bytes(raw), at, int(file.name))
        value = (1 << 30) + number * 77 + 5
        raw[at:at + dledger.HEAD_SIZE] = dledger.build(head._replace(
            **dict.fromkeys(field.split(" and "), value)))
        file.write_bytes(raw)
        run("recover", store, *SIZES, "--apply", "--yes").expect(0)
        assert log_of(store) == log
        run("verify", store, "--only", "commitlog").expect(0)
