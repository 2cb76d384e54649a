"""Statistics of the messages in a log: counts, bytes and rates by topic, queue, time and more.

The log is walked once, by as many processes as wanted (`store.ranges`); the sums are made by
`scan.aggregate`. Here the sums become rows: keys as texts, times in a zone, rates and shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Any

from rmqctl.errors import UsageError
from rmqctl.formats.message import host_text
from rmqctl.scan.aggregate import (
    GROUPINGS,
    MINUTE,
    OTHER,
    QUARTER_HOUR,
    Aggregate,
    Key,
    Sums,
)
from rmqctl.scan.source import FileSource
from rmqctl.store import ranges
from rmqctl.store.files import StoreFile
from rmqctl.store.objects import text
from rmqctl.store.store import Store

Row = dict[str, Any]
KEY_COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": ("topic",),
    "queue": ("topic", "queue_id"),
    "tag": ("tag",),
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
CLOCK_SKEW = 3_600_000
"""Store times of a log are believed to be in order up to this (ms), when whole files are left
out because of ``--since`` or ``--until``."""
SORTS = ("key", "messages", "bytes", "body_bytes", "average_size", "messages_per_second",
         "bytes_per_second", "first_store_timestamp", "last_store_timestamp")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Query:
    """What is counted and how: ``by`` one of `KEY_COLUMNS`; store times in ms, inclusive."""

    by: str = "topic"
    topic: str | None = None
    since: int | None = None
    until: int | None = None

    def start(self) -> Aggregate:
        raw = None if self.topic is None else self.topic.encode("utf-8", "surrogateescape")
        return Aggregate(self.by, topic=raw, since=self.since, until=self.until)


@dataclass(slots=True)
class _Part:
    first: int
    position: int
    sums: Aggregate


def collect(store: Store, query: Query, jobs: int = 1, *, range_size: int = ranges.RANGE_SIZE,
            progress: Callable[[int], None] | None = None,
            files: Iterable[StoreFile] | None = None) -> Aggregate:
    """The sums over the log (or over ``files`` of it). StoreIOError when a file fails."""
    if query.by not in GROUPINGS:
        raise UsageError(f"{query.by!r} is nothing to count by")
    total = query.start()
    chosen = choose_files(store, query) if files is None else list(files)
    if sum(one.size for one in chosen) <= range_size:
        jobs = 1  # there is nothing to share
    elif jobs > 1 and query.by in ("topic", "queue", "tag"):
        import rmqctl.scan.text  # noqa: F401  # once here, instead of in each worker process
    parts = ranges.in_order(partial(_work, query), ranges.split(chosen, range_size), jobs,
                            progress)
    for part in parts:
        total.merge(part.sums)
    return total


def _work(query: Query, part: ranges.Range) -> _Part:
    sums = query.start()
    with FileSource(part.file.path, part.file.base) as source:
        walk = ranges.walk(part, source)
        for batch in walk:
            sums.add(batch)
        end = walk.position
        if part.last and end < source.size:
            sums.bytes_zero += source.size - end
            end = source.size
    return _Part(walk.first, end, sums)


def choose_files(store: Store, query: Query, skew: int = CLOCK_SKEW) -> list[StoreFile]:
    """The log files that may hold messages of the query's time, by their first records.

    All of them when those times are not in order: then the clock cannot be relied on.
    """
    log = store.log
    if (query.since is None and query.until is None) or len(log.files) < 2:
        return log.files
    starts: list[int | None] = []
    for file in log.files:
        record = log.record_at(file.base)
        starts.append(None if record is None else record.store_timestamp)
    known = [one for one in starts if one is not None]
    if known != sorted(known):
        return log.files
    kept = []
    for number, file in enumerate(log.files):
        start = starts[number]
        after = next((one for one in starts[number + 1:] if one is not None), None)
        late = query.until is not None and start is not None and start > query.until + skew
        early = query.since is not None and after is not None and after < query.since - skew
        if not late and not early:
            kept.append(file)
    return kept


# -- rows -----------------------------------------------------------------------------------------


def rows(sums: Aggregate, tz: tzinfo = UTC, sort: str | None = None) -> list[Row]:
    """A row per group, in the order of ``sort`` (one of `SORTS`).

    By default times and sizes come by key, all else by messages, greatest first.
    """
    by = sums.by
    groups = sums.groups()
    if by in ("hour", "day"):
        groups = _local(groups, TIME_STEPS[by], tz)
    elif by == "minute":
        groups = {key if key == OTHER else key * MINUTE: one for key, one in groups.items()}
    everything = sum(one.messages for one in groups.values())
    made = [(key, {**_key(by, key), **_values(one, everything, TIME_STEPS.get(by))})
            for key, one in groups.items()]
    order = sort or ("key" if by in TIME_STEPS or by == "size" else "messages")
    made.sort(key=lambda pair: _sortable(pair[0]))
    if order != "key":
        made.sort(key=lambda pair: pair[1][order] or 0, reverse=True)
    return [row for _, row in made]


def total(sums: Aggregate) -> Row:
    """The row of all messages together."""
    found = list(sums.groups().values())
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
