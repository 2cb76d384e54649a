"""A frame walk written for clarity alone: one record at a time, through construct.

It knows nothing of buffers, columns or bursts; the fast walk must cut every log as it does.
"""

from __future__ import annotations

from rmqctl.errors import FormatError
from rmqctl.formats.local.message import MAGIC_BLANK, Blank, Record, parse

Frame = tuple[str, int, int]
"""(kind, start, end) in positions of the data."""
_BLANK = MAGIC_BLANK.to_bytes(4)
LONGEST = 1 << 17
"""More than any record of the tests has: what is looked at of what follows."""


def record_at(data: bytes, base: int, at: int) -> Record | None:
    """The record at a position if it proves itself: magic, lengths, physical offset."""
    try:
        record = parse(data[at:at + LONGEST])
    except FormatError:
        return None
    return record if record.physical_offset == base + at else None


def blank_at(data: bytes, at: int) -> bool:
    if data[at + 4:at + 8] != _BLANK:
        return False
    parsed = Blank.parse(data[at:at + 8])
    return parsed.magic == MAGIC_BLANK and parsed.total_size == len(data) - at


def walk(data: bytes, base: int) -> list[Frame]:
    """Message and blank frames; what lies between is ``other``, up to the next frame."""
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        record = record_at(data, base, at)
        if record is not None:
            frames.append(("message", at, at + record.total_size))
        elif blank_at(data, at):
            frames.append(("blank", at, len(data)))
        else:
            end = next((q for q in range(at + 1, len(data)) if proven(data, base, q)), len(data))
            frames.append(("other", at, end))
        at = frames[-1][2]
    return frames


def proven(data: bytes, base: int, at: int) -> bool:
    """Whether a frame certainly starts here, asked after damage: one more proof is wanted."""
    if blank_at(data, at):
        return True
    if data[at + 4:at + 7] != b"\xda\xa3\x20":
        return False
    record = record_at(data, base, at)
    if record is None:
        return False
    after = at + record.total_size
    if after == len(data) or blank_at(data, after) or record_at(data, base, after):
        return True
    return (bool(record.body) and record.crc_ok) or not any(data[after:after + 8])
