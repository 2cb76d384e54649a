"""Determines the light queues of a store from its files and from known broker settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.scan.frames import Array
from rmqctl.scan.queue_reach import LightQueues
from rmqctl.store.queue.consume_queue import ConsumeQueue

Queues = Mapping[tuple[str, int], ConsumeQueue]
_SPARSE = 1 << 12


def light_queues_of(queues: Queues, settings: Mapping[str, Any], generation: int) -> LightQueues:
    """Return the light queues of a store, from its plain ``queues`` and its broker's known
    ``settings``.

    ``settings``: named as in `Settings`. If they are unknown, the result is derived from the files.
    These facts apply:

    * If multi-dispatch is off, a broker writes no further entries for light queues.
    * A 5.x store with queues but without light queues may belong to a broker with only enableLmq.
      Such a broker assigns queue offsets in light queues but writes no entries.
    * In a store with light queues, the setting may have changed at any time. Even if it is on now,
      it may have been off when a message arrived.
    * If no queue has any entries, the entries of light queues are also lost.
    """
    lmq, multi = settings.get("lmq"), settings.get("multi_dispatch")
    filled = [key for key, queue in queues.items() if queue.exists]
    light = [key for key in filled if key[0].startswith(LMQ_PREFIX)]
    own = frozenset(key for key in light if key[1])
    optional = multi is False or (
        multi is None and generation >= 5 and bool(filled) and not light)
    own_ids = bool(own) if lmq is None else bool(multi) and not lmq
    return LightQueues(own, own_ids, optional, generation >= 5 and bool(filled),
                       multi is not False)


def leading(queues: Queues, key: tuple[str, int], offset: Array, physical: Array) -> Array:
    """Return, as a boolean array, whether each entry of a plain queue points to the given position.

    ``offset``: queue offsets of the entries; ``physical``: the expected physical offsets.
    """
    is_leading: Array = np.zeros(len(offset), bool)
    queue = queues.get(key)
    if queue is None or not queue.exists:
        return is_leading
    with closing(queue):
        inside = np.flatnonzero((offset >= queue.first_index) & (offset < queue.disk_end))
        inside = inside[np.argsort(offset[inside], kind="stable")]
        wanted = offset[inside]
        for part in np.split(inside, np.flatnonzero(np.diff(wanted) > _SPARSE) + 1):
            if not len(part):
                continue
            first, last = int(offset[part[0]]), int(offset[part[-1]])
            try:
                units = queue.timed_units(first, last + 1 - first)
            except StoreIOError:
                continue
            number = offset[part] - first
            held = number < len(units)
            is_leading[part[held]] = units["physical_offset"][number[held]] == physical[part[held]]
    return is_leading
