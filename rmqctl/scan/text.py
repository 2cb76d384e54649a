"""Texts of a batch by column (topics, properties, keys), without a Python object for each text.

A column of texts (`Texts`) is a buffer with the start and the length of each text. For a comparison
or a hash, texts are copied into a matrix: one text per row, padded with zeros. To find a property,
the first bytes of all segments are compared at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from rmqctl.formats.local import properties as props
from rmqctl.formats.local.javahash import string_hash
from rmqctl.kernel import active
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, Batch, gather

_SEPARATOR = props.PROPERTY_SEPARATOR.encode()[0]
_ASSIGN = props.NAME_VALUE_SEPARATOR.encode()
_WORD = 8
_MAX_POWER = 1 << 15
_HIGH = 0x80
_SPACE = 0x20
_SAMPLE = 256
_PARTS = 6
_USUAL = (props.TAGS, props.UNIQUE_KEY, props.KEYS, props.MULTI_DISPATCH)
"""Properties that are searched for together, because most callers that need one also
need another.
"""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts in a buffer: ``data`` (uint8), and the start and length of each text in it (int64)."""

    data: Array
    start: Array
    length: Array

    def __len__(self) -> int:
        return len(self.start)

    def tolist(self) -> list[bytes]:
        view = memoryview(self.data.data)
        return [bytes(view[first:end]) for first, end in zip(
            self.start.tolist(), (self.start + self.length).tolist(), strict=True)]

    def take(self, rows: Any) -> Texts:
        """Return some of the texts, selected by index or by mask; nothing is copied."""
        return Texts(self.data, self.start[rows], self.length[rows])

    def equal(self, raw: bytes) -> Array:
        """Return a boolean array: whether each text equals ``raw``."""
        same: Array = self.length == len(raw)
        rows = np.flatnonzero(same)
        if len(rows) and raw:
            same[rows] = gather(self.data, self.start[rows], len(raw)) == np.void(raw)
        return same

    def packed(self) -> Texts:
        """Return a copy of the texts with its own buffer: only these texts, in order, with a zero
        after each.
        """
        count = len(self.start)
        kernel = active()
        if kernel is not None:
            data, start = np.empty(int(self.length.sum()) + count, np.uint8), np.empty(
                count, np.int64)
            kernel.pack(self.data, *contiguous(self.start, self.length), data, 0, start)
            return Texts(data, start, self.length)
        data = np.frombuffer(b"".join([raw + b"\0" for raw in self.tolist()]), np.uint8)
        return Texts(data, np.cumsum(self.length + 1) - self.length - 1, self.length)


