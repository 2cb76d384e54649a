"""Expire segments of a tier as a broker does, but without the broker's defects (tiered.md §13).

Segments whose messages are all too old are removed from the start of each queue's commit log. The
last segment is never removed. Consume queue files are removed if all of their units point to
removed segments. Index files are removed if their newest item is too old. No file is deleted: a
plan moves the files aside.
"""

from __future__ import annotations

import os
from dataclasses import field

from rmqctl.actions import Action
from rmqctl.errors import FormatError, RefusedError, StoreIOError
from rmqctl.ext.tiered.files.metadata_file import load
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, Segment
from rmqctl.ext.tiered.index.index_file import TierIndexFile, uploaded
from rmqctl.ext.tiered.recover.index import end_of
from rmqctl.ext.tiered.recover.scope import Scope
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.units import CODA, CODA_SIZE, NEVER, UNIT_SIZE, is_coda
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Changes, Plan, Replace

HOUR = 3_600_000
_AHEAD = 24 * HOUR
"""Metadata with message times this far in the future (ms) is ignored."""


@dataclass(frozen=True, slots=True)
class QueueExpired:
    """A queue that loses files, with its first queue offset before and after the expiry."""

    topic: str
    queue_id: int
    before: int
    after: int

    def as_dict(self) -> dict[str, str | int]:
        return {"topic": self.topic, "queue_id": self.queue_id, "min_offset": self.after,
                "min_offset_before": self.before}


@dataclass(slots=True)
class TierExpiry:
    """A plan, and the queues that lose files.

    ``bytes``: total size of the removed files. ``files``: number of removed files by kind.
    """

    plan: Plan
    queues: list[QueueExpired] = field(default_factory=list)
    bytes: int = 0
    files: dict[str, int] = field(default_factory=dict)

    @property
    def messages(self) -> dict[str, int]:
        """Number of expired messages by topic."""
        messages: dict[str, int] = {}
        for queue in self.queues:
            messages[queue.topic] = messages.get(queue.topic, 0) + max(queue.after - queue.before,
                                                                       0)
        return messages


def expire(tier: Tier, scope: Scope, now: int, older_than: int,
           topic: str | None = None) -> TierExpiry:
    """Plan the removal of a broker's expired files.

    ``now``: epoch ms.
    ``older_than``: age in ms at which messages expire, unless a topic has its own reserve time.
    ``topic``: remove only files of this topic, and no index files.
    Raises: RefusedError if metadata is unreadable; StoreIOError.
    """
    return _Expiring(tier, scope, now, older_than, topic).run()


