"""JSON objects by column: the kernel encodes the cells of many rows in a buffer, then joins them
into rows.

Without the compiled kernel, callers build a mapping for each row and encode it, with the same
result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from rmqctl.formats.local import properties as props
from rmqctl.kernel import active
from rmqctl.scan.frames import Array
from rmqctl.scan.text import Dictionary, Texts, contiguous

STRING, LIST, OBJECT = "string", "list", "object"
_SEPARATORS = {STRING: "", LIST: " ", OBJECT: props.PROPERTY_SEPARATOR}
_NUMBER = -1
"""Length that marks a cell as a number; the cell's start then is the number itself."""
_DIGITS = 20
_WORST = 6
"""Maximum number of output bytes for one input byte: the length of an escape."""
LONG = 1 << 20
"""Length above which a text is left to the caller: its worst case would need too much space."""
_SPARE = 1 << 20
_MAX_FORMS = 1 << 12
"""Maximum number of recurring texts whose JSON form is kept between pages."""
_FEW = 64

Others = Callable[[Array], Sequence[bytes]]
"""Function that returns the cells of the texts with the given numbers, for texts that only Python
can convert.
"""


def is_possible() -> bool:
    """Return whether the kernel can create cells."""
    return active() is not None


def json_bytes(value: Any) -> bytes:
    """Return one value as JSON, in UTF-8, with escapes for lone surrogates."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def base64_bytes(raw: bytes) -> bytes:
    """Return bytes as a JSON string in base64."""
    return _to_json()(raw)


@cache
def _to_json() -> Callable[[Any], bytes]:
    from msgspec.json import Encoder

    return Encoder().encode


class Cells:
    """The cells of JSON objects, column by column: call `begin` with a number of rows, add columns,
    then call `woven`.
    """

    def __init__(self) -> None:
        kernel = active()
        assert kernel is not None
        self._kernel = kernel
        self._room, self._out = np.empty(0, np.uint8), np.empty(0, np.uint8)
        self.begin(0)

    def begin(self, rows: int) -> None:
        """Drop all cells; their memory is reused."""
        self._rows, self._filled = rows, 0
        self._columns: list[Array] = []
        self._between = bytearray()
        self._ends: list[int] = []

    def literal(self, text: bytes) -> None:
        """Add the same bytes to every row."""
        self._between += text

    def numbers(self, values: Array) -> None:
        """Add integers (int64)."""
        if len(values) and (values == values[0]).all():
            self.literal(b"%d" % int(values[0]))
        else:
            column = self._column()
            column[0], column[1] = values, _NUMBER

    def choice(self, which: Array, forms: Sequence[bytes]) -> None:
        """Add one of the given forms to each row."""
        if len(which) and (which == which[0]).all():
            self.literal(forms[int(which[0])])
            return
        if len(forms) > _FEW:
            used, which = np.unique(which, return_inverse=True)
            forms = [forms[number] for number in used.tolist()]
        np.take(self.put(forms), which, axis=1, out=self._column())

    def digits(self, texts: bytes) -> None:
        """Add a column of texts of equal length that are adjacent in memory."""
        width = len(texts) // self._rows
        start = self.put([texts])[0, 0]
        column = self._column()
        column[0], column[1] = start + np.arange(self._rows) * width, width

    def add(self, cells: Array, rows: Array | None = None, absent: bytes = b"") -> None:
        """Add a column: ``cells`` (from `make` or `put`) in all rows, or in ``rows`` with
        ``absent`` in all other rows.
        """
        column = self._column()
        if rows is None or len(rows) == self._rows:
            column[:] = cells
        else:
            column[:] = self.put([absent])
            column[:, rows] = cells

    def make(self, texts: Texts, others: Others, shape: str = STRING,
             is_for_others: Array | None = None) -> Array:
        """Return texts as JSON: as a string, a list of the parts between spaces, or the object for
        a properties string.

        ``others`` converts texts that are not UTF-8, are very long, contain a property twice, or
        are selected by ``is_for_others`` (bool).
        """
        start, length = contiguous(texts.start, texts.length)
        left_out = length > LONG
        if is_for_others is not None:
            left_out |= is_for_others
        if left_out.any():
            length = np.where(left_out, 0, length)
        self._ensure((_WORST + 1) * int(length.sum()) + 2 * len(texts))
        cells: Array = np.empty((2, len(texts)), np.int64)
        self._filled = self._kernel.json_texts(
            texts.data, start, length, self._kernel.MAKES[shape], _byte(_SEPARATORS[shape]),
            _byte(props.NAME_VALUE_SEPARATOR), self._room, self._filled, cells)
        odd = np.flatnonzero(left_out | (cells[1] < 0))
        if len(odd):
            cells[:, odd] = self.put(others(odd))
        return cells

    def put(self, texts: Sequence[bytes]) -> Array:
        """Return the positions (int64 [2, n]) of texts that are already JSON, for `add`."""
        places: Array = np.empty((2, len(texts)), np.int64)
        places[1] = np.fromiter(map(len, texts), np.int64, len(texts))
        data = b"".join(texts)
        places[0] = self._filled + np.cumsum(places[1]) - places[1]
        self._ensure(len(data))
        self._room[self._filled:self._filled + len(data)] = np.frombuffer(data, np.uint8)
        self._filled += len(data)
        return places

    def woven(self) -> memoryview:
        """Return all rows, back to back. The result is valid until the next call."""
        cells: Array = np.array(self._columns).reshape(len(self._columns), 2, self._rows)
        length = cells[:, 1]
        size = int(np.where(length == _NUMBER, _DIGITS, length).sum())
        size += len(self._between) * self._rows
        if size > len(self._out):
            self._out = np.empty(size + _SPARE, np.uint8)
        count = self._kernel.weave(
            self._room, cells, bytes(self._between),
            np.array([*self._ends, len(self._between)], np.int64), self._out)
        return self._out[:count].data

    def _column(self) -> Array:
        column: Array = np.empty((2, self._rows), np.int64)
        self._columns.append(column)
        self._ends.append(len(self._between))
        return column

    def _ensure(self, more: int) -> None:
        if self._filled + more > len(self._room):
            room: Array = np.empty(self._filled + more + _SPARE, np.uint8)
            room[:self._filled] = self._room[:self._filled]
            self._room = room


class Forms:
    """Recurring texts, each with a converted form that is created once."""

    def __init__(self, form: Callable[[bytes], bytes]) -> None:
        self._form = form
        self._dictionary = Dictionary()
        self._forms: list[bytes] = []

    def choose(self, cells: Cells, texts: Texts) -> None:
        """Add a column with the converted form of each text."""
        if len(self._forms) > _MAX_FORMS:
            self._dictionary, self._forms = Dictionary(), []
        which = self._dictionary.encode(texts)
        self._forms += map(self._form, self._dictionary.texts[len(self._forms):])
        cells.choice(which, self._forms)


def _byte(separator: str) -> int:
    return ord(separator or "\0")
