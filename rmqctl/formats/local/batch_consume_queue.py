"""BatchConsumeQueue: 46-byte units, each covering consecutive queue offsets
(consumequeue.md §9).
"""

from __future__ import annotations

from typing import NamedTuple

from construct import Int16sb, Int32sb, Int64sb, Struct

from rmqctl.formats.fixed import Fixed

Unit = Struct(
    "physical_offset" / Int64sb,
    "size" / Int32sb,
    "tags_code" / Int64sb,
    "store_timestamp" / Int64sb,
    "msg_base_offset" / Int64sb,
    "batch_size" / Int16sb,
    "compacted_offset" / Int32sb,
    "reserved" / Int32sb,
)

NOT_COMPACTED = -1


class UnitRecord(NamedTuple):
    """One entry: the position of a record, and the queue offsets ``msg_base_offset … + batch_size``
    that the record covers.
    """

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    msg_base_offset: int
    batch_size: int
    compacted_offset: int = NOT_COMPACTED
    reserved: int = 0

    @property
    def is_valid(self) -> bool:
        """Return whether a broker accepts the unit."""
        return (self.physical_offset >= 0 and self.size > 0 and self.msg_base_offset >= 0
                and self.batch_size > 0)

    @property
    def next_offset(self) -> int:
        """The first queue offset after this entry."""
        return self.msg_base_offset + self.batch_size


UNIT = Fixed(Unit, UnitRecord)
UNIT_SIZE = UNIT.size
ZERO = UnitRecord(0, 0, 0, 0, 0, 0, 0, 0)
DEFAULT_FILE_SIZE = 300_000 * UNIT_SIZE

parse = UNIT.parse
decode = UNIT.decode
build = UNIT.build
dtype = UNIT.dtype
