"""Java's ``String.hashCode`` and the two numbers that RocketMQ derives from it.

The hash is computed over UTF-16 code units. A character outside the basic plane counts as its two
surrogates. Spec: consumequeue.md §3 (tagsCode), index.md §5 (key hash).
"""

from __future__ import annotations


def string_hash(text: str) -> int:
    """Return ``String.hashCode`` as a signed 32-bit integer."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        for i in range(0, len(raw), 2):
            value = (31 * value + (raw[i] << 8 | raw[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def tags_code(tags: str | None) -> int:
    """Return the tagsCode of a TAGS property: 0 if it is missing or empty, else the hash."""
    return string_hash(tags) if tags else 0


def index_hash(key: str) -> int:
    """Return the nonnegative key hash in an index entry: ``abs(hash)``, 0 for MIN_VALUE."""
    value = abs(string_hash(key))
    return 0 if value == 1 << 31 else value
