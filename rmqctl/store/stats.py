"""Statistics of the messages in logs: counts, bytes and rates by topic, queue, key, time and other
fields.

A log is scanned once, by several threads or by a pool (`store.log.ranges`). `scan.aggregate`
computes the sums, and this module turns them into rows. A log with too many groups is scanned
twice: first to find the largest groups, then to count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Any

from rmqctl.errors import UsageError
from rmqctl.formats.local.message import host_text
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.aggregate import Aggregate, Sums
from rmqctl.scan.groupings import GROUPINGS, MINUTE, OTHER, QUARTER_HOUR, Key
from rmqctl.scan.malloc_tuning import keep_freed_memory
from rmqctl.scan.tolerant import UnreadRange
from rmqctl.store.files import StoreFile
from rmqctl.store.log import ranges
from rmqctl.store.log.end import used_size
from rmqctl.store.objects import text
from rmqctl.store.store import Store

CLOCK_SKEW = 3_600_000
"""Maximum milliseconds by which the store times in a log are assumed to be out of order.

``--since`` and ``--until`` are extended by this number when the files to read are chosen.
"""
MAX_RANGE = 1 << 30
_TASKS_PER_JOB = 4
Progress = Callable[[int], None]
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
"""For each grouping by time: the milliseconds that a row covers."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of a count: ``by`` is one of `GROUPINGS`; ``since`` and ``until`` are store
    times in ms, inclusive.
    """

    by: str = "topic"
    topic: str | None = None
    since: int | None = None
    until: int | None = None

    def start(self, only: Sequence[Key] | None = None) -> Aggregate:
        raw = None if self.topic is None else self.topic.encode("utf-8", "surrogateescape")
        return Aggregate(self.by, topic=raw, since=self.since, until=self.until, only=only)


@dataclass(slots=True)
class _RangeSums:
    first: int
    position: int
    sums: Aggregate


def collect(store: Store, query: Query, jobs: int = 1, *, range_size: int = ranges.RANGE_SIZE,
            progress: Progress | None = None, files: Iterable[StoreFile] | None = None,
            pool: ranges.Pool | None = None, again: Progress | None = None) -> Aggregate:
    """Return the sums over the log, or over ``files`` of the log. Unreadable parts of files are
    omitted, but counted (`Aggregate.unread`).

    ``pool``: does the work instead of ``jobs`` threads.
    ``again``: called with the number of bytes before the log is read a second time.

    The result does not depend on ``pool``, ``jobs`` or ``range_size``.

    Raises: StoreIOError for a file that cannot be opened.
    """
    chosen = choose_files(store, query) if files is None else list(files)
    return collect_many([chosen], query, jobs, range_size=range_size, progress=progress,
                        pool=pool, again=again)[0]


def collect_many(logs: Sequence[Sequence[StoreFile]], query: Query, jobs: int = 1, *,
                 range_size: int = ranges.RANGE_SIZE, progress: Progress | None = None,
                 pool: ranges.Pool | None = None, again: Progress | None = None,
                 together: bool = False) -> list[Aggregate]:
    """Return the sums over each of several logs, like `collect`. A log is a list of files (see
    `choose_files`).

    ``together``: return one sum over all logs. The ranges of all logs are then one list of tasks
    for the pool.
    """
    if query.by not in GROUPINGS:
        raise UsageError(f"cannot group by {query.by!r}")
    if together:
        logs = [[file for log in logs for file in log]]
    if sum(file.size for log in logs for file in log) <= range_size:
        jobs = 1  # there is only one range

    def sums(some: Sequence[Sequence[StoreFile]], only: Sequence[Key] | None) -> list[Aggregate]:
        return _sums(some, query, only, jobs, range_size, progress, pool)

    aggregates = sums(logs, None)
    for number, aggregate in enumerate(aggregates):
        if aggregate.is_full:
            if again is not None:
                again(sum(file.size for file in logs[number]))
            aggregates[number] = sums([logs[number]], aggregate.candidates)[0]
    return aggregates


def _sums(logs: Sequence[Sequence[StoreFile]], query: Query, only: Sequence[Key] | None,
          jobs: int, range_size: int, progress: Progress | None,
          pool: ranges.Pool | None) -> list[Aggregate]:
    totals = [query.start(only) for _ in logs]
    log_of: list[int] = []

    def tasks() -> Iterator[ranges.FileRange[StoreFile]]:
        for number, files in enumerate(logs):
            for part in ranges.split(files, range_size):
                log_of.append(number)
                yield part

    work = partial(_work, query, only)
    for number, (_, part) in enumerate(ranges.in_order(work, tasks(), jobs, progress, pool)):
        totals[log_of[number]].merge(part.sums)
    return totals


def _work(query: Query, only: Sequence[Key] | None,
          part: ranges.FileRange[StoreFile]) -> _RangeSums:
    keep_freed_memory()
    sums = query.start(only)
    with part.file.open() as source:
        walk = part.walk(source, no_stale=True)
        for batch in walk:
            if isinstance(batch, UnreadRange):
                sums.miss(batch.end - batch.start, batch.reason)
            else:
                sums.add(batch)
        end = walk.position
        if part.until > part.end and end < source.size:
            sums.bytes_zero += source.size - end
            end = source.size
    sums.pack()
    return _RangeSums(walk.first, end, sums)


def range_size_for(logs: Iterable[Iterable[StoreFile]], jobs: int,
                   partitions: int | None = None) -> int:
    """Return the length in bytes of the ranges for a pool of ``jobs``. Each job gets a few tasks
    that are neither tiny nor huge.

    ``partitions``: the approximate number of ranges; if given, it replaces ``jobs``. No range spans
    two files.
    """
    total = sum(file.size for files in logs for file in files)
    if partitions is not None:
        return max(1, -(-total // partitions))
    return min(max(-(-total // (_TASKS_PER_JOB * jobs)), ranges.RANGE_SIZE), MAX_RANGE)


def choose_files(store: Store, query: Query, skew: int = CLOCK_SKEW) -> list[StoreFile]:
    """Return the log files whose messages may be in the query's time range, judged by the store
    times of their first records.

    If these times are not ascending, the clock is unreliable and all files are returned.
    """
    log = store.log
    if (query.since is None and query.until is None) or len(log.files) < 2:
        return log.files
    starts: list[int | None] = []
    for file in log.files:
        record = log.record_at(file.base)
        starts.append(None if record is None else record.store_timestamp)
    readable = [start for start in starts if start is not None]
    if readable != sorted(readable):
        return log.files
    chosen = []
    for number, file in enumerate(log.files):
        start = starts[number]
        after = next((start for start in starts[number + 1:] if start is not None), None)
        late = query.until is not None and start is not None and start > query.until + skew
        early = query.since is not None and after is not None and after < query.since - skew
        if not late and not early:
            chosen.append(file)
    return chosen


def unused(files: Sequence[StoreFile]) -> int:
    """Return the number of unused bytes at the end of a log: zeros that no message follows.

    Raises: StoreIOError.
    """
    count = 0
    for file in reversed(files):
        with file.open() as source:
            used = used_size(source)
        count += file.size - used
        if used:
            break
    return count


def rows(sums: Aggregate, tz: tzinfo = UTC, sort: str | None = None) -> list[Row]:
    """Return a row for each group, in the order of the column ``sort``; the group `OTHER` is last.

    By default, groups of times and sizes are sorted by key, other groups by the number of messages,
    largest first. ``share`` is relative to all messages. A message with several keys belongs to
    several groups.
    """
    return _rows([({}, sums)], sums.by, tz, sort)


def rows_of_stores(sums: Sequence[tuple[str, Aggregate]], tz: tzinfo = UTC,
                   sort: str | None = None) -> list[Row]:
    """Return the rows of several stores, one row for each store and group. The first column,
    ``store``, is the store's name.

    ``share`` is relative to all messages of all stores. With ``sort`` "key", rows are sorted by
    store and then by key.
    """
    return _rows([({"store": name}, aggregate) for name, aggregate in sums], sums[0][1].by, tz,
                 sort)


def _rows(sums: Sequence[tuple[Row, Aggregate]], by: str, tz: tzinfo,
          sort: str | None) -> list[Row]:
    everything = sum(aggregate.total.messages
                     for _, aggregate in sums if aggregate.total is not None)
    keyed: list[tuple[tuple[Any, ...], Row]] = []
    for lead, aggregate in sums:
        for key, group in _groups(aggregate, tz).items():
            row = lead | _key(by, key) | _values(group, everything, TIME_STEPS.get(by))
            keyed.append(((*lead.values(), *_sortable(key)), row))
    keyed.sort(key=lambda pair: pair[0])
    order = sort or ("key" if by in TIME_STEPS or by == "size" else "messages")
    if order != "key":
        keyed.sort(key=lambda pair: (not pair[0][-3], pair[1][order] or 0), reverse=True)
    return [row for _, row in keyed]


def _groups(sums: Aggregate, tz: tzinfo) -> dict[Key, Sums]:
    groups = sums.groups()
    if sums.by in ("hour", "day"):
        return _local(groups, TIME_STEPS[sums.by], tz)
    if sums.by == "minute":
        return {key if key == OTHER else key * MINUTE: group for key, group in groups.items()}
    return groups


def total(*sums: Aggregate) -> Row:
    """Return a row with the totals for all messages."""
    totals = [aggregate.total for aggregate in sums if aggregate.total is not None]
    if not totals:
        return dict.fromkeys(VALUE_COLUMNS) | dict.fromkeys(VALUE_COLUMNS[:4], 0)
    sums_of_all = _joined(totals)
    return _values(sums_of_all, sums_of_all.messages, None)


def _joined(parts: Iterable[Sums]) -> Sums:
    columns = list(zip(*parts, strict=True))
    return Sums(sum(columns[0]), sum(columns[1]), sum(columns[2]), min(columns[3]),
                max(columns[4]))


def _values(sums: Sums, everything: int, span: int | None) -> Row:
    """Return the figures of a row. Rates are computed over ``span`` ms; None: from the group's
    first message to its last.
    """
    seconds = (sums.last - sums.first if span is None else span) / 1000
    rates = (None, None) if seconds <= 0 else (sums.messages / seconds, sums.bytes / seconds)
    return {
        "messages": sums.messages,
        "share": round(sums.messages / everything, 6) if everything else 0,
        "bytes": sums.bytes,
        "body_bytes": sums.body_bytes,
        "average_size": round(sums.bytes / sums.messages, 1) if sums.messages else 0,
        "messages_per_second": None if rates[0] is None else round(rates[0], 3),
        "bytes_per_second": None if rates[1] is None else round(rates[1], 3),
        "first_store_timestamp": sums.first,
        "last_store_timestamp": sums.last,
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
    """Return a sort key: group keys of one type in ascending order, then a missing key, then
    `OTHER`.
    """
    if key == OTHER or key is None:
        return key == OTHER, True, 0
    if isinstance(key, tuple):
        return False, False, tuple((isinstance(part, str), part) for part in key)
    return False, False, key


def _local(groups: dict[Key, Sums], step: int, tz: tzinfo) -> dict[Key, Sums]:
    """Combine the sums for quarters of an hour into sums for the hours or days of a time zone (keys
    in ms).
    """
    by_start: dict[Key, list[Sums]] = {}
    for key, group in groups.items():
        start = key if key == OTHER else _start_of(key * QUARTER_HOUR, step, tz)
        by_start.setdefault(start, []).append(group)
    return {key: _joined(some) for key, some in by_start.items()}


def _start_of(moment: int, step: int, tz: tzinfo) -> int:
    """Return the start (epoch ms) of the hour or day, in the time zone ``tz``, that contains a
    moment.
    """
    try:
        local = (_EPOCH + timedelta(milliseconds=moment)).astimezone(tz)
        if step == TIME_STEPS["day"]:
            start = local.replace(hour=0, minute=0)
        else:
            start = local.replace(minute=0)
        return (start - _EPOCH) // timedelta(milliseconds=1)
    except (OverflowError, ValueError):  # damage creates times outside the calendar
        return moment // step * step
