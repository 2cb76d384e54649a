"""Find index items without a key and keys without an index item, in sequential passes (tiered.md
§5.4).

Items and keys are converted to fingerprints of queue, commit log offset, size and hash. The hashes
of older and newer brokers for a key count as equal. For a negative Java hash, older brokers negate
the hash, and newer brokers clear the sign bit. The two hashes add up to 2^31.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import numpy as np

from rmqctl.files.row_file import RowFile
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.javahash import string_hash
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.frames import Array

_HALF = 1 << 31
_SPACE = 0x20
KEY = np.dtype([("mark", np.uint64), ("queue", np.uint32), ("queue_offset", np.int64),
                ("time", np.int64), ("true_time", np.int64), ("wanted", np.bool_)])
"""A key of a message. ``time``: store time as a broker reads it. ``wanted``: whether the index
should contain the key.
"""
ITEM = np.dtype([("mark", np.uint64), ("file", np.uint32), ("number", np.uint32),
                 ("time_diff", np.int32)])
"""An index item. ``file``: the index of its file; ``number``: the item's index in the file."""
_MIX = tuple(np.uint64(factor) for factor in (
    0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
BUCKETS = 64
MEMORY = 64 << 20
_FIRST = np.arange(BUCKETS, dtype=np.uint64) << np.uint64(58)
"""The smallest mark of each bucket."""


def folded(key_hash: Array) -> Array:
    """Return a number (int64) for each hash. Brokers compute two different hashes for a key; both
    hashes get the same number.
    """
    value = np.abs(key_hash.astype(np.int64))
    folded_value: Array = np.minimum(value, _HALF - value)
    return folded_value


def marks(*parts: Array) -> Array:
    """Return fingerprints (uint64) of items. ``parts``: queue, offset, size, hash (`folded`)."""
    value: Array = np.zeros(len(parts[0]), np.uint64)
    for part in parts:
        value = (value ^ part.astype(np.int64).view(np.uint64)) * _MIX[0]
        value = (value ^ (value >> np.uint64(30))) * _MIX[1]
        value = (value ^ (value >> np.uint64(27))) * _MIX[2]
        value ^= value >> np.uint64(31)
    return value


class MessageKeys:
    """Collector of the keys of a queue's messages.

    ``empty_too``: also collect the empty key of every message. Only some broker versions write
    items with this key. Pass True if such an item exists.
    """

    def __init__(self, spool: KeySpool, number: int, topic: str, *, empty_too: bool) -> None:
        self._spool, self._number = spool, number
        self._sharp = string_hash(f"{topic}#")
        self._empty_too = empty_too

    def add(self, properties: text.PropertySegments, rows: Array, offset: Array, size: Array,
            queue_offset: Array, time: Array, true_time: Array) -> tuple[Array, Array]:
        """Add the keys of those messages of a batch for which ``rows`` (bool) is True.

        Return the message number and the length (bytes) of each key in the batch.
        """
        unique, keys = properties.places(props.UNIQUE_KEY), properties.places(props.KEYS)
        of, start, length = text.split(properties.data, *keys[1:])
        row = np.concatenate([unique[0], keys[0][of]])
        start = np.concatenate([unique[1], start])
        length = np.concatenate([unique[2], length])
        hashed, units = text.hashes(properties.data, start, length)
        power = text.power_table()[np.minimum(units, len(text.power_table()) - 1)]
        total = np.uint32(self._sharp & 0xFFFFFFFF) * power + hashed.astype(np.uint32)
        signed = total.astype(np.uint32).view(np.int32).astype(np.int64)
        self._put(row, signed, rows, offset, size, queue_offset, time, true_time,
                  wanted=_not_blank(properties.data, start, length))
        if self._empty_too:
            every = np.arange(len(offset))
            sharp = np.full(len(every), self._sharp, np.int64)
            self._put(every, sharp, rows, offset, size, queue_offset, time, true_time,
                      wanted=np.zeros(len(every), bool))
        return row, length

    def _put(self, row: Array, signed: Array, rows: Array, offset: Array, size: Array,
             queue_offset: Array, time: Array, true_time: Array, wanted: Array) -> None:
        of_message = rows[row]
        row, signed, wanted = row[of_message], signed[of_message], wanted[of_message]
        out: Array = np.zeros(len(row), KEY)
        queue = np.full(len(row), self._number, np.int64)
        out["mark"] = marks(queue, offset[row], size[row], folded(signed))
        out["queue"], out["queue_offset"] = self._number, queue_offset[row]
        out["time"], out["true_time"], out["wanted"] = time[row], true_time[row], wanted
        self._spool.add(out)


def _not_blank(data: Array, start: Array, length: Array) -> Array:
    """Return a boolean array: whether each text begins with a character that is certainly not
    whitespace.
    """
    mask: Array = np.zeros(len(start), bool)
    filled = length > 0
    mask[filled] = data[start[filled]] > _SPACE
    return mask


class KeySpool:
    """Rows of one dtype with a ``mark``, in memory up to a limit and then in an unnamed file.

    Rows are compared bucket by bucket. The first bits of the mark determine the bucket. Call `add`,
    then `bucket` for each of `BUCKETS`, then `close`.
    """

    def __init__(self, dtype: np.dtype[Any], memory: int = MEMORY) -> None:
        self._dtype, self._memory = dtype, memory
        self._rows: list[Array] = []
        self._bytes = 0
        self._ordered = False
        self._adding = Lock()
        self._file = RowFile(dtype, "keys of messages")
        self._extents: list[list[tuple[int, int]]] = [[] for _ in range(BUCKETS)]
        self.count = 0

    def add(self, rows: Array) -> None:
        """Add rows. The caller must not change them afterwards.

        Several threads may call this method at the same time: rows with the same mark belong to the
        same queue, and only one thread handles each queue. Raises: StoreIOError.
        """
        if not len(rows):
            return
        with self._adding:
            self._rows.append(rows)
            self._ordered = False
            self._bytes += rows.nbytes
            self.count += len(rows)
            if self._bytes > self._memory:
                self._spill()

    def _spill(self) -> None:
        for number, part in enumerate(self._split()):
            if len(part):
                self._extents[number].append((len(self._file), len(part)))
                self._file.append(part)
        self._rows, self._bytes = [], 0

    def _split(self) -> list[Array]:
        rows = self._memory_rows()
        return np.split(rows, np.searchsorted(rows["mark"], _FIRST[1:]))

    def _memory_rows(self) -> Array:
        """Return the rows that are in memory, ordered by mark."""
        if len(self._rows) != 1 or not self._ordered:
            rows = np.concatenate(self._rows) if self._rows else np.zeros(0, self._dtype)
            self._rows = [rows[np.argsort(rows["mark"], kind="stable")]]
            self._ordered = True
        return self._rows[0]

    def bucket(self, number: int) -> Array:
        """Return the rows of bucket ``number``, ordered by mark. Raises: StoreIOError."""
        rows = self._memory_rows()
        low = int(np.searchsorted(rows["mark"], _FIRST[number]))
        high = len(rows) if number + 1 == BUCKETS else int(
            np.searchsorted(rows["mark"], _FIRST[number + 1]))
        parts = [rows[low:high]]
        if not self._extents[number]:
            return parts[0]
        parts += [self._file.read(first, count) for first, count in self._extents[number]]
        bucket: Array = np.concatenate(parts)
        order = np.argsort(bucket["mark"], kind="stable")
        return bucket[order]

    def close(self) -> None:
        self._rows = []
        self._file.close()


@dataclass(slots=True)
class Matched:
    """Result of comparing a bucket.

    ``strange``: items without a key.
    ``missing``: keys without an item.
    ``items`` and ``keys``: matching pairs.
    ``wanted``: number of keys that the index should contain.
    """

    strange: Array
    missing: Array
    items: Array
    keys: Array
    wanted: int


def compare(items: KeySpool, keys: KeySpool,
            progress: Callable[[int], None] | None = None) -> Iterator[
        Matched]:
    """Yield the comparison of items and keys, bucket by bucket."""
    for number in range(BUCKETS):
        ours, theirs = items.bucket(number), keys.bucket(number)
        place = np.searchsorted(theirs["mark"], ours["mark"])
        inside = np.minimum(place, max(len(theirs) - 1, 0))
        hit = theirs["mark"][inside] == ours["mark"] if len(theirs) else np.zeros(len(ours), bool)
        back = np.searchsorted(ours["mark"], theirs["mark"])
        inner = np.minimum(back, max(len(ours) - 1, 0))
        met = ours["mark"][inner] == theirs["mark"] if len(ours) else np.zeros(len(theirs), bool)
        yield Matched(ours[~hit], theirs[~met & theirs["wanted"]], ours[hit], theirs[inside[hit]],
                      int(theirs["wanted"].sum()))
        if progress is not None:
            progress(len(ours))
