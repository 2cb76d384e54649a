"""`rmqctl dump`: every kind of file, fields to the byte, damage, refusals."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats import dledger, kinds
from rmqctl.formats.config import epoch
from rmqctl.formats.local import consume_queue_ext as ext
from rmqctl.formats.local import index_file, message
from rmqctl.formats.timer import timer_wheel
from rmqctl.store.dump.dump import Dump, DumpOptions
from tests.formats.test_message import SMALL
from tests.support import damage, engine
from tests.support.cli import MIB, Result
from tests.support.share import sample
from tests.support.tiny import Tiny

Golden = Callable[[str], Path]
Run = Callable[..., Result]

SETS = ("4.9.3/basic", "4.9.3/cqext", "4.9.3/delay-delivered", "4.9.3/multipath",
        "5.3.3/appendcrc", "5.3.3/batchcq", "5.3.3/compaction", "5.3.3/timer", "5.3.3/ipv6",
        "5.3.3/v2topic")


def files(folder: Path) -> list[Path]:
    return [path for path in sorted((folder / "store").rglob("*")) if path.is_file()]


def small_files(folder: Path) -> list[Path]:
    """At most two files of each kind."""
    seen: dict[str, list[Path]] = {}
    for path in files(folder):
        kind = kinds.recognise(path.parts, path.read_bytes()[:4096], path.stat().st_size)
        seen.setdefault(str(kind), []).append(path)
    return [path for name in seen.values() for path in (name[0], name[-1])]


# -- everything is shown ------------------------------------------------------------------------

@pytest.mark.parametrize("name", SETS)
def test_no_file_of_a_clean_store_has_damage(name: str, golden: Golden, rmqctl: Run) -> None:
    for path in small_files(golden(name)):
        answer = rmqctl("dump", path, "-o", "json").expect(0).json()
        lines = rmqctl("dump", path, "-o", "jsonl").expect(0).jsonl()
        assert answer == lines
        assert all("error" not in row for row in answer)
        for row in answer:
            assert 0 <= row["offset"] <= path.stat().st_size
            if "byte_offset" in row:
                assert row["byte_offset"] == int(path.name) + row["offset"]


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/ipv6", "5.3.3/v2topic"])
def test_messages_are_what_the_engine_stored(name: str, golden: Golden, rmqctl: Run) -> None:
    stored = {message.physical_offset: message for put in engine.puts(golden(name) / "input.jsonl")
              for message in put.stored}
    count = 0
    for path in sorted((golden(name) / "store/commitlog").iterdir()):
        rows = rmqctl("dump", path, "-o", "jsonl", "--body", "base64").expect(0).jsonl()
        end = 0
        for row in rows:  # every byte belongs to exactly one row
            assert row["offset"] == end
            end += row["size"]
        assert end == path.stat().st_size
        for row in rows:
            if row["type"] != "message":
                continue
            message = stored[row["physical_offset"]]
            assert row["physical_offset"] == row["byte_offset"]
            assert (row["topic"], row["queue_id"], row["queue_offset"], row["body_crc"],
                    row["properties_raw"], row["total_size"], row["store_host"]) == (
                message.topic, message.queue_id, message.queue_offset, message.body_crc,
                message.properties,                 message.size, message.store_host)
            assert row["crc_ok"] is True
            count += 1
    assert count == len(stored)


def test_rows_of_a_queue_are_what_the_engine_lists(golden: Golden, rmqctl: Run) -> None:
    folder = golden("5.3.3/basic")
    queue = max(engine.load(folder / "expect.json").queues, key=lambda batch: len(batch.units))
    rows = {}
    for path in sorted((folder / "store/consumequeue" / queue.topic / str(queue.queue_id))
                       .iterdir()):
        for row in rmqctl("dump", path, "-o", "json").expect(0).json():
            rows[row["queue_offset"]] = row
    assert [(row["physical_offset"], row["size"], row["tags_code"], row["type"])
            for row in rows.values()] == [
        (unit.physical_offset, unit.size, unit.tags_code, "unit") for unit in queue.units]


def test_fillers_and_ext_addresses_have_names(golden: Golden, rmqctl: Run) -> None:
    folder = golden("4.9.3/cqext") / "store"
    path = min((folder / "consumequeue").glob("*/0/*"))
    rows = rmqctl("dump", path, "-o", "json").expect(0).json()
    assert rows[0]["ext_offset"] == 0
    unit = rmqctl("dump", folder / "consumequeue_ext" / path.relative_to(folder).parts[1] / "0"
                  / path.name, "-o", "json").expect(0).json()[0]
    assert unit["address"] == rows[0]["tags_code"]
    fillers = [row for path in (golden("4.9.3/crash-nocq") / "after").glob("consumequeue/*/*/*")
               for row in rmqctl("dump", path, "-o", "json").expect(0).json()
               if row["type"] == "filler"]
    assert fillers
    assert {row["size"] for row in fillers} == {0x7FFFFFFF}


def test_timer_files_are_what_the_engine_reads(golden: Golden, rmqctl: Run) -> None:
    folder = golden("5.3.3/timer")
    document = json.loads((folder / "timer.json").read_text())
    slots = rmqctl("dump", folder / "store/timerwheel", "-o", "json").expect(0).json()
    assert [(s["number"], s["time_ms"], s["first_pos"], s["last_pos"], s["num"])
            for s in slots] == [
        (s["index"], s["timeMs"], s["firstPos"], s["lastPos"], s["num"]) for s in document["slots"]]
    units = [row for path in sorted((folder / "store/timerlog").iterdir())
             for row in rmqctl("dump", path, "-o", "json").expect(0).json()]
    assert [(u["byte_offset"], u["size"], u["type"]) for u in units] == [
        (u["pos"], u.get("size", u.get("blankSize")), "unit" if "size" in u else "end")
        for u in document["timerLogUnits"]]
    check = rmqctl("dump", folder / "store/config/timercheck", "-o", "json").expect(0).json()
    assert check[0]["last_timer_log_flush_pos"] == document["checkpoint"]["lastTimerLogFlushPos"]


def test_index_rows(golden: Golden, rmqctl: Run) -> None:
    folder = golden("4.9.3/crash-base")  # 100 slots, 200 entries: not the default ratio
    path = min((folder / "store/index").iterdir())
    header, *rows = rmqctl("dump", path, "-o", "json").expect(0).json()
    assert header["type"] == "header"
    slots = [row for row in rows if row["type"] == "slot"]
    entries = [row for row in rows if row["type"] == "entry"]
    assert len(slots) == header["hash_slot_count"]
    assert [row["number"] for row in entries] == list(range(1, header["index_count"]))
    assert all(row["used"] and row["slot"] == row["key_hash"] % 100 for row in entries)
    assert entries[0]["offset"] == 40 + 400 + 20
    three = rmqctl("dump", path, "--from", "7", "--count", "3", "-o", "json").expect(0).json()
    assert three == entries[6:9]
    at = rmqctl("dump", path, "--at", str(entries[4]["offset"] + 19), "-o", "json").json()
    assert at == [entries[4]]
    at = rmqctl("dump", path, "--at", str(slots[3]["offset"] + 3), "-o", "json").json()
    assert at == [slots[3]]
    assert rmqctl("dump", path, "--index-slots", "100", "-o", "json").json() == [header, *rows]
    rmqctl("dump", path, "--index-slots", "101", "-o", "json").expect(1)


def test_config_files(golden: Golden, rmqctl: Run, tmp_path: Path) -> None:
    path = golden("4.9.3/delay-delivered") / "store/config/delayOffset.json"
    rows = rmqctl("dump", path, "-o", "json").expect(0).json()
    assert rows == [{"number": 0, "offset": 0, "type": "member", "name": "offsetTable",
                     "value": rows[0]["value"]}]
    assert rows[0]["value"]["18"] == 1
    bad = tmp_path / "topics.json"
    bad.write_bytes(b'{"a":1}":0}')
    rows = rmqctl("dump", bad, "-o", "json").expect(1).json()
    assert rows[1]["name"] == "trailing-garbage"
    assert rows[1]["error"]["offset"] == 7
    bad.write_bytes(b'{"a":{"b":x}}')
    rows = rmqctl("dump", bad, "-o", "json").expect(1).json()
    assert rows[0]["error"] == {"file": str(bad), "offset": 10, "field": "$.a.b",
                                "reason": "expected a value"}


def test_small_texts(tmp_path: Path, rmqctl: Run) -> None:
    def dumped(name: str, raw: bytes, *options: str) -> Any:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(raw)
        return rmqctl("dump", tmp_path / name, "-o", "json", *options).expect(0).json()

    assert dumped("abort", b"15194")[0]["pid"] == 15194
    assert dumped("abort", b"")[0]["pid"] is None
    assert dumped("lock", b"lock")[0]["text"] == "lock"
    raw = epoch.build([epoch.Epoch(1, 0), epoch.Epoch(2, 500)])
    assert [row["epoch"] for row in dumped("epochFileCheckpoint", raw, "--from", "1")] == [2]
    rows = dumped("epochFileCheckpoint", raw, "--hex")
    assert [(row["epoch"], row["start_offset"], row["end_offset"]) for row in rows] == [
        (1, 0, 500), (2, 500, None)]
    assert rows[1]["fields"][0]["offset"] == raw.index(b"2-500")
    identity = dumped("brokerIdentity", b"c#b#7", "--hex")[0]
    assert (identity["cluster"], identity["broker_name"], identity["broker_id"]) == ("c", "b", 7)
    assert [(part["name"], part["offset"], part["value"]) for part in identity["fields"]] == [
        ("cluster", 0, "c"), ("broker_name", 2, "b"), ("broker_id", 4, "7")]
    row = dumped("dledger-n0/checkpoint", dledger.build_checkpoint(9, 8))[0]
    assert (row["end_index"], row["committed_index"]) == (9, 8)


def dledger_file(tmp_path: Path, size: int = 1024) -> tuple[Path, bytes]:
    base = 2048
    raw = b""
    for number, inner in enumerate((1, 2, 1)):
        pos = base + len(raw)
        body = b""
        for _ in range(inner):
            record = message.parse(SMALL)
            record.physical_offset = pos + dledger.HEAD_SIZE + len(body)
            body += message.build(record)
        raw += dledger.build(dledger.EntryHeadRecord(
            1, 48 + len(body), number, 3, pos, 0, 0, 0, len(body))) + body
    end = dledger.build_end(size - len(raw))
    path = tmp_path / "dledger-n0/data" / f"{base:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes((raw + end).ljust(size, b"\0"))
    return path, raw


def test_dledger_entries_and_their_messages(tmp_path: Path, rmqctl: Run) -> None:
    path, raw = dledger_file(tmp_path)
    rows = rmqctl("dump", path, "-o", "json").expect(0).json()
    assert [row["type"] for row in rows] == ["entry", "message", "entry", "message", "message",
                                             "entry", "message", "end"]
    assert all(row["physical_offset"] == row["byte_offset"] for row in rows
               if row["type"] == "message")
    assert rows[0]["pos"] == 2048
    # The middle entry's head is damaged: the others are still found, one exit code tells.
    path.write_bytes(raw[:153] + b"\xff\xff" + raw[155:] + path.read_bytes()[len(raw):])
    rows = rmqctl("dump", path, "-o", "json").expect(1).json()
    assert [row["type"] for row in rows] == ["entry", "message", "damaged", "entry", "message",
                                             "end"]
    assert (rows[2]["offset"], rows[2]["size"], rows[2]["error"]["field"]) == (153, 258, "magic")
    assert rmqctl("dump", path, "--from", "2", "-o", "json").expect(0).json() == rows[3:]
    answer = rmqctl("dump", path, "--at", str(rows[3]["byte_offset"] + 1), "-o", "json").json()
    assert answer == rows[3:4]
    unit = dledger.INDEX_UNIT.build(dledger.IndexUnitRecord(1, 2048, 153, 0, 3))
    other = tmp_path / "dledger-n0/index" / "0".zfill(20)
    other.parent.mkdir()
    other.write_bytes(unit.ljust(96, b"\0"))
    assert rmqctl("dump", other, "-o", "json").expect(0).json()[0]["pos"] == 2048


@pytest.mark.parametrize(("at", "value", "number", "field"), [
    (28, 0x1234, 0, "pos"),
    (48, 0x1234, 1, "total_size"),
    (48 + 84, 0x5678, 1, "total_size"),
    (48 + 32, 0x5678, 1, "physical_offset"),
    (411 + 4, 900, 5, "size"),
    (564 + 4, 7, 7, "size"),
])
def test_damaged_dledger_entries(at: int, value: int, number: int, field: str, tmp_path: Path,
                                 rmqctl: Run) -> None:
    path, _ = dledger_file(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + value.to_bytes(4) + raw[at + 4:])
    rows = rmqctl("dump", path, "-o", "json").expect(1).json()
    assert rows[number]["error"]["field"] == field
    assert [row for row in rows if "error" in row] == [rows[number]]


def test_a_copy_of_dledger_data(tmp_path: Path, rmqctl: Run) -> None:
    path, raw = dledger_file(tmp_path)
    rows = rmqctl("dump", path, "-o", "json").json()
    copy = tmp_path / "evidence"
    copy.write_bytes(path.read_bytes())
    assert rmqctl("dump", copy, "-o", "json").expect(0).json() == rows
    rmqctl("dump", copy, "--at", "5000").expect(2)
    copy.write_bytes(raw[:430])  # cut inside the head of the last entry
    bad = only_error(rmqctl("dump", copy, "-o", "json").expect(1).json())
    assert (bad["offset"], bad["size"], bad["error"]["field"]) == (411, 19, "term")
    copy.write_bytes(raw[:500])  # cut inside its body
    bad = only_error(rmqctl("dump", copy, "-o", "json").expect(1).json())
    assert (bad["offset"], bad["size"], bad["error"]["field"]) == (411, 89, "size")


def test_plain_records_and_unused_space_in_dledger_data(tmp_path: Path, rmqctl: Run) -> None:
    path = tmp_path / "copy"
    path.write_bytes(SMALL * 2 + bytes(500))
    rows = rmqctl("dump", path, "--kind", "dledger", "-o", "json").expect(0).json()
    assert [(row["type"], row["offset"], row.get("size")) for row in rows] == [
        ("message", 0, 105), ("message", 105, 105), ("zero", 210, 500)]


# -- fields to the byte ---------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["4.9.3/cqext", "5.3.3/batchcq", "5.3.3/compaction",
                                  "5.3.3/timer", "5.3.3/ipv6", "5.3.3/v2topic"])
def test_hex_names_every_byte(name: str, golden: Golden, rmqctl: Run) -> None:
    """With -v nothing is cut, and the fields of each record are its bytes in order."""
    for path in small_files(golden(name)):
        raw = path.read_bytes()
        rows = rmqctl("dump", path, "--hex", "-v", "-o", "jsonl").expect(0).jsonl()
        for row in rows:
            at = row["offset"]
            for part in row.get("fields", ()):
                data = bytes.fromhex(part["hex"])
                assert part["size"] == len(data)
                assert raw[part["offset"]:part["offset"] + part["size"]] == data
                assert part["offset"] == at or row["type"] == "broker_identity"
                at += part["size"]
                if isinstance(part["value"], int):
                    assert part["value"] & (1 << 8 * part["size"]) - 1 == int(part["hex"], 16)
            if row["type"] == "message":
                assert at == row["offset"] + row["total_size"]
                assert {"born_host.port", "body", "topic", "properties"} <= {
                    part["name"] for part in row["fields"]}


def test_hex_cuts_long_bodies_and_says_how_much(golden: Golden, rmqctl: Run) -> None:
    path = golden("5.3.3/basic") / "store/commitlog" / "0".zfill(20)
    row = rmqctl("dump", path, "--at", "0", "--hex", "-o", "json").expect(0).json()[0]
    body = next(part for part in row["fields"] if part["name"] == "body")
    assert body["size"] == 279
    assert body["hex"] == path.read_bytes()[88:152].hex() + "…(+215 bytes)"
    text = rmqctl("dump", path, "--at", "0", "--hex").expect(0).out
    assert "daa320a7" in text
    assert "born_host.address" in text
    assert "10.214.66.229" in text


def test_hex_in_a_table_has_one_row_per_field(golden: Golden, rmqctl: Run) -> None:
    path = golden("5.3.3/basic") / "store/checkpoint"
    out = rmqctl("dump", path, "--hex", "-o", "csv").expect(0).out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["field"] for row in rows] == [
        "physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp",
        "master_flushed_offset", "confirm_phy_offset"]
    assert rows[0]["hex"] == "000001903c59f59f"


# -- what to show ---------------------------------------------------------------------------------

def test_from_count_and_at(golden: Golden, rmqctl: Run) -> None:
    folder = golden("5.3.3/basic") / "store"
    path = folder / "commitlog" / "65536".zfill(20)
    rows = rmqctl("dump", path, "-o", "json").expect(0).json()
    for more, wanted in ((("--from", "3"), rows[3:]), (("--count", "2"), rows[:2]),
                         (("--from", "5", "--count", "4"), rows[5:9]),
                         (("--count", "0"), []), (("--from", "100000"), []),
                         (("--from", str(len(rows) - 1)), rows[-1:])):
        assert rmqctl("dump", path, *more, "-o", "json").expect(0).json() == wanted
    fifth = rows[5]
    for at in (fifth["offset"], fifth["offset"] + fifth["size"] - 1, fifth["byte_offset"],
               hex(fifth["byte_offset"])):
        assert rmqctl("dump", path, "--at", str(at), "-o", "json").expect(0).json() == [fifth]
    assert rmqctl("dump", path, "--at", str(fifth["offset"]), "--count", "3", "-o",
                  "json").json() == rows[5:8]
    last = rows[-1]
    assert rmqctl("dump", path, "--at", "65535", "-o", "json").expect(0).json() == [last]
    unit = sorted((folder / "consumequeue/TP_fraud_Topic/0").iterdir())[1]
    rows = rmqctl("dump", unit, "-o", "json").json()
    assert rmqctl("dump", unit, "--at", "79", "-o", "json").json() == [rows[3]]
    assert rmqctl("dump", unit, "--from", "3", "--count", "1", "-o", "json").json() == [rows[3]]
    assert rmqctl("dump", unit, "--at", "440", "-o", "json").json() == [rows[3]]


@pytest.mark.parametrize("more", [("--at", "65536"), ("--at", "5", "--from", "1"), ("--at", "x"),
                                  ("--from", "-1"), ("--count", "x"), ("--kind", "nothing")])
def test_bad_options(more: tuple[str, ...], golden: Golden, rmqctl: Run) -> None:
    path = golden("5.3.3/basic") / "store/commitlog" / "0".zfill(20)
    result = rmqctl("dump", path, *more).expect(2)
    assert result.out == ""


def test_at_is_for_files_of_records(golden: Golden, rmqctl: Run) -> None:
    result = rmqctl("dump", golden("5.3.3/basic") / "store/checkpoint", "--at", "8").expect(2)
    assert "checkpoint" in result.err


def test_unused_units_are_shown_when_asked_for(golden: Golden, rmqctl: Run) -> None:
    path = next((golden("5.3.3/basic") / "store/consumequeue/TP_fraud_Topic/3").iterdir())
    few = rmqctl("dump", path, "-o", "json").expect(0).json()
    every = rmqctl("dump", path, "--all", "-o", "json").expect(0).json()
    assert len(few) < len(every) == 19
    assert every[:len(few)] == few
    assert {row["type"] for row in every[len(few):]} == {"unused"}


@pytest.mark.parametrize("form", ["table", "plain", "markdown", "csv", "tsv"])
@pytest.mark.parametrize("more", [(), ("--hex",)])
def test_every_format(form: str, more: tuple[str, ...], golden: Golden, rmqctl: Run) -> None:
    for path in small_files(golden("5.3.3/timer")):
        result = rmqctl("dump", path, "-o", form, "--count", "20", *more).expect(0)
        assert result.out.strip()


def test_kinds_may_be_written_any_way(golden: Golden, rmqctl: Run) -> None:
    path = next((golden("5.3.3/compaction") / "store/compaction").glob("compactionCq/*/*/*"))
    wanted = rmqctl("dump", path, "-o", "json").expect(0).json()
    for name in ("compaction_cq", "compaction-cq", "compactionCq"):
        assert rmqctl("dump", path, "--kind", name, "-o", "json").expect(0).json() == wanted


def test_a_copy_under_any_name_is_known_by_its_content(golden: Golden, tmp_path: Path,
                                                       rmqctl: Run) -> None:
    folder = golden("5.3.3/basic") / "store"
    for number, path in enumerate([folder / "commitlog" / "65536".zfill(20),
                                   folder / "checkpoint", next((folder / "index").iterdir())]):
        copy = tmp_path / f"evidence-{number}"
        copy.write_bytes(path.read_bytes())
        assert rmqctl("dump", copy, "-o", "json").expect(0).json() == rmqctl(
            "dump", path, "-o", "json").expect(0).json()


def test_a_copy_whose_first_bytes_are_lost(golden: Golden, tmp_path: Path, rmqctl: Run) -> None:
    """Where no name says where the file begins, the first whole record does."""
    for name in ("5.3.3/basic", "5.3.3/v2topic"):
        path = golden(name) / "store/commitlog" / "0".zfill(20)
        rows = rmqctl("dump", path, "-o", "json").expect(0).json()
        copy = tmp_path / "evidence"
        garbage = b"\xda\xa3\x20\xa7" * 3
        copy.write_bytes(garbage + path.read_bytes()[len(garbage):])
        answer = rmqctl("dump", copy, "--kind", "commitlog", "-o", "json").expect(1).json()
        assert answer[1:] == rows[1:]
        assert (answer[0]["type"], answer[0]["size"]) == ("damaged", rows[0]["size"])
    copy.write_bytes(b"no message at all \xda\xa3\x20\xa7")
    answer = rmqctl("dump", copy, "--kind", "commitlog", "-o", "json").expect(1).json()
    assert "byte_offset" not in answer[0]
    copy.write_bytes(b"")
    assert rmqctl("dump", copy, "--kind", "commitlog", "-o", "json").expect(0).json() == []
    rmqctl("dump", copy, "--kind", "commitlog", "--at", "0").expect(2)


def test_a_file_under_a_wrong_name_is_shown_and_reported(golden: Golden, tmp_path: Path,
                                                     rmqctl: Run) -> None:
    path = golden("5.3.3/basic") / "store/commitlog" / "65536".zfill(20)
    wrong = tmp_path / "commitlog" / "0".zfill(20)
    wrong.parent.mkdir()
    wrong.write_bytes(path.read_bytes())
    result = rmqctl("dump", wrong, "-o", "json").expect(1)
    assert result.json() == rmqctl("dump", path, "-o", "json").json()
    assert "starts at 65536" in result.err


# -- damage -------------------------------------------------------------------------------------

def only_error(rows: list[Any]) -> Any:
    (bad,) = [row for row in rows if "error" in row]
    return bad


def test_one_flipped_bit_costs_one_record(tiny: Tiny, rmqctl: Run) -> None:
    """Wherever the bit lies: all other records are still there, and the row names the place."""
    placed = tiny.messages[2]
    path = next(path for path in sorted((tiny.root / "commitlog").iterdir())
                if int(path.name) <= placed.start < int(path.name) + path.stat().st_size)
    start = placed.start - int(path.name)
    clean = rmqctl("dump", path, "-o", "json").expect(0).json()
    fields = {"total_size": start, "magic": start + 4, "physical_offset": start + 28,
              "body_length": start + 84}
    for name, at in fields.items():
        done = damage.flip_bit(tiny.root, str(path.relative_to(tiny.root)), at, 3)
        rows = rmqctl("dump", path, "-o", "json").expect(1).json()
        bad = only_error(rows)
        assert bad["type"] == "damaged"
        assert bad["error"]["file"] == str(path)
        assert bad["offset"] == bad["error"]["offset"] == start
        assert bad["error"]["reason"]
        assert [row for row in rows if row is not bad] == [
            row for row in clean if row["offset"] != start], name
        human = rmqctl("dump", path).expect(1).out
        assert f"@{start}" in human
        damage.undo(tiny.root, done)
    assert rmqctl("dump", path, "-o", "json").expect(0).json() == clean


def test_a_body_that_does_not_match_its_crc(golden: Golden, rmqctl: Run) -> None:
    path = golden("5.3.3/clean-crc") / "before/commitlog" / "163840".zfill(20)
    rows = rmqctl("dump", path, "-o", "json").expect(1).json()
    bad = only_error(rows)
    assert (bad["offset"], bad["type"], bad["crc_ok"]) == (7828, "message", False)
    assert bad["error"]["field"] == "body_crc"
    rmqctl("dump", path, "--count", "3").expect(0)


@pytest.mark.parametrize(("name", "size"), [("crash-trunc-zero", 217), ("crash-trunc-header", 6)])
def test_a_torn_record_ends_where_its_bytes_end(name: str, size: int, golden: Golden,
                                                rmqctl: Run) -> None:
    path = golden(f"5.3.3/{name}") / "before/commitlog" / "163840".zfill(20)
    rows = rmqctl("dump", path, "-o", "json").expect(1).json()
    bad = only_error(rows)
    assert (bad["offset"], bad["size"]) == (9399, size)
    assert rows[-1]["type"] == "zero"
    assert sum(row["size"] for row in rows) == path.stat().st_size


def test_hex_of_damage_shows_the_fields_as_far_as_they_go(golden: Golden, rmqctl: Run) -> None:
    path = golden("5.3.3/crash-trunc-header") / "before/commitlog" / "163840".zfill(20)
    bad = only_error(rmqctl("dump", path, "--hex", "-o", "json").expect(1).json())
    assert [(part["name"], part["size"]) for part in bad["fields"]] == [
        ("total_size", 4), ("magic", 2)]
    assert "error" in rmqctl("dump", path, "--hex").expect(1).out


def test_damaged_units(tiny: Tiny, rmqctl: Run) -> None:
    path = min((tiny.root / "consumequeue/orders/0").iterdir())
    file = str(path.relative_to(tiny.root))
    damage.write(tiny.root, file, 20, b"\xff" * 8)
    bad = only_error(rmqctl("dump", path, "-o", "json").expect(1).json())
    assert (bad["number"], bad["offset"], bad["error"]["field"]) == (1, 20, "physical_offset")
    damage.truncate(tiny.root, file, 47)
    rows = rmqctl("dump", path, "-o", "json").expect(1).json()
    assert (rows[-1]["offset"], rows[-1]["size"]) == (40, 7)
    assert rows[-1]["error"]["offset"] == 40


def test_damaged_index(tiny: Tiny, rmqctl: Run) -> None:
    path = next((tiny.root / "index").iterdir())
    file = str(path.relative_to(tiny.root))
    damage.index_slot(tiny.root, file, 3, 99)
    bad = only_error(rmqctl("dump", path, "-o", "json").expect(1).json())
    assert (bad["type"], bad["number"], bad["error"]["field"]) == ("slot", 3, "entry")
    damage.index_slot(tiny.root, file, 3, 0)
    done = damage.index_set(tiny.root, file, tiny.options.index_slots, 2, previous=2)
    bad = only_error(rmqctl("dump", path, "-o", "json").expect(1).json())
    assert (bad["type"], bad["number"], bad["error"]["field"]) == ("entry", 2, "previous")
    damage.undo(tiny.root, done)
    done = damage.index_set(tiny.root, file, tiny.options.index_slots, 2, hash_=-5)
    bad = only_error(rmqctl("dump", path, "-o", "json").expect(1).json())
    assert (bad["type"], bad["number"], bad["error"]["field"]) == ("entry", 2, "key_hash")
    damage.undo(tiny.root, done)
    damage.index_header(tiny.root, file, count=1 << 30)
    rows = rmqctl("dump", path, "-o", "json").expect(1).json()
    assert rows[0]["error"]["field"] == "index_count"
    damage.truncate(tiny.root, file, 30)
    rows = rmqctl("dump", path, "-o", "json").expect(1).json()
    assert rows[0]["error"]["field"] == "end_phy_offset"


def test_damaged_pages_and_texts(tiny: Tiny, rmqctl: Run) -> None:
    damage.checkpoint_short(tiny.root)
    rows = rmqctl("dump", tiny.root / "checkpoint", "--hex", "-o", "json").expect(1).json()
    assert rows[0]["error"]["field"] == "index_msg_timestamp"
    assert [part["name"] for part in rows[0]["fields"]][-1] == "index_msg_timestamp"
    (tiny.root / "checkpoint").write_bytes(bytes(100) + b"x" + bytes(3995))
    rows = rmqctl("dump", tiny.root / "checkpoint", "-o", "json").expect(1).json()
    assert rows[0]["error"]["offset"] == 100
    (tiny.root / "abort").write_bytes(b"12x")
    rows = rmqctl("dump", tiny.root / "abort", "--hex", "-o", "json").expect(1).json()
    assert rows[0]["error"]["offset"] == 2
    assert rows[0]["fields"][0]["hex"] == b"12x".hex()


def test_a_wheel_of_the_wrong_size_and_a_slot_out_of_place(tmp_path: Path, rmqctl: Run) -> None:
    path = tmp_path / "timerwheel"
    slot = timer_wheel.build(timer_wheel.SlotRecord(1_700_000_000, 0, 0, 1))
    path.write_bytes(bytes(64) + slot)
    rows = rmqctl("dump", path, "-o", "json").expect(1).json()
    assert [(row["number"], row["error"]["field"]) for row in rows[:1]] == [(2, "time")]
    assert rows[1]["error"]["field"] == "size"


def test_a_timerlog_whose_end_mark_lies(golden: Golden, tmp_path: Path, rmqctl: Run) -> None:
    path = tmp_path / "timerlog" / "0".zfill(20)
    path.parent.mkdir()
    raw = (golden("5.3.3/timer") / "store/timerlog" / path.name).read_bytes()
    path.write_bytes(raw + bytes(10))
    bad = only_error(rmqctl("dump", path, "-o", "json").expect(1).json())
    assert (bad["type"], bad["offset"], bad["error"]["field"]) == ("end", 832, "size")
    path.write_bytes(raw[:52] + b"\0\0\0\x35" + raw[56:])
    bad = only_error(rmqctl("dump", path, "-o", "json").expect(1).json())
    assert (bad["type"], bad["number"], bad["error"]["field"]) == ("damaged", 1, "size")
    path.write_bytes(raw[:70])
    bad = only_error(rmqctl("dump", path, "--hex", "-o", "json").expect(1).json())
    assert (bad["offset"], bad["size"]) == (52, 18)


@pytest.mark.long
def test_ext_files_longer_than_a_window(tmp_path: Path, rmqctl: Run) -> None:
    """Units lie across the borders of what is read at a time."""
    path = tmp_path / "consumequeue_ext/T/0" / "0".zfill(20)
    path.parent.mkdir(parents=True)
    unit = ext.build(ext.make(5, 1_700_000_000_000, b"x" * 997))
    assert len(unit) == 1017
    raw = unit * 3000
    path.write_bytes(raw + b"\xff\xff" + bytes(500))
    rows = rmqctl("dump", path, "-o", "jsonl").expect(0).jsonl()
    assert [row["offset"] for row in rows] == list(range(0, len(raw) + 1, 1017))
    assert {row["type"] for row in rows[:-1]} == {"unit"}
    assert rows[-1]["type"] == "end"
    assert rmqctl("dump", path, "--from", "2990", "-o", "jsonl").jsonl() == rows[2990:]
    assert rmqctl("dump", path, "--at", "5000", "-o", "jsonl").jsonl() == rows[4:5]
    path.write_bytes(raw + b"\xff\xff" + unit)  # what a truncation left behind the mark
    assert rmqctl("dump", path, "-o", "jsonl").expect(0).jsonl()[-1] == {
        "offset": len(raw) + 2, "byte_offset": len(raw) + 2, "type": "rest", "size": 1017}
    # One flipped bit costs one unit, also where the window ends.
    for number in (2, 1029, 1030, 1031):
        for bit in sample(range(16), 3, f"bits of unit {number}"):
            changed = bytearray(raw)
            changed[number * 1017 + bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed + b"\xff\xff")
            entries = rmqctl("dump", path, "-o", "jsonl").expect(1).jsonl()
            bad = only_error(entries)
            assert (bad["number"], bad["size"], bad["error"]["field"]) == (number, 1017, "size")
            assert entries[:number] + entries[number + 1:] == rows[:number] + rows[number + 1:]


def test_config_files_of_every_shape(tmp_path: Path, rmqctl: Run) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b'{"a":1,"b":[2],"c":{}}')
    rows = rmqctl("dump", path, "--from", "1", "--count", "1", "-o", "json").expect(0).json()
    assert [(row["number"], row["name"], row["value"]) for row in rows] == [(1, "b", [2])]
    path.write_bytes(b"[1,2]")
    assert rmqctl("dump", path, "-o", "json").expect(0).json()[0]["value"] == [1, 2]
    path.write_bytes(b'\xef\xbb\xbf{"a":"\\ud800"}')
    rows = rmqctl("dump", path, "-o", "json").expect(0).json()
    assert [row["name"] for row in rows] == ["a", "byte-order-mark", "lone-surrogate"]
    rmqctl("dump", path, "-o", "table").expect(0)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    bad = only_error(rmqctl("dump", path, "-o", "json").expect(1).json())
    assert "too many for such a file" in bad["error"]["reason"]


# -- refusals -------------------------------------------------------------------------------------

def test_a_file_of_unknown_kind(tmp_path: Path, rmqctl: Run) -> None:
    path = tmp_path / "foo"
    path.write_bytes(b"hello world")
    result = rmqctl("dump", path).expect(3)
    assert result.out == ""
    for kind in kinds.KINDS:
        assert kind in result.err


def test_what_is_no_regular_file(tmp_path: Path, rmqctl_process: Run) -> None:
    os.mkfifo(tmp_path / "commitlog")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for name, words in (("commitlog", "not a regular file"), ("missing", "no such file"),
                        (".", "directory"), ("loop", "symbolic"), ("dangling", "no such file")):
        result = rmqctl_process("dump", tmp_path / name, timeout=20).expect(5)
        assert words in result.err
        assert result.out == ""
    rmqctl_process("dump", "/dev/null", timeout=20).expect(5)


def test_a_link_to_a_file_is_followed(golden: Golden, tmp_path: Path, rmqctl: Run) -> None:
    path = next((golden("5.3.3/basic") / "store/consumequeue/TP_fraud_Topic/3").iterdir())
    (tmp_path / "link").symlink_to(path)
    rows = rmqctl("dump", tmp_path / "link", "-o", "json").expect(0).json()
    assert len(rows) == len(rmqctl("dump", path, "-o", "json").json())


@pytest.mark.skipif(not damage.can_deny(), reason="root may read everything")
def test_no_permission(tiny: Tiny, rmqctl: Run) -> None:
    damage.unreadable(tiny.root, "checkpoint")
    result = rmqctl("dump", tiny.root / "checkpoint").expect(5)
    assert "permission denied" in result.err


def test_a_name_no_system_takes(rmqctl: Run) -> None:
    rmqctl("dump", "x" * 5000).expect(5)
    rmqctl("dump", "a\0b").expect(5)


# -- anything at all ------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", kinds.KINDS)
def test_random_bytes_as_every_kind(kind: str, tmp_path: Path, rmqctl: Run, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / chance.choice(["00000000000000001000", "09223372036854775807", "foo"])
    sizes = sample((0, 1, 7, 19, 20, 45, 91, 400, 4096, 20_000), 1, f"sizes of {kind}")
    for size in sizes:
        for raw in (chance.randbytes(size), bytes(size), b"\xff" * size,
                    (SMALL * 200)[:size], (b"\0\0\0\1" * 5000)[:size]):
            path.write_bytes(raw)
            for more in ((), ("--hex",), ("--all",)):
                result = rmqctl("dump", path, "--kind", kind, "-o", "jsonl", *more).expect(0, 1)
                rows = result.jsonl()
                assert any("error" in row for row in rows) == (result.code == 1) or (
                    "by its records" in result.err)


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "checkpoint", "config"])
def test_mutated_files(name: str, tiny: Tiny, rmqctl: Run, seed: int) -> None:
    chance = random.Random(seed)
    path = next(path for path in sorted((tiny.root / name).rglob("*") if (
        tiny.root / name).is_dir() else [tiny.root / name]) if path.is_file())
    clean = path.read_bytes()
    for _ in range(60):
        raw = bytearray(clean)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(raw))
            raw[at:at + chance.randrange(1, 9)] = chance.randbytes(chance.randrange(0, 9))
        path.write_bytes(raw)
        rmqctl("dump", path, "--hex", "-o", "jsonl").expect(0, 1).jsonl()


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    for kind, raw in ((kinds.CONSUMEQUEUE, (b"\0" * 11 + b"\x70" + bytes(8)) * 200_000),
                      (kinds.COMMITLOG, SMALL), (kinds.TIMERLOG, b"\0\0\0\x34" + bytes(48)),
                      (kinds.CONSUMEQUEUE_EXT, b"\0\x14" + bytes(18)), (kinds.INDEX, bytes(8440)),
                      (kinds.DLEDGER, SMALL), (kinds.CHECKPOINT, bytes(4096)),
                      (kinds.CONFIG, b"{}")):
        path = tmp_path / "0".zfill(20)
        path.write_bytes(raw)
        with Dump(str(path), DumpOptions(kind=kind)) as dump:
            rows = dump.rows()
            if kind == kinds.CONSUMEQUEUE:
                next(rows)
            os.truncate(path, 1)
            for row in rows:
                assert row["offset"] >= 0
            assert dump.faults, kind


def test_large_sparse_files_take_little_memory(tmp_path: Path, rmqctl_process: Run) -> None:
    shape = index_file.DEFAULT_SHAPE
    path = tmp_path / "index" / "20240101000000000"
    path.parent.mkdir()
    entry = index_file.EntryRecord(4_999_999, 77, 0, 0)
    with path.open("wb") as file:
        file.truncate(shape.file_size)
        file.write(index_file.build_header(index_file.HeaderRecord(
            1_700_000_000_000, 1_700_000_000_000, 77, 77, 1, 2)))
        file.seek(shape.slot_position(4_999_999))
        file.write(index_file.build_slot(index_file.SlotRecord(1)))
        file.seek(shape.entry_position(1))
        file.write(index_file.build_entry(entry))
    rows = rmqctl_process("dump", path, "-o", "json", memory=400 * MIB,
                          timeout=30).expect(0).json()
    assert [row["type"] for row in rows] == ["header", "slot", "entry"]
    log = tmp_path / "commitlog" / "0".zfill(20)
    log.parent.mkdir()
    with log.open("wb") as file:
        file.truncate(1 << 30)
        record = message.parse(SMALL)
        record.physical_offset = 0
        file.write(message.build(record))
    rows = rmqctl_process("dump", log, "-o", "json", memory=400 * MIB, timeout=30).expect(0).json()
    assert [(row["type"], row["size"]) for row in rows] == [
        ("message", 105), ("zero", (1 << 30) - 105)]


def test_nothing_is_changed(golden: Golden, rmqctl: Run) -> None:
    for path in small_files(golden("4.9.3/basic")):
        before = path.stat(), hashlib.sha256(path.read_bytes()).digest()
        rmqctl("dump", path, "--hex").expect(0)
        after = path.stat(), hashlib.sha256(path.read_bytes()).digest()
        assert [before[0].st_mtime_ns, before[0].st_ino, before[1]] == [
            after[0].st_mtime_ns, after[0].st_ino, after[1]]
