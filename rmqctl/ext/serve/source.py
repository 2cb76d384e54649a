"""A served store directory. It is opened read-only, and reopened when it has changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from rmqctl.broker.view import view_of
from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.log_reader import LogReader
from rmqctl.ext.serve.reading import EmptyQueue, PageCache, RecordQueue, ServedQueue, StoredQueue
from rmqctl.formats.local.properties import DLQ_PREFIX, RETRY_PREFIX
from rmqctl.formats.local.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.config.config import ConfigFile, load_one
from rmqctl.store.config.rows import snake
from rmqctl.store.log.bounds import View
from rmqctl.store.log.end import find_end, first_record, last_dispatched
from rmqctl.store.queue.compaction import is_served
from rmqctl.store.queue.rows import topics_on_disk
from rmqctl.store.store import Store

LMQ_FILE = "lmqConsumerOffset.json"
_MAX_COUNTED = 1_000_000
MAX_QUEUES = 1 << 16
"""Maximum number of queues of a topic; queues with higher ids are neither served nor created."""
READ, WRITE = 4, 2
"""Bits of a topic's permission."""


@dataclass(slots=True)
class ServedTopic:
    """A topic as clients see it."""

    name: str
    read_queues: int
    write_queues: int
    perm: int
    order: bool = False
    sys_flag: int = 0


