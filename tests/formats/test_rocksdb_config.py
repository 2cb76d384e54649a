"""Keys and values of configuration in RocksDB, against what the spec has in hexadecimal."""

from __future__ import annotations

import pytest

from rmqctl.errors import FormatError
from rmqctl.formats.rocksdb import config, small_stores
from rmqctl.formats.rocksdb.config import Key, VersionRecord

OFFSET = bytes.fromhex("01 0001 02 0009 475f54505f6d61696c 01 0007 54505f63617274 01 00000000")
TOPIC = bytes.fromhex("01 0003 02 0006 54505f67656f")
GROUP = bytes.fromhex("01 0004 02 0009 475f54505f6d61696c")
VERSION = bytes.fromhex("01 0001 01 646174615f76657273696f6e")
POP = bytes.fromhex("000001a2016a1860 475f706f70 40 54505f6f7264657273 40 00000000 40"
                    "0000000000000064")


@pytest.mark.parametrize(("raw", "key"), [
    (OFFSET, Key(config.OFFSETS, config.DATA, None, "G_TP_mail", "TP_cart", 0)),
    (TOPIC, Key(config.TOPICS, config.DATA, "TP_geo")),
    (GROUP, Key(config.GROUPS, config.DATA, "G_TP_mail")),
    (VERSION, Key(config.OFFSETS, config.DATA_VERSION))])
def test_keys(raw: bytes, key: Key) -> None:
    assert config.parse_key(raw) == key
    assert config.build_key(key) == raw
    assert raw.startswith(config.table_start(key.table))
    for length in range(len(raw)):
        with pytest.raises(FormatError):
            config.parse_key(raw[:length])
    with pytest.raises(FormatError):
        config.parse_key(raw + b"\0")


@pytest.mark.parametrize("raw", [
    b"", b"\2" + TOPIC[1:], TOPIC[:2] + b"\7" + TOPIC[3:], TOPIC[:3] + b"\3" + TOPIC[4:],
    OFFSET[:15] + b"\2" + OFFSET[16:], OFFSET[:25] + b"\0" + OFFSET[26:],
    TOPIC[:-1] + b"\xff"])
def test_keys_that_no_broker_writes(raw: bytes) -> None:
    with pytest.raises(FormatError):
        config.parse_key(raw)


def test_values() -> None:
    offset, topic, version = (config.parse_key(raw) for raw in (OFFSET, TOPIC, VERSION))
    assert config.parse_value(offset, bytes(7) + b"\n") == 10
    version_record = VersionRecord(0, 0x1A20194B34A, 0x30)
    raw = bytes.fromhex("0000000000000000 000001a20194b34a 0000000000000030")
    assert config.parse_value(version, raw) == version_record
    assert version_record.as_json() == {"counter": 48, "stateVersion": 0,
                                        "timestamp": 0x1A20194B34A}
    assert config.parse_value(topic, b'\1{"perm":6}') == {"perm": 6}
    for key, value, written in ((offset, 10, bytes(7) + b"\n"), (version, version_record, raw),
                                (topic, b"{}", b"\1{}")):
        assert config.build_value(value) == written
        config.parse_value(key, written)
    for key, wrong in ((offset, bytes(7)), (offset, bytes(9)), (version, bytes(23)), (topic, b""),
                       (topic, b"\2{}"), (topic, b"\1[]"), (topic, b"\1{")):
        with pytest.raises(FormatError):
            config.parse_value(key, wrong)


def test_pop_check_points() -> None:
    pop_state = small_stores.pop_state(POP, b'{"popTime":1795320000000,"offset":100}')
    assert pop_state == {"visible_at": 1795320060000, "group": "G_pop", "topic": "TP_orders",
                         "queue_id": 0, "queue_offset": 100, "popTime": 1795320000000,
                         "offset": 100}
    for length in range(len(POP)):
        with pytest.raises(FormatError):
            small_stores.pop_state(POP[:length], b"{}")


@pytest.mark.parametrize(("family", "key", "value", "expected"), [
    ("default", bytes(7) + b"\1@T@K@k1@U1@" + bytes(7) + b"\2", bytes(7) + b"\3",
     {"hour": 1, "text": "@T@K@k1@U1@", "physical_offset": 2, "store_timestamp": 3}),
    ("default", b"lastOffsetPy", bytes(7) + b"\3", {"counter": "lastOffsetPy", "value": 3}),
    ("timer", bytes(7) + b"\1U1", bytes(3) + b"\2" + bytes(7) + b"\3",
     {"deliver_timestamp": 1, "unique_key": "U1", "size": 2, "physical_offset": 3}),
    ("timer", b"timeline_checkpoint", bytes(7) + b"\3",
     {"counter": "timeline_checkpoint", "value": 3}),
    ("trans", bytes(7) + b"\1@T@U1", bytes(3) + b"\2" + bytes(3) + b"\3",
     {"physical_offset": 1, "text": "@T@U1", "check_times": 2, "size": 3})])
def test_what_a_later_release_keeps(family: str, key: bytes, value: bytes,
                                    expected: dict[str, object]) -> None:
    read = small_stores.READERS["RocksDBMessageStore", family]
    assert read(key, value) == expected
    for wrong in (value + b"\0", value[:-1]):
        with pytest.raises(FormatError):
            read(key, wrong)
