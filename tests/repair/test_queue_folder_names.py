"""Folders of queues whose names have leading zeros: a broker opens the folders without them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqctl.formats.local.names import parse_queue_id
from tests.repair.accidents import bytes_of
from tests.support import cli

STORES = ["4.9.3/basic/store", "5.3.3/basic/store"]


def queues_of(store: Path) -> Path:
    return min((store / "consumequeue").iterdir())


@pytest.mark.parametrize("name", STORES)
def test_a_copy(golden_copy, name: str) -> None:
    store = golden_copy(name)
    topic = queues_of(store)
    shutil.copytree(topic / "0", topic / "09")
    report = cli.run("verify", str(store), "-o", "json").expect(0).json()
    assert [(finding["category"], finding["severity"]) for finding in report["findings"]] == [
        ("file-name", "info")]
    assert cli.run("recover", str(store), "-o", "json").expect(0).json()["actions"] == []
    rows = cli.run("sql", str(store), "-o", "jsonl",
                   "select distinct queue_id from consumequeue order by 1").expect(0).jsonl()
    assert 9 not in {row["queue_id"] for row in rows}


@pytest.mark.parametrize("name", STORES)
def test_a_renamed_folder(golden_copy, name: str) -> None:
    """The queue is missing, and is rebuilt."""
    store = golden_copy(name)
    before, topic = bytes_of(store), queues_of(store)
    (topic / "0").rename(topic / "00")
    findings = cli.run("verify", str(store), "-o", "json").expect(1).json()["findings"]
    assert {finding["category"] for finding in findings} == {"cq-missing", "file-name"}
    cli.run("recover", str(store), "--apply", "--yes").expect(0)
    kept = {path: data for path, data in bytes_of(store).items()
            if not path.startswith(".rmqctl") and f"{topic.name}/00/" not in path}
    assert kept == before
    cli.run("verify", str(store)).expect(0)


def test_names() -> None:
    assert [*map(parse_queue_id, ("0", "7", "2147483647"))] == [0, 7, 2147483647]
    for name in ("", "00", "09", "-1", "+1", "x", "٣", "2147483648", "1" * 5000):
        assert parse_queue_id(name) is None
