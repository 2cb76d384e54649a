"""Records in a log that may be messages, or part of a damaged message's body."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import field

import numpy as np

from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array, Batch, Span
from rmqctl.store.log.commit_log import packed_records
from rmqctl.store.store import Store

_SOME = 4096
_MAX_LOOKED_UP = 1 << 16
"""Maximum number of records whose queue offsets are looked up; the others are only counted."""


@dataclass(slots=True)
class Undecided:
    """Undecided records: their number, and the queue offsets in their headers, by queue."""

    store: Store
    count: int = 0
    offsets: dict[QueueKey, OffsetRuns] = field(default_factory=dict)

    def look(self, spans: Iterable[Span]) -> None:
        """Add the undecided records in the spans of a scan.
        Raises: StoreIOError.
        """
        frames = [frame for span in spans for frame in span.doubtful]
        room = max(0, _MAX_LOOKED_UP - self.count)
        self.count += len(frames)
        log = self.store.log
        for start in range(0, min(len(frames), room), _SOME):
            place, size = np.array(frames[start:start + _SOME], np.int64).T
            head = log.files[0].head
            records, _ = packed_records(log, place + head, size - head)
            if len(records):
                self._claims(records)

    def _claims(self, records: Batch) -> None:
        topics = text.Dictionary()
        topic = topics.encode(text.topics(records))
        names = [os.fsdecode(name) for name in topics.texts]
        queue_id, offset = records.column("queue_id"), records.column("queue_offset")
        order = np.lexsort((queue_id, topic))
        changes = (np.diff(topic[order]) != 0) | (np.diff(queue_id[order]) != 0)
        for rows in np.split(order, np.flatnonzero(changes) + 1):
            which: Array = rows
            key = names[int(topic[which[0]])], int(queue_id[which[0]])
            self.offsets.setdefault(key, OffsetRuns()).add(offset[which])
