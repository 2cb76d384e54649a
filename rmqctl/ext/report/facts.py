"""Gather the facts of a report as plain values, most of them from the diagnosis.

The diagnosis (`rmqctl.checks.doctor`) scans the log once and replays a broker's startup. It
contains the findings, the prediction and the profile of the log. This module also looks up queues
and groups (`rmqctl.store.config.offsets`), reads some messages around damage, and hashes all files.
All lists are bounded; omitted entries are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqctl.broker.view import view_of
from rmqctl.checks.digests import FileDigest, digests
from rmqctl.checks.doctor import Diagnosis, diagnose
from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.verdict import DAMAGE, around
from rmqctl.errors import RmqctlError, StoreIOError
from rmqctl.formats.local.header_rules import EARLIEST
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.aggregate import Aggregate
from rmqctl.scan.groupings import OTHER
from rmqctl.scan.profile import LATEST
from rmqctl.store.config.config import load
from rmqctl.store.config.offsets import Lag
from rmqctl.store.info import Item, inventory
from rmqctl.store.log.bounds import View
from rmqctl.store.objects import message_object, text
from rmqctl.store.queue.rows import topics_on_disk
from rmqctl.store.stats import Query, collect

if TYPE_CHECKING:
    from rmqctl.checks.preflight.types import Prediction
    from rmqctl.formats.local.message import Record
    from rmqctl.scan.profile import LogProfile
    from rmqctl.store.log.commit_log import CommitLog
    from rmqctl.store.store import Store

MAX_PLACES = 200
"""Maximum number of damaged places whose store times are looked up."""
MAX_SHOWN_PLACES = 10
"""Maximum number of damaged places for which a report shows the messages before and after them."""
_EXCERPT = 160
_NEAR = 64 << 10
"""Number of bytes before a missing file that are read first to find the last record."""
_BY_TOPIC = frozenset({"consumequeue", "consumequeue_ext", "batchconsumequeue", "compactionLog",
                       "compactionCq"})
"""Folders that contain one folder for each topic."""
Progress = Callable[[int], None]
Watch = Callable[[str, int], Any]


class QueueRow(NamedTuple):
    """A queue and its messages.

    * ``messages``, ``size``: number of its intact messages in the log, and their size in bytes
    * ``first``, ``last``: store times (ms) of these messages
    * ``least``, ``most``: minimum and maximum offset of the queue; None without a consume queue
    * ``lost``: number of messages already lost
    * ``cut``: number of messages that startup would lose
    """

    topic: str
    queue_id: int
    messages: int
    size: int
    first: int | None
    last: int | None
    least: int | None
    most: int | None
    lost: int
    cut: int


class TopicRow(NamedTuple):
    """The totals of a topic, and its ``queues`` sorted by id."""

    topic: str
    messages: int
    size: int
    first: int | None
    last: int | None
    lost: int
    cut: int
    queues: tuple[QueueRow, ...]


class GroupRow(NamedTuple):
    """A consumer group's figures for one topic.

    * ``lag``: number of messages not consumed, as a broker counts them
    * ``since``: store time (ms) of the last consumed message in the queue with the largest lag
    * ``lost``: number of messages lost before the group consumed them
    * ``at_risk``: number of intact messages not consumed that startup would lose
    * ``beyond``: number of messages by which consumer offsets exceed the ends of their queues
    * ``twice``: number of messages delivered again
    """

    group: str
    topic: str
    queues: int
    lag: int
    since: int | None
    lost: int
    at_risk: int
    beyond: int
    twice: int


class Neighbours(NamedTuple):
    """The messages before and after a damaged place, as message objects (None if missing).
    ``is_missing``: whether the damaged place is a missing file.
    """

    offset: int
    length: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    is_missing: bool = False


class MissingFile(NamedTuple):
    """A missing log file. Neighbouring files, consume queue entries or the index prove that it
    existed.
    """

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a report. Times are in ms.

    * ``marks``: for each damaged place, the store times of the messages before and after it (None
      if unknown)
    * ``marks_left``: number of damaged places without marks
    * ``lost``: such pairs of times for missing files, and for messages lost after the end of the
      log
    * ``proven``: the latest store time that the index or the checkpoint proves
    * ``missing``: the first missing files
    * ``missing_bytes``: the size of all missing files
    * ``files``: digests; None if files were not hashed
    * ``notes``: what could not be read
    * ``further``: topics and groups that only paths or configuration entries name, for `Mask`
    """

    root: str
    diagnosis: Diagnosis
    topics: list[TopicRow] = field(default_factory=list)
    groups: list[GroupRow] = field(default_factory=list)
    marks: list[tuple[int | None, int | None]] = field(default_factory=list)
    marks_left: int = 0
    lost: list[tuple[int | None, int | None]] = field(default_factory=list)
    proven: int | None = None
    missing: list[MissingFile] = field(default_factory=list)
    missing_bytes: int = 0
    neighbours: list[Neighbours] = field(default_factory=list)
    files: list[FileDigest] | None = None
    total_size: int = 0
    notes: list[str] = field(default_factory=list)
    further: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))

    @property
    def profile(self) -> LogProfile | None:
        return self.diagnosis.profile

    @property
    def lost_times(self) -> list[int]:
        """The store times (ms) that the chart must include."""
        times = [*(time for mark in self.lost for time in mark), self.proven]
        return [time for time in times if time is not None]

    @property
    def group_sums(self) -> list[GroupRow]:
        """One row for each group, summed over its topics; ``topic`` is empty."""
        return _joined(self.groups, lambda row: (row.group, ""))

    @property
    def topic_names(self) -> Iterator[str]:
        """All topics that the report may name."""
        lost = self.diagnosis.losses
        for row in self.topics:
            yield row.topic
        for group in self.groups:
            yield group.topic
        for finding in self.diagnosis.findings.findings:
            if finding.topic is not None:
                yield finding.topic
        for names in (lost.already_by_topic, lost.would_lose_by_topic):
            yield from names
        for neighbours in self.neighbours:
            yield from (message["topic"] for message in neighbours[2:4] if message)
        yield from sorted(self.further[0])

    @property
    def group_names(self) -> Iterator[str]:
        consumers = self.diagnosis.start.consumers.groups
        yield from (row.group for row in self.groups)
        if consumers is not None:
            yield from (queue.group for queue in consumers.queues)
            yield from consumers.without_position
        yield from sorted(self.further[1])


