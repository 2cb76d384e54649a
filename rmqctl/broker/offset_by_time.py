"""The queue offset at a time, as brokers answer it (spec: consumequeue.md §7, §9).

4.9.3 gives the row nearest in time, and trusts the files' modification times to choose a file;
5.1.1 and later give the lower or upper boundary. Both are kept, faults included: operators
compare the answer with what their broker said.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from rmqctl.broker.versions import NEWEST, version_of
from rmqctl.formats.local.consume_queue import UNIT_SIZE
from rmqctl.formats.local.message import Record
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.rows import batch_queue

StoreTime = Callable[[int, int], int]
"""(physical offset, size) -> store timestamp; negative where no record can be read."""


@dataclass(frozen=True, slots=True)
class TimeAnswer:
    """``queue_offset`` and the queue's bounds; ``record`` is what lies there, if anything."""

    queue_offset: int
    min_offset: int
    max_offset: int
    record: Record | None = None


def offset_by_time(view: View, topic: str, queue_id: int, when: int, *, upper: bool = False,
                   like: str = NEWEST) -> TimeAnswer | None:
    """The answer for a store time in epoch ms; None where there is no such queue.

    ``like`` names the version that answers: with the row nearest in time, or with the first at
    or after ``when``, or with ``upper`` the last at or before it. UsageError for a version that
    is not known, StoreIOError where the queue cannot be read.
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

    if version_of(like).nearest_in_time:
        found = _nearest(queue, when, bounds.first, bounds.end, log_min, store_time)
    else:
        found = _clamped_boundary(queue, when, bounds.first, bounds.end, upper, log_min, store_time)
    unit = queue.unit(found) if bounds.first <= found < bounds.end else None
    record = None if unit is None else _record(view, unit.physical_offset, unit.size)
    return TimeAnswer(found, bounds.first, bounds.end, record)


def _batch(view: View, queue: BatchQueue, when: int, upper: bool) -> TimeAnswer:
    first, end = queue.bounds(view.store.log.min_offset, view.log_end)
    found = _batch_boundary(queue, when, upper, first, end, view.log_end)
    unit = queue.find(found, view.log_end)
    record = None if unit is None else _record(view, unit.physical_offset, unit.size)
    return TimeAnswer(found, first, end, record)


def _nearest(queue: ConsumeQueue, when: int, first: int, end: int, log_min: int,
            store_time: StoreTime) -> int:
    """The queue offset a 4.9.3 broker gives: the row nearest in time, earlier on a tie.

    ``first`` and ``end`` bound the queue's rows (min offset, max offset).
    """
    if not queue.files or end <= queue.files[0].base // UNIT_SIZE:
        return 0
    numbers = [n for n, one in enumerate(queue.files) if one.base // UNIT_SIZE < end] or [0]
    chosen = numbers[-1]
    for number in numbers:
        if int(os.stat(queue.files[number].path).st_mtime * 1000) >= when:
            chosen = number
            break
    base = queue.files[chosen].base // UNIT_SIZE
    low = max(0, first - base) + base
    high = min(queue.files[chosen].end // UNIT_SIZE, end) - 1
    left = right = target = -1
    left_time = right_time = -1
    while low <= high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is None:
            return 0
        if unit.physical_offset < log_min:
            low = middle + 1
            left = middle
            continue
        found = store_time(unit.physical_offset, unit.size)
        if found < 0:
            return 0
        if found == when:
            target = middle
            break
        if found > when:
            high, right, right_time = middle - 1, middle, found
        else:
            low, left, left_time = middle + 1, middle, found
    if target < 0:
        if left_time == -1:
            target = right
        elif right_time == -1:
            target = left
        else:
            target = left if abs(when - left_time) <= abs(when - right_time) else right
    return max(target, base)


def _clamped_boundary(queue: ConsumeQueue, when: int, first: int, end: int, upper: bool,
                      log_min: int, store_time: StoreTime) -> int:
    """The queue offset a 5.3.3 broker gives, clamped to [first, end].

    lower: the first row stored at or after ``when``; upper: the last row stored at or before.
    """
    return min(max(_boundary(queue, when, first, end, upper, log_min, store_time), first), end)


def _boundary(queue: ConsumeQueue, when: int, first: int, end: int, upper: bool, log_min: int,
              store_time: StoreTime) -> int:
    files = [one for one in queue.files if one.base // UNIT_SIZE < end]
    if not files:
        return 0

    def time_of(index: int) -> int:
        unit = queue.unit(index)
        return -1 if unit is None else store_time(unit.physical_offset, unit.size)

    def last_row(number: int) -> int:
        return min(files[number].end // UNIT_SIZE, end) - 1

    chosen = len(files) - 1
    if upper:
        for number in range(len(files) - 1, -1, -1):
            if time_of(files[number].base // UNIT_SIZE) <= when:
                chosen = number
                break
        else:
            return 0
    else:
        for number in range(len(files) - 1):
            if time_of(last_row(number)) >= when:
                chosen = number
                break
    base = files[chosen].base // UNIT_SIZE
    floor = max(first, base)
    low, high = floor, last_row(chosen)
    if time_of(high) < when:
        return high if upper else high + 1
    if time_of(low) > when:
        return 0 if upper else base
    left = right = -1
    while low <= high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is None:
            return 0
        if unit.physical_offset < log_min:
            low = middle + 1
            left = middle
            continue
        found = store_time(unit.physical_offset, unit.size)
        if found < 0:
            return 0
        if found == when:
            return _equal_run(middle, floor, last_row(chosen), when, upper, time_of)
        if found > when:
            high, right = middle - 1, middle
        else:
            low, left = middle + 1, middle
    return left if upper else right


def _equal_run(at: int, low: int, high: int, when: int, upper: bool,
               time_of: Callable[[int], int]) -> int:
    """The outermost row of the run of equal times around ``at``."""
    step, limit = (1, high) if upper else (-1, low)
    while at != limit and time_of(at + step) == when:
        at += step
    return at


def _batch_boundary(queue: BatchQueue, when: int, upper: bool, first: int, end: int,
                   log_end: int | None = None) -> int:
    """The queue offset a 5.3.3 broker gives for a batch consumequeue, clamped to [first, end].

    The base offset of the first row stored at or after ``when``, in the last file that begins
    before; its last row where all are older. With ``upper`` the same row is wanted, but the
    engine walks there another way and may miss it: that ends at ``first``.
    """
    files = [rows for number in range(len(queue.files))
             if len(rows := queue.used(number, log_end))]
    if not files:
        return first
    rows = next((one for one in reversed(files) if one["store_timestamp"][0] <= when), files[0])
    times, base = rows["store_timestamp"], rows["msg_base_offset"]
    found = -1
    if when >= times[-1]:
        found = int(base[-1])
    left, right = 0, len(rows) - 1
    while found < 0 and left <= right:
        middle = (left + right) // 2
        stored = int(times[middle])
        if middle in (left, right):
            if stored >= when:
                found = int(base[middle])
            elif middle == right:
                break
            left = middle + 1
        elif upper:
            left, right = (middle, right) if stored <= when else (left, middle - 1)
        else:
            left, right = (middle + 1, right) if stored < when else (left, middle)
    return min(max(found, first), end)