class _Expiring:
    def __init__(self, tier: Tier, scope: Scope, now: int, older_than: int,
                 topic: str | None) -> None:
        self._tier, self._scope, self._now, self._age = tier, scope, now, older_than
        self._topic = topic
        self._plan = Changes()
        self._out = TierExpiry(Plan("tiered expire", tier.name))
        self._metadata = self._load()
        self._rest = self._metadata.copy() if self._metadata is not None else None

    def run(self) -> TierExpiry:
        for queue in self._tier.queues(self._topic, broker=self._scope.broker):
            if queue.name.cluster == self._scope.cluster:
                self._queue(queue)
        flat = self._tier.contents.indexes.get((self._scope.cluster, self._scope.broker))
        if flat is not None and self._topic is None:
            self._index(flat)
        if self._plan.steps and self._rest is not None:
            self._write(self._rest)
        self._out.plan = Plan("tiered expire", self._tier.name, tuple(self._plan.actions),
                              tuple(self._plan.steps), notes=tuple(self._plan.notes))
        return self._out

    # -- metadata ---------------------------------------------------------------------------------

    def _load(self) -> meta.Metadata | None:
        path = self._scope.metadata_path
        try:
            metadata = load(path)
        except FormatError as error:
            raise RefusedError(f"{path}: {error}; it contains the topics' reserve times: `rmqctl "
                               "tiered recover` recreates it") from None
        if metadata is None and os.path.lexists(f"{path}.bak"):
            raise RefusedError(f"{path} is missing, and its backup may contain reserve times of "
                               "topics: `rmqctl tiered recover` recreates the metadata")
        if metadata is None:
            self._plan.notes.append(f"{path} is missing: reserve times of topics are unknown; "
                                    "`rmqctl tiered recover` recreates it")
        return metadata

    def _entry(self, kind: str, path: str, base: int) -> meta.SegmentEntry | None:
        if self._metadata is None:
            return None
        return self._metadata.segments[kind].get(path, {}).get(base)

    def _write(self, rest: meta.Metadata) -> None:
        path = self._scope.metadata_path
        data = meta.build(rest)
        count = sum(self._out.files.values())
        self._plan.steps.append(Replace(os.path.abspath(path), data))
        self._plan.actions.append(Action(
            "update", path, os.path.getsize(path), len(data),
            f"entries of deleted files removed: {count}"))

    # -- queues -----------------------------------------------------------------------------------

    def _limit(self, topic: str) -> tuple[int, str]:
        """Return the time (ms) before which messages of a topic expire, and the reason for this
        time.
        """
        entry = self._metadata.topics.get(topic) if self._metadata is not None else None
        if entry is not None and entry.reserve_time > 0:
            return (self._now - entry.reserve_time * HOUR,
                    f"{entry.reserve_time} h, the topic's own reserve time")
        return self._now - self._age, _span(self._age)

    def _queue(self, queue: FlatQueue) -> None:
        limit, age = self._limit(queue.name.topic)
        log, rows = queue.commit_log, queue.consume_queue
        gone = []
        # The segments before the first one with a message that is young enough.
        for segment in log.segments[:-1]:
            entry = self._entry(names.COMMIT_LOG, queue.name.path, segment.base)
            if not self._is_old(queue, segment, entry, limit):
                break
            gone.append(segment)
        start = log.segments[len(gone)].base if log.segments else 0
        units = []
        # Their units, and those that an earlier expiry left. Units that point to nothing for
        # other reasons stay.
        for segment in rows.segments[:-1] if log.segments else ():
            if not self._leads_before(queue, segment, start):
                break
            units.append(segment)
        if not gone and not units:
            return
        # The steps, and the new start of the queue.
        before = queue.min_offset
        for segment in units:
            self._take(segment, names.CONSUME_QUEUE, queue.name.path, "its messages have expired")
        for segment in gone:
            self._take(segment, names.COMMIT_LOG, queue.name.path,
                       f"its newest message is older than {age}")
        first = rows.segments[len(units)].base // UNIT_SIZE if rows.segments else 0
        rest = FlatQueue(queue.name, FlatFile(log.reader, log.folder, log.kind,
                                              log.segments[len(gone):]), rows)
        self._out.queues.append(QueueExpired(
            queue.name.topic, queue.name.queue_id, before,
            max(first, rest.first_message_offset(), before)))

    def _take(self, segment: Segment, kind: str, path: str, why: str) -> None:
        self._plan.move_aside(segment.path, segment.size, why)
        self._out.bytes += segment.size
        self._out.files[kind] = self._out.files.get(kind, 0) + 1
        if self._rest is not None:
            table = self._rest.segments[kind].get(path, {})
            table.pop(segment.base, None)
            if not table:
                self._rest.segments[kind].pop(path, None)

    def _is_old(self, queue: FlatQueue, segment: Segment, entry: meta.SegmentEntry | None,
                limit: int) -> bool:
        """Return whether all messages of a segment are older than ``limit``. No message is read if
        the metadata shows a newer message.
        """
        if not segment.usable:
            return True
        if entry is not None and entry.size == segment.usable and limit <= entry.end_timestamp and (
                0 <= entry.begin_timestamp <= entry.end_timestamp <= self._now + _AHEAD):
            return False
        newest = _newest(queue, segment)
        if newest is None:
            self._plan.notes.append(f"{queue.commit_log.reader.where(segment.path)}: no readable "
                                    "message; using the file's modification time")
            newest = segment.mtime_ms
        return newest < limit

    @staticmethod
    def _leads_before(queue: FlatQueue, segment: Segment, start: int) -> bool:
        """Return whether the last unit of a segment points before ``start``, where the commit log
        begins after the expiry.
        """
        complete = segment.usable // UNIT_SIZE
        if not complete:
            return not segment.usable
        unit = queue.unit(segment.base // UNIT_SIZE + complete - 1)
        return unit is not None and 0 <= unit.commit_log_offset < start

    # -- index ------------------------------------------------------------------------------------

    def _index(self, flat: FlatFile) -> None:
        limit = self._now - self._age
        path = names.index_path(self._scope.broker)
        for segment, file in list(zip(flat.segments, uploaded(flat), strict=True))[:-1]:
            if isinstance(file, StoreIOError):
                raise file
            try:
                newest = end_of(file) if isinstance(file, TierIndexFile) else None
            except FormatError:
                newest = None
            if newest is None:
                self._plan.notes.append(f"{flat.reader.where(segment.path)}: not a readable index "
                                        "file; it and the files after it are kept")
                return
            # An empty file may have the name of the next one.
            if not segment.size or newest >= limit:
                return
            self._take(segment, names.INDEX, path,
                       f"its newest item is older than {_span(self._age)}")


def _newest(queue: FlatQueue, segment: Segment) -> int | None:
    """Return the largest store time of a segment's messages; None if the segment has no message."""
    newest: int | None = None
    for batch in queue.commit_log.batches(segment):
        if len(batch):
            last = int(batch.column("store_timestamp").max())
            newest = last if newest is None else max(newest, last)
    if newest is None and segment.usable >= CODA_SIZE:
        tail = queue.commit_log.reader.read(segment.path, segment.usable - CODA_SIZE, CODA_SIZE)
        if is_coda(tail) and CODA.decode(tail).max_store_timestamp != NEVER:
            return int(CODA.decode(tail).max_store_timestamp)
    return newest


def _span(age: int) -> str:
    return f"{age // HOUR} h" if age % HOUR == 0 and age else f"{age // 1000} s"
