"""What is refused, with which status, exactly at the limits of both versions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.broker.settings import Settings
from rmqctl.engine.put import admission
from rmqctl.engine.put.admission import StoreState
from rmqctl.engine.put.encoder import Encoder
from rmqctl.engine.put.message import BatchItem, Outgoing, OutgoingBatch, PutResult
from rmqctl.formats.local.message import MAGIC_V1, MAGIC_V2, Record, decode

V493, V533 = Settings(version="4.9.3"), Settings(version="5.3.3")
BOTH = pytest.mark.parametrize("settings", [V493, V533], ids=["4.9.3", "5.3.3"])
V4, V6 = (bytes([10, 0, 0, 1]), 10911), (bytes(15) + b"\x01", 10911)
ILLEGAL, TOO_LONG = "MESSAGE_ILLEGAL", "PROPERTIES_SIZE_EXCEEDED"


def status(result: PutResult | None) -> str | None:
    if result is None:
        return None
    assert result.reason
    assert result.msg_num == 0
    assert not result.stored
    return result.status


def outgoing(**fields: Any) -> Outgoing:
    return Outgoing(**{"topic": "T", "body": b"", **fields})


# -- the store --------------------------------------------------------------------------------

@BOTH
@pytest.mark.parametrize(("state", "expected"), [
    (StoreState(), None), (StoreState(role="SYNC_MASTER"), None),
    (StoreState(shutdown=True), "SERVICE_NOT_AVAILABLE"),
    (StoreState(role="SLAVE"), "SERVICE_NOT_AVAILABLE"),
    (StoreState(writeable=False), "SERVICE_NOT_AVAILABLE"),
    (StoreState(shutdown=True, lock_held_ms=2000), "SERVICE_NOT_AVAILABLE"),
    (StoreState(lock_held_ms=1000), None), (StoreState(lock_held_ms=1001), "busy"),
    (StoreState(lock_held_ms=9_999_999), "busy"), (StoreState(lock_held_ms=10_000_000), None),
])
def test_the_store(settings: Settings, state: StoreState, expected: str | None) -> None:
    if expected == "busy":
        expected = {"4.9.3": "OS_PAGECACHE_BUSY", "5.3.3": "OS_PAGE_CACHE_BUSY"}[settings.version]
    assert status(admission.check_store(state, settings)) == expected


# -- topics -----------------------------------------------------------------------------------

RETRY = "%RETRY%"


@pytest.mark.parametrize(("topic", "old", "new", "unhooked"), [
    ("x", None, None, None),
    ("x" * 126, None, None, None), ("x" * 127, None, None, None),
    ("x" * 128, ILLEGAL, ILLEGAL, None), ("x" * 255, ILLEGAL, ILLEGAL, None),
    ("x" * 256, ILLEGAL, ILLEGAL, ILLEGAL),
    (RETRY + "x" * 120, None, None, None), (RETRY + "x" * 121, ILLEGAL, None, None),
    (RETRY + "x" * 248, ILLEGAL, None, None), (RETRY + "x" * 249, ILLEGAL, ILLEGAL, ILLEGAL),
    # The length byte of a v1 record would read back negative.
    ("é" * 63, None, None, None), ("é" * 64, ILLEGAL, ILLEGAL, ILLEGAL),
    (RETRY + "é" * 61, ILLEGAL, ILLEGAL, ILLEGAL),
    (RETRY + "x" * 119 + "é", ILLEGAL, ILLEGAL, ILLEGAL),
    (RETRY + "x" * 120 + "é", ILLEGAL, None, None),
    # Beyond the basic plane: two characters and four bytes each.
    ("😀" * 31, None, None, None), ("😀" * 32, ILLEGAL, ILLEGAL, ILLEGAL),
    (RETRY + "😀" * 61, ILLEGAL, None, None),
    ("", ILLEGAL, ILLEGAL, ILLEGAL), (".", ILLEGAL, ILLEGAL, ILLEGAL),
    ("..", ILLEGAL, ILLEGAL, ILLEGAL), ("a/b", ILLEGAL, ILLEGAL, ILLEGAL),
    ("../../etc", ILLEGAL, ILLEGAL, ILLEGAL), ("a\0", ILLEGAL, ILLEGAL, ILLEGAL),
    ("...", None, None, None), ("\udcff", None, None, None),
    ("\ud800", ILLEGAL, ILLEGAL, ILLEGAL),
])
def test_topics(topic: str, old: str | None, new: str | None, unhooked: str | None) -> None:
    for settings, expected, later in ((V493, old, old), (V533, new, unhooked)):
        batch = OutgoingBatch(topic, [BatchItem(b"")])
        assert status(admission.check_message(outgoing(topic=topic), settings)) == expected
        assert status(admission.check_batch(batch, settings)) == expected
        assert status(admission.check_message(outgoing(topic=topic), settings,
                                              hooks=False)) == later
        assert status(admission.check_batch(batch, settings, hooks=False)) == later


@given(st.text(max_size=300))
def test_what_is_admitted_can_be_read_back(topic: str) -> None:
    for settings in (V493, V533):
        for hooks in (True, False):
            if admission.check_message(outgoing(topic=topic), settings, hooks=hooks) is not None:
                continue
            encoder = Encoder(settings)
            part = encoder.topic_part(topic)
            size = encoder.size(0, part, 0, 0)
            raw = encoder.record(Record(size, part.magic, 0, 0, 0, 0, 0, 0, 0, V4, 0, V4, 0, 0,
                                        b"", b"", b""), part)
            text = decode(raw)
            assert text.topic.decode() == topic
            assert text.total_size == len(raw) == size


# -- properties, numbers, hosts ---------------------------------------------------------------

@pytest.mark.parametrize(("text", "old", "new"), [
    ("x" * 32_766, None, None), ("x" * 32_767, None, None),
    ("x" * 32_768, ILLEGAL, TOO_LONG),
    ("é" * 16_383, None, None), ("é" * 16_384, TOO_LONG, TOO_LONG),
    ("é" * 32_767, TOO_LONG, TOO_LONG), ("é" * 32_768, ILLEGAL, TOO_LONG),
    ("😀" * 16_383, TOO_LONG, TOO_LONG), ("😀" * 16_384, ILLEGAL, TOO_LONG),
    ("\udcff" * 32_767, None, None), ("\udcff" * 32_768, ILLEGAL, TOO_LONG),
    ("\ud800", ILLEGAL, ILLEGAL), ("a\udfff", ILLEGAL, ILLEGAL),
])
def test_properties(text: str, old: str | None, new: str | None) -> None:
    for settings, expected in ((V493, old), (V533, new)):
        result = admission.check_message(outgoing(properties=text), settings)
        if result is None:
            length = len(Encoder(settings).properties_part(text))
            result = admission.check_sizes(settings, 0, length, length + 92)
        assert status(result) == expected


@BOTH
@pytest.mark.parametrize(("name", "bits", "least"), [
    ("queue_id", 31, 0), ("flag", 31, -(1 << 31)), ("sys_flag", 31, -(1 << 31)),
    ("reconsume_times", 31, -(1 << 31)), ("born_timestamp", 63, -(1 << 63)),
    ("store_timestamp", 63, -(1 << 63)), ("prepared_transaction_offset", 63, -(1 << 63)),
])
def test_numbers(settings: Settings, name: str, bits: int, least: int) -> None:
    for value, expected in ((least, None), (least - 1, ILLEGAL), (0, None), (1, None),
                            ((1 << bits) - 1, None), (1 << bits, ILLEGAL), (1 << 200, ILLEGAL),
                            (-(1 << 200), ILLEGAL)):
        if name == "sys_flag" and value not in (0, 1, 1 << bits, least - 1):
            continue  # with all bits set it says IPv6
        assert status(admission.check_message(outgoing(**{name: value}), settings)) == expected
        if name != "prepared_transaction_offset":
            batch = OutgoingBatch("T", [BatchItem(b"")])
            holder: object = batch.messages[0] if name == "flag" else batch
            setattr(holder, name, value)
            assert status(admission.check_batch(batch, settings)) == expected


@pytest.mark.parametrize(("born", "store", "flag", "expected"), [
    (None, None, 0, None), (V4, V4, 0, None), (V6, V6, 0, None), (V6, V4, 0x10, None),
    (V6, V6, 0x30, None), (V4, V6, 0x20, None),
    (V4, V4, 0x10, ILLEGAL), (V6, V4, 0x20, ILLEGAL), (None, None, 0x10, ILLEGAL),
    ((b"abc", 1), V4, 0, ILLEGAL), (V4, (b"", 1), 0, ILLEGAL),
    ((V4[0], 1 << 31), V4, 0, ILLEGAL), (V4, (V4[0], -1), 0, None),
])
def test_hosts(born: Any, store: Any, flag: int, expected: str | None) -> None:
    fields = {"born_host": born, "store_host": store, "sys_flag": flag}
    assert status(admission.check_message(outgoing(**fields), V533)) == expected
    batch = OutgoingBatch("T", [BatchItem(b"")], **fields)
    assert status(admission.check_batch(batch, V533)) == expected


# -- sizes ------------------------------------------------------------------------------------

LIMIT = 4 << 20


@pytest.mark.parametrize(("settings", "body", "properties", "record", "expected"), [
    (V493, 0, 32_767, 0, None), (V493, 0, 32_768, 0, TOO_LONG),
    (V533, 0, 32_767, 0, None), (V533, 0, 32_768, 0, TOO_LONG),
    (V493, LIMIT - 91, 0, LIMIT - 1, None), (V493, LIMIT - 91, 0, LIMIT, None),
    (V493, LIMIT - 91, 0, LIMIT + 1, ILLEGAL),
    (V533, LIMIT - 1, 0, LIMIT + 100, None), (V533, LIMIT, 0, LIMIT + 100, None),
    (V533, LIMIT + 1, 0, LIMIT + 100, ILLEGAL),
    (V533, 0, 0, LIMIT + 65_536, None), (V533, 0, 0, LIMIT + 65_537, ILLEGAL),
    (V533, LIMIT + 1, 32_768, LIMIT + 65_537, TOO_LONG), (V493, 0, 32_768, LIMIT + 1, TOO_LONG),
])
def test_sizes(settings: Settings, body: int, properties: int, record: int,
               expected: str | None) -> None:
    assert status(admission.check_sizes(settings, body, properties, record)) == expected


@pytest.mark.parametrize(("settings", "body", "properties", "record", "expected"), [
    (V493, 0, 32_767, LIMIT, None), (V493, 0, 32_768, 0, "UNKNOWN_ERROR"),
    (V493, 0, 0, LIMIT + 1, "UNKNOWN_ERROR"),
    (V533, LIMIT, 32_767, LIMIT, None), (V533, 0, 32_768, 0, ILLEGAL),
    (V533, 0, 0, LIMIT + 1, ILLEGAL), (V533, LIMIT + 1, 0, 0, ILLEGAL),
])
def test_sizes_with_offsets_of_other_queues(settings: Settings, body: int, properties: int,
                                            record: int, expected: str | None) -> None:
    assert status(admission.check_sizes(settings, body, properties, record,
                                        multi_dispatch=True)) == expected


def test_the_largest_limit_does_not_overflow() -> None:
    settings = replace(V533, max_message_size=(1 << 31) - 1)
    assert admission.check_sizes(settings, 0, 0, (1 << 31) - 1) is None
    assert status(admission.check_sizes(settings, 0, 0, 1 << 31)) == ILLEGAL


@pytest.mark.parametrize(("text", "length"), [("x" * 32_747, None), ("x" * 32_746, 32_767),
                                              ("x" * 32_746 + "\x02", 32_767), ("", 20)])
def test_an_appended_crc_counts(text: str, length: int | None) -> None:
    settings = replace(V533, append_properties_crc=True)
    encoder = Encoder(settings)
    properties = len(encoder.properties_part(text)) + encoder.reserved
    assert status(admission.check_sizes(settings, 0, properties, properties)) == (
        None if length else TOO_LONG)
    assert length in (None, properties)


# -- batches ----------------------------------------------------------------------------------

def batch_of(*bodies: bytes, **fields: Any) -> OutgoingBatch:
    return OutgoingBatch("T", [BatchItem(body) for body in bodies], **fields)


@BOTH
@pytest.mark.parametrize("batch", [
    OutgoingBatch("T"), batch_of(b"", sys_flag=0x4), batch_of(b"", sys_flag=0x8),
    batch_of(b"", sys_flag=0xC), batch_of(b"", properties="DELAY\x011"),
    batch_of(b"", properties="DELAY\x01x"), batch_of(b"", properties="\ud800"),
    OutgoingBatch("T", [BatchItem(b""), BatchItem(b"", "\ud800")]),
])
def test_no_batches(settings: Settings, batch: OutgoingBatch) -> None:
    assert status(admission.check_batch(batch, settings)) == ILLEGAL


def test_inner_batches_are_no_batches() -> None:
    for batch in (batch_of(b"", sys_flag=0x80), batch_of(b"", properties="INNER_NUM\x012")):
        assert status(admission.check_batch(batch, V533)) == ILLEGAL
        assert admission.check_batch(batch, V493) is None


@BOTH
def test_the_request_of_a_batch_is_limited(settings: Settings) -> None:
    settings = replace(settings, max_message_size=1000)
    item = BatchItem(b"", "é" * 10)  # 22 + 20 bytes
    for body, expected in ((935, None), (936, None), (937, ILLEGAL)):
        batch = OutgoingBatch("T", [item, BatchItem(b"b" * body)])
        assert admission.request_size(batch) == 64 + body
        assert status(admission.check_batch(batch, settings)) == expected


def test_the_records_of_a_493_batch_are_limited() -> None:
    batch = batch_of(b"", b"")
    for settings, expected in ((V493, ILLEGAL), (V533, None)):
        assert admission.check_batch_sizes(settings, batch, [0, 0], [LIMIT - 9, 9]) is None
        assert status(admission.check_batch_sizes(settings, batch, [0, 0],
                                                  [LIMIT - 9, 10])) == expected


@BOTH
def test_the_properties_of_a_batch_are_limited(settings: Settings) -> None:
    batch = batch_of(b"", b"")
    assert admission.check_batch_sizes(settings, batch, [1, 32_767], [1, 1]) is None
    assert status(admission.check_batch_sizes(settings, batch, [1, 32_768], [1, 1])) == TOO_LONG
    shared = batch_of(b"", properties="x" * 32_768)
    assert status(admission.check_batch_sizes(settings, shared, [1], [1])) == TOO_LONG


def test_a_crc_counts_in_a_batch() -> None:
    settings = replace(V533, append_properties_crc=True)
    assert admission.check_batch_sizes(settings, batch_of(b""), [32_747], [1]) is None
    assert status(admission.check_batch_sizes(settings, batch_of(b""), [32_748], [1])) == TOO_LONG


# -- light queues -----------------------------------------------------------------------------

# -- records as they were ---------------------------------------------------------------------

def record(**fields: Any) -> Record:
    return replace(Record(0, MAGIC_V1, 0, 0, 0, 0, 0, 0, 0, V4, 0, V4, 0, 0, b"", b"T", b""),
                   **fields)


@pytest.mark.parametrize(("fields", "expected"), [
    ({}, None), ({"magic": 0}, None), ({"magic": MAGIC_V2}, None), ({"magic": 1}, ILLEGAL),
    ({"queue_offset": -1}, None), ({"physical_offset": -1}, None),
    ({"queue_id": -1}, ILLEGAL), ({"queue_id": 1 << 31}, ILLEGAL), ({"flag": 1 << 31}, ILLEGAL),
    ({"body_crc": 1 << 31}, ILLEGAL), ({"queue_offset": 1 << 63}, ILLEGAL),
    ({"store_timestamp": 1 << 63}, ILLEGAL), ({"physical_offset": -(1 << 63) - 1}, ILLEGAL),
    ({"topic": b""}, ILLEGAL), ({"topic": b".."}, ILLEGAL), ({"topic": b"a/b"}, ILLEGAL),
    ({"topic": b"\xff"}, None), ({"topic": b"x" * 127}, None), ({"topic": b"x" * 128}, ILLEGAL),
    ({"topic": b"x" * 128, "magic": 0}, None), ({"topic": b"x" * 255, "magic": MAGIC_V2}, None),
    ({"topic": b"x" * 256, "magic": MAGIC_V2}, ILLEGAL),
    ({"properties": b"x" * 32_767}, None), ({"properties": b"x" * 32_768}, TOO_LONG),
    ({"properties": b"\xff\xfe"}, None),
    ({"sys_flag": 0x10}, ILLEGAL), ({"born_host": V6}, ILLEGAL),
    ({"born_host": V6, "sys_flag": 0x10}, None), ({"store_host": V6, "sys_flag": 0x10}, ILLEGAL),
    ({"store_host": (b"", 0)}, ILLEGAL), ({"sys_flag": 0x80}, None),
    ({"topic": b"SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x011"}, None),
    ({"topic": b"SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x01x"}, ILLEGAL),
    ({"properties": b"DELAY\x01x"}, None),
    ({"properties": b"INNER_NUM\x012\x02INNER_BASE\x010"}, None),
    ({"properties": b"INNER_NUM\x01x\x02INNER_BASE\x010"}, ILLEGAL),
    ({"properties": b"INNER_NUM\x012\x02INNER_BASE\x01x"}, ILLEGAL),
    ({"properties": b"INNER_NUM\x01x"}, None),
])
def test_records(fields: dict[str, Any], expected: str | None) -> None:
    assert status(admission.check_record(record(**fields), V533)) == expected


def test_493_has_no_v2_records_and_no_inner_batches() -> None:
    assert status(admission.check_record(record(magic=MAGIC_V2), V493)) == ILLEGAL
    assert status(admission.check_record(record(magic=0, topic=b"x" * 128), V493)) == ILLEGAL
    odd = record(properties=b"INNER_NUM\x01x\x02INNER_BASE\x010")
    assert admission.check_record(odd, V493) is None
