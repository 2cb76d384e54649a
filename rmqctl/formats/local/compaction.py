"""Compaction topics of 5.1+: a log of its own and a sparse index (timer-and-others-5x.md §2).

A log record is a commitlog record whose physical offset is its place in the compaction log. The
index has batch consumequeue units, closed by an end unit where its log file is closed.
"""

from __future__ import annotations

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.local import batch_consume_queue as batch
from rmqctl.formats.local.message import MIN_SIZE, Message

UnitRecord = batch.UnitRecord
UNIT = batch.UNIT
UNIT_SIZE = batch.UNIT_SIZE

END_UNIT = UnitRecord(-1, 0, 0, 0, 0, 0)
"""Closes an index file before it is full."""

parse = UNIT.parse
decode = UNIT.decode
build = UNIT.build
dtype = batch.dtype

_PHYSICAL_OFFSET = layout.field(Message, "physical_offset")
DEFAULT_CQ_SIZE = 10 << 20
DEFAULT_LOG_SIZE = 100 << 20
_LEAST_CQ_FILES = 5


def is_end(unit: UnitRecord) -> bool:
    """Whether a unit closes its file."""
    return unit == END_UNIT


def rewrite(record: bytes, offset: int) -> bytes:
    """A message's bytes with another physical offset, as the compaction log stores them.

    FormatError when the bytes are too few for a message or the offset does not fit.
    """
    if len(record) < MIN_SIZE:
        raise FormatError("record runs past the end of the data", offset=0, path="total_size")
    if not 0 <= offset < 1 << 63:
        raise FormatError("value does not fit the field", path=_PHYSICAL_OFFSET.name)
    at, size = _PHYSICAL_OFFSET.offset, _PHYSICAL_OFFSET.size
    return record[:at] + offset.to_bytes(size, "big") + record[at + size:]


def cq_file_size(configured: int = DEFAULT_CQ_SIZE) -> int:
    """The size of an index file: the configured one, rounded down to whole units."""
    return configured - configured % UNIT_SIZE


def log_file_size(configured: int = DEFAULT_LOG_SIZE, cq_size: int | None = None) -> int:
    """The size of a log file: a multiple of the index file's, at least five of them."""
    cq = cq_file_size() if cq_size is None else cq_size
    whole, rest = divmod(configured, cq)
    if whole < _LEAST_CQ_FILES:
        return _LEAST_CQ_FILES * cq
    return whole * cq if rest < cq // 2 else (whole + 1) * cq