def gather(store: Store, broker_version: str | None, jobs: int, watch: Watch, *,
           hashes: bool = True) -> Facts:
    """Return all facts of a store.

    ``watch``: receives a label and a number of bytes, and returns a context manager that yields a
    function for progress.
    Raises: StoreIOError.
    """
    items, troubles = inventory(store)
    notes = [f"{trouble.path}: {trouble.reason}" for trouble in troubles if trouble.unreadable]
    has_log = store.layout.reads("commitlog")
    size = 2 * store.log.size if has_log else 0
    with watch("reading the log", size) as progress:
        diagnosis = diagnose(store, broker_version, jobs, progress, profile=True)
    lags: list[dict[str, Any]] = []
    try:
        lags = list(_lags(store))
    except RmqctlError as error:
        notes.append(str(error))
    damage = _places(diagnosis.findings.findings)
    gaps = [(gap.start, gap.end - gap.start) for gap in store.log.gaps()] if has_log else []
    places = sorted([*damage, *gaps])
    neighbours = [_neighbours(store, *place, is_missing=place in gaps)
                  for place in places[:MAX_PLACES]]
    missing, missing_bytes = _missing(store, diagnosis.start, gaps) if has_log else ([], 0)
    ending, proven = _after_the_end(store, diagnosis.start) if has_log else (None, None)
    total = sum(item.size for item in items)
    hashed = None
    if hashes:
        with watch("hashing", total) as progress:
            hashed = digests(store.root, items, jobs, progress)
    return Facts(
        store.root, diagnosis, _topics(store, diagnosis, lags, jobs), _groups(diagnosis, lags),
        _marks(neighbours, is_missing=False), len(places) - len(neighbours),
        [*_marks(neighbours, is_missing=True), *([] if ending is None else [ending])], proven,
        missing, missing_bytes, neighbours[:MAX_SHOWN_PLACES], hashed, total, notes,
        _further(store, items))


