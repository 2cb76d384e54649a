"""The compaction store of one queue (5.1+): a log of the kept messages, and its sparse index.

spec: timer-and-others-5x.md §2. A broker reads the messages of compacted topics only from this
store (`DefaultMessageStore.getMessage`), even before the first compaction. Until they expire, the
commitlog contains all messages of these topics, including superseded ones and messages without
keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import compaction as layout
from rmqctl.formats.local.compaction import UNIT_SIZE, UnitRecord
from rmqctl.formats.local.message import MIN_SIZE, Record
from rmqctl.scan.frames import DAMAGED, Batch, Span
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import Closing, FileSource
from rmqctl.scan.text import topics
from rmqctl.store.config.config import topic_table
from rmqctl.store.files import listing
from rmqctl.store.log.bounds import View
from rmqctl.store.log.commit_log import CommitLog, packed_records
from rmqctl.store.problems import Problem, Report
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.rows import BatchRows, QueueRows, queue_ids, topic_rows
from rmqctl.store.queue.search import LAST, first_from
from rmqctl.store.store import Store

_FOLDER = "compaction"
_LOG, _QUEUE = "compactionLog", "compactionCq"
POLICY, COMPACTION = "cleanup.policy", "COMPACTION"
SERVED = ("read from the compaction log, as a broker does; physical offsets refer to it (--view "
          "disk reads the commitlog)")
"""The note about a topic or queue that is read from the compaction log."""
_NO_MESSAGE = "there are no messages of this queue"
_SINCE = 5
_BYTES = 2 << 20


class CompactionQueue(Closing):
    """The messages in the compaction store of one queue, by queue offset. Read-only; a context
    manager.
    """

    def __init__(self, files: list[list[UnitRecord]], log: CommitLog) -> None:
        self.files, self.log = files, log

    @classmethod
    def open(cls, store: Store, topic: str, queue_id: int) -> CompactionQueue | None:
        """Open the compaction log of a queue; None if the topic has no compaction store.

        Raises: StoreIOError if it cannot be read.
        """
        if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
            return None
        parts = topic, str(queue_id)
        index = listing(store.path(_FOLDER, _QUEUE, *parts)).files
        log = listing(store.path(_FOLDER, _LOG, *parts)).files
        if not index and not log:
            return None
        return cls([_units(file.path) for file in index], CommitLog(log))

    @classmethod
    def served(cls, store: Store, topic: str, queue_id: int) -> CompactionQueue | None:
        """Open the compaction log of a queue, like `open`; return None also if a broker reads the
        topic from the commitlog.
        """
        return cls.open(store, topic, queue_id) if is_served(store, topic, queue_id) else None

    @property
    def bounds(self) -> tuple[int, int]:
        """The min and max queue offset; (0, 0) if the queue is empty."""
        units = [unit for units in self.files for unit in units]
        if not units:
            return 0, 0
        return units[0].msg_base_offset, units[-1].msg_base_offset + 1

    def file_units_from(self, offset: int) -> list[UnitRecord]:
        """Return the units with a queue offset of at least ``offset``, from the first file that has
        any.
        """
        for units in self.files:
            units_from = [unit for unit in units if unit.msg_base_offset >= offset]
            if units_from:
                return units_from
        return []

    def record(self, unit: UnitRecord) -> Record | None:
        """Return the message to which a unit points; its ``physical_offset`` refers to the
        compaction log.
        """
        return self.log.record_at(unit.physical_offset, unit.size)

    def alone(self, first_in_log: int) -> list[UnitRecord]:
        """Return the units of messages that the commitlog no longer contains."""
        return [unit for units in self.files for unit in units
                if unit.msg_base_offset < first_in_log]

    def close(self) -> None:
        self.log.close()


class CompactedRows(BatchRows):
    """A compacted queue with the interface `QueueRows`; its physical offsets refer to the
    compaction log.
    """

    def __init__(self, store: Store, topic: str, queue_id: int) -> None:
        self.topic, self.queue_id, self.behind, self.unused = topic, queue_id, 0, []
        parts = topic, str(queue_id)
        folder = store.path(_FOLDER, _QUEUE, *parts)
        index = BatchQueue(topic, queue_id, folder, listing(folder).files, [])
        self.log = CommitLog(listing(store.path(_FOLDER, _LOG, *parts)).files)
        rows = [index.used(number) for number in range(len(index.files))]
        self._rows = np.concatenate(rows or [np.zeros(0, layout.UNIT.dtype())])
        base = self._rows["msg_base_offset"]
        self.first, self.end = (int(base[0]), int(base[-1]) + 1) if len(base) else (0, 0)

    def batches(self, start: int, end: int) -> Iterator[Batch]:
        """Yield the messages in ``[start, end)`` of the compaction log, in batches.

        An entry that points to no message of the queue is reported as a damaged span of its batch.
        """
        name, before = os.fsencode(self.topic), -1
        for _, places, sizes in self.pages(self.first, self.end):
            good = (sizes >= MIN_SIZE) & (sizes <= MAX_RECORD)
            good &= places > np.maximum.accumulate(np.append(before, places))[:-1]
            before = max(before, int(places.max(initial=-1)))
            inside = (places >= start) & (places < end)
            bad, rows = np.flatnonzero(inside & ~good), np.flatnonzero(inside & good)
            while len(rows) or len(bad):
                count = max(int(np.searchsorted(np.cumsum(sizes[rows]), _BYTES, "right")), 1)
                some, rows = rows[:count], rows[count:]
                batch, ok = packed_records(self.log, places[some], sizes[some])
                ok &= topics(batch).equal(name) & (batch.column("queue_id") == self.queue_id)
                lost, bad = np.concatenate([bad, some[~ok]]), bad[:0]
                batch = batch if ok.all() else batch.select(np.flatnonzero(ok))
                batch.spans += [Span(DAMAGED, int(places[row]), int(sizes[row]), _NO_MESSAGE)
                                for row in lost]
                yield batch


def served_queues(store: Store) -> Iterator[tuple[str, int]]:
    """Yield all queues that a broker reads from a compaction log."""
    if store.generation >= _SINCE:
        for topic in listing(store.path(_FOLDER, _QUEUE)).folders:
            for number in queue_ids(store, f"{_FOLDER}/{_QUEUE}", topic):
                if is_served(store, topic, number):
                    yield topic, number


def is_served(store: Store, topic: str, queue_id: int) -> bool:
    """Return whether a broker reads a queue from its compaction log.

    A broker does so if the folder of the compaction log exists, and the topic is a compaction
    topic or has no configuration.
    """
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
        return False
    entry = (topic_table(store) or {}).get(topic)
    attributes = entry.get("attributes") if isinstance(entry, dict) else None
    is_compacted = entry is None or (
        isinstance(attributes, dict) and attributes.get(POLICY) == COMPACTION)
    return is_compacted and vfs.isdir(store.path(_FOLDER, _QUEUE, topic, str(queue_id)))


def served_rows(store: Store, topic: str, queue_id: int | None, view: View,
                report: Report = lambda _problem: None) -> list[QueueRows]:
    """Like `topic_rows`, return the queues of a topic, but with the contents of their compaction
    logs.

    This applies only in a view with compacted topics, and only to queues that a broker reads from a
    compaction log.
    """
    queues = topic_rows(store, topic, queue_id, view, report)
    if not view.compacted or view.generation < _SINCE:
        return queues
    served: dict[int, QueueRows] = {rows.queue_id: rows for rows in queues}
    for number in queue_ids(store, f"{_FOLDER}/{_QUEUE}", topic):
        if queue_id in (None, number) and is_served(store, topic, number):
            served.pop(number, None)
            try:
                served[number] = CompactedRows(store, topic, number)
            except (StoreIOError, FormatError) as error:
                report(Problem("unreadable", f"{error}: the compaction log of {topic}/{number} is "
                               "skipped"))
    return [served[number] for number in sorted(served)]


def first_in_log(store: Store, topic: str, queue_id: int) -> int:
    """Return the first queue offset whose message is still in the commitlog. Raises: StoreIOError.

    `LAST` if the topic does not have this queue: the commitlog then contains none of its messages.
    """
    queue = store.queues.find_readable(topic, queue_id)
    if queue is None:
        return LAST
    return first_from(queue, queue.first_index, queue.disk_end, store.log.min_offset)


def compacted_queues(store: Store, topic: str) -> list[int]:
    """Return the ids of the topic's queues that have a compaction log."""
    return queue_ids(store, f"{_FOLDER}/{_LOG}", topic)


def _units(path: str) -> list[UnitRecord]:
    """Return the used units of an index file, up to the unit that marks its end."""
    with FileSource(path) as source:
        data = source.read(0, source.size)
    units = []
    for position in range(0, len(data) - UNIT_SIZE + 1, UNIT_SIZE):
        unit = layout.decode(data, position)
        if layout.is_end(unit) or not unit.is_valid:
            break
        units.append(unit)
    return units
