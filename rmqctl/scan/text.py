"""Texts of a batch by column (topics, properties, keys), without a Python object for each.

A column of texts is a buffer with the start and the length of each text in it (`Texts`). To be
compared or hashed they are gathered into one matrix, a row for each text, with zeros behind the
shorter ones; a property is found by comparing the first bytes of all segments at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from rmqctl.formats.local import properties as props
from rmqctl.formats.local.javahash import string_hash
from rmqctl.kernel import active
from rmqctl.scan.frames import Array, Batch, gather

SHORT = 64
"""Texts up to so many bytes are hashed together, whatever their lengths."""
_SEPARATOR = props.PROPERTY_SEPARATOR.encode()[0]
_ASSIGN = props.NAME_VALUE_SEPARATOR.encode()
_WORD = 8
_MAX_POWER = 1 << 15
_HIGH = 0x80
_SPACE = 0x20
_LONGEST_KNOWN = 256
_MOST_KNOWN = 4096
_SAMPLE = 256
_WASTE = 4
_WIDE = 1 << 16
_SPARE = 1 << 16
_PARTS = 6
_USUAL = (props.TAGS, props.UNIQUE_KEY, props.KEYS, props.MULTI_DISPATCH)
"""Properties that are looked for together: most who ask for one ask for another, too."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts where they lie: ``data`` (uint8), and starts and lengths in it (int64)."""

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
        """Some of the texts, by number or by mask; nothing is copied."""
        return Texts(self.data, self.start[rows], self.length[rows])

    def equal(self, raw: bytes) -> Array:
        """Which texts are ``raw`` (bool)."""
        same: Array = self.length == len(raw)
        rows = np.flatnonzero(same)
        if len(rows) and raw:
            texts = matrix(self.data, self.start[rows], self.length[rows], len(raw))[0]
            same[rows] = (texts == np.frombuffer(raw, np.uint8)).all(axis=1)
        return same

    def packed(self) -> Packed:
        """A copy with nothing else around the texts."""
        count, total = len(self.start), int(self.length.sum())
        kernel = active()
        if kernel is not None:
            data = np.empty(total + count + 2 * _WORD, np.uint8)
            data[total + count:] = 0
            start = np.empty(count, np.int64)
            kernel.pack(self.data, *contiguous(self.start, self.length), data, 0, start)
            return Packed(data, start, self.length)
        width = int(self.length.max(initial=0)) + 1
        if count * width > _WASTE * (total + count) + _SPARE:
            # A few long texts among short ones: a matrix would be mostly zeros.
            data = np.frombuffer(b"\0".join([*self.tolist(), b"\0" * 2 * _WORD]), np.uint8).copy()
            start = np.zeros(count, np.int64)
            np.cumsum(self.length[:-1] + 1, out=start[1:])
            return Packed(data, start, self.length)
        data = np.empty(count * width + 2 * _WORD, np.uint8)
        data[count * width:] = 0
        texts = data[:count * width].reshape(count, width)
        _fill(texts, self.data, self.start, self.length)
        return Packed(data, np.arange(count, dtype=np.int64) * width, self.length)


class Packed(Texts):
    """Texts in data of their own, in order: zeros between them, and at least two words behind."""

    __slots__ = ()


