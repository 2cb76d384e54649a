"""A read-ahead cache: messages of queues, bounded in bytes, forgotten some time after their last
use (tiered.md §9.3).

Unlike a broker's it knows which broker's queue a message is of, and where nothing could be split
out it keeps that place instead of moving what follows one offset to the front.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rmqctl.formats.tiered.units import UNIT_SIZE

if TYPE_CHECKING:
    from rmqctl.tiered.flat_queue import QueueName

EXPIRE_MS = 15_000
"""``readAheadCacheExpireDuration``: counted from the last use."""
MOST_BYTES = 64 << 20
"""What is kept unless told otherwise. A broker takes 0.3 of its heap."""


def _milliseconds() -> int:
    return time.monotonic_ns() // 1_000_000


class Fetched(NamedTuple):
    """A message as it lies in the tier; ``offset`` is its place in the queue's commit log."""

    queue_offset: int
    offset: int
    tags_code: int
    data: bytes


@dataclass(slots=True)
class _Entry:
    value: Fetched | None
    weight: int
    used: int


class ReadAhead:
    """Messages by queue and queue offset; None stands for "nothing can be split out here".

    ``bytes`` never exceeds ``most_bytes``. A value's weight is the size of its message (of its
    unit where there is none). ``clock`` gives milliseconds and never goes back.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, expire_ms: int = EXPIRE_MS,
                 clock: Callable[[], int] = _milliseconds) -> None:
        self.most_bytes, self.expire_ms = most_bytes, expire_ms
        self.bytes = self.hits = self.misses = 0
        self._clock = clock
        # In the order of their last use, so what is to go is always in front.
        self._kept: OrderedDict[tuple[QueueName, int], _Entry] = OrderedDict()

    def __len__(self) -> int:
        self._expire()
        return len(self._kept)

    def look(self, queue: QueueName, offset: int) -> tuple[bool, Fetched | None]:
        """(whether it is known, what is there); using it keeps it for another while."""
        now = self._expire()
        key = queue, offset
        entry = self._kept.get(key)
        if entry is None:
            self.misses += 1
            return False, None
        entry.used = now
        self._kept.move_to_end(key)
        self.hits += 1
        return True, entry.value

    def put(self, queue: QueueName, offset: int, value: Fetched | None) -> None:
        """Keeps a value; the least recently used ones make room. Too large a one is not kept."""
        now = self._expire()
        self._drop((queue, offset))
        weight = UNIT_SIZE if value is None else max(len(value.data), UNIT_SIZE)
        if weight > self.most_bytes:
            return
        while self.bytes + weight > self.most_bytes:
            self._drop(next(iter(self._kept)))
        self._kept[queue, offset] = _Entry(value, weight, now)
        self.bytes += weight

    def _drop(self, key: tuple[QueueName, int]) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            self.bytes -= entry.weight

    def _expire(self) -> int:
        now = self._clock()
        while self._kept:
            key = next(iter(self._kept))
            if now - self._kept[key].used < self.expire_ms:
                break
            self._drop(key)
        return now
