"""JSON and JSON lines: written as rows are produced, always valid UTF-8, without NaN."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from itertools import chain
from typing import Any

from rmqctl.output.cells import FLUSH, Encoded, Row, RowLayout, plain_value
from rmqctl.output.escape import json_visible
from rmqctl.output.streams import Sink, WriterTarget

_BATCH_CHARS = 1 << 16
_FLUSH_SECONDS = 0.2

_COMPACT = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(", ", ": "), default=plain_value
)

_MIN_FAST_ROWS = 256
"""Minimum number of rows for which loading a faster encoder saves time."""
_SCALARS = frozenset({str, int, bool, type(None)})
_CONTAINERS = frozenset({dict, list, tuple})
_TEXTS: Mapping[type, Callable[[Any], str]] = {str: json.encoder.encode_basestring, int: str}
"""Functions that return the JSON text of a value, for the types of most values."""

# In an indented document a flat object or list up to this length stays on one line.
_LINE_CHARS = 100


def _finite(value: Any) -> Any:
    """Return a copy of ``value`` with None for NaN and infinities, which JSON does not allow."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _encode(value: Any) -> str:
    try:
        return _COMPACT.encode(value)
    except ValueError:  # only NaN can cause this in an acyclic value
        return _COMPACT.encode(_finite(value))


def _encode_row(row: Row) -> str:
    """Encode a row with the same result as `_encode`. Rows of only texts, integers and flat
    containers are encoded several times faster.
    """
    values = row.values()
    kinds = set(map(type, values))
    nested = kinds & _CONTAINERS
    if nested:
        inner = [value.values() if type(value) is dict else value
                 for value in values if type(value) in nested]
        kinds = (kinds - nested).union(map(type, chain.from_iterable(inner)))
    if not kinds <= _SCALARS:
        return _encode(row)
    to_json, spaced = _fast()
    try:
        return str(spaced(to_json(row), indent=0), "utf-8")
    except (ValueError, OverflowError):  # lone surrogates, integers of more than 64 bits
        return _encode(row)


@cache
def _fast() -> Any:
    """Return msgspec's encoder, and the function that inserts spaces; imported on first use."""
    from msgspec import json as fast

    return fast.Encoder().encode, fast.format


def _indented(value: Any, margin: str = "") -> str:
    """Return indented JSON text. Short flat objects and lists are on one line."""
    kind = type(value)
    if kind is dict or isinstance(value, Mapping):
        leads = [_lead(str(key)) for key in value]
        values = list(value.values())
        opening, closing = "{", "}"
    elif kind is list or isinstance(value, list | tuple):
        values = list(value)
        leads = [""] * len(values)
        opening, closing = "[", "]"
    else:
        return _encode(value)
    # A flat object or list, if it fits on one line. Types are compared before classes, for speed.
    kinds = set(map(type, values))
    if kinds <= _SCALARS or not any(
            item and (type(item) in _CONTAINERS or isinstance(item, Mapping | list | tuple))
            for item in values if type(item) not in _SCALARS):
        line = _encode(value)
        if not values or len(margin) + len(line) <= _LINE_CHARS:
            return line
    # Every other one has a line for each value.
    inner, text_of = margin + "  ", _TEXTS.get
    body = ",\n".join([
        f"{inner}{lead}{text_of(type(item), _encode)(item)}" if type(item) in _SCALARS
        else f"{inner}{lead}{_indented(item, inner)}"
        for lead, item in zip(leads, values, strict=True)])
    return f"{opening}\n{body}\n{margin}{closing}"


@lru_cache(maxsize=1024)
def _lead(name: str) -> str:
    """Return the text before a value: the quoted name of the value."""
    return f"{_encode(name)}: "


class JsonLines:
    """Writer of JSON lines: one object per line. Lines are collected and written after a short
    delay, or at a FLUSH.
    """

    def __init__(self, target: WriterTarget) -> None:
        self._sink, self._terminal = target.sink, target.terminal

    def rows(self, rows: Iterable[Row | Encoded], layout: RowLayout) -> int:
        return _stream(self._sink, rows, "", "\n", self._terminal)

    def document(self, document: Mapping[str, Any], human: object) -> None:
        self._document(_encode(document))

    def _document(self, text: str) -> None:
        self._sink.write((json_visible(text) if self._terminal else text) + "\n")


class Json(JsonLines):
    """Writer of JSON: rows as an array with one object per line, or a document on several lines."""

    def rows(self, rows: Iterable[Row | Encoded], layout: RowLayout) -> int:
        """Write the rows as an array. If ``rows`` raises an exception, the array is not closed, so
        that a reader rejects the incomplete list.
        """
        self._sink.write("[")
        count = _stream(self._sink, rows, ",", "", self._terminal)
        self._sink.write("\n]\n" if count else "]\n")
        return count

    def document(self, document: Mapping[str, Any], human: object) -> None:
        self._document(_indented(document))


def writer(name: str, target: WriterTarget) -> JsonLines:
    """Return the writer of ``json`` or ``jsonl``."""
    return (Json if name == "json" else JsonLines)(target)


def _stream(sink: Sink, rows: Iterable[Row | Encoded], comma: str, ending: str,
            terminal: bool) -> int:
    # The array form puts the separator before each object, so that nothing follows the last one.
    lead = "" if ending else "\n"
    pending: list[str] = []
    size = count = 0
    clock = time.monotonic
    flushed = clock()
    for row in rows:
        # The source pauses: write what is pending.
        if row is FLUSH:
            sink.write("".join(pending))
            sink.flush()
            pending, size, flushed = [], 0, clock()
            continue
        # Rows that are already encoded are written as they are, after the pending rows.
        if isinstance(row, Encoded):
            sink.write("".join(pending))
            pending, size = [], 0
            lines = row.lines
            if not ending:
                lines = bytes(lines[:-1]).replace(b"\n", f"{comma}{lead}".encode())
                sink.write(f"{comma if count else ''}{lead}")
            sink.write(json_visible(str(lines, "utf-8")) if terminal else lines)
            sink.flush()
            count, flushed = count + row.rows, clock()
            continue
        # Collect other rows, and write when a batch is large or old enough.
        text = (_encode if count < _MIN_FAST_ROWS else _encode_row)(row)
        if terminal:
            text = json_visible(text)
        text = f"{comma if count else ''}{lead}{text}{ending}"
        pending.append(text)
        size += len(text)
        count += 1
        if size >= _BATCH_CHARS or clock() - flushed >= _FLUSH_SECONDS:
            sink.write("".join(pending))
            sink.flush()
            pending, size, flushed = [], 0, clock()
    sink.write("".join(pending))
    return count
