"""Texts where they lie in a buffer, as columns of start and length: hashed, split, numbered.

Nothing is cut out: the bytes of all texts of a column are gathered into one matrix, a row for
each text, filled up with zeros behind the shorter ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rmqctl.formats.local.javahash import string_hash
from rmqctl.scan.frames import Array, gather

SHORT = 64
"""Texts up to so many bytes are worked on together, whatever their lengths."""
_MAX_POWER = 1 << 15
_HIGH = 0x80
_SPACE = 0x20
_LENGTH_BITS = 16


def hashes(data: Array, start: Array, length: Array) -> tuple[Array, Array]:
    """(``String.hashCode``, UTF-16 length) of UTF-8 texts, both int64.

    The hash is a signed 32-bit value. Bytes that are no UTF-8 count as Java's decoder replaces
    them.
    """
    out: Array = np.zeros(len(start), np.int64)
    units = length.astype(np.int64)
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
    found = _polynomial(texts)
    if not even:
        found *= _inverse_powers()[width - length]
    out[rows] = found.view(np.int32)
    if int(texts.max()) >= _HIGH:
        numbers = np.arange(len(out))[rows]
        for at in np.flatnonzero((texts >= _HIGH).any(axis=1)).tolist():
            raw = data[int(start[at]):int(start[at] + length[at])].tobytes()
            decoded = raw.decode("utf-8", "replace")
            out[numbers[at]] = string_hash(decoded)
            units[numbers[at]] = len(decoded.encode("utf-16-be")) // 2


def matrix(data: Array, start: Array, length: Array, width: int) -> tuple[Array, bool]:
    """(texts as uint8 [n, width] with zeros behind the shorter ones, whether none is shorter)."""
    even = int(length.min()) == width
    last = len(data) - width
    if not even and (last < 0 or int(start.max()) > last):
        # Texts so near to the end of the data that their rows would reach behind it.
        more: Array = np.zeros(width, np.uint8)
        tail = max(0, int(start[start > last].min()))
        near = start > last
        texts: Array = np.zeros((len(start), width), np.uint8)
        texts[~near] = gather(data, start[~near], width).view(np.uint8).reshape(-1, width)
        end = np.concatenate([data[tail:], more])
        texts[near] = gather(end, start[near] - tail, width).view(np.uint8).reshape(-1, width)
    else:
        texts = gather(data, start, width).view(np.uint8).reshape(-1, width)
    if not even:
        texts *= np.arange(width) < length[:, None]
    return texts, even


def _polynomial(texts: Array) -> Array:
    """The hashes (uint32) of rows of bytes, as if all were ASCII texts of the full width.

    ``einsum`` is numpy's own loop: no BLAS and no threads of its own beside the workers'.
    """
    width = texts.shape[1]
    powers = power_table()[width - 1::-1] if width <= _MAX_POWER else np.array(
        [pow(31, width - 1 - at, 1 << 32) for at in range(width)], np.uint32)
    found: Array = np.einsum("ij,j->i", texts.astype(np.uint32), powers)
    return found


@cache
def power_table() -> Array:
    """31 to the power of 0 … 32767 (no property is longer), modulo 2^32."""
    factors = np.full(_MAX_POWER, 31, np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


@cache
def _inverse_powers() -> Array:
    """What undoes the powers of 31 that zeros behind a text contribute."""
    one = pow(31, -1, 1 << 32)
    return np.array([pow(one, at, 1 << 32) for at in range(SHORT + 1)], np.uint32)


def split(data: Array, start: Array, length: Array, *,
          keep_empty: bool = False) -> tuple[Array, Array, Array]:
    """(number of the text each part comes from, starts, lengths) of the parts between spaces.

    Texts must be ascending and must not overlap. Empty parts are left out, or kept.
    """
    spaces = np.flatnonzero(data == _SPACE)
    first = np.searchsorted(spaces, start)
    inside = np.searchsorted(spaces, start + length) - first
    of = np.arange(len(start))
    if not inside.any():
        return (of, start, length) if keep_empty or length.all() else _filled(
            of, start, start + length)
    spaces = spaces[np.repeat(first - np.cumsum(inside) + inside, inside)
                    + np.arange(int(inside.sum()))]
    of = np.repeat(of, inside + 1)
    head = np.ones(len(of), bool)
    head[1:] = of[1:] != of[:-1]
    begin: Array = np.empty(len(of), np.int64)
    begin[head], begin[~head] = start, spaces + 1
    tail = np.append(head[1:], True)
    end: Array = np.empty(len(of), np.int64)
    end[tail], end[~tail] = start + length, spaces
    return (of, begin, end - begin) if keep_empty else _filled(of, begin, end)


def _filled(of: Array, begin: Array, end: Array) -> tuple[Array, Array, Array]:
    filled = end > begin
    return of[filled], begin[filled], (end - begin)[filled]


class Codes:
    """Numbers for recurring short texts, found by hash and then proven byte by byte."""

    def __init__(self) -> None:
        self._codes: Array = np.zeros(0, np.int64)
        self._numbers: Array = np.zeros(0, np.int64)
        self._texts: Array = np.zeros((0, SHORT), np.uint8)

    def encode(self, data: Array, start: Array, length: Array, number: Any) -> Array | None:
        """The number of each text (int64); ``number(raw)`` gives one to a text met first.

        None where this way does not do: a text longer than `SHORT`, or two with one hash.
        """
        widest = int(length.max(initial=0))
        if not 0 < widest <= SHORT:
            return None
        texts, even = matrix(data, start, length, widest)
        hashed = _polynomial(texts)
        if not even:
            hashed *= _inverse_powers()[widest - length]
        code = hashed.astype(np.int64) << _LENGTH_BITS | length
        at = self._find(code)
        unknown = self._codes[at] != code if len(self._codes) else np.ones(len(code), bool)
        if unknown.any():
            fresh, first = np.unique(code[unknown], return_index=True)
            rows = np.flatnonzero(unknown)[first]
            self._learn(fresh, [data[int(start[row]):int(start[row] + length[row])].tobytes()
                                for row in rows.tolist()], number)
            at = self._find(code)
        if not (self._texts[at, :widest] == texts).all():
            return None
        found: Array = self._numbers[at]
        return found

    def _find(self, code: Array) -> Array:
        return np.minimum(np.searchsorted(self._codes, code), max(0, len(self._codes) - 1))

    def _learn(self, codes: Array, raws: list[bytes], number: Any) -> None:
        rows = np.array([list(raw.ljust(SHORT, b"\0")) for raw in raws], np.uint8)
        codes = np.concatenate([self._codes, codes])
        order = np.argsort(codes)
        self._codes = codes[order]
        self._numbers = np.concatenate(
            [self._numbers, np.array([number(raw) for raw in raws], np.int64)])[order]
        self._texts = np.concatenate([self._texts, rows])[order]
