"""POP check points in ``kvStore/`` (spec: rocksdb.md §7), and the entries of 5.4 in
``RocksDBMessageStore/`` (§8, from published source). Keys and values are decoded to fields. Times
are in ms.
"""

from __future__ import annotations

from typing import Any

from construct import Const, ConstructError, Int32sb, Int64sb, Struct

from rmqctl.errors import FormatError
from rmqctl.formats.rocksdb.config import name_of, object_of

POP_STATE = "popState"
INDEX, TIMER, TRANSACTION = "default", "timer", "trans"
"""The column families of ``RocksDBMessageStore/``."""

Number = Struct("value" / Int64sb)
PopTail = Struct(Const(b"@"), "queue_id" / Int32sb, Const(b"@"), "queue_offset" / Int64sb)
TimerValue = Struct("size" / Int32sb, "physical_offset" / Int64sb)
TransactionValue = Struct("check_times" / Int32sb, "size" / Int32sb)
_SEPARATOR = b"@"

Fields = dict[str, Any]


def pop_state(key: bytes, value: bytes) -> Fields:
    """Return the fields of a POP check point: a message that was popped and not yet acknowledged.

    Raises: FormatError.
    """
    tail = len(key) - PopTail.sizeof()
    middle = key[Number.sizeof():max(tail, 0)]
    group, separator, topic = middle.partition(_SEPARATOR)
    if not separator:
        raise FormatError("not the key of a POP check point", offset=0, path="key")
    return {"visible_at": _fixed(Number, key[:Number.sizeof()], "key")["value"],
            "group": name_of(group), "topic": name_of(topic),
            **_fixed(PopTail, key[tail:], "key"), **object_of(value)}


def index_entry(key: bytes, value: bytes) -> Fields:
    """Return the fields of an index entry. ``text``: topic, kind, key or tag, and unique key,
    separated by ``@``.
    """
    number = Number.sizeof()
    if len(key) < 2 * number or len(value) != number:
        return _counter(key, value)
    text = key[number:-number]
    if not (text.startswith(_SEPARATOR) and text.endswith(_SEPARATOR)):
        return _counter(key, value)
    return {"hour": _fixed(Number, key[:number], "key")["value"], "text": name_of(text),
            "physical_offset": _fixed(Number, key[-number:], "key")["value"],
            "store_timestamp": _fixed(Number, value, "value")["value"]}


def timer_entry(key: bytes, value: bytes) -> Fields:
    """Return the fields of a timer message that is not due yet, or of the timer's progress."""
    if len(value) != TimerValue.sizeof():
        return _counter(key, value)
    number = Number.sizeof()
    return {"deliver_timestamp": _fixed(Number, key[:number], "key")["value"],
            "unique_key": name_of(key[number:]), **_fixed(TimerValue, value, "value")}


def transaction_entry(key: bytes, value: bytes) -> Fields:
    """Return the fields of an undecided half message; ``text`` is its topic and unique key."""
    number = Number.sizeof()
    if key[number:number + 1] != _SEPARATOR:
        return _counter(key, value)
    return {"physical_offset": _fixed(Number, key[:number], "key")["value"],
            "text": name_of(key[number:]), **_fixed(TransactionValue, value, "value")}


def _counter(key: bytes, value: bytes) -> Fields:
    return {"counter": name_of(key), **_fixed(Number, value, "value")}


def _fixed(layout: Any, data: bytes, path: str) -> Fields:
    if len(data) != layout.sizeof():
        raise FormatError(f"has {len(data)} bytes, expected {layout.sizeof()}", offset=0, path=path)
    try:
        parsed = layout.parse(data)
    except ConstructError:
        raise FormatError("does not match what a broker writes", offset=0, path=path) from None
    return {name: value for name, value in parsed.items() if not name.startswith("_")}


READERS = {
    ("kvStore", POP_STATE): pop_state,
    ("RocksDBMessageStore", INDEX): index_entry,
    ("RocksDBMessageStore", TIMER): timer_entry,
    ("RocksDBMessageStore", TRANSACTION): transaction_entry,
}
"""For each database folder: the functions that decode the entries of its column families."""
