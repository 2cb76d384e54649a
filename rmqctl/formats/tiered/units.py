"""The small units of a tier: the consume queue's unit and the coda of 5.1 and 5.2 (§3, §4).

A message in a tier is the local record with one changed field: ``physical_offset`` is its position
in the tiered commit log of its queue. So `formats.message` can read the record. A scan of a segment
that starts at its base offset proves records as in a local log.
"""

from __future__ import annotations

from typing import NamedTuple

from construct import Int32sb, Int32ub, Int64sb, Struct

from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local import message

Unit = Struct(
    "commit_log_offset" / Int64sb,
    "size" / Int32sb,
    "tags_code" / Int64sb,
)

Coda = Struct(
    "size" / Int32sb,
    "magic" / Int32ub,
    "max_store_timestamp" / Int64sb,
)


class UnitRecord(NamedTuple):
    """One entry of a tiered consume queue; its queue offset follows from its position."""

    commit_log_offset: int
    size: int
    tags_code: int


class CodaRecord(NamedTuple):
    """The record that 5.1.0 to 5.2.0 write after the last message of a commit log segment."""

    size: int
    magic: int
    max_store_timestamp: int


UNIT = Fixed(Unit, UnitRecord)
UNIT_SIZE = UNIT.size
CODA = Fixed(Coda, CodaRecord)
CODA_SIZE = CODA.size
CODA_MAGIC = message.MAGIC_BLANK

GUESSED = int.from_bytes(b"rmqctl?!", "big")
"""The tags code of a unit that `tiered recover` creates in place of a damaged message. A broker
skips the unit, because this code is larger than any tag's hash or deliver time.
"""

NEVER = (1 << 63) - 1
"""A segment timestamp that was never set (Java's Long.MAX_VALUE)."""


def is_coda(data: bytes | memoryview, position: int = 0) -> bool:
    """Return whether a coda record begins at ``data[position:]``."""
    if len(data) - position < CODA_SIZE:
        return False
    coda = CODA.decode(data, position)
    return coda.magic == CODA_MAGIC and coda.size == CODA_SIZE
