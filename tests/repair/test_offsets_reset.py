"""``offsets reset``: positions of a group set anew, offline; everything else in the file stays."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqctl.formats.config import config_json
from tests.adversary.test_lost import SIZES, filled
from tests.adversary.writer import Writer
from tests.conftest import GoldenFolder
from tests.support import snapshot
from tests.support.cli import Result, run
from tests.support.holder import held

JSON = ("-o", "json")


def store_of(tmp_path: Path, writer: Writer | None = None) -> Path:
    index_writer = writer or filled()
    index_writer.offsets["orders", "billing"] = {0: 5, 1: 5, 3: 99}
    index_writer.offsets["%RETRY%billing", "billing"] = {0: 2}
    index_writer.offsets["pays", "audit"] = {0: 7}
    return index_writer.write(tmp_path / "s")


def reset(store: Path, *words: str) -> Result:
    return run("offsets", "reset", store, "--group", "billing", *words)


def table(store: Path, name: str = "consumerOffset.json") -> Any:
    return config_json.parse((store / "config" / name).read_bytes()).value


@pytest.mark.parametrize("to", ["earliest", "latest"])
def test_to_an_end_and_back(tmp_path: Path, to: str) -> None:
    writer = filled()
    store = store_of(tmp_path, writer)
    before = table(store)
    with snapshot.assert_unchanged(store):
        plan = reset(store, "--to", to, *JSON).expect(0).json()
    ends = {str(queue): 0 if to == "earliest" else writer.next_offset["orders", queue]
            for queue in range(4)}
    assert {str(queue["queue_id"]): queue["to"] for queue in plan["queues"]} == ends
    assert [queue["from"] for queue in plan["queues"]] == [5, 5, None, 99]
    assert all(action["proof"]["group"] == "billing" for action in plan["actions"])
    done = reset(store, "--to", to, "--apply", *JSON).expect(0).json()
    assert done["applied"]
    after = table(store)
    assert after["offsetTable"]["orders@billing"] == ends
    assert {key: entry for key, entry in after["offsetTable"].items() if key != "orders@billing"
            } == {key: entry for key, entry in before["offsetTable"].items()
                  if key != "orders@billing"}
    assert list(after) == list(before)
    assert after["dataVersion"]["counter"] == before["dataVersion"]["counter"] + 1
    # Queue ids stay JSON texts, as the file had them.
    assert re.search(rb'{\s*"0":', (store / "config" / "consumerOffset.json").read_bytes())
    # A second run has nothing to do; impact has nothing to say; undo brings the file back.
    assert reset(store, "--to", to, *JSON).expect(0).json()["actions"] == []
    assert run("impact", store, *SIZES, "--group", "billing", *JSON).json()["queues"][-1][
        "beyond_end"] == 0
    run("undo", store, "--yes").expect(0)
    assert table(store) == before


def test_by_time_it_is_the_first_message_stored_then_or_later(tmp_path: Path) -> None:
    writer = filled()
    store = store_of(tmp_path, writer)
    when = writer.puts[61].time
    answer = reset(store, "--time", str(when), "--topic", "orders", *JSON).expect(0).json()
    for queue in answer["queues"]:
        later = [put for put in writer.puts if (put.topic, put.queue_id) == (
            "orders", queue["queue_id"]) and put.time >= when]
        assert (queue["to"], queue["store_timestamp"]) == (later[0].queue_offset, later[0].time)
    late = reset(store, "--time", str(writer.puts[-1].time + 1), "--topic", "orders", "--queue",
                 "1", *JSON).expect(0).json()
    assert [(queue["queue_id"], queue["to"]) for queue in late["queues"]] == [
        (1, writer.next_offset["orders", 1])]


@pytest.mark.parametrize("number", range(4))
def test_a_time_beside_damaged_messages(tmp_path: Path, seed: int, number: int) -> None:
    """A broker's own search answers 0 where it meets one; here all before the answer is older."""
    random = Random(seed + number)
    writer = filled()
    lost = set(random.sample(range(len(writer.puts)), random.choice([1, 12, 60])))
    for message in lost:
        writer.patch(writer.puts[message].physical, bytes(80))
    store = store_of(tmp_path, writer)
    for put in random.sample(writer.puts, 6):
        when = put.time + random.choice([-1, 0, 1])
        plan = reset(store, "--time", str(when), "--topic", "orders", "--view", "disk",
                     *JSON).expect(0).json()
        for queue in plan["queues"]:
            left = [(other.queue_offset, other.time) for place, other in enumerate(writer.puts)
                    if (other.topic, other.queue_id) == ("orders", queue["queue_id"])
                    and place not in lost]
            older = [offset for offset, time in left if time < when]
            later = [offset for offset, time in left if time >= when]
            assert max(older, default=-1) < queue["to"]
            assert queue["to"] <= (later[0] if later else queue["max_offset"])


