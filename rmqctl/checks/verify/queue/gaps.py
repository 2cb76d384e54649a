"""Light queues with gaps (consumequeue.md §4, §10; apache/rocketmq#8693).

A 5.x broker gives queue offsets of a light queue to messages that it does not dispatch to it then.
The rows of all later messages stand as many places too early, until a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.store.queue.consume_queue import ConsumeQueue

Array = np.ndarray[Any, np.dtype[Any]]
_BACK, _FARTHEST = 1 << 12, 1 << 21
"""How many rows before its place the row of a light queue's message is looked for."""


class Shift(NamedTuple):
    """Messages of a light queue, from queue offset ``first`` on, ``length`` in a row, that have
    rows which stand ``by`` places too early.
    """

    first: int
    length: int
    by: int


def shifts(offset: Array, by: Array) -> Iterator[Shift]:
    """Messages with these queue offsets and shifts, by stretches."""
    borders = np.flatnonzero((np.diff(by) != 0) | (np.diff(offset) != 1)) + 1
    for start, end in zip([0, *borders.tolist()], [*borders.tolist(), len(by)], strict=True):
        yield Shift(int(offset[start]), end - start, int(by[start]))


def rows_ahead(queue: ConsumeQueue, end: int, offset: Array, physical: Array,
               size: Array) -> tuple[Array, Array, Array]:
    """The rows of messages further ahead in their queue, which ends at queue offset ``end``.

    (which messages have one (bool), by how many places too early each of those stands, the
    units of those).
    """
    begin, units = _ahead(queue, end, offset, physical)
    none: Array = np.zeros(len(offset), bool)
    if not len(units):
        return none, offset[:0], units
    order = np.argsort(units["physical_offset"], kind="stable")
    at = order[np.minimum(np.searchsorted(units["physical_offset"][order], physical),
                          len(order) - 1)]
    by = offset - begin - at
    found: Array = (units["physical_offset"][at] == physical) & (units["size"][at] == size) & (
        by > 0)
    return found, by[found], units[at[found]]


def _ahead(queue: ConsumeQueue, end: int, offset: Array, physical: Array) -> tuple[int, Array]:
    """(queue offset, rows from there on), from before where the first message's row is."""
    first, end = int(offset.min()), min(int(offset.max()) + 1, end)
    least, back = int(physical.min()), _BACK
    while True:
        begin = max(queue.first_index, min(first, end) - back)
        try:
            units = queue.units(begin, max(0, end - begin))
        except StoreIOError:
            return begin, queue.units(0, 0)
        if (begin == queue.first_index or back >= _FARTHEST or not len(units)
                or units["physical_offset"][0] <= least):
            return begin, units
        back *= 8
