"""The topics with messages in their queues, and the first and end offsets of these queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cached_property
from typing import Any, NamedTuple

from rmqctl.checks.metadata.tables import LMQ_OFFSETS, OFFSETS, group_of, is_user_topic
from rmqctl.checks.verify.context import deleted, known_topics
from rmqctl.errors import FormatError, RmqctlError, StoreIOError
from rmqctl.formats.local.consume_queue import UNIT_SIZE
from rmqctl.formats.local.properties import SCHEDULE_TOPIC
from rmqctl.store.config.config import load_shared
from rmqctl.store.files import StoreFile
from rmqctl.store.log.bounds import Bounds, View
from rmqctl.store.queue.compaction import compacted_queues
from rmqctl.store.queue.consume_queue import ConsumeQueue, valid
from rmqctl.store.store import Store


class OffsetBeyondEnd(NamedTuple):
    """A group's offset that is beyond the end of a queue; its consumers get OFFSET_OVERFLOW_BADLY.
    ``max_offset``: the end of the queue.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    max_offset: int


def offsets_beyond(store: Store, end_of: Callable[[str, int], int | None]) -> Iterator[
        OffsetBeyondEnd]:
    """Yield committed offsets beyond the end of their queue. Offsets of deleted topics are skipped.
    ``end_of`` returns the end of a queue (0 if the queue does not exist, None if unknown).
    """
    configured = known_topics(store)
    for name in (OFFSETS, LMQ_OFFSETS):
        for row in load_shared(store, name).rows():
            topic, queue_id = row["topic"], row["queue_id"]
            end = end_of(topic, queue_id)
            if end is not None and row["offset"] > end and (end or not deleted(topic, configured)):
                yield OffsetBeyondEnd(row["group"], topic, queue_id, row["offset"], end)


class ReadableQueues:
    """The readable queues of a store: plain or batch queues, in files or RocksDB. They are read on
    demand.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._view = View(store)
        self._bounds: dict[tuple[str, int], Bounds | None] = {}

    @cached_property
    def with_messages(self) -> dict[str, list[int]]:
        """Return, by topic (including system topics), the ids of queues with at least one entry."""
        ids_by_topic: dict[str, list[int]] = {}
        try:
            keys = [key for key, queue in self._store.queues.readable.items() if queue.exists]
            keys += [key for key, queue in self._store.queues.batch.items() if queue.exists]
        except RmqctlError:
            return ids_by_topic
        for topic, queue_id in dict.fromkeys(keys):
            ids_by_topic.setdefault(topic, []).append(queue_id)
        return {topic: sorted(ids) for topic, ids in ids_by_topic.items()}

    def is_user(self, topic: str) -> bool:
        """Return whether a topic is one of the topics in `user`."""
        return topic in self.with_messages and is_user_topic(topic) and group_of(topic) is None

    @cached_property
    def user(self) -> list[str]:
        """Return the topics that producers send to (not system, retry or dead letter topics)."""
        return [topic for topic in self.with_messages
                if is_user_topic(topic) and group_of(topic) is None]

    @property
    def delayed(self) -> bool:
        """Return whether there are delayed messages."""
        return SCHEDULE_TOPIC in self.with_messages

    def bounds(self, topic: str, queue_id: int) -> Bounds | None:
        """Return the first offset and the end offset of a queue; None if they are unknown or the
        queue has no messages.
        """
        key = topic, queue_id
        if key not in self._bounds:
            bounds = self._read(topic, queue_id)
            self._bounds[key] = bounds if bounds is not None and bounds.end > bounds.first else None
        return self._bounds[key]

    def end(self, topic: str, queue_id: int) -> int | None:
        """Return the queue offset after the last message of a queue; 0 if the queue does not exist,
        None if unknown.
        """
        if queue_id not in self.with_messages.get(topic, ()):
            return 0
        bounds = self._read(topic, queue_id)
        return None if bounds is None else bounds.end

    @cached_property
    def before_log(self) -> dict[str, int]:
        """Return, by topic, the number of consume queue entries that point to missing log files,
        from the first entry on that proves that no broker deleted these files.

        A broker's cleaner deletes a consume queue file together with the log files of its messages,
        but never the last file of a queue. A file before the last with entries of missing log files
        alone is such a proof. Entries in other files do not count if they are older than it, as
        their messages expired. Topics with a compaction log do not count: brokers read it.
        """
        start = self._store.log.min_offset
        firsts = []
        for _, queue in self._store.queues.plain.items() if start > 0 else ():
            with closing(queue):
                if len(queue.files) > 1:
                    units = _filled(queue, queue.files[0])
                    if len(units) and units[-1]["physical_offset"] < start:
                        firsts.append(int(units[0]["physical_offset"]))
        counts: dict[str, int] = {}
        for (topic, queue_id), queue in self._store.queues.plain.items() if firsts else ():
            if queue_id in compacted_queues(self._store, topic):
                continue
            with closing(queue):
                for file in queue.files:
                    places = _filled(queue, file)["physical_offset"]
                    counts[topic] = counts.get(topic, 0) + int(
                        ((places >= min(firsts)) & (places < start)).sum())
                    if len(places) and places[-1] >= start:
                        break
        return {topic: count for topic, count in sorted(counts.items()) if count}

    def count(self, topic: str) -> int:
        """Return the number of messages in all queues of a topic."""
        of_queues = (self.bounds(topic, queue_id) for queue_id in self.with_messages.get(topic, ()))
        return sum(bounds.end - bounds.first for bounds in of_queues if bounds is not None)

    def _read(self, topic: str, queue_id: int) -> Bounds | None:
        try:
            queue = self._store.queues.readable.get((topic, queue_id))
            if queue is not None:
                with closing(queue):
                    return self._view.bounds(queue)
            batch = self._store.queues.batch.get((topic, queue_id))
            return None if batch is None else Bounds(*batch.bounds(self._store.log.min_offset))
        except (StoreIOError, FormatError):
            return None


def _filled(queue: ConsumeQueue, file: StoreFile) -> Any:
    """Return the valid units of a consume queue file."""
    units = queue.units(file.base // UNIT_SIZE, file.size // UNIT_SIZE)
    return units[valid(units)]
