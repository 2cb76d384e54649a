"""The ``timerlog`` of 5.x: 52-byte units, chained by slot (timer-and-others-5x.md §1.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from construct import Int32sb, Int32ub, Int64sb, Struct

from rmqctl.errors import FormatError
from rmqctl.formats.fixed import TOO_SHORT, Fixed
from rmqctl.formats.local.message import MAGIC_BLANK

Unit = Struct(
    "size" / Int32sb,
    "prev_pos" / Int64sb,
    "magic" / Int32sb,
    "curr_write_time" / Int64sb,
    "delay_time" / Int32sb,
    "physical_offset" / Int64sb,
    "message_size" / Int32sb,
    "topic_hash" / Int32sb,
    "reserved" / Int64sb,
)

Tail = Struct("size" / Int32sb, "prev_pos" / Int64sb, "magic" / Int32ub)
"""The end mark of a file: ``size`` is the number of bytes from the mark to the end of the file."""

MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
MAGIC_DELETE = 4
MAGIC_BITS = 0xF


class UnitRecord(NamedTuple):
    """A timer message: its enqueue time, the delay from this time to the time of its slot, and the
    position of its record.
    """

    size: int
    prev_pos: int
    magic: int
    curr_write_time: int
    delay_time: int
    physical_offset: int
    message_size: int
    topic_hash: int
    reserved: int = 0

    @property
    def is_valid(self) -> bool:
        """Return whether a broker's recovery accepts the unit."""
        return self.size == UNIT_SIZE and not self.magic & ~MAGIC_BITS

    @property
    def slot_time(self) -> int:
        """The time (ms) of the wheel slot to which this unit belongs."""
        return self.curr_write_time + self.delay_time

    @property
    def flags(self) -> list[str]:
        names = {MAGIC_DEFAULT: "default", MAGIC_ROLL: "roll", MAGIC_DELETE: "delete"}
        return [name for bit, name in names.items() if self.magic & bit]


class TailRecord(NamedTuple):
    """The end mark of a file."""

    size: int
    prev_pos: int = 0
    magic: int = MAGIC_BLANK


UNIT = Fixed(Unit, UnitRecord)
TAIL = Fixed(Tail, TailRecord)
UNIT_SIZE = UNIT.size

parse = UNIT.parse
decode = UNIT.decode
build = UNIT.build
dtype = UNIT.dtype


def parse_tail(data: bytes, position: int = 0, base: int = 0) -> TailRecord:
    """Return the end mark at ``data[position:]``.

    Raises: FormatError if it is missing.
    """
    tail = TAIL.parse(data, position, base)
    if tail.magic != MAGIC_BLANK:
        raise FormatError(f"invalid end mark: {tail.magic:08x}", offset=base + position,
                          path="magic")
    return tail


def is_tail(data: bytes | memoryview, position: int = 0) -> bool:
    """Return whether the unit at a position has the magic of an end mark."""
    return len(data) - position >= TAIL.size and TAIL.decode(data, position).magic == MAGIC_BLANK


class TimerStep(NamedTuple):
    """One step of a walk: a unit (sound or not) or the end mark; ``error`` is its fault."""

    at: int
    size: int
    unit: UnitRecord | None = None
    tail: TailRecord | None = None
    error: FormatError | None = None


def judge(unit: UnitRecord, where: int) -> FormatError | None:
    """Return the fault that a broker finds in a unit; None if the unit is valid."""
    if unit.size != UNIT_SIZE:
        return FormatError(f"says {unit.size} bytes, a unit has {UNIT_SIZE}", offset=where,
                           path="size")
    if unit.magic & ~MAGIC_BITS:
        return FormatError(f"invalid timer magic: {unit.magic & 0xFFFFFFFF:08x}", offset=where,
                           path="magic")
    return None


def walk(data: bytes, position: int = 0, base: int = 0) -> Iterator[TimerStep]:
    """Yield the used positions of a file, beginning at ``position`` (a multiple of the unit size).

    The walk ends after an end mark. Positions are fixed, so the walk continues after a damaged
    unit.
    """
    while position < len(data):
        if is_tail(data, position):
            yield TimerStep(position, TAIL.size, tail=TAIL.decode(data, position))
            return
        if len(data) - position < UNIT_SIZE:
            if any(data[position:]):
                yield TimerStep(position, len(data) - position, error=FormatError(
                    TOO_SHORT, offset=base + position, path="size"))
            return
        if any(data[position:position + UNIT_SIZE]):
            unit = UNIT.decode(data, position, base)
            yield TimerStep(position, UNIT_SIZE, unit, error=judge(unit, base + position))
        position += UNIT_SIZE
