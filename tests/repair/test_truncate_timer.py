"""The timer behind a cut log: its wheel is the one its remaining units make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rmqctl.checks.delays import timer_ahead
from rmqctl.formats.timer import timer_check, timer_log, timer_wheel
from rmqctl.formats.timer.timer_wheel import SLOT_SIZE, SlotRecord
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.repair.cutting import applied_and_undone, offsets, troubles
from tests.repair.test_truncate import cut
from tests.support import damage

SET = "5.3.3/timer/store"


def units(root: Path) -> list[tuple[int, timer_log.UnitRecord]]:
    return [(int(file.name) + step.at, step.unit)
            for file in sorted((root / "timerlog").iterdir())
            for step in timer_log.walk(file.read_bytes()) if step.unit is not None]


def wheel_of(root: Path) -> dict[int, SlotRecord]:
    """The slots that the units of the timer log make, written one after the other (spec §1.3)."""
    slots: dict[int, SlotRecord] = {}
    for place, unit in units(root):
        number = timer_wheel.slot_of(unit.slot_time)
        old, when = slots.get(number), unit.slot_time // 1000
        count = -1 if unit.magic & timer_log.MAGIC_DELETE else 1
        same = old is not None and old.time == when
        slots[number] = SlotRecord(when, old.first_pos if same else place, place,
                                   (old.num if same else 0) + count)
    return slots


def slots(root: Path) -> dict[int, SlotRecord]:
    raw = (root / "timerwheel").read_bytes()
    used = np.flatnonzero(np.frombuffer(raw, np.uint8).reshape(-1, SLOT_SIZE).any(1))
    return {number: timer_wheel.decode(raw, number * SLOT_SIZE) for number in used.tolist()}


@pytest.mark.long
def test_the_wheel_is_that_of_the_units_left(golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    all_units = units(root)
    assert slots(root) == wheel_of(root)
    with Store.open(root) as store:
        flushed = timer_check.parse(store.read_small("config", "timercheck"))
    for to in offsets(root, "timer")[::25]:
        left = [unit for unit in all_units if unit[1].physical_offset < to]
        with applied_and_undone(cut(root, to).plan):
            assert units(root) == left
            assert slots(root) == wheel_of(root)
            assert troubles(root) == []
            check = timer_check.parse((root / "config" / "timercheck").read_bytes())
            end = left[-1][0] + timer_log.UNIT_SIZE if left else 0
            if len(left) < len(all_units):
                assert check.last_timer_log_flush_pos == min(end, flushed.last_timer_log_flush_pos)
            rows = cut(root, to).plan.topic_queue_table.get("rmq_sys_wheel_timer-0", 0)
            assert check.last_timer_queue_offset == min(rows, flushed.last_timer_queue_offset)
            with Store.open(root) as store:  # no later than the messages that are left
                assert timer_ahead(store, to).messages == 0
            assert check.last_read_time_ms <= flushed.last_read_time_ms
            assert cut(root, to).plan.empty


@pytest.mark.parametrize("what", ["chain", "slot", "unit"])
def test_a_damaged_timer_ends_a_chain_and_nothing_more(what: str,
                                                       golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    to = offsets(root, "timer")[10]
    number, slot = max(slots(root).items(), key=lambda pair: pair[1].last_pos)
    file = max(path for path in (root / "timerlog").iterdir() if int(path.name) <= slot.last_pos)
    at = slot.last_pos - int(file.name)
    log, wrong = f"timerlog/{file.name}", (slot.last_pos + 7).to_bytes(8, "big")
    place = {"chain": (log, at + 4, (1 << 40).to_bytes(8, "big")),
             "slot": ("timerwheel", number * SLOT_SIZE + 16, wrong),
             "unit": (log, at, b"\1" * 4)}[what]
    damage.write(root, *place)
    with applied_and_undone(cut(root, to).plan):
        assert number not in slots(root)
        assert all(item.last_pos < slot.last_pos for item in slots(root).values())
