"""Messages that exist only in the compaction log of a topic. A broker reads that log instead of the
commitlog.

spec: timer-and-others-5x.md §2.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.store.pages import Page, RecordPage
from rmqctl.store.problems import Problem, Report
from rmqctl.store.queue.compaction import CompactionQueue, compacted_queues, first_in_log
from rmqctl.store.store import Store

_CHUNK = 512


def compacted_pages(store: Store, topic: str, queue_id: int | None, from_offset: int,
                    report: Report) -> Iterator[Page]:
    """Yield the messages of a topic (and queue) that only its compaction log still contains, one
    queue after the other.
    """
    for number in compacted_queues(store, topic):
        if queue_id is not None and number != queue_id:
            continue
        try:
            queue = CompactionQueue.open(store, topic, number)
            if queue is None:
                continue
            with queue:
                first = first_in_log(store, topic, number)
                units = [unit for unit in queue.alone(first) if unit.msg_base_offset >= from_offset]
                if units:
                    report(Problem("note", f"{topic}/{number}: {len(units):,} messages are only in "
                                   "the compaction log; their physical offsets refer to it"))
                for start in range(0, len(units), _CHUNK):
                    records = [queue.record(unit) for unit in units[start:start + _CHUNK]]
                    yield RecordPage([record for record in records if record is not None])
        except (StoreIOError, FormatError) as error:
            report(Problem("unreadable", f"{error}: the compaction log of {topic}/{number} is "
                           "skipped"))
