"""``rmqctl read`` as a user and a script see it."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmqctl.store.objects import FIELDS
from tests.conftest import GoldenFolder, Runner
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores
from tests.support.share import sample
from tests.support.stored import intact, object_of, puts_of
from tests.support.writer import Writer

BASIC = "5.3.3/basic/store"
STORES = [pytest.param(golden_store, id=golden_store.id) for golden_store in sample(
    golden_sets.golden_stores(), 24, "what read shows")]


@pytest.mark.parametrize("store", STORES)
def test_all_intact_messages_of_every_store(store: golden_sets.GoldenStore, golden: GoldenFolder,
                                            rmqctl: Runner) -> None:
    """Clean stores: exit 0 and nothing on stderr. Damaged: every intact message, and where it is
    damaged, exit 1 and the place."""
    root = golden(store.id)
    expected = {message.physical_offset: object_of(message)
                for message in intact(root, store, puts_of(store, golden))}
    done = rmqctl("read", root, *store.options, "-o", "jsonl").expect(0, 1)
    rows = {row["physical_offset"]: row for row in done.jsonl()}
    for place, wanted in expected.items():
        assert {name: rows[place][name] for name in wanted} == wanted
    wrong = [row["physical_offset"] for row in rows.values() if not row["crc_ok"]]
    assert set(rows) - set(expected) == set(wrong)
    assert done.code == (1 if wrong or "damage" in done.err else 0)
    for place in wrong:
        assert str(place) in done.err
    if store.is_clean:
        assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize(("kind", "place"), [
    ("crash-trunc-zero", 173239), ("crash-trunc-garbage", 173239), ("crash-trunc-header", 173239),
    ("crash-shortfile", 173239), ("crash-crc", 171668), ("crash-crc-prev", 151642)])
def test_damage_is_named(kind: str, place: int, golden: GoldenFolder, rmqctl: Runner) -> None:
    done = rmqctl("read", golden(f"5.3.3/{kind}/before"), "-o", "jsonl").expect(1)
    assert str(place) in done.err
    assert len(done.err.splitlines()) == 1


# -- formats --------------------------------------------------------------------------------------


def test_json_and_jsonl_are_message_objects(golden: GoldenFolder, rmqctl: Runner) -> None:
    lines = rmqctl("read", golden(BASIC), "-o", "jsonl").expect(0).jsonl()
    assert rmqctl("read", golden(BASIC), "-o", "json").expect(0).json() == lines
    assert {tuple(row) for row in lines} == {FIELDS}


@pytest.mark.parametrize(("form", "separator"), [("csv", ","), ("tsv", "\t")])
def test_separated_columns_are_the_fields(form: str, separator: str, golden: GoldenFolder,
                                          rmqctl: Runner) -> None:
    objects = rmqctl("read", golden(BASIC), "-o", "jsonl").expect(0).jsonl()
    text = rmqctl("read", golden(BASIC), "-o", form).expect(0).out
    rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=separator))
    assert tuple(rows[0]) == FIELDS
    assert len(rows) == len(objects)
    for row, wanted in zip(rows, objects, strict=True):
        for name in ("physical_offset", "total_size", "store_timestamp", "queue_id"):
            assert int(row[name]) == wanted[name]
        assert (row["topic"], row["msg_id"]) == (wanted["topic"], wanted["msg_id"])
        assert json.loads(row["properties"]) == wanted["properties"]
        assert row["body"].removeprefix("'") == wanted["body"].removeprefix("'")


@pytest.mark.parametrize("form", ["table", "plain", "markdown"])
def test_tables_for_people(form: str, golden: GoldenFolder, rmqctl: Runner) -> None:
    done = rmqctl("read", golden(BASIC), "-o", form, "--count", "3", env={"COLUMNS": "220"})
    text = done.expect(0).out.replace("\\_", "_")
    for wanted in ("queue_offset", "TP_ship_Event2", "order-63", "2024-06-21T19:50:35.336Z",
                   "9,301", "Привет pay"):
        assert wanted in text
    assert "properties_raw" not in text
    assert max(map(len, text.splitlines())) < 270


def test_times_are_shown_in_the_zone(golden: GoldenFolder, rmqctl: Runner) -> None:
    done = rmqctl("read", golden(BASIC), "-o", "plain", "--count", "1", "--tz", "+08:00")
    assert "2024-06-22T03:50:35.167+08:00" in done.expect(0).out


def test_a_wrong_crc_is_visible_to_people(golden: GoldenFolder, rmqctl: Runner) -> None:
    done = rmqctl("read", golden("5.3.3/crash-crc/before"), "-o", "plain", "--from-phy", "171668",
                  "--count", "2").expect(1)
    lines = done.out.splitlines()
    assert "[bad CRC]" in lines[1]
    assert "[bad CRC]" not in lines[2]


def test_fields(golden: GoldenFolder, rmqctl: Runner) -> None:
    rows = rmqctl("read", golden(BASIC), "--fields", "property.KEYS,topic , queue_offset", "-o",
                  "json").expect(0).json()
    assert {tuple(row) for row in rows} == {("property.KEYS", "topic", "queue_offset")}
    assert rows[1]["property.KEYS"] == "order-63"
    assert rows[0]["property.KEYS"] is None
    wrong = rmqctl("read", golden(BASIC), "--fields", "nix").expect(2)
    assert "prepared_transaction_offset" in wrong.err
    assert "'nix'" in wrong.err


def test_bodies(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    def bodies(*words: str) -> list[Any]:
        rows = rmqctl("read", tiny.root, "-o", "jsonl", *words).expect(0).jsonl()
        return [(row.get("body"), row.get("body_encoding")) for row in rows]

    assert bodies()[0] == ("hello", "utf-8")
    assert bodies()[2] == ("AAH+/w==", "base64")
    assert bodies("--body", "base64")[0] == ("aGVsbG8=", "base64")
    assert bodies("--body", "utf-8")[2] == ("\x00\x01\ufffd\ufffd", "utf-8")
    assert set(bodies("--body", "none")) == {(None, None)}
    assert bodies()[5][1] == "base64"
    assert bodies("--decompress")[5] == ("z" * 40, "utf-8")


def test_a_body_that_is_not_compressed_is_said(tmp_path: Path, rmqctl: Runner) -> None:
    tiny = tiny_stores.build(tmp_path / "s", [tiny_stores.Spec("t", 0, b"plain", sys_flag=1)])
    row, = rmqctl("read", tiny.root, "--decompress", "-o", "jsonl").expect(0).jsonl()
    assert row["body"] == "plain"
    assert "zlib" in row["body_problem"]


# -- choosing -------------------------------------------------------------------------------------


def test_a_queue_from_an_offset(golden: GoldenFolder, rmqctl: Runner) -> None:
    for option in ("--offset", "--from-offset"):
        rows = rmqctl("read", golden(BASIC), "--topic", "TP_ship_evt-x", "--queue", "1", option,
                      "40", "--count", "5", "-o", "jsonl").expect(0).jsonl()
        assert [(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows] == [
            ("TP_ship_evt-x", 1, offset) for offset in range(40, 45)]


def test_filters_in_every_spelling(golden: GoldenFolder, rmqctl: Runner) -> None:
    every = rmqctl("read", golden(BASIC), "-o", "jsonl").jsonl()

    def offsets_read(*words: str) -> list[int]:
        rows = rmqctl("read", golden(BASIC), "-o", "jsonl", *words).expect(0).jsonl()
        return [row["physical_offset"] for row in rows]

    def places_of(holds: Any) -> list[int]:
        places = [row["physical_offset"] for row in every if holds(row)]
        assert places
        return places

    assert offsets_read("--tag", "A || TagA") == places_of(lambda row: row["tags"] in ("A", "TagA"))
    assert offsets_read("--key", "order-63") == places_of(lambda row: "order-63" in row["keys"])
    assert offsets_read("--key", every[5]["unique_key"]) == [every[5]["physical_offset"]]
    assert offsets_read("--where", "queue_id!=0", "--where", "queue_offset<=3") == places_of(
        lambda row: row["queue_id"] != 0 and row["queue_offset"] <= 3)
    assert offsets_read("--where", "topic=TP_fraud_Topic", "--where",
                        "property.KEYS~^pay") == places_of(
                            lambda row: (row["topic"] == "TP_fraud_Topic"
                                         and row["properties"].get("KEYS", "").startswith("pay")))
    assert offsets_read("--where",
                        "queue_offset==7") == places_of(lambda row: row["queue_offset"] == 7)
    assert offsets_read("--where", "store_timestamp<2024-06-21T19:50:40Z") == places_of(
        lambda row: row["store_timestamp"] < 1718999440000)
    assert offsets_read("--since", "2024-06-21 21:53", "--until", "2024-06-21T21:53:02", "--tz",
                        "+02:00") == places_of(lambda row: 1718999580000 <= row["store_timestamp"]
                                               <= 1718999582000)
    assert offsets_read("--from-phy", "0x1D4", "--to-phy", "9770") == [0x1D4, 9769]


def test_nothing_matched_is_no_failure(golden: GoldenFolder, rmqctl: Runner) -> None:
    for words in (["--tag", "nix"], ["--since", "+1d"], ["--count", "0"],
                  ["--topic", "TP_ship_evt-x", "--queue", "77"]):
        done = rmqctl("read", golden(BASIC), *words, "-o", "jsonl").expect(0)
        assert done.out == ""
    assert rmqctl("read", golden(BASIC), "--tag", "nix", "-o", "json").expect(0).json() == []
    assert "no messages" in rmqctl("read", golden(BASIC), "--tag", "nix").err
    assert "0, 1" in rmqctl("read", golden(BASIC), "--topic", "TP_ship_evt-x", "--queue", "77").err


def test_a_topic_that_nothing_knows_is_1_with_names_that_are_near(golden: GoldenFolder,
                                                                  rmqctl: Runner) -> None:
    done = rmqctl("read", golden(BASIC), "--topic", "tp_frauds_Topic", "-o", "jsonl").expect(1)
    assert done.out == ""
    assert "did you mean TP_fraud_Topic?" in done.err
    assert "read STORE --where topic=tp_frauds_Topic" in done.err
    done = rmqctl("read", golden(BASIC), "--topic", "nix").expect(1)
    assert "did you mean" not in done.err
    assert "TP_fraud_Topic" in done.err


def test_queues_without_a_consumequeue_are_named(golden_copy: GoldenFolder,
                                                 rmqctl: Runner) -> None:
    root = golden_copy(BASIC)
    assert "no consumequeue" not in rmqctl("read", root, "--topic", "TP_fraud_Topic").err
    shutil.rmtree(root / "consumequeue" / "TP_fraud_Topic" / "1")
    done = rmqctl("read", root, "--topic", "TP_fraud_Topic", "-o", "jsonl").expect(0)
    assert "no consumequeue for queue 1 of 4" in done.err
    advised = rmqctl("read", root, "--where", "topic=TP_fraud_Topic", "-o", "jsonl").expect(0)
    assert len(advised.jsonl()) > len(done.jsonl())
    assert "topic=TP_fraud_Topic" in done.err
    alone = rmqctl("read", root, "--topic", "TP_fraud_Topic", "--queue", "1").expect(0)
    assert "no consumequeue for queue 1 of 4" in alone.err
    assert "--where queue_id=1" in alone.err
    assert "has no queue 9" in rmqctl("read", root, "--topic", "TP_fraud_Topic", "--queue",
                                      "9").expect(0).err


@pytest.mark.parametrize(("offset", "expected_text"), [
    ("999", "OFFSET_OVERFLOW_BADLY"), ("4", "OFFSET_OVERFLOW_ONE")])
def test_what_a_broker_says_of_the_offset(offset: str, expected_text: str, tiny: tiny_stores.Tiny,
                                          rmqctl: Runner) -> None:
    done = rmqctl("read", tiny.root, "--topic", "orders", "--queue", "0", "--offset", offset)
    assert expected_text in done.expect(0).err
    assert "0 to 3" in done.err
    assert done.out == ""
    assert expected_text not in rmqctl("read", tiny.root, "--topic", "orders", "--queue", "0",
                                       "--offset",                                        offset,
                                       "-q").err


def test_an_expired_offset_starts_at_the_first_there_is(tmp_path: Path, rmqctl: Runner) -> None:
    specs = [tiny_stores.Spec("t", 0, b"x" * 300, raw_properties="") for _ in range(9)]
    tiny = tiny_stores.build(tmp_path / "s", specs, expired_files=2, consumequeue_file_size=400)
    done = rmqctl("read", tiny.root, "--topic", "t", "--queue", "0", "--offset", "0", "-o",
                  "jsonl").expect(0)
    first = done.jsonl()[0]["queue_offset"]
    assert first > 0
    assert "OFFSET_TOO_SMALL" in done.err
    assert f"{first} to 8" in done.err


@pytest.mark.parametrize("words", [
    ["--queue", "1"], ["--offset", "3"], ["--topic", "t", "--offset", "1"], ["--where", "queue_id"],
    ["--where", "nix=1"], ["--where", "tags~("], ["--where", "=1"], ["--tag", " || "],
    ["--since", "tomorrow"], ["--since", "20240102", "--until", "20240101"],
    ["--since", "2024"], ["--fields", ","],
    ["--where", "queue_id=x"], ["--count", "-1"], ["--body", "hex"], ["--from-phy", "x"]])
def test_usage(words: list[str], tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    done = rmqctl("read", tiny.root, *words).expect(2)
    assert done.out == ""
    assert "read --help" in done.err


def test_the_brokers_view(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden("5.3.3/crash-crc/before")
    disk = rmqctl("read", root, "-o", "jsonl", "--body", "none").expect(1).jsonl()
    broker = rmqctl("read", root, "-o", "jsonl", "--body", "none", "--view", "broker").expect(0)
    assert broker.jsonl() == [row for row in disk if row["physical_offset"] < 171668]


def test_an_unreadable_file_ends_with_5(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    with damage.refused(tiny.root / "commitlog" / f"{1024:020d}"):
        done = rmqctl("read", tiny.root, "-o", "jsonl").expect(5)
    assert [row["physical_offset"] for row in done.jsonl()] == [
        message.start for message in tiny.messages if not 1024 <= message.start < 2048]
    assert f"{1024:020d}" in done.err


@pytest.mark.long
def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    """The peak over 32 MiB of log is that over 8 MiB, and a few MiB at most."""
    peaks = [_peak(_filled(tmp_path / str(files), files)) for files in (1, 4)]
    assert peaks[1] - peaks[0] < 12 << 10, peaks


FILE = 8 << 20


def _filled(root: Path, files: int) -> Path:
    """A log of full files, each closed by its blank."""
    raw = tiny_stores.build(root.with_suffix(".one"), [
        tiny_stores.Spec("t", 0, b"x" * 4000, raw_properties="")],
        commitlog_file_size=8192).messages[0].raw
    writer = Writer(root, FILE)
    count = (FILE - 8) // len(raw)
    for base in range(0, files * FILE, FILE):
        block = b"".join(raw[:28] + (base + at * len(raw)).to_bytes(8) + raw[36:]
                         for at in range(count))
        writer.write(base, block + (FILE - len(block)).to_bytes(4) + b"\xcb\xd4\x31\x94")
    return root


def _peak(root: Path) -> int:
    """Peak resident memory in KiB of a process that reads a store."""
    code = ("import resource, sys; from rmqctl.cli import main; code = main(sys.argv[1:]); "
            "print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code, "read", str(root), "-o", "jsonl"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, timeout=60)
    status, peak = done.stderr.split()
    assert status == b"0"
    return int(peak)
