"""The message record: golden bytes, both readers, refusals, ids."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats.local import message
from rmqctl.formats.local.message import MAGIC_V1, MAGIC_V2, Record
from rmqctl.formats.local.sysflag import BORN_HOST_V6, STORE_HOST_V6
from tests.conftest import GoldenFolder
from tests.formats.strategies import messages
from tests.support import engine

# Typed by hand from the page of the spec.
BORN, STORED = b"\x0a\x00\x00\x07", b"\x0a\x00\x00\x01"
SMALL = bytes.fromhex(
    "00000069 daa320a7 3610a686 00000003 00000007 0000000000000005 0000000000001000 00000000"
    "0000018bcfe56800 0a000007 0000cb2b 0000018bcfe56804 0a000001 00002a9f 00000000"
    "0000000000000000 00000005".replace(" ", "")) + b"hello" + b"\x02Tt" + b"\x00\x07TAGS\x01A\x02"

SETS = ("4.9.3/basic", "4.9.3/ipv6", "4.9.3/transaction", "4.9.3/batch", "4.9.3/lmq",
        "5.3.3/ipv6", "5.3.3/v2topic", "5.3.3/batchcq", "5.3.3/appendcrc", "5.3.3/transaction")


def frames(folder: Path) -> Iterator[tuple[int, bytes]]:
    """(physical offset, bytes) of the records of a cleanly written store."""
    for file in sorted(folder.glob("store/commitlog/*")):
        data, at = file.read_bytes(), 0
        while at + message.BLANK_SIZE <= len(data):
            size, magic = int.from_bytes(data[at:at + 4]), int.from_bytes(data[at + 4:at + 8])
            if magic not in message.VERSIONS:
                break
            yield int(file.name) + at, data[at:at + size]
            at += size


def test_golden_bytes() -> None:
    record = message.parse(SMALL)
    assert record == message.decode(SMALL)
    assert (record.total_size, record.magic, record.queue_id, record.flag) == (105, MAGIC_V1, 3, 7)
    assert (record.queue_offset, record.physical_offset, record.sys_flag) == (5, 4096, 0)
    assert (record.born_timestamp, record.store_timestamp) == (1700000000000, 1700000000004)
    assert record.born_host == (BORN, 52011)
    assert record.store_host == (STORED, 10911)
    assert (record.body, record.topic, record.properties) == (b"hello", b"Tt", b"TAGS\x01A\x02")
    assert record.body_crc == zlib.crc32(b"hello") & 0x7FFFFFFF
    assert record.crc_ok
    assert record.message_id == "0A00000100002A9F0000000000001000"
    assert message.build(record) == SMALL


@pytest.mark.parametrize("name", SETS)
def test_every_record_is_what_the_engine_stored(name: str, golden: GoldenFolder) -> None:
    stored = {message.physical_offset: message for put in engine.puts(golden(name) / "input.jsonl")
              for message in put.stored}
    count = 0
    for offset, raw in frames(golden(name)):
        queue = stored[offset]
        record = message.decode(raw, 0, offset)
        assert record == message.parse(raw, 0, offset)
        assert message.build(record) == raw
        assert hashlib.sha1(raw).hexdigest() == queue.raw_sha1
        assert (record.magic, record.total_size, record.body_crc, record.queue_id, record.flag,
                record.queue_offset, record.physical_offset, record.sys_flag,
                record.born_timestamp, record.store_timestamp, record.reconsume_times,
                record.prepared_transaction_offset) == (
            queue.magic, queue.size, queue.body_crc, queue.queue_id, queue.flag, queue.queue_offset,
            queue.physical_offset, queue.sys_flag, queue.born_timestamp, queue.store_timestamp,
            queue.reconsume_times, queue.prepared_transaction_offset)
        assert record.topic.decode() == queue.topic
        assert record.properties.decode() == queue.properties
        assert hashlib.sha1(record.body).hexdigest() == queue.body_sha1
        assert record.crc_ok
        for host, text in ((record.born_host, queue.born_host),
                           (record.store_host, queue.store_host)):
            assert host == message.host_bytes(text)
        count += 1
    assert count == len(stored) > 20


@pytest.mark.parametrize("name", SETS)
def test_message_ids_are_the_engines(name: str, golden: GoldenFolder) -> None:
    records = {offset: message.decode(raw) for offset, raw in frames(golden(name))}
    count = 0
    for put in engine.puts(golden(name) / "input.jsonl"):
        ids = [part for part in (put.result.get("msgId") or "").split(",") if part]
        if len(ids) != len(put.stored):
            continue
        for text, stored_message in zip(ids, put.stored, strict=True):
            record = records[stored_message.physical_offset]
            assert record.message_id == text
            assert message.parse_message_id(text) == (*record.store_host,
                                                      stored_message.physical_offset)
            assert message.parse_message_id(text.lower())[2] == stored_message.physical_offset
            count += 1
    assert count > 20


@given(messages())
def test_build_and_parse_are_inverse(record: Record) -> None:
    raw = message.build(record)
    assert len(raw) == record.total_size
    assert message.parse(raw) == message.decode(raw) == record


@pytest.mark.parametrize("born", [bytes(3), bytes(16)])
def test_an_address_of_another_width_is_refused(born: bytes) -> None:
    record = message.decode(SMALL)
    with pytest.raises(ValueError, match=f"addresses of {len(born)} and 4 bytes"):
        message.build(replace(record, born_host=(born, 1)))


@given(messages(), st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_is_read_where_it_lies(record: Record, before: bytes, after: bytes) -> None:
    raw = before + message.build(record) + after
    assert message.parse(raw, len(before)) == message.decode(raw, len(before)) == record


def answer(read: Callable[[bytes], Record], raw: bytes) -> Record | None:
    try:
        return read(raw)
    except FormatError:
        return None


@given(st.binary(max_size=200))
def test_random_bytes_never_crash_and_both_readers_agree(raw: bytes) -> None:
    assert answer(message.parse, raw) == answer(message.decode, raw)


@given(messages(), st.data())
def test_both_readers_agree_on_damaged_records(record: Record, data: st.DataObject) -> None:
    raw = bytearray(message.build(record))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(raw[:data.draw(st.integers(0, len(raw)))])
    assert answer(message.parse, bytes(raw)) == answer(message.decode, bytes(raw))
    assert answer(message.parse, cut) == answer(message.decode, cut)


def test_every_bit_flip_and_truncation_of_a_record_agrees() -> None:
    for bit in range(8 * len(SMALL)):
        raw = bytearray(SMALL)
        raw[bit // 8] ^= 1 << bit % 8
        assert answer(message.parse, bytes(raw)) == answer(message.decode, bytes(raw)), bit
    for cut in range(len(SMALL)):
        assert answer(message.parse, SMALL[:cut]) is None
        assert answer(message.decode, SMALL[:cut]) is None


def refusal(read: Callable[..., Record], raw: bytes) -> tuple[str | None, int | None, str] | None:
    try:
        read(raw, 0, 7000)
    except FormatError as error:
        return error.path, error.offset, error.reason
    return None


def test_both_readers_refuse_with_the_same_words() -> None:
    random = Random(4711)
    raws = [SMALL[:cut] for cut in range(len(SMALL))]
    for bit in range(8 * len(SMALL)):
        raw = bytearray(SMALL)
        raw[bit // 8] ^= 1 << bit % 8
        raws.append(bytes(raw))
    raws += [random.randbytes(random.randrange(200)) for _ in range(500)]
    for raw in raws:
        assert refusal(message.parse, raw) == refusal(message.decode, raw), raw.hex()


BAD_FIELDS = [(4, "daa320a8", "magic"), (4, "cbd43194", "magic"), (0, "00000068", "total_size"),
              (0, "0000006a", "total_size")]
BAD_LENGTHS = [(93, "ff", "topic_length"), (96, "ffff", "properties_length"),
               (84, "ffffffff", "body_length")]


@pytest.mark.parametrize(("read", "at", "value", "path"), [
    *[(message.decode, *case) for case in BAD_FIELDS + BAD_LENGTHS],
    *[(message.parse, *case) for case in BAD_FIELDS],
    *[pytest.param(message.parse, *case) for case in BAD_LENGTHS],
])
def test_refusals_name_field_and_offset(read: Callable[..., Record], at: int, value: str,
                                        path: str) -> None:
    change = bytes.fromhex(value)
    raw = SMALL[:at] + change + SMALL[at + len(change):]
    with pytest.raises(FormatError) as caught:
        read(b"\0" * 10 + raw, 10, 90)
    assert (caught.value.offset, caught.value.path) == (100, path)
    assert f"@100 field {path}" in str(caught.value)


@pytest.mark.parametrize("read", [message.parse, message.decode])
def test_places_outside_the_data_are_refused(read: Callable[..., Record]) -> None:
    for at in (-1, len(SMALL), len(SMALL) + 1):
        with pytest.raises(FormatError):
            read(SMALL, at)


def test_the_crc_of_a_changed_body_and_of_an_empty_one() -> None:
    record = message.parse(SMALL)
    record.body = b"hellO"
    assert not record.crc_ok
    record.body = b""
    assert not record.crc_ok
    record.body_crc = 0
    assert record.crc_ok


def test_sizes_of_the_eight_shapes() -> None:
    for magic in (MAGIC_V1, MAGIC_V2):
        for flags in (0, 0x10, 0x20, 0x30):
            fixed = 91 + 12 * bool(flags & 0x10) + 12 * bool(flags & 0x20) + (magic == MAGIC_V2)
            assert message.size_of(flags, magic, 5, 2, 7) == fixed + 14
    assert message.MIN_SIZE == 91
    assert message.BLANK_SIZE == 8


@given(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
       st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1))
def test_ids_and_host_texts_lead_back(address: bytes, port: int, offset: int) -> None:
    text = message.message_id(address, port, offset)
    assert len(text) == (32 if len(address) == 4 else 56)
    assert message.parse_message_id(text) == (address, port, offset)
    assert message.host_bytes(message.host_text(address, port)) == (address, port)


def test_host_texts() -> None:
    assert message.host_text(BORN, 52011) == "10.0.0.7:52011"
    assert message.host_text(bytes(15) + b"\1", 10911) == "[::1]:10911"
    for text in ("10.0.0.7", "host:1", "1.2.3.4:", "[::1]"):
        with pytest.raises(ValueError, match=r".*"):
            message.host_bytes(text)


@pytest.mark.parametrize("text", ["", "0", "zz" * 16, "00" * 15, "00" * 17, "00" * 29])
def test_texts_that_are_no_message_id(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        message.parse_message_id(text)


@pytest.mark.parametrize(("bits", "magic"), message.VARIANTS)
def test_both_readers_name_the_field_that_is_cut(bits: int, magic: int) -> None:
    born, store = (bytes(16 if bits & bit else 4) for bit in (BORN_HOST_V6, STORE_HOST_V6))
    record = Record(message.size_of(bits, magic, 4, 1, 4), magic, 0, 0, 0, 1, 0, bits, 5, (born, 1),
                    6, (store, 2), 0, 0, b"body", b"T", b"K\x01v\x02")
    raw = message.build(record)
    assert message.decode(raw) == message.parse(raw) == record
    for length in range(len(raw)):
        # Behind other bytes, and with a magic that is none.
        for data, at in ((raw[:length], 0), (b"xyz" + raw[:length], 3),
                         (raw[:4] + b"\xda\xa3\x20\xa6"[:max(length - 4, 0)] + raw[8:length], 0)):
            fast, slow = (_refused(reader, data, at) for reader in (message.decode, message.parse))
            assert fast == slow


def _refused(reader: Callable[[bytes, int], Record], data: bytes, at: int) -> tuple[str | None, str,
                                                                                    int | None]:
    with pytest.raises(FormatError) as refused:
        reader(data, at)
    return refused.value.path, refused.value.reason, refused.value.offset
