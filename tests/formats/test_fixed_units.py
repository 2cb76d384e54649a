"""Every fixed-size unit: the page of the spec, both readers, numpy, the builder."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pytest
from construct import Int32sb, Struct
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats import dledger, layout
from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local import batch_consume_queue, checkpoint, consume_queue, index_file
from rmqctl.formats.tiered import index, units
from rmqctl.formats.timer import timer_check, timer_log, timer_wheel
from tests.formats.strategies import records_of

_ITEM = "key_hash topic_id queue_id commit_log_offset size time_diff"
# The pages of the spec, typed here once more on purpose: (size, struct format, names).
SPEC: dict[str, tuple[Fixed[Any], int, str, str]] = {
    "consumequeue": (consume_queue.UNIT, 20, ">qiq", "physical_offset size tags_code"),
    "batchconsumequeue": (
        batch_consume_queue.UNIT, 46, ">qiqqqhii",
        ("physical_offset size tags_code store_timestamp msg_base_offset batch_size "
        "compacted_offset reserved")),
    "index header": (
        index_file.HEADER, 40, ">qqqqii",
        ("begin_timestamp end_timestamp begin_phy_offset end_phy_offset hash_slot_count "
        "index_count")),
    "index slot": (index_file.SLOT, 4, ">i", "entry"),
    "index entry": (index_file.ENTRY, 20, ">iqii", "key_hash physical_offset time_diff previous"),
    "checkpoint": (
        checkpoint.CHECKPOINT, 40, ">qqqqq",
        ("physic_msg_timestamp logics_msg_timestamp index_msg_timestamp master_flushed_offset "
        "confirm_phy_offset")),
    "timer wheel slot": (timer_wheel.SLOT, 32, ">qqqii", "time first_pos last_pos num magic"),
    "timerlog unit": (
        timer_log.UNIT, 52, ">iqiqiqiiq",
        ("size prev_pos magic curr_write_time delay_time physical_offset message_size topic_hash "
        "reserved")),
    "timerlog tail": (timer_log.TAIL, 16, ">iqI", "size prev_pos magic"),
    "timercheck": (
        timer_check.TIMER_CHECK, 56, ">qqqqqqq",
        ("last_read_time_ms last_timer_log_flush_pos last_timer_queue_offset "
        "master_timer_queue_offset state_version timestamp counter")),
    "dledger head": (
        dledger.ENTRY_HEAD, 48, ">iiqqqiiii",
        "magic size entry_index term pos channel chain_crc body_crc body_length"),
    "dledger index": (dledger.INDEX_UNIT, 32, ">iqiqq", "magic pos size entry_index term"),
    "dledger end": (dledger.END, 8, ">ii", "magic size"),
    "tiered unit": (units.UNIT, 20, ">qiq", "commit_log_offset size tags_code"),
    "tiered coda": (units.CODA, 16, ">iIq", "size magic max_store_timestamp"),
    "tiered index header": (
        index.HEADER, 28, ">Iqqii",
        "magic begin_timestamp end_timestamp slot_count item_count"),
    "tiered index slot": (index.SLOT, 8, ">ii", "item unused"),
    "tiered index item": (index.ITEM, 32, ">iiiqiii", f"{_ITEM} previous"),
    "compacted slot": (index.COMPACTED_SLOT, 8, ">ii", "position length"),
    "compacted item": (index.COMPACTED_ITEM, 28, ">iiiqii", _ITEM),
}
UNITS = pytest.mark.parametrize("name", SPEC)


@UNITS
def test_layout_is_the_page_of_the_spec(name: str) -> None:
    unit, size, code, names = SPEC[name]
    assert unit.size == size == struct.calcsize(code)
    assert unit.names == tuple(names.split())
    raw = bytes(range(1, size + 1))
    assert tuple(unit.parse(raw)) == struct.unpack(code, raw)


@UNITS
@given(data=st.data())
def test_build_and_parse_are_inverse(name: str, data: st.DataObject) -> None:
    unit = SPEC[name][0]
    record = data.draw(records_of(unit))
    raw = unit.build(record)
    assert len(raw) == unit.size
    assert unit.parse(raw) == unit.decode(raw) == record
    some = data.draw(st.binary(min_size=unit.size, max_size=unit.size))
    assert unit.build(unit.parse(some)) == some


@UNITS
@given(raw=st.binary(max_size=200), at=st.integers(-3, 210), base=st.integers(0, 1 << 40))
def test_both_readers_agree_on_any_bytes(name: str, raw: bytes, at: int, base: int) -> None:
    unit = SPEC[name][0]

    def answer(read: Any) -> Any:
        try:
            return read(raw, at, base)
        except FormatError as error:
            return error.reason, error.offset, error.path

    assert answer(unit.parse) == answer(unit.decode)


@UNITS
@given(raw=st.binary(max_size=300))
def test_numpy_reads_what_the_slow_reader_reads(name: str, raw: bytes) -> None:
    unit = SPEC[name][0]
    count = len(raw) // unit.size
    array = unit.array(raw)
    assert unit.dtype().itemsize == unit.size
    slow = [unit.parse(raw, number * unit.size) for number in range(count)]
    assert [tuple(row) for row in array.tolist()] == slow
    whole = raw[:count * unit.size]
    assert list(unit.decode_all(whole)) == slow


@UNITS
def test_a_part_of_a_unit_is_refused_with_its_first_missing_field(name: str) -> None:
    unit = SPEC[name][0]
    for cut in range(unit.size):
        missing = next(field.name for field in unit.fields if field.offset + field.size > cut)
        for read in (unit.parse, unit.decode):
            with pytest.raises(FormatError) as caught:
                read(bytes(cut), 0, 1000)
            assert (caught.value.offset, caught.value.path) == (1000, missing)
        if cut:
            with pytest.raises(FormatError) as caught:
                list(unit.decode_all(bytes(unit.size + cut), 500))
            assert caught.value.offset == 500 + unit.size


@UNITS
def test_a_value_too_large_for_its_field_is_refused(name: str) -> None:
    unit = SPEC[name][0]
    zeros = unit.decode(bytes(unit.size))
    for field in unit.names:
        with pytest.raises(FormatError) as caught:
            unit.build(zeros._replace(**{field: 1 << 64}))
        assert caught.value.path == field


def test_a_record_with_other_names_than_its_declaration_is_a_defect() -> None:
    class Wrong(NamedTuple):
        other: int

    with pytest.raises(layout.LayoutError):
        Fixed(Struct("entry" / Int32sb), Wrong)


def test_field_says_where_it_lies() -> None:
    assert consume_queue.UNIT.field("tags_code").offset == 12
    with pytest.raises(layout.LayoutError):
        consume_queue.UNIT.field("nothing")


def test_the_modules_give_their_dtype() -> None:
    assert consume_queue.dtype().itemsize == 20
    assert batch_consume_queue.dtype().itemsize == 46
    assert index_file.dtype().itemsize == 20
    assert index_file.slot_dtype().itemsize == 4
    assert timer_wheel.dtype().itemsize == 32
    assert timer_log.dtype().itemsize == 52
