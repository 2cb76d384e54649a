"""Topics, groups and offsets in RocksDB: what the engine's brokers answered, by every way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqctl.store.config.config import load_one
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.support.cli import run
from tests.support.snapshot import assert_unchanged

SETS = ["rocksdb-config-v1", "rocksdb-config-v1-kill", "rocksdb-config-v2",
        "rocksdb-config-v2-kill", "rocksdb-import"]


def expected(store: Path) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((store.parent / "expect.json").read_text())
    return answers


def committed(answers: dict[str, Any]) -> dict[tuple[str, str, int], int]:
    """What was committed, by group, topic and queue; 0 and "N/A" stand for nothing."""
    progress = answers["mqadmin"]["consumerProgress"]
    return {(group, row[0], int(row[2])): int(row[4]) for group, rows in progress.items()
            for row in rows if row[-1] != "N/A"}


@pytest.mark.parametrize("name", SETS)
def test_configuration_is_the_engines(name: str, golden: GoldenFolder) -> None:
    store = golden(f"5.3.3/{name}/store")
    answers = expected(store)
    with assert_unchanged(store):
        topics, groups, offsets = (run("config", store, section, "-o", "json").expect(0).json()
                                   for section in ("topics", "groups", "offsets"))
    names = {row["topic"] for row in topics}
    # v2 keeps what was made by hand alone; the others a broker has of itself at each start.
    assert set(answers["topics"]) <= names <= set(answers["mqadminAfterRestart"]["topicList"])
    if "v2" in name:
        assert names == set(answers["topics"])
        assert {row["group"] for row in groups} == {"G_TP_mail"}
    else:
        assert names == set(answers["mqadmin"]["topicList"])
        assert set(answers["groups"]) <= {row["group"] for row in groups}
    assert {(row["group"], row["topic"], row["queue_id"]): row["offset"]
            for row in offsets} == committed(answers)
    assert {row["source"] for row in offsets} == {
        "config/rdb" if "v2" in name else "config/consumerOffsets"}


@pytest.mark.parametrize("name", ["rocksdb-config-v1", "rocksdb-config-v2",
                                  "rocksdb-config-v2-kill", "rocksdb-import"])
def test_progress_is_the_engines(name: str, golden: GoldenFolder) -> None:
    """Groups that are not configured have positions all the same, in v2."""
    store = golden(f"5.3.3/{name}/store")
    rows = run("offsets", store, "-o", "json").expect(0).json()
    assert {(row["group"], row["topic"], row["queue_id"]): (row["max_offset"],
                                                            row["consumer_offset"])
            for row in rows["queues"] if row["group"] not in (None, "(delay)")} == {
        (group, row[0], int(row[2])): (int(row[3]), int(row[4]))
        for group, progress in expected(store)["mqadmin"]["consumerProgress"].items()
        for row in progress}


def test_a_topic_that_v2_does_not_keep(golden_copy: GoldenFolder) -> None:
    """It is counted by its queues, as a broker knows it again with the first message."""
    store = golden_copy("5.3.3/rocksdb-config-v2/store")
    (store / "consumequeue/TP_geo").rename(store / "consumequeue/TP_auto")
    rows = run("offsets", store, "--group", "G_TP_mail", "--topic", "TP_auto",
               "-o", "json").expect(0).json()["queues"]
    assert [(row["queue_id"], row["diff"]) for row in rows] == [(0, 8), (1, 8), (2, 7), (3, 7)]
    categories = {finding["category"]
                  for finding in run("verify", store, "--only", "consumequeue", "-o",
                                     "json").json()["findings"]}
    assert categories  # rows of another topic, and not: of a deleted one


def test_values_have_the_form_of_the_files(golden: GoldenFolder) -> None:
    with Store.open(golden("5.3.3/rocksdb-config-v1/store")) as first:
        topics, groups = (load_one(first, name) for name in ("topics.json",
                                                             "subscriptionGroup.json"))
        assert topics.data_version == {"counter": 5, "timestamp": 1795322595412,
                                       "state_version": 0}
        assert (topics.main.path, topics.fell_back, topics.damaged) == (
            "config/topics", False, False)
        assert groups.value["forbiddenTable"] == {}
    with Store.open(golden("5.3.3/rocksdb-config-v2/store")) as second:
        offsets = load_one(second, "consumerOffset.json")
        assert offsets.data_version == {"counter": 48, "timestamp": 0x1A20194B34A,
                                        "state_version": 0}
        assert offsets.value["pullOffsetTable"] == offsets.value["offsetTable"]


def test_the_files_of_before(golden: GoldenFolder) -> None:
    store = golden("5.3.3/rocksdb-import/store")
    rows = {row["file"]: row["state"]
            for row in run("config", store, "-o", "json").expect(0).json()}
    assert [rows[f"config/{name}"] for name in ("topics", "subscriptionGroups", "consumerOffsets",
                                                "topics.json", "delayOffset.json")] == [
        "ok", "ok", "ok", "out of date", "ok"]
    stderr = run("config", store, "topics").expect(0).err
    assert "config/topics.json: a broker reads its RocksDB configuration instead" in stderr


def test_recover_leaves_it_alone(golden_copy: GoldenFolder) -> None:
    """A damaged log over files of rows, with the configuration in RocksDB."""
    store = golden_copy("5.3.3/rocksdb-config-v2-kill/store")
    before = {path.name: path.read_bytes() for path in (store / "config/rdb").iterdir()}
    with (store / "commitlog/00000000000000000000").open("r+b") as log:
        log.seek(5100)
        log.write(b"XXXX")
    findings = run("verify", store, "-o", "json").expect(1).json()["findings"]
    assert "recover" in next(finding["next"] for finding in findings
                             if finding["category"] == "body-crc")
    planned = run("recover", store, "--apply", "--yes", "-o", "json").expect(1)
    assert "the configuration is left as it is" in planned.err
    assert {path.name: path.read_bytes() for path in (store / "config/rdb").iterdir()} == before
    run("verify", store).expect(0)
    run("truncate", store, "--to-phy", "4997", "--apply", "--yes").expect(0)
    assert {path.name: path.read_bytes() for path in (store / "config/rdb").iterdir()} == before
