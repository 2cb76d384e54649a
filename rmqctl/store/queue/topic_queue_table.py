"""The topicQueueTable: the next queue offset of every queue (spec: recovery.md §5).

A broker keeps this table in memory and rebuilds it from the consume queues when it starts. This
module computes it in one pass over the commitlog, and also from the consume queues, to compare the
results. The keys of a broker's table are ``topic-queueId``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import field
from functools import partial
from typing import Literal

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import DAMAGED, Span
from rmqctl.scan.queue_reach import LightQueues, QueueReach, Reach
from rmqctl.scan.tolerant import UnreadRange
from rmqctl.store.files import StoreFile
from rmqctl.store.log import ranges
from rmqctl.store.log.bounds import View
from rmqctl.store.log.end import find_end
from rmqctl.store.problems import Problem, Report, unread
from rmqctl.store.store import Store

Key = tuple[str, int]
Source = Literal["log", "consumequeue", "both"]
_NAMED = 5
COLUMNS = ("topic", "queue_id", "from_log", "from_consumequeue", "agrees")


@dataclass(frozen=True, slots=True)
class TableRow:
    """The next queue offset of one queue, according to the log and according to its consume queue.

    An offset is None if unknown. ``expired``: whether the start of the log has expired. In this
    case, messages of some queues may be missing from the log.
    """

    topic: str
    queue_id: int
    from_log: int | None
    from_consumequeue: int | None
    compared: bool = True
    expired: bool = False

    @property
    def key(self) -> str:
        """The queue's key in a broker's table, for example ``TopicTest-3``."""
        return f"{self.topic}-{self.queue_id}"

    @property
    def agrees(self) -> bool | None:
        """Return whether log and consume queue give the same offset; None if only one of them is
        known.
        """
        if not self.compared or (self.from_log is None and self.expired):
            return None
        return (self.from_log or 0) == (self.from_consumequeue or 0)

    def next_offset(self, source: Source = "log") -> int | None:
        """Return the queue's next offset according to a source.

        If all messages of a queue have expired, the log does not show the offset, and the offset of
        the consume queue is used. For ``both``, the result is the greater offset, so no offset is
        assigned twice.
        """
        if source == "consumequeue":
            return self.from_consumequeue
        if source == "both":
            ends = [end for end in (self.from_log, self.from_consumequeue) if end is not None]
            return max(ends, default=None)
        return self.from_consumequeue if self.from_log is None else self.from_log

    def as_dict(self) -> dict[str, str | int | bool | None]:
        return {name: getattr(self, name) for name in COLUMNS}


def rebuild(store: Store, view: View, source: Source = "both", *, jobs: int = 1,
            progress: Callable[[int], None] | None = None, report: Report | None = None,
            range_size: int = ranges.RANGE_SIZE) -> list[TableRow]:
    """Return the rows of all queues that ever had a message, sorted by topic and queue id.

    In the disk view, every provable record counts, including records after damage. In the broker
    view, the log ends where a broker's recovery would truncate it. With the source
    ``consumequeue``, the log is not read. ``report`` is called with each problem. Raises:
    StoreIOError if a file of the log cannot be read.
    """
    report_problem = report or (lambda _: None)
    by_rows = consumequeue_ends(store, view, report_problem)
    by_log: dict[Key, int] = {}
    if source != "consumequeue":
        reached = log_reach(store, view, jobs=jobs, progress=progress, report=report_problem,
                            range_size=range_size)
        by_log = {key: reach.end for key, reach in reached.items()}
    expired = store.log.min_offset > 0
    table_rows = (TableRow(*key, by_log.get(key), by_rows.get(key), source != "consumequeue",
                           expired)
                  for key in sorted({*by_log, *by_rows}))
    return [row for row in table_rows if row.from_log or row.from_consumequeue]


def disagreements(rows: Collection[TableRow]) -> list[str]:
    """Return a sentence that describes the differences between log and consume queues; "" if they
    do not differ.
    """
    differing = [row for row in rows if row.agrees is False]
    if not differing:
        return []
    named = ", ".join(f"{row.key} (log {_offset_text(row.from_log)}, consumequeue "
                      f"{_offset_text(row.from_consumequeue)})" for row in differing[:_NAMED])
    more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
    many = "1 queue differs" if len(differing) == 1 else f"{len(differing)} queues differ"
    return [f"{many} between log and consumequeue: {named}{more}"]


def _offset_text(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


# -- from the consumequeues -----------------------------------------------------------------------


def consumequeue_ends(store: Store, view: View, report: Report) -> dict[Key, int]:
    """Return the max offset (see `bounds`) of every queue that has a folder; 0 for an empty
    queue.
    """
    ends: dict[Key, int] = {}
    for key, queue in store.queues.readable.items():
        with closing(queue):  # a broker may have more queues than a process may open files
            try:
                ends[key] = view.bounds(queue).end
            except (StoreIOError, FormatError) as error:
                report(Problem("unreadable", str(error)))
    for key, batches in store.queues.batch.items():
        try:
            ends[key] = batches.bounds(store.log.min_offset, view.log_end)[1]
        except (StoreIOError, FormatError) as error:
            report(Problem("unreadable", str(error)))
    return ends


# -- from the log ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _RangeReach:
    """The result for one range of the log.

    * ``reach``: the queue offsets in the range.
    * ``spans``: its damaged spans.
    * ``troubles``: its unreadable parts.
    """

    first: int
    position: int
    reach: QueueReach
    spans: list[Span]
    last_record: int = -1
    troubles: list[Problem] = field(default_factory=list)


def _work(generation: int, light: LightQueues, part: ranges.FileRange[StoreFile]) -> _RangeReach:
    reach = QueueReach(generation, light)
    result = _RangeReach(0, 0, reach, [])
    with part.file.open() as source:
        walk = part.walk(source)
        for batch in walk:
            if isinstance(batch, UnreadRange):
                result.troubles.append(unread(source.base, batch))
                continue
            reach.add(batch)
            if len(batch):
                result.last_record = int(batch.offset[-1])
            result.spans += [span for span in batch.spans if span.kind == DAMAGED]
        result.first, result.position = walk.first, walk.position
    return result


def log_reach(store: Store, view: View, *, jobs: int = 1,
              progress: Callable[[int], None] | None = None, report: Report | None = None,
              range_size: int = ranges.RANGE_SIZE) -> dict[Key, Reach]:
    """Return, for each (topic, queue id), the queue offsets that the log contains."""
    parts = ranges.split(store.log.files, range_size, stop=view.log_end)
    total, spans, last_record = QueueReach(view.generation), _Spans(), -1
    work = partial(_work, view.generation, store.queues.light)
    for _, part in ranges.in_order(work, parts, jobs, progress):
        total.merge(part.reach)
        spans.add(part.spans)
        if report is not None:
            for trouble in part.troubles:
                report(trouble)
        last_record = max(last_record, part.last_record)
    if report is not None:
        _tell(store, view, spans, last_record, report)
    return {(os.fsdecode(topic), queue_id): reach
            for (topic, queue_id), reach in total.result().items()}


class _Spans:
    """A summary of damaged spans: their number, their total bytes, the first and the last span."""

    def __init__(self) -> None:
        self.count = self.length = 0
        self.first: Span | None = None
        self.last: Span | None = None

    def add(self, spans: list[Span]) -> None:
        for span in spans:
            self.count += 1
            self.length += span.length
            self.first, self.last = self.first or span, span


def _tell(store: Store, view: View, spans: _Spans, last_record: int, report: Report) -> None:
    first, last = spans.first, spans.last
    if first is not None and last is not None:
        torn = spans.count == 1 and last.offset > last_record and store.lock.held
        if torn:
            report(Problem("in-progress", f"the record at physical offset {last.offset} is being "
                           "written", last.offset, last.length))
        else:
            many = (f"{spans.count:,} damaged spans ({spans.length:,} bytes) of the log were"
                    if spans.count > 1 else f"a damaged span ({spans.length:,} bytes) of the log "
                                            "was")
            report(Problem("damage", f"{many} skipped, at physical offset {first.offset}: "
                           f"{first.reason}; run `rmqctl verify` for details", first.offset,
                           first.length))
    for gap in store.log.gaps():
        if view.log_end is None or gap.start < view.log_end:
            report(Problem("gap", f"no file covers physical offsets {gap.start} to {gap.end}",
                           gap.start, gap.end - gap.start))
    if view.log_end is not None:
        log_end = find_end(store).offset
        if log_end > view.log_end:
            report(Problem("note", f"a broker truncates the log at physical offset {view.log_end}; "
                           f"messages after it, up to {log_end}, are not counted", view.log_end,
                           log_end - view.log_end))
