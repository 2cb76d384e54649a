"""The disk usage of a store by structure and topic, and the rate at which its log grows.

The log is not read: the bytes of a topic in the log are the sum of the sizes in its queue entries.
No entry exists for the other bytes: half messages and rollbacks, blank records, unused or damaged
bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.info import Item, inventory, totals
from rmqctl.store.log.bounds import View
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.end import find_end, first_record
from rmqctl.store.problems import Report
from rmqctl.store.queue.rows import topic_rows, topics_on_disk
from rmqctl.store.store import Store

DAY = 86_400_000
COLUMNS = ("topic", "rows", "log_bytes", "share", "queue_bytes", "queue_disk_bytes")
_QUEUES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


@dataclass(slots=True)
class TopicSpace:
    """The disk usage of one topic.

    ``rows``: number of entries in its queues, one for each message or batch.
    ``log_bytes``: bytes of its messages in the log; 0 for a light queue, whose messages belong to
    other topics.
    ``queue_bytes``: total size of its queue files.
    ``queue_disk_bytes``: the space that the queue files take on the disk.
    """

    rows: int = 0
    log_bytes: int = 0
    queue_bytes: int = 0
    queue_disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a log. A rate is None if its period is shorter than a minute.

    ``first``, ``last``: store times (ms) of the first and last message.
    ``bytes``: bytes of the log between the first and last message.
    ``per_day``: bytes per day.
    ``recent_per_day``: bytes per day since ``recent_from``.
    ``recent_from``: start time of the last file that begins a day or more before ``last``.
    """

    first: int | None = None
    last: int | None = None
    bytes: int = 0
    per_day: int | None = None
    recent_from: int | None = None
    recent_per_day: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"first_store_timestamp": self.first, "last_store_timestamp": self.last,
                "log_bytes": self.bytes, "bytes_per_day": self.per_day,
                "recent_since": self.recent_from, "recent_bytes_per_day": self.recent_per_day}


@dataclass(slots=True)
class Space:
    """The disk usage of a store.

    ``topics``: the usage of each topic; None if unknown. ``not_told``: the reason why it is
    unknown.
    """

    items: list[Item]
    growth: Growth
    topics: dict[str, TopicSpace] | None = None
    not_told: str = ""
    notes: list[str] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of `COLUMNS` for each topic; topics with the most bytes in the log come
        first.
        """
        topics = self.topics or {}
        total = sum(topic_space.log_bytes for topic_space in topics.values())
        return [{"topic": topic, "rows": topic_space.rows, "log_bytes": topic_space.log_bytes,
                 "share": round(topic_space.log_bytes / total, 4) if total else 0.0,
                 "queue_bytes": topic_space.queue_bytes,
                 "queue_disk_bytes": topic_space.queue_disk_bytes}
                for topic, topic_space in sorted(topics.items(), key=lambda pair: (
                    -pair[1].log_bytes, -pair[1].queue_bytes, pair[0]))]

    def as_dict(self) -> dict[str, Any]:
        in_rows = None if self.topics is None else sum(
            topic_space.log_bytes for topic_space in self.topics.values())
        return {"structures": [{"kind": kind, "files": total.files, "size": total.size,
                                "allocated": total.allocated}
                               for kind, total in totals(self.items).items()],
                "topics": None if self.topics is None else self.rows(),
                "log_bytes_in_rows": in_rows,
                "log_bytes_without_row": None if in_rows is None else max(
                    0, self.growth.bytes - in_rows),
                "growth": self.growth.as_dict()}


def space(view: View, report: Report, advance: Callable[[int], None]) -> Space:
    """Return the disk usage of a store; ``advance`` gets the number of bytes of entries read.

    Raises: StoreIOError.
    """
    # Files and growth are known even if the consume queues cannot be read.
    store = view.store
    items, troubles = inventory(store)
    result = Space(items, growth(store))
    result.notes += [f"{trouble.path}: {trouble.reason}" for trouble in troubles]
    unread = store.layout.unread.get("consumequeue")
    if unread is not None:
        result.not_told = unread
        return result
    # Add the sizes of the queue files to their topics.
    result.topics = {topic: TopicSpace() for topic in topics_on_disk(store)}
    for item in items:
        parts = item.path.split(os.sep)
        if len(parts) > 2 and parts[0] in _QUEUES:
            topic_space = result.topics.setdefault(parts[1], TopicSpace())
            topic_space.queue_bytes += item.size
            topic_space.queue_disk_bytes += item.allocated
    # Add the messages that the entries of each topic point to, within the log.
    first, end = store.log.min_offset, store.log.end
    for topic, topic_space in result.topics.items():
        for rows in topic_rows(store, topic, None, view, report):
            try:
                for _, physical, sizes in rows.pages(rows.first, rows.end):
                    inside = (physical >= first) & (sizes > 0) & (physical + sizes <= end)
                    topic_space.rows += int(np.count_nonzero(inside))
                    # Messages of a light queue are counted for their own topic.
                    if not topic.startswith(LMQ_PREFIX):
                        topic_space.log_bytes += int(sizes[inside].sum())
                    advance(20 * len(sizes))
            except StoreIOError as error:
                result.notes.append(f"{error}: the rest of {topic}/{rows.queue_id} is not counted")
            if rows.why_unread:
                result.notes.append(f"{rows.why_unread}: unreadable entries of "
                                    f"{topic}/{rows.queue_id} are not counted")
    return result


def growth(store: Store) -> Growth:
    """Return the growth of the log, computed from its first and last message and from the first
    messages of its files.
    """
    if store.layout.unread.get("commitlog"):
        return Growth()
    log = store.log
    end = find_end(store)
    first = first_record(log)
    if first is None or end.last is None:
        return Growth()
    start, last = first.store_timestamp, end.last.store_timestamp
    begin, since = _recent(log, last)
    return Growth(start, last, end.offset - first.physical_offset,
                  _rate(end.offset - first.physical_offset, last - start), since,
                  None if since is None else _rate(end.offset - begin, last - since))


def _recent(log: CommitLog, last: int) -> tuple[int, int | None]:
    """Return (physical offset, store time) of the start of the last file that begins a day or more
    before ``last``.

    Return (0, None) if only the first file, or no file, begins that early.
    """
    for file in reversed(log.files[1:]):
        try:
            record = log.record_at(file.base)
        except (StoreIOError, FormatError):
            continue
        if record is not None and record.store_timestamp <= last - DAY:
            return file.base, record.store_timestamp
    return 0, None


def _rate(size: int, span: int) -> int | None:
    """Return bytes per day; None if the time between the messages (``span``, ms) is too short."""
    return size * DAY // span if span >= 60_000 else None
