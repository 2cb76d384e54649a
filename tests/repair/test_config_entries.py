"""`config merge` and `topic restore`: entries come over or back, and nothing else changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqctl.checks.verify.verify import Verification
from rmqctl.files.lock import StoreLock
from rmqctl.store import Store
from tests.conftest import GoldenFolder
from tests.support import snapshot
from tests.support.cli import run

BASIC = "5.3.3/basic/store"
JSON = ("-o", "json", "-qq")
APPLY = ("--apply", "--yes")


def topic(name: str, queues: int = 4, **more: Any) -> dict[str, Any]:
    return {"attributes": {}, "order": False, "perm": 6, "readQueueNums": queues,
            "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0,
            "writeQueueNums": queues, **more}


def group(name: str, **more: Any) -> dict[str, Any]:
    return {"groupName": name, "consumeEnable": True, "retryMaxTimes": 16, **more}


def config(folder: Path, topics: list[dict[str, Any]], groups: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    version = {"counter": 7, "stateVersion": 0, "timestamp": 1}
    (folder / "topics.json").write_text(json.dumps({
        "dataVersion": version,
        "topicConfigTable": {topic["topicName"]: topic for topic in topics}}))
    (folder / "subscriptionGroup.json").write_text(json.dumps({
        "dataVersion": version, "forbiddenTable": {},
        "subscriptionGroupTable": {group["groupName"]: group for group in groups}}))


def read(store: Path, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((store / "config" / name).read_text())
    return value


def names(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "consumequeue").iterdir())


@pytest.fixture
def store(golden_copy: GoldenFolder) -> Path:
    """A store that lacks a topic which has messages, and a group."""
    root = golden_copy(BASIC)
    config(root / "config", [topic(name) for name in names(root)[:2]], [group("g1")])
    (root / "config/consumerOffset.json").write_text(json.dumps(
        {"offsetTable": {f"{name}@g1": {"0": 1} for name in names(root)}}))
    return root


@pytest.fixture
def master(store: Path, tmp_path: Path) -> Path:
    """What the master of the same broker has."""
    root = tmp_path / "master"
    config(root / "config", [*(topic(name, 4 if number else 8)
                               for number, name in enumerate(names(store))),
                             topic("fresh", 3), topic("TBW102", 8), topic("rmq_sys_x")],
           [group("g1", retryMaxTimes=5), group("g2"), group("TOOLS_CONSUMER")])
    return root


def contents(root: Path) -> dict[str, bytes]:
    """What is in the files of a store, but for those of repairs and the lock."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*")
            if path.is_file() and ".rmqctl" not in path.parts and path.name != "lock"}


@contextmanager
def nothing_changed(root: Path) -> Iterator[None]:
    before = contents(root)
    yield
    assert contents(root) == before


def plan(*words: object) -> Any:
    return run(*words, *JSON).expect(0).json()


def test_what_is_missing_comes_over(store: Path, master: Path) -> None:
    lacks, before = names(store)[2], contents(store)
    words = ("config", "merge", store, "--from", master)
    with snapshot.assert_unchanged(store, master):
        planned = plan(*words)
    assert {(action["target"], action["to"]) for action in planned["actions"]} == {
        ("config/topics.json", lacks), ("config/topics.json", "fresh"),
        ("config/subscriptionGroup.json", "g2")}
    assert {(opened["name"], field) for opened in planned["differ"]
            for field in opened["fields"]} == {
                (names(store)[0], "readQueueNums"), (names(store)[0], "writeQueueNums"),
                ("g1", "retryMaxTimes")}
    assert any("readQueueNums 4, in the source 8" in note for note in planned["notes"])
    # The new entries come last, all others stay, and the data version goes on.
    run(*words, *APPLY).expect(0)
    after = read(store, "topics.json")
    assert list(after["topicConfigTable"]) == [*names(store)[:2], lacks, "fresh"]
    assert after["topicConfigTable"][names(store)[0]]["readQueueNums"] == 4
    assert after["dataVersion"]["counter"] == 8
    assert after["dataVersion"]["timestamp"] > 1
    assert read(store, "subscriptionGroup.json")["subscriptionGroupTable"].keys() == {"g1", "g2"}
    assert plan(*words)["actions"] == []
    with Store.open(store) as opened:
        assert not [finding for finding in Verification(opened).findings() if finding.is_trouble]
    run("preflight", store, "--disk-used", "ignore").expect(0)
    run("undo", store, "--yes").expect(0)
    assert contents(store) == before


