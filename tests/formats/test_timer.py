"""timerwheel and timerlog against timer.json, which the engine's own classes wrote."""

from __future__ import annotations

import json
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats.timer import timer_check, timer_log, timer_wheel
from rmqctl.formats.timer.timer_log import TailRecord, UnitRecord
from rmqctl.formats.timer.timer_wheel import SlotRecord
from tests.conftest import GoldenFolder

# From 5.3.3/timer: the third unit, and the tail of an 896-byte file.
UNIT = bytes.fromhex("00000034 0000000000000034 00000001 000001a1fc4552a0 000003e8"
                     "00000000000007ff 000001b0 4b30a2ef 0000000000000000")
TAIL = bytes.fromhex("00000040 0000000000000000 cbd43194")


def test_golden_bytes() -> None:
    unit = timer_log.parse(UNIT)
    assert unit == UnitRecord(52, 52, 1, 1795233764000, 1000, 2047, 432, 1261478639)
    assert timer_log.build(unit) == UNIT
    assert unit.is_valid
    assert unit.slot_time == 1795233765000
    assert unit.flags == ["default"]
    assert unit._replace(magic=7).flags == ["default", "roll", "delete"]
    assert timer_log.parse_tail(TAIL) == TailRecord(64)
    assert timer_log.is_tail(TAIL)
    assert not timer_log.is_tail(UNIT)


def test_timerlog_is_what_the_engine_reads(golden: GoldenFolder) -> None:
    timer_log_units = json.loads((golden("5.3.3/timer")
                                  / "timer.json").read_text())["timerLogUnits"]
    values = []
    for file in sorted((golden("5.3.3/timer") / "store/timerlog").iterdir()):
        base, data = int(file.name), file.read_bytes()
        for step in timer_log.walk(data, 0, base):
            assert step.error is None
            if step.tail is not None:
                assert step.tail.size == len(data) - step.at
                values.append({"pos": base + step.at, "blankSize": step.tail.size,
                               "magicAt4": step.tail.prev_pos})
                continue
            assert step.unit is not None
            size, prev, magic, when, distance, offset, length, code, zero = step.unit
            values.append({
                "pos": base + step.at, "size": size, "prevPos": prev, "magic": magic,
                "currWriteTime": when, "delayedTime": distance, "offsetPy": offset,
                "sizePy": length, "hashCode": code, "reserved": zero})
    assert values == timer_log_units


def test_wheel_is_what_the_engine_reads(golden: GoldenFolder) -> None:
    import numpy as np

    document = json.loads((golden("5.3.3/timer") / "timer.json").read_text())
    with tarfile.open(golden("5.3.3/timer") / "timerwheel.tar.gz") as packed:
        member = packed.extractfile("timerwheel")
        assert member is not None
        data = member.read()
    assert len(data) == timer_wheel.FILE_SIZE == document["wheelLength"]
    wheel = np.frombuffer(data, timer_wheel.dtype())
    assert len(wheel) == timer_wheel.SLOTS
    values = []
    for number in np.flatnonzero(wheel["time"]).tolist():
        slot = timer_wheel.parse(data, number * timer_wheel.SLOT_SIZE)
        assert slot == tuple(wheel[number].tolist())
        assert timer_wheel.build(slot) == data[number * 32:number * 32 + 32]
        assert timer_wheel.in_place(number, slot)
        assert timer_wheel.slot_of(slot.time_ms()) == number
        values.append({"index": number, "timeMs": slot.time_ms(), "firstPos": slot.first_pos,
                       "lastPos": slot.last_pos, "num": slot.num, "magic": slot.magic})
    assert values == document["slots"]


def test_timercheck_is_what_the_engine_reads(golden: GoldenFolder) -> None:
    checkpoint = json.loads((golden("5.3.3/timer") / "timer.json").read_text())["checkpoint"]
    timer_checkpoint = timer_check.parse((golden("5.3.3/timer")
                                          / "store/config/timercheck").read_bytes())
    assert {"lastReadTimeMs": timer_checkpoint.last_read_time_ms,
            "lastTimerLogFlushPos": timer_checkpoint.last_timer_log_flush_pos,
            "lastTimerQueueOffset": timer_checkpoint.last_timer_queue_offset,
            "masterTimerQueueOffset": timer_checkpoint.master_timer_queue_offset} == checkpoint


def test_slots() -> None:
    assert timer_wheel.FILE_SIZE == 38_707_200
    assert timer_wheel.slot_of(1_209_600_000) == 0
    assert timer_wheel.slot_of(1_700_000_000_999) == 1_700_000_000 % 1_209_600
    assert timer_wheel.slot_of(5_000, 100) == 50
    assert SlotRecord(50, 0, 0, 1).time_ms(100) == 5_000
    assert not timer_wheel.in_place(1, SlotRecord(50, 0, 0, 1))
    assert not timer_wheel.in_place(timer_wheel.SLOTS - 1, SlotRecord(-1, 0, 0, 1))


@pytest.mark.parametrize(("change", "path"), [({"size": 51}, "size"), ({"magic": 16}, "magic"),
                                              ({"magic": -1}, "magic")])
def test_bad_units_are_named_and_stepped_over(change: dict[str, int], path: str) -> None:
    good = timer_log.parse(UNIT)
    raw = UNIT + timer_log.build(good._replace(**change)) + UNIT
    steps = list(timer_log.walk(raw, 0, 1000))
    assert [(step.at, step.error and step.error.path) for step in steps] == [
        (0, None), (52, path), (104, None)]
    assert steps[1].error is not None
    assert steps[1].error.offset == 1052
    assert not good._replace(**change).is_valid


def test_a_walk_leaves_unused_places_out_and_ends_behind_the_tail() -> None:
    raw = UNIT + bytes(52) + UNIT + TAIL + UNIT
    assert [(step.at, step.size) for step in timer_log.walk(raw)] == [
        (0, 52), (104, 52), (156, 16)]


def test_a_cut_unit_is_reported() -> None:
    steps = list(timer_log.walk(UNIT + UNIT[:30]))
    assert (steps[1].at, steps[1].size) == (52, 30)
    assert steps[1].error is not None
    assert list(timer_log.walk(UNIT + bytes(30))) == steps[:1]


@given(st.binary(max_size=300))
def test_a_walk_of_any_bytes_moves_on(raw: bytes) -> None:
    last = -1
    for step in timer_log.walk(raw):
        assert step.at > last
        assert step.at + step.size <= len(raw)
        last = step.at


def test_what_is_no_tail() -> None:
    with pytest.raises(FormatError) as caught:
        timer_log.parse_tail(UNIT, 0, 70)
    assert (caught.value.offset, caught.value.path) == (70, "magic")
    with pytest.raises(FormatError):
        timer_log.parse_tail(TAIL[:15])
    assert not timer_log.is_tail(TAIL[:15])
