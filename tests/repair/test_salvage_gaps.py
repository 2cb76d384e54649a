"""salvage where a queue has a gap of the broker's own making: rows that stand too early."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqctl.damage.records import dispatched
from rmqctl.formats.local.message import decode
from rmqctl.repair.salvage.salvage import salvage
from rmqctl.store.store import Store
from tests.adversary.writer import Header, Layout, Writer
from tests.conftest import GoldenFolder
from tests.repair import damage, salvaging
from tests.support.cli import run
from tests.support.damage import write
from tests.track_record import build, stores


def skipped(golden: GoldenFolder, root: Path) -> Path:
    """apache/rocketmq#8693: a light queue's offset given to a message without a row there."""
    case = stores.find("8693")
    return build.build(case, golden(case.base), root)


def without(golden: GoldenFolder, rmqctl: Any, root: Path, nth: int) -> tuple[Path, dict]:
    """A store in which no message ever had the ``nth`` last queue offset of a queue."""
    lines = rmqctl("read", golden("4.9.3/basic/store"), "-o", "jsonl", "--body",
                   "base64").expect(0).jsonl()
    key = lines[-1]["topic"], lines[-1]["queue_id"]
    mine = [queue for queue in lines if (queue["topic"], queue["queue_id"]) == key]
    gone = mine[-nth]
    rmqctl("init", root, "--commitlog-file-size", "65536", "--consumequeue-file-size", "440",
           "--index-slots", "100", "--index-max", "400").expect(0)
    messages = root.with_suffix(".jsonl")
    messages.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not gone))
    rmqctl("append", root, messages, "--as-recorded").expect(0)
    return root, gone


def test_a_skipped_offset_is_not_missing(golden: GoldenFolder, tmp_path: Path) -> None:
    with Store.open(skipped(golden, tmp_path / "store")) as store:
        salvaged = salvage(store)
    assert (salvaged.steps, salvaged.actions, salvaged.lost, salvaged.notes) == ((), (), (), ())


@pytest.mark.parametrize("nth", [2, 3, 12])
def test_rows_behind_a_gap_contradict_nothing(golden: GoldenFolder, rmqctl: Any, tmp_path: Path,
                                              nth: int) -> None:
    root, _ = without(golden, rmqctl, tmp_path / "store", nth)
    with Store.open(root) as store:
        salvaged = salvage(store)
    assert (salvaged.steps, salvaged.lost) == ((), ())


@pytest.mark.parametrize("missing", [1, 2, 8])
@pytest.mark.parametrize("behind", [1, 2, 5])
def test_a_second_recover_behind_a_gap_changes_no_message(rmqctl: Any, tmp_path: Path,
                                                          missing: int, behind: int) -> None:
    """The first one's rows stand where a broker puts such rows, before their queue offsets."""
    writer = Writer(Layout(queue_file_units=40))
    for number in range(20):
        writer.put("orders", b"before", keys=f"k{number}")
    for number in range(behind):
        writer.put("orders", b"behind", keys=f"b{number}",
                   header=Header(queue_offset=20 + missing + number))
        writer.put("other", b"between")
    root = writer.write(tmp_path / "store")
    shutil.rmtree(root / "consumequeue")
    recover = ("recover", root, "--consumequeue-file-size", "800", "--apply", "-o", "json")
    before = log_of(root)
    first = rmqctl(*recover).recovered()
    assert any("the queue has a gap" in note for note in first["notes"])
    assert log_of(root) == before
    assert rmqctl(*recover).recovered()["actions"] == []
    assert log_of(root) == before


