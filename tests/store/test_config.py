"""The configuration files: dialect, backups, damage at every byte, rows of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.store import Store
from rmqctl.store.config.config import MAX_SIZE, ConfigFile, load, load_one
from rmqctl.store.config.rows import COLUMNS, SECTIONS, perm_text, snake
from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support import tiny as tiny_stores

TOPICS = "topics.json"


def config_file(root: Path, name: str = TOPICS) -> ConfigFile:
    with Store.open(root) as store:
        return load_one(store, name)


def put(root: Path, name: str, text: str) -> ConfigFile:
    """Write one file without a backup and load it."""
    (root / "config" / name).write_text(text)
    (root / "config" / f"{name}.bak").unlink(missing_ok=True)
    return config_file(root, name)


# -- copies ----------------------------------------------------------------------------------------


def test_a_good_file(tiny_base: tiny_stores.Tiny) -> None:
    loaded = config_file(tiny_base.root)
    assert (loaded.main.state, loaded.backup.state, loaded.entries) == ("ok", "ok", 2)
    assert loaded.used is loaded.main
    assert not loaded.damaged
    assert loaded.problems() == []
    assert loaded.data_version == {"counter": 2, "timestamp": tiny_stores.EPOCH}


def test_unquoted_integer_keys(tiny_base: tiny_stores.Tiny) -> None:
    rows = list(config_file(tiny_base.root, "consumerOffset.json").rows())
    assert [(row["group"], row["topic"], row["queue_id"], row["offset"]) for row in rows] == [
        ("billing", "orders", 0, 2), ("billing", "orders", 1, 1)]


def test_the_file_cut_at_every_byte(tiny: tiny_stores.Tiny) -> None:
    """Whatever is left of it: the backup is shown, and the place of the cut is told."""
    path = tiny.root / "config" / TOPICS
    whole = path.read_bytes()
    wanted = [{**row, "source": f"config/{TOPICS}.bak"} for row in config_file(tiny.root).rows()]
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        loaded = config_file(tiny.root)
        assert loaded.main.state == ("unreadable" if size else "empty"), size
        assert loaded.damaged
        assert loaded.fell_back
        assert list(loaded.rows()) == wanted
        assert loaded.main.offset is None or loaded.main.offset <= size
        assert any(f"config/{TOPICS}.bak" in line for line in loaded.problems())


@pytest.mark.parametrize("size", [0, 1, 40])
def test_both_copies_bad(tiny: tiny_stores.Tiny, size: int) -> None:
    for name in (TOPICS, f"{TOPICS}.bak"):
        path = tiny.root / "config" / name
        path.write_bytes(path.read_bytes()[:size])
    loaded = config_file(tiny.root)
    assert loaded.used is None
    assert list(loaded.rows()) == []
    assert loaded.damaged
    assert loaded.problems()


def test_a_missing_main_file(tiny: tiny_stores.Tiny) -> None:
    damage.remove(tiny.root, f"config/{TOPICS}")
    loaded = config_file(tiny.root)
    assert (loaded.main.state, loaded.fell_back, loaded.damaged) == ("missing", True, True)
    assert len(loaded.problems()) == 1


def test_nothing_was_ever_written(tiny: tiny_stores.Tiny) -> None:
    """A backup that is empty beside no file is how a first run begins."""
    damage.remove(tiny.root, f"config/{TOPICS}")
    (tiny.root / "config" / f"{TOPICS}.bak").write_bytes(b"")
    loaded = config_file(tiny.root)
    assert not loaded.damaged
    assert loaded.problems() == []


def test_stale_bytes_behind_the_value(tiny: tiny_stores.Tiny) -> None:
    """The value is whole and shown; a broker would not take the file, which is said."""
    size = (tiny.root / "config" / TOPICS).stat().st_size
    damage.config_trailing(tiny.root, TOPICS)
    loaded = config_file(tiny.root)
    assert (loaded.main.state, loaded.damaged, loaded.entries) == ("oddity", True, 2)
    assert loaded.used is loaded.main
    assert loaded.main.offset == size
    assert "does not read" in loaded.problems()[0]


def test_a_byte_order_mark_is_only_odd(tiny: tiny_stores.Tiny) -> None:
    path = tiny.root / "config" / TOPICS
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    loaded = config_file(tiny.root)
    assert (loaded.main.state, loaded.damaged, loaded.entries) == ("oddity", False, 2)


@pytest.mark.parametrize("text", ["[]", "17", '"text"', "{" * 200, "nul", "\0\0\0\0"])
def test_no_object(tiny: tiny_stores.Tiny, text: str) -> None:
    config_file = put(tiny.root, TOPICS, text)
    assert config_file.main.state == "unreadable"
    assert config_file.main.offset is not None
    assert config_file.damaged


@pytest.mark.parametrize("make", [damage.fifo, damage.directory, damage.symlink_to_itself],
                         ids=lambda make: make.__name__)
def test_things_that_are_no_files(tiny: tiny_stores.Tiny, make: object) -> None:
    make(tiny.root, f"config/{TOPICS}")  # type: ignore[operator]
    loaded = config_file(tiny.root)
    assert loaded.main.state in ("unreadable", "missing")
    assert loaded.fell_back


def test_a_file_beyond_all_size_is_not_read(tiny: tiny_stores.Tiny) -> None:
    damage.huge_sparse(tiny.root, f"config/{TOPICS}")
    loaded = config_file(tiny.root)
    assert (loaded.main.state, loaded.main.offset) == ("unreadable", MAX_SIZE)


# -- shapes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text", "entries", "fault"), [
    (TOPICS, '{"topicConfigTable":5}', 0, "$.topicConfigTable: expected an object, got a number"),
    (TOPICS, '{"topicConfigTable":{"a":[],"b":{"perm":6}}}', 1,
     "$.topicConfigTable.a: expected an object, got a list"),
    (TOPICS, '{"topicConfigTable":{"a":{"perm":"x"}}}', 1,
     "$.topicConfigTable.a.perm: expected an integer, got a string"),
    ("consumerOffset.json", '{"offsetTable":{"t@g":{0:1,1:"no",2:3}}}', 2, "$.offsetTable.t@g.1"),
    ("consumerOffset.json", '{"offsetTable":{"t@g":{"q":1}}}', 0, "$.offsetTable.t@g.q"),
    ("delayOffset.json", '{"offsetTable":{1:5,2:null}}', 1,
     "$.offsetTable.2: expected an integer, got null"),
    ("consumerFilter.json", '{"filterDataByTopic":{"t":{"groupFilterData":{"g":1}}}}', 0,
     "$.filterDataByTopic.t.groupFilterData.g"),
    ("topicQueueMapping.json", '{"topicQueueMappingInfoMap":{"t":{"hostedQueues":{0:{}}}}}', 0,
     "$.topicQueueMappingInfoMap.t.hostedQueues.0"),
])
def test_a_wrong_shape_hides_nothing_else(tiny: tiny_stores.Tiny, name: str, text: str,
                                          entries: int, fault: str) -> None:
    config_file = put(tiny.root, name, text)
    assert config_file.main.state == "ok"
    assert config_file.entries == entries == len(list(config_file.rows()))
    assert config_file.damaged
    assert any(fault in line for line in config_file.problems())


def test_rows_of_every_kind(tiny: tiny_stores.Tiny) -> None:
    texts = {
        "subscriptionGroup.json":
            '{"forbiddenTable":{"g":{"t":3}},"subscriptionGroupTable":{"g":{"groupName":"g",'
            '"consumeEnable":true,"retryMaxTimes":16,"newField":1}}}',
        "lmqConsumerOffset.json":
            '{"offsetTable":{"t@g":{0:4}},"lmqOffsetTable":{"%LMQ%a@%LMQ%c":17}}',
        "consumerOrderInfo.json":
            '{"table":{"t@g":{0:{"popTime":5,"i":60000,"o":[100,1,2],"cm":1,"a":"x"}}}}',
        "topicQueueMapping.json":
            '{"topicQueueMappingInfoMap":{"t":{"currIdMap":{0:0},"totalQueues":8,"hostedQueues":'
            '{0:[{"bname":"b","gen":0,"queueId":0},{"bname":"b","gen":1,"queueId":3}]}}}}',
        "messageRequestMode.json":
            '{"messageRequestModeMap":{"t":{"g":{"consumerGroup":"g","mode":"POP","topic":"t"}}}}',
        "transactionMetrics": '{"transactionCount":{"t":{"count":3,"timeStamp":9}}}',
        "mine.json": '{"dataVersion":{"counter":1},"a":[1]}',
    }
    rows = {name: [{key: value for key, value in row.items() if key != "source"}
                   for row in put(tiny.root, name, text).rows()] for name, text in texts.items()}
    assert rows["subscriptionGroup.json"] == [
        {"group": "g", "consume_enable": True, "retry_max_times": 16, "new_field": 1,
         "forbidden": {"t": 3}}]
    assert rows["lmqConsumerOffset.json"] == [
        {"group": "g", "topic": "t", "queue_id": 0, "offset": 4},
        {"group": "%LMQ%c", "topic": "%LMQ%a", "queue_id": 0, "offset": 17}]
    assert rows["consumerOrderInfo.json"][0]["offsets"] == [100, 101, 102]
    assert [(row["queue_id"], row["current"]) for row in rows["topicQueueMapping.json"]] == [
        (0, False), (3, True)]
    assert rows["messageRequestMode.json"] == [
        {"topic": "t", "consumer_group": "g", "mode": "POP"}]
    assert rows["transactionMetrics"] == [
        {"metric": "transactionCount", "topic": "t", "count": 3, "time_stamp": 9}]
    assert rows["mine.json"] == [{"key": "a", "value": [1]}]


def test_files_of_the_engine(golden: GoldenFolder) -> None:
    delayed = config_file(golden("4.9.3/delay-delivered/store"), "delayOffset.json")
    assert {row["level"] for row in delayed.rows()} == {*range(1, 19)} - {14}
    timer = golden("5.3.3/timer/store")
    assert [row["last_timer_queue_offset"]
            for row in config_file(timer, "timercheck").rows()] == [66]
    assert config_file(timer, "timermetrics").entries == 2
    tiered = config_file(golden("5.3.3/tiered/store"), "tieredStoreMetadata.json")
    with Store.open(golden("5.3.3/tiered/store")) as store:
        files, others = load(store)
    assert [file.name for file in files] == ["tieredStoreMetadata.json"]
    assert others == []
    segments = [row for row in tiered.rows() if row["table"] == "commitLogFileSegmentTable"]
    assert [row["size"] for row in segments if row["key"] == "broker-a/TP_user_Topic/0"] == [
        21321, 22272, 24062]


def test_a_short_timercheck(tiny: tiny_stores.Tiny) -> None:
    (tiny.root / "config" / "timercheck").write_bytes(b"\0" * 31)
    loaded = config_file(tiny.root, "timercheck")
    assert (loaded.main.state, loaded.damaged) == ("unreadable", True)


def test_what_else_lies_there(tiny: tiny_stores.Tiny) -> None:
    (tiny.root / "config" / "topics.json.tmp").write_bytes(b"{")
    (tiny.root / "config" / "rdb").mkdir()
    with Store.open(tiny.root) as store:
        files, others = load(store)
    assert [file.name for file in files] == ["topics.json", "consumerOffset.json",
                                             "delayOffset.json"]
    assert {other.path for other in others} == {"config/topics.json.tmp", "config/rdb"}


def test_columns_of_every_section() -> None:
    assert COLUMNS.keys() == SECTIONS.keys()
    assert all(columns[-1] == "source" for columns in COLUMNS.values())


def test_small_texts() -> None:
    assert [perm_text(bits) for bits in (0, 2, 4, 6, 7, 14)] == [
        "---", "-W-", "R--", "RW-", "RWX", "RW-P"]
    assert snake("notifyConsumerIdsChangedEnable") == "notify_consumer_ids_changed_enable"
