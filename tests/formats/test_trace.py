"""Field by field: every byte of a record belongs to exactly one named field."""

from __future__ import annotations

import pytest
from construct import Byte, Bytes, GreedyBytes, Int16sb, Struct, this
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.formats.local import append_crc, consume_queue_ext, message
from rmqctl.formats.local.message import Record
from rmqctl.formats.local.trace import trace
from tests.formats.strategies import messages
from tests.formats.test_message import SMALL


def test_fields_of_a_message() -> None:
    parts = list(trace(message.Message, SMALL))
    assert [(part.name, part.at, len(part.raw)) for part in parts] == [
        ("total_size", 0, 4), ("magic", 4, 4), ("body_crc", 8, 4), ("queue_id", 12, 4),
        ("flag", 16, 4), ("queue_offset", 20, 8), ("physical_offset", 28, 8), ("sys_flag", 36, 4),
        ("born_timestamp", 40, 8), ("born_host.address", 48, 4), ("born_host.port", 52, 4),
        ("store_timestamp", 56, 8), ("store_host.address", 64, 4), ("store_host.port", 68, 4),
        ("reconsume_times", 72, 4), ("prepared_transaction_offset", 76, 8),
        ("body_length", 84, 4), ("body", 88, 5), ("topic_length", 93, 1), ("topic", 94, 2),
        ("properties_length", 96, 2), ("properties", 98, 7)]
    assert {part.name: part.value for part in parts}["body"] == b"hello"


@given(messages(), st.binary(max_size=10))
def test_all_bytes_of_a_record_are_named_and_no_more(record: Record, before: bytes) -> None:
    raw = before + message.build(record) + b"behind"
    parts = list(trace(message.Message, raw, len(before)))
    assert all(part.whole for part in parts)
    assert b"".join(part.raw for part in parts) == message.build(record)
    at = len(before)
    for part in parts:
        assert part.at == at
        at += len(part.raw)
    values = {part.name: part.value for part in parts}
    assert (values["born_host.address"], values["born_host.port"]) == record.born_host
    assert values["properties"] == record.properties


def test_a_cut_record_ends_at_the_field_that_is_not_whole() -> None:
    for cut in range(len(SMALL)):
        *whole, last = trace(message.Message, SMALL[:cut])
        assert not last.whole
        assert last.value is None
        assert all(part.whole for part in whole)
        assert b"".join(part.raw for part in [*whole, last]) == SMALL[:cut]


@given(st.binary(max_size=150))
def test_any_bytes(raw: bytes) -> None:
    for declaration in (message.Message, consume_queue_ext.Unit):
        parts = list(trace(declaration, raw))
        assert sum(not part.whole for part in parts) <= 1
        assert b"".join(part.raw for part in parts) == raw[:sum(len(p.raw) for p in parts)]


def test_constants_have_names_too() -> None:
    assert [part.name for part in trace(append_crc.AppendedCrc, append_crc.build(5))] == [
        "name", "separator", "digits", "end"]


def test_negative_lengths_end_the_record() -> None:
    declaration = Struct("n" / Int16sb, "body" / Bytes(this.n), "z" / Byte)
    parts = list(trace(declaration, b"\xff\xffabc"))
    assert [(part.name, part.whole) for part in parts] == [("n", True), ("body", False)]


def test_a_field_of_no_known_size_is_a_defect_of_the_declaration() -> None:
    with pytest.raises(TypeError):
        list(trace(Struct("rest" / GreedyBytes), b"abc"))