def _further(store: Store, items: Iterable[Item]) -> tuple[set[str], set[str]]:
    """Return the topics and groups that paths and configuration files name."""
    topics: set[str] = set(topics_on_disk(store))
    groups: set[str] = set()
    for item in items:
        folders = item.path.split("/")[:-1]
        topics.update(topic for folder, topic in pairwise(folders) if folder in _BY_TOPIC)
    with suppress(StoreIOError):
        for file in load(store)[0]:
            for row in file.rows():
                topics.update(filter(None, [row.get("topic")]))
                groups.update(filter(None, [row.get("group")]))
    return topics, groups


def _lags(store: Store) -> Iterator[dict[str, Any]]:
    yield from Lag(store, view_of(store, "auto")).rows()


# -- topics, queues, groups ------------------------------------------------------------------------


def _sums(store: Store, profile: LogProfile | None, jobs: int) -> Aggregate | None:
    """Return the sums by topic and queue. If there are too many queues for the profile, read the
    log again for the largest queues.
    """
    if profile is None:
        return None
    return collect(store, Query("queue"), jobs) if profile.queues.is_full else profile.queues


def _topics(store: Store, diagnosis: Diagnosis, lags: Iterable[dict[str, Any]],
            jobs: int) -> list[TopicRow]:
    """Return the topics, sorted by number of messages."""
    lost, sums = diagnosis.losses, _sums(store, diagnosis.profile, jobs)
    counted = {} if sums is None else {
        _key(key): values for key, values in sums.groups().items()}
    bounds = {(row["topic"], row["queue_id"]): (row["min_offset"], row["max_offset"])
              for row in lags}
    losses = lost.queues or {}
    by_topic: dict[str, list[QueueRow]] = {}
    for topic, queue_id in sorted({*counted, *bounds, *(
            key for key, loss in losses.items() if loss.lost or loss.cut)}):
        values, loss = counted.get((topic, queue_id)), losses.get((topic, queue_id))
        by_topic.setdefault(topic, []).append(QueueRow(
            topic, queue_id, 0 if values is None else values.messages,
            0 if values is None else values.bytes, None if values is None else values.first,
            None if values is None else values.last,
            *bounds.get((topic, queue_id), (None, None)),
            0 if loss is None else loss.lost, 0 if loss is None else loss.cut))
    rows = [TopicRow(
        topic, sum(queue.messages for queue in queues), sum(queue.size for queue in queues),
        min((queue.first for queue in queues if queue.first is not None), default=None),
        max((queue.last for queue in queues if queue.last is not None), default=None),
        lost.already_by_topic.get(topic, 0), lost.cut_by_topic.get(topic, 0),
        tuple(queues)) for topic, queues in by_topic.items()]
    return sorted(rows, key=lambda row: (-row.messages, row.topic))


def _key(key: Any) -> tuple[str, int]:
    if key == OTHER:
        return OTHER, -1
    topic, queue_id = key
    return text(topic), queue_id


def _groups(diagnosis: Diagnosis, lags: Iterable[dict[str, Any]]) -> list[GroupRow]:
    """Return one row for each group and topic, sorted by lost messages, then by lag."""
    rows = [GroupRow(row["group"], row["topic"], 1, row["diff"] or 0,
                     row["last_store_timestamp"] if (row["diff"] or 0) > 0 else None, 0, 0, 0, 0)
            for row in lags if row["group"] is not None]
    consumers = diagnosis.start.consumers.groups
    rows += [GroupRow(queue.group, queue.topic, 0, 0, None, queue.lost_after, queue.at_risk,
                      queue.beyond_end or 0, queue.twice)
             for queue in (() if consumers is None else consumers.affected)]
    return _joined(rows, lambda row: (row.group, row.topic))


def _joined(rows: Iterable[GroupRow],
            key: Callable[[GroupRow], tuple[str, str]]) -> list[GroupRow]:
    """Add up the rows for which ``key`` returns the same group and topic. Return one row for each
    pair of group and topic.
    """
    sums: dict[tuple[str, str], GroupRow] = {}
    for row in rows:
        name = key(row)
        total = sums.get(name, GroupRow("", "", 0, 0, None, 0, 0, 0, 0))
        times = [since for since in (total.since, row.since) if since is not None]
        sums[name] = GroupRow(*name, total.queues + row.queues, total.lag + row.lag,
                              min(times, default=None),
                              *(a + b for a, b in zip(total[5:], row[5:], strict=True)))
    return sorted(sums.values(), key=lambda row: (
        -(row.lost + row.at_risk + row.beyond), -row.lag, row.group, row.topic))