def test_replace_takes_those_that_differ(store: Path, master: Path) -> None:
    words = ("config", "merge", store, "--from", master, "--replace")
    run(*words, *APPLY).expect(0)
    assert read(store, "topics.json")["topicConfigTable"][names(store)[0]]["readQueueNums"] == 8
    assert read(store, "subscriptionGroup.json")["subscriptionGroupTable"]["g1"][
        "retryMaxTimes"] == 5
    again = plan(*words)
    assert (again["actions"], again["differ"]) == ([], [])


def test_a_topic_with_fewer_queues_than_the_store_is_named(store: Path, master: Path) -> None:
    config(master / "config", [topic(names(store)[2], 1)], [])
    planned = plan("config", "merge", store, "--from", master)
    assert any("--read-queues 4" in note for note in planned["notes"])


def exported(master: Path, path: Path) -> Path:
    path.write_text(json.dumps({
        "topicConfigTable": read(master, "topics.json")["topicConfigTable"],
        "subscriptionGroupTable": read(master, "subscriptionGroup.json")[
            "subscriptionGroupTable"], "exportTime": 1_700_000_000_000}))
    return path


@pytest.mark.parametrize("form", ["store", "config", "folder", "file", "bak", "export"])
def test_all_kinds_of_sources(store: Path, master: Path, tmp_path: Path, form: str) -> None:
    sources: dict[str, Callable[[], Path]] = {
        "store": lambda: master, "config": lambda: master / "config",
        "folder": lambda: Path(shutil.copytree(master / "config", tmp_path / "saved")),
        "file": lambda: master / "config/topics.json",
        "bak": lambda: Path(shutil.copy(master / "config/topics.json",
                                        store / "config/topics.json.bak")),
        "export": lambda: exported(master, tmp_path / "metadata.json")}
    planned = plan("config", "merge", store, "--from", sources[form]())
    assert {"fresh", names(store)[2]} <= {action["to"] for action in planned["actions"]}
    assert ("g2" in {action["to"]
                     for action in planned["actions"]}) == (form not in ("file", "bak"))
    assert any("whole cluster" in note for note in planned["notes"]) == (form == "export")


@pytest.mark.parametrize(("text", "code", "what"), [
    ('{"topicConfigTable":{"a":{"perm":6,', 2, "@"),
    ('{"brokerConfigs":{}}', 2, "exportConfigs"),
    ('{"x":1}', 6, "no topics or groups found"),
    ("", 6, "no topics or groups found"),
])
def test_a_source_that_cannot_be_read(store: Path, tmp_path: Path, text: str, code: int,
                                      what: str) -> None:
    source = tmp_path / "given.json"
    source.write_text(text)
    with nothing_changed(store):
        assert what in run("config", "merge", store, "--from", source, *APPLY).expect(code).err


def test_a_damaged_copy_of_the_source(store: Path, master: Path) -> None:
    topics = master / "config/topics.json"
    shutil.copy(topics, f"{topics}.bak")
    topics.write_bytes(bytes(100))
    planned = plan("config", "merge", store, "--from", master)
    assert any("reading config/topics.json.bak instead" in note for note in planned["notes"])
    Path(f"{topics}.bak").write_bytes(b"{")
    assert "its backup cannot be read either" in run(
        "config", "merge", store, "--from", master).expect(6).err


