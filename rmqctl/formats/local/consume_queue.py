"""The consume queue: 20-byte units, one per message of a queue (spec: consumequeue.md §1-§3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from construct import Int32sb, Int64sb, Struct

from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local import delay, javahash
from rmqctl.formats.local import properties as props

if TYPE_CHECKING:
    from collections.abc import Mapping


Unit = Struct(
    "physical_offset" / Int64sb,
    "size" / Int32sb,
    "tags_code" / Int64sb,
)


class UnitRecord(NamedTuple):
    """One entry: the physical offset and size of a message, and the code against which a tag filter
    is compared.
    """

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_valid(self) -> bool:
        """Return whether a broker accepts the unit. A padding entry is accepted, an unused (zero)
        unit is not.
        """
        return self.physical_offset >= 0 and self.size > 0

    @property
    def is_filler(self) -> bool:
        """Return whether this unit is a padding entry, which a broker writes for a queue offset
        before the queue's first message.
        """
        return self == FILLER


FILLER = UnitRecord(0, 0x7FFFFFFF, 0)
ZERO = UnitRecord(0, 0, 0)

UNIT = Fixed(Unit, UnitRecord)
UNIT_SIZE = UNIT.size
DEFAULT_FILE_SIZE = 300_000 * UNIT_SIZE

parse = UNIT.parse
decode = UNIT.decode
build = UNIT.build
dtype = UNIT.dtype


def file_size(configured: int) -> int:
    """Return the size of a broker's files: the configured size, rounded up to complete units."""
    return -(-configured // UNIT_SIZE) * UNIT_SIZE


def byte_offset(index: int) -> int:
    """Return the byte position of the entry with this queue offset, counted from the start of the
    queue.
    """
    return index * UNIT_SIZE


def queue_offset(byte: int) -> int:
    """Return the queue offset of the entry that contains this byte position of the queue."""
    return byte // UNIT_SIZE


def tags_code(topic: str, properties: Mapping[str, str], store_timestamp: int,
              levels: delay.Levels = delay.DEFAULT_LEVELS) -> int:
    """Return the tags code that a broker computes for a record.

    This is the hash of the tags, or the deliver time of a delayed message. Raises: ValueError if a
    broker treats the record as invalid (a DELAY that is not a number).
    """
    level = properties.get(props.DELAY)
    if topic == props.SCHEDULE_TOPIC and level is not None:
        due = delay.deliver_time(level, store_timestamp, levels)
        if due is not None:
            return due
    return javahash.tags_code(properties.get(props.TAGS))
