"""``rmqctl du``: where the bytes are."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rmqctl.store import space
from tests.conftest import GoldenFolder, Runner
from tests.support import tiny as tiny_stores

BASIC = "5.3.3/basic/store"


@pytest.mark.parametrize("name", [BASIC, "4.9.3/transaction/store", "5.3.3/lmq/store",
                                  "5.3.3/batchcq/store"])
def test_topics_are_those_of_stats(golden: GoldenFolder, rmqctl: Runner, name: str) -> None:
    """Which walks the log; of half messages and rollbacks only that knows."""
    root = golden(name)
    answer = rmqctl("du", root, "-o", "json").expect(0).json()
    bytes_of = {row["topic"]: row["log_bytes"] for row in answer["topics"] if row["log_bytes"]}
    stats = rmqctl("stats", root, "--by", "transaction", "-o", "jsonl").expect(0).jsonl()
    rowed = sum(row["bytes"] for row in stats if row["transaction"] in ("none", "commit"))
    assert sum(bytes_of.values()) == rowed == answer["log_bytes_in_rows"]
    if name == BASIC:
        by_topic = rmqctl("stats", root, "-o", "jsonl").expect(0).jsonl()
        assert bytes_of == {row["topic"]: row["bytes"] for row in by_topic}


def test_structures_are_those_of_info(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(BASIC)
    answer = rmqctl("du", root, "-o", "json").expect(0).json()
    assert answer["structures"] == rmqctl("info", root, "-o", "json").json()["structures"]
    queues = next(row for row in answer["structures"] if row["kind"] == "consumequeue")
    assert sum(row["queue_bytes"] for row in answer["topics"]) == queues["size"]


def test_growth(golden: GoldenFolder, rmqctl: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden(BASIC)
    growth = rmqctl("du", root, "-o", "json").expect(0).json()["growth"]
    span = growth["last_store_timestamp"] - growth["first_store_timestamp"]
    assert growth["bytes_per_day"] == growth["log_bytes"] * 86_400_000 // span
    assert growth["recent_since"] is None
    monkeypatch.setattr(space, "DAY", 60_000)
    growth = rmqctl("du", root, "-o", "json").expect(0).json()["growth"]
    since = growth["recent_since"]
    assert growth["first_store_timestamp"] < since <= growth["last_store_timestamp"] - 60_000
    assert growth["recent_bytes_per_day"] > 0


def test_what_repairs_keep(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    assert rmqctl("du", tiny.root, "-o", "json").expect(0).json()["repairs"] == []
    rmqctl("truncate", tiny.root, "--to-phy", "1024", "--apply", "--yes", "-qq").expect(0)
    (kept,) = rmqctl("du", tiny.root, "-o", "json").expect(0).json()["repairs"]
    assert (kept["command"], kept["state"]) == ("truncate", "applied")
    assert kept["bytes"] > 0
    assert "--prune 30d" in rmqctl("du", tiny.root, "-o", "plain").expect(0).out


def test_a_row_that_leads_nowhere_does_not_count(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    before = {row["topic"]: row["log_bytes"]
              for row in rmqctl("du", tiny.root, "-o", "jsonl").expect(0).jsonl()}
    name, position = tiny.unit_place(tiny.queues()["orders", 0][1])
    path = Path(tiny.root, name)
    data = bytearray(path.read_bytes())
    struct.pack_into(">qi", data, position, 1 << 50, 1 << 30)
    path.write_bytes(data)
    after = {row["topic"]: row["log_bytes"]
             for row in rmqctl("du", tiny.root, "-o", "jsonl").expect(0).jsonl()}
    assert before["orders"] - after["orders"] == 141
    assert before["bills"] == after["bills"]


def test_an_empty_store(tmp_path: Path, rmqctl: Runner) -> None:
    (tmp_path / "commitlog").mkdir()
    answer = rmqctl("du", tmp_path, "-o", "json").expect(0).json()
    assert answer["topics"] == []
    assert answer["growth"]["bytes_per_day"] is None
    rmqctl("du", tmp_path, "-o", "plain").expect(0)
