"""What the head of a torn or damaged record tells: whether it is that of another, whole one."""

from __future__ import annotations

from dataclasses import replace

from rmqctl.errors import FormatError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import KEPT_START, MARK
from rmqctl.formats.local.message import (
    HOST_BITS,
    Record,
    decode,
    fixed_field,
)

_PLACED = ("magic", "physical_offset")
_TELLING = ("total_size", "body_crc", "queue_offset", "store_timestamp")
_NEVER_BY_CHANCE = _TELLING[1:]


def kept_from(ours: Record, theirs: Record) -> bool:
    """Whether ours is this message, kept with a damaged body by an earlier repair: that leaves all
    but flags and body as they were, and of the properties all but two that it may take away.
    """
    if not ours.properties.startswith(KEPT_START) or theirs.properties.startswith(KEPT_START):
        return False
    left, whole = (props.parse(record.properties.decode("utf-8", "surrogateescape"))
                   for record in (ours, theirs))
    for name in (MARK, props.CRC32):
        left.pop(name, None)
    return left.items() <= whole.items() and replace(
        ours, body=theirs.body, body_crc=theirs.body_crc, sys_flag=theirs.sys_flag,
        properties=theirs.properties) == theirs


def same_message(ours: bytes, theirs: bytes) -> bool | None:
    """Whether what begins with ``ours`` was the whole record ``theirs``, at the same place.

    True where CRC, queue offset and times are the same (or all but the body, where an earlier
    repair kept that), False where two of them are others; None where that does not tell.
    """
    try:
        record = decode(theirs)
    except FormatError:
        return None
    try:
        if kept_from(decode(ours), record):
            return True
    except FormatError:
        pass
    bits = record.sys_flag & HOST_BITS

    def of(name: str, data: bytes) -> bytes:
        field = fixed_field(name, bits)
        return data[field.offset:field.offset + field.size]

    if any(of(name, ours) != of(name, theirs) for name in _PLACED):
        return None
    if any(of("body_crc", theirs)) and all(
            of(name, ours) == of(name, theirs) for name in _NEVER_BY_CHANCE):
        return True
    others = [name for name in _TELLING
              if any(of(name, ours)) and of(name, ours) != of(name, theirs)]
    return False if len(others) > 1 else None
