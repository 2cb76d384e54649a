"""What the head of a torn or damaged record tells: whether it is that of another, whole one."""

from __future__ import annotations

from rmqctl.errors import FormatError
from rmqctl.formats.local.message import (
    HOST_BITS,
    MAGIC_V1,
    decode,
    fixed_field,
    variant,
)

HEAD_SIZE = variant(HOST_BITS, MAGIC_V1).head_size
_PLACED = ("magic", "physical_offset")
_TELLING = ("total_size", "body_crc", "queue_offset", "store_timestamp")
_NEVER_BY_CHANCE = _TELLING[1:]


def same_message(ours: bytes, theirs: bytes) -> bool | None:
    """Whether what begins with ``ours`` was the whole record ``theirs``, at the same place.

    True where CRC, queue offset and times are the same, False where two of them are others; None
    where that does not tell.
    """
    try:
        bits = decode(theirs).sys_flag & HOST_BITS
    except FormatError:
        return None

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