def test_a_damaged_store_is_repaired_first(store: Path, master: Path) -> None:
    (store / "config/topics.json").write_bytes(b'{"topicConfigTable":')
    (store / "config/topics.json.bak").write_bytes(b"{")
    for words in (("config", "merge", store, "--from", master),
                  ("topic", "restore", store, names(store)[2])):
        with nothing_changed(store):
            assert "rmqctl recover" in run(*words, *APPLY).expect(6).err


def test_hostile_entries_are_left_out(store: Path, tmp_path: Path) -> None:
    source = tmp_path / "given.json"
    odd: dict[str, Any] = {name: topic(name) for name in ("../up", "a/b", "x\n", "y" * 256, "..")}
    odd |= {"other": topic("name"), "many": topic("many", 1 << 40), "text": "no object",
            "batch": topic("batch", perm="6"), "good": topic("good")}
    source.write_text(json.dumps({"topicConfigTable": odd, "forbiddenTable": {"g1": {"t": "x"}},
                                  "messageRequestModeMap": {"t": []}}))
    planned = plan("config", "merge", store, "--from", source)
    assert [action["to"] for action in planned["actions"]] == ["good"]
    assert any("11 invalid entries skipped" in note for note in planned["notes"])


def test_empty_tables_and_no_file(store: Path, master: Path, tmp_path: Path) -> None:
    config(tmp_path / "empty", [], [])
    assert plan("config", "merge", store, "--from", tmp_path / "empty")["actions"] == []
    for path in (store / "config").iterdir():
        path.unlink()
    before = contents(store)
    run("config", "merge", store, "--from", master, *APPLY).expect(0)
    assert read(store, "topics.json")["dataVersion"]["counter"] == 1
    assert len(read(store, "topics.json")["topicConfigTable"]) == 4
    run("undo", store, "--yes").expect(0)
    assert contents(store) == before


def test_modes_and_forbidden_topics(store: Path, master: Path) -> None:
    (master / "config/messageRequestMode.json").write_text(
        '{"messageRequestModeMap":{"orders":{"g1":{"mode":"POP","popShareQueueNum":1}}}}')
    groups = read(master, "subscriptionGroup.json") | {"forbiddenTable": {"g1": {"orders": 2}}}
    (master / "config/subscriptionGroup.json").write_text(json.dumps(groups))
    run("config", "merge", store, "--from", master, *APPLY).expect(0)
    assert read(store, "subscriptionGroup.json")["forbiddenTable"] == {"g1": {"orders": 2}}
    assert read(store, "messageRequestMode.json") == {"messageRequestModeMap": {
        "orders": {"g1": {"mode": "POP", "popShareQueueNum": 1}}}}


@pytest.mark.parametrize("form", ["v1", "v2"])
def test_configuration_in_rocksdb(golden_copy: GoldenFolder, master: Path, form: str) -> None:
    pytest.importorskip("rocksdict")
    root = golden_copy(f"5.3.3/rocksdb-config-{form}/store")
    before = contents(root)
    words = ("config", "merge", root, "--from", master)
    count = len(plan(*words)["actions"])
    run(*words, *APPLY).expect(0)
    assert count
    assert plan(*words)["actions"] == []
    with Store.open(root) as opened:
        assert not [finding for finding in Verification(opened).findings() if finding.is_trouble]
    run("undo", root, "--yes").expect(0)
    assert contents(root) == before
    # And as a source.
    assert plan("config", "merge", master, "--from", root)["actions"]


def test_a_held_and_a_read_only_store(store: Path, master: Path) -> None:
    for words in (("config", "merge", store, "--from", master),
                  ("topic", "restore", store, names(store)[2])):
        with StoreLock(str(store)), snapshot.assert_unchanged(store / "config"):
            run(*words, *APPLY).expect(4)


# -- topic restore --------------------------------------------------------------------------------


