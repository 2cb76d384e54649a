"""The queue offset at a time, as brokers answer it, for every kind of queue."""

from __future__ import annotations

from dataclasses import dataclass

from rmqctl.formats.local.message import Record
from rmqctl.store.log.bounds import View
from rmqctl.store.query import time_search
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.rows import batch_queue

RULES = ("5.3.3", "4.9.3")
"""Whose answer: 5.1.1 and later give a boundary, before it was the row nearest in time."""


@dataclass(frozen=True, slots=True)
class TimeAnswer:
    """``queue_offset`` and the queue's bounds; ``record`` is what lies there, if anything."""

    queue_offset: int
    min_offset: int
    max_offset: int
    record: Record | None = None


def offset_by_time(view: View, topic: str, queue_id: int, when: int, *, upper: bool = False,
                   like: str = "5.3.3") -> TimeAnswer | None:
    """The answer for a store time in epoch ms; None where there is no such queue.

    ``like`` "4.9.3" gives the nearest row; "5.3.3" the first at or after ``when``, or with
    ``upper`` the last at or before it. StoreIOError where the queue cannot be read.
    """
    queue = view.store.queue(topic, queue_id)
    if queue is not None:
        return _plain(view, queue, when, upper, like)
    batch = batch_queue(view.store, topic, queue_id)
    return None if batch is None else _batch(view, batch, when, upper)


def _record(view: View, physical: int, size: int) -> Record | None:
    if view.log_end is not None and physical >= view.log_end:
        return None
    return view.store.log.record_at(physical, size)


def _plain(view: View, queue: ConsumeQueue, when: int, upper: bool, like: str) -> TimeAnswer:
    bounds = view.bounds(queue)
    log_min = view.store.log.min_offset

    def store_time(physical: int, size: int) -> int:
        record = _record(view, physical, size)
        return -1 if record is None else record.store_timestamp

    if like == "4.9.3":
        found = time_search.nearest(queue, when, bounds.first, bounds.end, log_min, store_time)
    else:
        found = time_search.boundary(queue, when, bounds.first, bounds.end, upper, log_min,
                                     store_time)
    unit = queue.unit(found) if bounds.first <= found < bounds.end else None
    record = None if unit is None else _record(view, unit.physical_offset, unit.size)
    return TimeAnswer(found, bounds.first, bounds.end, record)


def _batch(view: View, queue: BatchQueue, when: int, upper: bool) -> TimeAnswer:
    first, end = queue.bounds(view.store.log.min_offset, view.log_end)
    found = time_search.batch_boundary(queue, when, upper, first, end, view.log_end)
    unit = queue.find(found, view.log_end)
    record = None if unit is None else _record(view, unit.physical_offset, unit.size)
    return TimeAnswer(found, first, end, record)
