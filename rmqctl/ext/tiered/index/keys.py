"""The keys under which a tier's index contains messages, in a broker's order (tiered.md §5.4).

Brokers since 5.3.0 put the unique key and then the parts of ``KEYS`` into a ``HashSet`` and iterate
over this set. For columns of many messages, a sort by hash bucket gives the same order. Unusual
messages are processed one by one: those with many keys, equal keys, keys with characters beyond
ASCII, or keys with trailing spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rmqctl.formats.config import java_map
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.javahash import string_hash
from rmqctl.formats.tiered import index as fmt
from rmqctl.scan import text
from rmqctl.scan.frames import Array, Batch

SEPARATOR = " "
_CAPACITY = 16
_SIMPLE_KEYS = 8
"""Maximum number of keys for which a Java ``HashSet`` neither grows nor converts a bucket to a
tree.
"""
_SPACE, _HIGH = 0x20, 0x80
_NO_BREAK = frozenset("\u00a0\u2007\u202f")
_CONTROL = frozenset("\t\n\v\f\r\x1c\x1d\x1e\x1f ")
_SEPARATORS = frozenset("\u1680\u2028\u2029\u205f\u3000") | {chr(number) for number in
                                                            range(0x2000, 0x200B)}
_WHITESPACE = _CONTROL | _SEPARATORS - _NO_BREAK
"""Characters for which Java's ``Character.isWhitespace`` is true."""


class BatchKeys(NamedTuple):
    """The keys of a batch in the order of their items.

    ``row`` (int64, ascending): the index of each key's message in the batch. ``key_hash`` (int32):
    the hash in the item; may be -2^31.
    """

    row: Array
    key_hash: Array


def is_blank(value: str | None) -> bool:
    """Return whether all characters of a text are whitespace for Java (``StringUtils.isBlank``)."""
    return value is None or all(char in _WHITESPACE for char in value)


def key_set(unique: str | None, keys: str | None) -> list[str]:
    """Return the keys in a message's properties, in the order in which their items are written."""
    keys_in_order: dict[str, None] = {}
    if unique is not None and not is_blank(unique):
        keys_in_order[unique] = None
    if keys is not None and not is_blank(keys):
        # Java drops empty parts at the end, and only those.
        parts = keys.rstrip(SEPARATOR).split(SEPARATOR)
        keys_in_order.update(dict.fromkeys(parts))
    names = tuple(keys_in_order)
    return [names[index] for index in java_map.ordered(names, _CAPACITY)]


def keys_of(batch: Batch, topic: str) -> BatchKeys:
    """Return the keys of a batch of messages that all have the same topic."""
    return _keys(text.PropertySegments(batch), np.full(len(batch), topic_hash(topic), np.int64))


def keys_of_all(batches: Sequence[Batch], topics: Sequence[str]) -> BatchKeys:
    """Return the keys of several batches. For small batches this is much faster than `keys_of`."""
    sharp = np.repeat([topic_hash(topic) for topic in topics], [len(batch) for batch in batches])
    packed = text.joined([text.properties(batch).packed() for batch in batches])
    return _keys(text.PropertySegments(packed), sharp)


def _keys(properties: text.PropertySegments, sharp: Array) -> BatchKeys:
    # Collect unique keys and application keys of all messages as columns.
    count = len(sharp)
    data = properties.data
    unique = properties.places(props.UNIQUE_KEY)
    key_places = properties.places(props.KEYS)
    odd = _odd(data, unique, key_places, count)
    of, start, length = text.split(data, key_places[1], key_places[2], keep_empty=True)
    row = np.concatenate([unique[0], key_places[0][of]])
    start = np.concatenate([unique[1], start])
    length = np.concatenate([unique[2], length])
    # Messages with unusual or many keys are handled one by one at the end.
    odd |= np.bincount(row, minlength=count) > _SIMPLE_KEYS
    plain = ~odd[row]
    row, start, length = row[plain], start[plain], length[plain]
    # Order the keys as the broker's Java set does.
    own, units = text.hashes(data, start, length)
    order = _in_buckets(row, own)
    row, own, units = row[order], own[order], units[order]
    again = _repeated(row, own)
    hashed = _item_hash(sharp[row], own, units)
    # Possibly equal keys need a comparison of their text, so they are handled one by one.
    if again.any():
        twice: Array = np.zeros(count, bool)
        twice[row[again]] = True
        odd |= twice
        good = ~twice[row]
        row, hashed = row[good], hashed[good]
    if not odd.any():
        return BatchKeys(row, hashed)
    return _with_odd(BatchKeys(row, hashed), np.flatnonzero(odd), sharp, data, unique, key_places)


