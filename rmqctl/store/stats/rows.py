"""Sums of messages as rows: keys as texts, times in a zone, rates and shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from rmqctl.formats.local.message import host_text
from rmqctl.scan.aggregate import Aggregate, Sums
from rmqctl.scan.groupings import MINUTE, OTHER, QUARTER_HOUR, Key
from rmqctl.store.objects import text

Row = dict[str, Any]
KEY_COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": ("topic",),
    "queue": ("topic", "queue_id"),
    "tag": ("tag",),
    "key": ("key",),
    "minute": ("time",),
    "hour": ("time",),
    "day": ("time",),
    "store-host": ("store_host",),
    "size": ("size_from", "size_to"),
    "flag": ("flag",),
    "transaction": ("transaction",),
    "compression": ("compression",),
    "none": (),
}
VALUE_COLUMNS = ("messages", "share", "bytes", "body_bytes", "average_size",
                 "messages_per_second", "bytes_per_second", "first_store_timestamp",
                 "last_store_timestamp")
TIME_STEPS = {"minute": MINUTE, "hour": 3_600_000, "day": 86_400_000}
"""Milliseconds of a row by time."""
SORTS = ("key", "messages", "bytes", "body_bytes", "average_size", "messages_per_second",
         "bytes_per_second", "first_store_timestamp", "last_store_timestamp")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows(sums: Aggregate, tz: tzinfo = UTC, sort: str | None = None) -> list[Row]:
    """A row per group, in the order of ``sort`` (one of `SORTS`).

    By default times and sizes come by key, all else by messages, greatest first; what is summed
    as `OTHER` comes last. ``share`` is of all messages; a message with several keys is in
    several groups.
    """
    return _rows([({}, sums)], sums.by, tz, sort)


def rows_of_stores(sums: Sequence[tuple[str, Aggregate]], tz: tzinfo = UTC,
                   sort: str | None = None) -> list[Row]:
    """The same for several stores, by name: a row per store and group, ``store`` first.

    ``share`` is of all messages of all stores. In the order of keys stores come first.
    """
    return _rows([({"store": name}, one) for name, one in sums], sums[0][1].by, tz, sort)


def _rows(sums: Sequence[tuple[Row, Aggregate]], by: str, tz: tzinfo,
          sort: str | None) -> list[Row]:
    everything = sum(one.total.messages for _, one in sums if one.total is not None)
    made: list[tuple[tuple[Any, ...], Row]] = []
    for lead, one in sums:
        for key, group in _groups(one, tz).items():
            row = lead | _key(by, key) | _values(group, everything, TIME_STEPS.get(by))
            made.append(((*lead.values(), *_sortable(key)), row))
    made.sort(key=lambda pair: pair[0])
    order = sort or ("key" if by in TIME_STEPS or by == "size" else "messages")
    if order != "key":
        made.sort(key=lambda pair: (not pair[0][-3], pair[1][order] or 0), reverse=True)
    return [row for _, row in made]


def _groups(sums: Aggregate, tz: tzinfo) -> dict[Key, Sums]:
    groups = sums.groups()
    if sums.by in ("hour", "day"):
        return _local(groups, TIME_STEPS[sums.by], tz)
    if sums.by == "minute":
        return {key if key == OTHER else key * MINUTE: one for key, one in groups.items()}
    return groups


def total(*sums: Aggregate) -> Row:
    """The row of all messages together."""
    found = [one.total for one in sums if one.total is not None]
    if not found:
        return dict.fromkeys(VALUE_COLUMNS) | dict.fromkeys(VALUE_COLUMNS[:4], 0)
    one = _joined(found)
    return _values(one, one.messages, None)


def _joined(found: Iterable[Sums]) -> Sums:
    columns = list(zip(*found, strict=True))
    return Sums(sum(columns[0]), sum(columns[1]), sum(columns[2]), min(columns[3]),
                max(columns[4]))


def _values(one: Sums, everything: int, span: int | None) -> Row:
    """The figures of a row; rates are over ``span`` ms, or over the group's own time."""
    seconds = (one.last - one.first if span is None else span) / 1000
    rates = (None, None) if seconds <= 0 else (one.messages / seconds, one.bytes / seconds)
    return {
        "messages": one.messages,
        "share": round(one.messages / everything, 6) if everything else 0,
        "bytes": one.bytes,
        "body_bytes": one.body_bytes,
        "average_size": round(one.bytes / one.messages, 1) if one.messages else 0,
        "messages_per_second": None if rates[0] is None else round(rates[0], 3),
        "bytes_per_second": None if rates[1] is None else round(rates[1], 3),
        "first_store_timestamp": one.first,
        "last_store_timestamp": one.last,
    }


def _key(by: str, key: Key) -> Row:
    columns = KEY_COLUMNS[by]
    if key == OTHER:
        return dict.fromkeys(columns) | ({columns[0]: OTHER} if columns else {})
    if by == "queue":
        topic, queue_id = key
        return {"topic": text(topic) if isinstance(topic, bytes) else topic, "queue_id": queue_id}
    if by == "size":
        return {"size_from": 1 << key, "size_to": (2 << key) - 1}
    if by == "store-host":
        return {"store_host": host_text(key[:-4], int.from_bytes(key[-4:], "big", signed=True))}
    if not columns:
        return {}
    return {columns[0]: text(key) if isinstance(key, bytes) else key}


def _sortable(key: Key) -> tuple[bool, bool, Any]:
    """Keys of one kind in their order, then no key, then what was left over."""
    if key == OTHER or key is None:
        return key == OTHER, True, 0
    if isinstance(key, tuple):
        return False, False, tuple((isinstance(one, str), one) for one in key)
    return False, False, key


def _local(groups: dict[Key, Sums], step: int, tz: tzinfo) -> dict[Key, Sums]:
    """Quarters of an hour (counted from the epoch) joined to hours or days of a zone (ms)."""
    found: dict[Key, list[Sums]] = {}
    for key, one in groups.items():
        start = key if key == OTHER else _start_of(key * QUARTER_HOUR, step, tz)
        found.setdefault(start, []).append(one)
    return {key: _joined(some) for key, some in found.items()}


def _start_of(moment: int, step: int, tz: tzinfo) -> int:
    """The start (epoch ms) of the hour or day of ``tz`` in which a moment lies."""
    try:
        local = (_EPOCH + timedelta(milliseconds=moment)).astimezone(tz)
        if step == TIME_STEPS["day"]:
            start = local.replace(hour=0, minute=0)
        else:
            start = local.replace(minute=0)
        return (start - _EPOCH) // timedelta(milliseconds=1)
    except (OverflowError, ValueError):  # damage makes times outside the calendar
        return moment // step * step
