"""The ``checkpoint`` page (spec: checkpoint-and-small-files.md §1).

The page has three fields up to 4.9.x, a fourth from 5.0.0, and a fifth from 5.1.1. An older release
does not change the bytes of fields that it does not know. A later field is therefore meaningful
only if a broker that knows the field wrote the file.
"""

from __future__ import annotations

from typing import NamedTuple

from construct import Int64sb, Struct

from rmqctl.formats.fixed import FirstOfPage

Checkpoint = Struct(
    "physic_msg_timestamp" / Int64sb,
    "logics_msg_timestamp" / Int64sb,
    "index_msg_timestamp" / Int64sb,
    "master_flushed_offset" / Int64sb,
    "confirm_phy_offset" / Int64sb,
)

MARGIN = 3000
"""Milliseconds that a broker subtracts from a checkpoint time before it relies on the time."""


YEAR_3000 = 32_503_680_000_000
"""Upper limit of store times (ms): all valid times are before the year 3000."""


class CheckpointRecord(NamedTuple):
    """Store times (ms) up to which each structure was flushed; since 5.x, also physical offsets."""

    physic_msg_timestamp: int
    logics_msg_timestamp: int
    index_msg_timestamp: int
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """The time from which an abnormal recovery starts; earlier messages are
        considered flushed.
        """
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - MARGIN)

    @property
    def min_timestamp_index(self) -> int:
        """`min_timestamp`, also limited by the time of the index (``messageIndexSafe``)."""
        return min(self.min_timestamp, self.index_msg_timestamp)

    def knows_later(self, newest: int | None, begin: int) -> bool:
        """Return whether the checkpoint shows that a message was written after the log's newest
        message.

        The times of the log and of the consume queues must both show this, because a single time
        may be damaged.

        ``newest``: store time (ms) of the newest message, None if the log has no message.
        ``begin``: physical offset at which the log begins. The result is False for a log without
        messages that does not begin at 0: its messages may have expired.
        """
        if newest is None and begin == 0:
            newest = 0
        times = self.physic_msg_timestamp, self.logics_msg_timestamp
        return newest is not None and newest < min(times) and max(times) < YEAR_3000


CLASSIC_FIELDS = 3
"""Number of fields that every version writes."""
CHECKPOINT = FirstOfPage(Checkpoint, CheckpointRecord, CheckpointRecord._fields[CLASSIC_FIELDS - 1])
CLASSIC_SIZE, PAGE_SIZE = CHECKPOINT.least, CHECKPOINT.PAGE_SIZE
parse, build, rest_is_zero = CHECKPOINT.read, CHECKPOINT.page, CHECKPOINT.rest_is_zero


def differing(record: CheckpointRecord, other: CheckpointRecord) -> dict[str, int]:
    """Return the fields of a checkpoint that differ from another checkpoint, with this checkpoint's
    values.
    """
    theirs = other._asdict()
    return {name: value for name, value in record._asdict().items() if value != theirs[name]}