def test_a_topic_comes_back_from_its_messages(store: Path) -> None:
    lacks, before = names(store)[2], contents(store)
    words = ("topic", "restore", store, lacks)
    with snapshot.assert_unchanged(store):
        planned = plan(*words)
    assert planned["actions"][0]["proof"]["queues_seen"] == 4
    assert any("perm" in note and "unknown" in note for note in planned["notes"])
    run(*words, *APPLY).expect(0)
    assert read(store, "topics.json")["topicConfigTable"][lacks] == topic(lacks)
    assert plan(*words)["actions"] == []
    run("preflight", store, "--disk-used", "ignore").expect(0)
    run("undo", store, "--yes").expect(0)
    assert contents(store) == before


def test_the_backup_comes_first(store: Path) -> None:
    lacks = names(store)[2]
    (store / "config/topics.json.bak").write_text(json.dumps(
        {"topicConfigTable": {lacks: topic(lacks, 4, perm=4, order=True)}}))
    run("topic", "restore", store, lacks, *APPLY).expect(0)
    assert read(store, "topics.json")["topicConfigTable"][lacks] == topic(
        lacks, 4, perm=4, order=True)


def test_without_consume_queues(store: Path) -> None:
    lacks = names(store)[2]
    shutil.rmtree(store / "consumequeue" / lacks)
    planned = plan("topic", "restore", store, lacks)
    assert planned["actions"][0]["proof"]["queues_seen"] == 4
    assert any("no consume queues" in note for note in planned["notes"])
    run("topic", "restore", store, lacks, *APPLY).expect(0)
    run("recover", store, *APPLY).expect(0)
    run("verify", store).expect(0)


@pytest.mark.parametrize(("name", "which", "queues", "attributes"), [
    ("transaction", "TP_pay_Topic", 4, {"message.type": "MIXED"}),
    ("delay", "TP_mail_Topic", 4, {"message.type": "MIXED"}),  # some wait for the last queue
    ("batchcq", "TP_pay_Topic", 4, {"queue.type": "BatchCQ"}),
    ("compaction", "TP_user_Topic", 2, {"cleanup.policy": "COMPACTION"}),
])
def test_the_kind_of_queues_and_messages(golden_copy: GoldenFolder, name: str, which: str,
                                         queues: int, attributes: dict[str, str]) -> None:
    root = golden_copy(f"5.3.3/{name}/store")
    config(root / "config", [], [])
    run("topic", "restore", root, which, *APPLY).expect(0)
    entry = read(root, "topics.json")["topicConfigTable"][which]
    assert (entry["attributes"], entry["readQueueNums"]) == (attributes, queues)


@pytest.mark.parametrize(("properties", "kind"), [
    (["--property", "__SHARDINGKEY=k"], "FIFO"), (["--property", "TIMER_DELIVER_MS=1"], "DELAY"),
    ([], None)])
def test_the_type_of_all_messages(tmp_path: Path, properties: list[str],
                                  kind: str | None) -> None:
    root = tmp_path / "store"
    run("init", root, "--commitlog-file-size", "64KiB", "--index-slots", "8", "--index-max",
        "32").expect(0)
    run("write", root, "--topic", "orders", "--body", "b", "--auto-create-topic",
        *properties).expect(0)
    for path in (root / "config").glob("topics.json*"):
        path.unlink()
    run("topic", "restore", root, "orders", *APPLY).expect(0)
    entry = read(root, "topics.json")["topicConfigTable"]["orders"]
    assert entry["attributes"].get("message.type") == kind


@pytest.mark.parametrize(("name", "code", "what"), [
    ("nobody", 6, "cannot restore topic"), ("a/b", 6, "characters"),
    ("rmq_sys_x", 6, "system topic"), (" ", 6, "blank")])
def test_what_is_no_topic_to_restore(store: Path, name: str, code: int, what: str) -> None:
    with nothing_changed(store):
        assert what in run("topic", "restore", store, name, *APPLY).expect(code).err