def test_a_last_queue_offset_that_no_log_has_room_for_is_set_right(rmqctl: Any,
                                                                   tmp_path: Path) -> None:
    writer = Writer(Layout(queue_file_units=40))
    puts = [writer.put("orders", b"body") for _ in range(20)]
    root = writer.write(tmp_path / "store")
    whole = log_of(root)
    log = next((root / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(puts[-1].physical + 20)
        file.write((19 + (1 << 20)).to_bytes(8, "big"))
    rmqctl("recover", root, "--apply", "-o", "json").recovered()
    assert log_of(root) == whole


def log_of(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))


@pytest.mark.parametrize("light", [False, True])
def test_damage_behind_a_gap_changes_no_intact_message(
        golden: GoldenFolder, rmqctl: Any, tmp_path: Path, light: bool) -> None:
    root = (skipped(golden, tmp_path / "base") if light
            else without(golden, rmqctl, tmp_path / "base", 30)[0])
    whole = damage.remember(root)
    places = sorted(whole.records)
    own: dict[int, tuple[str, int, int]] = {
        at: (record.topic.decode(), record.queue_id, record.queue_offset)
        for at, record in whole.records.items()}
    tried = 0
    for place in places[-60::5]:
        if not any(whole.records[place].body):
            continue
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        base = place - place % whole.file_size
        with (copy / "commitlog" / f"{base:020d}").open("r+b") as opened:
            opened.seek(place - base + 88)
            opened.write(bytes(len(whole.records[place].body)))
        with Store.open(copy) as store:
            salvaged = salvage(store)
        there = salvaging.records(salvaged.parts)
        assert [at for at in places if at != place
                and there.get(at) != whole.raw(at, whole.records[at].total_size)] == []
        assert place in {message.physical_offset for message in salvaged.lost}
        text = decode(there[place])
        assert (text.topic.decode(), text.queue_id, text.queue_offset) == own[place] or light
        shutil.rmtree(copy)
        tried += 1
    assert tried > 5


# -- fields that only the queues and the index vouch for ------------------------------------------


def flip(root: Path, name: str, at: int, bit: int) -> None:
    with (root / "commitlog" / name).open("r+b") as opened:
        opened.seek(at)
        value = opened.read(1)[0] ^ 1 << bit
        opened.seek(at)
        opened.write(bytes([value]))


def at_of(whole: damage.Whole, place: int) -> tuple[str, int]:
    base = place - place % whole.file_size
    return f"{base:020d}", place - base


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_turned_bit_in_what_gives_rows_in_light_queues(golden_copy: GoldenFolder,
                                                     version: str) -> None:
    """Not another name of the list with the offset that is asked for."""
    root = golden_copy(f"{version}/lmq/store")
    whole = damage.remember(root)
    tried = 0
    for place, record in sorted(whole.records.items()):
        text = record.properties
        if not text.rstrip(b"\2").endswith(b"8") or b"INNER_MULTI_DISPATCH" not in text:
            continue  # 4.9.3 writes the offsets last, 5.3.3 the names
        name, at = at_of(whole, place)
        end = at + record.total_size - (len(text) - len(text.rstrip(b"\2")))
        flip(root, name, end - 1, 3)  # 8 -> 0
        with Store.open(root) as store:
            salvaged = salvage(store)
        there = salvaging.records(salvaged.parts)
        # Two names with the same offset may change places: their rows are the same.
        assert dispatched(decode(there.pop(place)).properties) == dispatched(text)
        assert there == {at: whole.raw(at, record.total_size)
                         for at, record in whole.records.items() if at != place}
        assert len(salvaged.actions) == 1
        flip(root, name, end - 1, 3)
        tried += 1
    assert tried


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/basic"])
def test_a_torn_topic_is_set_right_by_the_row(golden_copy: GoldenFolder, name: str) -> None:
    root = golden_copy(f"{name}/store")
    whole = damage.remember(root)
    place = sorted(whole.records)[-40]
    record = whole.records[place]
    file, at = at_of(whole, place)
    with (root / "commitlog" / file).open("r+b") as opened:
        opened.seek(at + 88 + 1 + len(record.body) + 3)
        opened.write(bytes(len(record.topic) - 3))
    with Store.open(root) as store:
        salvaged = salvage(store)
    assert (salvaged.lost, salvaged.notes) == ((), ())
    assert salvaging.records(salvaged.parts)[place] == whole.raw(place, record.total_size)


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/basic"])
def test_the_last_store_time_is_what_the_index_says(golden_copy: GoldenFolder,
                                                    name: str) -> None:
    root = golden_copy(f"{name}/store")
    whole = damage.remember(root)
    place = max(whole.records)
    file, at = at_of(whole, place)
    flip(root, file, at + 56 + 2, 1)
    with Store.open(root) as store:
        salvaged = salvage(store)
    assert salvaging.records(salvaged.parts)[place] == whole.raw(
        place, whole.records[place].total_size)


@pytest.mark.parametrize(("source", "target"), [
    ("orders/0", "orders/1"), ("orders/0", "bills/0"), ("orders/0", "%LMQ%a/0"),
    ("%LMQ%b/0", "%LMQ%a/0"), ("%LMQ%b/0", "orders/1")])
def test_the_file_of_another_queue_changes_no_intact_message(source: str, target: str,
                                                             tmp_path: Path) -> None:
    """A queue has another one's file, and the log lacks a message of each queue."""
    writer = Writer(Layout(log_file_size=16 << 10, queue_file_units=100))
    for number in range(60):
        writer.put(("orders", "bills")[number % 5 == 0], b"text %d" % number * 5,
                   queue_id=number % 2, keys=f"order-{number}", tags="paid",
                   lmq=([], [], ["%LMQ%a"], ["%LMQ%b"])[number % 4])
    root = writer.write(tmp_path / "store")
    at = writer.puts[8].physical
    write(root, f"commitlog/{0:020d}", at, bytes(2000))
    whole = [put for put in writer.puts if put.end <= at or put.physical >= at + 2000]
    shutil.copy(root / "consumequeue" / source / f"{0:020d}",
                root / "consumequeue" / target / f"{0:020d}")
    run("recover", root, "--apply", "--yes").expect(0, 1)
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    assert not [put.physical for put in whole if log[put.physical:put.end] != put.raw]
