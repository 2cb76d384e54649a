"""Statistics of the messages in logs: counts, bytes and rates by topic, queue, key, time and more.

A log is walked once, by as many processes as wanted or by a pool (`store.ranges`); the sums are
made by `scan.aggregate`, and become rows in `stats_rows`. A log with too many groups is walked
twice: once to find the heavy ones, once to count them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rmqctl.errors import UsageError
from rmqctl.scan.aggregate import Aggregate
from rmqctl.scan.groupings import GROUPINGS, Key
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile
from rmqctl.store.log import ranges
from rmqctl.store.store import Store

CLOCK_SKEW = 3_600_000
"""Store times of a log are believed to be in order up to this (ms), when whole files are left
out because of ``--since`` or ``--until``."""
MAX_RANGE = 1 << 30
_TASKS_PER_JOB = 4
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Query:
    """What is counted and how: ``by`` one of `GROUPINGS`; store times in ms, inclusive."""

    by: str = "topic"
    topic: str | None = None
    since: int | None = None
    until: int | None = None

    def start(self, only: Sequence[Key] | None = None) -> Aggregate:
        raw = None if self.topic is None else self.topic.encode("utf-8", "surrogateescape")
        return Aggregate(self.by, topic=raw, since=self.since, until=self.until, only=only)


@dataclass(slots=True)
class _Part:
    first: int
    position: int
    sums: Aggregate


def collect(store: Store, query: Query, jobs: int = 1, *, range_size: int = ranges.RANGE_SIZE,
            progress: Progress | None = None, files: Iterable[StoreFile] | None = None,
            pool: ranges.Pool | None = None, again: Progress | None = None) -> Aggregate:
    """The sums over the log (or over ``files`` of it). StoreIOError when a file fails.

    A ``pool`` does the work instead of ``jobs`` processes. The answer depends on neither, nor on
    ``range_size``. ``again`` hears of it when the log is read a second time, with its bytes.
    """
    chosen = choose_files(store, query) if files is None else list(files)
    return collect_many([chosen], query, jobs, range_size=range_size, progress=progress,
                        pool=pool, again=again)[0]


def collect_many(logs: Sequence[Sequence[StoreFile]], query: Query, jobs: int = 1, *,
                 range_size: int = ranges.RANGE_SIZE, progress: Progress | None = None,
                 pool: ranges.Pool | None = None, again: Progress | None = None,
                 together: bool = False) -> list[Aggregate]:
    """The sums over each of several logs (given as files: `choose_files`), as `collect` makes them.

    ``together``: one for all of them. The ranges of all logs are one list of tasks for the pool.
    """
    if query.by not in GROUPINGS:
        raise UsageError(f"{query.by!r} is nothing to count by")
    if together:
        logs = [[file for log in logs for file in log]]
    if sum(file.size for log in logs for file in log) <= range_size:
        jobs = 1  # there is nothing to share

    def sums(some: Sequence[Sequence[StoreFile]], only: Sequence[Key] | None) -> list[Aggregate]:
        return _sums(some, query, only, jobs, range_size, progress, pool)

    found = sums(logs, None)
    for number, one in enumerate(found):
        if one.is_full:
            if again is not None:
                again(sum(file.size for file in logs[number]))
            found[number] = sums([logs[number]], one.candidates)[0]
    return found


def _sums(logs: Sequence[Sequence[StoreFile]], query: Query, only: Sequence[Key] | None,
          jobs: int, range_size: int, progress: Progress | None,
          pool: ranges.Pool | None) -> list[Aggregate]:
    totals = [query.start(only) for _ in logs]
    log_of: list[int] = []

    def tasks() -> Iterator[ranges.Range]:
        for number, files in enumerate(logs):
            for one in ranges.split(files, range_size):
                log_of.append(number)
                yield one

    work = partial(_work, query, only)
    for at, part in enumerate(ranges.in_order(work, tasks(), jobs, progress, pool)):
        totals[log_of[at]].merge(part.sums)
    return totals


def _work(query: Query, only: Sequence[Key] | None, part: ranges.Range) -> _Part:
    sums = query.start(only)
    with FileSource(part.file.path, part.file.base) as source:
        walk = ranges.walk(part, source)
        for batch in walk:
            sums.add(batch)
        end = walk.position
        if part.last and end < source.size:
            sums.bytes_zero += source.size - end
            end = source.size
    sums.pack()
    return _Part(walk.first, end, sums)


def range_size_for(logs: Iterable[Iterable[StoreFile]], jobs: int,
                   partitions: int | None = None) -> int:
    """Bytes of a range for a pool of ``jobs``: a few tasks for each job, none of them tiny or huge.

    ``partitions``: about that many (a range never goes beyond a file) whatever their size.
    """
    total = sum(file.size for files in logs for file in files)
    if partitions is not None:
        return max(1, -(-total // partitions))
    return min(max(-(-total // (_TASKS_PER_JOB * jobs)), ranges.RANGE_SIZE), MAX_RANGE)


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
