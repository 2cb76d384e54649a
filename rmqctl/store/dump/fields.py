"""The parts that all readers of `dump` share: options, the opened file, and rows of faults and
fields.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from rmqctl.errors import FormatError
from rmqctl.formats.local.trace import trace
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource

Row = dict[str, Any]

SHOWN_BYTES = 64
"""Maximum number of bytes of a field that are shown in hex, unless the user requests complete
values.
"""
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """The part of a file to show. ``at`` is a position in the file; ``start`` is the number of a
    record.
    """

    kind: str | None = None
    start: int | None = None
    count: int | None = None
    at: int | None = None
    hex: bool = False
    every: bool = False
    full: bool = False
    body: str = "auto"
    index_slots: int | None = None


@dataclass(slots=True)
class Target:
    """An opened file of a known kind. ``base`` is the stream offset of the file's first byte; None
    if unknown.
    """

    source: FileSource
    kind: str
    base: int | None
    options: DumpOptions
    notes: list[str] = field(default_factory=list)
    faults: int = 0

    @property
    def size(self) -> int:
        return self.source.size

    def place(self, position: int, number: int | None = None) -> Row:
        """Return the first columns of a row: number and position of its record."""
        row: Row = {} if number is None else {"number": number}
        row["offset"] = position
        if self.base is not None:
            row["byte_offset"] = self.base + position
        return row

    def fault(self, reason: str, position: int, path: str | None = None) -> Row:
        """Count a fault, and return it as the ``error`` value of a row, with file, offset and field
        path.
        """
        self.faults += 1
        return {"file": self.source.name, "offset": position, "field": path or None,
                "reason": reason}

    def fault_of(self, error: FormatError, position: int | None = None) -> Row:
        where = position if position is not None else error.offset or 0
        return self.fault(error.reason, where, error.path)

    def add_fields(self, row: Row, declaration: Any, raw: bytes, position: int) -> None:
        """Add the ``fields`` of a record to its row, if the user requests them."""
        if self.options.hex:
            row["fields"] = list(fields_of(declaration, raw, position, full=self.options.full))

    def read(self, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes. If the file has shrunk, report this once."""
        data = self.source.read(position, length)
        end = position + len(data)
        if len(data) < length and end < self.source.size:
            self.source.size = end
            self.shrunk(end)
        return data

    def _next_data(self, position: int) -> int:
        """Return the next position that may contain data; at the end, check whether the file has
        shrunk.
        """
        next_used = self.source.next_data(position)
        if position < next_used == self.source.size:
            self.read(next_used - 1, 1)
        return min(next_used, self.source.size)

    def shrunk(self, size: int) -> None:
        """Record that the file now has only ``size`` bytes."""
        self.faults += 1
        self.notes.append(f"the file shrank while it was read: {size:,} bytes are left")

    def chunks(self, start: int, end: int, unit: int = 1) -> Iterator[tuple[int, bytes]]:
        """Yield (position, bytes) of ``[start, end)``, in complete units of ``unit`` bytes.

        Zeroed parts are skipped unless the option ``every`` is set. If the file has shrunk, the
        iteration stops at its new end.
        """
        step = max(CHUNK // unit, 1) * unit
        position = start
        while position < end:
            if not self.options.every:
                hole = self._next_data(position) - position
                position += hole - hole % unit
            if position >= end:
                return
            data = self.read(position, min(step, end - position))
            if not data:
                return
            if self.options.every or not _all_zero(data):
                yield position, data
            position += len(data)

    def unused_from(self, position: int) -> bool:
        """Return whether only zeros follow to the end of the file."""
        while True:
            position = self._next_data(position)
            data = self.read(position, CHUNK)
            if not data or not _all_zero(data):
                return not data
            position += len(data)


def _all_zero(data: bytes) -> bool:
    return data.count(0) == len(data)


def fault_text(error: Any) -> str:
    """Return an ``error`` value as one line of text."""
    return str(FormatError(error["reason"], offset=error["offset"], path=error["field"]))


def shown_hex(raw: bytes, *, full: bool) -> str:
    """Return bytes in hex. If a value is long, show only its start, followed by the number of
    omitted bytes.
    """
    if full or len(raw) <= SHOWN_BYTES:
        return raw.hex()
    return f"{raw[:SHOWN_BYTES].hex()}…(+{len(raw) - SHOWN_BYTES} bytes)"


def shown_value(name: str, value: int | bytes | None, *, full: bool) -> int | str | None:
    """Return a field's value as shown in a row. Numbers are unchanged, addresses and UTF-8 data
    become text, other bytes become None.
    """
    if not isinstance(value, bytes):
        return value
    if name.endswith("address"):
        return str(ipaddress.ip_address(value))
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if full or len(text) <= SHOWN_BYTES:
        return text
    return f"{text[:SHOWN_BYTES]}…(+{len(text) - SHOWN_BYTES})"


def field_row(name: str, position: int, raw: bytes, value: int | bytes | str | None, *,
              full: bool) -> Row:
    """Return one element of a row's ``fields``."""
    shown = value if isinstance(value, str) else shown_value(name, value, full=full)
    return {"name": name, "offset": position, "size": len(raw),
            "hex": shown_hex(raw, full=full), "value": shown}


def fields_of(declaration: Any, raw: bytes, position: int, *, full: bool) -> Iterator[Row]:
    """Yield the fields of the record at ``position``, named as in ``declaration``."""
    for part in trace(declaration, raw):
        yield field_row(part.name, position + part.at, part.raw, part.value, full=full)


def flattened(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield a row for each field of the given rows, for output as a table."""
    for row in rows:
        head = {"record": row.get("number"), "type": row.get("type")}
        for part in row.get("fields", ()):
            yield {**head, "field": part["name"],
                   **{key: part[key] for key in ("offset", "size", "hex", "value")}}
        if not row.get("fields"):
            yield {**head, "offset": row["offset"], "size": row.get("size")}
        if row.get("error"):
            yield {**head, "field": "error", "offset": row["error"]["offset"],
                   "value": fault_text(row["error"])}


FLAT_COLUMNS = ("record", "type", "field", "offset", "size", "hex", "value")
