"""ConsumeQueueExt: units of varying size beside a consume queue (spec: consumequeue.md §8).

With ``enableConsumeQueueExt``, the tagsCode of a consume queue unit is the *address* of an
extension unit. The address is the unit's byte offset with the top bit set. No sign-extended 32-bit
hash can equal an address.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from construct import Bytes, ConstructError, Int16sb, Int64sb, Struct, this

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.fixed import TOO_SHORT

Unit = Struct(
    "size" / Int16sb,
    "tags_code" / Int64sb,
    "store_timestamp" / Int64sb,
    "bit_map_size" / Int16sb,
    "bit_map" / Bytes(this.bit_map_size),
)

HEAD_SIZE = layout.prefix_size(Unit)
_HEAD = layout.reader(Unit)
_SIZE = layout.reader(Unit, "size")
MAX_SIZE = (1 << 15) - 1
END_MARK = b"\xff\xff"
END_BLANK = 4
"""Number of bytes at the end of a file that are reserved for the end mark."""

_LONG_MIN = -(1 << 63)
MAX_ADDRESS = -(1 << 31) - 1
"""The greatest valid address."""


class UnitRecord(NamedTuple):
    """The tags code and store time of one message, and a bitmap of the filters that the message
    passes.
    """

    size: int
    tags_code: int
    store_timestamp: int
    bit_map: bytes


def make(tags_code: int, store_timestamp: int, bit_map: bytes = b"") -> UnitRecord:
    """Return a unit whose size field is set."""
    return UnitRecord(HEAD_SIZE + len(bit_map), tags_code, store_timestamp, bit_map)


def is_address(tags_code: int) -> bool:
    """Return whether the tagsCode of a consume queue unit points into the ext files."""
    return tags_code <= MAX_ADDRESS


def address(byte_offset: int) -> int:
    """Return the tagsCode that points to the unit at this byte offset.

    Raises: ValueError if it is out of range.
    """
    if not 0 <= byte_offset <= MAX_ADDRESS - _LONG_MIN:
        raise ValueError(f"no ext unit can be at {byte_offset}")
    return byte_offset + _LONG_MIN


def byte_offset(tags_code: int) -> int:
    """Return the byte offset to which an address points.

    Raises: ValueError if ``tags_code`` is not an address.
    """
    if not is_address(tags_code):
        raise ValueError(f"{tags_code} is a tags code, not an ext address")
    return tags_code - _LONG_MIN


def _judge(size: int, bit_map_size: int, where: int) -> None:
    if bit_map_size < 0:
        raise FormatError("negative length", offset=where, path="bit_map_size")
    if size != HEAD_SIZE + bit_map_size:
        raise FormatError(f"says {size}, but the fields add up to {HEAD_SIZE + bit_map_size}",
                          offset=where, path="size")


def parse(data: bytes, position: int = 0, base: int = 0) -> UnitRecord:
    """Return the unit at ``data[position:]``, parsed with construct.

    Raises: FormatError that names field and offset.
    """
    where = base + position
    try:
        values = Unit.parse(data[position:] if position >= 0 else b"")
    except ConstructError as error:
        path = (error.path or "").removeprefix("(parsing) -> ")
        if path == "bit_map" and "negative" in str(error):
            raise FormatError("negative length", offset=where, path="bit_map_size") from None
        raise FormatError(TOO_SHORT, offset=where, path=path) from None
    _judge(values.size, values.bit_map_size, where)
    return UnitRecord(values.size, values.tags_code, values.store_timestamp, values.bit_map)


def decode(data: bytes | memoryview, position: int = 0, base: int = 0) -> UnitRecord:
    """Return the unit at ``data[position:]``, using the derived struct, with the same result as
    `parse`.
    """
    where = base + position
    available = len(data) - position if 0 <= position <= len(data) else 0
    if available < HEAD_SIZE:
        short = next(part for part in layout.prefix(Unit) if part.offset + part.size > available)
        raise FormatError(TOO_SHORT, offset=where, path=short.name)
    size, tags_code, store_timestamp, bit_map_size = _HEAD.unpack_from(data, position)
    if bit_map_size >= 0 and available < HEAD_SIZE + bit_map_size:
        raise FormatError(TOO_SHORT, offset=where, path="bit_map")
    _judge(size, bit_map_size, where)
    bits = position + HEAD_SIZE
    return UnitRecord(size, tags_code, store_timestamp, bytes(data[bits:bits + bit_map_size]))


def build(unit: UnitRecord) -> bytes:
    """Return the bytes of a unit; ``size`` is written as given."""
    raw: bytes = Unit.build({
        "size": unit.size, "tags_code": unit.tags_code, "store_timestamp": unit.store_timestamp,
        "bit_map_size": len(unit.bit_map), "bit_map": unit.bit_map})
    return raw


class ExtStep(NamedTuple):
    """One step of a walk: a unit, the end mark, or the ``error`` found there.

    ``end``: the walk ends here, at the end mark or because the position of the next unit is
    unknown.
    """

    at: int
    size: int
    unit: UnitRecord | None = None
    end: bool = False
    error: FormatError | None = None


def walk(data: bytes, position: int = 0, base: int = 0) -> Iterator[ExtStep]:
    """Yield the units of one file from ``position`` up to the end mark or unused space.

    Each step advances by at least one byte. A damaged unit has two lengths: its size field, and the
    length that follows from its bit map's size. The length that ends at a plausible position is
    used to skip the unit. If neither length does, the size field is used, as in a broker. If
    neither length is possible, the position of the next unit is unknown.
    """
    while position + _SIZE.size <= len(data):
        size = _SIZE.unpack_from(data, position)[0]
        if data.startswith(END_MARK, position):
            yield ExtStep(position, _SIZE.size, end=True)
            return
        if not any(data[position:position + HEAD_SIZE]):
            return
        try:
            unit = decode(data, position, base)
        except FormatError as error:
            step = _over(data, position, size)
            yield ExtStep(position, step or len(data) - position, end=not step, error=error)
            if not step:
                return
            position += step
        else:
            yield ExtStep(position, size, unit)
            position += size


def _over(data: bytes, position: int, size: int) -> int:
    """Return the number of bytes from a damaged unit to the next unit; 0 if unknown."""
    lengths = [size]
    if position + HEAD_SIZE <= len(data):
        lengths.append(HEAD_SIZE + _HEAD.unpack_from(data, position)[-1])
    lengths = [length for length in lengths if HEAD_SIZE <= length <= len(data) - position]
    return next((length for length in lengths if _sound(data, position + length)),
                max(lengths[:1], default=0))


def _sound(data: bytes, position: int) -> bool:
    """Return whether a unit, the end mark, unused space or the end of the data is at
    ``position``.
    """
    if data.startswith(END_MARK, position) or not any(data[position:position + HEAD_SIZE]):
        return True
    try:
        decode(data, position)
    except FormatError:
        return False
    return True
