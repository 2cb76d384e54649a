"""The iteration order of a Java ``ConcurrentHashMap`` (OpenJDK 8 to 17), which tiered storage uses.

This map differs from a ``HashMap`` (`java_map`) in three ways:

* The table doubles as soon as it is three quarters full. A ``HashMap`` doubles its table later,
  when it is more than three quarters full.
* Doubling reverses the order of some keys of a bucket.
* A copy of another map has a larger table than its entries require.

Not modelled: a bucket of nine or more keys in a table of 64 or more buckets becomes a tree. This
can happen only with deliberately colliding keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

from rmqctl.formats.local.javahash import string_hash

K = TypeVar("K", str, int)
V = TypeVar("V")

_DEFAULT = 16
_LONG_BUCKET = 8
_TREE_CAPACITY = 64
_Node = tuple[int, int]
"""A node in a bucket: (spread hash, index of the key)."""


def sized(initial: int) -> int:
    """Return the capacity of a new map with a requested initial capacity."""
    return _power(initial + (initial >> 1) + 1)


def copied(count: int) -> int:
    """Return the capacity of a map created as the copy of a map with ``count`` keys."""
    wanted, capacity = sized(count), _DEFAULT
    capacity = max(capacity, wanted)
    while wanted > capacity - (capacity >> 2):
        capacity *= 2
    return capacity


def ordered(table: Mapping[K, V], capacity: int = _DEFAULT) -> list[tuple[K, V]]:
    """Return a mapping's items in Java's iteration order. The mapping is in insertion order.

    ``capacity`` is the initial capacity of the table, a power of two.
    """
    keys = tuple(table)
    return [(keys[number], table[keys[number]]) for number in _order(keys, capacity)]


def _power(least: int) -> int:
    return 1 << (least - 1).bit_length() if least > 1 else 1


def _spread(key: str | int) -> int:
    if isinstance(key, str):
        value = string_hash(key) & 0xFFFFFFFF
    else:
        bits = key & (1 << 64) - 1
        value = (bits ^ bits >> 32) & 0xFFFFFFFF
    return (value ^ value >> 16) & 0x7FFFFFFF


@lru_cache(4096)  # maps with the same keys are iterated over again and again
def _order(keys: tuple[str | int, ...], capacity: int) -> list[int]:
    if len(keys) == 1:
        return [0]
    buckets: dict[int, list[_Node]] = {}
    for number, key in enumerate(keys):
        value = _spread(key)
        bucket = buckets.setdefault(value & (capacity - 1), [])
        bucket.append((value, number))
        if len(bucket) > _LONG_BUCKET and capacity < _TREE_CAPACITY:
            wanted = sized(2 * capacity)
            while wanted > capacity - (capacity >> 2):
                buckets, capacity = _doubled(buckets, capacity), 2 * capacity
        while number + 1 >= capacity - (capacity >> 2):
            buckets, capacity = _doubled(buckets, capacity), 2 * capacity
    return [number for bucket in sorted(buckets) for _, number in buckets[bucket]]


def _doubled(buckets: dict[int, list[_Node]], capacity: int) -> dict[int, list[_Node]]:
    """Return the buckets of the table after its size is doubled.

    At the end of a bucket, nodes that all move to the same new bucket keep their order. Each
    earlier node is inserted at the start of its new bucket.
    """
    doubled: dict[int, list[_Node]] = {}
    for bucket, nodes in buckets.items():
        last = len(nodes) - 1
        while last and nodes[last - 1][0] & capacity == nodes[last][0] & capacity:
            last -= 1
        halves: tuple[list[_Node], list[_Node]] = ([], [])
        halves[bool(nodes[last][0] & capacity)].extend(nodes[last:])
        for node in nodes[:last]:
            halves[bool(node[0] & capacity)].insert(0, node)
        doubled.update((place, half)
                       for half, place in zip(halves, (bucket, bucket + capacity), strict=True)
                       if half)
    return doubled
