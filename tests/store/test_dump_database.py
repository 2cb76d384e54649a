"""`dump` of a RocksDB data base: every entry, in the words of what a broker keeps there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqctl.files.rocksdb_writer import write_database
from tests.conftest import GoldenFolder
from tests.support.cli import run
from tests.support.snapshot import assert_unchanged

pytest.importorskip("rocksdict")


def dumped(folder: Path) -> list[dict[str, Any]]:
    with assert_unchanged(folder):
        return run("dump", folder, "-o", "jsonl").expect(0).jsonl()


def test_configuration(golden: GoldenFolder) -> None:
    rows = dumped(golden("5.3.3/rocksdb-config-v2/store/config/rdb"))
    assert [row["number"] for row in rows] == list(range(len(rows)))
    assert rows[1]["fields"] == {"table": "consumer offset", "group": "G_TP_mail",
                                 "topic": "TP_cart", "queue_id": 0, "offset": 10}
    assert {row["fields"]["table"] for row in rows} == {"consumer offset", "pull offset", "topic",
                                                        "group"}
    first = dumped(golden("5.3.3/rocksdb-config-v1-kill/store/config/topics"))
    assert {row["family"] for row in first} == {"default", "kvDataVersion"}
    assert len(first) == 17 + 1


def test_a_consumequeue(golden: GoldenFolder) -> None:
    rows = dumped(golden("5.3.3/rocksdb-config-v1/store/consumequeue"))
    assert sum(row["family"] == "default" for row in rows) == 120
    assert rows[0]["fields"]["topic"] == "TP_geo"
    assert {row["fields"]["which"] for row in rows if row["family"] == "offset"} == {"max", "min"}


def test_check_points_and_what_a_later_release_keeps(tmp_path: Path) -> None:
    key = bytes.fromhex("000001a2016a1860 475f706f70 40 54505f6f7264657273 40 00000000 40"
                        "0000000000000064")
    write_database(str(tmp_path / "kvStore"), {"default": [], "popState": [(key, b'{"offset":1}')]})
    row, = dumped(tmp_path / "kvStore")
    assert (row["family"], row["fields"]["group"], row["fields"]["queue_offset"]) == (
        "popState", "G_pop", 100)
    write_database(str(tmp_path / "RocksDBMessageStore"), {
        "default": [], "timer": [(bytes(8) + b"U1", bytes(12))], "trans": [],
        "other": [(b"k", b"v")]})
    rows = dumped(tmp_path / "RocksDBMessageStore")
    assert {row["family"]: row["fields"] for row in rows} == {
        "timer": {"deliver_timestamp": 0, "unique_key": "U1", "size": 0, "physical_offset": 0},
        "other": {"bytes": 1}}


def test_damage_and_wrong_words(tmp_path: Path, golden_copy: GoldenFolder) -> None:
    write_database(str(tmp_path / "kvStore"), {"default": [], "popState": [(b"x", b"{}")]})
    row, = run("dump", tmp_path / "kvStore", "-o", "jsonl").expect(1).jsonl()
    assert "POP" in row["error"]
    run("dump", tmp_path / "kvStore", "--hex").expect(2)
    assert not run("dump", tmp_path / "kvStore", "--limit", "0", "-o", "jsonl").expect(0).jsonl()
    store = golden_copy("5.3.3/rocksdb-config-v2/store")
    (store / "config/rdb/CURRENT").unlink()
    assert "CURRENT" in run("dump", store / "config/rdb").expect(3, 5, 6).err
    run("dump", store).expect(3, 5)
