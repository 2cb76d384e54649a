"""The queues of a topic, plain or batch, as sequences of rows that point into the log.

A row is (queue offset, physical offset, size), which is all that a reader needs of a consume queue
entry. Padding entries and entries of expired messages are omitted. Entries that point beyond the
end of the log are after `end`. Consecutive rows that point to no record are reported together.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.names import parse_queue_id
from rmqctl.scan.frames import Array
from rmqctl.store.files import listing
from rmqctl.store.log.bounds import View
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.problems import Problem, Report
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.search import first_stored
from rmqctl.store.store import Store

PAGE_ROWS = 4096
CLOCK_SLACK = 60_000
"""Maximum number of milliseconds by which a broker's clock is assumed to have been set back. A
search by time is extended by this number.
"""


class QueueRows(Protocol):
    """The interface of a queue for readers. ``first`` and ``end`` are queue offsets."""

    topic: str
    queue_id: int
    log: CommitLog
    """The log to which the physical offsets of the rows refer."""
    first: int
    end: int
    behind: int
    """Number of rows on disk after ``end``, which point to no record because the log was
    truncated."""
    unused: list[int]
    """Queue offsets of zero rows that are followed by nonzero rows, among the rows that `pages`
    has read."""

    @property
    def why_unread(self) -> str:
        """The reason why some of the zero rows could not be read; "" if they are really zero."""
        ...

    def pages(self, start: int, end: int, tags: Collection[int] | None = None) -> Iterator[
            tuple[Array, Array, Array]]:
        """Yield (queue offsets, physical offsets, sizes) of the rows in ``[start, end)``.

        With ``tags`` (hashes), only rows that may point to a message with one of these tags are
        yielded.
        """
        ...

    def backward(self) -> Iterator[tuple[int, int]]:
        """Yield (physical offset, size) of all rows, from the last to the first."""
        ...

    def at_or_after(self, when: int) -> int:
        """Return the queue offset of the first row whose message was stored at ``when`` or later;
        `end` if there is none.
        """
        ...


class PlainRows:
    """The rows of a consume queue with 20-byte units."""

    def __init__(self, queue: ConsumeQueue, view: View) -> None:
        self.topic, self.queue_id = queue.topic, queue.queue_id
        self._queue, self.log = queue, view.store.log
        bounds = view.bounds(queue)
        self.first, self.end, self.behind = bounds.first, bounds.end, 0
        self.unused: list[int] = []
        if view.log_end is None:
            self.behind = max(queue.valid_end - bounds.end, 0)
            if not self.behind:  # for a reader of the disk, rows after a hole are not lost
                self.end = max(self.end, queue.disk_end)

    @property
    def why_unread(self) -> str:
        return self._queue.why_unread

    def pages(self, start: int, end: int, tags: Collection[int] | None = None) -> Iterator[
            tuple[Array, Array, Array]]:
        filler = np.array(tuple(FILLER), self._queue.units(0, 0).dtype)
        start = max(start, self.first)
        for first, rows in self._queue.pages(start, min(end, self.end), PAGE_ROWS):
            self._queue.close()  # a topic may have more queues than a process may open files
            empty = rows == np.zeros(1, rows.dtype)
            if empty.any():
                self.unused += (np.flatnonzero(empty) + first).tolist()
            messages = np.flatnonzero((rows != filler) & ~empty)
            if tags is not None:
                messages = messages[_may_have(rows["tags_code"][messages], tags)]
            yield (messages + first, rows["physical_offset"][messages].astype(np.int64),
                   rows["size"][messages].astype(np.int64))

    def backward(self) -> Iterator[tuple[int, int]]:
        for start in range(self.end - PAGE_ROWS, self.first - PAGE_ROWS, -PAGE_ROWS):
            for page in reversed(list(self.pages(start, start + PAGE_ROWS))):
                yield from zip(page[1][::-1].tolist(), page[2][::-1].tolist(), strict=True)

    def at_or_after(self, when: int) -> int:
        return first_stored(self._store_time, self.first, self.end, when)

    def _store_time(self, queue_offset: int) -> int | None:
        unit = self._queue.unit(queue_offset)
        record = None if unit is None or unit == FILLER else self.log.record_at(
            unit.physical_offset, unit.size)
        return None if record is None else record.store_timestamp


class BatchRows:
    """The rows of a batch consume queue; the queue offset of a row is the first one that its entry
    covers.
    """

    why_unread = ""

    def __init__(self, queue: BatchQueue, view: View) -> None:
        self.topic, self.queue_id, self.behind = queue.topic, queue.queue_id, 0
        self.unused: list[int] = []
        self.log = view.store.log
        log_min = self.log.min_offset
        self.first, self.end = queue.bounds(log_min, view.log_end)
        rows = queue.all_used(view.log_end)
        self._rows = rows[rows["physical_offset"] >= log_min]

    def pages(self, start: int, end: int, tags: Collection[int] | None = None) -> Iterator[
            tuple[Array, Array, Array]]:
        base = self._rows["msg_base_offset"].astype(np.int64)
        # The row that covers ``start`` counts even if it begins before it.
        wanted = np.flatnonzero((base + self._rows["batch_size"] > start) & (base < end))
        for first in range(0, len(wanted), PAGE_ROWS):
            rows = self._rows[wanted[first:first + PAGE_ROWS]]
            yield (rows["msg_base_offset"].astype(np.int64),
                   rows["physical_offset"].astype(np.int64), rows["size"].astype(np.int64))

    def backward(self) -> Iterator[tuple[int, int]]:
        for row in self._rows[::-1]:
            yield int(row["physical_offset"]), int(row["size"])

    def at_or_after(self, when: int) -> int:
        later = np.flatnonzero(self._rows["store_timestamp"] >= when)
        return int(self._rows["msg_base_offset"][later[0]]) if len(later) else self.end


def _may_have(codes: Array, tags: Collection[int]) -> Array:
    """Return a boolean array: whether the message of each row may have a tag with one of these
    hashes.

    The result for a row is false only if its tags code is another hash. If no other row of the page
    has that code, the code may be damaged, and the result is true. The caller reads and checks the
    messages.
    """
    codes = codes.astype(np.int64)
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    borders = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    alone: Array = np.zeros(len(codes), bool)
    if len(codes):
        counts = np.diff(np.append(borders, len(codes)))
        alone[order[borders[counts == 1]]] = True
    possible: Array = alone | (codes < -(1 << 31)) | (codes >= 1 << 31)
    for tag in tags:
        possible |= codes == tag
    return possible


def queue_ids(store: Store, structure: str, topic: str) -> list[int]:
    """Return, in ascending order, the queue ids that have a folder for ``topic`` in a structure."""
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
        return []
    if structure == "consumequeue" and store.layout.consumequeue == "rocksdb":
        return sorted(queue_id for name, queue_id in store.queues.readable if name == topic)
    numbers = map(parse_queue_id, listing(store.path(structure, topic)).folders)
    return sorted(queue_id for queue_id in numbers if queue_id is not None)


def batch_queue(store: Store, topic: str, queue_id: int) -> BatchQueue | None:
    """Return one batch consume queue; only its own folder is listed."""
    if queue_id not in queue_ids(store, "batchconsumequeue", topic):
        return None
    folder = store.path("batchconsumequeue", topic, str(queue_id))
    folder_listing = listing(folder)
    return BatchQueue(topic, queue_id, folder, folder_listing.files, folder_listing.troubles)


def topic_rows(store: Store, topic: str, queue_id: int | None, view: View,
               report: Report = lambda _problem: None) -> list[QueueRows]:
    """Return the queues of a topic that have files, by queue id; with ``queue_id``, only that
    queue.

    Unreadable queues are reported and omitted.
    """
    queues: list[QueueRows] = []

    def add(queue: ConsumeQueue | BatchQueue | None) -> None:
        if queue is None or not queue.exists:
            return
        try:
            queues.append(PlainRows(queue, view) if isinstance(queue, ConsumeQueue)
                          else BatchRows(queue, view))
        except StoreIOError as error:
            report(Problem("unreadable", f"{error}: queue {topic}/{queue.queue_id} is skipped"))
        if isinstance(queue, ConsumeQueue):
            queue.close()

    for number in queue_ids(store, "consumequeue", topic):
        if queue_id in (None, number):
            add(store.queues.find(topic, number))
    for number in queue_ids(store, "batchconsumequeue", topic):
        if queue_id in (None, number):
            add(batch_queue(store, topic, number))
    return queues


def has_queue_files(store: Store, topic: str) -> bool:
    """Return whether any queue of a topic has a file, readable or not."""
    plain = (store.queues.find_readable(topic, queue_id)
             for queue_id in queue_ids(store, "consumequeue", topic))
    return any(queue is not None and queue.exists for queue in plain) or any(
        listing(store.path("batchconsumequeue", topic, str(queue_id))).files
        for queue_id in queue_ids(store, "batchconsumequeue", topic))


def topics_on_disk(store: Store) -> list[str]:
    """Return the sorted names of all topics that have a folder of queues in any structure."""
    topics: set[str] = set()
    if store.layout.consumequeue == "rocksdb":
        topics.update(topic for topic, _ in store.queues.readable)
    for structure in ("consumequeue", "batchconsumequeue", os.path.join("compaction",
                                                                       "compactionLog")):
        topics.update(listing(store.path(structure)).folders)
    return sorted(topics)


class MissingRows:
    """Collects rows that point to no message of their queue, and reports consecutive rows
    together.
    """

    def __init__(self, log: CommitLog, queues: Sequence[QueueRows], report: Report) -> None:
        self._log, self._queues, self._report = log, queues, report
        self._runs: dict[int, tuple[int, int, int, int, int]] = {}

    def add(self, number: int, offset: int, physical: int, size: int) -> None:
        """Add a row of queue number ``number``; the rows of a queue must be added in ascending
        order.
        """
        run = self._runs.get(number)
        if run is not None and offset == run[1] + 1:
            self._runs[number] = (run[0], offset, *run[2:4], run[4] + 1)
            return
        if run is not None:
            self._tell(number)
        self._runs[number] = offset, offset, physical, size, 1

    def finish(self) -> None:
        """Report the rows that were not reported yet."""
        for number in sorted(self._runs):
            self._tell(number)
        self._runs.clear()

    def _tell(self, number: int) -> None:
        first, last, physical, size, count = self._runs[number]
        queue = self._queues[number]
        rows = f"entry {first} points" if count == 1 else f"entries {first} to {last} point"
        where = "" if count == 1 else ", the first one"
        reason = self._log.explain(physical)
        if reason == "a record is there":
            record = self._log.record_at(physical)
            reason = "" if record is None else (
                f"the record there has {record.total_size} bytes, not {size}"
                if record.total_size != size else
                f"the message there belongs to {os.fsdecode(record.topic)}/{record.queue_id}")
        self._report(Problem(
            "row", f"{queue.topic}/{queue.queue_id}: {rows} to no message{where} at physical "
            f"offset {physical}: {reason}", physical, size))
