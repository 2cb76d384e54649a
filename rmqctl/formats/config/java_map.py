"""The iteration order of a Java ``HashMap<String, String>`` (spec: commitlog.md §5.1).

A broker that rebuilds a properties string writes the pairs in this order, so the order affects the
stored bytes.

* A bucket is ``(h ^ h >>> 16) & (capacity - 1)`` with ``h = String.hashCode``.
* The table doubles when it is more than three quarters full.
* A bucket keeps the insertion order.
* Overwriting keeps a key's position; removing keeps the capacity.

Not modelled: a bucket of nine and more keys in a table of 64 and more buckets becomes a tree. This
can happen only with deliberately colliding keys.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable
from functools import lru_cache

from rmqctl.formats.local import properties
from rmqctl.formats.local.javahash import string_hash

_LONG_BUCKET = 8
_TREE_CAPACITY = 64
_CACHED = 1024
_CACHED_KEYS = 64
_CACHED_TEXT = 128
"""Maximum length of a cached key in characters. (Senders may choose keys of any length.)"""


def _spread_of(key: str) -> int:
    value = string_hash(key) & 0xFFFFFFFF
    return value ^ value >> 16


_spread_cached = lru_cache(maxsize=4 * _CACHED)(_spread_of)


def _spread(key: str) -> int:
    return (_spread_cached if len(key) <= _CACHED_TEXT else _spread_of)(key)


def grown(capacity: int, earlier: Iterable[str], size: int, key: str) -> int:
    """Return the capacity of a table after ``key`` is added.

    ``capacity``: the capacity before. ``earlier``: the ``size`` keys that the table already has.
    """
    if size >= _LONG_BUCKET and capacity < _TREE_CAPACITY:
        mask = capacity - 1
        bucket = _spread(key) & mask
        if sum(_spread(other) & mask == bucket for other in earlier) >= _LONG_BUCKET:
            capacity *= 2
    return capacity * 2 if 4 * (size + 1) > 3 * capacity else capacity


def _sorted(keys: tuple[str, ...], capacity: int) -> tuple[int, ...]:
    """Return the indexes of ``keys`` by bucket, in a table with its final capacity."""
    mask = capacity - 1
    return tuple(sorted(range(len(keys)), key=lambda number: _spread(keys[number]) & mask))


def _ordered(keys: tuple[str, ...], capacity: int) -> tuple[int, ...]:
    for size, key in enumerate(keys):
        capacity = grown(capacity, keys[:size], size, key)
    return _sorted(keys, capacity)


_ordered_cached = lru_cache(maxsize=_CACHED)(_ordered)
_sorted_cached = lru_cache(maxsize=_CACHED)(_sorted)


def ordered(keys: tuple[str, ...], capacity: int) -> tuple[int, ...]:
    """Return the indexes of ``keys`` (distinct, in insertion order) in iteration order.

    ``capacity`` is the initial capacity of the table, a power of two. The result is cached, because
    messages of one kind have the same keys.
    """
    return (_ordered_cached if _is_kept(keys) else _ordered)(keys, capacity)


def _is_kept(keys: tuple[str, ...]) -> bool:
    return len(keys) <= _CACHED_KEYS and len("".join(keys)) <= _CACHED_KEYS * _CACHED_TEXT


class JavaMap:
    """A small ``HashMap<String, String>`` with a given initial capacity (a power of two)."""

    __slots__ = ("_entries", "capacity")

    def __init__(self, capacity: int = 16) -> None:
        if capacity < 1 or capacity & capacity - 1:
            raise ValueError(f"the capacity of a Java map must be a power of two, not {capacity}")
        self.capacity = capacity
        self._entries: dict[str, str] = {}

    @classmethod
    def from_properties(cls, raw: str, capacity: int) -> JavaMap:
        """Return the map that a 4.9.1+ / 5.x broker creates from a properties string."""
        java_map = cls(capacity)
        for key, value in properties.parse(raw).items():
            java_map.put(key, value)
        return java_map

    def put(self, key: str, value: str) -> None:
        if key not in self._entries:
            self.capacity = grown(self.capacity, self._entries, len(self._entries), key)
        self._entries[key] = value

    def remove(self, key: str) -> str | None:
        """Remove a key and return its value; None if the key does not exist."""
        return self._entries.pop(key, None)

    def get(self, key: str) -> str | None:
        return self._entries.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> ItemsView[str, str]:
        """Return the pairs in iteration order."""
        keys = tuple(self._entries)
        sort = _sorted_cached if _is_kept(keys) else _sorted
        return {keys[number]: self._entries[keys[number]]
                for number in sort(keys, self.capacity)}.items()

    def text(self, *, trailing: bool) -> str:
        """Return the properties string of the map. ``trailing``: whether it ends with 0x02."""
        return properties.build(dict(self.items()), trailing=trailing)