def joined(parts: Sequence[Texts]) -> Texts:
    """Return the packed texts of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    base = np.cumsum([0, *(len(part.data) for part in parts[:-1])])
    return Texts(np.concatenate([part.data for part in parts]),
                 np.concatenate([part.start + start_of_part
                                 for part, start_of_part in zip(parts, base, strict=True)]),
                 np.concatenate([part.length for part in parts]))


def texts_of(raw: Sequence[bytes]) -> Texts:
    """Return the given byte strings, back to back, as `Texts`."""
    length = np.array([len(value) for value in raw], np.int64)
    return Texts(np.frombuffer(b"".join(raw), np.uint8), np.cumsum(length) - length, length)


def topics(batch: Batch) -> Texts:
    """Return the topic of each message, in batch order."""
    return Texts(batch.data, batch.column("topic_start"), batch.column("topic_length"))


def properties(batch: Batch) -> Texts:
    """Return the stored properties string of each message, in batch order."""
    return Texts(batch.data, batch.column("properties_start"), batch.column("properties_length"))


# -- texts as a matrix ----------------------------------------------------------------------------


def matrix(data: Array, start: Array, length: Array, width: int) -> tuple[Array, bool]:
    """Return (the texts as an array, uint8 [n, width], padded with zeros; whether all texts have
    the full width).

    Raises: IndexError if a text is too long or not inside the data.
    """
    texts: Array = np.zeros((len(start), width), np.uint8)
    kernel = active()
    if kernel is not None:
        return texts, bool(kernel.fill(texts, data, *contiguous(start, length)))
    for size, rows in _by_length(length):
        texts[rows, :size] = _rows(data, start[rows], size)
    return texts, bool((length == width).all())


def _rows(data: Array, start: Array, width: int) -> Array:
    """Return texts of equal length as uint8 [n, width]."""
    return gather(data, start, width).view(np.uint8).reshape(len(start), width)


def _by_length(length: Array) -> Iterator[tuple[int, Array]]:
    """Yield (length, indexes of the texts with this length) for each length except 0."""
    order = np.argsort(length, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(length[order])) + 1):
        if len(rows) and length[rows[0]]:
            yield int(length[rows[0]]), rows


def contiguous(*columns: Array) -> list[Array]:
    """Return columns in the form that the kernel expects; slices of other arrays are copied."""
    return [np.ascontiguousarray(column, np.int64) for column in columns]


def hashes(data: Array, start: Array, length: Array) -> tuple[Array, Array]:
    """Return (``String.hashCode``, length in UTF-16 units) of UTF-8 texts, both int64.

    The hash has a signed 32-bit value. Invalid UTF-8 counts as the characters with which Java's
    decoder replaces it.
    """
    out: Array = np.zeros(len(start), np.int64)
    units = length.astype(np.int64)
    kernel = active()
    if kernel is not None:
        odd: Array = np.empty(len(start), bool)
        if kernel.hashes(data, np.ascontiguousarray(start), units, out, odd.view(np.uint8)):
            for row in np.flatnonzero(odd).tolist():
                _hash_decoded(data, int(start[row]), int(length[row]), row, out, units)
        return out, units
    for width, rows in _by_length(length):
        texts = _rows(data, start[rows], width)
        out[rows] = _polynomial(texts).view(np.int32)
        for row in rows[(texts >= _HIGH).any(axis=1)].tolist():
            _hash_decoded(data, int(start[row]), width, row, out, units)
    return out, units


def _hash_decoded(data: Array, start: int, length: int, row: int, out: Array,
                  units: Array) -> None:
    """Store the hash and the UTF-16 length of a non-ASCII text in row ``row`` of the outputs."""
    decoded = data[start:start + length].tobytes().decode("utf-8", "replace")
    out[row] = string_hash(decoded)
    units[row] = len(decoded.encode("utf-16-be")) // 2


def _polynomial(texts: Array) -> Array:
    """Return the hash (uint32) of each row of bytes, read as an ASCII text of the full width.

    ``einsum`` is NumPy's own loop. It does not use BLAS, so it starts no threads of its own.
    """
    width = texts.shape[1]
    powers = power_table()[width - 1::-1] if width <= _MAX_POWER else np.array(
        [pow(31, width - 1 - power, 1 << 32) for power in range(width)], np.uint32)
    hashed: Array = np.einsum("ij,j->i", texts.astype(np.uint32), powers)
    return hashed


@cache
def power_table() -> Array:
    """Return the powers of 31 from 0 to 32767 (no property is longer), modulo 2^32."""
    factors = np.full(_MAX_POWER, 31, np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


def index_hash(topic_hash: Array, key_hash: Array, key_length: Array) -> Array:
    """Return the hash in an index entry for ``topic#key``, computed from the Java hashes of the two
    parts.

    ``topic_hash``: the hash of ``topic#``. It is multiplied by 31 to the power of the key's length
    in UTF-16 units, and added to the key's hash.
    """
    power = power_table()[key_length]
    total = topic_hash.astype(np.uint32) * power + key_hash.astype(np.uint32)
    signed = total.view(np.int32).astype(np.int64)
    hashed: Array = np.abs(signed)
    hashed[hashed == 1 << 31] = 0
    return hashed


def split(data: Array, start: Array, length: Array, *, separator: int = _SPACE,
          ended: bool = False, keep_empty: bool = False) -> tuple[Array, Array, Array]:
    """Return the parts of texts: (index of the text that contains each part, starts, lengths).

    A separator is a single byte (default: the space). With ``ended``, the last separator ends the
    text, and no part follows. Empty parts are dropped, unless ``keep_empty`` is True.
    """
    # Compiled, again with more space if the parts do not fit.
    kernel = active()
    if kernel is not None:
        columns, room = contiguous(start, length), _PARTS * len(start) + _SAMPLE
        while True:
            parts: Array = np.empty((3, room), np.int64)
            count = kernel.cut(data, *columns, separator, ended, keep_empty, parts)
            if count <= room:
                kept: tuple[Array, Array, Array] = tuple(parts[:, :count])
                return kept
            room = count
    # The same with NumPy: the separators in each text, then both ends of each part.
    marks = np.flatnonzero(data == separator)
    first = np.searchsorted(marks, start)
    inside = np.searchsorted(marks, start + length) - first
    marks = marks[np.repeat(first - np.cumsum(inside) + inside, inside)
                  + np.arange(int(inside.sum()))]
    number = np.repeat(np.arange(len(start)), inside + 1)
    head = np.ones(len(number), bool)
    head[1:] = number[1:] != number[:-1]
    tail = np.append(head[1:], True)[:len(number)]
    begin: Array = np.empty(len(number), np.int64)
    begin[head], begin[~head] = start, marks + 1
    end: Array = np.empty(len(number), np.int64)
    end[tail], end[~tail] = start + length, marks
    if keep_empty and not ended:
        return number, begin, end - begin
    rows = (end > begin) | (~tail if keep_empty else False)
    return number[rows], begin[rows], (end - begin)[rows]


# -- numbers for recurring texts ------------------------------------------------------------------


class TextTable:
    """A table of the kernel that numbers texts in the order of first appearance."""

    def __init__(self) -> None:
        self._make(_SAMPLE, _SAMPLE * _WORD)

    def _make(self, texts: int, size: int) -> None:
        """Create an empty table with space for the given number of texts and bytes."""
        self._bytes: Array = np.empty(size, np.uint8)
        self._places: Array = np.empty((2, texts), np.int64)
        self._cells: Array = np.full(1 << (2 * texts).bit_length(), -1, np.int32)
        self._used: Array = np.zeros(2, np.int64)

    def __len__(self) -> int:
        return int(self._used[0])

    def encode(self, texts: Texts) -> Array:
        """Return the number assigned to each text (int64)."""
        kernel = active()
        assert kernel is not None
        columns = contiguous(texts.start, texts.length)
        numbers: Array = np.empty(len(texts), np.int64)
        row = 0
        while True:
            row = kernel.enter(texts.data, *columns, row, self._bytes, self._places, self._cells,
                               self._used, numbers)
            if row == len(texts):
                return numbers
            before, count = self.texts(slice(None)), len(self)
            self._make(2 * count + 1, 2 * int(self._used[1] + texts.length[row]))
            kernel.enter(before.data, *contiguous(before.start, before.length), 0, self._bytes,
                         self._places, self._cells, self._used, np.empty(count, np.int64))

    @property
    def tables(self) -> tuple[Array, Array, Array]:
        """The texts, their positions and the cells in the kernel's form; valid until texts are
        added.
        """
        return self._bytes, self._places, self._cells

    def places(self, texts: Texts, missing: int) -> Array:
        """Return the number assigned to each text (int64); ``missing`` for unknown texts."""
        kernel = active()
        assert kernel is not None
        numbers: Array = np.empty(len(texts), np.int64)
        kernel.lookup(texts.data, *contiguous(texts.start, texts.length), self._bytes,
                      self._places, self._cells, missing, numbers)
        return numbers

    def texts(self, numbers: Any) -> Texts:
        """Return the texts with the given numbers (an array or a slice); valid until texts are
        added.
        """
        start, length = self._places[:, :len(self)]
        return Texts(self._bytes, start[numbers], length[numbers])


class KnownTexts:
    """Numbers that the caller assigned to recurring texts. The kernel looks them up.

    Without the kernel, the caller is asked for each text again.
    """

    def __init__(self) -> None:
        self._numbers: Array = np.zeros(0, np.int64)
        self._table = TextTable()

    def __reduce__(self) -> Any:
        """Return an empty table for another process, which fills it again."""
        return KnownTexts, ()

    def encode(self, texts: Texts, number: Callable[[bytes], int]) -> Array:
        """Return, for each text, the number assigned to it (int64). ``number(raw)`` assigns a
        number to a new text.
        """
        if active() is None:
            return np.fromiter(map(number, texts.tolist()), np.int64, len(texts))
        places = self._table.encode(texts)
        if len(self._table) > len(self._numbers):
            # New texts get their numbers in the order in which they appear.
            new = self._table.texts(slice(len(self._numbers), None)).tolist()
            self._numbers = np.append(self._numbers, np.array([*map(number, new)], np.int64))
        return self._numbers[places]


class FixedTexts:
    """The indexes of texts in a fixed list; ``missing`` for texts that are not in the list."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self._places = {raw: place for place, raw in enumerate(values)}
        self._table: TextTable | None = None

    def encode(self, texts: Texts, missing: int) -> Array:
        """Return the index of each text (int64)."""
        if active() is None:
            return np.array([self._places.get(raw, missing) for raw in texts.tolist()], np.int64)
        if self._table is None:
            self._table = TextTable()
            self._table.encode(texts_of([*self._places]))
        return self._table.places(texts, missing)


