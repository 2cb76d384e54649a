"""Light queues (``%LMQ%…``) of a 5.x broker whose enableMultiDispatch was switched off for a time.

With enableLmq, such a broker continues to assign queue offsets in these queues, but writes no
entries to any of them (consumequeue.md §10). So if a message has an entry in one of its light
queues but not in another, the missing entry is lost.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np

from rmqctl.checks.verify.context import Context
from rmqctl.checks.verify.queue.rows import QueueKey
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.scan.frames import Array, distinct
from rmqctl.store.queue.consume_queue import ConsumeQueue


def stored_while_on(context: Context, key: QueueKey, places: list[int]) -> set[int]:
    """Return the physical offsets of the messages that were stored while multi-dispatch was on.

    ``places``: physical offsets of messages without an entry in the light queue ``key``.

    Messages between the same two entries of this queue form a group. Multi-dispatch was on for a
    whole group if an entry of another light queue points to any position from the group's first to
    its last message.
    Raises: StoreIOError.
    """
    if not places:
        return set()
    ordered = distinct(np.array(places, np.int64))
    own = np.sort(_places(context.store.queues.by_key[key]))
    _, group = np.unique(np.searchsorted(own, ordered), return_inverse=True)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    low, high = ordered[first], ordered[np.append(first[1:], len(ordered)) - 1]
    is_on: Array = np.zeros(len(low), bool)
    for other, queue in context.store.queues.by_key.items():
        if other[0].startswith(props.LMQ_PREFIX) and other != key and queue.exists:
            place = _places(queue)
            stretch = np.searchsorted(low, place, "right") - 1
            inside = (stretch >= 0) & (place <= high[stretch])
            is_on[stretch[inside]] = True
    return set(ordered[is_on[group]].tolist())


def _places(queue: ConsumeQueue) -> Array:
    """Return the physical offsets (int64) that the used entries of a queue point to."""
    places = [np.zeros(0, np.int64)]
    with closing(queue):
        for _, rows in queue.pages(queue.first_index, queue.disk_end):
            used = (rows["size"] > 0) & (rows["size"] != FILLER.size)
            places.append(rows["physical_offset"][used].astype(np.int64))
    return np.concatenate(places)
