"""Topics and properties of a batch by column, without a Python object for each.

Texts are cut out of the walk's buffer into Arrow binary arrays (one copy); a property is found
by comparing the first bytes of all segments at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqctl.formats import properties as props
from rmqctl.formats.javahash import string_hash
from rmqctl.scan.frames import Array, Batch, gather

_SEPARATOR = props.PROPERTY_SEPARATOR.encode()[0]
_ASSIGN = props.NAME_VALUE_SEPARATOR.encode()
_WORD = 8


def slices(data: Array, start: Array, length: Array) -> pa.BinaryArray:
    """``data[start:start+length]`` for each row. Rows must be ascending and must not overlap."""
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = start
    edges[1::2] = start + length
    # Every second element is a wanted slice, the others are the bytes between two of them.
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1,
                                       [None, pa.py_buffer(edges), pa.py_buffer(data)])
    return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def values(array: pa.BinaryArray) -> tuple[Array, Array]:
    """(offsets int32 [n + 1], bytes uint8) of a binary array, as views."""
    _, offsets, data = array.buffers()
    found = np.frombuffer(offsets, np.int32)[array.offset:array.offset + len(array) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return found, content


class Dictionary:
    """Small numbers for recurring texts (topics, tags), stable over the batches of a walk."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.texts)

    def number(self, raw: bytes) -> int:
        found = self._numbers.get(raw)
        if found is None:
            found = self._numbers[raw] = len(self.texts)
            self.texts.append(raw)
        return found

    def encode(self, array: pa.BinaryArray) -> Array:
        """The number of each text (int64)."""
        if not len(array):
            return np.zeros(0, np.int64)
        coded = array.dictionary_encode()
        known = np.array([self.number(one) for one in coded.dictionary.to_pylist()], np.int64)
        found: Array = known[np.asarray(coded.indices)]
        return found


def topics(batch: Batch) -> pa.BinaryArray:
    return slices(batch.data, batch.column("topic_start"), batch.column("topic_length"))


class Properties:
    """The properties strings of a batch, cut into their ``key 0x01 value`` segments."""

    def __init__(self, batch: Batch) -> None:
        raw = slices(batch.data, batch.column("properties_start"),
                     batch.column("properties_length"))
        # A separator behind each record: then every segment ends with one, in every record.
        joined = pc.binary_join_element_wise(raw, pa.scalar(bytes([_SEPARATOR]), pa.binary()),
                                             pa.scalar(b"", pa.binary())) if len(raw) else raw
        offsets, content = values(joined)
        self._count = len(raw)
        self._data: Array = np.zeros(len(content) + 2 * _WORD, np.uint8)
        self._data[:len(content)] = content
        if not self._count:
            self._start = self._end = self._last = np.zeros(0, np.int64)
            return
        first, last = int(offsets[0]), int(offsets[-1])
        self._end = np.flatnonzero(self._data[first:last] == _SEPARATOR) + first
        self._start = np.empty_like(self._end)
        self._start[0] = first
        self._start[1:] = self._end[:-1] + 1
        self._last = np.searchsorted(self._end, offsets[1:])
        self._words = gather(self._data, self._start, _WORD).view(">u8")

    def find(self, name: str) -> tuple[Array, pa.BinaryArray]:
        """(row numbers ascending, values) of the records which have the property.

        As a 4.9.1+ broker reads it: an empty value is no property, the last of several counts.
        """
        key = name.encode() + _ASSIGN
        head = key[:_WORD]
        shift = np.uint64(8 * (_WORD - len(head)))
        wanted = np.uint64(int.from_bytes(head, "big"))
        hit = np.flatnonzero((self._words >> shift) == wanted) if self._count else self._last
        for at in range(_WORD, len(key)):
            hit = hit[self._data[np.minimum(self._start[hit] + at, len(self._data) - 1)] == key[at]]
        hit = hit[self._end[hit] - self._start[hit] > len(key)]
        row = np.searchsorted(self._last, hit, "right")
        if len(row) > 1:
            keep = np.append(row[1:] != row[:-1], True)
            if not keep.all():
                hit, row = hit[keep], row[keep]
        start = self._start[hit] + len(key)
        return row, slices(self._data, start, self._end[hit] - start)


def java_hash(array: pa.BinaryArray) -> Array:
    """``String.hashCode`` (int64 holding a signed 32-bit value) of each UTF-8 text."""
    offsets, content = values(array)
    out: Array = np.zeros(len(array), np.int64)
    if not len(array):
        return out
    length = np.diff(offsets)
    start = offsets[:-1].astype(np.int64)
    wide = bool(len(content)) and bool((content[start[0]:offsets[-1]] & 0x80).any())
    for width in np.unique(length).tolist():
        if not width:
            continue
        rows: Any = slice(None) if (length == width).all() else np.flatnonzero(length == width)
        texts = gather(content, start[rows], width).view(np.uint8).reshape(-1, width)
        power = np.array([pow(31, width - 1 - i, 1 << 32) for i in range(width)], np.uint32)
        out[rows] = (texts @ power).astype(np.uint32).view(np.int32)
    if wide:
        for number, raw in enumerate(array.to_pylist()):
            if not raw.isascii():
                out[number] = string_hash(raw.decode("utf-8", "replace"))
    return out


def split_keys(array: pa.BinaryArray) -> tuple[Array, pa.BinaryArray]:
    """(row of the array each key comes from, keys): KEYS values split on one space, no empties."""
    lists = pc.split_pattern(array, pattern=" ")
    keys = lists.flatten()
    row = np.asarray(lists.value_parent_indices()) if hasattr(
        lists, "value_parent_indices") else np.asarray(pc.list_parent_indices(lists))
    filled = np.asarray(pc.greater(pc.binary_length(keys), 0))
    if not filled.all():
        keys, row = keys.filter(pa.array(filled)), row[filled]
    return row.astype(np.int64), keys


def index_hash(topic_hash: Array, key_hash: Array, key_length: Array) -> Array:
    """The hash an index entry holds for ``topic#key``, from the parts' Java hashes.

    ``topic_hash`` is of ``topic#`` (with the sharp), so hash(topic#key) follows from it by
    31 to the power of the key's length in UTF-16 units.
    """
    power: Array = np.ones(len(key_length), np.uint32)
    base: Array = np.full(len(key_length), 31, np.uint32)
    left = key_length.astype(np.int64)
    while left.any():  # square and multiply, by column
        power = np.where(left & 1, power * base, power)
        base = base * base
        left = left >> 1
    total = topic_hash.astype(np.uint32) * power + key_hash.astype(np.uint32)
    signed = total.view(np.int32).astype(np.int64)
    found: Array = np.abs(signed)
    found[found == 1 << 31] = 0
    return found
