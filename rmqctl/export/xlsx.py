"""Messages as an Excel workbook, for people: one sheet, times as dates, cells shortened to Excel's
limit.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import IO, Any

import pyarrow as pa
import xlsxwriter

from rmqctl.errors import RefusedError
from rmqctl.export.spec import Export
from rmqctl.scan.columns import dict_column

MAX_ROWS = (1 << 20) - 1
"""Maximum rows of a sheet, not counting its header."""
MAX_CELL = 32_767
"""Maximum number of characters in a cell."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -2_208_988_800_000, 253_402_300_799_999
"""First and last epoch ms that Excel can show as a date: 1900 to 9999."""
_MAX_EXACT = 1 << 53
"""Maximum integer that a cell stores exactly: numbers in a sheet are floating point."""
_CUT = "… (cut)"


class XlsxFile:
    """A workbook that writes rows to disk as they arrive. ``cut``: number of cells that were too
    long.
    Raises: RefusedError if the number of rows exceeds the limit of a sheet.
    """

    def __init__(self, spec: Export, target: IO[bytes]) -> None:
        # Do not convert message contents to formulas or links.
        self._book = xlsxwriter.Workbook(target, {
            "constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False,
            "strings_to_numbers": False})
        self._sheet = self._book.add_worksheet("messages")
        self._moment = self._book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss.000"})
        bold = self._book.add_format({"bold": True})
        for number, name in enumerate(spec.fields):
            self._sheet.write_string(0, number, name, bold)
        self._sheet.freeze_panes(1, 0)
        self._zone = spec.zone
        self._rows = self.cut = 0

    def write(self, chunk: pa.Table) -> None:
        if self._rows + len(chunk) > MAX_ROWS:
            raise RefusedError(f"a sheet can contain at most {MAX_ROWS:,} messages: select fewer, "
                               "or use another format")
        columns = [_values(column) for column in chunk.columns]
        for values in zip(*columns, strict=True):
            self._rows += 1
            for number, value in enumerate(values):
                self._cell(self._rows, number, value)

    def _cell(self, row: int, column: int, value: Any) -> None:
        sheet = self._sheet
        if value is None:
            return
        if isinstance(value, bool):
            sheet.write_boolean(row, column, value)
        elif isinstance(value, _EpochMs):
            moment = self._local(value)
            if moment is None:
                sheet.write_string(row, column, str(int(value)))
            else:
                sheet.write_datetime(row, column, moment, self._moment)
        elif isinstance(value, int):
            if abs(value) < _MAX_EXACT:
                sheet.write_number(row, column, value)
            else:
                sheet.write_string(row, column, str(value))
        else:
            text = str(value)
            if len(text) > MAX_CELL:
                self.cut += 1
                text = text[:MAX_CELL - len(_CUT)] + _CUT
            sheet.write_string(row, column, text)

    def _local(self, value: int) -> datetime | None:
        """Return a time in the workbook's time zone as a naive datetime, because a cell cannot
        store a zone. Return None if Excel has no date for the time.
        """
        if not _FIRST <= value <= _LAST - 86_400_000:
            return None
        moment = (_EPOCH + timedelta(milliseconds=int(value))).astimezone(self._zone)
        return moment.replace(tzinfo=None)

    def close(self) -> None:
        self._book.close()

    def abandon(self) -> None:
        self._book.fileclosed = 1  # otherwise it would close itself, with a message on stderr


class _EpochMs(int):
    """A column value that is a time in epoch ms."""


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column in a form that a cell can show."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return [None if value is None else _EpochMs(value)
                for value in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_map(kind):
        return [None if pairs is None else "\n".join(f"{key}={value}" for key, value
                                                     in pairs.items())
                for pairs in dict_column(column)]
    if pa.types.is_list(kind):
        return [None if items is None else " ".join(map(str, items)) for items in
                column.to_pylist()]
    if pa.types.is_binary(kind):
        return [None if value is None else _shown(value) for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def _shown(body: bytes) -> str:
    """Return a text body unchanged, any other body as hexadecimal digits."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.hex()
