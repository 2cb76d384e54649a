"""Partitions of exported messages by topic, day and store, and the names of their folders.

The names are Hive's (``topic=orders/day=2023-11-14``). The names are escaped as in Hive and Spark,
so that Spark and Arrow can read the values. A value that is too long for a name is shortened and
marked.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo

import numpy as np

from rmqctl.scan import text
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.groupings import QUARTER_HOUR

PARTS = ("topic", "day", "store")
"""The possible partitions of an export; ``day`` is the day of the store time."""
NOTHING = "__HIVE_DEFAULT_PARTITION__"
"""Hive's folder name for a value that is null or empty."""
MAX_NAME_BYTES = 255
"""Maximum length of a file name in bytes; nearly every file system accepts this length."""

Value = str | None
Values = tuple[Value, ...]

_ESCAPED = frozenset([*map(chr, range(0x20)), *'"#%\'*/:=?\\\x7f{[]^'])
_DAY = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
_NO_DAY = _FIRST - 1
"""The day number of all times outside of the calendar, which damage can cause."""
_DAYS = 1 << 23
_MARK = 16


def escape(value: str) -> str:
    """Return a value for use in a path, escaped as Hive and Spark escape it."""
    return "".join(f"%{ord(byte):02X}" if byte in _ESCAPED else byte for byte in value)


def folder(name: str, value: Value) -> str:
    """Return ``name=value``. A value for which `is_cut` is true is shortened if necessary, and ends
    with ``~`` and its digest.
    """
    if not value:
        return f"{name}={NOTHING}"
    if not is_cut(name, value):
        return f"{name}={escape(value)}"
    mark = "~" + hashlib.sha256(value.encode()).hexdigest()[:_MARK]
    room = MAX_NAME_BYTES - len(name) - 1 - len(mark)
    parts, used = [], 0
    for char in value:
        text = escape(char)
        used += len(text.encode())
        if used > room:
            break
        parts.append(text)
    return f"{name}={''.join(parts)}{mark}"


def is_cut(name: str, value: str) -> bool:
    """Return whether a folder name cannot contain the value: the value is too long, or is the same
    as Hive's name for a missing value.
    """
    return value == NOTHING or len(f"{name}={escape(value)}".encode()) > MAX_NAME_BYTES


def path(names: Sequence[str], values: Values) -> str:
    """Return the folder of a partition, relative to the export; "" without partitions."""
    return "/".join(map(folder, names, values))


def bucket(names: Sequence[str], values: Values, count: int) -> int:
    """Return the index of a partition's bucket among ``count`` buckets. The index is the same on
    every machine.
    """
    return zlib.crc32(path(names, values).encode("utf-8", "surrogatepass")) % count


def days(times: Array, zone: tzinfo) -> Array:
    """Return the day of each time (epoch ms) in a time zone, counted from 1970-01-01. The day is
    `_NO_DAY` outside of the calendar.
    """
    if zone is UTC:
        day_numbers = times // _DAY
        return np.where((day_numbers < _FIRST) | (day_numbers > _LAST), _NO_DAY, day_numbers)
    # The offset of a zone from UTC is a multiple of a quarter of an hour.
    slots, place = np.unique(times // QUARTER_HOUR, return_inverse=True)
    day_of_slot: Array = np.array(
        [_day(slot * QUARTER_HOUR, zone) for slot in slots.tolist()], np.int64)
    return day_of_slot[place]


def _day(moment: int, zone: tzinfo) -> int:
    try:
        local = (_EPOCH + timedelta(milliseconds=moment)).astimezone(zone)
    except (OverflowError, ValueError):
        return _NO_DAY
    return local.toordinal() - date(1970, 1, 1).toordinal()


class Partitions:
    """Assigns numbers, starting at 0, to the partitions of a store. ``values``: the values of each
    partition, in order of number.
    """

    def __init__(self, names: Sequence[str], store: str, zone: tzinfo) -> None:
        self.names, self.values = tuple(names), list[Values]()
        self._store, self._zone = store, zone
        self._topics = text.Dictionary()
        self._numbers: dict[int, int] = {}
        self._by_values: dict[Values, int] = {}

    def codes(self, batch: Batch) -> Array:
        """Return, for each message, the number that identifies its partition (int64)."""
        key: Array = np.zeros(len(batch), np.int64)
        if not len(batch):
            return key
        if "topic" in self.names:
            key += self._topics.encode(text.topics(batch)) * _DAYS
        if "day" in self.names:
            key += days(batch.column("store_timestamp"), self._zone) - _NO_DAY
        first = int(key[0])
        if (key == first).all():
            return np.full(len(key), self._number(first), np.int64)
        distinct, place = np.unique(key, return_inverse=True)
        return np.array([self._number(day) for day in distinct.tolist()], np.int64)[place]

    def _number(self, key: int) -> int:
        number = self._numbers.get(key)
        if number is None:
            values = tuple(self._value(name, key) for name in self.names)
            # Topics with different bytes may have the same text.
            number = self._by_values.setdefault(values, len(self.values))
            if number == len(self.values):
                self.values.append(values)
            self._numbers[key] = number
        return number

    def _value(self, name: str, key: int) -> Value:
        if name == "store":
            return self._store
        if name == "topic":
            return self._topics.texts[key // _DAYS].decode("utf-8", "replace")
        day = key % _DAYS + _NO_DAY
        if day == _NO_DAY:
            return None
        return date.fromordinal(day + date(1970, 1, 1).toordinal()).isoformat()
