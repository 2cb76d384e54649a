"""The timer: a sound one passes, each damage is one finding at its place, random bytes nothing."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.checks.verify.timer.timer import LATER_THAN_LOG
from rmqctl.formats.timer import timer_check, timer_log, timer_wheel
from rmqctl.formats.timer.timer_log import UNIT, UNIT_SIZE, UnitRecord
from tests.checks.small_checks import (
    CLEAN,
    IDS,
    Changed,
    Log,
    brief,
    one_of,
    run,
    run_golden,
    trouble,
)
from tests.checks.timers import CHECK, END, LOGS, PLACES, SET, WHEEL, place, slot_place, unit
from tests.conftest import GoldenFolder
from tests.support import damage, golden

# -- legal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden_store", CLEAN, ids=IDS)
def test_no_finding_on_a_cleanly_closed_store(golden_store: golden.GoldenStore,
                                              golden: GoldenFolder) -> None:
    assert run_golden("timer", golden_store, golden(golden_store.id)) == []


def test_everything_was_looked_at(timer: Path) -> None:
    """The golden store has rolled and delete units, chains, and a closed file."""
    magics = Counter(unit(timer, 896 * file + UNIT_SIZE * at).magic
                     for file in range(4) for at in range(PLACES))
    assert {1, 3, 5} <= magics.keys()
    assert unit(timer, 312).prev_pos == 0
    assert timer_log.is_tail((timer / LOGS[0]).read_bytes(), 832)


def test_a_store_without_a_timer(tiny_base) -> None:
    assert run("timer", tiny_base.root) == []


def test_an_expired_head_is_legal(golden_copy: GoldenFolder) -> None:
    """Timer log files are deleted; slots and chains still lead into them."""
    root = golden_copy(SET)
    damage.remove(root, LOGS[0])
    damage.remove(root, LOGS[1])
    assert run("timer", root) == []


def test_messages_of_an_expired_commitlog_are_legal(golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    damage.remove(root, f"commitlog/{0:020d}")
    assert run("timer", root) == []


def test_a_slot_that_a_later_lap_has_taken_is_legal(changed: Changed) -> None:
    """Units 52, 104 and 1260 were delivered; their slot now leads to 3636, two weeks later."""
    second, lap = 1795233765000, timer_wheel.SLOTS
    slot = timer_wheel.SlotRecord(second // 1000 + lap, 3636, 3636, 1)
    file, at = place(3636)
    last = unit(changed.root, 3636)._replace(prev_pos=-1, magic=3, curr_write_time=second,
                                             delay_time=lap * 1000)
    assert changed((WHEEL, slot_place(second), timer_wheel.build(slot)),
                   (file, at, UNIT.build(last)),
                   (WHEEL, slot_place(1795233767000, "last_pos"), struct.pack(">q", 2688))) == []


def test_a_closed_last_file_is_flushed_to_its_end(golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    damage.remove(root, LOGS[4])
    damage.write(root, WHEEL, slot_place(1795235423000), bytes(timer_wheel.SLOT_SIZE))
    damage.write(root, WHEEL, slot_place(1795233767000, "last_pos"), struct.pack(">q", 2688))
    damage.write(root, CHECK, 8, struct.pack(">q", 3584))
    assert run("timer", root) == []
    damage.write(root, CHECK, 8, struct.pack(">q", 3585))
    assert brief(run("timer", root), root) == [("timer-check", CHECK, 8)]


def test_what_is_behind_the_flushed_position_may_not_be_in_the_wheel(changed: Changed) -> None:
    """After a crash the wheel is older than the log; a recovery revises it."""
    zero = bytes(timer_wheel.SLOT_SIZE)
    slot = WHEEL, slot_place(1795235423000), zero
    assert changed.only(slot) == ("timer-wheel", WHEEL, slot_place(1795235423000, "last_pos"))
    assert changed(slot, (CHECK, 8, struct.pack(">q", 3584))) == []


def test_the_short_timercheck_of_another_implementation(changed: Changed, timer: Path) -> None:
    whole = (timer / CHECK).read_bytes()
    (timer / CHECK).write_bytes(whole[:timer_check.TIMER_CHECK.size])
    assert changed() == []
    (timer / CHECK).write_bytes(whole)


# -- the log -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("position", "field", "value"), [
    (104, "size", 53), (104, "size", 0), (1000, "magic", 9), (1000, "magic", 2),
    (1000, "magic", 0x101), (312, "prev_pos", -2), (312, "prev_pos", 312),
    (312, "prev_pos", 1 << 40), (312, "prev_pos", 1), (312, "prev_pos", 832),
    (312, "prev_pos", 52), (52, "curr_write_time", -5), (52, "physical_offset", -1),
    (52, "physical_offset", 1420), (52, "physical_offset", 3185), (52, "message_size", 629),
    (52, "message_size", 90), (52, "topic_hash", 1), (52, "delay_time", 2000),
    (3636, "physical_offset", 1 << 41), (0, "delay_time", 3_601_000)])
def test_a_wrong_unit(position: int, field: str, value: int, changed: Changed,
                      timer: Path) -> None:
    before = unit(timer, position)
    file, at = place(position)
    finding, what = one_of(changed((file, at, UNIT.build(before._replace(**{field: value})))),
                           timer)
    assert what[:2] == ("timer-log", file), finding
    assert at <= what[2] < at + UNIT_SIZE
    assert what[2] == place(position, field)[1]
    assert finding.severity == "error"


def test_the_time_of_a_unit_accuses_nobody_else(changed: Changed, timer: Path) -> None:
    """First, middle and last of a chain, rolled or not: one finding each, at the unit."""
    chains = {number: unit(timer, number) for number in (52, 104, 1260, 0, 312, 780, 3260, 2740)}
    for position, before in chains.items():
        file, at = place(position)
        data = UNIT.build(before._replace(delay_time=before.delay_time + 60_000))
        what = changed.only((file, at, data))
        assert what[:2] == ("timer-log", file), position
        assert at <= what[2] < at + UNIT_SIZE, position


@pytest.mark.parametrize(("first", "count"), [(0, 1), (208, 3), (780, 1), (896, 16), (3584, 1)])
def test_zeros_among_the_units(first: int, count: int, changed: Changed) -> None:
    file, at = place(first)
    findings = changed((file, at, bytes(count * UNIT_SIZE)))
    assert ("timer-log", file, at) in brief(findings, changed.root)
    assert [finding for finding in findings if finding.structure == "timer"
            and finding.file.endswith(file)] == [
                finding for finding in findings if finding.category == "timer-log"]
    assert findings[0].length == count * UNIT_SIZE


def test_garbage_in_the_unused_rest(changed: Changed) -> None:
    file, at = place(3584 + 5 * UNIT_SIZE)
    assert changed.only((file, at + 30, b"\x07")) == ("timer-log", file, at)


@pytest.mark.parametrize(("at", "data"), [
    (832, b"\0\0\0\x41"), (832 + 12, b"\xcb\xd4\x31\x95"), (832, bytes(16)),
    (832 + 11, b"\x01")])
def test_the_end_mark(at: int, data: bytes, changed: Changed) -> None:
    assert changed.only((LOGS[0], at, data)) == ("timer-log", LOGS[0], 832)


def test_units_behind_the_end_of_the_commitlog(timer: Path, changed: Changed) -> None:
    """The commitlog was cut (#10668): its last timer message is gone."""
    assert changed.log is not None
    cut = replace(changed.log, end=unit(timer, 3636).physical_offset)
    finding, what = one_of(run("timer", timer, log=cut), timer)
    assert what == ("timer-log", *place(3636, "physical_offset"))
    assert str(cut.end) in finding.detail


def test_a_damaged_message_is_not_the_units_fault(changed: Changed) -> None:
    """The consumequeue knows the same message: that is for the commitlog to tell."""
    findings = changed((f"commitlog/{0:020d}", 1419 + 4, b"\0\0\0\0"))
    assert [(finding.category, finding.severity, finding.count) for finding in findings] == [
        ("timer-log", "info", 1)]


def test_a_missing_commitlog_file_is_not_the_units_fault(golden_copy: GoldenFolder,
                                                         changed: Changed) -> None:
    root = golden_copy(SET)
    damage.remove(root, f"commitlog/{32768:020d}")
    findings = [finding for finding in run("timer", root, log=changed.log)
                if finding.cause != LATER_THAN_LOG]  # the delivered copies are missing, too
    assert trouble(findings) == []
    assert sum(finding.count for finding in findings) == sum(
        unit(root, 896 * file + 52 * at).physical_offset >= 32768
        for file in range(5) for at in range(PLACES if file < 4 else 2))


def test_the_timer_log_missing(golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    damage.remove_folder(root, "timerlog")
    assert brief(run("timer", root), root) == [
        ("timer-log", "timerlog", None), ("timer-check", CHECK, 8)]


# -- timercheck ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "value"), [
    ("last_timer_log_flush_pos", END + 1), ("last_timer_log_flush_pos", -2),
    ("last_timer_queue_offset", 67), ("last_timer_queue_offset", -2),
    ("last_read_time_ms", 1 << 60), ("last_timer_queue_offset", 1 << 62),
    ("master_timer_queue_offset", -9), ("counter", -2)])
