"""Java's hash, the properties string in both rules, sysFlag, delay levels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.formats.local import consume_queue, delay, javahash, sysflag
from rmqctl.formats.local import properties as props
from tests.support import engine

# Made with java.lang.String.hashCode; the last ones are classics of their kind.
HASHES = {
    "": 0, "A": 65, "TagC": 2598921, "Aa": 2112, "BB": 2112, "AaAa": 2031744, "BBBB": 2031744,
    "created": 1028554472,
    "tag-with-dash": 171595206, "标签": 857175, "polygenelubricants": -2147483648,
    "hello": 99162322,
    "ü": 252, "\U0001f642": 1772965,
}


@pytest.mark.parametrize("text", HASHES)
def test_java_hash(text: str) -> None:
    assert javahash.string_hash(text) == HASHES[text]


def test_colliding_keys_share_an_index_hash() -> None:
    assert javahash.index_hash("T#Aa") == javahash.index_hash("T#BB")


def test_the_smallest_integer_has_no_absolute_value() -> None:
    assert javahash.index_hash("polygenelubricants") == 0
    assert javahash.index_hash("GydZG_") == 0
    assert javahash.tags_code("polygenelubricants") == -2147483648


def test_tags_code_of_nothing_is_zero() -> None:
    assert javahash.tags_code(None) == javahash.tags_code("") == 0


@given(st.text())
def test_hash_is_over_utf16_units(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = 31 * value + int.from_bytes(units[at:at + 2])
    value &= 0xFFFFFFFF
    assert javahash.string_hash(text) == value - (value >> 31 << 32)
    assert 0 <= javahash.index_hash(text) < 1 << 31


@pytest.mark.parametrize(("raw", "properties"), [
    ("", {}),
    ("a\x01b", {"a": "b"}),
    ("a\x01b\x02", {"a": "b"}),
    ("a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
    ("a\x01", {}),
    ("\x01b", {}),
    ("\x01bc", {}),
    ("ab\x02c\x01d", {"c": "d"}),
    ("k\x01v\x01", {"k": "v\x01"}),
    ("k\x01a\x01b", {"k": "a\x01b"}),
    ("a\x01b\x02a\x01c\x02", {"a": "c"}),
    ("\x02\x02a\x01b\x02\x02", {"a": "b"}),
    ("\x02", {}),
    ("\x01", {}),
    ("größe\x01ü🙂", {"größe": "ü🙂"}),
])
def test_properties_as_a_broker_reads_them(raw: str, properties: dict[str, str]) -> None:
    assert props.parse(raw) == properties


texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]),
                min_size=1)


@given(st.dictionaries(texts, texts), st.booleans())
def test_built_properties_are_read(pairs: dict[str, str], trailing: bool) -> None:
    raw = props.build(pairs, trailing=trailing)
    assert props.parse(raw) == pairs
    assert raw.endswith("\x02") == (trailing and bool(pairs))


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/basic", "5.3.3/lmq"])
def test_what_the_engine_stored_is_read_and_written_back(
        name: str, golden: Callable[[str], Path]) -> None:
    for put in engine.puts(golden(name) / "input.jsonl"):
        for message in put.stored:
            properties = props.parse(message.properties)
            trailing = message.properties.endswith("\x02")
            assert props.build(properties, trailing=trailing) == message.properties


def test_keys_are_split_on_single_spaces() -> None:
    assert props.split_keys("a  b ") == ["a", "b"]
    assert props.split_keys("a\tb") == ["a\tb"]
    assert props.split_keys(None) == props.split_keys("") == props.split_keys(" ") == []


def test_sys_flag_fields() -> None:
    kinds = [sysflag.transaction_type(flag) for flag in (0, 4, 8, 12, 0x10 | 8)]
    assert kinds == ["none", "prepared", "commit", "rollback", "commit"]
    assert [sysflag.has_consume_queue_row(flag) for flag in (0, 4, 8, 12)] == [
        True, False, True, False]
    assert [sysflag.is_indexed(flag) for flag in (0, 4, 8, 12)] == [True, True, True, False]
    assert [sysflag.compression(flag) for flag in (0, 0x700, 1, 0x101, 0x201, 0x301, 0x401)] == [
        None, None, "zlib", "lz4", "zstd", "zlib", "unknown-4"]


def test_default_delay_levels() -> None:
    seconds = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600,
               7200]
    assert delay.DEFAULT_LEVELS == {n: 1000 * s for n, s in enumerate(seconds, 1)}
    assert delay.parse_levels("2d") == {1: 172_800_000}
    for text in ("", "1", "1x", "1s  2s", "s"):
        with pytest.raises(ValueError, match="delay level"):
            delay.parse_levels(text)


def test_deliver_time() -> None:
    assert delay.deliver_time("3", 1_000) == 11_000
    assert delay.deliver_time("99", 0) == 7_200_000
    assert delay.deliver_time("0", 5) is None
    assert delay.deliver_time("-1", 5) is None
    assert delay.deliver_time("5", 5, {}) is None  # the 4.9.2 quirk: no table yet
    assert delay.deliver_time("2", 5, {3: 1}) == 1005
    for text in ("", "x", "2147483648", "1.0", " 1"):
        with pytest.raises(ValueError, match="not a 32-bit number"):
            delay.deliver_time(text, 0)


def test_java_numbers() -> None:
    assert delay.java_int("+2147483647") == 2147483647
    assert delay.java_int("-9223372036854775808", 64) == -(1 << 63)
    for text, bits in (("2147483648", 32), ("9" * 5000, 64), ("9223372036854775808", 64)):
        with pytest.raises(ValueError, match="not a .*-bit number"):
            delay.java_int(text, bits)


@pytest.mark.parametrize(("topic", "properties", "code"), [
    ("T", {}, 0),
    ("T", {"TAGS": "TagC"}, 2598921),
    ("T", {"TAGS": "TagC", "DELAY": "3"}, 2598921),
    ("SCHEDULE_TOPIC_XXXX", {"TAGS": "TagC", "DELAY": "3"}, 1_700_000_010_000),
    ("SCHEDULE_TOPIC_XXXX", {"TAGS": "TagC", "DELAY": "0"}, 2598921),
    ("SCHEDULE_TOPIC_XXXX", {"TAGS": "TagC"}, 2598921),
])
def test_tags_code_of_a_record(topic: str, properties: dict[str, str], code: int) -> None:
    assert consume_queue.tags_code(topic, properties, 1_700_000_000_000) == code


def test_a_delay_that_is_no_number_makes_the_record_dirty() -> None:
    with pytest.raises(ValueError, match="not a 32-bit number"):
        consume_queue.tags_code("SCHEDULE_TOPIC_XXXX", {"DELAY": "soon"}, 0)
