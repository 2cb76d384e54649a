"""Topics and properties of a batch by column, without a Python object for each.

Texts are cut out of the walk's buffer into Arrow binary arrays (one copy); a property is found
by comparing the first bytes of all segments at once.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqctl.formats.local import properties as props
from rmqctl.scan import text_slices
from rmqctl.scan.frames import Array, Batch, gather

_SEPARATOR = props.PROPERTY_SEPARATOR.encode()[0]
_ASSIGN = props.NAME_VALUE_SEPARATOR.encode()
_WORD = 8
_CLOSE = pa.scalar(bytes([_SEPARATOR]), pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())


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


def strings(raw: pa.BinaryArray) -> pa.StringArray:
    """The texts as Arrow strings, nulls kept; what is no UTF-8 becomes U+FFFD as Python has it."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:  # Arrow does not say which: all of this one array go the slow way
        return pa.array([None if one is None else one.decode("utf-8", "replace")
                         for one in raw.to_pylist()], pa.string())


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
        self._codes = text_slices.Codes()

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

    def encode_places(self, data: Array, start: Array, length: Array) -> Array:
        """The number of each text that lies in ``data`` (int64): cheaper for few, short texts.

        Texts must be ascending and must not overlap.
        """
        found = self._codes.encode(data, start, length, self.number)
        return self.encode(slices(data, start, length)) if found is None else found


def topics(batch: Batch) -> pa.BinaryArray:
    """The topic of each message."""
    return slices(batch.data, batch.column("topic_start"), batch.column("topic_length"))


def properties(batch: Batch) -> pa.BinaryArray:
    """The stored properties string of each message."""
    return slices(batch.data, batch.column("properties_start"),
                  batch.column("properties_length"))


class Properties:
    """The properties strings of many records, cut into their ``key 0x01 value`` segments."""

    def __init__(self, records: Batch | pa.BinaryArray) -> None:
        raw = properties(records) if isinstance(records, Batch) else records
        self._count = len(raw)
        offsets, content = values(raw)
        if not _all_closed(offsets, content):
            # A separator behind each record: then every segment ends with one, in every record.
            offsets, content = values(pc.binary_join_element_wise(raw, _CLOSE, _NOTHING))
        first, last = (int(offsets[0]), int(offsets[-1])) if self._count else (0, 0)
        self._data: Array = np.zeros(last - first + 2 * _WORD, np.uint8)
        self._data[:last - first] = content[first:last]
        self._end = np.flatnonzero(self._data[:last - first] == _SEPARATOR)
        self._start = np.empty_like(self._end)
        if len(self._end):
            self._start[0] = 0
            self._start[1:] = self._end[:-1] + 1
        segments = np.searchsorted(self._end, offsets[1:] - first)
        segments[1:] -= segments[:-1].copy()
        self._row = np.repeat(np.arange(self._count), segments)
        self._words = gather(self._data, self._start, _WORD).view(">u8").astype(np.uint64)

    @property
    def data(self) -> Array:
        """The bytes (uint8) that `places` leads into."""
        return self._data

    @property
    def segments(self) -> tuple[Array, Array, Array]:
        """(row numbers ascending, starts in `data`, ends) of all segments, empty ones too."""
        return self._row, self._start, self._end

    def places(self, name: str) -> tuple[Array, Array, Array]:
        """(row numbers ascending, starts in `data`, lengths) of the values of a property.

        As a 4.9.1+ broker reads it: an empty value is no property, the last of several counts.
        """
        key = name.encode() + _ASSIGN
        head = key[:_WORD]
        wanted = int.from_bytes(head.ljust(_WORD, b"\0"), "big")
        most = wanted + (1 << 8 * (_WORD - len(head))) - 1
        # Words that begin with the key lie in one interval of numbers.
        hit = np.flatnonzero((self._words - np.uint64(wanted)) <= np.uint64(most - wanted))
        for at in range(_WORD, len(key)):
            hit = hit[self._data[self._start[hit] + at] == key[at]]
        start = self._start[hit] + len(key)
        length = self._end[hit] - start
        filled = length > 0
        if not filled.all():
            hit, start, length = hit[filled], start[filled], length[filled]
        row = self._row[hit]
        if len(row) > 1:
            again = row[1:] == row[:-1]
            if again.any():
                keep = np.append(~again, True)
                row, start, length = row[keep], start[keep], length[keep]
        return row, start, length

    def find(self, name: str) -> tuple[Array, pa.BinaryArray]:
        """(row numbers ascending, values) of the records which have the property: see `places`."""
        row, start, length = self.places(name)
        return row, slices(self._data, start, length)


def _all_closed(offsets: Array, content: Array) -> bool:
    """Whether every text ends with the separator (or is empty, which has no segment)."""
    filled = offsets[1:] > offsets[:-1]
    return bool((content[offsets[1:][filled] - 1] == _SEPARATOR).all())


def java_hash(array: pa.BinaryArray) -> Array:
    """``String.hashCode`` (int64 holding a signed 32-bit value) of each UTF-8 text."""
    return _hashes(array)[0]


def utf16_length(array: pa.BinaryArray) -> Array:
    """The number of UTF-16 units of each UTF-8 text (int64), as Java's ``length()`` counts."""
    return _hashes(array)[1]


def _hashes(array: pa.BinaryArray) -> tuple[Array, Array]:
    offsets, content = values(array)
    return text_slices.hashes(content, offsets[:-1].astype(np.int64),
                              np.diff(offsets).astype(np.int64))


def index_hash(topic_hash: Array, key_hash: Array, key_length: Array) -> Array:
    """The hash an index entry holds for ``topic#key``, from the parts' Java hashes.

    ``topic_hash`` is of ``topic#`` (with the sharp), so hash(topic#key) follows from it by
    31 to the power of the key's length in UTF-16 units.
    """
    power = text_slices.power_table()[key_length]
    total = topic_hash.astype(np.uint32) * power + key_hash.astype(np.uint32)
    signed = total.view(np.int32).astype(np.int64)
    found: Array = np.abs(signed)
    found[found == 1 << 31] = 0
    return found