# -- damage ----------------------------------------------------------------------------------------


def _places(findings: Iterable[Finding]) -> list[tuple[int, int]]:
    """Return the (physical offset, length in bytes) of each damaged range in the log. Adjacent
    ranges are joined.
    """
    spans = sorted((finding.offset, finding.length or 0) for finding in findings
                   if finding.is_trouble and finding.category in DAMAGE
                   and finding.offset is not None)
    places: list[tuple[int, int]] = []
    for offset, length in spans:
        if places and offset <= sum(places[-1]):
            first, length_before = places[-1]
            places[-1] = first, max(length_before, offset + length - first)
        else:
            places.append((offset, length))
    return places


def _neighbours(store: Store, offset: int, length: int, *, is_missing: bool) -> Neighbours:
    first, last = around(store, offset, offset + length)
    if first is None and is_missing:
        first = _last_before(store.log, offset)
    before, after = (None if record is None else _shortened(message_object(record))
                     for record in (first, last))
    return Neighbours(offset, length, before, after, is_missing)


def _last_before(log: CommitLog, end: int) -> Record | None:
    """Return the last record of the log file that ends at physical offset ``end``.

    A blank record at the end of the file is ignored. None if the file contains no record.
    """
    base = next((file.base for file in log.files if file.end == end), end)
    span = _NEAR
    while base < end:
        begin = max(base, end - span)
        last = None
        for batch in log.walk(begin, end):
            last = int(batch.offset[-1]) if len(batch) else last
        if last is not None or begin == base:
            return None if last is None else log.record_at(last)
        span *= 8
    return None


def _marks(neighbours: Iterable[Neighbours], *, is_missing: bool) -> list[
        tuple[int | None, int | None]]:
    return [(_time(place.before), _time(place.after)) for place in neighbours
            if place.is_missing == is_missing]


def _missing(store: Store, start: Prediction,
             gaps: Iterable[tuple[int, int]]) -> tuple[list[MissingFile], int]:
    """Return the first missing files, and the total bytes of all missing files.

    A file counts as missing if it would be between two existing files. A file after the last one
    counts if entries or the index point into it.
    """
    log, places = store.log, start.log.gone.places
    spans = list(gaps)
    if log.files and places is not None and places[1] >= log.end:
        spans.append((log.end, (places[1] // log.file_size + 1) * log.file_size - log.end))
    size = log.file_size

    def parts(begin: int, end: int) -> Iterator[MissingFile]:
        while begin < end:
            after = min((begin // size + 1) * size, end)
            yield MissingFile(f"{begin // size * size:020}", begin, after - begin)
            begin = after

    files = (file for begin, length in spans for file in parts(begin, begin + length))
    return list(islice(files, MAX_PLACES)), sum(length for _, length in spans)


def _after_the_end(store: Store, start: Prediction) -> tuple[
        tuple[int | None, int | None] | None, int | None]:
    """Return two results about messages lost after the end of the log.

    * their first and last store time (ms); None if no such message is known
    * the latest store time that the index or the checkpoint proves
    """
    end, places = View(store).disk_end, start.log.gone.places
    if not start.log.gone.at_end and (places is None or places[1] < end.offset):
        return None, None
    saved = store.checkpoint
    last = None if end.last is None else end.last.store_timestamp
    times = [] if saved is None else [saved.physic_msg_timestamp, saved.logics_msg_timestamp,
                                      saved.index_msg_timestamp]
    later = [time for time in (*times, start.log.gone.latest or 0)
             if EARLIEST <= time < LATEST and time > (last or 0)]
    return (start.log.gone.earliest if last is None else last, start.log.gone.latest), max(
        later, default=None)


def _shortened(message: dict[str, Any]) -> dict[str, Any]:
    """Shorten the body of a message object and remove its properties, to save memory."""
    body: str = message["body"]
    message["body"] = body if len(body) <= _EXCERPT else body[:_EXCERPT] + "…"
    for name in ("properties", "properties_raw"):
        del message[name]
    return message


def _time(message: dict[str, Any] | None) -> int | None:
    return None if message is None else message["store_timestamp"]
