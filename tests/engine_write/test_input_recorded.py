"""`Recorded` is the inverse of `store.objects.message_object`: the same bytes come back."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.engine.input.objects import InputError, Recorded
from rmqctl.formats.local import message
from rmqctl.formats.local.message import CRC_MASK, Record, build, decode
from rmqctl.output.streams import Sink
from rmqctl.store.files import StoreFile
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.objects import message_object
from tests.conftest import GoldenFolder
from tests.formats.strategies import messages
from tests.support import golden as golden_sets
from tests.support import stored

RECORDED = Recorded()
HEALTHY = golden_sets.clean_stores()


def sound(record: Record) -> Record:
    """The record with the CRC its body has; that of an empty body may be anything."""
    if not record.body:
        return record
    return replace(record, body_crc=zlib.crc32(record.body) & CRC_MASK)


def as_read_writes_it(message_object: dict) -> bytes:
    """One line of `read -o jsonl`, through the sink: half surrogates become escapes."""
    taken: list[bytes] = []

    class Stream:
        encoding = "utf-8"

        class buffer:  # noqa: N801  # the attribute's name
            write = staticmethod(taken.append)
            flush = staticmethod(lambda: None)

        flush = staticmethod(lambda: None)

    Sink(Stream()).write(json.dumps(message_object, ensure_ascii=False))
    return b"".join(taken)


@given(messages().map(sound), st.sampled_from(["base64", "auto"]))
def test_any_record_comes_back(record, body):
    message = message_object(record, body=body)
    for line in (as_read_writes_it(message), json.dumps(message).encode()):
        back = RECORDED.line(line)
        assert back == record
        assert build(back) == build(record)
    assert RECORDED.object(message) == record


@given(messages().map(sound), st.randoms())
def test_the_order_of_the_fields_and_unknown_ones_mean_nothing(record, random):
    fields = list(message_object(record, body="base64").items())
    fields.append(("a field of tomorrow", [{"x": None}, 1.5]))
    random.shuffle(fields)
    assert RECORDED.line(json.dumps(dict(fields)).encode()) == record


def records_of(golden: GoldenFolder, store: golden_sets.GoldenStore):
    """(record, its bytes) of every record of a golden store, by our reader."""
    root = golden(store.id)
    files = [StoreFile(str(path), path.name, int(path.name), path.stat().st_size)
             for folder in store.commitlog_dirs for path in sorted((root / folder).iterdir())]
    log = CommitLog(files)
    for batch in log.walk():
        for number in range(len(batch)):
            raw = bytes(batch.bytes_at(number))
            yield decode(raw), raw
    log.close()


@pytest.mark.parametrize("store", HEALTHY, ids=lambda golden_store: golden_store.id)
def test_every_golden_record_comes_back(golden, store):
    count = 0
    for record, raw in records_of(golden, store):
        line = as_read_writes_it(message_object(record, body="base64"))
        assert build(RECORDED.line(line)) == raw
        count += 1
    assert count


@pytest.mark.parametrize("store", HEALTHY, ids=lambda golden_store: golden_store.id)
def test_what_the_engine_says_of_its_records_is_enough(golden, store):
    ours = {record.physical_offset: (record.body, raw)
            for record, raw in records_of(golden, store)}
    count = 0
    for put in stored.puts_of(store, golden):
        if put.physical_offset in ours:
            body, raw = ours[put.physical_offset]
            message_object = stored.object_of(put) | {
                "body": base64.b64encode(body).decode(), "body_encoding": "base64"}
            assert build(RECORDED.line(json.dumps(message_object).encode())) == raw
            count += 1
    assert count


WHOLE = message_object(sound(Record(
    0, message.MAGIC_V1, 0, 3, 0, 7, 4096, 0, 1_700_000_000_000, (b"\n\0\0\7", 52011),
    1_700_000_000_004, (b"\n\0\0\1", 10911), 0, 0, b"hello", b"TopicTest",
    b"KEYS\x01k1 k2\x02TAGS\x01A")))


def without(*names):
    return {name: value for name, value in WHOLE.items() if name not in names}


def test_what_may_be_left_out():
    least = without("physical_offset", "queue_offset", "queue_id", "flag", "sys_flag", "magic",
                    "body_crc", "total_size", "reconsume_times", "prepared_transaction_offset",
                    "properties_raw", "body_encoding", "msg_id", "crc_ok")
    record = RECORDED.object(least)
    assert (record.magic, record.total_size) == (0, 0)
    assert (record.physical_offset, record.queue_offset) == (-1, -1)
    assert (record.queue_id, record.flag, record.sys_flag) == (0, 0, 0)
    assert record.body_crc == zlib.crc32(b"hello") & CRC_MASK
    assert record.properties == b"KEYS\x01k1 k2\x02TAGS\x01A\x02"
    bare = Recorded(trailing=False).object(least)
    assert bare.properties == b"KEYS\x01k1 k2\x02TAGS\x01A"


def test_null_is_absent():
    record = RECORDED.object(WHOLE | {"physical_offset": None, "magic": None, "keys": None})
    assert (record.physical_offset, record.magic) == (-1, 0)


@pytest.mark.parametrize(("given", "reason"), [
    (without("topic", "body", "born_timestamp", "born_host", "store_timestamp", "store_host"),
     "fields topic, body, born_timestamp, born_host, store_timestamp, store_host: missing"),
    (without("store_host"), "field store_host: missing"),
    (without("body"), "field body: missing"),
    (WHOLE | {"body_crc": 5}, "field body_crc: is 5, but the CRC of the body is 907060870"),
    (WHOLE | {"body": "hell\x6f "}, "field body_crc: is 907060870, but the CRC of the body is "),
    (WHOLE | {"body_crc": 1 << 31}, "field body_crc: expected an integer <= 2147483647"),
    (WHOLE | {"magic": "v3"}, "field magic: 'v3' is neither v1 nor v2"),
    (WHOLE | {"magic": 1}, "field magic: expected text, got an integer"),
    (WHOLE | {"queue_offset": "7"}, "field queue_offset: expected an integer, got text"),
    (WHOLE | {"store_timestamp": "now"}, "field store_timestamp: expected an integer, got"),
    (WHOLE | {"delay_level": 3}, "field delay_level: not valid for a stored record"),
    (WHOLE | {"messages": []}, "field messages: not valid for a stored record"),
])
def test_what_is_refused(given, reason):
    for take in (RECORDED.object, lambda row: RECORDED.line(json.dumps(row).encode())):
        with pytest.raises(InputError) as caught:
            take(given)
        assert str(caught.value).startswith(reason)


def test_an_empty_body_keeps_any_crc():
    assert RECORDED.object(WHOLE | {"body": "", "body_crc": 77}).body_crc == 77
    assert RECORDED.object(without("body_crc") | {"body": ""}).body_crc == 0
