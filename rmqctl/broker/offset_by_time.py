"""The queue offset that brokers return for a time (spec: consumequeue.md §7, §9).

4.9.3 returns the entry nearest in time, and chooses the file by its modification time. 5.1.1 and
later return the lower or upper boundary. The bugs of these releases are reproduced, because
operators compare the result with their broker's answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rmqctl import vfs
from rmqctl.broker.versions import NEWEST, version_of
from rmqctl.formats.local.consume_queue import UNIT_SIZE
from rmqctl.formats.local.message import Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.rows import batch_queue

StoreTime = Callable[[int], int]
"""Function that returns the store timestamp for a queue offset; negative if no record can be
read.
"""


@dataclass(frozen=True, slots=True)
class TimeAnswer:
    """A broker's answer: ``queue_offset``, and the bounds of the queue. ``record``: the message at
    this offset, if any.
    """

    queue_offset: int
    min_offset: int
    max_offset: int
    record: Record | None = None


def offset_by_time(view: View, topic: str, queue_id: int, when: int, *, upper: bool = False,
                   like: str = NEWEST) -> TimeAnswer | None:
    """Return the answer for a store time in epoch ms; None if the queue does not exist.

    ``like`` names the broker version. 4.9.3 answers with the entry nearest in time; 5.x answers
    with the first entry at or after ``when`` or, if ``upper`` is true, with the last entry at or
    before ``when``.

    Raises: UsageError for an unknown version, StoreIOError if the queue cannot be read.
    """
    queue = view.store.queues.find(topic, queue_id)
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

    def store_time(index: int) -> int:
        noted = queue.noted_time(index)
        unit = queue.unit(index) if noted is None else None
        record = None if unit is None else _record(view, unit.physical_offset, unit.size)
        return noted or -1 if record is None else record.store_timestamp

    if version_of(like).nearest_in_time and queue.files:
        answer = _nearest(queue, when, bounds.first, bounds.end, log_min, store_time)
    else:
        answer = _clamped_boundary(queue, when, bounds.first, bounds.end, upper, log_min,
                                   store_time)
    unit = queue.unit(answer) if bounds.first <= answer < bounds.end else None
    record = None if unit is None else _record(view, unit.physical_offset, unit.size)
    return TimeAnswer(answer, bounds.first, bounds.end, record)


def _batch(view: View, queue: BatchQueue, when: int, upper: bool) -> TimeAnswer:
    first, end = queue.bounds(view.store.log.min_offset, view.log_end)
    answer = _batch_boundary(queue, when, upper, first, end, view.log_end)
    unit = queue.find(answer, view.log_end)
    record = None if unit is None else _record(view, unit.physical_offset, unit.size)
    return TimeAnswer(answer, first, end, record)


def _nearest(queue: ConsumeQueue, when: int, first: int, end: int, log_min: int,
            store_time: StoreTime) -> int:
    """Return the queue offset of the entry nearest in time, as a 4.9.3 broker does. If two entries
    are equally near, the earlier one is chosen.

    ``first`` and ``end`` bound the queue's entries (min offset, max offset).
    """
    if not queue.files or end <= queue.files[0].base // UNIT_SIZE:
        return 0
    numbers = [number for number, file in enumerate(queue.files)
               if file.base // UNIT_SIZE < end] or [0]
    chosen = numbers[-1]
    for number in numbers:
        if int(vfs.stat(queue.files[number].path).st_mtime * 1000) >= when:
            chosen = number
            break
    base = queue.files[chosen].base // UNIT_SIZE
    low = max(0, first - base) + base
    high = min(queue.files[chosen].end // UNIT_SIZE, end) - 1
    search = _search(queue, when, low, high, log_min, store_time)
    if search is None:
        return 0
    if search.equal is not None:
        target = search.equal
    elif search.left_time == -1:
        target = search.right
    elif search.right_time == -1:
        target = search.left
    else:
        left_is_nearer = abs(when - search.left_time) <= abs(when - search.right_time)
        target = search.left if left_is_nearer else search.right
    return max(target, base)


def _clamped_boundary(queue: ConsumeQueue, when: int, first: int, end: int, upper: bool,
                      log_min: int, store_time: StoreTime) -> int:
    """Return the queue offset that a 5.3.3 broker returns, clamped to [first, end].

    This is the offset of the first entry stored at or after ``when`` or, with ``upper``, of the
    last entry stored at or before ``when``.
    """
    return min(max(_boundary(queue, when, first, end, upper, log_min, store_time), first), end)


def _boundary(queue: ConsumeQueue, when: int, first: int, end: int, upper: bool, log_min: int,
              store_time: StoreTime) -> int:
    files = [stretch for stretch in queue.stretches if stretch[0] < end]
    if not files:
        return 0

    def last_row(number: int) -> int:
        return min(files[number][1], end) - 1

    # Choose the file as the broker does, by the store time of its first or last entry.
    chosen = len(files) - 1
    if upper:
        for number in range(len(files) - 1, -1, -1):
            if store_time(files[number][0]) <= when:
                chosen = number
                break
        else:
            return 0
    else:
        for number in range(len(files) - 1):
            if store_time(last_row(number)) >= when:
                chosen = number
                break
    # A time outside the chosen file has its answer without a search.
    base = files[chosen][0]
    floor = max(first, base)
    low, high = floor, last_row(chosen)
    if store_time(high) < when:
        return high if upper else high + 1
    if store_time(low) > when:
        return 0 if upper else base
    # Several entries may have exactly this time: return the first or the last of them.
    search = _search(queue, when, low, high, log_min, store_time)
    if search is None:
        return 0
    if search.equal is not None:
        return _equal_run(search.equal, floor, last_row(chosen), when, upper, store_time)
    return search.left if upper else search.right


class _Search(NamedTuple):
    """Result of a broker's search over the entries of a file.

    ``equal``: queue offset of an entry with exactly the requested time.
    ``left``, ``right``: without such an entry, queue offsets of the entries before and after that
    time.
    ``left_time``, ``right_time``: store times of these entries; -1 if not found. ``left_time`` is
    also -1 if the record of ``left`` has expired.
    """

    equal: int | None
    left: int
    right: int
    left_time: int
    right_time: int


def _search(queue: ConsumeQueue, when: int, low: int, high: int, log_min: int,
            store_time: StoreTime) -> _Search | None:
    """Return the result of the binary search that all versions use; None if it reaches an entry
    without a record.
    """
    left = right = left_time = right_time = -1
    while low <= high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is None:
            return None
        if unit.physical_offset < log_min:
            left, low = middle, middle + 1
            continue
        stored = store_time(middle)
        if stored < 0:
            return None
        if stored == when:
            return _Search(middle, left, right, left_time, right_time)
        if stored > when:
            right, right_time, high = middle, stored, middle - 1
        else:
            left, left_time, low = middle, stored, middle + 1
    return _Search(None, left, right, left_time, right_time)


def _equal_run(row: int, low: int, high: int, when: int, upper: bool,
               time_of: Callable[[int], int]) -> int:
    """Return the first (with ``upper``: the last) queue offset of the run around ``row``. All
    entries of the run have the store time ``when``.
    """
    step, limit = (1, high) if upper else (-1, low)
    while row != limit and time_of(row + step) == when:
        row += step
    return row


def _batch_boundary(queue: BatchQueue, when: int, upper: bool, first: int, end: int,
                   log_end: int | None = None) -> int:
    """Return the queue offset that a 5.3.3 broker returns for a batch consume queue, clamped to
    [first, end].

    The broker searches the last file that begins at or before ``when``, or else the first file. The
    result is the base offset of the first entry stored at or after ``when``. If all entries of the
    file are older, the result is the base offset of the last entry.

    With ``upper``, the broker uses a different search for the same entry. The result is ``first``
    if that search fails.
    """
    files = [rows for number in range(len(queue.files))
             if len(rows := queue.used(number, log_end))]
    if not files:
        return first
    rows = next((units for units in reversed(files) if units["store_timestamp"][0] <= when),
                files[0])
    times, base = rows["store_timestamp"], rows["msg_base_offset"]
    offset = -1
    if when >= times[-1]:
        offset = int(base[-1])
    left, right = 0, len(rows) - 1
    while offset < 0 and left <= right:
        middle = (left + right) // 2
        stored = int(times[middle])
        if middle in (left, right):
            if stored >= when:
                offset = int(base[middle])
            elif middle == right:
                break
            left = middle + 1
        elif upper:
            left, right = (middle, right) if stored <= when else (left, middle - 1)
        else:
            left, right = (middle + 1, right) if stored < when else (left, middle)
    return min(max(offset, first), end)
