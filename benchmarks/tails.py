"""The tails of records (topic and properties, which follow the body), built for many records at a
time.

Tails of a class (same topic, tag and number of keys) have the same length and differ only in the
unique key and the keys, so a class is a byte matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.javahash import hash_map_order, index_hash, java_hash, java_hash_rows
from benchmarks.layout import MESSAGE_HEADER, PROPERTIES_LENGTH, TOPIC_LENGTH

U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

TAGS = ("", "TagA", "TagB", "created", "settled-late")  # "" = no tag
CLUSTER = "DefaultCluster"

UNIQUE_KEY = np.dtype(
    [("ip", ">u4"), ("pid", ">u2"), ("loader", ">u4"), ("month_ms", ">u4"), ("counter", ">u2")]
)
UNIQUE_KEY_CHARS = 2 * UNIQUE_KEY.itemsize
HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)

KEY_FORMS = (("order-", 8), ("user-", 7))  # prefix and decimal digits of the first, second key
KEY_CHARS = tuple(len(prefix) + digits for prefix, digits in KEY_FORMS)


@dataclass(frozen=True)
class Tail:
    """The bytes of a class of tails, and the positions of their variable parts."""

    template: U8
    unique_key: slice
    keys: tuple[slice, ...]


@cache
def make_tail(topic: str, tag: int, keys: int) -> Tail:
    """Return the properties string, in the order of a 5.2+ broker and with its closing
    separator.
    """
    values = {
        "UNIQ_KEY": "U" * UNIQUE_KEY_CHARS,
        "WAIT": "true",
        "CLUSTER": CLUSTER,
        "KEYS": " ".join("K" * chars for chars in KEY_CHARS[:keys]),
        "TAGS": TAGS[tag],
    }
    order = hash_map_order([name for name, value in values.items() if value])
    properties = "".join(f"{name}\x01{values[name]}\x02" for name in order).encode()
    topic_length = np.array(len(topic), dtype=TOPIC_LENGTH).tobytes()
    properties_length = np.array(len(properties), dtype=PROPERTIES_LENGTH).tobytes()
    head = topic_length + topic.encode() + properties_length

    def place(name: str) -> int:
        marker = f"{name}\x01".encode()
        return len(head) + properties.index(marker) + len(marker)

    unique = place("UNIQ_KEY")
    key_slices = []
    start = place("KEYS") if keys else 0
    for chars in KEY_CHARS[:keys]:
        key_slices.append(slice(start, start + chars))
        start += chars + len(" ")
    return Tail(
        np.frombuffer(head + properties, dtype=np.uint8),
        slice(unique, unique + UNIQUE_KEY_CHARS),
        tuple(key_slices),
    )


def tail_length(topic: str, tag: int, keys: int) -> int:
    """Return the size of a record of this class without its body."""
    return MESSAGE_HEADER.itemsize + len(make_tail(topic, tag, keys).template)


def tags_codes() -> I64:
    """Return the tagsCode of each of TAGS: the sign-extended hash, 0 without a tag."""
    return np.array([java_hash(tag) for tag in TAGS], dtype=np.int64)


def unique_keys(ip: NDArray[np.uint32], born_ms: I64, number: I64) -> U8:
    """Return client message IDs as upper-case hex, (n, 32); ``number``: the record's number in the
    store.
    """
    ids = np.zeros(len(number), dtype=UNIQUE_KEY)
    ids["ip"] = ip
    ids["pid"] = 4711
    ids["loader"] = 0x18B4AAC2
    ids["month_ms"] = born_ms & 0xFFFFFFFF
    ids["counter"] = number & 0xFFFF
    raw = ids.view(np.uint8).reshape(len(ids), UNIQUE_KEY.itemsize)
    return np.stack([HEX[raw >> 4], HEX[raw & 0xF]], axis=2).reshape(len(ids), UNIQUE_KEY_CHARS)


def numbered_keys(form: int, values: I64) -> U8:
    """Return keys of one of KEY_FORMS for these numbers, as ASCII, (n, chars)."""
    prefix, digits = KEY_FORMS[form]
    out = np.empty((len(values), KEY_CHARS[form]), dtype=np.uint8)
    out[:, : len(prefix)] = np.frombuffer(prefix.encode(), dtype=np.uint8)
    for place in range(digits):
        out[:, -1 - place] = values // 10**place % 10 + ord("0")
    return out


@dataclass(frozen=True)
class TailGroup:
    """The tails of a class: numbers of their records (n,), their bytes (n, width), and the index
    hashes of their keys (n, 1 + keys), unique key first.
    """

    members: I64
    tails: U8
    hashes: I32


def make_tails(
    topics: list[str], topic: U8, tag: U8, keys: U8, unique: U8, key_columns: list[U8]
) -> Iterator[TailGroup]:
    """Yield all tails of a chunk, class by class."""
    classes = (topic.astype(np.int32) * len(TAGS) + tag) * (len(KEY_FORMS) + 1) + keys
    order = np.argsort(classes, kind="stable")
    borders = np.flatnonzero(np.diff(classes[order])) + 1
    for members in np.split(order, borders):
        first = members[0]
        name, count = topics[topic[first]], int(keys[first])
        form = make_tail(name, int(tag[first]), count)
        variable = [(form.unique_key, unique)]
        variable += zip(form.keys, key_columns[:count], strict=True)
        tails = np.repeat(form.template[np.newaxis], len(members), axis=0)
        hashes = np.empty((len(members), 1 + count), dtype=np.int32)
        for number, (where, column) in enumerate(variable):
            rows = column[members]
            tails[:, where] = rows
            hashes[:, number] = index_hash(java_hash_rows(f"{name}#", rows))
        yield TailGroup(members, tails, hashes)
