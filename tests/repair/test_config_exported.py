"""``recover --from metadata.json``: topics and groups from ``mqadmin exportMetadata``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.test_lost import SIZES
from tests.repair.test_config_repair import CONFIG, DAMAGE, hurt, plan, read, store_of
from tests.support import snapshot
from tests.support.cli import run

TOPICS, GROUPS = "topics.json", "subscriptionGroup.json"


def topic(name: str, **more: Any) -> dict[str, Any]:
    return {"attributes": {}, "order": False, "perm": 4, "readQueueNums": 7, "topicName": name,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "writeQueueNums": 7, **more}


def group(name: str, **more: Any) -> dict[str, Any]:
    return {"brokerId": 0, "consumeEnable": True, "groupName": name, "retryMaxTimes": 3,
            "retryQueueNums": 1, **more}


def metadata(path: Path, **more: Any) -> Path:
    """As ``exportMetadata -c`` writes it; values of ``more`` in the place of its own."""
    value = {"topicConfigTable": {name: topic(name) for name in ("orders", "quiet")},
             "subscriptionGroupTable": {name: group(name) for name in ("billing", "idle")},
             "exportTime": 1_700_000_000_000, **more}
    path.write_text(json.dumps({key: key_text for key, key_text in value.items()
                                if key_text is not None}))
    return path


@pytest.mark.parametrize("how", DAMAGE)
def test_topics_and_groups_are_taken(tmp_path: Path, how: str) -> None:
    store, source = store_of(tmp_path), metadata(tmp_path / "metadata.json")
    for name in (TOPICS, GROUPS):
        if how == "torn":
            (store / "config" / name).write_bytes(b'{"dataVersion":{"counter":1},"to')
        else:
            hurt(store / "config" / name, how)
    wanted = ("--from", source)
    names = [store / "config" / name for name in (TOPICS, GROUPS)]
    before = [path.read_bytes() if path.exists() else None for path in names]
    with snapshot.assert_unchanged(store):
        planned = plan(store, *wanted)
    topics, groups = planned["actions"]
    assert (topics["target"], topics["action"]) == (f"config/{TOPICS}", "rebuild")
    assert topics["proof"]["exported"] == groups["proof"]["exported"] == str(source)
    assert topics["proof"]["exported_at"] == 1_700_000_000_000
    assert (topics["proof"]["of_export"], topics["to"]) == (2, 5)  # pays, %RETRY%, %DLQ% as well
    assert any("are sums over all masters" in note for note in planned["notes"])
    assert any("of %DLQ%lost, %RETRY%tired, pays: " in note for note in planned["notes"])
    plan(store, *wanted, "--apply")
    table = read(store, TOPICS)["topicConfigTable"]
    assert {name: (item["readQueueNums"], item["perm"]) for name, item in table.items()} == {
        "orders": (7, 4), "quiet": (7, 4), "pays": (4, 6), "%RETRY%tired": (1, 6),
        "%DLQ%lost": (1, 6)}
    table = read(store, GROUPS)["subscriptionGroupTable"]
    assert {name: item["retryMaxTimes"] for name, item in table.items()} == {
        "billing": 3, "idle": 3, "audit": 16, "lost": 16, "tired": 16}
    start = run("preflight", store, *SIZES, "-o", "json").expect(1).json()
    assert start["starts"]
    assert [loss["what"] for loss in start["losses"]] == ["offsets"]  # of groups that retry
    again = plan(store, *wanted)
    assert again["actions"] == []
    assert any("not needed" in note for note in again["notes"])
    run("undo", store, "--yes").expect(0)
    assert [path.read_bytes() if path.exists() else None for path in names] == before


def test_only_config_and_one_brokers_tables(tmp_path: Path) -> None:
    """``-b -t`` and ``-b -g`` write the wrappers that brokers send, with a data version."""
    store = store_of(tmp_path)
    (store / "config" / TOPICS).write_bytes(b"")
    (store / "config" / GROUPS).write_bytes(b"")
    path = metadata(tmp_path / "topic.json", subscriptionGroupTable=None, exportTime=None,
                    dataVersion={"counter": 9, "stateVersion": 0, "timestamp": 5})
    other = metadata(tmp_path / "g.json", topicConfigTable=None, exportTime=None,
                     forbiddenTable={})
    planned = plan(store, *CONFIG, "--from", path, "--from", other)
    assert [action["proof"]["exported"] for action in planned["actions"]] == [str(path), str(other)]
    assert not any("adds up" in note for note in planned["notes"])


def test_behind_a_break_without_a_backup(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    (store / "config" / TOPICS).write_bytes(
        b'{"topicConfigTable":{"orders":{"perm":6,"readQueueNums":5,"topicName":"orders",'
        b'"writeQueueNums":5},"pa')
    action, = plan(store, "--from", metadata(tmp_path / "m.json"), "--apply")["actions"]
    assert (action["action"], action["proof"]["of_export"]) == ("mend", 1)
    table = read(store, TOPICS)["topicConfigTable"]
    assert {name: item["readQueueNums"]
            for name, item in table.items()} == {"orders": 5, "quiet": 7}


def test_a_backup_tells_better(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    path = store / "config" / TOPICS
    (store / "config" / f"{TOPICS}.bak").write_bytes(path.read_bytes())
    path.write_bytes(b"")
    planned = plan(store, "--from", metadata(tmp_path / "m.json"))
    action, = planned["actions"]
    assert action["action"] == "restore"


def test_entries_that_no_broker_writes_are_left_out(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    (store / "config" / TOPICS).write_bytes(b"")
    source = metadata(tmp_path / "m.json", topicConfigTable={
        "orders": topic("orders"), "a": 5, "b": topic("c"), "d": topic("d", perm="x"),
        "e": topic("e", readQueueNums=1 << 40), "f": {"topicName": "f"}, "": topic(""),
        "g": topic("g", topicFilterType="BLOOM"), "pays": topic("pays", attributes={
            "queue.type": "BatchCQ"})})
    planned = plan(store, "--from", source, "--apply")
    assert any("7 invalid entries skipped" in note for note in planned["notes"])
    assert any("pays: skipped; its queues are of another kind" in note for note in planned["notes"])
    table = read(store, TOPICS)["topicConfigTable"]
    assert sorted(table) == ["%DLQ%lost", "%RETRY%tired", "orders", "pays"]
    assert "BatchCQ" not in json.dumps(table)


def test_what_is_no_source(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    (store / "config" / GROUPS).write_bytes(b"")
    whole = metadata(tmp_path / "m.json")
    torn, configs, elsewhere = (tmp_path / name for name in ("torn", "configs.json", "other.json"))
    torn.write_bytes(whole.read_bytes()[:-40])
    configs.write_text('{"brokerConfigs":{"broker-a":{"brokerRole":"SLAVE"}},"clusterScale":{}}')
    metadata(elsewhere, topicConfigTable={"theirs": topic("theirs")})
    with snapshot.assert_unchanged(store):
        assert "may be incomplete" in run("recover", store, *SIZES, "--from", torn).expect(2).err
        refused = run("recover", store, *SIZES, "--from", configs).expect(2)
        assert "exportMetadata" in refused.err
        refused = run("recover", store, *SIZES, "--from", elsewhere).expect(6)
        assert "none of the store's topics (orders, pays)" in refused.err
        run("recover", store, *SIZES, "--only", "commitlog", "--from", whole).expect(2)
        run("recover", store, *SIZES, *CONFIG, "--from", store_of(tmp_path / "t")).expect(2)
