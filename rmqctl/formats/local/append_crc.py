"""The appended ``__CRC32#`` property of 5.2.0+ (spec: commitlog.md §5.4).

The last twenty bytes of a record: name, separator, ten digits (least significant first), separator.
The CRC covers all bytes of the record before these twenty, including the fields that the body CRC
does not cover.
"""

from __future__ import annotations

import zlib

from construct import Bytes, Const, ConstructError, Struct

from rmqctl.errors import FormatError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import CRC_MASK

DIGITS = 10

AppendedCrc = Struct(
    "name" / Const(props.CRC32.encode("ascii")),
    "separator" / Const(props.NAME_VALUE_SEPARATOR.encode("ascii")),
    "digits" / Bytes(DIGITS),
    "end" / Const(props.PROPERTY_SEPARATOR.encode("ascii")),
)

SIZE: int = AppendedCrc.sizeof()


def write_digits(crc: int) -> bytes:
    """Return ten decimal digits, least significant first, padded with ``0`` on the right."""
    if not 0 <= crc <= CRC_MASK:
        raise FormatError("value does not fit the field", path="digits")
    return f"{crc:0{DIGITS}d}"[::-1].encode("ascii")


def read_digits(digits: str) -> int:
    """Return the number that a broker reads from the property's value.

    Raises: ValueError if the value does not consist of digits.
    """
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS):
        raise ValueError(f"not a CRC: {digits[:20]!r}")
    return int(digits[::-1])


def build(crc: int) -> bytes:
    """Return the twenty bytes of the property with this CRC."""
    raw: bytes = AppendedCrc.build({"digits": write_digits(crc)})
    return raw


_NAME = build(0)[:-DIGITS - 1]
"""The bytes before the digits."""


def parse(data: bytes, base: int = 0) -> int:
    """Return the CRC in the twenty bytes ``data``.

    Raises: FormatError if the bytes are not the property with an appended CRC.
    """
    try:
        appended = AppendedCrc.parse(data)
        if len(data) != SIZE:
            raise FormatError(f"has {len(data):,} bytes, expected {SIZE}", offset=base, path="end")
        return read_digits(appended.digits.decode("ascii", "replace"))
    except ConstructError as error:
        path = (error.path or "").removeprefix("(parsing) -> ")
        raise FormatError("not an appended CRC", offset=base, path=path) from None
    except ValueError:
        raise FormatError("not 10 digits", offset=base, path="digits") from None


def compute(record: bytes | memoryview) -> int:
    """Return the appended CRC of a complete record: over all bytes except the last twenty."""
    return zlib.crc32(memoryview(record)[:max(len(record) - SIZE, 0)]) & CRC_MASK


def stored(record: bytes) -> int | None:
    """Return the appended CRC of a record's bytes; None if the record has no appended CRC.

    In a batch, the CRC may directly follow the text before it (commitlog.md §5.4). A record that a
    broker stored again with the feature disabled may contain its previous CRC. A mismatch therefore
    proves damage only if the feature was enabled.
    """
    tail = bytes(record[-SIZE:])
    if not tail.startswith(_NAME):  # most records; this costs less than an error
        return None
    try:
        return parse(tail)
    except FormatError:
        return None


def verify(record: bytes) -> bool | None:
    """Return whether the appended CRC matches the record; None if the record has no appended
    CRC.
    """
    stored_crc = stored(record)
    return None if stored_crc is None else stored_crc == compute(record)


def seal(record: bytes) -> bytes:
    """Return a finished record, with its CRC in the last twenty bytes, which were reserved for the
    CRC.
    """
    if len(record) < SIZE:
        raise FormatError("record runs past the end of the data", offset=0, path="digits")
    return record[:-SIZE] + build(compute(record))
