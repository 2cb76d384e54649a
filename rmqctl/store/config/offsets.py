"""The lag of consumer groups, computed as a broker does (spec: checkpoint-and-small-files.md §6).

For each read queue of a topic, the lag is the queue's max offset minus the committed offset. A
queue without a commit counts from 0. The queue's min offset is not considered, and a negative
difference is added unchanged. Delay levels are shown as a separate group, ``(delay)``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import field
from typing import Any

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.delay import DEFAULT_LEVELS
from rmqctl.formats.local.properties import SCHEDULE_TOPIC
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.config.config import ConfigFile, load_shared
from rmqctl.store.log.bounds import Bounds, View
from rmqctl.store.store import Store

Row = dict[str, Any]
COLUMNS = ("group", "topic", "queue_id", "min_offset", "max_offset", "consumer_offset", "diff",
           "last_store_timestamp", "unread_since", "note")
DELAY_GROUP = "(delay)"
"""Group name of the delay service; no real group can have such a name."""
MAX_EMPTY_QUEUES = 1024
"""Maximum number of shown queues that have neither a file nor a committed offset."""

_Queues = dict[int, Bounds | str]
_Commits = dict[int, int]


@dataclass(slots=True)
class Lag:
    """The lag of the groups of a store.

    ``group`` and ``topic`` limit the result. Without a group, all groups and the topics without
    consumers are shown. ``totals`` is complete once `rows` has yielded all rows.
    """

    store: Store
    view: View
    group: str | None = None
    topic: str | None = None
    totals: dict[str, int] = field(default_factory=dict)
    files: list[ConfigFile] = field(default_factory=list)
    _commits: dict[str, dict[str, _Commits]] = field(default_factory=dict)
    _delays: dict[int, int] = field(default_factory=dict)
    _read_queues: dict[str, int] | None = None
    _groups: set[str] = field(default_factory=set)
    _on_disk: dict[str, list[int]] = field(default_factory=dict)
    _bounds_of: dict[str, _Queues] = field(default_factory=dict)
    _topics_in: str = ""
    _all_known: bool = True

    def __post_init__(self) -> None:
        self.store.layout.require(self.store.root, "config")
        names = ("topics.json", "subscriptionGroup.json", "consumerOffset.json",
                 "lmqConsumerOffset.json", "delayOffset.json")
        topics, groups, commits, lmq, delays = (load_shared(self.store, name) for name in names)
        self.files = [topics, groups, commits, lmq, delays]
        self._topics_in = os.path.basename(topics.main.path)
        # v2 of the configuration in RocksDB does not keep topics that a broker created by itself.
        self._all_known = self.store.layout.config != "rocksdb-v2"
        if topics.used is not None:
            self._read_queues = {
                row["topic"]: row["read_queue_nums"] for row in topics.rows()
                if isinstance(row["read_queue_nums"], int)}
        self._groups = {row["group"] for row in groups.rows()}
        # With enableLmq a broker keeps all offsets in the second file.
        for row in (*commits.rows(), *lmq.rows()):
            if row["group"] is not None:
                by_topic = self._commits.setdefault(row["group"], {})
                by_topic.setdefault(row["topic"], {})[row["queue_id"]] = row["offset"]
        self._delays = {row["queue_id"]: row["offset"] for row in delays.rows()}
        for name, queue_id in {**self.store.queues.by_key, **self.store.queues.batch}:
            self._on_disk.setdefault(name, []).append(queue_id)

    @property
    def no_commits(self) -> bool:
        """Return whether the committed offsets are unknown because no copy of the file can be
        read.
        """
        commits, lmq = self.files[2:4]
        return commits.damaged and commits.used is None and lmq.used is None

    @property
    def group_is_known(self) -> bool:
        """Return whether the requested group is configured or has committed an offset."""
        return (self.group is None or self.group in self._commits or self.group in self._groups
                or self.group == DELAY_GROUP)

    @property
    def groups(self) -> list[str]:
        """The groups that are configured or have committed an offset."""
        return sorted({*self._groups, *self._commits})

    def rows(self) -> Iterator[Row]:
        """Yield a row for each group, topic and queue id, in that order, then for the topics
        without a group.
        """
        if not self.group_is_known:
            return
        groups = sorted(self._commits) if self.group is None else [self.group]
        for group in groups:
            if group == DELAY_GROUP:
                continue
            yield from self.of_group(group)
        if self.topic in (None, SCHEDULE_TOPIC) and self.group in (None, DELAY_GROUP):
            yield from self._delayed()
        if self.group is None:
            yield from self._without_group()

    # -- one group ----------------------------------------------------------------------------

    def of_topic(self, topic: str) -> Iterator[Row]:
        """Yield the rows of all groups that have committed offsets in a topic."""
        for group in sorted(self._commits):
            if topic in self._commits[group]:
                yield from self._of_topic(group, topic, self._commits[group][topic])

    def of_group(self, group: str) -> Iterator[Row]:
        """Yield the rows of one group, by topic and queue id."""
        self.totals[group] = 0
        commits = self._commits.get(group, {})
        if self.topic is None:
            topics: Iterable[str] = sorted(commits)
        elif self.group is not None or self.topic in commits:
            topics = [self.topic]  # a topic requested by name counts even without a commit
        else:
            topics = []
        for topic in topics:
            for row in self._of_topic(group, topic, commits.get(topic, {})):
                self.totals[group] += row["diff"] or 0
                yield row

    def _of_topic(self, group: str, topic: str, commits: _Commits) -> Iterator[Row]:
        queues = self._queues(topic)
        counted = self._counted(topic)
        if counted is None:
            reason = f"the topic is not in {self._topics_in}, so brokers omit its offsets"
            counted = 0
        else:
            reason = f"the topic has only {counted} read queues: brokers omit this queue"
        present = {*queues, *commits}
        ids = present | set(range(min(counted, MAX_EMPTY_QUEUES)))
        for queue_id in sorted(ids):
            row = self._row(group, topic, queue_id, commits.get(queue_id))
            if queue_id >= counted:
                if queue_id not in commits:
                    continue
                row["diff"], row["note"] = None, reason
            yield row

    def _counted(self, topic: str) -> int | None:
        """Return the number of a topic's queues that a broker includes in the lag; None for an
        unknown topic.
        """
        if self._read_queues is not None and (self._all_known or topic in self._read_queues):
            return self._read_queues.get(topic)
        return max(self._queues(topic), default=-1) + 1

    def _row(self, group: str, topic: str, queue_id: int, committed: int | None) -> Row:
        bounds = self._queues(topic).get(queue_id, Bounds(0, 0))
        offset = 0 if committed is None or committed < 0 else committed
        row: Row = dict.fromkeys(COLUMNS)
        row.update(group=group, topic=topic, queue_id=queue_id, consumer_offset=offset)
        if isinstance(bounds, str):
            row["note"] = bounds
            return row
        row.update(min_offset=bounds.first, max_offset=bounds.end, diff=bounds.end - offset,
                   last_store_timestamp=self._store_time(topic, queue_id, offset - 1),
                   unread_since=self._store_time(topic, queue_id, max(offset, bounds.first))
                   if offset < bounds.end else None,
                   note=self._note(bounds, offset, committed))
        return row

    def _note(self, bounds: Bounds, offset: int, committed: int | None) -> str | None:
        if offset > bounds.end:
            text = f"{offset - bounds.end:,} beyond the end of the queue: OFFSET_OVERFLOW_BADLY"
            if self.view.generation < 5 and bounds.first == 0:
                return text + "; a 4.x broker resets the group to 0"
            return text
        lost = min(bounds.first, bounds.end) - offset
        gone = f"{lost:,} expired before they were consumed" if lost > 0 else None
        if (committed is None or committed < 0) and bounds.end:
            return "no offset committed, counted from 0" + (f"; {gone}" if gone else "")
        return gone

    # -- others -------------------------------------------------------------------------------

    def _delayed(self) -> Iterator[Row]:
        queues = self._queues(SCHEDULE_TOPIC)
        ids = sorted({*queues, *self._delays})
        if ids:
            self.totals[DELAY_GROUP] = 0
        for queue_id in ids:
            row = self._row(DELAY_GROUP, SCHEDULE_TOPIC, queue_id, self._delays.get(queue_id))
            level = f"delay level {queue_id + 1}"
            after = DEFAULT_LEVELS.get(queue_id + 1)
            if after is not None:
                level += f" ({after // 1000} s by default)"
            row["note"] = f"{level}; {row['note']}" if row["note"] else level
            self.totals[DELAY_GROUP] += row["diff"] or 0
            yield row

    def _without_group(self) -> Iterator[Row]:
        consumed = {topic for commits in self._commits.values() for topic in commits}
        if self._queues(SCHEDULE_TOPIC) or self._delays:
            consumed.add(SCHEDULE_TOPIC)
        topics = {self.topic} & self._on_disk.keys() if self.topic else self._on_disk.keys()
        for topic in sorted(topics - consumed):
            for queue_id, bounds in sorted(self._queues(topic).items()):
                row: Row = dict.fromkeys(COLUMNS)
                row.update(topic=topic, queue_id=queue_id)
                if isinstance(bounds, str):
                    row["note"] = bounds
                else:
                    row.update(min_offset=bounds.first, max_offset=bounds.end)
                yield row

    def _queues(self, topic: str) -> _Queues:
        """For each queue of the topic on disk, return its bounds, or the reason why it cannot be
        read.
        """
        if topic not in self._bounds_of:
            self._bounds_of[topic] = {queue_id: self._bounds(topic, queue_id)
                                      for queue_id in self._on_disk.get(topic, ())}
        return self._bounds_of[topic]

    def _bounds(self, topic: str, queue_id: int) -> Bounds | str:
        store = self.store
        try:
            queue = store.queues.by_key.get((topic, queue_id))
            if queue is not None:
                with closing(queue):  # a broker may have more queues than a process may open files
                    return self.view.bounds(queue)
            batches = store.queues.batch[topic, queue_id]
            return Bounds(*batches.bounds(store.log.min_offset, self.view.log_end))
        except (StoreIOError, FormatError) as error:
            return str(error)

    def _store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of the message at a queue offset; None if the message cannot be
        read.
        """
        if queue_offset < 0:
            return None
        try:
            queue = self.store.queues.by_key.get((topic, queue_id))
            if queue is not None:
                with closing(queue):
                    unit = queue.unit(queue_offset)
                if unit is None or not unit.is_valid:
                    return None
                record = self.store.log.record_at(unit.physical_offset, unit.size)
                return None if record is None else record.store_timestamp
            batches = self.store.queues.batch.get((topic, queue_id))
            row = None if batches is None else batches.find(queue_offset)
        except StoreIOError:
            return None
        return None if row is None else row.store_timestamp
