"""CSV and TSV: a header, one record per row, nested values as JSON, no live formulas."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rmqctl.output.cells import Row, columns_of, compact_json, pages, peek, refuse_bytes
from rmqctl.output.escape import spreadsheet_safe, visible
from rmqctl.output.streams import Sink

SEPARATORS = {"csv": ",", "tsv": "\t"}


class _Lines:
    """Collects the records of a csv writer, ending each with a line feed alone.

    The writer must believe in CR LF: it quotes a carriage return within a field only then.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []

    def write(self, record: str) -> None:
        self._parts.append(record[:-2] + "\n")

    def take(self) -> str:
        text = "".join(self._parts)
        self._parts.clear()
        return text


def _field(value: Any) -> Any:
    """A value as the csv module takes it; numbers stay numbers."""
    if isinstance(value, str):
        return spreadsheet_safe(value)
    if value is None:
        return ""
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int | float):
        return value if math.isfinite(value) else ""
    refuse_bytes(value)
    return compact_json(value)


def write_separated(
    sink: Sink,
    separator: str,
    rows: Iterable[Row],
    columns: Sequence[str] | None,
    *,
    terminal: bool = False,
    warn: Callable[[str], None],
) -> int:
    """Stream ``rows`` as records; returns how many.

    ``columns`` None takes the keys of the first page of rows. A key that turns up later has no
    column; it is named once through ``warn``, for nothing may go missing silently. On a terminal
    control characters are escaped; in a file or pipe the text is exact.
    """
    first, stream = peek(pages(rows))
    names = list(columns) if columns is not None else columns_of(first)
    if not names:
        return 0
    lines = _Lines()
    writer = csv.writer(lines, delimiter=separator, lineterminator="\r\n")
    writer.writerow([spreadsheet_safe(name) for name in names])
    known = set(names)
    count = 0
    for page in stream:
        for row in page:
            fields = [_field(row.get(name)) for name in names]
            if terminal:
                fields = [visible(f) if isinstance(f, str) else f for f in fields]
            writer.writerow(fields)
            if columns is None and len(row) != len(names):
                for name in [key for key in row if key not in known]:
                    known.add(name)
                    warn(f"the {_kind(separator)} header has no column {visible(name)!r}: left out")
        count += len(page)
        sink.write(lines.take())
        sink.flush()
    sink.write(lines.take())  # the header alone, when there was no row
    return count


def _kind(separator: str) -> str:
    return "TSV" if separator == "\t" else "CSV"


def write_separated_document(
    sink: Sink, separator: str, document: Mapping[str, Any], *, terminal: bool = False
) -> None:
    """One object as ``key,value`` records, one per leaf (see :func:`flatten`)."""
    rows = ({"key": key, "value": value} for key, value in flatten(document))
    write_separated(
        sink, separator, rows, ["key", "value"], terminal=terminal, warn=lambda _text: None
    )


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(path, leaf)`` of a nested value: ``topics[0].queues[2].min_offset``.

    Empty lists and objects are leaves too (``[]``, ``{}``), so that their absence is visible.
    """
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from flatten(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and value:
        for index, item in enumerate(value):
            yield from flatten(item, f"{path}[{index}]")
    else:
        yield path, value