def test_a_wrong_progress(field: str, value: int, changed: Changed) -> None:
    at = timer_check.TIMER_CHECK.field(field).offset
    assert changed.only((CHECK, at, struct.pack(">q", value))) == ("timer-check", CHECK, at)


@pytest.mark.parametrize("field", ["last_timer_log_flush_pos", "last_timer_queue_offset",
                                   "last_read_time_ms", "master_timer_queue_offset"])
@pytest.mark.parametrize("value", [0, -1])
def test_no_progress_is_legal(field: str, value: int, changed: Changed) -> None:
    at = timer_check.TIMER_CHECK.field(field).offset
    assert changed((CHECK, at, struct.pack(">q", value))) == []


def test_something_behind_the_fields(changed: Changed) -> None:
    assert changed.only((CHECK, 777, b"\x01")) == ("timer-check", CHECK, 777)


@pytest.mark.parametrize("size", [0, 31, 40, 4095, 4097])
def test_a_timercheck_of_the_wrong_size(size: int, golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    damage.truncate(root, CHECK, size)
    _, what = one_of(run("timer", root), root)
    assert what == ("timer-check", CHECK, min(size, 4096))


def test_a_missing_timercheck(golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    damage.remove(root, CHECK)
    finding, what = one_of(run("timer", root), root)
    assert (what, finding.severity) == (("timer-check", CHECK, None), "warning")


# -- a running broker, bad input -----------------------------------------------------------------


def test_a_unit_that_is_being_written(changed: Changed) -> None:
    file, at = place(END)
    half = UNIT.build(UnitRecord(52, -1, 1, 1795233767000, 1000, 50000, 0, 0))[:30]
    assert len(changed((file, at, half))) == 1
    assert changed((file, at, half), live=True) == []


def test_a_wheel_of_random_bytes_does_not_drown_the_rest(golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    damage.random_bytes(root, WHEEL, 3)
    findings = run("timer", root)
    assert len(findings) < 500
    assert sum(finding.count for finding in findings) > 1_000_000


@pytest.mark.parametrize("kind", [damage.fifo, damage.directory, damage.symlink])
@pytest.mark.parametrize("file", [WHEEL, CHECK])
def test_no_regular_file(kind, file: str, golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    kind(root, file)
    briefs = brief(run("timer", root), root)
    assert briefs == [("file-unreadable", file, None)]


@settings(max_examples=60, derandomize=True)
@given(logs=st.lists(st.binary(max_size=400) | st.integers(0, 2 ** 64 - 1).map(
    lambda number: UNIT.build(UnitRecord(52, -1, 1, number % (1 << 62), 0, number % 977, 100,
                                         0)) * 3), min_size=1, max_size=3),
    wheel=st.binary(max_size=200), check=st.binary(max_size=80),
    where=st.integers(0, timer_wheel.SLOTS - 1), live=st.booleans())
def test_random_bytes(logs: list[bytes], wheel: bytes, check: bytes, where: int, live: bool,
                      tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "random-timer"
    for folder in ("timerlog", "config", "commitlog"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for old in (root / "timerlog").iterdir():
        old.unlink()
    for number, data in enumerate(logs):
        (root / "timerlog" / f"{number * 400:020d}").write_bytes(data)
    (root / CHECK).write_bytes(check)
    (root / f"commitlog/{0:020d}").write_bytes(wheel)
    with (root / WHEEL).open("wb") as file:
        file.seek(where * timer_wheel.SLOT_SIZE)
        file.write(wheel)
    for finding in run("timer", root, log=Log(None, 1000), live=live):
        assert finding.structure == "timer"
        assert finding.category in {"timer-log", "timer-wheel", "timer-check", "file-size",
                                    "file-empty"}
