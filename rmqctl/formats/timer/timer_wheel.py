"""The ``timerwheel`` of 5.x: one slot per second for two weeks (timer-and-others-5x.md §1.2)."""

from __future__ import annotations

from typing import NamedTuple

from construct import Int32sb, Int64sb, Struct

from rmqctl.formats.fixed import Fixed

Slot = Struct(
    "time" / Int64sb,
    "first_pos" / Int64sb,
    "last_pos" / Int64sb,
    "num" / Int32sb,
    "magic" / Int32sb,
)

DAYS = 7
LAPS = 2
SLOTS = LAPS * DAYS * 86_400
"""Number of slots of a wheel, which does not depend on the precision."""
DEFAULT_PRECISION = 1000


class SlotRecord(NamedTuple):
    """The messages that are due at one time. Slots are not cleared after delivery.

    ``time`` is in units of the precision. Positions are positions in the timerlog. ``num``:
    messages minus delete markers.
    """

    time: int
    first_pos: int
    last_pos: int
    num: int
    magic: int = 0

    def time_ms(self, precision: int = DEFAULT_PRECISION) -> int:
        return self.time * precision


SLOT = Fixed(Slot, SlotRecord)
SLOT_SIZE = SLOT.size
FILE_SIZE = SLOTS * SLOT_SIZE
UNUSED = SlotRecord(0, 0, 0, 0, 0)

parse = SLOT.parse
decode = SLOT.decode
build = SLOT.build
dtype = SLOT.dtype


def slot_of(time_ms: int, precision: int = DEFAULT_PRECISION) -> int:
    """Return the index of the slot for a time."""
    return time_ms // precision % SLOTS


def in_place(number: int, slot: SlotRecord) -> bool:
    """Return whether a slot's stored time belongs to the slot's position in the wheel."""
    return slot.time >= 0 and slot.time % SLOTS == number
