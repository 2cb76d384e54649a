"""The compaction store of one queue (5.1+): a sparse index and a log of its own.

spec: timer-and-others-5x.md §2. A broker reads such topics from here only; the commitlog holds
their messages too, until it expires.
"""

from __future__ import annotations

from rmqctl.formats.local import compaction as layout
from rmqctl.formats.local.compaction import UNIT_SIZE, UnitRecord
from rmqctl.formats.local.message import Record
from rmqctl.scan.source import Closing, FileSource
from rmqctl.store.files import listing
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.queue.rows import queue_ids
from rmqctl.store.queue.search import LAST, first_from
from rmqctl.store.store import Store

_FOLDER = "compaction"
_LOG, _QUEUE = "compactionLog", "compactionCq"


class CompactionQueue(Closing):
    """The kept messages of one queue, by queue offset. Read-only; a context manager."""

    def __init__(self, files: list[list[UnitRecord]], log: CommitLog) -> None:
        self.files, self.log = files, log

    @classmethod
    def open(cls, store: Store, topic: str, queue_id: int) -> CompactionQueue | None:
        """None where the topic has no compaction store. StoreIOError if it cannot be read."""
        if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
            return None
        parts = topic, str(queue_id)
        index = listing(store.path(_FOLDER, _QUEUE, *parts)).files
        log = listing(store.path(_FOLDER, _LOG, *parts)).files
        if not index and not log:
            return None
        return cls([_units(file.path) for file in index], CommitLog(log))

    @property
    def bounds(self) -> tuple[int, int]:
        """(min, max) queue offset; (0, 0) if empty."""
        units = [unit for units in self.files for unit in units]
        if not units:
            return 0, 0
        return units[0].msg_base_offset, units[-1].msg_base_offset + 1

    def file_units_from(self, offset: int) -> list[UnitRecord]:
        """The units with queue offset ``offset`` and above in the first file that has any."""
        for units in self.files:
            units_from = [unit for unit in units if unit.msg_base_offset >= offset]
            if units_from:
                return units_from
        return []

    def record(self, unit: UnitRecord) -> Record | None:
        """The message of a unit; its ``physical_offset`` counts in the compaction log."""
        return self.log.record_at(unit.physical_offset, unit.size)

    def alone(self, first_in_log: int) -> list[UnitRecord]:
        """The units of messages that the commitlog no longer has."""
        return [unit for units in self.files for unit in units
                if unit.msg_base_offset < first_in_log]

    def close(self) -> None:
        self.log.close()


def first_in_log(store: Store, topic: str, queue_id: int) -> int:
    """The first queue offset whose message the commitlog still has; all are gone without a queue.

    StoreIOError.
    """
    queue = store.known_queue(topic, queue_id)
    if queue is None:
        return LAST
    return first_from(queue, queue.first_index, queue.disk_end, store.log.min_offset)


def compacted_queues(store: Store, topic: str) -> list[int]:
    """The queues of a topic that have a compaction log."""
    return queue_ids(store, f"{_FOLDER}/{_LOG}", topic)


def _units(path: str) -> list[UnitRecord]:
    """The used units of an index file, up to its end unit."""
    with FileSource(path) as source:
        data = source.read(0, source.size)
    units = []
    for position in range(0, len(data) - UNIT_SIZE + 1, UNIT_SIZE):
        unit = layout.decode(data, position)
        if layout.is_end(unit) or not unit.is_valid:
            break
        units.append(unit)
    return units
