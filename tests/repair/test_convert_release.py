"""`convert --for`: an older broker reads all that it can, and what is lost by that is listed.

The conversions of all golden sets were loaded by the store of 4.9.3 itself: each queue had the same
bounds and gave the same messages, and fastjson wrote the files of config/ again as they were.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.broker.versions import RELEASES, is_from, version_of
from rmqctl.formats.config import config_json
from rmqctl.formats.local import batch_consume_queue, sysflag
from rmqctl.formats.local.message import MAGIC_V1, Record, decode
from rmqctl.repair.convert import release as release_module
from rmqctl.repair.convert.config_fields import fit_config
from rmqctl.repair.plan import Changes, Replace
from rmqctl.store import Store
from rmqctl.store.features import (
    BATCH_QUEUES,
    FEATURES,
    LONG_TOPICS,
    PROPERTY_CRC,
    ROCKSDB_QUEUES,
    TIMER,
)
from rmqctl.store.layout import DATABASE_FILE
from tests.conftest import GoldenFolder
from tests.repair.accidents import kills_of
from tests.support import popped, snapshot, tiny
from tests.support.cli import run
from tests.support.tiny import DEFAULT, Spec

OLD = "4.9.3"
LONG = "%RETRY%" + "audit-" * 21
"""A topic of 133 characters."""
CONFIG = ("--for", OLD, "-o", "json")


def plan(root: Path, *more: object, code: int = 0) -> Any:
    return run("convert", root, *CONFIG, *more).expect(code).json()


def start(root: Path, release: str = OLD) -> Any:
    """What a broker of the release would do."""
    return run("preflight", root, "--broker-version", release, "--disk-used", "0.4", "-o",
               "json").json()


def records(root: Path) -> list[Record]:
    with Store.open(root) as store:
        return [decode(batch.bytes_at(row)) for batch in store.log.walk(whole=True)
                for row in range(len(batch))]


def rows(root: Path) -> dict[tuple[str, int], list[Any]]:
    with Store.open(root) as store:
        return {key: queue.units(queue.first_index, queue.disk_end - queue.first_index).tolist()
                for key, queue in store.queues.by_key.items() if queue.exists}


def lost(value: Any) -> dict[tuple[str, str | None], int]:
    return {(row["what"], row["topic"]): row["count"] for row in value["not_converted"]
            if row["lost"]}


@pytest.mark.parametrize("feature", [TIMER, BATCH_QUEUES, LONG_TOPICS, ROCKSDB_QUEUES,
                                     PROPERTY_CRC])
def test_the_table_of_features_agrees_with_the_rules_of_releases(feature: str) -> None:
    since = FEATURES[feature].since
    assert [release for release in RELEASES if getattr(version_of(release), feature)] == [
        release for release in RELEASES if is_from(release, since)]


# -- what can be converted ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic", "appendcrc", "delay", "ipv6", "lmq", "multipath",
                                  "compaction", "controller", "rocksdb-double"])
def test_a_store_without_loss(golden: GoldenFolder, tmp_path: Path, name: str) -> None:
    """All but checkpoint and copies in RocksDB stays byte for byte; nothing is left to convert."""
    pytest.importorskip("rocksdict")
    root, new = golden(f"5.3.3/{name}/store"), tmp_path / "new"
    with snapshot.assert_unchanged(root):
        planned = plan(root, "--out", new)
    assert planned["not_converted"] == planned["messages_lost"] == []
    before, after = snapshot.take(root).entries, snapshot.take(new).entries
    gone = {path.split("/")[-1] for path in before.keys() - after.keys()}
    assert all(DATABASE_FILE.fullmatch(path) for path in gone - {"lock"})
    for path, entry in after.items():
        if path.split("/")[0] not in (".", ".rmqctl", "lock", "checkpoint"):
            assert (entry.content, entry.size) == (before[path].content, before[path].size)
    with Store.open(new) as store:
        assert not any((store.checkpoint or ())[3:])
    prediction = start(new)
    assert (prediction["starts"], prediction["messages_lost"], prediction["losses"]) == (True, 0,
                                                                                         [])
    assert run("verify", new, "-o", "json").expect(0).json()["findings"] == []
    assert plan(new)["actions"] == []


@pytest.mark.parametrize("name", ["basic", "batch", "delay", "lmq", "transaction", "multipath",
                                  "cqext"])
def test_a_store_of_that_release_stays_as_it_is(golden: GoldenFolder, name: str) -> None:
    root = golden(f"4.9.3/{name}/store")
    with snapshot.assert_unchanged(root):
        planned = plan(root)
    assert planned["actions"] == planned["not_converted"] == planned["settings_dropped"] == []


@pytest.mark.parametrize("name", ["rocksdb-config-v1", "rocksdb-config-v2"])
def test_queues_and_configuration_out_of_rocksdb(golden_copy: GoldenFolder, name: str) -> None:
    pytest.importorskip("rocksdict")
    root = golden_copy(f"5.3.3/{name}/store")
    sections = ("topics", "groups", "offsets")
    named = {section: config(root, section) for section in sections}
    queues = {key: units for key, units in rows(root).items() if units}
    assert any("mappedFileSizeConsumeQueue" in note for note in plan(root)["notes"]) is (
        name.endswith("v1"))  # whose queues are in RocksDB, which shows no size of files
    planned = plan(root, "--consumequeue-file-size", "2000", "--apply", "--yes")
    assert [(row["what"], row["lost"]) for row in planned["not_converted"]] == (
        [("offsets", False)] if name.endswith("v2") else [])  # of pull consumers
    assert rows(root) == queues
    assert {section: config(root, section) for section in sections} == named
    for path in (root / "config").glob("*.json"):
        assert not {b"stateVersion", b"attributes", b"groupRetryPolicy"} & set(
            path.read_bytes().replace(b'"', b" ").split())
    assert not [path for path in (root / "config").iterdir() if path.is_dir()]
    # Numbers of queues are bare, as that release writes them.
    assert b":{0:10,1:10" in (root / "config/consumerOffset.json").read_bytes()
    assert start(root)["losses"] == start(root, "5.3.3")["losses"]


@pytest.mark.parametrize(("release", "form"), [("5.3.2", "rocksdb-v2"), ("5.3.1", "rocksdb-v1"),
                                               ("5.1.4", "json")])
def test_configuration_goes_where_a_broker_with_these_queues_looks(
        golden_copy: GoldenFolder, release: str, form: str) -> None:
    """With queues in RocksDB it takes offsets from JSON files only in part."""
    pytest.importorskip("rocksdict")
    root = golden_copy("5.3.3/rocksdb-config-v1/store")
    run("config", "convert", root, "--to", "rocksdb-v2", "--apply", "--yes").expect(0)
    offsets = config(root, "offsets")
    run("convert", root, "--for", release, "--consumequeue-file-size", "2000", "--apply",
        "--yes").expect(0)
    layout = run("info", root, "-o", "json").json()["layout"]
    assert layout["config"] == form
    assert layout["consumequeue"] == ("file" if form == "json" else "rocksdb")
    assert config(root, "offsets") == offsets


def config(root: Path, section: str) -> list[Any]:
    """The rows without where they are from and what only newer brokers have."""
    answer = run("config", root, section, "-o", "json").json()
    return sorted(({key: row[key] for key in row if key in (
        "topic", "group", "queue_id", "offset", "read_queues", "write_queues", "perm",
        "retry_max_times")} for row in answer), key=json.dumps)


def test_a_dledger_log_stays_as_it_is(golden_copy: GoldenFolder) -> None:
    """Entries are those that a group agreed on: only what is beside them is converted."""
    root = golden_copy("5.3.3/dledger/store")
    (root / "config").mkdir(exist_ok=True)
    path = root / "config/topics.json"
    path.write_text(json.dumps({"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
                                "topicConfigTable": {}}))
    before = snapshot.take(root / "dledger-n0")
    plan(root, "--apply", "--yes")
    assert b"stateVersion" not in path.read_bytes()
    assert before.differences(snapshot.take(root / "dledger-n0")) == []


def test_messages_in_dledger_entries_are_not_left_out(
        golden_copy: GoldenFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_module, "MAGIC_V2", MAGIC_V1)  # each message is of a long topic
    stderr = run("convert", golden_copy("5.3.3/dledger/store"), *CONFIG).expect(6).err
    assert "--commitlog plain" in stderr


@pytest.mark.parametrize(("release", "kept"), [("5.1.4", True), ("5.1.3", True),
                                               ("5.1.0", False), ("4.9.8", False)])
def test_fields_go_by_release(tmp_path: Path, release: str, *, kept: bool) -> None:
    """Groups got ``subscriptionDataSet`` in 5.1.1; what has a usual value is no setting."""
    root = tiny.build(tmp_path / "store").root
    group = {"groupName": "g", "consumeEnable": True, "retryMaxTimes": 16}
    newer = {"consumeMessageOrderly": False, "subscriptionDataSet": [{"topic": "orders"}]}
    path = root / "config/subscriptionGroup.json"
    path.write_text(json.dumps({
        "dataVersion": {"counter": 2, "stateVersion": 0, "timestamp": 1},
        "forbiddenTable": {"g": {"orders": 1}},
        "subscriptionGroupTable": {"g": group | newer}}))
    changes = Changes()
    with Store.open(root) as store:
        dropped = fit_config(changes, store, release, (), None)  # type: ignore[arg-type]
    contents = {step.target: step.content for step in changes.steps if isinstance(step, Replace)}
    document = json.loads(contents.get("config/subscriptionGroup.json") or path.read_bytes())
    five = is_from(release, "5.0.0")
    entry = document["subscriptionGroupTable"]["g"]
    assert ("subscriptionDataSet" in entry) is kept
    assert ("consumeMessageOrderly" in entry) is five
    assert ("stateVersion" in document["dataVersion"]) is ("forbiddenTable" in document) is five
    assert {setting.field for setting in dropped} == ({"subscriptionDataSet"} if not kept else (
        set())) | ({"forbiddenTable"} if not five else set())
    assert entry.items() >= group.items()


# -- what cannot ----------------------------------------------------------------------------------


def long_topics(root: Path) -> Path:
    specs = [*DEFAULT]
    for number in range(3):
        specs.insert(2 * number + 1, Spec(LONG, 0, b"too long", {
            "UNIQ_KEY": f"0B{number}", "KEYS": "long", "TAGS": "A"}))
    result = tiny.build(root, specs, commitlog_file_size=2048).root
    for name, table in (("topics.json", "topicConfigTable"), ("consumerOffset.json",
                                                             "offsetTable")):
        path = result / "config" / name
        value = config_json.parse(path.read_bytes()).value
        value[table] |= {LONG: {"topicName": LONG}} if "topics" in name else {f"{LONG}@g": {"0": 2}}
        path.write_text(json.dumps(value))
    return result


def test_messages_of_long_topics_are_left_out(tmp_path: Path) -> None:
    """An older log ends at the first: in their place are records that no broker gives an entry."""
    root = long_topics(tmp_path / "store")
    before = records(root)
    assert start(root)["messages_lost"] == 10
    with snapshot.assert_unchanged(root):
        shown = plan(root, code=1)
    planned = plan(root, "--apply", "--yes", code=1)
    assert lost(shown) == lost(planned) == {("messages", LONG): 3}
    assert planned["not_converted"][0]["remedy"]
    after = records(root)
    for old, new in zip(before, after, strict=True):
        if old.topic != LONG.encode():
            assert new == old
            continue
        assert (new.magic, new.total_size, new.physical_offset, new.crc_ok) == (
            MAGIC_V1, old.total_size, old.physical_offset, True)
        assert sysflag.transaction_type(new.sys_flag) == "rollback"
        assert b"RMQCTL\1left-out" in new.properties
    # Nothing leads to them, and nothing else is said of their topic.
    assert LONG not in {topic for topic, _ in rows(root)}
    assert run("query", "key", root, "--topic", LONG, "--key", "long", "-o", "json").expect(
        1).json() == []
    assert not [path for path in (root / "config").glob("*.json")
                if LONG.encode() in path.read_bytes()]
    prediction = start(root)
    assert (prediction["messages_lost"], prediction["losses"],
            prediction["messages_already_lost"]) == (0, [], 3)
    assert [finding["category"] for finding in run("verify", root, "-o", "json").json()[
        "findings"]] == ["lost-in-repair"]
    # A broker that rebuilds all queues finds the same.
    with_queues = rows(root)
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)
    run("recover", root, "--only", "consumequeue,index", "--consumequeue", "file",
        "--consumequeue-file-size", "60", "--index-slots", "8", "--index-max", "32", "--apply",
        "--yes")
    assert rows(root) == with_queues


@pytest.mark.parametrize(("delivered", "count"), [(0, 1), (2, None)])
def test_a_delayed_message_for_a_long_topic_stops_no_others(tmp_path: Path, delivered: int,
                                                           count: int | None) -> None:
    """4.9.3 tries it for ever, and never comes to the next one of the level: the engine does so on
    such a store, and delivers both others once it is converted.
    """
    root = tiny.build(tmp_path / "store", (*DEFAULT, *(Spec(
        "SCHEDULE_TOPIC_XXXX", 2, b"delayed", {"UNIQ_KEY": f"0D{number}", "REAL_TOPIC": topic,
                                               "REAL_QID": "0", "DELAY": "3"})
        for number, topic in enumerate(("orders", LONG, "orders")))),
        commitlog_file_size=2048).root
    (root / "config/delayOffset.json").write_text(f'{{"offsetTable": {{"3": {delivered}}}}}')
    queues = rows(root)
    planned = plan(root, "--apply", "--yes", code=int(count is not None))
    assert lost(planned) == ({} if count is None else {("messages", LONG): count})
    assert rows(root) == queues
    record = next(record for record in records(root) if b"RMQCTL" in record.properties)
    parts = dict(part.split(b"\1") for part in record.properties.split(b"\2") if part)
    assert (record.queue_offset, parts[b"RMQCTL"], parts[b"REAL_QID"]) == (1, b"left-out", b"0")
    assert parts[b"REAL_TOPIC"] == b"RMQ_SYS_TRANS_HALF_TOPIC"  # a broker discards it
    assert [loss for loss in start(root)["losses"] if loss["what"] != "delayed"] == []


def test_more_than_a_plan_holds_is_refused(tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    root = long_topics(tmp_path / "store")
    monkeypatch.setattr(release_module, "MAX_LEFT_OUT", 3)
    plan(root, code=1)
    monkeypatch.setattr(release_module, "MAX_LEFT_OUT", 2)
    assert "at most 2 records" in run("convert", root, *CONFIG).expect(6).err


def test_inner_batches_are_left_out(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/batchcq/store")
    (root / "config").mkdir(exist_ok=True)
    for name, table in (("topics.json", {"topicConfigTable": {"TP_pay_Topic": {
            "topicName": "TP_pay_Topic", "attributes": {"queue.type": "BatchCQ"}}}}),
            ("consumerOffset.json", {"offsetTable": {"TP_pay_Topic@g": {"0": 40}}})):
        (root / "config" / name).write_text(json.dumps(table))
    planned = plan(root, "--apply", "--yes", code=1)
    assert planned["settings_dropped"] == [{
        "file": "config/topics.json", "name": "TP_pay_Topic", "field": "attributes",
        "value": {"queue.type": "BatchCQ"}}]
    assert b"TP_pay_Topic" in (root / "config/topics.json").read_bytes()  # producers go on
    assert b"TP_pay_Topic" not in (root / "config/consumerOffset.json").read_bytes()
    assert lost(planned) == {("messages", "TP_pay_Topic"): 233, ("messages", "TP_user_Event5"): 215}
    assert planned["messages_lost_total"] == 448
    assert not (root / "batchconsumequeue").exists()
    assert {topic for topic, _ in rows(root)} == {"TP_geo_evt-x"}
    assert not any(record.sys_flag & sysflag.INNER_BATCH for record in records(root))
    prediction = start(root)
    assert (prediction["messages_lost"], prediction["losses"]) == (0, [])
    assert lost(run("convert", root, "--for", "5.0.0", "-o", "json").expect(0).json()) == {}


@pytest.mark.parametrize("first", [0, 7])
def test_a_batch_queue_without_batches_becomes_a_plain_one(tmp_path: Path, first: int) -> None:
    """Rows of one message each have the same place in a plain queue."""
    root = tiny.build(tmp_path / "store").root
    wanted = rows(root)["orders", 0]
    shutil.rmtree(root / "consumequeue/orders/0")
    units = np.zeros(len(wanted), batch_consume_queue.UNIT.dtype())
    for row, (physical, size, tags) in zip(units, wanted, strict=True):
        row["physical_offset"], row["size"], row["tags_code"] = physical, size, tags
    units["msg_base_offset"] = first + np.arange(len(units))
    units["batch_size"], units["compacted_offset"] = 1, -1
    folder = root / "batchconsumequeue/orders/0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(units.tobytes().ljust(46 * 30, b"\0"))
    planned = plan(root, "--consumequeue-file-size", "60", "--apply", "--yes")
    assert lost(planned) == {}
    with Store.open(root) as store:
        queue = store.queues.by_key["orders", 0]
        assert queue.disk_end == first + len(wanted)
        assert queue.units(first, len(wanted)).tolist() == wanted
    run("undo", root, planned["id"], "--yes").expect(0)
    assert folder.exists()


def test_timed_messages_are_listed(golden: GoldenFolder) -> None:
    planned = plan(golden("5.3.3/timer/store"), code=1)
    assert lost(planned) == {("timers", "TP_ship_Topic"): 17, ("timers", "TP_user_Event8"): 30}
    assert "5.0.0" in planned["not_converted"][0]["remedy"]
    assert planned["actions"] == []  # a later broker goes on with them
    assert "timerlog" in planned["notes"][0]


def test_messages_of_pop_are_listed(tmp_path: Path) -> None:
    root = popped.build(tmp_path / "store", (*popped.ORDERS, popped.check_point(0)), -1).root
    planned = plan(root, code=1)
    assert lost(planned) == {("messages", None): 3}
    assert "pop release" in planned["not_converted"][0]["remedy"]


def test_messages_of_the_tier_alone_are_listed(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/tiered/store")
    for file in sorted((root / "commitlog").iterdir())[:5]:
        file.unlink()
    planned = plan(root, code=1)
    assert [row["consequence"] for row in planned["not_converted"]] == [
        "a 4.9.3 broker does not read tiered storage"]


def test_compression_that_older_clients_cannot_read(tmp_path: Path) -> None:
    """It stays: which clients read the topic is not known, so nothing is lost."""
    root = tiny.build(tmp_path / "store", (*DEFAULT, Spec(
        "orders", 0, b"lz4", {"UNIQ_KEY": "0C"}, sys_flag=0x101))).root
    planned = plan(root)
    assert [(row["count"], row["lost"]) for row in planned["not_converted"]] == [(1, False)]
    assert run("convert", root, "--for", "4.9.4", "-o", "json").expect(0).json()[
        "not_converted"] == []


# -- around it ------------------------------------------------------------------------------------


def test_undo_brings_everything_back(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/batchcq/store")
    kept = snapshot.copy_tree(root, root.parent / "kept")
    planned = plan(root, "--apply", "--yes", code=1)
    run("undo", root, planned["id"], "--yes").expect(0)
    shutil.rmtree(root / ".rmqctl")
    differences = snapshot.take(kept, inodes=False).differences(snapshot.take(root, inodes=False))
    assert [line for line in differences if not line.startswith("changed: . ")] == []


@pytest.mark.long
def test_killed_in_between(tmp_path: Path) -> None:
    def command(root: Path) -> None:
        run("convert", root, *CONFIG, "--apply", "--yes").expect(0, 1)

    assert kills_of(command, long_topics, tmp_path, most=8) == 8


def test_a_folder_that_keeps_an_older_broker_from_starting_goes(tmp_path: Path) -> None:
    root = tiny.build(tmp_path / "store").root
    (root / "commitlog/old").mkdir()
    assert start(root, "5.3.3")["starts"]
    assert not start(root)["starts"]
    plan(root, "--apply", "--yes")
    assert start(root)["starts"]
    assert not (root / "commitlog/old").exists()


def test_what_is_refused(golden_copy: GoldenFolder, tmp_path: Path) -> None:
    root = golden_copy("5.3.3/basic/store")
    assert "4.9.2" in run("convert", root, "--for", "4.9.1").expect(2).err
    run("convert", root, "--for", "4.7.x").expect(2)
    run("convert", root, "--for", OLD, "--consumequeue", "file").expect(2)
    (root / "config").mkdir(exist_ok=True)
    (root / "config/topics.json").write_text("{")
    assert "recover" in run("convert", root, *CONFIG).expect(6).err
    (root / "config/topics.json").unlink()
    log = root / "commitlog/00000000000000000000"
    log.write_bytes(b"\xff" * 60 + log.read_bytes()[60:])
    out = run("convert", root, *CONFIG, "--out", tmp_path / "new").expect(6)
    assert "damaged" in out.err
    assert "unconverted copy" in out.err


@pytest.mark.parametrize("words", [("--for", OLD), ("--consumequeue", "rocksdb")], ids=" ".join)
def test_a_damaged_end_is_refused_under_the_lock_too(words: tuple[str, str],
                                                     golden_copy: GoldenFolder) -> None:
    pytest.importorskip("rocksdict")
    root = golden_copy("5.3.3/crash-trunc-garbage/before")
    for more in ((), ("--apply", "--yes")):
        assert "damaged" in run("convert", root, *words, *more).expect(6).err


def test_open_transactions_of_long_topics_are_listed(tmp_path: Path) -> None:
    halves = [Spec("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"half", {
        "UNIQ_KEY": f"A{number}", "REAL_TOPIC": topic, "REAL_QID": "0", "TRAN_MSG": "true",
        "PGROUP": "g"}) for number, topic in enumerate((LONG, "orders", LONG))]
    root = Path(tiny.build(tmp_path / "store", (*DEFAULT, *halves)).root)
    topics = config_json.parse((root / "config/topics.json").read_bytes()).value
    topics["topicConfigTable"][LONG] = {"topicName": LONG}
    (root / "config/topics.json").write_text(json.dumps(topics))
    planned = plan(root, code=1)
    assert lost(planned) == {("messages", None): 2}
    assert "transactions list" in planned["not_converted"][0]["remedy"]
    assert lost(run("convert", root, "--for", "5.1.0", "-o", "json").expect(0).json()) == {}
