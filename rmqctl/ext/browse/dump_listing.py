"""Listing of the records of files other than the log: consume queue entries, index entries,
configuration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from rmqctl.ext.browse.listing import Column, ListedRows, ListRow, Position, Watch
from rmqctl.formats import kinds
from rmqctl.output.cells import cell_text
from rmqctl.output.escape import visible
from rmqctl.output.units import time_text
from rmqctl.store.dump.dump import Dump, DumpOptions
from rmqctl.store.dump.fields import fault_text
from rmqctl.store.dump.units import ARRAYS

_PLACE = ("number", "offset", "byte_offset", "type", "error")
_HEADER = -1
"""The position of an index file's header, which has no record number."""
_CHUNK = 256


class DumpListing:
    """A listing of any file except log files, with the rows of `rmqctl dump`.
    Raises: NotAStoreError for an unknown kind of file, StoreIOError if the file cannot be read.
    """

    of_messages = False
    columns: tuple[Column, ...] = (
        Column("number", "number", 8, right=True), Column("type", "type", 9),
        Column("body", "fields", 0))

    def __init__(self, path: str, title: str) -> None:
        self.path, self.title = path, title
        with Dump(path, DumpOptions()) as dump:
            self.kind = dump.kind
            self._shown = [name for name in dump.brief or dump.columns if name not in _PLACE]
            self._times = dump.times

    def forward(self, start: Position | None, count: int, watch: Watch) -> Iterator[ListedRows]:
        if start is None and self.kind == kinds.INDEX:
            header = self._header()
            yield ListedRows(header, 0)
            count -= len(header)
        taken: list[ListRow] = []
        for row in self._rows(start, count):
            watch(1)
            taken.append(row)
        if taken:
            yield ListedRows(taken, taken[-1].after)

    def backward(self, end: Position | None, count: int, watch: Watch) -> list[ListRow]:
        stop = self._upper() if end is None else end
        span = _CHUNK
        while True:
            begin = None if stop is None else max(0, stop - span)
            kept: deque[ListRow] = deque(maxlen=count)
            for row in self._rows(begin, None):
                watch(1)
                if stop is not None and row.position >= stop:
                    break
                kept.append(row)
            if len(kept) == count or not begin:
                header = self._header() if self.kind == kinds.INDEX and (
                    stop is None or stop >= 0) else []
                return [*header, *kept][-count:]
            span *= 8

    def share(self, reached: Position) -> float:
        return 1.0

    def next_damage(self, start: Position, watch: Watch) -> Position | None:
        for row in self._rows(start, None):
            watch(1)
            if row.wrong and row.position >= start:
                return row.position
        return None

    def detail(self, row: ListRow) -> dict[str, Any] | None:
        """Return what `rmqctl dump --hex` prints for a row of the list; None if its record no
        longer exists.
        """
        options = DumpOptions(start=None if row.position == _HEADER else row.position, count=1,
                              hex=True)
        with Dump(self.path, options) as dump:
            return next(dump.rows(), None)

    def _header(self) -> list[ListRow]:
        with Dump(self.path, DumpOptions(count=1)) as dump:
            return [self._row(row, _HEADER) for row in dump.rows() if row.get("type") == "header"]

    def _rows(self, start: int | None, count: int | None) -> Iterator[ListRow]:
        with Dump(self.path, DumpOptions(start=max(start or 0, 0), count=count)) as dump:
            position = start or 0
            for row in dump.rows():
                position = row.get("number", position)
                yield self._row(row, position)

    def _row(self, row: dict[str, Any], position: int) -> ListRow:
        shown = [f"{name}={self._value(name, row[name])}" for name in self._shown
                 if row.get(name) is not None]
        error = row.get("error")
        if error:
            shown.insert(0, visible(fault_text(error)))
        cells = {"number": str(row.get("number", "")), "type": visible(str(row["type"])),
                 "body": " ".join(shown)}
        return ListRow(position, position + 1, "record", cells, wrong=bool(error))

    def _value(self, name: str, value: Any) -> str:
        return time_text(value) if name in self._times else cell_text(value)[:400]

    def _upper(self) -> int | None:
        """Return the number of records in the file; None if the file's size and header do not
        determine it.
        """
        if self.kind in ARRAYS:
            with Dump(self.path, DumpOptions()) as dump:
                return dump.size // ARRAYS[self.kind].unit.size
        if self.kind == kinds.INDEX:
            with Dump(self.path, DumpOptions(count=1)) as dump:
                return max((int(row.get("index_count") or 0) for row in dump.rows()), default=0)
        return None
