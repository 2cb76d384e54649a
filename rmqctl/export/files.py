"""Classes that write the rows of an export to an opened binary file. This module has the text
formats.

The classes never flush or close the binary file. `rmqctl.export.attempt` flushes it to disk and
closes it.
"""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Protocol

from rmqctl.export.spec import Export
from rmqctl.formats.bodies import zstd

Row = Mapping[str, Any]

class ExportFile(Protocol):
    """A file that accepts chunks: an Arrow table, or bytes for a text format."""

    def write(self, chunk: Any) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Release the file without writing the data that is still in memory. Called instead of
        `close`.
        """


class TextFile:
    """A file of JSON or CSV lines, compressed or not; CSV starts with a header."""

    def __init__(self, spec: Export, target: IO[bytes]) -> None:
        self._target = target
        self._packer = _packer(spec.compression)
        if spec.format == "csv":
            self.write(csv_record(spec.fields))

    def write(self, chunk: bytes) -> None:
        self._target.write(chunk if self._packer is None else self._packer.compress(chunk))

    def close(self) -> None:
        if self._packer is not None:
            self._target.write(self._packer.flush())

    def abandon(self) -> None:
        pass


def _packer(compression: str) -> Any:
    if compression == "gzip":
        return zlib.compressobj(wbits=31)
    if compression == "zstd":
        return zstd().ZstdCompressor()
    return None


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(", ", ": ")).encode
compact_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_line(row: Row) -> bytes:
    """Return a message object as ``read -o jsonl`` writes it; lone surrogates become JSON
    escapes.
    """
    return _encode(row).encode("utf-8", "backslashreplace") + b"\n"


def csv_line(row: Row, text: Callable[[str], str] | None = None) -> bytes:
    """Return a row as CSV. Lists and maps are written as JSON. Texts are unchanged (U+FFFD for
    bytes that are not UTF-8) or converted by ``text``.
    """
    cells = map(_cell, row.values())
    return csv_record(cells if text is None else (
        text(cell) if isinstance(cell, str) else cell for cell in cells))


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _clean(value)
    if value is None or type(value) is int:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return value
    return _clean(compact_json(value)) if value else "{}" if isinstance(value, dict) else "[]"


def _clean(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text


class _CsvTarget:
    """Target of a csv writer, which calls ``write`` once for each record and returns its result."""

    @staticmethod
    def write(record: str) -> bytes:
        return record[:-2].encode() + b"\n"


# The writer must use CR LF: only then it quotes a carriage return within a cell.
_csv: Any = csv.writer(_CsvTarget(), lineterminator="\r\n")


def csv_record(cells: Iterable[Any]) -> bytes:
    """Return one CSV record (RFC 4180) that ends with a single line feed."""
    record: bytes = _csv.writerow(cells)
    return record
