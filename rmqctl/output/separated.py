"""CSV and TSV: a header, one record per row, nested values as JSON. Formulas are escaped."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rmqctl.output.cells import (
    Row,
    RowLayout,
    columns_of,
    compact_json,
    pages,
    peek,
    refuse_bytes,
    simple,
)
from rmqctl.output.escape import spreadsheet_safe, visible
from rmqctl.output.streams import WriterTarget

_SEPARATORS = {"csv": ",", "tsv": "\t"}


class _RecordLines:
    """Receives the records of a csv writer, and ends each of them with a single line feed.

    The writer must use CR LF: only then does it quote a carriage return within a field.
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
    """Convert a value for the csv module; numbers are unchanged."""
    if isinstance(value, str):
        return spreadsheet_safe(value)
    if value is None or isinstance(value, int | float):
        return simple(value)
    refuse_bytes(value)
    return compact_json(value)


class Separated:
    """Writer of CSV or TSV. Control characters are escaped on a terminal, but not in a file or a
    pipe.
    """

    def __init__(self, name: str, target: WriterTarget) -> None:
        self._name, self._target = name, target

    def rows(self, rows: Iterable[Row], layout: RowLayout) -> int:
        """Write rows. If no columns are given, the keys of the first page of rows are the columns.

        A key that appears only on a later page has no column, and is reported once on stderr.
        """
        columns, sink, terminal = layout.columns, self._target.sink, self._target.terminal
        first, stream = peek(pages(rows))
        names = list(columns) if columns is not None else columns_of(first)
        if not names:
            return 0
        # A spreadsheet takes a cell that starts with = for a formula, also in the header.
        lines = _RecordLines()
        records = csv.writer(lines, delimiter=_SEPARATORS[self._name], lineterminator="\r\n")
        records.writerow([spreadsheet_safe(name) for name in names])
        in_header = set(names)
        count = 0
        for page in stream:
            for row in page:
                fields = [_field(row.get(name)) for name in names]
                if terminal:
                    fields = [visible(f) if isinstance(f, str) else f for f in fields]
                records.writerow(fields)
                # Warn once for each key that appears after the header was written.
                if columns is None and len(row) != len(names):
                    for name in [key for key in row if key not in in_header]:
                        in_header.add(name)
                        self._target.warn(f"the {self._name.upper()} header has no column "
                                          f"{visible(name)!r}; its values are not written")
            count += len(page)
            sink.write(lines.take())
            sink.flush()
        sink.write(lines.take())  # the header alone, when there was no row
        return count

    def document(self, document: Mapping[str, Any], human: object) -> None:
        """Write one ``key,value`` record per leaf (see :func:`flatten`)."""
        rows = ({"key": key, "value": value} for key, value in flatten(document))
        self.rows(rows, RowLayout(("key", "value"), None, None, None, None))


def writer(name: str, target: WriterTarget) -> Separated:
    """Return the writer of ``csv`` or ``tsv``."""
    return Separated(name, target)


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path, such as ``topics[0].queues[2].min_offset``, and the value of each leaf of a
    nested value.

    Empty lists and objects (``[]``, ``{}``) are also leaves.
    """
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from flatten(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and value:
        for index, item in enumerate(value):
            yield from flatten(item, f"{path}[{index}]")
    else:
        yield path, value
