"""Compaction topics of 5.1+: a log of its own and a sparse index (timer-and-others-5x.md §2).

A log record is a commitlog record whose physical offset is its place in the compaction log. The
index has batch consumequeue units, closed by an end unit where its log file is closed.
"""

from __future__ import annotations

from rmqctl.formats.local import batch_consume_queue as batch

UnitRecord = batch.UnitRecord
UNIT = batch.UNIT
UNIT_SIZE = batch.UNIT_SIZE

END_UNIT = UnitRecord(-1, 0, 0, 0, 0, 0)
"""Closes an index file before it is full."""

parse = UNIT.parse
decode = UNIT.decode
build = UNIT.build



def is_end(unit: UnitRecord) -> bool:
    """Return whether a unit closes its file."""
    return unit == END_UNIT
