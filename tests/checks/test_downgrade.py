"""What an older release does not read of a newer one's store, counted."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from rmqctl.checks.preflight.around import StartEnvironment
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.checks.preflight.types import Prediction
from rmqctl.store import Store
from rmqctl.store.queue.compaction import CompactionQueue
from tests.conftest import GoldenFolder, Runner
from tests.support import popped, tiny
from tests.support.config_tables import TOPICS, put, topic_table
from tests.support.holder import held
from tests.track_record.queueing import without_expired_rows

CONFIG = {"topics": 17, "groups": 10, "offsets": 8}


def ask(root: Path, release: str) -> Prediction:
    with Store.open(root) as store:
        return preflight(store, release,
                         machine=StartEnvironment(1_795_240_000_000, no_disk="not asked"))


def losses(prediction: Prediction) -> dict[str, int | None]:
    return {loss.what: loss.count for loss in prediction.other_losses}


@pytest.mark.parametrize("name", ["basic", "batch", "batchcq", "delay", "ipv6", "lmq", "multipath",
                                  "transaction", "tiered", "compaction"])
@pytest.mark.parametrize("release", ["4.9.3", "5.0.0", "5.3.3"])
def test_what_an_older_release_reads_is_no_loss(golden: GoldenFolder, name: str,
                                                release: str) -> None:
    """The local log still has all messages of the tier and of the compaction log."""
    assert ask(golden(f"5.3.3/{name}/store"), release).other_losses == []


# -- configuration in RocksDB --------------------------------------------------------------------


@pytest.mark.parametrize(("name", "since"), [("rocksdb-config-v1", "5.1.4"),
                                             ("rocksdb-config-v2", "5.3.2")])
def test_configuration_in_rocksdb(golden: GoldenFolder, rmqctl: Runner, name: str,
                                  since: str) -> None:
    pytest.importorskip("rocksdict")
    root = golden(f"5.3.3/{name}/store")
    assert losses(ask(root, since)) == {}
    listed_losses = losses(ask(root, "4.9.3"))
    assert listed_losses.keys() == CONFIG.keys()
    assert all(listed_losses.values())
    answer = rmqctl("preflight", root, "--broker-version", "4.9.3", "-o", "json").expect(1).json()
    assert "config convert" in answer["next"][0]


def test_entries_that_the_json_files_have_are_no_loss(golden_copy: GoldenFolder) -> None:
    pytest.importorskip("rocksdict")
    root = golden_copy("5.3.3/rocksdb-config-v1/store")
    before = losses(ask(root, "4.9.3"))
    assert before == CONFIG
    with Store.open(root) as store:
        value = store.config.parts["topics.json"].value
        assert value is not None
        topics = dict(list(value["topicConfigTable"].items())[:5])
    (root / "config/topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    assert losses(ask(root, "4.9.3")) == {**before, "topics": CONFIG["topics"] - 5}


@pytest.mark.parametrize("name", ["5.3.3/timer/store", "5.3.3/rocksdb-config-v1/store"])
def test_doctor_says_what_to_do(golden: GoldenFolder, rmqctl: Runner, name: str) -> None:
    """A command that changes something, or what to do by hand."""
    pytest.importorskip("rocksdict")
    answer = rmqctl("doctor", golden(name), "--broker-version", "4.9.3", "-o", "json").json()
    assert [step for step in answer["steps"] if step["effect"] != "read-only"] or answer["remains"]
    is_json = "timer" in name
    assert bool(answer["remains"]) is is_json
    assert any(" config convert " in command for command in answer["next"]) is not is_json


# -- messages that are not in the commitlog ------------------------------------------------------


def test_messages_of_the_compaction_log_alone(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    root = golden_copy("5.3.3/compaction/store")
    table = topic_table({"TP_user_Topic": 2, "TP_audit_Event0": 2}, five=True)
    table["topicConfigTable"]["TP_user_Topic"]["attributes"] = {"cleanup.policy": "COMPACTION"}
    put(root, TOPICS, table)
    for file in sorted((root / "commitlog").iterdir())[:4]:
        file.unlink()
    alone = 0
    with Store.open(root) as store:
        start = store.log.min_offset
    without_expired_rows(root, start)
    with Store.open(root) as store:
        for (topic, queue_id), queue in store.queues.by_key.items():
            kept = CompactionQueue.open(store, topic, queue_id)
            if kept is None:
                continue
            with kept:
                for units in kept.files:
                    for unit in units:
                        row = queue.unit(unit.msg_base_offset)
                        alone += row is None or row.physical_offset < start
    assert alone
    prediction = ask(root, "4.9.3")
    assert losses(prediction) == {"messages": alone}
    assert "compaction log" in prediction.other_losses[0].cause
    assert not prediction.harmless
    assert not prediction.recovers
    assert losses(ask(root, "5.1.0")) == {}
    rmqctl("preflight", root, "--broker-version", "4.9.3").expect(1)
    # Doctor names the command that saves them, and the command does.
    advised = rmqctl("doctor", root, "--broker-version", "4.9.3", "-o", "json").json()
    (step,) = (step for step in advised["next"] if step.startswith("rmqctl export "))
    words = shlex.split(step)[1:]
    words[-1] = str(root.parent / words[-1])
    rmqctl(*words)
    topic = words[words.index("--topic") + 1]
    saved = [json.loads(line) for line in Path(words[-1]).read_text().splitlines()]
    assert {message["topic"] for message in saved} == {topic}
    assert alone <= len(saved) < sum(1 for _ in rmqctl(
        "read", root, "--topic", topic, "-o", "jsonl").out.splitlines())
    assert " export " not in "".join(rmqctl("doctor", root, "-o", "json").json()["next"])
    # While a broker runs, only reading is advised.
    assert any(" --for 4.9.3" in command for command in advised["next"])
    with held(root):
        running = rmqctl("doctor", root, "--broker-version", "4.9.3", "-o", "json").json()
    assert {step["effect"] for step in running["steps"]} == {"read-only"}
    # Once the topic is none with compaction, no release reads its compaction log: that is shown.
    rmqctl("convert", root, "--for", "4.9.3", "--apply", "--yes")
    for release in ("4.9.3", "5.3.3"):
        after = rmqctl("doctor", root, "--broker-version", release)
        assert f"{alone} messages are only in the compaction log of" in " ".join(after.out.split())
        assert not {"export", "convert"} & set(after.out.split())


def test_messages_of_the_tier_alone(golden_copy: GoldenFolder) -> None:
    """Everything was uploaded: what the first 5 log files had is in the tier alone."""
    root = golden_copy("5.3.3/tiered/store")
    files = sorted((root / "commitlog").iterdir())
    with Store.open(root) as store:
        expired = sum(len(batch) for batch in store.log.walk(0, int(files[5].name)))
    for file in files[:5]:
        file.unlink()
    assert losses(ask(root, "4.9.3")) == losses(ask(root, "5.0.0")) == {"messages": expired}
    assert losses(ask(root, "5.1.0")) == {}


# -- POP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("acknowledged", "revived", "left"), [
    (0, -1, 3), (1, -1, 2), (3, -1, 0), (0, 0, 0)])
def test_messages_of_pop_that_nobody_acknowledged(tmp_path: Path, acknowledged: int, revived: int,
                                                  left: int) -> None:
    root = popped.build(tmp_path / "store", (*popped.ORDERS, popped.check_point(0), *(
        popped.ack(0, number) for number in range(acknowledged))), revived).root
    assert losses(ask(root, "4.9.3")) == ({"messages": left} if left else {})
    assert losses(ask(root, "5.3.3")) == {}


@pytest.mark.parametrize(("topic", "read", "left"), [
    ("%RETRY%billing_orders", None, 2), ("%RETRY%billing+orders", 1, 1),
    ("%RETRY%billing_orders", 2, 0), ("%RETRY%billing", None, 0), ("%RETRY%other_orders", None, 0)])
def test_retry_topics_of_pop(tmp_path: Path, topic: str, read: int | None, left: int) -> None:
    """A group has one for each of its topics; without POP it only reads its own."""
    root = tiny.build(tmp_path / "store", (*tiny.DEFAULT, *(
        tiny.Spec(topic, 0, b"again") for _ in range(2)))).root
    offsets = {"orders@billing": {"0": 2}} | (
        {} if read is None else {f"{topic}@billing": {"0": read}})
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    assert losses(ask(root, "4.9.3")) == ({"messages": left} if left else {})
    assert losses(ask(root, "5.3.3")) == {}


@pytest.mark.parametrize(("delivered", "left"), [(0, 2), (1, 2), (2, 0)])
def test_delayed_messages_after_one_for_a_long_topic(tmp_path: Path, delivered: int,
                                                     left: int) -> None:
    """4.9.3 tries it for ever: its engine delivered the first of the three, and no other."""
    long = "%RETRY%" + "audit-" * 21
    root = tiny.build(tmp_path / "store", (*tiny.DEFAULT, *(tiny.Spec(
        "SCHEDULE_TOPIC_XXXX", 2, b"delayed", {"REAL_TOPIC": topic, "REAL_QID": "0", "DELAY": "3"})
        for topic in ("orders", long, "orders"))), commitlog_file_size=2048).root
    (root / "config/subscriptionGroup.json").write_text(json.dumps({
        "subscriptionGroupTable": {long[7:]: {"groupName": long[7:]}}}))
    (root / "config/delayOffset.json").write_text(f'{{"offsetTable": {{"3": {delivered}}}}}')
    assert losses(ask(root, "4.9.3")) == ({"messages": left} if left else {})
    assert losses(ask(root, "5.3.3")) == {}


# -- static topics -------------------------------------------------------------------------------


@pytest.mark.parametrize(("release", "count"), [("4.9.3", 1), ("5.0.0", None)])
def test_static_topics_have_other_queues(golden_copy: GoldenFolder, release: str,
                                         count: int | None) -> None:
    root = golden_copy("5.3.3/basic/store")
    (root / "config").mkdir(exist_ok=True)
    hosted = {"bname": "a", "endOffset": -1, "gen": 0, "logicOffset": 0, "queueId": 0,
              "startOffset": 0, "timeOfEnd": -1, "timeOfStart": -1}
    (root / "config" / "topicQueueMapping.json").write_text(json.dumps({
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
        "topicQueueMappingInfoMap": {"TP_ship_Event2": {
            "bname": "a", "currIdMap": {"0": 0}, "dirty": False, "epoch": 1, "totalQueues": 1,
            "hostedQueues": {"0": [hosted]}, "scope": "__global__", "topic": "TP_ship_Event2"}}}))
    assert losses(ask(root, release)).get("topics") == count


# -- what to do about it -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "named"), [("v2topic", True), ("batchcq", True), ("timer", False),
                                             ("rocksdb-config-v1", True), ("basic", False)])
def test_a_downgrade_that_loses_something_names_convert(golden: GoldenFolder, name: str, *,
                                                        named: bool) -> None:
    """`convert` changes nothing for timed messages."""
    root = golden(f"5.3.3/{name}/store")
    assert any("convert STORE --for 4.9.3" in note for note in ask(root, "4.9.3").notes) is named
    assert not any("--for" in note for note in ask(root, "5.3.3").notes)


def test_a_downgrade_of_timed_messages(golden: GoldenFolder, rmqctl: Runner) -> None:
    """`timers list` shows what to send again; an older broker needs the path of the log."""
    root = golden("5.3.3/timer/store")
    answer = rmqctl("doctor", root, "--broker-version", "4.9.3", "-o", "json").json()
    assert f"rmqctl timers list {root}" in answer["next"]
    (remains,) = answer["remains"]
    assert "5.0.0 or later" in remains["why"]
    for command in ("doctor", "preflight"):
        text = rmqctl(command, root, "--broker-version", "4.9.3").out
        assert "set storePathCommitLog" in " ".join(text.split())
