"""Java's String.hashCode for a string, and for columns of ASCII strings of equal length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MULTIPLIER = 31
WRAP = 1 << 32
SIGN = 1 << 31


def java_hash(text: str) -> int:
    """Return String.hashCode of UTF-16 code units as a signed 32-bit number."""
    units = np.frombuffer(text.encode("utf-16-be", "surrogatepass"), dtype=">u2")
    value = 0
    for unit in units.tolist():
        value = (MULTIPLIER * value + unit) % WRAP
    return value - WRAP if value >= SIGN else value


def java_hash_rows(prefix: str, rows: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the hash of prefix + row for every row of ASCII bytes (n, width)."""
    value = np.full(len(rows), java_hash(prefix) % WRAP, dtype=np.uint32)
    for column in rows.T:
        value *= np.uint32(MULTIPLIER)
        value += column
    return value.view(np.int32)


def index_hash(hashes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the key hash in an index: the absolute value of a hash, 0 for Integer.MIN_VALUE."""
    wide = np.abs(hashes.astype(np.int64))
    return np.where(wide == SIGN, 0, wide).astype(np.int32)


def hash_map_order(keys: list[str], capacity: int = 128) -> list[str]:
    """Return the keys in the order of a Java HashMap of this capacity (128 in a 5.x broker)."""

    def bucket(key: str) -> int:
        value = java_hash(key) % WRAP
        return (value ^ (value >> 16)) % capacity

    return sorted(keys, key=bucket)
