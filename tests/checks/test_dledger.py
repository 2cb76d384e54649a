"""verify of a DLedger log: heads of entries, their chain, index, checkpoint; each damage apart."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.store.test_dledger import SIZE, patch, store_of
from tests.support.cli import run
from tests.support.layouts import layout_set

BODIES = [b"%d" % number * 20 for number in range(60)]


def findings(store: Path, *words: str, trouble: bool = True) -> list[dict[str, Any]]:
    result = run("verify", store, "--only", "commitlog", "-o", "json", *words).expect(0, 1)
    cover = result.json()["coverage"]
    assert cover["bytes_total"] == sum(cover[f"bytes_{name}"] for name in (
        "in_messages", "blank", "zero", "damaged"))
    return [finding for finding in result.json()["findings"] if finding["category"] != "early-times"
            and (not trouble or finding["severity"] != "info")]


def checkpoint(store: Path, end: int, committed: int) -> None:
    (store / "dledger-n0/checkpoint").write_text(f"committedIndex={committed}\nendIndex={end}\n")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store_of(tmp_path, BODIES)
    units = tmp_path / f"dledger-n0/index/{0:020d}"
    os.truncate(units, 167_772_160)
    checkpoint(tmp_path, 59, 59)
    return tmp_path


def test_a_sound_one_has_no_finding(store: Path) -> None:
    assert findings(store, trouble=False) == []


@pytest.mark.parametrize(("field", "value", "category", "words"), [
    ((0, ">i"), 9, "dledger-entry", "magic 9 instead of 1"),
    ((4, ">i"), 9, "dledger-entry", "size 9 instead of"),
    ((24, ">q"), 9, "dledger-entry", "pos 9 instead of"),
    ((44, ">i"), 9, "dledger-entry", "body_length 9 instead of"),
    ((8, ">q"), 4000, "dledger-chain", "index 4000 in term 1 follows index 29"),
    ((16, ">q"), 0, "dledger-chain", "in term 0 follows index 29 in term 1")])
def test_a_field_of_a_head(store: Path, field: tuple[int, str], value: int, category: str,
                           words: str) -> None:
    starts = store_of(store / "again", BODIES)
    patch(store, starts[30] + field[0], struct.pack(field[1], value))
    for jobs in ("1", "3"):
        reported = [finding for finding in findings(store, "--jobs", jobs)
                    if finding["category"] != "dledger-index"]
        assert {finding["category"] for finding in reported} == {category}
        assert words in reported[0]["detail"]
        assert reported[0]["offset"] == starts[30]
        assert reported[0]["position"] == starts[30] % SIZE
    assert len(run("read", store, "-o", "jsonl").expect(0).jsonl()) == 60


def test_the_index(store: Path) -> None:
    units = store / f"dledger-n0/index/{0:020d}"
    with units.open("r+b") as file:
        file.seek(32 * 20 + 4)
        file.write(struct.pack(">q", 77))
        file.seek(32 * 40)
        file.write(bytes(32 * 3))
    finding, = findings(store)
    assert (finding["category"], finding["severity"], finding["count"]) == ("dledger-index",
                                                                            "warning", 4)
    assert "4 units not matching their entries, the first: entry 20" in finding["detail"]
    os.truncate(units, 4096)
    assert [reported_finding["category"]
            for reported_finding in findings(store)] == ["dledger-index", "file-size"]
    units.unlink()
    finding, = findings(store)
    assert finding["category"] == "dledger-index-missing"


def test_entries_that_are_gone_or_not_committed(store: Path) -> None:
    checkpoint(store, 63, 61)
    finding, = findings(store)
    assert (finding["category"], finding["count"]) == ("dledger-cut", 4)
    assert "4 entries are lost, 2 of them committed" in finding["detail"]
    checkpoint(store, 59, 50)
    finding, = findings(store, trouble=False)
    assert (finding["category"], finding["count"]) == ("dledger-uncommitted", 9)
    (store / "dledger-n0/checkpoint").write_text("endIndex=x\n")
    finding, = findings(store)
    assert finding["category"] == "dledger-checkpoint"
    # DLedger does not read the copy, but what it proves counts.
    (store / "dledger-n0/checkpoint.bak").write_text("endIndex=63\ncommittedIndex=61\n")
    assert [finding["category"]
            for finding in findings(store)] == ["dledger-checkpoint", "dledger-cut"]
    (store / "dledger-n0/checkpoint.bak").unlink()
    (store / "dledger-n0/checkpoint").unlink()
    assert findings(store) == []


def test_a_damaged_message_in_a_whole_entry_breaks_no_chain(store: Path) -> None:
    starts = store_of(store / "again", BODIES)
    patch(store, starts[30] + 48, bytes(40))
    finding, = findings(store)
    assert finding["category"] == "record-damaged"
    assert "entry 30 is intact" in finding["detail"]
    # Two heads that are gone: the entries behind them go on with a later index.
    patch(store, starts[40], bytes(starts[42] - starts[40]))
    store_findings = findings(store)
    assert [finding["category"] for finding in store_findings] == ["record-damaged", "zero-gap"]


def test_what_the_engine_left_has_no_other_trouble() -> None:
    for version in ("4.9.3", "5.3.3"):
        for name, expected in (("crash", set()), ("crash-noindex", {"dledger-index-missing"}),
                               ("crash-trunc", {"torn-tail", "dledger-cut"}),
                               ("crash-trunc-header", {"torn-tail", "dledger-cut"}),
                               ("crash-crc", {"body-crc"})):
            folder = layout_set(f"{version}/dledger-{name}")
            assert {finding["category"]
                    for finding in findings(folder / "before")} == expected, name
        assert findings(layout_set(f"{version}/dledger-crash") / "after") == []


def test_a_hole_between_the_old_log_and_the_new_one(tmp_path: Path) -> None:
    import shutil

    store = tmp_path / "store"
    shutil.copytree(layout_set("4.9.3/dledger-mixed") / "store", store,
                    ignore=shutil.ignore_patterns("index"))
    last = max((store / "commitlog").iterdir())
    last.unlink()
    assert "file-missing" in {finding["category"] for finding in findings(store)}
