"""Keys and values of consume queues in RocksDB (spec: rocksdb.md §2, §3).

The column family `ROWS` has an entry for each message of a queue. The column family `OFFSETS` has
the last entry of each queue, and the first entry if it was ever requested. It also has the offset
up to which the log was dispatched.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from construct import Int32sb, Int64sb, Struct

from rmqctl.formats.fixed import Fixed

ROWS, OFFSETS = "default", "offset"
"""Names of the column families."""
MAX, MIN = b"max", b"min"
"""The kinds of entries of `OFFSETS`: the last entry of a queue, and the first."""
CHECKPOINT_TOPIC = b"CHECKPOINT_TOPIC"
"""Topic in the key (queue 0, `MAX`) of the checkpoint. The value has 8 bytes: the end of the last
record of the last batch.
"""
MAX_KEY = 300
"""Maximum size in bytes of a key that a broker creates."""
_MAX_TOPIC = MAX_KEY - 19
"""Maximum length in bytes of a topic whose keys are not larger than `MAX_KEY`."""

Row = Struct(
    "physical_offset" / Int64sb,
    "size" / Int32sb,
    "tags_code" / Int64sb,
    "store_timestamp" / Int64sb,
)
Position = Struct(
    "physical_offset" / Int64sb,
    "queue_offset" / Int64sb,
)


class RowRecord(NamedTuple):
    """An entry: a unit as in consume queue files, plus the store time (ms) of its message."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int


class PositionRecord(NamedTuple):
    """The first or the last entry of a queue."""

    physical_offset: int
    queue_offset: int


ROW = Fixed(Row, RowRecord)
POSITION = Fixed(Position, PositionRecord)
_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")
_SEPARATOR, _BEHIND = b"\1", b"\2"


def queue_prefix(topic: bytes, queue_id: int) -> bytes:
    """Return the prefix of the keys of all entries of a queue: 11 bytes and the topic."""
    return (_INT.pack(len(topic)) + _SEPARATOR + topic + _SEPARATOR + _INT.pack(queue_id)
            + _SEPARATOR)


def row_key(topic: bytes, queue_id: int, queue_offset: int) -> bytes:
    """Return the key of one entry."""
    return queue_prefix(topic, queue_id) + _LONG.pack(queue_offset)


def behind_queue(topic: bytes, queue_id: int) -> bytes:
    """Return a key that sorts after all entries of a queue and before those of the next queue."""
    return queue_prefix(topic, queue_id)[:-1] + _BEHIND


def parse_row_key(key: bytes) -> tuple[bytes, int, int] | None:
    """Return (topic, queue id, queue offset); None for a key of any other form."""
    length = len(key) - 19
    if not 0 <= length <= _MAX_TOPIC or _INT.unpack_from(key)[0] != length or not (
            key[4] == key[5 + length] == key[10 + length] == _SEPARATOR[0]):
        return None
    return (key[5:5 + length], _INT.unpack_from(key, 6 + length)[0],
            _LONG.unpack_from(key, 11 + length)[0])


def offset_key(topic: bytes, queue_id: int, which: bytes) -> bytes:
    """Return the key of an entry of `OFFSETS`; ``which`` is `MAX` or `MIN`."""
    return (_INT.pack(len(topic)) + _SEPARATOR + topic + _SEPARATOR + which + _SEPARATOR
            + _INT.pack(queue_id))


def parse_offset_key(key: bytes) -> tuple[bytes, bytes, int] | None:
    """Return (topic, `MAX` or `MIN`, queue id); None for a key of any other form."""
    length = len(key) - 14
    if not 0 <= length <= _MAX_TOPIC or _INT.unpack_from(key)[0] != length or not (
            key[4] == key[5 + length] == key[9 + length] == _SEPARATOR[0]):
        return None
    which = key[6 + length:9 + length]
    if which not in (MAX, MIN):
        return None
    return key[5:5 + length], which, _INT.unpack_from(key, 10 + length)[0]


CHECKPOINT_KEY = offset_key(CHECKPOINT_TOPIC, 0, MAX)


def parse_checkpoint(value: bytes) -> int | None:
    """Return the physical offset in the value of the checkpoint; None if the value has another
    length.
    """
    number: int | None = _LONG.unpack(value)[0] if len(value) == _LONG.size else None
    return number


def build_checkpoint(physical_offset: int) -> bytes:
    """Return the value for `CHECKPOINT_KEY`."""
    return _LONG.pack(physical_offset)
