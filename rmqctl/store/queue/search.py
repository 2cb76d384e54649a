"""Search in a consume queue of a store or of a tier, by physical offset or by time.

In both kinds of queue, each queue offset has a 20-byte unit: physical offset, size and tags code of
a message. Messages are in the log in the order of their queue, and nearly in the order of their
store times. So a bisection finds an offset or a time.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rmqctl.errors import StoreIOError

if TYPE_CHECKING:
    from rmqctl.formats.local.message import Record
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


class RecordReader(Protocol):
    """The interface of a log to `begun_at`: that of a store, or the one that a repair leaves."""

    @property
    def min_offset(self) -> int:
        """Physical offset of the log's start."""
        ...

    def record_at(self, physical: int, size: int) -> Record | None:
        """Return the record of ``size`` bytes at a physical offset; None if there is none."""
        ...


def first_from(queue: QueueUnits, low: int, high: int, place: int, *, gap: int = -1) -> int:
    """Return the first queue offset in ``[low, high)`` whose unit points to ``place`` or after it.

    If no unit does, return the greater of ``low`` and ``high``. ``gap``: the physical offset (-1 or
    `LAST`) to assume for a queue offset that has no unit. Raises: StoreIOError.
    """
    def leads_to(queue_offset: int) -> int:
        unit = queue.unit(queue_offset)
        return gap if unit is None else unit[0]

    return low + bisect_left(range(low, high), place, key=leads_to)


def first_stored(time_of: Callable[[int], int | None], low: int, high: int, when: int, *,
                 patience: int | None = None) -> int:
    """Return the first queue offset in ``[low, high)`` whose message was stored at ``when`` (ms) or
    later; ``high`` if there is none.

    * ``time_of``: returns the store time of the message at a queue offset, or None if that message
      cannot be read.
    * ``patience``: maximum number of messages to try in place of an unreadable one.
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


def begun_at(queue: ConsumeQueue, log: RecordReader) -> int:
    """Return the physical offset of a queue's first message (queue offset 0), or 0 if uncertain.

    If a topic is deleted and created again, its queue offsets start from 0 again. Messages of the
    deleted topic stay in the log until they expire, and all of them are before the returned offset.

    No checksum covers the fields from which the offset is computed, so the result counts only if
    entry and message match.
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
