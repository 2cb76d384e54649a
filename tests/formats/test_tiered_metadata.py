"""``tieredStoreMetadata.json``: the engine's bytes come back, faults cost one entry only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats.config import config_json
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered.names import COMMIT_LOG, CONSUME_QUEUE, INDEX, METADATA_NAME
from tests.conftest import GoldenFolder
from tests.support.share import examples

FRAGMENT = b"""{
\t"commitLogFileSegmentTable":{
\t\t"broker-a/TopicA/3":{0:{
\t\t\t\t"path":"broker-a/TopicA/3",
\t\t\t\t"type":0,
\t\t\t\t"baseOffset":0,
\t\t\t\t"status":0,
\t\t\t\t"size":381,
\t\t\t\t"createTimestamp":1700000009000,
\t\t\t\t"beginTimestamp":1700000000000,
\t\t\t\t"endTimestamp":1700000002000,
\t\t\t\t"sealTimestamp":0
\t\t\t},762:{
\t\t\t\t"path":"broker-a/TopicA/3",
\t\t\t\t"type":0,
\t\t\t\t"baseOffset":762,
\t\t\t\t"status":0,
\t\t\t\t"size":254,
\t\t\t\t"createTimestamp":1700000009000,
\t\t\t\t"beginTimestamp":1700000006000,
\t\t\t\t"endTimestamp":1700000007000,
\t\t\t\t"sealTimestamp":0
\t\t\t},381:{
\t\t\t\t"path":"broker-a/TopicA/3",
\t\t\t\t"type":0,
\t\t\t\t"baseOffset":381,
\t\t\t\t"status":0,
\t\t\t\t"size":381,
\t\t\t\t"createTimestamp":1700000009000,
\t\t\t\t"beginTimestamp":1700000003000,
\t\t\t\t"endTimestamp":1700000005000,
\t\t\t\t"sealTimestamp":0
\t\t\t}
\t\t}
\t},
\t"consumeQueueFileSegmentTable":{},
\t"indexFileSegmentTable":{},
\t"queueMetadataTable":{
\t\t"TopicA":{3:{
\t\t\t\t"queue":{
\t\t\t\t\t"brokerName":"broker-a",
\t\t\t\t\t"queueId":3,
\t\t\t\t\t"topic":"TopicA"
\t\t\t\t},
\t\t\t\t"minOffset":-1,
\t\t\t\t"maxOffset":-1,
\t\t\t\t"updateTimestamp":1700000009000
\t\t\t}
\t\t}
\t},
\t"topicMetadataTable":{
\t\t"TopicA":{
\t\t\t"topicId":0,
\t\t\t"topic":"TopicA",
\t\t\t"status":0,
\t\t\t"reserveTime":-1,
\t\t\t"updateTimestamp":1700000009000
\t\t}
\t},
\t"topicSerialNumber":0
}"""
"""tiered.md §20.7, completed."""
PATH = "broker-a/TopicA/3"


@pytest.mark.parametrize("state", ["store", "store-live"])
@pytest.mark.parametrize("suffix", ["", ".bak"])
def test_the_engines_bytes_come_back(state, suffix, golden: GoldenFolder):
    path = golden(f"5.3.3/tiered/{state}") / "config" / (METADATA_NAME + suffix)
    if suffix and not path.exists():
        pytest.skip("no .bak in this set")
    data = path.read_bytes()
    metadata = meta.parse(data)
    assert not metadata.faults
    assert not metadata.old
    assert meta.build(metadata) == data
    assert meta.build(metadata.copy()) == data


def test_the_fragment_of_the_spec():
    metadata = meta.parse(FRAGMENT)
    assert not metadata.faults
    assert sorted(metadata.segments[COMMIT_LOG][PATH]) == [0, 381, 762]
    assert metadata.segments[COMMIT_LOG][PATH][762] == meta.SegmentEntry(
        PATH, 0, 762, 0, 254, 1700000009000, 1700000006000, 1700000007000)
    assert metadata.queues == {"TopicA": {3: meta.QueueEntry("TopicA", "broker-a", 3, -1, -1,
                                                             1700000009000)}}
    assert metadata.topic_of(0) == "TopicA"
    assert metadata.topic_of(1) is None
    assert metadata.serial == 0
    assert meta.build(metadata) == FRAGMENT


# -- other ways to write the same -----------------------------------------------------------------

def _value() -> dict:
    return config_json.parse(FRAGMENT).value


def test_quoted_keys():
    assert meta.parse(json.dumps(_value()).encode()) == meta.parse(FRAGMENT)


def test_alphabetical_order_and_no_white_space():
    """As 5.2.0 and older write fields."""
    text = json.dumps(_value(), sort_keys=True, separators=(",", ":"))
    assert meta.build(meta.parse(text.encode())) == FRAGMENT


def test_paths_of_windows():
    value = _value()
    table = value["commitLogFileSegmentTable"]
    table[PATH.replace("/", "\\")] = entries = table.pop(PATH)
    for entry in entries.values():
        entry["path"] = entry["path"].replace("/", "\\")
    assert meta.build(meta.parse(json.dumps(value).encode())) == FRAGMENT


def test_unknown_fields_are_no_fault():
    value = _value()
    value["newTable"] = {"x": [1, {"y": None}]}
    value["topicMetadataTable"]["TopicA"]["new"] = "field"
    assert meta.parse(json.dumps(value).encode()) == meta.parse(FRAGMENT)


def test_what_lacks_has_its_default():
    metadata = meta.parse(b'{"topicSerialNumber":7,"commitLogFileSegmentTable":{"b/T/0":{0:{}}},'
                          b'"topicMetadataTable":{"T":{}}}')
    assert not metadata.faults
    assert metadata.serial == 7
    assert metadata.segments[COMMIT_LOG]["b/T/0"][0] == meta.SegmentEntry("b/T/0", 0, 0)
    assert metadata.topics["T"].topic_id == -1


def test_the_form_of_5_1():
    metadata = meta.parse(b'{"maxTopicId":3,"topicMetadataTable":{"T":{"topicId":2,"topic":"T"}}}')
    assert metadata.old
    assert metadata.serial == 2
    assert metadata.topic_of(2) == "T"


def test_nothing_at_all():
    assert meta.parse(b"{}") == meta.Metadata()
    assert meta.build(meta.Metadata()) == meta.build(meta.parse(meta.build(meta.Metadata())))
    assert meta.parse(meta.build(meta.Metadata())) == meta.Metadata()


# -- faults ---------------------------------------------------------------------------------------

def _segment(value: dict) -> dict:
    return value["commitLogFileSegmentTable"][PATH]["381"]


FAULTS: dict[str, tuple[Callable[[dict], object], str]] = {
    "size text": (lambda v: _segment(v).update(size="381"), PATH),
    "size float": (lambda v: _segment(v).update(size=381.5), PATH),
    "size true": (lambda v: _segment(v).update(size=True), PATH),
    "size null": (lambda v: _segment(v).update(size=None), PATH),
    "size of 65 bits": (lambda v: _segment(v).update(size=1 << 64), PATH),
    "size of 900 digits": (lambda v: _segment(v).update(size=10 ** 900), PATH),
    "another base": (lambda v: _segment(v).update(baseOffset=382), PATH),
    "another type": (lambda v: _segment(v).update(type=1), PATH),
    "entry list": (lambda v: v["commitLogFileSegmentTable"][PATH].update({"381": [1]}), PATH),
    "entry null": (lambda v: v["commitLogFileSegmentTable"][PATH].update({"381": None}), PATH),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_one_entry(name):
    change, path = FAULTS[name]
    value = _value()
    change(value)
    metadata = meta.parse(json.dumps(value).encode())
    assert [fault.path for fault in metadata.faults] == [f"commitLogFileSegmentTable.{path}.381"]
    assert metadata.faults[0].reason
    whole = meta.parse(FRAGMENT)
    del whole.segments[COMMIT_LOG][PATH][381]
    assert replace(metadata, faults=[]) == whole


@pytest.mark.parametrize("key", ["", "-1", "x", "1_0", " 5", "٣", "1.0", str(1 << 63), "9" * 5000,
                                 "+1", "0x10"])
def test_odd_keys(key):
    value = _value()
    value["commitLogFileSegmentTable"][PATH][key] = {}
    value["queueMetadataTable"]["TopicA"][key] = value["queueMetadataTable"]["TopicA"]["3"]
    metadata = meta.parse(json.dumps(value).encode())
    assert len(metadata.faults) == 2
    assert replace(metadata, faults=[]) == meta.parse(FRAGMENT)


@pytest.mark.parametrize(("table", "odd"), [
    (table, odd) for table in (*meta.SEGMENT_TABLES, "queueMetadataTable", "topicMetadataTable")
    for odd in ([], [1], "text", 5, True)])
def test_a_table_that_is_none(table, odd):
    value = _value()
    value[table] = odd
    metadata = meta.parse(json.dumps(value).encode())
    assert [fault.path for fault in metadata.faults] == [table]
    if table != "topicMetadataTable":
        assert metadata.topics


@pytest.mark.parametrize("change", [
    lambda q: q.update(queue=None), lambda q: q.pop("queue"), lambda q: q["queue"].pop("topic"),
    lambda q: q["queue"].update(queueId=4), lambda q: q["queue"].update(brokerName=5),
    lambda q: q["queue"].update(topic="Other"), lambda q: q.update(minOffset="x")])
def test_faults_of_a_queue(change):
    value = _value()
    change(value["queueMetadataTable"]["TopicA"]["3"])
    metadata = meta.parse(json.dumps(value).encode())
    assert [fault.path for fault in metadata.faults] == ["queueMetadataTable.TopicA.3"]
    assert metadata.queues == {"TopicA": {}}
    assert metadata.topics == meta.parse(FRAGMENT).topics


@pytest.mark.parametrize("serial", [None, "5", 1.5, True, [], 1 << 70])
def test_a_bad_serial_is_the_highest_topic(serial):
    value = _value()
    value["topicMetadataTable"]["TopicA"]["topicId"] = 11
    value["topicSerialNumber"] = serial
    metadata = meta.parse(json.dumps(value).encode())
    assert [fault.path for fault in metadata.faults] == ["topicSerialNumber"]
    assert metadata.serial == 11


def test_a_key_that_stands_twice():
    text = (b'{"topicSerialNumber":1,"topicMetadataTable":{"T":{"topicId":0},'
            b'"T":{"topicId":1,"topic":"T"}}}')
    assert meta.parse(text).topics["T"].topic_id == 1


@pytest.mark.parametrize("data", [b"", b" ", b"\0\0\0", b"[]", b"null", b"5", b'"x"', b"{", b"{]",
                                  b'{"a":', b"\xff\xfe", FRAGMENT[:-1], b"{1.5:2}",
                                  b'{"a":' * 200 + b"1" + b"}" * 200, b"[" * 100_000,
                                  b'{"x":' + b"9" * 5000 + b"}"])
def test_no_metadata(data):
    with pytest.raises(FormatError):
        meta.parse(data)


def test_every_length():
    for size in range(len(FRAGMENT)):
        with pytest.raises(FormatError):
            meta.parse(FRAGMENT[:size])


@given(st.integers(0, len(FRAGMENT) - 1), st.integers(0, 255), st.integers(1, 4))
def test_damaged_bytes(at, byte, count):
    data = bytearray(FRAGMENT)
    data[at:at + count] = bytes([byte]) * count
    try:
        metadata = meta.parse(bytes(data))
    except FormatError:
        return
    again = meta.parse(meta.build(metadata))
    assert not again.faults
    assert meta.build(again) == meta.build(metadata)


_json = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
                     | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
                     | st.dictionaries(st.sampled_from(
                         ["0", "7", "T", "queue", "topic", "queueId", "brokerName", "size",
                          "topicId", "path"]) | st.text(max_size=4), inner, max_size=4),
                     max_leaves=12)


@given(st.dictionaries(st.sampled_from([
    *meta.SEGMENT_TABLES, "queueMetadataTable", "topicMetadataTable", "topicSerialNumber",
    "maxTopicId"]), _json))
def test_any_json(value):
    metadata = meta.of_value(json.loads(json.dumps(value)))
    built = meta.build(metadata)
    again = meta.parse(built)
    assert not again.faults
    assert (again.segments, again.topics, again.serial) == (
        metadata.segments, metadata.topics, metadata.serial)


# -- round trips ----------------------------------------------------------------------------------

_i64 = st.integers(-(1 << 63), (1 << 63) - 1)
_offsets = st.integers(0, (1 << 63) - 1)
_names = st.text(min_size=1, max_size=12).filter(lambda text: "\\" not in text)


@st.composite
def contents(draw: st.DrawFn) -> meta.Metadata:
    metadata = meta.Metadata(serial=draw(st.integers(-1, 1 << 40)))
    for kind in (0, 1, 2):
        for path in draw(st.lists(_names, unique=True, max_size=8)):
            for base in draw(st.lists(_offsets, unique=True, min_size=1, max_size=30)):
                metadata.put_segment(meta.SegmentEntry(path, kind, base, draw(st.integers(0, 2)),
                                                       draw(_i64), 1, 2, 3, 4))
    for topic in draw(st.lists(_names, unique=True, max_size=20)):
        metadata.topics[topic] = meta.TopicEntry(draw(_i64), topic, 0, draw(_i64), 5)
        metadata.queues[topic] = {number: meta.QueueEntry(topic, draw(_names), number)
                                  for number in draw(st.sets(_offsets, max_size=20))}
    return metadata


@pytest.mark.long
@settings(max_examples=examples(30))
@given(contents())
def test_it_comes_back(metadata):
    data = meta.build(metadata)
    again = meta.parse(data)
    assert again == metadata
    assert meta.build(metadata.copy()) == data


def test_a_copy_is_one():
    metadata = meta.parse(FRAGMENT)
    copy = metadata.copy()
    copy.put_segment(meta.SegmentEntry(PATH, 0, 5000))
    copy.put_segment(meta.SegmentEntry("b/T/0", 2, 0))
    copy.topics["new"] = meta.TopicEntry(9, "new")
    copy.queues["TopicA"][4] = meta.QueueEntry("TopicA", "broker-a", 4)
    assert metadata == meta.parse(FRAGMENT)
    assert sorted(copy.segments[COMMIT_LOG][PATH]) == [0, 381, 762, 5000]
    assert copy.segments[INDEX]["b/T/0"][0].type == 2
    assert not copy.segments[CONSUME_QUEUE]


# -- order ----------------------------------------------------------------------------------------

def test_the_order_of_many_topics_and_paths():
    """Tables by path are copies and much larger than their keys need; topics are as they are."""
    metadata = meta.Metadata()
    keys = [f"b/T{i * 7919 % 1000}/{i % 3}" for i in range(13)]
    for number, key in enumerate(keys):
        metadata.put_segment(meta.SegmentEntry(key, 0, 0))
        metadata.topics[key] = meta.TopicEntry(number, key)
    value = config_json.parse(meta.build(metadata)).value
    # As OpenJDK 17 goes through them: tests/formats/test_java_concurrent_map.py
    assert [keys.index(key) for key in value["commitLogFileSegmentTable"]] == [
        12, 2, 11, 9, 4, 8, 3, 6, 7, 0, 1, 5, 10]
    assert [keys.index(key) for key in value["topicMetadataTable"]] == [
        12, 7, 2, 10, 5, 11, 9, 6, 4, 1, 8, 0, 3]
