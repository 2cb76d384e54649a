"""Configuration in RocksDB: keys and values of both forms (spec: rocksdb.md §7).

v1 (5.1.4+) has one database for topics, one for groups and one for offsets. Keys are names, and
values are JSON. v2 (5.3.2+) has a single database, with a table number in each key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from construct import (
    Const,
    ConstructError,
    Int8ub,
    Int16ub,
    Int32sb,
    Int64sb,
    PascalString,
    Struct,
)

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.config import config_json
from rmqctl.formats.fixed import Fixed

# -- v1: names and JSON ---------------------------------------------------------------------------

DEFAULT, VERSIONS, FORBIDDEN = "default", "kvDataVersion", "forbidden"
"""The column families of a v1 database."""
VERSION_KEY = b"kvDataVersionKey"


def name_of(key: bytes) -> str:
    """Return the name that a v1 key contains: a topic, a group, or ``topic@group``.

    Raises: FormatError.
    """
    return _text(key, "key")


def object_of(value: bytes) -> dict[str, Any]:
    """Return the JSON object in a value, as fastjson writes it.

    Raises: FormatError with the position in the value.
    """
    parsed = config_json.parse(value)
    if not isinstance(parsed.value, dict):
        raise FormatError("not a JSON object", offset=0, path="value")
    return parsed.value


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError("not UTF-8", offset=error.start, path=path) from None


# -- v2: tables and records -----------------------------------------------------------------------

KEY_VERSION = 1
OFFSETS, PULL_OFFSETS, TOPICS, GROUPS = 1, 2, 3, 4
"""Table numbers in v2 keys."""
TABLES = {OFFSETS: "consumer offset", PULL_OFFSETS: "pull offset", TOPICS: "topic",
          GROUPS: "group"}
DATA_VERSION, DATA = 1, 2
"""Record kinds in v2 keys."""
JSON = 1
"""Number of the JSON format, the first byte of the value of a topic or group."""
DATA_VERSION_NAME = b"data_version"

KeyHead = Struct(
    "version" / Int8ub,
    "table" / Int16ub,
    "record" / Int8ub,
)
_Name = PascalString(Int16ub, "utf-8")
OffsetKey = Struct(
    "group" / _Name,
    Const(1, Int8ub),
    "topic" / _Name,
    Const(1, Int8ub),
    "queue_id" / Int32sb,
)
NameKey = Struct("name" / _Name)
Version = Struct(
    "state_version" / Int64sb,
    "timestamp" / Int64sb,
    "counter" / Int64sb,
)
Offset = Struct("offset" / Int64sb)


class VersionRecord(NamedTuple):
    """A data version; ``timestamp`` in ms."""

    state_version: int
    timestamp: int
    counter: int

    def as_json(self) -> dict[str, int]:
        """Return the data version in the form that a JSON configuration file has."""
        return {"counter": self.counter, "stateVersion": self.state_version,
                "timestamp": self.timestamp}


class OffsetRecord(NamedTuple):
    """The next queue offset that a group reads."""

    offset: int


VERSION = Fixed(Version, VersionRecord)
OFFSET = Fixed(Offset, OffsetRecord)
HEAD = KeyHead.sizeof()
_HEAD = layout.reader(KeyHead)
_LENGTH = layout.reader(Struct("length" / Int16ub))
_QUEUE = layout.reader(Struct("mark" / Int8ub, "queue_id" / Int32sb))


class Key(NamedTuple):
    """A v2 key. The key of a data version has only the table. The key of an offset has ``group``,
    ``topic`` and ``queue_id``. All other keys have ``name``, a topic or group.
    """

    table: int
    record: int
    name: str | None = None
    group: str | None = None
    topic: str | None = None
    queue_id: int | None = None


def table_start(table: int) -> bytes:
    """Return the common prefix of all keys of a table. The range of the table's keys ends at the
    prefix of the next table.
    """
    start: bytes = KeyHead.build({"version": KEY_VERSION, "table": table, "record": 0})
    return start[:-1]


def parse_key(key: bytes) -> Key:
    """Return the key that the bytes represent.

    Raises: FormatError for a key that no broker writes.
    """
    if len(key) < HEAD:
        raise FormatError(f"has {len(key)} bytes, too few for a key", offset=0, path="key")
    version, table, record = _HEAD.unpack_from(key)
    if version != KEY_VERSION or table not in TABLES or record not in (DATA_VERSION, DATA):
        raise FormatError(f"unknown key: version {version}, table {table}, record "
                          f"{record}", offset=0, path="key")
    if record == DATA_VERSION:
        if key[HEAD:] != DATA_VERSION_NAME:
            raise FormatError("a data version with another name", offset=HEAD, path="key")
        return Key(table, record)
    first, position = _name_at(key, HEAD)
    if table in (TOPICS, GROUPS):
        if position != len(key):
            raise FormatError("bytes follow the name", offset=position, path="key")
        return Key(table, record, first)
    marks = key[position:position + 1]
    topic, position = _name_at(key, position + 1)
    marks += key[position:position + 1]
    if marks != bytes([1, 1]) or len(key) != position + _QUEUE.size:
        raise FormatError("not the key of an offset", offset=position, path="key")
    return Key(table, record, None, first, topic, _QUEUE.unpack_from(key, position)[1])


def _name_at(key: bytes, position: int) -> tuple[str, int]:
    """Return (a name that is stored after its length, the position after the name)."""
    if position + _LENGTH.size > len(key):
        raise FormatError("ends before the name", offset=len(key), path="key")
    start = position + _LENGTH.size
    end = start + _LENGTH.unpack_from(key, position)[0]
    if end > len(key):
        raise FormatError("ends in the middle of the name", offset=len(key), path="key")
    return _text(key[start:end], "key"), end


def build_key(key: Key) -> bytes:
    """Return the bytes of a key.

    Raises: FormatError for a name that is too long.
    """
    head: bytes = KeyHead.build({"version": KEY_VERSION, "table": key.table, "record": key.record})
    if key.record == DATA_VERSION:
        return head + DATA_VERSION_NAME
    shape, values = (NameKey, {"name": key.name}) if key.name is not None else (
        OffsetKey, {"group": key.group, "topic": key.topic, "queue_id": key.queue_id})
    try:
        rest: bytes = shape.build(values)
    except ConstructError:
        raise FormatError("does not fit into a key", path=str(key.name or key.topic)) from None
    return head + rest


def parse_value(key: Key, value: bytes) -> dict[str, Any] | VersionRecord | int:
    """Return the decoded value of a key: the object of a topic or group, a data version, or an
    offset.
    """
    if key.record == DATA_VERSION:
        return VERSION.decode(_exactly(value, VERSION.size))
    if key.name is None:
        return OFFSET.decode(_exactly(value, OFFSET.size)).offset
    if value[:1] != bytes([JSON]):
        raise FormatError("not JSON, the only format that rmqctl reads", offset=0, path="value")
    return object_of(value[1:])


def build_value(value: bytes | VersionRecord | int) -> bytes:
    """Return the bytes stored for a value; bytes must be the JSON text of a topic or group."""
    if isinstance(value, VersionRecord):
        return VERSION.build(value)
    if isinstance(value, int):
        return OFFSET.build(OffsetRecord(value))
    return bytes([JSON]) + value


def _exactly(value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise FormatError(f"has {len(value)} bytes, expected {size}", offset=min(len(value), size),
                          path="value")
    return value
