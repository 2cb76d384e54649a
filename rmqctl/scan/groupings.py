"""Groupings of messages: the group number of each message in a batch.

Everything is computed by column; Python handles a group's key once per batch, never a single
message.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.kernel import active
from rmqctl.scan.frames import Array, Batch, distinct
from rmqctl.scan.text import (
    Dictionary,
    FixedTexts,
    PropertySegments,
    Texts,
    TextTable,
    hashes,
    split,
    texts_of,
    topics,
)

OTHER = "(other)"
"""The key for all groups that are not kept separately."""
QUARTER_HOUR = 900_000
MINUTE = 60_000
_DENSE = 1 << 16
_HASH = (1 << 32) - 1

Key = Any
"""The key of a group: bytes (topic, tag, key), (bytes, int) for a queue, int (time slot, size
class, flag), str or None."""


_LATER = object()


class KeyNumbers:
    """Small numbers for keys, in order of appearance.

    With ``only``, these keys have their own numbers, and all other keys share the number of
    `OTHER`. Texts are numbered by a table of the kernel, if it is installed. Most texts occur only
    once, and the table creates no Python objects for them.
    """

    def __init__(self, only: Iterable[Key] | None = None) -> None:
        self._by_number: list[Key] = [] if only is None else [*only, OTHER]
        self._numbers: dict[Hashable, int] = {
            key: number for number, key in enumerate(self._by_number)}
        self._open = only is None
        self._table = TextTable()
        self._numbers_of_texts: Array = np.zeros(0, np.int64)
        self._fixed: FixedTexts | None = None
        if only is not None:
            texts = {number: key for number, key in enumerate(self._by_number[:-1])
                     if isinstance(key, bytes)}
            self._fixed = FixedTexts(list(texts.values()))
            self._numbers_of_fixed = np.array([*texts, len(self._by_number) - 1], np.int64)

    def __len__(self) -> int:
        return len(self._by_number)

    def __reduce__(self) -> Any:
        """Return the data from which another process can rebuild the object: the keys, in the same
        order.
        """
        return (_learned, (self.by_number,)) if self._open else (KeyNumbers, (self.by_number[:-1],))

    @property
    def by_number(self) -> list[Key]:
        """The keys, in order of number."""
        return self.some(np.arange(len(self._by_number)))

    def some(self, numbers: Array) -> list[Key]:
        """Return the keys that have the given numbers."""
        keys = [self._by_number[number] for number in numbers.tolist()]
        later = [place for place, key in enumerate(keys) if key is _LATER]
        texts = np.searchsorted(self._numbers_of_texts, numbers[later])
        for place, raw in zip(later, self._table.texts(texts).tolist(), strict=True):
            keys[place] = raw
        return keys

    def numbers(self, keys: Sequence[Key]) -> Array:
        """Return the number assigned to each key (int64)."""
        parts: list[Any] = [np.zeros(0, np.int64)]
        for is_text, run in groupby(keys, lambda key: isinstance(key, bytes)):
            some = [*run]
            parts.append(self.of_texts(texts_of(some)) if is_text else [*map(self.number, some)])
        numbers: Array = np.concatenate(parts)
        return numbers

    def number(self, key: Key) -> int:
        """Return the number that represents a key that is not a string."""
        number = self._numbers.get(key)
        if number is None:
            if not self._open:
                return len(self._by_number) - 1
            number = self._numbers[key] = len(self._by_number)
            self._by_number.append(key)
        return number

    def of_ints(self, values: Array, key: Callable[[int], Key] = int) -> Array:
        """Return, for each value, the number assigned to its key ``key(value)``."""
        least, most = int(values.min()), int(values.max())
        if least == most:
            return np.full(len(values), self.number(key(least)), np.int64)
        if most - least < _DENSE:
            shifted = values - least
            present = np.flatnonzero(np.bincount(shifted))
            table = np.zeros(most - least + 1, np.int64)
            table[present] = [self.number(key(value)) for value in (present + least).tolist()]
            numbers: Array = table[shifted]
            return numbers
        distinct, place = np.unique(values, return_inverse=True)
        return np.array([self.number(key(value)) for value in distinct.tolist()], np.int64)[place]

    def of_texts(self, texts: Texts) -> Array:
        """Return the number assigned to each text; the text itself is the key."""
        numbers: Array
        if self._fixed is not None:
            places = self._fixed.encode(texts, len(self._numbers_of_fixed) - 1)
            numbers = self._numbers_of_fixed[places]
            return numbers
        if active() is None:
            return np.fromiter(map(self.number, texts.tolist()), np.int64, len(texts))
        places = self._table.encode(texts)
        new = len(self._table) - len(self._numbers_of_texts)
        if new:
            first = len(self._by_number)
            self._by_number += [_LATER] * new
            self._numbers_of_texts = np.append(self._numbers_of_texts,
                                               np.arange(first, first + new))
        numbers = self._numbers_of_texts[places]
        return numbers


def _learned(groups: Sequence[Key]) -> KeyNumbers:
    keys = KeyNumbers()
    keys.numbers(groups)
    return keys


Codes = tuple[Array, Array | None]
"""(group numbers, batch row of each number). The rows are None if each message has exactly one
group.
"""


def _topic(keys: KeyNumbers, batch: Batch) -> Codes:
    return keys.of_texts(topics(batch)), None


def _queue(keys: KeyNumbers, batch: Batch) -> Codes:
    texts, queues = KeyNumbers(), KeyNumbers()
    topic = texts.of_texts(topics(batch))
    queue = queues.of_ints(batch.column("queue_id"))
    width, names, ids = len(queues), texts.by_number, queues.by_number

    def pair(code: int) -> tuple[Any, Any]:
        return names[code // width], ids[code % width]

    return keys.of_ints(topic * width + queue, pair), None


def _tag(keys: KeyNumbers, batch: Batch) -> Codes:
    rows, tags = PropertySegments(batch, (props.TAGS,)).find(props.TAGS)
    codes: Array = np.zeros(len(batch), np.int64)
    if len(rows) < len(batch):
        codes[:] = keys.number(None)
    codes[rows] = keys.of_texts(tags)
    return codes, None


def _key(keys: KeyNumbers, batch: Batch) -> Codes:
    """Return the keys in the KEYS property of each message, without duplicates within a message;
    None for a message without keys.
    """
    properties = PropertySegments(batch)
    rows, start, length = properties.places(props.KEYS)
    of, begin, size = split(properties.data, start, length)
    rows = rows[of]
    without: Array = np.ones(len(batch), bool)
    without[rows] = False
    bare = np.flatnonzero(without)
    if not len(rows):
        return np.full(len(bare), keys.number(None), np.int64), bare
    texts = Texts(properties.data, begin, size)
    again = rows[1:] == rows[:-1]
    several = np.flatnonzero(np.append(again, False) | np.append(False, again))
    marks = np.sort(rows[several] << 32
                    | hashes(properties.data, begin[several], size[several])[0] & _HASH)
    if (marks[1:] == marks[:-1]).any():  # perhaps a duplicate key
        table = Dictionary()
        number = table.encode(texts)
        rows, number = np.divmod(distinct(rows * len(table) + number), len(table))
        codes = keys.of_texts(texts_of(table.texts))[number]
    else:
        codes = keys.of_texts(texts)
    if not len(bare):
        return codes, rows
    none = np.full(len(bare), keys.number(None), np.int64)
    return np.concatenate([codes, none]), np.concatenate([rows, bare])


def _quarter(keys: KeyNumbers, batch: Batch) -> Codes:
    return keys.of_ints(batch.column("store_timestamp") // QUARTER_HOUR), None


def _minute(keys: KeyNumbers, batch: Batch) -> Codes:
    return keys.of_ints(batch.column("store_timestamp") // MINUTE), None


def _store_host(keys: KeyNumbers, batch: Batch) -> Codes:
    codes: Array = np.empty(len(batch), np.int64)
    for rows, hosts in batch.hosts("store_host"):
        width = hosts.dtype.itemsize
        # There are few hosts: sorting them as texts of fixed width is good enough.
        distinct, place = np.unique(hosts.view(f"S{width}"), return_inverse=True)
        texts = texts_of([host.ljust(width, b"\0") for host in distinct.tolist()])
        codes[rows] = keys.of_texts(texts)[place]
    return codes, None


def _size(keys: KeyNumbers, batch: Batch) -> Codes:
    return keys.of_ints(np.frexp(batch.column("total_size"))[1].astype(np.int64) - 1), None


def _flag(keys: KeyNumbers, batch: Batch) -> Codes:
    return keys.of_ints(batch.column("flag")), None


def _transaction(keys: KeyNumbers, batch: Batch) -> Codes:
    return keys.of_ints(batch.column("sys_flag") & sysflag.TRANSACTION_MASK,
                        sysflag.transaction_type), None


def _compression(keys: KeyNumbers, batch: Batch) -> Codes:
    flags = batch.column("sys_flag") & (sysflag.COMPRESSED | sysflag.COMPRESSION_MASK)
    return keys.of_ints(flags, lambda flag: sysflag.compression(flag) or "none"), None


def _none(keys: KeyNumbers, batch: Batch) -> Codes:
    return np.full(len(batch), keys.number(None), np.int64), None


GROUPINGS: dict[str, Callable[[KeyNumbers, Batch], Codes]] = {
    "topic": _topic,
    "queue": _queue,
    "tag": _tag,
    "key": _key,
    "minute": _minute,
    "hour": _quarter,
    "day": _quarter,
    "store-host": _store_host,
    "size": _size,
    "flag": _flag,
    "transaction": _transaction,
    "compression": _compression,
    "none": _none,
}
"""The groupings by name. Hours and days are counted in quarter hours, which fit every time zone. A
size class is the greatest power of two that is not greater than a record's size.
"""
