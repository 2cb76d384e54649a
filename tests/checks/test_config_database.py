"""Configuration in RocksDB verified: damage, odd entries, and what a start does with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GoldenFolder
from tests.support.cli import run
from tests.support.snapshot import assert_unchanged

rocksdict = pytest.importorskip("rocksdict")


def config_findings(store: Path) -> list[tuple[str, str, str]]:
    """(category, severity, place) of what is found in the configuration."""
    with assert_unchanged(store):
        findings = run("verify", store, "--only", "config", "-o", "json").expect(0, 1).json()
    return [(finding["category"], finding["severity"], finding["file"].rpartition("/config/")[2])
            for finding in findings["findings"]]


def put(folder: Path, *entries: tuple[bytes, bytes | None], family: str = "default") -> None:
    """Changes entries of a data base as a program would; None deletes."""
    options = rocksdict.Options(raw_mode=True)
    families = {name: rocksdict.Options(raw_mode=True) for name in rocksdict.Rdict.list_cf(
        str(folder))}
    database = rocksdict.Rdict(str(folder), options, families)
    table = database.get_column_family(family)
    for key, value in entries:
        if value is None:
            del table[key]
        else:
            table[key] = value
    table.close()
    database.close()


@pytest.mark.parametrize("name", ["rocksdb-config-v1", "rocksdb-config-v1-kill",
                                  "rocksdb-config-v2", "rocksdb-config-v2-kill"])
def test_nothing_is_wrong_with_the_engines(name: str, golden: GoldenFolder) -> None:
    assert config_findings(golden(f"5.3.3/{name}/store")) == []


def test_files_of_before_are_said_and_no_trouble(golden: GoldenFolder) -> None:
    assert config_findings(golden("5.3.3/rocksdb-import/store")) == [
        ("not-judged", "info", f"{name}.json") for name in ("topics", "subscriptionGroup",
                                                           "consumerOffset")]


def first(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


@pytest.mark.parametrize("lose", [
    lambda folder: (folder / "CURRENT").unlink(),
    lambda folder: first(folder, "MANIFEST-*").unlink(),
    lambda folder: first(folder, "*.sst").unlink(),
    lambda folder: (folder / "CURRENT").write_bytes(b"x"),
])
@pytest.mark.parametrize(("name", "folder"), [("rocksdb-config-v1", "subscriptionGroups"),
                                              ("rocksdb-config-v2", "rdb")])
def test_a_lost_file(name: str, folder: str, lose: Callable[[Path], Any],
                     golden_copy: GoldenFolder) -> None:
    store = golden_copy(f"5.3.3/{name}/store")
    lose(store / "config" / folder)
    assert config_findings(store) == [("config-database", "error", folder)]
    shown = run("config", store, "groups", "-o", "json").expect(1)
    assert shown.json() == []
    assert f"config/{folder}: " in shown.err
    run("config", store, "topics").expect(1 if folder == "rdb" else 0)
    if folder == "rdb":
        predicted = run("preflight", store, "-o", "json").expect(1).json()
        assert predicted["starts"] is False
        assert predicted["actions"][0]["target"] == "config/rdb"
        run("offsets", store).expect(1)
        run("impact", store).expect(0, 1)


def test_a_lost_data_base(golden_copy: GoldenFolder) -> None:
    store = golden_copy("5.3.3/rocksdb-config-v1/store")
    shutil.rmtree(store / "config/topics")
    assert config_findings(store) == [("config-database", "error", "topics"),
                                      ("config-topic", "warning", "topics")]
    assert "config/topics" in run("config", store).expect(1).err


def test_flipped_bits_are_found_or_change_nothing(golden_copy: GoldenFolder) -> None:
    """Each bit of every table of v2, some of them: what is shown is right, or damage is said."""
    store = golden_copy("5.3.3/rocksdb-config-v2/store")
    good = run("config", store, "offsets", "-o", "json").expect(0).json()
    for file in sorted((store / "config/rdb").glob("*.sst")):
        data = file.read_bytes()
        for position in range(11, len(data), len(data) // 6):
            changed = bytearray(data)
            changed[position] ^= 1 << position % 8
            file.write_bytes(changed)
            shown = run("config", store, "offsets", "-o", "json").expect(0, 1)
            assert shown.code == 1 or shown.json() == good, (file.name, position)
        file.write_bytes(data)


def test_entries_that_no_broker_writes(golden_copy: GoldenFolder) -> None:
    store = golden_copy("5.3.3/rocksdb-config-v2/store")
    put(store / "config/rdb", (b"\1\0\1\2odd", b"x"), (b"\1\0\3\2\0\3abc", b"\1[]"),
        (b"\1\0\1\2\0\1a\1\0\1b\1\0\0\0\0", b"short"))
    assert config_findings(store) == [("config-entry", "warning", "rdb")] * 2
    topics = run("config", store, "topics", "-o", "json").expect(1)
    assert [row["topic"] for row in topics.json()] == ["TP_geo", "TP_cart", "TP_orders"]
    assert "not a JSON object" in topics.err
    first_form = golden_copy("5.3.3/rocksdb-config-v1/store")
    put(first_form / "config/topics", (b"\xff", b"{}"), (b"T", b"{"))
    put(first_form / "config/consumerOffsets", (b"T@G", b'{"offsetTable":[]}'))
    assert config_findings(first_form) == [("config-entry", "warning", "topics"),
                                           ("config-entry", "warning", "consumerOffsets")]


def test_what_a_start_takes_over_from_the_files_of_before(golden_copy: GoldenFolder) -> None:
    store = golden_copy("5.3.3/rocksdb-import/store")
    file = store / "config/topics.json"
    value = json.loads(file.read_text())
    value["dataVersion"]["counter"] = 7
    file.write_text(json.dumps(value))
    assert ("config-import", "warning", "topics.json") in config_findings(store)
    # Positions: not taken over with the counter 0.
    offsets = store / "config/consumerOffset.json"
    table = {"offsetTable": {"TP_orders@G_late": {"0": 5}}, "dataVersion": {"counter": 0}}
    offsets.write_text(json.dumps(table))
    assert ("config-import", "info", "consumerOffset.json") in config_findings(store)
    put(store / "config/consumerOffsets", *((key.encode(), None) for key in (
        "TP_cart@G_TP_mail", "TP_orders@G_TP_billing")))
    assert ("config-import", "warning", "consumerOffset.json") in config_findings(store)
    offsets.write_text(json.dumps(table | {"dataVersion": {"counter": 1}}))
    output = run("verify", store, "--only", "config").expect(1).out
    assert "import this file" in output


def test_a_topic_whose_queues_a_broker_deletes(golden_copy: GoldenFolder) -> None:
    store = golden_copy("5.3.3/rocksdb-config-v1/store")
    put(store / "config/topics", (b"TP_geo", None))
    findings = run("verify", store, "--only", "config", "-o", "json").expect(1).json()["findings"]
    assert [(finding["category"], finding["count"])
            for finding in findings] == [("config-topic", 1)]
    assert "TP_geo" in findings[0]["detail"]
