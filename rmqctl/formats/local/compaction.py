"""Compaction topics of 5.1+: a separate log and a sparse index (timer-and-others-5x.md §2).

A log record is a commitlog record whose physical offset is its position in the compaction log. The
index has batch consume queue units. If the log file is closed, an end unit follows.
"""

from __future__ import annotations

from rmqctl.formats.local import batch_consume_queue as batch

UnitRecord = batch.UnitRecord
UNIT = batch.UNIT
UNIT_SIZE = batch.UNIT_SIZE

END_UNIT = UnitRecord(-1, 0, 0, 0, 0, 0)
"""The end unit of an index file that is not full."""

parse = UNIT.parse
decode = UNIT.decode
build = UNIT.build



def is_end(unit: UnitRecord) -> bool:
    """Return whether a unit is the end unit of its file."""
    return unit == END_UNIT