@dataclass
class ServedStore:
    """An open store, with a cache of the data that requests need.

    ``kind``: which view of the store to serve: ``disk``, ``broker`` or ``auto``, see
    `rmqctl.broker.view.view_of`. ``pages``: cache that all stores of a server share.
    """

    open_store: Callable[[], Store]
    kind: str
    pages: PageCache
    is_own: bool = False
    """True if only this process writes to the store. Its consumer offsets are then read only once.
    """
    kept: dict[str, object] = field(default_factory=dict)
    """The `stat_of` values of those files in ``config/`` that this process wrote."""
    groups_that_stand: set[str] = field(default_factory=set)
    """The groups that have offsets in ``consumerOffset.json``."""
    _again: bool = False
    """True to reopen the store once more, even without a change. Entries may be written later than
    the messages that they point to.
    """
    problem: str | None = None
    """The reason why the store could not be reopened; its earlier state is served meanwhile."""
    _queues: dict[tuple[str, int], ServedQueue] = field(default_factory=dict)
    _config: dict[str, ConfigFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = self.open_store()
        self.groups: dict[str, dict[str, Any]] = {}
        self._seen = self._stamp()
        self._read(positions=True)

    def _read(self, *, positions: bool, topics: bool = True) -> None:
        self._config.clear()
        self._log_bounds: tuple[int, int] | None = None
        self.view: View = view_of(self.store, self.kind)
        self.log = LogReader(self.store.log, self.view.log_end)
        if not topics:
            for group in self.groups_that_stand:
                self.groups.setdefault(group, {})
            return
        self.topics = self._topics()
        if positions:
            self.groups_that_stand = {row["group"] for row in self.rows("consumerOffset.json")
                                      if row["group"]}
            self.offsets = self._offsets()
            light = self.config(LMQ_FILE)
            self.has_light_positions = light is not None and light.used is not None
        self.groups = self._groups()

    # -- change -------------------------------------------------------------------------------

    def refresh(self, *, force: bool = False, topics: bool = True) -> bool:
        """Reopen the store if it has changed. Return whether the store was reopened.

        ``force``: reopen the store in any case. ``topics``: whether to read topics and groups
        again.
        """
        stamp = self._stamp()
        if stamp == self._seen and not force and not self._again:
            return False
        self._again = stamp != self._seen
        before = self.store
        try:
            self.store = self.open_store()
            try:
                self._read(positions=not self.is_own, topics=topics)
            except BaseException:
                self.store.close()
                raise
        except RmqctlError as error:
            self.store = before
            self.problem = str(error)
            return False
        before.close()
        self.problem, self._seen = None, stamp
        self._queues.clear()
        return True

    def _stamp(self) -> object:
        """Return a value that changes whenever the store is written to: sizes and times of its
        folders and last log files.
        """
        root = self.store.root
        places = [*self.store.log_folders, *(os.path.join(root, name) for name in (
            "consumequeue", "config", "index"))]
        newest = [os.path.join(folder, max(names)) for folder in self.store.log_folders
                  if (names := _names(folder))]
        return [stat_of(place) for place in (*places, *newest)]

    def without_rows(self) -> int:
        """Return the number of messages after the last message with a consume queue entry.

        These messages are not served. Counting stops at `_MAX_COUNTED`. Raises: StoreIOError.
        """
        count = 0
        start = last_dispatched(self.store)
        for batch in self.store.log.walk(0 if start is None else start):
            kind = batch.column("sys_flag") & TRANSACTION_MASK
            has_row = (kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)
            if start is not None:
                has_row &= batch.offset > start
            count += int(has_row.sum())
            if count >= _MAX_COUNTED:
                break
        return count

    # -- queues -------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ServedQueue:
        """Return a queue from which clients can pull. Raises: StoreIOError if it cannot be read."""
        key = topic, queue_id
        queue = self._queues.get(key)
        if queue is None:
            queue = self._open_queue(topic, queue_id)
            if not isinstance(queue, EmptyQueue):  # clients may ask for any number of these
                self._queues[key] = queue
        return queue

    def _open_queue(self, topic: str, queue_id: int) -> ServedQueue:
        special = self.view.generation >= 5 and (
            (topic, queue_id) in self.store.queues.batch or is_served(self.store, topic, queue_id))
        if special:
            return RecordQueue(self.view, topic, queue_id)
        plain = self.store.queues.find(topic, queue_id)
        if plain is None or not plain.exists:
            return EmptyQueue()
        return StoredQueue(self.view, plain, self.log, self.pages)

    @property
    def log_bounds(self) -> tuple[int, int]:
        """The store time (ms) of the log's first message, and the physical offset of the log's end.
        The store time is -1 if the log is empty.
        """
        if self._log_bounds is None:
            try:
                first = first_record(self.store.log)
                end = find_end(self.store).offset
            except RmqctlError:
                first, end = None, self.store.log.min_offset
            limit = self.view.log_end
            self._log_bounds = (-1 if first is None else first.store_timestamp,
                                end if limit is None else limit)
        return self._log_bounds

    # -- configuration ------------------------------------------------------------------------

    def config(self, name: str) -> ConfigFile | None:
        """Return a file of ``config/``, or the configuration in RocksDB that replaces the file.

        Return None if the store's layout of the configuration is not supported.
        """
        if "config" in self.store.layout.unread:
            return None
        config = self._config.get(name)
        if config is None:
            config = self._config[name] = load_one(self.store, name)
        return config

    def rows(self, name: str) -> Iterable[dict[str, Any]]:
        """Return the entries of a file of ``config/``."""
        config = self.config(name)
        return () if config is None else config.rows()

    def _topics(self) -> dict[str, ServedTopic]:
        """Return all topics by name: those that are configured, and those that have queues."""
        topics: dict[str, ServedTopic] = {}
        for row in self.rows("topics.json"):
            topics[row["topic"]] = ServedTopic(
                row["topic"], _count(row["read_queue_nums"]), _count(row["write_queue_nums"]),
                READ | WRITE if row["perm_bits"] is None else row["perm_bits"],
                bool(row.get("order")), row.get("topic_sys_flag") or 0)
        on_disk: dict[str, int] = {}
        for topic, queue_id in (*self.store.queues.readable, *self.store.queues.batch):
            on_disk[topic] = max(on_disk.get(topic, 0), queue_id + 1)
        for topic in topics_on_disk(self.store):
            count = _count(on_disk.get(topic, 1))
            if topic not in topics:
                topics[topic] = ServedTopic(topic, count, count, READ | WRITE)
            elif topics[topic].read_queues < count:
                topics[topic].read_queues = count
        return topics

    def learn(self, name: str, config: Mapping[str, Any]) -> None:
        """Add or replace a topic that was just created or changed. ``config``: the topic's object
        in ``topics.json``.
        """
        self._config.pop("topics.json", None)
        current = self.topics.get(name)
        on_disk = 0 if current is None else max((queue_id + 1 for topic, queue_id in (
            *self.store.queues.readable, *self.store.queues.batch) if topic == name), default=0)
        self.topics[name] = ServedTopic(
            name, max(_count(config.get("readQueueNums")), _count(on_disk)),
            _count(config.get("writeQueueNums")), config.get("perm", READ | WRITE),
            bool(config.get("order")), config.get("topicSysFlag") or 0)
        self._add_group(self.groups, name)

    def forget(self, name: str) -> None:
        """Forget a topic that was deleted from ``topics.json``."""
        self._config.pop("topics.json", None)
        self.topics.pop(name, None)

    def learn_groups(self, new: Mapping[str, Mapping[str, Any]]) -> None:
        """Add or replace groups. ``new``: the groups' objects in ``subscriptionGroup.json``."""
        self._config.pop("subscriptionGroup.json", None)
        for name, config in new.items():
            self.groups[name] = {"group": name, **{snake(key): value
                                                   for key, value in config.items()}}

    def retry_queues(self, group: str) -> int:
        """Return the number of queues with which a group's retry topic is created.

        If the number is 0, messages that the group's consumers send back are not delivered again.
        """
        return _count(self.groups.get(group, {}).get("retry_queue_nums"))

    @staticmethod
    def _add_group(groups: dict[str, dict[str, Any]], topic: str) -> None:
        """If a topic is a retry or dead-letter topic, add its group."""
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if topic.startswith(prefix):
                groups.setdefault(topic.removeprefix(prefix), {})

    def _groups(self) -> dict[str, dict[str, Any]]:
        """Return all consumer groups: those in the configuration, those with consumer offsets, and
        those with a retry or dead-letter topic.
        """
        groups: dict[str, dict[str, Any]] = {
            row["group"]: row for row in self.rows("subscriptionGroup.json")}
        for group in self.groups_that_stand:
            groups.setdefault(group, {})
        for topic in self.topics:
            self._add_group(groups, topic)
        return groups

    def _offsets(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return the stored consumer offsets: (group, topic) -> queue id -> queue offset."""
        offsets: dict[tuple[str, str], dict[int, int]] = {}
        for row in (*self.rows("consumerOffset.json"), *self.rows(LMQ_FILE)):
            if row["group"] is not None and isinstance(row["offset"], int):
                queues = offsets.setdefault((row["group"], row["topic"]), {})
                queues[row["queue_id"]] = row["offset"]
        return offsets

    def close(self) -> None:
        self.store.close()


def _count(value: object) -> int:
    return min(max(value, 0), MAX_QUEUES) if isinstance(value, int) else 1


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []


def stat_of(path: str) -> tuple[int, int, int] | None:
    """Return a value that changes whenever a file or folder changes; None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
