"""``epochFileCheckpoint`` of the controller mode (checkpoint-and-small-files.md §5).

A text file: the number of entries; the CRC of the entry lines with their separators (``0``:
unchecked); then one line ``epoch-startOffset`` for each entry.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

from rmqctl.errors import FormatError
from rmqctl.formats.local.delay import java_int
from rmqctl.formats.local.message import CRC_MASK

UNCHECKED = 0
_ENTRY = re.compile(r"(\d+)-(\d+)")
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")


class Epoch(NamedTuple):
    """An epoch and the physical offset at which it began. It ends where the next epoch begins."""

    epoch: int
    start_offset: int


class EpochLine(NamedTuple):
    """One line of the file: its position, and its bytes without the separator."""

    at: int
    raw: bytes


def lines(data: bytes) -> list[EpochLine]:
    """Return the lines as Java's ``readLine`` splits them, with their positions."""
    lines_of_file = []
    position = 0
    while position < len(data):
        match = _LINE.match(data, position)
        assert match is not None  # the pattern matches anywhere
        lines_of_file.append(EpochLine(position, match[1]))
        position = match.end()
    return lines_of_file


def _number(line: EpochLine, path: str, bits: int = 32) -> int:
    try:
        return java_int(line.raw.decode("ascii"), bits)
    except ValueError:
        raise FormatError(f"not a {bits}-bit number", offset=line.at, path=path) from None


def _entry(line: EpochLine, number: int) -> Epoch:
    path = f"entries[{number}]"
    match = _ENTRY.fullmatch(line.raw.decode("ascii", "replace"))
    if match is None:
        raise FormatError("not a line epoch-startOffset", offset=line.at, path=path)
    try:
        return Epoch(java_int(match[1]), java_int(match[2], 64))
    except ValueError:
        raise FormatError("number out of range", offset=line.at, path=path) from None


def parse(data: bytes) -> list[Epoch]:
    """Return the entries in a file's content.

    Raises: FormatError for a wrong count, CRC or line.
    """
    file_lines = lines(data)
    for number, path in enumerate(("count", "crc")):
        if len(file_lines) <= number:
            raise FormatError("missing", offset=len(data), path=path)
    count, crc = _number(file_lines[0], "count"), _number(file_lines[1], "crc")
    entries = [_entry(line, i) for i, line in enumerate(file_lines[2:])]
    if len(entries) != count:
        raise FormatError(f"says {count}, but the file has {len(entries)} entries",
                          offset=file_lines[0].at, path="count")
    if crc != UNCHECKED and crc not in (_crc(entries, "\n"), _crc(entries, "\r\n"),
                                        _crc_of(data[file_lines[2].at:] if entries else b"")):
        raise FormatError(f"says {crc}, but the CRC of the entries is {_crc(entries, chr(10))}",
                          offset=file_lines[1].at, path="crc")
    return entries


def stops_broker(data: bytes) -> str | None:
    """Return the reason why a broker exits when it reads the file; None if the broker can read the
    file or its backup.

    A broker reads the backup only after an IOException (wrong count, wrong CRC, invalid UTF-8). It
    does not catch the NumberFormatException for a missing or non-numeric line.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        return None
    entries = lines(data)
    for number, path in enumerate(("count", "crc")):
        if len(entries) <= number:
            return f"{path}: missing"
        try:
            _number(entries[number], path)
        except FormatError as error:
            return f"{path}: {error.reason}"
    for number, line in enumerate(entries[2:]):
        parts = line.raw.rstrip(b"-").split(b"-")
        if len(parts) == 2:
            try:
                java_int(parts[0].decode())
                java_int(parts[1].decode(), 64)
            except ValueError:
                return f"entries[{number}]: not a number"
    return None


def _crc_of(raw: bytes) -> int:
    return zlib.crc32(raw) & CRC_MASK


def _text(entries: list[Epoch], separator: str) -> bytes:
    return "".join(f"{e.epoch}-{e.start_offset}{separator}" for e in entries).encode("ascii")


def _crc(entries: list[Epoch], separator: str) -> int:
    return _crc_of(_text(entries, separator))


def build(entries: list[Epoch], separator: str = "\n") -> bytes:
    """Return the content of the file as a broker writes it on a system with this line separator."""
    head = f"{len(entries)}{separator}{_crc(entries, separator)}{separator}"
    return head.encode("ascii") + _text(entries, separator)