class Dictionary:
    """Assigns small numbers to recurring texts (topics, tags). A text has the same number in all
    batches of a walk.
    """

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._numbered = KnownTexts()

    def __len__(self) -> int:
        return len(self.texts)

    def number(self, raw: bytes) -> int:
        number = self._numbers.get(raw)
        if number is None:
            number = self._numbers[raw] = len(self.texts)
            self.texts.append(raw)
        return number

    def encode(self, texts: Texts) -> Array:
        """Return the number of each text (int64)."""
        return self._numbered.encode(texts, self.number)


# -- properties -----------------------------------------------------------------------------------


class PropertySegments:
    """The properties strings of many records, split into their ``key 0x01 value`` segments.

    The properties of a batch are valid only as long as the batch's data. ``together``: properties
    that are searched for together.
    """

    def __init__(self, records: Batch | Texts, together: tuple[str, ...] = _USUAL) -> None:
        self._texts = properties(records) if isinstance(records, Batch) else records
        self._together = together
        self._segments: tuple[Array, Array, Array] | None = None
        self._columns: dict[str, tuple[Array, int]] = {}

    @property
    def data(self) -> Array:
        """The bytes (uint8) to which the positions of `places` refer."""
        return self._texts.data

    @property
    def segments(self) -> tuple[Array, Array, Array]:
        """Return (row numbers ascending, starts in `data`, ends) of all segments, including empty
        ones.
        """
        if self._segments is None:
            texts = self._texts
            row, start, length = split(texts.data, texts.start, texts.length,
                                       separator=_SEPARATOR, ended=True, keep_empty=True)
            self._segments = row, start, start + length
        return self._segments

    def places(self, name: str) -> tuple[Array, Array, Array]:
        """Return (row numbers ascending, starts in `data`, lengths) of the values of a property.

        The rules are those of a 4.9.1+ broker: an empty value counts as missing, and the last of
        several values counts.
        """
        if active() is not None:
            values, count = self._values(self._texts, name)
            row, start, length = values[:, :count]
            return row, start, length
        row, start, end = self.segments
        key = name.encode() + _ASSIGN
        hit = np.flatnonzero(end - start > len(key))
        for index, byte in enumerate(key):
            hit = hit[self.data[start[hit] + index] == byte]
        row = row[hit]
        latest = np.append(row[1:] != row[:-1], True)[:len(row)]
        hit = hit[latest]
        return row[latest], start[hit] + len(key), end[hit] - start[hit] - len(key)

    def _values(self, texts: Texts, name: str) -> tuple[Array, int]:
        """Return the result of `places`, computed by the kernel: (an array (int64 [3, n]), the
        number of its valid columns).
        """
        kernel = active()
        assert kernel is not None
        column = self._columns.get(name)
        if column is None:
            names = self._together if name in self._together else (name,)
            keys = [name.encode() + _ASSIGN for name in names]
            places: Array = np.empty((len(keys), 3, len(texts)), np.int64)
            counts: Array = np.empty(len(keys), np.int64)
            kernel.find(texts.data, *contiguous(texts.start, texts.length), _SEPARATOR,
                        b"".join(keys), np.cumsum([len(key) for key in keys]), places, counts)
            self._columns |= zip(names, zip(places, counts.tolist(), strict=True), strict=True)
            column = self._columns[name]
        return column

    def index_keys(self, topic: Array, sharp: Array) -> tuple[Array, Array, Array] | None:
        """Return the index keys as (row, hash in the index entry, length in bytes), all int64. Each
        record's unique key comes first, then its other keys.

        ``topic``: the topic number of each record. ``sharp``: the hash of ``topic#`` for each topic
        number. Return None if the kernel cannot compute the keys; the caller must then compute
        them.
        """
        kernel = active()
        if kernel is None:
            return None
        unique, keys = (self._values(self._texts, name) for name in (props.UNIQUE_KEY, props.KEYS))
        columns = contiguous(topic, sharp)
        room = unique[1] + 2 * keys[1] + _SAMPLE
        while True:
            out: Array = np.empty((3, room), np.int64)
            count = kernel.index_keys(self.data, *unique, *keys, *columns, out)
            if count < 0:
                return None
            if count <= room:
                row, hashed, length = out[:, :count]
                return row, hashed, length
            room = count

    def find(self, name: str) -> tuple[Array, Texts]:
        """Return (row numbers in ascending order, values) for the records that have the property;
        see `places`.
        """
        row, start, length = self.places(name)
        return row, Texts(self.data, start, length)