def topic_hash(topic: str) -> int:
    """Return the Java hash of the topic followed by ``#``, with which every key begins."""
    return string_hash(fmt.key_text(topic, ""))


def _odd(data: Array, unique: tuple[Array, Array, Array], key_places: tuple[Array, Array, Array],
         count: int) -> Array:
    """Return a boolean array: whether each message may have a key that is blank or ends with a
    space.
    """
    odd: Array = np.zeros(count, bool)
    for row, start, _ in (unique, key_places):
        first = data[start]
        odd[row[(first <= _SPACE) | (first >= _HIGH)]] = True
    row, start, length = key_places
    odd[row[data[start + length - 1] == _SPACE]] = True
    return odd


def _in_buckets(row: Array, own: Array) -> Array:
    """Return the order in which Java iterates over each message's set of keys: by message, then by
    bucket, then by insertion.
    """
    code = own.astype(np.uint32)
    bucket = (code ^ code >> np.uint32(16)) & np.uint32(_CAPACITY - 1)
    order: Array = np.argsort(row << 4 | bucket.astype(np.int64), kind="stable")
    return order


def _repeated(row: Array, own: Array) -> Array:
    """Return a boolean array: True if the key has the same hash as another key of its message. The
    two keys may be equal.

    Equal keys need not be adjacent in their bucket, so all keys of a bucket are compared.
    """
    repeated: Array = np.zeros(len(row), bool)
    for step in range(1, min(_SIMPLE_KEYS, len(row))):
        same = row[step:] == row[:-step]
        if not same.any():
            break
        repeated[step:] |= same & (own[step:] == own[:-step])
    return repeated


def _item_hash(sharp: Array, own: Array, units: Array) -> Array:
    """Return the hash of ``topic#key`` (int32), negated if negative; -2^31 stays negative."""
    power = text.power_table()[units]
    signed = (sharp.astype(np.uint32) * power + own.astype(np.uint32)).view(np.int32)
    hashed: Array = np.abs(signed)
    return hashed


def _with_odd(plain: BatchKeys, odd: Array, sharp: Array, data: Array, unique: tuple[Any, ...],
              key_places: tuple[Any, ...]) -> BatchKeys:
    rows, hashes = [], []
    for row in odd.tolist():
        unique_key, other = (_value(data, where, row) for where in (unique, key_places))
        for key in key_set(unique_key, other):
            rows.append(row)
            hashes.append(_slow_hash(int(sharp[row]), key))
    row = np.concatenate([plain.row, np.array(rows, np.int64)])
    key_hash = np.concatenate([plain.key_hash, np.array(hashes, np.int32)])
    order = np.argsort(row, kind="stable")
    return BatchKeys(row[order], key_hash[order])


def _value(data: Array, where: tuple[Any, ...], row: int) -> str | None:
    number = int(np.searchsorted(where[0], row))
    if number == len(where[0]) or int(where[0][number]) != row:
        return None
    start, length = int(where[1][number]), int(where[2][number])
    return data[start:start + length].tobytes().decode("utf-8", "replace")


def _slow_hash(sharp: int, key: str) -> int:
    units = len(key.encode("utf-16-be", "surrogatepass")) // 2
    value = (sharp * pow(31, units, 1 << 32) + string_hash(key)) & 0xFFFFFFFF
    signed = value - (1 << 32) if value & 0x80000000 else value
    return signed if signed == -(1 << 31) else abs(signed)
