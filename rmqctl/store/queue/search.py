"""Search in a consume queue of a store or of a tier, by physical offset or by time.

Both kinds of queue have a 20-byte unit for each queue offset, with the physical offset, size and
tags code of a message. The messages are in the log in the order of the queue, which is nearly the
order of their store times. So the search for an offset or a time is a bisection.
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
        """Return (physical offset of the message, size, tags code) of a unit; None if the unit is
        missing.
        """
        ...


def first_from(queue: QueueUnits, low: int, high: int, place: int, *, gap: int = -1) -> int:
    """Return the first queue offset in ``[low, high)`` whose unit points to ``place`` or after it;
    if there is none, ``high`` (or ``low``, if it is greater).

    ``gap``: the physical offset to assume for a queue offset without a unit: -1 or `LAST`.

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

    ``time_of`` returns the store time of the message at a queue offset; None if the message cannot
    be read. Instead of an unreadable message, the next readable one is used; at most ``patience``
    messages are tried.
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
    """Return the physical offset of a queue's first message (queue offset 0), or 0 if it is
    uncertain.

    When a topic is deleted, its consume queues are deleted too; its messages stay in the log until
    they expire. If the topic is created again, its queue offsets start from 0, and the log may have
    two messages with the same queue offset. The messages of a queue are in the order of their queue
    offsets, so all messages before the one with queue offset 0 belong to the deleted queue. No
    checksum covers these fields, so the result counts only if entry and message match.
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
