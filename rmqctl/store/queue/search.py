"""Search in the consume queue of a store or of a tier, by physical offset or time.

Both have one 20-byte unit for each queue offset, with the physical offset, size and tags code of a
message. Their messages are in the log in the order of the queue, which is nearly that of their
store times. So both are searched by bisection.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rmqctl.errors import StoreIOError

if TYPE_CHECKING:
    from rmqctl.store.log.commit_log import CommitLog
    from rmqctl.store.queue.consume_queue import ConsumeQueue

LAST = 1 << 63
"""A physical offset after the end of every log."""


class QueueUnits(Protocol):
    """The interface of a queue to search: a store's `ConsumeQueue` or a tier's `FlatQueue`."""

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Return (physical offset of the message, size, tags code); None if missing."""
        ...


def first_from(queue: QueueUnits, low: int, high: int, place: int, *, gap: int = -1) -> int:
    """Return the first queue offset in ``[low, high)`` whose unit points to ``place`` or after it;
    without one the greater of ``high`` and ``low``.

    ``gap``: the physical offset assumed for a queue offset without a unit: before all others, or
    `LAST`.

    Raises: StoreIOError.
    """
    def leads_to(queue_offset: int) -> int:
        unit = queue.unit(queue_offset)
        return gap if unit is None else unit[0]

    return low + bisect_left(range(low, high), place, key=leads_to)


def first_stored(time_of: Callable[[int], int | None], low: int, high: int, when: int, *,
                 patience: int | None = None) -> int:
    """Return the first queue offset in ``[low, high)`` whose message was stored at ``when`` (ms) or
    later; ``high`` if there is none.

    ``time_of`` returns the store time at a queue offset, None if no message can be read: then the
    next readable message is used, among at most ``patience`` messages.
    """
    while low < high:
        middle = (low + high) // 2
        end = high if patience is None else min(high, middle + patience)
        stored, asked = None, middle
        while stored is None and asked < end:
            stored = time_of(asked)
            asked += 1
        if stored is not None and stored < when:
            low = asked
        else:
            high = middle
    return low


def begun_at(queue: ConsumeQueue, log: CommitLog) -> int:
    """Return the physical offset at which a queue began, which is the offset of its message with
    queue offset 0; 0 if uncertain.

    When a topic is deleted, its consume queues are deleted too; its messages stay in the log until
    they expire. If it is created again, its queue offsets start from 0, and the log has two
    messages with the same queue offset. The messages of one queue are in the order of their queue
    offsets, so everything before the message with queue offset 0 belongs to the earlier queue. No
    checksum covers these fields, so entry and message must match.
    """
    try:
        unit = queue.unit(0)
        if unit is None or unit.is_filler or unit.physical_offset <= log.min_offset:
            return 0
        record = log.record_at(unit.physical_offset, unit.size)
    except StoreIOError:
        return 0
    is_own = record is not None and (record.topic, record.queue_id, record.queue_offset) == (
        os.fsencode(queue.topic), queue.queue_id, 0)
    return unit.physical_offset if is_own else 0