def joined(parts: Sequence[Packed]) -> Packed:
    """The texts of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    base = np.cumsum([0, *(len(part.data) for part in parts[:-1])])
    return Packed(np.concatenate([part.data for part in parts]),
                  np.concatenate([part.start + start_of_part
                                  for part, start_of_part in zip(parts, base, strict=True)]),
                  np.concatenate([part.length for part in parts]))


def topics(batch: Batch) -> Texts:
    """The topic of each message, where it lies in the batch."""
    return Texts(batch.data, batch.column("topic_start"), batch.column("topic_length"))


def properties(batch: Batch) -> Texts:
    """The stored properties string of each message, where it lies in the batch."""
    return Texts(batch.data, batch.column("properties_start"), batch.column("properties_length"))


# -- texts as a matrix ----------------------------------------------------------------------------


def matrix(data: Array, start: Array, length: Array, width: int) -> tuple[Array, bool]:
    """(texts as uint8 [n, width] with zeros behind the shorter ones, whether none is shorter)."""
    texts: Array = np.empty((len(start), width), np.uint8)
    return texts, _fill(texts, data, start, length)


def _fill(texts: Array, data: Array, start: Array, length: Array) -> bool:
    """Copies texts into the rows of a matrix (uint8), zeros behind them; True if all fill theirs.

    No text is longer than the matrix is wide.
    """
    kernel = active()
    if kernel is not None:
        return bool(kernel.fill(texts, data, np.ascontiguousarray(start),
                                np.ascontiguousarray(length)))
    count, width = texts.shape
    if not count:
        return True
    last = len(data) - width
    if last >= 0 and int(start.max()) <= last:
        texts[:] = gather(data, start, width).view(np.uint8).reshape(count, width)
    else:
        # Texts so near to the end of the data that their rows would reach beyond it.
        near = start > last
        if last >= 0:
            texts[~near] = gather(data, start[~near], width).view(np.uint8).reshape(-1, width)
        for row in np.flatnonzero(near).tolist():
            first, size = int(start[row]), int(length[row])
            texts[row, :size] = data[first:first + size]
    least = int(length.min())
    if least == width:
        return True
    if least == int(length.max()):
        texts[:, least:] = 0
    else:
        narrow = np.uint16 if width < _WIDE else np.int64
        inside = np.arange(width, dtype=narrow) < length.astype(narrow)[:, None]
        texts *= inside.view(np.uint8)
    return False


def contiguous(*columns: Array) -> list[Array]:
    """Columns as the kernel takes them; copies of those that are cut from another array."""
    return [np.ascontiguousarray(column, np.int64) for column in columns]


def hashes(data: Array, start: Array, length: Array) -> tuple[Array, Array]:
    """(``String.hashCode``, UTF-16 length) of UTF-8 texts, both int64.

    The hash is a signed 32-bit value. Bytes that are no UTF-8 count as Java's decoder replaces
    them.
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
    widest = int(length.max(initial=0))
    if widest <= SHORT:
        _hash_rows(data, start, length, slice(None), widest, out, units)
        return out, units
    for width in [SHORT, *np.unique(length[length > SHORT]).tolist()]:
        rows = np.flatnonzero(length == width if width > SHORT else length <= SHORT)
        _hash_rows(data, start[rows], length[rows], rows, width, out, units)
    return out, units


def _hash_rows(data: Array, start: Array, length: Array, rows: Any, width: int, out: Array,
               units: Array) -> None:
    """Hashes and UTF-16 lengths of texts of up to ``width`` bytes, into rows of the outputs."""
    if not len(start) or not width:
        return
    texts, even = matrix(data, start, length, width)
    hashed = _polynomial(texts)
    if not even:
        hashed *= _inverse_powers()[width - length]
    out[rows] = hashed.view(np.int32)
    if int(texts.max()) >= _HIGH:
        numbers = np.arange(len(out))[rows]
        for row in np.flatnonzero((texts >= _HIGH).any(axis=1)).tolist():
            _hash_decoded(data, int(start[row]), int(length[row]), int(numbers[row]), out, units)


def _hash_decoded(data: Array, start: int, length: int, row: int, out: Array,
                  units: Array) -> None:
    """Hash and UTF-16 length of a text that is not ASCII, into a row of the outputs."""
    decoded = data[start:start + length].tobytes().decode("utf-8", "replace")
    out[row] = string_hash(decoded)
    units[row] = len(decoded.encode("utf-16-be")) // 2


