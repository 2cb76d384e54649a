"""The consumequeue: 20-byte units, one per message of a queue (spec: consumequeue.md §1-§3)."""

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
    """One row: where the message lies, how long it is, what a tag filter compares."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_valid(self) -> bool:
        """The broker's test of a unit; a filler passes it, an unused (zero) unit does not."""
        return self.physical_offset >= 0 and self.size > 0

    @property
    def is_filler(self) -> bool:
        """Return whether this unit is padding, in the place of an entry from before the queue's
        first.
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
    """Return the size a broker gives its files: the configured one, rounded up to complete
    units.
    """
    return -(-configured // UNIT_SIZE) * UNIT_SIZE


def byte_offset(index: int) -> int:
    """Return the byte position in the queue of the entry with this queue offset."""
    return index * UNIT_SIZE


def queue_offset(byte: int) -> int:
    """Return the queue offset of the row whose bytes hold this position of the queue."""
    return byte // UNIT_SIZE


def tags_code(topic: str, properties: Mapping[str, str], store_timestamp: int,
              levels: delay.Levels = delay.DEFAULT_LEVELS) -> int:
    """Return the code a broker computes for a record: the tags' hash, or the deliver time of a
    delay.

    Raise ValueError if a broker calls the record dirty (a DELAY that is not a number).
    """
    level = properties.get(props.DELAY)
    if topic == props.SCHEDULE_TOPIC and level is not None:
        due = delay.deliver_time(level, store_timestamp, levels)
        if due is not None:
            return due
    return javahash.tags_code(properties.get(props.TAGS))
