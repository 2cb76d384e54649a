"""The timer wheel: each kind of damage to a slot is one finding at its field."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.formats.timer import timer_wheel
from tests.checks.small_checks import Changed, brief, one_of, run
from tests.checks.timers import SET, WHEEL, slot_place
from tests.conftest import GoldenFolder
from tests.support import damage

SECOND = 1795233765000
"""The slot of units 52, 104 and 1260."""


@pytest.mark.parametrize(("field", "value", "place"), [
    ("time", SECOND // 1000 + 1, "time"), ("time", -1, "time"), ("magic", 1, "magic"),
    ("first_pos", 53, "first_pos"), ("first_pos", -1, "first_pos"),
    ("first_pos", 1312, "first_pos"), ("first_pos", 156, "first_pos"),
    ("last_pos", 3688, "last_pos"), ("last_pos", 1312, "last_pos"),
    ("last_pos", 104, "last_pos"), ("last_pos", 832 + 896, "first_pos"),
    ("time", SECOND // 1000 + timer_wheel.SLOTS, "time")])
def test_a_wrong_slot(field: str, value: int, place: str, changed: Changed,
                      timer: Path) -> None:
    at = slot_place(SECOND)
    with (timer / WHEEL).open("rb") as file:
        file.seek(at)
        slot = timer_wheel.decode(file.read(timer_wheel.SLOT_SIZE))
    finding, what = one_of(changed((WHEEL, at, timer_wheel.build(slot._replace(**{field: value})))),
                           timer)
    assert what == ("timer-wheel", WHEEL, slot_place(SECOND, place)), finding


def test_a_page_of_the_wheel_that_was_lost(changed: Changed) -> None:
    """Slots of 1795233765 to 68 and 70: one finding per stretch of neighbours."""
    page = slot_place(SECOND) // 4096 * 4096
    findings = changed((WHEEL, page, bytes(4096)))
    assert brief(findings, changed.root) == [
        ("timer-wheel", WHEEL, slot_place(SECOND, "last_pos")),
        ("timer-wheel", WHEEL, slot_place(SECOND + 5000, "last_pos"))]
    assert [finding.count for finding in findings] == [4, 1]


@pytest.mark.parametrize(("size", "category"), [
    (0, "file-empty"), (timer_wheel.FILE_SIZE - 32, "file-size"),
    (timer_wheel.FILE_SIZE + 1, "file-size"), (1 << 40, "file-size")])
def test_a_wheel_of_the_wrong_size(size: int, category: str, golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    damage.truncate(root, WHEEL, size)
    findings = run("timer", root)
    assert findings[0].category == category
    assert findings[0].offset == min(size, timer_wheel.FILE_SIZE)
    assert (len(findings) == 1) == bool(size), "an empty wheel has lost every slot"


def test_a_missing_wheel(golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    damage.remove(root, WHEEL)
    finding, what = one_of(run("timer", root), root)
    assert (what, finding.severity) == (("timer-wheel", WHEEL, None), "info")