def test_a_time_behind_the_damage_that_ends_the_log(tmp_path: Path) -> None:
    writer = filled()
    writer.flip(writer.puts[60].body_at)
    store = store_of(tmp_path, writer)
    plan = reset(store, "--time", str(writer.puts[100].time), "--topic", "orders",
                 *JSON).expect(0).json()
    assert any("Run `rmqctl recover` first" in note for note in plan["notes"])
    assert all("that startup keeps" in action["reason"] for action in plan["actions"])
    run("recover", store, *SIZES, "--apply", "--yes").expect(1)
    plan = reset(store, "--time", str(writer.puts[100].time), "--topic", "orders",
                 *JSON).expect(0).json()
    assert not any("do that first" in note for note in plan["notes"])
    assert {queue["to"] for queue in plan["queues"]} == {
        next(put.queue_offset for put in writer.puts[100:] if (put.topic, put.queue_id) == (
            "orders", queue_id)) for queue_id in range(4)}


def test_a_large_log_ends_where_a_broker_ends_it(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqctl.broker.view.SMALL_LOG", 100)
    test_where_a_broker_would_end_the_log(tmp_path)


def test_a_consumequeue_that_may_be_lost(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    shutil.rmtree(store / "consumequeue" / "orders" / "1")
    plan = reset(store, "--to", "latest", *JSON).expect(0).json()
    assert "orders-1 has no messages, although billing had an offset there" in plan["notes"][0]
    run("recover", store, *SIZES, "--apply", "--yes")
    plan = reset(store, "--to", "latest", *JSON).expect(0).json()
    assert not any("has no messages" in note for note in plan["notes"])


def test_the_retry_topics_of_pop_only_by_name(tmp_path: Path) -> None:
    writer = filled()
    for topic in ("%RETRY%billing_orders", "%RETRY%billing+orders"):
        writer.put(topic, b"again")
        writer.offsets[topic, "billing"] = {0: 0}
    plan = reset(store_of(tmp_path, writer), "--to", "latest", *JSON).expect(0).json()
    assert {queue["topic"] for queue in plan["queues"]} == {"orders"}
    assert any("%RETRY%billing_orders" in note for note in plan["notes"])


def test_the_retry_topic_only_by_name(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    plan = reset(store, "--to", "latest", *JSON).expect(0).json()
    assert {queue["topic"] for queue in plan["queues"]} == {"orders"}
    assert any("%RETRY%billing" in note for note in plan["notes"])
    named = reset(store, "--to", "earliest", "--topic", "%RETRY%billing", *JSON).expect(0).json()
    assert [(queue["from"], queue["to"]) for queue in named["queues"]] == [(2, 0)]


def test_where_a_broker_would_end_the_log(tmp_path: Path) -> None:
    """Behind the last message is where the queue ends after a start, else the group would stand
    beyond the end.
    """
    writer = filled()
    writer.flip(writer.puts[80].body_at)
    store = store_of(tmp_path, writer)
    kept = {queue: sum((put.topic, put.queue_id) == ("orders", queue) for put in writer.puts[:80])
            for queue in range(4)}
    plan = reset(store, "--to", "latest", *JSON).expect(0).json()
    assert {queue["queue_id"]: queue["to"] for queue in plan["queues"]} == kept


@pytest.mark.parametrize("light", [True, False])
def test_with_light_queues_offsets_are_in_another_file(tmp_path: Path, light: bool) -> None:
    store = store_of(tmp_path)
    group, topic = ("%LMQ%c", "%LMQ%a") if light else ("billing", "orders")
    (store / "config" / "consumerOffset.json").unlink()
    (store / "config" / "lmqConsumerOffset.json").write_text(json.dumps({
        "lmqOffsetTable": {"%LMQ%a@%LMQ%c": 1}, "offsetTable": {"orders@billing": {"0": 3}}}))
    run("offsets", "reset", store, "--group", group, "--topic", topic, "--queue", "0", "--to",
        "latest", "--apply", *JSON).expect(0)
    after = table(store, "lmqConsumerOffset.json")
    assert after == {"lmqOffsetTable": {"%LMQ%a@%LMQ%c": 12 if light else 1},
                     "offsetTable": {"orders@billing": {"0": 3 if light else 20}}}
    assert not (store / "config" / "consumerOffset.json").exists()


def test_a_group_that_committed_nothing_yet(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    (store / "config" / "consumerOffset.json").unlink()
    assert "pass --topic" in reset(store, "--to", "latest").expect(6).err
    reset(store, "--to", "latest", "--topic", "pays", "--queue", "2", "--apply", *JSON).expect(0)
    assert table(store)["offsetTable"] == {"pays@billing": {"2": 10}}


def test_an_empty_file_has_no_offsets_that_could_be_lost(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    file = store / "config" / "consumerOffset.json"
    file.write_bytes(b"")
    reset(store, "--topic", "orders", "--to", "earliest", "--apply").expect(0)
    assert table(store)["offsetTable"] == {"orders@billing": {str(queue): 0 for queue in range(4)}}
    file.write_bytes(b"")
    file.with_name(f"{file.name}.bak").write_bytes(b"\x00" * 9)  # of which something may be left
    assert "its backup cannot be read either" in reset(
        store, "--topic", "orders", "--to", "latest").expect(6).err


def test_what_is_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    reset(store).expect(2)
    reset(store, "--to", "latest", "--time", "-2h").expect(2)
    reset(store, "--to", "latest", "--queue", "1").expect(2)
    assert "no queue" in reset(store, "--to", "latest", "--topic", "nope").expect(6).err
    for group in ("nobody", "(delay)", "a@b"):
        run("offsets", "reset", store, "--group", group, "--to", "latest").expect(6)
    path = store / "config" / "consumerOffset.json"
    path.write_bytes(path.read_bytes()[:-20])
    assert "its backup cannot be read either" in reset(store, "--to", "latest").expect(6).err
    path.with_name("consumerOffset.json.bak").write_text('{"offsetTable":{"orders@billing":{0:1}}}')
    plan = reset(store, "--to", "earliest", "--queue", "0", "--topic", "orders", *JSON)
    assert any(".bak, as a broker does" in note for note in plan.expect(0).json()["notes"])
    path.write_text('{"offsetTable":{"orders@billing":{0:1},"x@y":{"a":1}}}')
    assert "would lose" in reset(store, "--to", "earliest").expect(6).err


def test_beside_a_broker_nothing_is_changed(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    with held(store), snapshot.assert_unchanged(store):
        reset(store, "--to", "latest", "--apply", *JSON).expect(4)


@pytest.mark.parametrize(("form", "folder"), [
    ("v1", "config/consumerOffsets"), ("v2", "config/rdb")])
@pytest.mark.parametrize("kill", ["", "-kill"])
def test_positions_in_rocksdb(golden_copy: GoldenFolder, form: str, folder: str,
                              kill: str) -> None:
    """All else of the data base stays, what lies in its write-ahead log too."""
    store = golden_copy(f"5.3.3/rocksdb-config-{form}{kill}/store")
    kept = snapshot.copy_tree(store, store.parent / "kept")

    def config() -> dict[str, Any]:
        return {name: sorted(map(json.dumps, run("config", store, name, "-o", "json").json()))
                for name in ("topics", "groups", "offsets")}

    before = config()
    rows = [json.loads(row) for row in before["offsets"]]
    group, topic = next((row["group"], row["topic"]) for row in rows if row["offset"])
    moved = [row for row in rows if (row["group"], row["topic"]) == (group, topic)]
    plan = run("offsets", "reset", store, "--group", group, "--topic", topic, "--to",
               "earliest", "--apply", "-o", "json").expect(0).json()
    assert {action["target"] for action in plan["actions"]} == {folder}
    after = config()
    assert (after["topics"], after["groups"]) == (before["topics"], before["groups"])
    others = {row for row in before["offsets"] if json.loads(row) not in moved}
    assert others < {*after["offsets"]}
    assert {json.loads(row)["offset"] for row in {*after["offsets"]} - others} == {0}
    run("undo", store, "--yes").expect(0)
    shutil.rmtree(store / ".rmqctl")
    differences = snapshot.take(kept, inodes=False).differences(snapshot.take(store, inodes=False))
    assert [line for line in differences if not line.startswith("changed: . ")] == []


@pytest.mark.parametrize("topic", ["never", "%RETRY%billing"])
def test_beyond_the_end_of_a_queue_that_has_no_message(tmp_path: Path, topic: str) -> None:
    writer = filled()
    writer.offsets[topic, "billing"] = {0: 50}
    store = writer.write(tmp_path / "s")
    reset(store, "--beyond-end", "--apply").expect(0)
    assert table(store)["offsetTable"][f"{topic}@billing"] == {"0": 0}


@pytest.mark.parametrize("damaged", [False, True])
def test_a_queue_that_can_be_rebuilt_keeps_its_offsets(tmp_path: Path, damaged: bool) -> None:
    writer = filled()
    writer.offsets["orders", "billing"] = {0: 5}
    writer.offsets["never", "billing"] = {0: 5}
    store = writer.write(tmp_path / "s")
    shutil.rmtree(store / "consumequeue" / "orders")
    if damaged:
        log = next((store / "commitlog").iterdir())
        log.write_bytes(log.read_bytes()[:200] + bytes(300) + log.read_bytes()[500:])
    reset(store, "--beyond-end", "--apply").expect(0)
    after = table(store)["offsetTable"]
    assert after["orders@billing"] == {"0": 5}
    assert after["never@billing"] == {"0": 5 if damaged else 0}


# -- to a number ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "ends"), [
    (("--to", "3"), {0: 3, 1: 3, 2: 3, 3: 3}),
    (("--shift-by", "-2"), {0: 3, 1: 3, 2: 0, 3: None}),
    (("--shift-by", "100"), {0: None, 1: None, 2: None, 3: None}),
    (("--to", "100000"), {0: None, 1: None, 2: None, 3: None}),
])
def test_to_a_number_within_the_bounds(tmp_path: Path, words: tuple[str, str],
                                       ends: dict[int, int | None]) -> None:
    """None: the end of the queue; queue 3 is beyond it, and 2 has no offset."""
    writer = filled()
    store = store_of(tmp_path, writer)
    plan = reset(store, *words, *JSON).expect(0).json()
    assert {queue["queue_id"]: queue["to"] for queue in plan["queues"]} == {
        queue: writer.next_offset["orders", queue] if end is None else end
        for queue, end in ends.items()}


def test_to_takes_a_time_as_well(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    when = "2023-11-14T22:13:50Z"
    assert reset(store, "--to", when, *JSON).json()["queues"] == reset(
        store, "--time", when, *JSON).json()["queues"]
    assert "one of" in reset(store, "--to", "3", "--shift-by", "1").expect(2).err


def test_a_retry_topic_that_is_reset_does_not_keep_its_offsets(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    plan = reset(store, "--beyond-end", *JSON).expect(0).json()
    kept = any("keeps its offsets" in note for note in plan["notes"])
    assert kept == ("%RETRY%billing" not in {queue["topic"] for queue in plan["queues"]})
    plan = reset(store, "--to", "latest", *JSON).expect(0).json()
    assert any("keeps its offsets" in note for note in plan["notes"])
