"""Where things lie in the golden store with timer messages."""

from __future__ import annotations

from pathlib import Path

from rmqctl.formats.timer import timer_log, timer_wheel
from rmqctl.formats.timer.timer_log import UNIT, UnitRecord

SET = "5.3.3/timer/store"
FILE_SIZE = 896
LOGS = [f"timerlog/{start:020d}" for start in range(0, 5 * FILE_SIZE, FILE_SIZE)]
CHECK, WHEEL = "config/timercheck", "timerwheel"
PLACES = 16
"""Units in a log file; the end mark stands behind them."""
END = 3688
"""Where the timer log ends."""


def unit(root: Path, position: int) -> UnitRecord:
    file, at = place(position)
    return timer_log.decode((root / file).read_bytes(), at)


def place(position: int, field: str = "size") -> tuple[str, int]:
    """(file, position in it) of a field of the unit at a stream position."""
    number, at = divmod(position, FILE_SIZE)
    return LOGS[number], at + UNIT.field(field).offset


def slot_place(time_ms: int, field: str = "time") -> int:
    """Position in the wheel of a field of the slot for a time."""
    slot = timer_wheel.slot_of(time_ms) * timer_wheel.SLOT_SIZE
    return slot + timer_wheel.SLOT.field(field).offset
