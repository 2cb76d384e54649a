"""Content of the pane below the list, as styled lines: fields, bytes by field, or JSON of a row.

All text is safe for a terminal, and its length is limited: a long body is truncated, with a note.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rmqctl.errors import RmqctlError
from rmqctl.ext.browse.listing import ListRow, RowListing
from rmqctl.ext.browse.opened import StoreView
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import Message, Record
from rmqctl.formats.local.trace import trace
from rmqctl.output.cells import cell_text, display_width, padded
from rmqctl.output.cells import folded as in_words
from rmqctl.output.escape import json_visible, visible, visible_lines
from rmqctl.output.units import size_text, time_text
from rmqctl.store.dump.fields import shown_value
from rmqctl.store.objects import TIMES, message_object, plain_body, text

PANES = ("fields", "hex", "json")
Line = tuple[tuple[str, str], ...]
"""A line: (text, style) pieces; the style is ``name``, ``dim``, ``bad`` or empty."""

_MAX_TEXT, _MAX_HEX = 32 << 10, 8 << 10
"""Maximum number of bytes shown: of a body as text, and of a record in hex."""
_LATER = ("properties", "properties_raw", "body", "body_encoding", "tags", "keys")
_MAX_INDENTS = 24
"""Maximum depth to which a JSON body is indented."""
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|\{\s*\}|\[\s*\]|[][{}:,]|[^][{}:,"\s]+')
_WIDE = 76
"""Minimum width in columns of a pane that shows 16 bytes per line (else 8)."""


def pane(name: str, reader: StoreView, listing: RowListing, row: ListRow, width: int) -> list[Line]:
    """Return the content of the pane ``name`` (one of `PANES`) for a row, for ``width`` columns."""
    try:
        if not listing.of_messages:
            return _of_dump(name, listing, row, width)
        if row.kind == "damage":
            return _of_damage(name, reader, row, width)
        record = None if row.physical is None else reader.record(row.physical)
        if record is None:
            return [_plain("the message no longer exists; press r to read the store again", "bad")]
        if name == "hex":
            return list(_hex_record(reader, record, width))
        return _json(_bounded(record)) if name == "json" else list(_fields(record, row, width))
    except RmqctlError as error:
        return [_plain(visible(str(error)), "bad")]


def _plain(words: str, style: str = "") -> Line:
    return ((words, style),)


def aligned(pairs: Iterable[tuple[str, str, str]], width: int) -> list[Line]:
    """Return (name, value, style) triples as lines with aligned values; long values are wrapped."""
    rows = [(visible(name), value, style) for name, value, style in pairs]
    column = min(max((display_width(name) for name, _, _ in rows), default=0), width // 3)
    lines: list[Line] = []
    for name, value, style in rows:
        head = padded(name, max(column, display_width(name))) + "  "
        room = max(width - display_width(head), 8)
        for part in in_words(value, room) if style == "bad" else folded(value, room):
            lines.append(((head, "name"), (part, style)))
            head = " " * display_width(head)
    return lines


def folded(words: str, width: int) -> Iterator[str]:
    """Yield the pieces of a text, each at most ``width`` terminal columns wide; for an empty text,
    one empty piece.
    """
    if display_width(words) <= width:
        yield words
        return
    piece: list[str] = []
    taken = 0
    for char in words:
        wide = display_width(char)
        if taken + wide > width:
            yield "".join(piece)
            piece, taken = [], 0
        piece.append(char)
        taken += wide
    yield "".join(piece)


# -- messages --------------------------------------------------------------------------------------


def _fields(record: Record, row: ListRow, width: int) -> Iterator[Line]:
    """Yield the most important fields, then all properties and other fields, then the body."""
    fields = message_object(record, body="none")
    if not fields["crc_ok"]:
        yield _plain("body CRC mismatch", "bad")
    pairs = [(name, cell_text(fields[name]), "") for name in ("topic", "tags", "keys")]
    pairs.append(("body", row.cells["body"], ""))
    pairs += [(f"property {name}", cell_text(value), "")
              for name, value in fields["properties"].items() if name not in ("TAGS", "KEYS")]
    for name, value in fields.items():
        if name in _LATER or name == "topic":
            continue
        shown = cell_text(value)
        if name in TIMES:
            shown = f"{time_text(value)} ({value})"
        elif name == "sys_flag":
            words = [sysflag.compression(value), sysflag.transaction_type(value)]
            named = ", ".join(word for word in words if word not in (None, "none"))
            shown = f"{value} ({named})" if named else shown
        pairs.append((name, shown, "bad" if name == "crc_ok" and not value else ""))
    yield from aligned(pairs, width)
    yield from _body(record, width)


def _body(record: Record, width: int) -> Iterator[Line]:
    content, problem = plain_body(record.sys_flag, bytes(record.body))
    size = size_text(len(record.body))
    packed = "" if len(content) == len(record.body) else f", {size_text(len(content))} unpacked"
    yield _plain("")
    yield _plain(f"body ({size}{packed})", "name")
    if problem:
        yield _plain(visible(problem), "bad")
    head = content[:_MAX_TEXT]
    if b"\0" in head or "�" in head.decode("utf-8", "replace")[:-3]:
        yield _plain("not text: press 2 for hex", "dim")
        return
    words = text(head)
    if len(content) == len(head):
        words = indented(words) or words
    for line in visible_lines(words).split("\n"):
        yield from (_plain(part) for part in folded(line, width))
    if len(content) > len(head):
        yield _plain(f"{size_text(len(content) - len(head))} more are not shown", "dim")


def indented(words: str) -> str | None:
    """Return a JSON object or array with line breaks and indentation; other characters do not
    change. Return None for any other text.
    """
    if words.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(words)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth = 0
    for piece in _TOKENS.findall(words):
        opens, closes = piece in ("{", "["), piece in ("}", "]")
        depth += opens - closes
        start = "\n" + "  " * min(depth, _MAX_INDENTS)
        if closes:
            parts.append(start)
        parts.append(": " if piece == ":" else piece)
        if opens or piece == ",":
            parts.append(start)
    return "".join(parts)


def _bounded(record: Record) -> dict[str, Any]:
    """Return the message object, as `rmqctl read` prints it; a note replaces a long body."""
    if len(record.body) <= _MAX_TEXT:
        return message_object(record)
    fields = message_object(record, body="none")
    return {**fields, "body": f"({len(record.body)} bytes: `rmqctl read --from-phy "
                              f"{record.physical_offset} --limit 1` shows them)"}


def _json(value: Any) -> list[Line]:
    shown = json_visible(json.dumps(value, ensure_ascii=False, indent=2, default=str))
    # A lone surrogate is an invalid UTF-8 byte, which JSON can escape.
    shown = shown.encode("utf-8", "backslashreplace").decode()
    return [_plain(line) for line in shown.split("\n")]


# -- bytes -----------------------------------------------------------------------------------------


def _hex_record(reader: StoreView, record: Record, width: int) -> Iterator[Line]:
    """Yield lines with the name, value and bytes of each field of a record."""
    raw = reader.store.log.raw_at(record.physical_offset, record.total_size) or b""
    for part in trace(Message, raw):
        value = shown_value(part.name, part.value, full=False)
        yield from _hex_field(part.name, value, part.raw, record.physical_offset + part.at, width)


def _hex_field(name: str, value: Any, raw: bytes, origin: int, width: int) -> Iterator[Line]:
    """Yield lines for a field: one line if the field is short, else its bytes on the lines after
    its name.
    """
    shown = "" if value is None else f" = {cell_text(value)}"
    if len(raw) <= 8:
        yield ((f"{origin:>9x}  ", "dim"), (f"{raw.hex(' '):<24}", ""), (visible(name), "name"),
               (shown[:max(width - len(name) - 35, 4)], ""))
        return
    yield ((visible(name), "name"), (shown[:max(width - len(name) - 15, 4)], ""),
           (f"  {len(raw)} bytes", "dim"))
    yield from _hex_lines(raw, origin, width)


def _hex_lines(raw: bytes, origin: int, width: int) -> Iterator[Line]:
    """Yield lines of 8 or 16 bytes as hex and ASCII, each with its physical offset."""
    step = 16 if width >= _WIDE else 8
    for at in range(0, min(len(raw), _MAX_HEX), step):
        part = raw[at:at + step]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7f else "." for byte in part)
        yield ((f"{origin + at:>9x}  ", "dim"), (f"{part.hex(' '):<{step * 3}} ", ""),
               (shown, "dim"))
    if len(raw) > _MAX_HEX:
        yield _plain(f"{len(raw) - _MAX_HEX} more bytes: `rmqctl dump --hex -v` shows them", "dim")


# -- damage, and files that are no log -------------------------------------------------------------


def _of_damage(name: str, reader: StoreView, row: ListRow, width: int) -> list[Line]:
    damage = {"physical_offset": row.physical, "length": row.size, "problem": row.cells["body"]}
    if name == "json":
        return _json(damage)
    if name == "fields":
        lines = aligned(((key, str(value), "bad" if key == "problem" else "")
                         for key, value in damage.items()), width)
        return [*lines, _plain(""), _plain("v: verify this place", "dim")]
    place = None if row.physical is None else reader.store.log.locate(row.physical)
    if place is None or row.physical is None:
        return [_plain("no file contains these bytes", "dim")]
    source, position = place
    raw = source.read(position, min(row.size or _MAX_HEX, _MAX_HEX))
    more = (row.size or 0) - len(raw)
    return [*_hex_lines(raw, row.physical, width),
            *([_plain(f"{more} more bytes", "dim")] if more > 0 else [])]


def _of_dump(name: str, listing: RowListing, row: ListRow, width: int) -> list[Line]:
    from rmqctl.ext.browse.dump_listing import DumpListing

    assert isinstance(listing, DumpListing)
    record = listing.detail(row)
    if record is None:
        return [_plain("the record no longer exists; press r to read the store again", "bad")]
    parts = record.pop("fields", [])
    if name == "json":
        return _json(record)[:_MAX_HEX]
    if name == "fields":
        return aligned(((key, cell_text(value)[:_MAX_TEXT], "bad" if key == "error" else "")
                        for key, value in record.items() if value is not None), width)
    lines: list[Line] = []
    for part in parts:
        raw = bytes.fromhex(part["hex"].partition("…")[0])
        lines += _hex_field(part["name"], part["value"], raw, part["offset"], width)
        if "…" in part["hex"]:
            lines.append(_plain(part["hex"].partition("…")[2], "dim"))
    return lines or [_plain("no hex view of this record", "dim")]
