"""Places in a queue, in the consumequeue of a store or in a tier.

Both have 20-byte units with the place of a message in its log, its size and its tags code, one for
each queue offset; their messages are in the log in the order of the queue, and (nearly) in that of
their store times. So either is searched by bisection.
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
"""Behind every place of a log."""


class QueueUnits(Protocol):
    """A queue as it is searched: a store's `ConsumeQueue`, a tier's `FlatQueue`."""

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Return (place of the message in its log, size, tags code); None if missing."""
        ...


def first_from(queue: QueueUnits, low: int, high: int, place: int, *, gap: int = -1) -> int:
    """Return the first queue offset in ``[low, high)`` whose unit leads to ``place`` or after;
    ``high`` (or ``low``, if that is more) where none does. Raise StoreIOError.

    ``gap``: where a queue offset without a unit counts as leading, before all others or `LAST`.
    """
    def leads_to(queue_offset: int) -> int:
        unit = queue.unit(queue_offset)
        return gap if unit is None else unit[0]

    return low + bisect_left(range(low, high), place, key=leads_to)


def first_stored(time_of: Callable[[int], int | None], low: int, high: int, when: int, *,
                 patience: int | None = None) -> int:
    """Return the first queue offset in ``[low, high)`` whose message was stored at ``when`` (ms) or
    later; ``high`` if none was.

    ``time_of`` gives the store time at a queue offset, None if no message can be read: then the
    next one that can be read is asked, of no more than ``patience``.
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
    """Return the place in the log at which a queue began: its message with queue offset 0. 0 if
    uncertain.

    A topic that is deleted loses its consume queues; its messages stay in the log until they
    expire. Created again, its queues count from 0, and the log has two messages with the same queue
    offset. The messages of one queue are in the order of their queue offsets, so everything before
    the message with 0 belongs to the earlier queue. No checksum covers these fields, so entry and
    message have to agree.
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