def _polynomial(texts: Array) -> Array:
    """The hashes (uint32) of rows of bytes, as if all were ASCII texts of the full width.

    ``einsum`` is numpy's own loop: no BLAS and no threads of its own beside the workers'.
    """
    width = texts.shape[1]
    powers = power_table()[width - 1::-1] if width <= _MAX_POWER else np.array(
        [pow(31, width - 1 - power, 1 << 32) for power in range(width)], np.uint32)
    hashed: Array = np.einsum("ij,j->i", texts.astype(np.uint32), powers)
    return hashed


@cache
def power_table() -> Array:
    """31 to the power of 0 … 32767 (no property is longer), modulo 2^32."""
    factors = np.full(_MAX_POWER, 31, np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


@cache
def _inverse_powers() -> Array:
    """What undoes the powers of 31 that zeros behind a text contribute."""
    inverse = pow(31, -1, 1 << 32)
    return np.array([pow(inverse, power, 1 << 32) for power in range(SHORT + 1)], np.uint32)


def index_hash(topic_hash: Array, key_hash: Array, key_length: Array) -> Array:
    """The hash an index entry holds for ``topic#key``, from the parts' Java hashes.

    ``topic_hash`` is of ``topic#`` (with the sharp), so hash(topic#key) follows from it by
    31 to the power of the key's length in UTF-16 units.
    """
    power = power_table()[key_length]
    total = topic_hash.astype(np.uint32) * power + key_hash.astype(np.uint32)
    signed = total.view(np.int32).astype(np.int64)
    hashed: Array = np.abs(signed)
    hashed[hashed == 1 << 31] = 0
    return hashed


def split(data: Array, start: Array, length: Array, *, separator: int = _SPACE,
          keep_empty: bool = False) -> tuple[Array, Array, Array]:
    """(number of the text each part comes from, starts, lengths) of the parts of texts.

    Parts lie between single separators (a byte; the space if not given). Texts must be
    ascending and must not overlap. Empty parts are left out, or kept.
    """
    if active() is not None:
        parts, count = _cut(data, start, length, separator, ended=False, keep_empty=keep_empty)
        cut_parts: tuple[Array, Array, Array] = tuple(parts[:, :count])
        return cut_parts
    marks = np.flatnonzero(data == separator)
    first = np.searchsorted(marks, start)
    inside = np.searchsorted(marks, start + length) - first
    of = np.arange(len(start))
    if not inside.any():
        return (of, start, length) if keep_empty or length.all() else _filled(
            of, start, start + length)
    marks = marks[np.repeat(first - np.cumsum(inside) + inside, inside)
                  + np.arange(int(inside.sum()))]
    of = np.repeat(of, inside + 1)
    head = np.ones(len(of), bool)
    head[1:] = of[1:] != of[:-1]
    begin: Array = np.empty(len(of), np.int64)
    begin[head], begin[~head] = start, marks + 1
    tail = np.append(head[1:], True)
    end: Array = np.empty(len(of), np.int64)
    end[tail], end[~tail] = start + length, marks
    return (of, begin, end - begin) if keep_empty else _filled(of, begin, end)


def _cut(data: Array, start: Array, length: Array, separator: int, *, ended: bool,
         keep_empty: bool) -> tuple[Array, int]:
    """(the parts of texts as the kernel's ``cut`` has them (int64 [3, n]), how many count)."""
    kernel = active()
    assert kernel is not None
    columns = contiguous(start, length)
    room = _PARTS * len(start) + _SAMPLE
    while True:
        parts: Array = np.empty((3, room), np.int64)
        count = kernel.cut(data, *columns, separator, ended, keep_empty, parts)
        if count <= room:
            return parts, count
        room = count


def _filled(of: Array, begin: Array, end: Array) -> tuple[Array, Array, Array]:
    filled = end > begin
    return of[filled], begin[filled], (end - begin)[filled]


# -- numbers for recurring texts ------------------------------------------------------------------


class KnownTexts:
    """The caller's numbers of recurring texts: found by hash, and then proven byte by byte.

    Where that is no use (long texts, or too many different ones) each text is looked up.
    """

    def __init__(self) -> None:
        self._codes: Array = np.zeros(0, np.uint64)
        self._numbers: Array = np.zeros(0, np.int64)
        self._lengths: Array = np.zeros(0, np.int64)
        self._words: Array = np.zeros((0, _LONGEST_KNOWN // _WORD), np.uint64)
        self._useful = True
        self._texts: list[bytes] = []
        self._table: tuple[Array, ...] = _table([])

    def __reduce__(self) -> Any:
        """Another process begins with nothing known: it is quickly learned again."""
        return KnownTexts, ()

    def encode(self, texts: Texts, number: Callable[[bytes], int]) -> Array:
        """The number of each text (int64). ``number(raw)`` gives it: to a new text first."""
        numbers = self._encode(texts, number) if len(texts) else np.zeros(0, np.int64)
        if numbers is None:
            return np.fromiter(map(number, texts.tolist()), np.int64, len(texts))
        return numbers

    def _encode(self, texts: Texts, number: Callable[[bytes], int]) -> Array | None:
        widest = int(texts.length.max())
        if widest > _LONGEST_KNOWN or not self._useful:
            return None
        if active() is not None:
            return self._looked_up(texts, number)
        count = max(-(-widest // _WORD), 1)
        words = matrix(texts.data, texts.start, texts.length, count * _WORD)[0].view(np.uint64)
        code = np.einsum("ij,j->i", words, _factors()[:count])
        code += texts.length.view(np.uint64)
        cells = self._place(code)
        # Most batches have a few texts only, and the first rows show them all.
        for most in (_SAMPLE, len(code)):
            unknown = self._codes[cells] != code if len(self._codes) else np.ones(len(code), bool)
            if not unknown.any():
                break
            # New texts get their numbers in the order in which they appear.
            rows = np.flatnonzero(unknown)[:most]
            rows = rows[np.sort(np.unique(code[rows], return_index=True)[1])]
            if len(rows) + len(self._codes) > _MOST_KNOWN:
                self._useful = False
                return None
            self._learn(code[rows], words[rows], texts.take(rows), number)
            cells = self._place(code)
        if not ((self._lengths[cells] == texts.length).all()
                and (self._words[cells, :count] == words).all()):
            return None
        return self._numbers[cells]

    def _looked_up(self, texts: Texts, number: Callable[[bytes], int]) -> Array | None:
        """As `_encode`, by the kernel's table."""
        kernel = active()
        assert kernel is not None
        columns = contiguous(texts.start, texts.length)
        places: Array = np.empty(len(texts), np.int64)
        row = kernel.lookup(texts.data, *columns, *self._table, 0, -1, places)
        while row < len(texts):
            # New texts get their numbers in the order in which they appear.
            known = set(self._texts)
            new = [raw for raw in dict.fromkeys(texts.take(slice(row, row + _SAMPLE)).tolist())
                   if raw not in known]
            if len(new) + len(self._texts) > _MOST_KNOWN:
                self._useful = False
                return None
            self._texts += new
            self._numbers = np.append(self._numbers, np.array([*map(number, new)], np.int64))
            self._table = _table(self._texts)
            row = kernel.lookup(texts.data, *columns, *self._table, row, -1, places)
        return self._numbers[places]

    def _place(self, code: Array) -> Array:
        return np.minimum(np.searchsorted(self._codes, code), max(0, len(self._codes) - 1))

    def _learn(self, code: Array, words: Array, texts: Texts,
               number: Callable[[bytes], int]) -> None:
        rows: Array = np.zeros((len(code), self._words.shape[1]), np.uint64)
        rows[:, :words.shape[1]] = words
        numbers = np.fromiter(map(number, texts.tolist()), np.int64, len(texts))
        code = np.concatenate([self._codes, code])
        order = np.argsort(code)
        self._codes = code[order]
        self._numbers = np.concatenate([self._numbers, numbers])[order]
        self._lengths = np.concatenate([self._lengths, texts.length])[order]
        self._words = np.concatenate([self._words, rows])[order]


class FixedTexts:
    """The places of texts in a list that does not grow; ``missing`` for all that are not there."""

    def __init__(self, known: Sequence[bytes]) -> None:
        self._known = list(known)
        self._table: tuple[Array, ...] | None = None
        self._places: dict[bytes, int] = {}

    def __reduce__(self) -> Any:
        return FixedTexts, (self._known,)

    def encode(self, texts: Texts, missing: int) -> Array:
        """The place of each text (int64)."""
        kernel = active()
        if kernel is None:
            if not self._places:
                self._places = {raw: place for place, raw in enumerate(self._known)}
            return np.array([self._places.get(raw, missing) for raw in texts.tolist()], np.int64)
        if self._table is None:
            self._table = _table(self._known)
        places: Array = np.empty(len(texts), np.int64)
        kernel.lookup(texts.data, *contiguous(texts.start, texts.length), *self._table, 0, missing,
                      places)
        return places


def _table(known: Sequence[bytes]) -> tuple[Array, ...]:
    """(the known texts, their starts and lengths, the cells that lead to them) for the kernel."""
    length = np.array([len(raw) for raw in known], np.int64)
    start = np.cumsum(length) - length
    texts = np.frombuffer(b"".join(known), np.uint8)
    cells: Array = np.full(1 << (4 * len(known)).bit_length(), -1, np.int32)
    kernel = active()
    if kernel is not None:
        kernel.learn(texts, start, length, cells)
    return texts, start, length, cells


@cache
def _factors() -> Array:
    """Odd factors for the words of a text; what they are does not matter."""
    return np.array([pow(0x9E3779B97F4A7C15, power + 1, 1 << 64)
                     for power in range(_LONGEST_KNOWN // _WORD)], np.uint64)


class Dictionary:
    """Small numbers for recurring texts (topics, tags), stable over the batches of a walk."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._known = KnownTexts()

    def __len__(self) -> int:
        return len(self.texts)

    def number(self, raw: bytes) -> int:
        number = self._numbers.get(raw)
        if number is None:
            number = self._numbers[raw] = len(self.texts)
            self.texts.append(raw)
        return number

    def encode(self, texts: Texts) -> Array:
        """The number of each text (int64)."""
        return self._known.encode(texts, self.number)


# -- properties -----------------------------------------------------------------------------------


class Properties:
    """The properties strings of many records, cut into their ``key 0x01 value`` segments.

    Those of a batch are only valid as long as its data.
    """

    def __init__(self, records: Batch | Texts) -> None:
        texts = properties(records) if isinstance(records, Batch) else records
        self._texts: Texts | None = None
        self._parts: tuple[Array, int] | None = None
        self._found: dict[str, tuple[Array, int]] = {}
        if active() is not None:
            self._data, self._texts = texts.data, texts
            return
        packed = texts if isinstance(texts, Packed) else texts.packed()
        self._data, start, length = packed.data, packed.start, packed.length
        # A separator behind each text that has none: then every segment ends with one.
        behind = (start + length)[length > 0]
        self._data[behind[self._data[behind - 1] != _SEPARATOR]] = _SEPARATOR
        self._end = np.flatnonzero(self._data == _SEPARATOR)
        edges = np.append(np.searchsorted(self._end, start), len(self._end))
        segments = np.diff(edges)
        self._row = np.repeat(np.arange(len(start)), segments)
        self._start = np.empty_like(self._end)
        self._start[1:] = self._end[:-1] + 1
        some = segments > 0
        self._start[edges[:-1][some]] = start[some]
        self._words = gather(self._data, self._start, _WORD).view(">u8").astype(np.uint64)

    @property
    def data(self) -> Array:
        """The bytes (uint8) that `places` leads into."""
        return self._data

    @property
    def segments(self) -> tuple[Array, Array, Array]:
        """(row numbers ascending, starts in `data`, ends) of all segments, empty ones too."""
        if self._texts is not None:
            parts, count = self._cut(self._texts)
            row, start, length = parts[:, :count]
            return row, start, start + length
        return self._row, self._start, self._end

    def places(self, name: str) -> tuple[Array, Array, Array]:
        """(row numbers ascending, starts in `data`, lengths) of the values of a property.

        As a 4.9.1+ broker reads it: an empty value is no property, the last of several counts.
        """
        if self._texts is not None:
            values, count = self._values(self._texts, name)
            row, start, length = values[:, :count]
            return row, start, length
        key = name.encode() + _ASSIGN
        head = key[:_WORD]
        wanted = int.from_bytes(head.ljust(_WORD, b"\0"), "big")
        most = wanted + (1 << 8 * (_WORD - len(head))) - 1
        # Words that begin with the key lie in one interval of numbers.
        hit = np.flatnonzero((self._words - np.uint64(wanted)) <= np.uint64(most - wanted))
        for index in range(_WORD, len(key)):
            hit = hit[self._data[self._start[hit] + index] == key[index]]
        start = self._start[hit] + len(key)
        length = self._end[hit] - start
        filled = length > 0
        if not filled.all():
            hit, start, length = hit[filled], start[filled], length[filled]
        row = self._row[hit]
        if len(row) > 1:
            again = row[1:] == row[:-1]
            if again.any():
                latest = np.append(~again, True)
                row, start, length = row[latest], start[latest], length[latest]
        return row, start, length

    def _cut(self, texts: Texts) -> tuple[Array, int]:
        """The segments as the kernel has them, cut when first asked for."""
        if self._parts is None:
            self._parts = _cut(texts.data, texts.start, texts.length, _SEPARATOR, ended=True,
                               keep_empty=True)
        return self._parts

    def _values(self, texts: Texts, name: str) -> tuple[Array, int]:
        """`places` by the kernel: (an array (int64 [3, n]), how many of it count)."""
        kernel = active()
        assert kernel is not None
        known = self._found.get(name)
        if known is None:
            names = _USUAL if name in _USUAL else (name,)
            keys = [name.encode() + _ASSIGN for name in names]
            found: Array = np.empty((len(keys), 3, len(texts)), np.int64)
            counts: Array = np.empty(len(keys), np.int64)
            kernel.find(texts.data, *contiguous(texts.start, texts.length), _SEPARATOR,
                        b"".join(keys), np.cumsum([len(key) for key in keys]), found, counts)
            self._found |= zip(names, zip(found, counts.tolist(), strict=True), strict=True)
            known = self._found[name]
        return known

    def index_keys(self, topic: Array, sharp: Array) -> tuple[Array, Array, Array] | None:
        """(row, hash of its index entry, length in bytes) of the keys in index order, all int64:
        each record's unique key, then its keys.

        ``topic``: the number of each record's topic, ``sharp``: by that number the hash of
        ``topic#``. None where the kernel cannot make them: others must.
        """
        kernel = active()
        if self._texts is None or kernel is None:
            return None
        unique, keys = (self._values(self._texts, name) for name in (props.UNIQUE_KEY, props.KEYS))
        columns = contiguous(topic, sharp)
        room = unique[1] + 2 * keys[1] + _SAMPLE
        while True:
            out: Array = np.empty((3, room), np.int64)
            count = kernel.index_keys(self._data, *unique, *keys, *columns, out)
            if count < 0:
                return None
            if count <= room:
                row, hashed, length = out[:, :count]
                return row, hashed, length
            room = count

    def find(self, name: str) -> tuple[Array, Texts]:
        """(row numbers ascending, values) of the records which have the property: see `places`."""
        row, start, length = self.places(name)
        return row, Texts(self._data, start, length)
