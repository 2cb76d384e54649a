"""`Topics`: what is read, what is changed, and that nothing of the file is lost on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.broker.settings import Settings
from rmqctl.engine.config import table
from rmqctl.engine.config.topics import Topics
from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.formats.config import config_json, fastjson
from tests.engine_write.faults import Killed, failing, out_of_space
from tests.support import snapshot

NOW = 1_700_000_000_123
V4, V5 = Settings(version="4.9.3"), Settings(version="5.3.3")
BROKERS = {
    "dataVersion": {"counter": 7, "stateVersion": 3, "timestamp": 1},
    "topicConfigTable": {
        "zeta": {"attributes": {"+odd": "1"}, "order": True, "perm": 6, "readQueueNums": 8,
                 "topicFilterType": "MULTI_TAG", "topicName": "zeta", "topicSysFlag": 1,
                 "writeQueueNums": 4, "fromTheFuture": {"x": [1, None]}},
        "TBW102": {"order": False, "perm": 7, "readQueueNums": 3, "topicFilterType": "SINGLE_TAG",
                   "topicName": "TBW102", "topicSysFlag": 0, "writeQueueNums": 3},
        "alpha": {"attributes": {"queue.type": "BatchCQ"}, "perm": 4, "readQueueNums": 2,
                  "topicName": "alpha", "writeQueueNums": 1},
        "broken": 7,
    },
    "unknown": {"kept": [1.5, "ü", None, {"0": 1}]},
}


def topics(root: Path, settings: Settings = V5, now: int = NOW) -> Topics:
    return Topics(str(root), settings, lambda: now)


def main(root: Path, suffix: str = "") -> Path:
    return root / "config" / f"topics.json{suffix}"


def write(root: Path, value: Any, suffix: str = "") -> bytes:
    raw = value if isinstance(value, bytes) else fastjson.build(value)
    main(root).parent.mkdir(exist_ok=True)
    main(root, suffix).write_bytes(raw)
    return raw


def read(root: Path, suffix: str = "") -> dict[str, Any]:
    return json.loads(main(root, suffix).read_bytes())


# -- a new file -----------------------------------------------------------------------------------


def test_the_first_topic_of_a_store(tmp_path: Path) -> None:
    created = topics(tmp_path).create("orders")
    assert main(tmp_path).read_text() == """{
	"dataVersion":{
		"counter":1,
		"stateVersion":0,
		"timestamp":1700000000123
	},
	"topicConfigTable":{
		"orders":{
			"attributes":{},
			"order":false,
			"perm":6,
			"readQueueNums":8,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"orders",
			"topicSysFlag":0,
			"writeQueueNums":8
		}
	}
}"""
    assert created == topics(tmp_path).get("orders")
    assert not main(tmp_path, ".bak").exists()
    assert not list((tmp_path / ".rmqctl").iterdir())


def test_four_has_neither_attributes_nor_a_state_version(tmp_path: Path) -> None:
    topics(tmp_path, V4).create("orders", 2, 3, 2, order=True)
    assert read(tmp_path) == {
        "dataVersion": {"counter": 1, "timestamp": NOW},
        "topicConfigTable": {"orders": {
            "order": True, "perm": 2, "readQueueNums": 2, "topicFilterType": "SINGLE_TAG",
            "topicName": "orders", "topicSysFlag": 0, "writeQueueNums": 3}}}
    assert list(read(tmp_path)["topicConfigTable"]["orders"]) == sorted(
        read(tmp_path)["topicConfigTable"]["orders"])


def test_reading_makes_nothing(tmp_path: Path) -> None:
    store_topics = topics(tmp_path)
    assert store_topics.get("orders") is None
    assert not store_topics.exists
    assert store_topics.batch_topics() == frozenset()
    assert store_topics.allows("orders", 99) is None
    assert store_topics.plan("orders").action == "create"
    assert list(tmp_path.iterdir()) == []


# -- changing -------------------------------------------------------------------------------------


def test_all_else_stays_in_its_order(tmp_path: Path) -> None:
    before = write(tmp_path, BROKERS)
    topics(tmp_path).create("new", 1, 1)
    content = read(tmp_path)
    assert main(tmp_path, ".bak").read_bytes() == before
    assert list(content) == list(BROKERS)
    assert list(content["topicConfigTable"]) == [*BROKERS["topicConfigTable"], "new"]
    assert content.pop("dataVersion") == {"counter": 8, "stateVersion": 3, "timestamp": NOW}
    del content["topicConfigTable"]["new"]
    assert content == {key: value for key, value in BROKERS.items() if key != "dataVersion"}


def test_a_topic_keeps_what_is_not_given(tmp_path: Path) -> None:
    write(tmp_path, BROKERS)
    store_topics = topics(tmp_path)
    assert store_topics.plan("zeta", write_queues=9).action == "change"
    store_topics.create("zeta", write_queues=9, attributes={"message.type": "FIFO"})
    old = BROKERS["topicConfigTable"]["zeta"]
    assert topics(tmp_path).get("zeta") == {
        **old, "writeQueueNums": 9, "attributes": {"+odd": "1", "message.type": "FIFO"}}
    assert list(read(tmp_path)["topicConfigTable"]) == list(BROKERS["topicConfigTable"])
    assert store_topics.get("zeta") == topics(tmp_path).get("zeta")


def test_a_topic_that_is_as_wanted_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, BROKERS)
    before = snapshot.take(tmp_path)
    topics(tmp_path).create("zeta", 8, 4, 6, order=True)
    topics(tmp_path).create("zeta")
    assert snapshot.take(tmp_path) == before


def test_each_change_keeps_the_one_before(tmp_path: Path) -> None:
    store_topics = topics(tmp_path)
    for number in range(1, 5):
        old = main(tmp_path).read_bytes() if number > 1 else None
        store_topics.create(f"t{number}")
        assert read(tmp_path)["dataVersion"]["counter"] == number
        assert (main(tmp_path, ".bak").read_bytes() if old else None) == old
    assert list(read(tmp_path)["topicConfigTable"]) == ["t1", "t2", "t3", "t4"]


def test_many_made_one_after_the_other_are_read_once(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, BROKERS)
    store_topics = topics(tmp_path)
    loads: list[str] = []
    load = table.load_one
    monkeypatch.setattr(table, "load_one", lambda *of: loads.append(of[1]) or load(*of))
    for number in range(20):
        store_topics.auto_create(f"t{number}") if number % 2 else store_topics.create(f"t{number}",
                                                                                      1)
    assert not loads
    value = read(tmp_path)
    assert list(value["topicConfigTable"])[-20:] == [f"t{number}" for number in range(20)]
    store_topics.create("t3", 9)
    store_topics.create("t4", 9)
    assert read(tmp_path)["topicConfigTable"]["t3"]["readQueueNums"] == 9
    assert main(tmp_path).read_bytes() == fastjson.build(store_topics._value)


def test_what_another_wrote_meanwhile_is_not_lost(tmp_path: Path) -> None:
    store_topics = topics(tmp_path)
    store_topics.create("first")
    topics(tmp_path).create("second")
    store_topics.create("third")
    topics(tmp_path).create("fourth")
    store_topics.auto_create("fifth")
    assert list(read(tmp_path)["topicConfigTable"]) == ["first", "second", "third", "fourth",
                                                        "fifth"]


@pytest.mark.long
@given(value=st.dictionaries(st.sampled_from(["a", "b", "dataVersion"]) | st.text(max_size=5),
                       st.dictionaries(st.text(max_size=5).filter(lambda key: key != "counter"),
                                       st.none() | st.integers() | st.text(max_size=5)
                                       | st.lists(st.booleans(), max_size=2), max_size=3),
                       max_size=4))
def test_unknown_content_stays(value: dict[str, Any],
                               tmp_path_factory: pytest.TempPathFactory) -> None:
    value.pop("topicConfigTable", None)
    root = tmp_path_factory.getbasetemp() / "unknown"
    root.mkdir(exist_ok=True)
    write(root, value)
    topics(root).create("t")
    content = config_json.parse(main(root).read_bytes()).value
    assert content.pop("topicConfigTable").keys() == {"t"}
    version = content.pop("dataVersion")
    old = value.pop("dataVersion", {})
    assert version == {**old, "counter": 1, "timestamp": NOW,
                       "stateVersion": old.get("stateVersion", 0)}
    assert content == value


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    "", " ", "\t", "a b", "a.b", "a/b", "../x", "ü", "a\n", "a\0", "a@b", "x" * 128, "TBW102",
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "CHECKPOINT_TOPIC",
    "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "BenchmarkTest", "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT", "TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_TRACE_TOPIC"])
def test_names_a_broker_refuses(tmp_path: Path, name: str) -> None:
    with pytest.raises(RefusedError):
        topics(tmp_path).create(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "x" * 127, "%RETRY%group", "a|b_c-D9", "%DLQ%g", "-", "0",
                                  "tbw102"])
def test_names_a_broker_takes(tmp_path: Path, name: str) -> None:
    assert topics(tmp_path).create(name)["topicName"] == name


def test_four_knows_fewer_system_topics(tmp_path: Path) -> None:
    assert topics(tmp_path, V4).create("CHECKPOINT_TOPIC")
    other = Settings(cluster="mine")
    assert topics(tmp_path, other).create("DefaultCluster")
    with pytest.raises(RefusedError):
        topics(tmp_path, other).create("mine")


@pytest.mark.parametrize("more", [
    {"read_queues": 0}, {"write_queues": -1}, {"read_queues": 1 << 31}, {"perm": 0}, {"perm": 8},
    {"perm": -6}, {"attributes": {"queue.type": "batchcq"}}, {"attributes": {"color": "red"}},
    {"attributes": {"message.type": ""}}, {"attributes": {"reserve.time": "-2"}},
    {"attributes": {"reserve.time": "x"}}, {"attributes": {"reserve.time": str(1 << 63)}}])
def test_values_that_cannot_be(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        topics(tmp_path).create("orders", **more)
    assert list(tmp_path.iterdir()) == []


def test_attributes(tmp_path: Path) -> None:
    wanted = {"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION", "message.type": "MIXED",
              "reserve.time": "-1"}
    assert topics(tmp_path).create("orders", attributes=wanted)["attributes"] == wanted
    store_topics = topics(tmp_path)
    store_topics.create("orders", attributes={"queue.type": "BatchCQ", "message.type": "FIFO"})
    with pytest.raises(RefusedError, match=r"queue\.type"):
        store_topics.create("orders", attributes={"queue.type": "SimpleCQ"})
    with pytest.raises(UsageError, match=r"4\.9\.3"):
        topics(tmp_path, V4).create("other", attributes={"message.type": "FIFO"})


# -- damage ---------------------------------------------------------------------------------------


def test_the_backup_is_taken_and_stays_good(tmp_path: Path) -> None:
    good = write(tmp_path, BROKERS, ".bak")
    for damaged in (b"", b"{\"dataVersion\":{", b"\0" * 40):
        write(tmp_path, damaged)
        store_topics = topics(tmp_path)
        assert store_topics.exists
        assert "reading config/topics.json.bak instead" in store_topics.notes[0]
        assert store_topics.get("zeta")
        store_topics.create(f"new{len(damaged)}")
        assert main(tmp_path, ".bak").read_bytes() == good
        assert read(tmp_path)["topicConfigTable"].keys() == {
            *BROKERS["topicConfigTable"], f"new{len(damaged)}"}
    # What was damaged is kept aside (an empty file holds nothing to keep).
    kept = sorted((tmp_path / ".rmqctl" / "kept").rglob("topics.json*"))
    assert sorted(path.read_bytes() for path in kept) == [b"\0" * 40, b"{\"dataVersion\":{"]


def test_a_missing_main_file(tmp_path: Path) -> None:
    good = write(tmp_path, BROKERS, ".bak")
    topics(tmp_path).create("new")
    assert "zeta" in read(tmp_path)["topicConfigTable"]
    assert main(tmp_path, ".bak").read_bytes() == good
    topics(tmp_path).create("more")
    assert "new" in read(tmp_path, ".bak")["topicConfigTable"]


@pytest.mark.parametrize(("first", "second"), [
    (b"{", b"{"), (b"[]", None), (None, b"{"), (b"", b"{"), (b"{} trailing", None),
    (b"{} trailing", b"{}"), (b'{"a":"\xff"}', None), (b'{"topicConfigTable":[]}', None),
    (b'{"dataVersion":7}', None), (b"{", b'{"a":1}}')])
def test_what_cannot_be_changed_without_loss(tmp_path: Path, first: bytes | None,
                                             second: bytes | None) -> None:
    for raw, suffix in ((first, ""), (second, ".bak")):
        if raw is not None:
            write(tmp_path, raw, suffix)
    before = snapshot.take(tmp_path)
    with pytest.raises(RefusedError, match="topics"):
        topics(tmp_path).create("new")
    assert snapshot.take(tmp_path) == before


def test_a_counter_that_is_none_and_an_entry_that_is_none(tmp_path: Path) -> None:
    write(tmp_path, {"dataVersion": {"counter": "x"}})
    with pytest.raises(RefusedError, match="counter"):
        topics(tmp_path).create("new")
    write(tmp_path, BROKERS)
    with pytest.raises(RefusedError, match="broken"):
        topics(tmp_path).create("broken")
    assert topics(tmp_path).get("broken") is None


def test_a_file_that_cannot_be_read_now_is_not_replaced(tmp_path: Path) -> None:
    """An input/output error is no damage: an older backup must not win over it."""
    write(tmp_path, BROKERS, ".bak")
    main(tmp_path).mkdir()
    with pytest.raises(StoreIOError, match=r"topics\.json"):
        topics(tmp_path)


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("fallen_back", [False, True])
def test_every_fault_leaves_old_or_new(tmp_path: Path, kill: bool, fallen_back: bool) -> None:
    def prepare(root: Path) -> None:
        root.mkdir()
        write(root, BROKERS, ".bak")
        write(root, b"{" if fallen_back else {**BROKERS, "newer": 1})

    prepare(tmp_path / "count")
    with failing(None) as counter:
        topics(tmp_path / "count").create("new")
    assert counter.calls > 10
    old = topics(tmp_path / "count").get("zeta")
    stopped = 0
    for number in range(counter.calls):
        root = tmp_path / f"s{number}"
        prepare(root)
        try:
            with failing(number, Killed if kill else out_of_space):
                topics(root).create("new")
        except (Killed, StoreIOError):
            stopped += 1
        else:  # a backup that cannot be read while the main file is good stops nobody
            assert topics(root).get("new")
        store_topics = topics(root)
        assert store_topics.get("zeta") == old
        store_topics.create("new")
        assert topics(root).get("new")
        assert {"newer"} <= read(root).keys() or fallen_back
        assert config_json.parse(main(root, ".bak").read_bytes()).value["dataVersion"]
    assert stopped >= counter.calls - 2


# -- made by sending ------------------------------------------------------------------------------


def test_a_topic_made_by_sending(tmp_path: Path) -> None:
    store_topics = topics(tmp_path)
    config = store_topics.auto_create("orders")
    assert config == {"attributes": {}, "order": False, "perm": 6, "readQueueNums": 4,
                      "topicFilterType": "SINGLE_TAG", "topicName": "orders", "topicSysFlag": 0,
                      "writeQueueNums": 4}
    assert store_topics.get("orders") == config == store_topics.auto_create("orders")
    assert read(tmp_path)["dataVersion"]["counter"] == 1
    assert "attributes" not in topics(tmp_path, V4).auto_create("more")


def test_the_model_is_the_stores_own(tmp_path: Path) -> None:
    write(tmp_path, BROKERS)
    assert topics(tmp_path).auto_create("orders")["writeQueueNums"] == 3
    table = {"TBW102": {"perm": 7, "writeQueueNums": -5, "topicFilterType": "MULTI_TAG"}}
    write(tmp_path, {"topicConfigTable": table})
    config = topics(tmp_path).auto_create("orders")
    assert (config["readQueueNums"], config["topicFilterType"]) == (0, "MULTI_TAG")
    table["TBW102"]["perm"] = 6
    write(tmp_path, {"topicConfigTable": table})
    assert "does not exist" in topics(tmp_path).creation_problem("orders")
    with pytest.raises(RefusedError, match="orders does not exist"):
        topics(tmp_path).auto_create("orders")
    assert topics(tmp_path).auto_create("%RETRY%g")["readQueueNums"] == 1


def test_what_is_not_made_by_sending(tmp_path: Path) -> None:
    store_topics = topics(tmp_path)
    for name in ("", "a b", "x" * 128, "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC"):
        assert store_topics.creation_problem(name)
        with pytest.raises(RefusedError):
            store_topics.auto_create(name)
    # A broker has these by itself: they are not written down.
    assert topics(tmp_path, V4).auto_create("SELF_TEST_TOPIC")["readQueueNums"] == 1
    assert store_topics.auto_create("BenchmarkTest")["readQueueNums"] == 1024
    assert list(tmp_path.iterdir()) == []
    assert store_topics.auto_create("RMQ_SYS_TRACE_TOPIC")["readQueueNums"] == 4
    assert list(read(tmp_path)["topicConfigTable"]) == ["RMQ_SYS_TRACE_TOPIC"]


# -- questions ------------------------------------------------------------------------------------


def test_batch_topics(tmp_path: Path) -> None:
    write(tmp_path, BROKERS)
    assert topics(tmp_path).batch_topics() == {"alpha"}
    assert topics(tmp_path).is_batch("alpha")
    assert not topics(tmp_path).is_batch("zeta")
    assert not topics(tmp_path).is_batch("nobody")
    assert topics(tmp_path, V4).batch_topics() == frozenset()


def test_what_a_queue_allows(tmp_path: Path) -> None:
    write(tmp_path, BROKERS)
    store_topics = topics(tmp_path)
    assert store_topics.allows("zeta", 7) is None
    assert "8 queues" in store_topics.allows("zeta", 8)
    assert "queue -1 does not exist" in store_topics.allows("zeta", -1)
    assert "not writable" in store_topics.allows("alpha", 0)
    assert store_topics.allows("nobody", 1000) is None
    assert store_topics.allows("broken", 1000) is None
