"""consumequeue, its ext files, batch queues, compaction: against the engine's own listing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats.local import batch_consume_queue as batch
from rmqctl.formats.local import compaction, consume_queue, message
from rmqctl.formats.local import consume_queue_ext as ext
from tests.conftest import GoldenFolder
from tests.formats.strategies import i64
from tests.support import engine

# From 5.3.3/cqext: the first unit of TP_order_Topic/0's ext file.
EXT_UNIT = bytes.fromhex("0022 00000000000d1457 0000019000d362c5 000e 267e579ed1934e4bb3e218762a04")
# From 5.3.3/compaction: one unit and the end unit.
SPARSE = bytes.fromhex("000000000000016e 0000029f 000000000027a808 000001902035f236"
                       "000000000000001a 0001 ffffffff 00000000")
SPARSE_END = bytes.fromhex("ffffffffffffffff" + "00" * 30 + "ffffffff00000000")


def files(folder: Path) -> Iterator[tuple[int, bytes]]:
    for file in sorted(folder.iterdir()):
        yield int(file.name), file.read_bytes()


def test_filler_and_unused_units() -> None:
    filler = consume_queue.parse(bytes.fromhex("0000000000000000 7fffffff 0000000000000000"))
    assert filler == consume_queue.FILLER
    assert filler.is_filler
    assert filler.is_valid  # a broker's test lets it pass
    assert consume_queue.parse(bytes(20)) == consume_queue.ZERO
    assert batch.parse(bytes(46)) == batch.ZERO
    assert not consume_queue.ZERO.is_valid
    assert not consume_queue.UnitRecord(-1, 5, 0).is_valid
    assert not consume_queue.UnitRecord(5, -5, 0).is_valid
    assert not consume_queue.UnitRecord(0, 0x7FFFFFFF, 1).is_filler


def test_sizes_and_places() -> None:
    assert consume_queue.DEFAULT_FILE_SIZE == 6_000_000
    assert [consume_queue.file_size(n) for n in (380, 381, 399, 400)] == [380, 400, 400, 400]
    assert consume_queue.byte_offset(31) == 620
    assert consume_queue.queue_offset(639) == 31
    assert batch.DEFAULT_FILE_SIZE == 13_800_000


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/basic", "5.3.3/delay", "5.3.3/lmq",
                                  "5.3.3/transaction"])
def test_units_are_what_the_engine_lists(name: str, golden: GoldenFolder) -> None:
    folder = golden(name)
    checked = 0
    for queue in engine.load(folder / "expect.json").queues:
        place = folder / "store/consumequeue" / queue.topic / str(queue.queue_id)
        if not place.is_dir():
            continue
        read = {consume_queue.queue_offset(base) + number: unit for base, data in files(place)
                for number, unit in enumerate(consume_queue.UNIT.decode_all(data))}
        for unit in queue.units:
            assert read[unit.queue_offset] == (unit.physical_offset, unit.size, unit.tags_code)
            checked += 1
    assert checked > 50


def test_tags_codes_are_the_engines(golden: GoldenFolder) -> None:
    """The code computed from each stored record equals the one in its row, delays included."""
    from rmqctl.formats.local import properties as props

    for name in ("5.3.3/delay", "4.9.3/delay", "5.3.3/basic"):
        folder = golden(name)
        codes = {unit.physical_offset: unit.tags_code
                 for queue in engine.load(folder / "expect.json").queues for unit in queue.units
                 if not unit.is_filler}
        checked = 0
        for put in engine.puts(folder / "input.jsonl"):
            for record in put.stored:
                if record.physical_offset in codes:
                    assert consume_queue.tags_code(
                        record.topic, props.parse(record.properties),
                        record.store_timestamp) == codes[
                            record.physical_offset]
                    checked += 1
        assert checked > 20


# -- ext --------------------------------------------------------------------------------------

def test_ext_golden_bytes() -> None:
    unit = ext.parse(EXT_UNIT)
    assert unit == ext.decode(EXT_UNIT) == ext.make(
        857175, 0x19000D362C5, bytes.fromhex("267e579ed1934e4bb3e218762a04"))
    assert unit.size == len(EXT_UNIT) == 34
    assert ext.build(unit) == EXT_UNIT
    assert ext.HEAD_SIZE == 20


@given(i64, i64, st.binary(max_size=300))
def test_ext_build_and_parse_are_inverse(code: int, when: int, bits: bytes) -> None:
    unit = ext.make(code, when, bits)
    assert ext.parse(ext.build(unit)) == ext.decode(ext.build(unit)) == unit


def ext_answer(read: Callable[..., Any], raw: bytes, at: int) -> Any:
    try:
        return read(raw, at, 9000)
    except FormatError as error:
        return error.reason, error.offset, error.path


@given(st.binary(max_size=80), st.integers(-2, 90))
def test_ext_readers_agree_on_any_bytes(raw: bytes, at: int) -> None:
    assert ext_answer(ext.parse, raw, at) == ext_answer(ext.decode, raw, at)


def test_ext_readers_agree_on_every_bit_flip_and_truncation() -> None:
    for bit in range(8 * len(EXT_UNIT)):
        raw = bytearray(EXT_UNIT)
        raw[bit // 8] ^= 1 << bit % 8
        assert ext_answer(ext.parse, bytes(raw), 0) == ext_answer(ext.decode, bytes(raw), 0)
    for cut in range(len(EXT_UNIT)):
        refused = ext_answer(ext.decode, EXT_UNIT[:cut], 0)
        assert refused == ext_answer(ext.parse, EXT_UNIT[:cut], 0)
        assert refused[1] == 9000


@pytest.mark.parametrize(("at", "value", "path"), [(0, b"\0\x23", "size"),
                                                   (18, b"\xff\xff", "bit_map_size")])
def test_ext_refusals(at: int, value: bytes, path: str) -> None:
    raw = EXT_UNIT[:at] + value + EXT_UNIT[at + 2:]
    for read in (ext.parse, ext.decode):
        with pytest.raises(FormatError) as caught:
            read(raw, 0, 100)
        assert (caught.value.offset, caught.value.path) == (100, path)


def test_addresses() -> None:
    assert ext.address(0) == -(1 << 63)
    assert ext.address(34) == -(1 << 63) + 34
    assert ext.byte_offset(ext.address(123456)) == 123456
    most = (1 << 63) - (1 << 31) - 1
    assert ext.is_address(ext.address(most))
    for number in (-1, most + 1):
        with pytest.raises(ValueError, match="no ext unit"):
            ext.address(number)
    # No hash of tags and no deliver time is ever an address.
    for code in (-(1 << 31), -1, 0, (1 << 31) - 1, 1_700_000_000_000):
        assert not ext.is_address(code)
        with pytest.raises(ValueError, match="not an ext address"):
            ext.byte_offset(code)


@pytest.mark.parametrize("name", ["4.9.3/cqext", "5.3.3/cqext"])
def test_ext_units_are_what_the_engine_reads(name: str, golden: GoldenFolder) -> None:
    folder = golden(name)
    expect = engine.load(folder / "expect.json")
    checked = 0
    for queue in expect.queues:
        place = folder / "store/consumequeue_ext" / queue.topic / str(queue.queue_id)
        if not place.is_dir():
            continue
        walked = [(base + step.at, step) for base, data in files(place)
                  for step in ext.walk(data, 0, base)]
        assert all(step.error is None for _, step in walked)
        units = {ext.address(at): step.unit for at, step in walked if step.unit}
        rows = {consume_queue.queue_offset(base) + number: row
                for base, data in files(folder / "store/consumequeue" / queue.topic
                                        / str(queue.queue_id))
                for number, row in enumerate(consume_queue.UNIT.decode_all(data))}
        for unit in queue.units:
            unit_record = units[rows[unit.queue_offset].tags_code]
            assert unit_record is not None
            if unit.ext is None:
                assert unit_record.tags_code == unit.tags_code
            else:
                assert unit_record == (unit.ext.size, unit.ext.tags_code, unit.ext.store_timestamp,
                                       unit.ext.bit_map or b"")
            checked += 1
    assert checked > 50
    assert expect.queues


def test_a_walk_ends_at_the_mark_at_unused_space_and_at_the_end() -> None:
    two = EXT_UNIT + ext.build(ext.make(1, 2))
    for tail, ends in ((b"", 0), (b"\xff\xff", 1), (b"\xff\xff" + EXT_UNIT, 1),
                       (bytes(40) + EXT_UNIT, 0), (b"\0", 0)):
        steps = list(ext.walk(two + tail))
        assert [step.at for step in steps if step.unit] == [0, 34]
        assert [step.at for step in steps if step.end] == [54] * ends


def test_a_walk_steps_over_a_damaged_unit_and_never_loops() -> None:
    bad = EXT_UNIT[:18] + b"\0\x0d" + EXT_UNIT[20:]
    steps = list(ext.walk(EXT_UNIT + bad + EXT_UNIT, 0, 500))
    assert [(step.at, step.error is None) for step in steps] == [(0, True), (34, False),
                                                                 (68, True)]
    assert steps[1].error is not None
    assert (steps[1].error.offset, steps[1].error.path) == (534, "size")
    lost = list(ext.walk(EXT_UNIT + b"\x7f\xff" + b"\x7f" * 50))
    assert (lost[1].at, lost[1].size, lost[1].end) == (34, 52, True)
    cut = list(ext.walk(EXT_UNIT + EXT_UNIT[:10]))
    assert (cut[1].at, cut[1].size, cut[1].end) == (34, 10, True)


def test_every_flipped_bit_of_an_ext_unit_costs_that_unit_at_most() -> None:
    raw = EXT_UNIT * 5
    for bit in range(8 * len(EXT_UNIT)):
        changed = bytearray(raw)
        changed[34 + bit // 8] ^= 1 << bit % 8
        steps = list(ext.walk(bytes(changed)))
        assert [step.at for step in steps] == [0, 34, 68, 102, 136], bit
        assert all(step.unit == ext.parse(EXT_UNIT) for step in steps[:1] + steps[2:])


@given(st.binary(max_size=400))
def test_a_walk_of_any_bytes_moves_on(raw: bytes) -> None:
    at = 0
    for step in ext.walk(raw):
        assert step.at >= at
        assert step.size > 0
        at = step.at + step.size
    assert at <= len(raw)


# -- batch and compaction -----------------------------------------------------------------------

def test_batch_units_are_what_the_engine_lists(golden: GoldenFolder) -> None:
    folder = golden("5.3.3/batchcq")
    checked = 0
    for queue in engine.load(folder / "expect.json").queues:
        place = folder / "store/batchconsumequeue" / queue.topic / str(queue.queue_id)
        if queue.kind != "BatchCQ" or not place.is_dir():
            continue
        units = [unit for _, data in files(place) for unit in batch.UNIT.decode_all(data)
                 if unit.is_valid]
        assert [(u.msg_base_offset, u.physical_offset, u.size, u.tags_code, u.batch_size,
                 u.compacted_offset) for u in units] == [
            (u.queue_offset, u.physical_offset, u.size, u.tags_code, u.batch_size,
             u.compacted_offset) for u in queue.units]
        assert units[-1].next_offset == queue.max
        checked += len(units)
    assert checked > 50


@pytest.mark.parametrize("change", [{"physical_offset": -1}, {"size": 0}, {"msg_base_offset": -1},
                                    {"batch_size": 0}])
def test_the_batch_test_of_validity(change: dict[str, int]) -> None:
    good = batch.UnitRecord(0, 91, 0, 0, 0, 1)
    assert good.is_valid
    assert not good._replace(**change).is_valid


def test_sparse_units_and_the_end_unit() -> None:
    unit = compaction.parse(SPARSE)
    assert unit == compaction.UnitRecord(0x16E, 0x29F, 0x27A808, 0x1902035F236, 26, 1)
    assert compaction.build(unit) == SPARSE
    assert compaction.build(compaction.END_UNIT) == SPARSE_END
    assert compaction.is_end(compaction.parse(SPARSE_END))
    assert not compaction.is_end(unit)
    assert not compaction.END_UNIT.is_valid


def test_compaction_log_records_are_rewritten_commitlog_records(golden: GoldenFolder) -> None:
    folder = golden("5.3.3/compaction")
    originals: dict[tuple[bytes, int, int], bytes] = {}
    for file in sorted((folder / "store/commitlog").iterdir()):
        for record, raw in records(file.read_bytes()):
            originals[record.topic, record.queue_id, record.queue_offset] = raw
    checked = 0
    for log in sorted((folder / "store/compaction/compactionLog").glob("*/*/*")):
        data = log.read_bytes()
        units = [unit for unit in compaction.UNIT.decode_all(Path(
            re.sub("compactionLog", "compactionCq", str(log))).read_bytes()) if unit.is_valid]
        messages = list(records(data))
        assert len(messages) == len(units) > 0
        for (record, raw), unit in zip(messages, units, strict=True):
            assert (unit.physical_offset, unit.size, unit.msg_base_offset) == (
                record.physical_offset, len(raw), record.queue_offset)
            key = (record.topic, record.queue_id, record.queue_offset)
            assert originals[key][:28] + raw[28:36] + originals[key][36:] == raw
            checked += 1
    assert checked > 30


def records(data: bytes) -> Iterator[tuple[message.Record, bytes]]:
    at = 0
    while True:
        try:
            record = message.decode(data, at)
        except FormatError:
            return
        yield record, data[at:at + record.total_size]
        at += record.total_size
