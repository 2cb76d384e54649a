"""Delayed messages of a writable server: a message is stored in its own queue when it is due.

Each delay level has a schedule queue, sorted by due time. ``config/delayOffset.json`` contains the
progress of each level, as in a broker.
"""

from __future__ import annotations

from dataclasses import field
from functools import partial
from math import inf

from rmqctl.engine.put.message import PutResult
from rmqctl.ext.serve.producing.writing import Writer, delivered
from rmqctl.ext.serve.reading import ServedQueue
from rmqctl.formats.local.message import decode
from rmqctl.formats.local.properties import SCHEDULE_TOPIC
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms
from rmqctl.store.config.config import load_one

_AT_ONCE = 1024
"""Maximum number of messages of a delay level that are delivered in one turn."""
_PAGE = 32
_AGAIN_MS = 5000
"""Milliseconds after which a delay level that could not be read is tried again."""


@dataclass(slots=True)
class Delays:
    """The delay levels of a store.

    ``done``: for each level, the queue offset in its schedule queue before which all messages were
    delivered.
    """

    writer: Writer
    done: dict[int, int] = field(default_factory=dict)
    changed: bool = False
    _due: dict[int, float] = field(default_factory=dict)
    """The time (ms) of the next check of each level."""
    _flying: dict[int, set[int]] = field(default_factory=dict)
    """For each level: the offsets, in the level's schedule queue, of the messages that are being
    stored.
    """

    def load(self) -> None:
        """Load the progress of the levels from the store. Raises: StoreIOError."""
        store = self.writer.source.store
        for row in load_one(store, "delayOffset.json").rows():
            if isinstance(row.get("offset"), int) and isinstance(row.get("level"), int):
                self.done[row["level"]] = row["offset"]
        for topic, queue_id in store.queues.readable:
            if topic == SCHEDULE_TOPIC:
                queue = self._queue(queue_id + 1)
                self.done[queue_id + 1] = min(
                    max(self.done.get(queue_id + 1, 0), queue.first), queue.end)
                self.add(queue_id + 1)

    def add(self, level: int) -> None:
        """Record that a message was stored in the schedule queue of a level."""
        if self._due.get(level, inf) == inf:
            self._due[level] = 0

    def _queue(self, level: int) -> ServedQueue:
        key = SCHEDULE_TOPIC, level - 1
        return self.writer.queue(key) or self.writer.source.queue(*key)

    def deliver(self) -> None:
        """Store the messages of all levels that are due; skip unreadable messages. Raises:
        StoreIOError.
        """
        now = now_ms()
        for level, due in self._due.items():
            if due <= now and not self._flying.get(level) and self.writer.failure is None and (
                    not self.writer.is_busy):
                self._due[level] = now + _AGAIN_MS
                self._due[level] = self._deliver(level, now)

    def _deliver(self, level: int, now: int) -> float:
        """Store the messages of a level that are due. Return the time (ms) of the level's next
        check.
        """
        queue = self._queue(level)
        delay = self.writer.levels.get(level, 1000)
        start = at = min(max(self.done.get(level, 0), queue.first), queue.end)
        flying = self._flying[level] = set()
        wait = inf
        while at < queue.end and wait == inf and at - start < _AT_ONCE and (
                not self.writer.is_busy):
            pulled = queue.pull(at, _PAGE, None)
            if pulled.next_begin <= at:
                break
            at = pulled.next_begin
            for raw in pulled.records:
                record = decode(raw)
                due = record.store_timestamp + delay
                if now < due <= now + delay:  # else the clock was set back: a broker delivers, too
                    at, wait = record.queue_offset, due
                    break
                message = delivered(record)
                if message is not None:
                    flying.add(record.queue_offset)
                    self.writer.put(message, partial(self._put, level, record.queue_offset))
        self._reach(level, min(flying, default=at))
        if flying:
            flying.add(at)  # where it goes on when all are put
        return wait if at >= queue.end or wait != inf else 0

    def _put(self, level: int, offset: int, result: PutResult) -> None:
        flying = self._flying[level]
        if result.status in ("SERVICE_NOT_AVAILABLE", "UNKNOWN_ERROR"):
            flying.clear()  # not now: it goes on at this one
            self._due[level] = 0
        elif flying:
            flying.discard(offset)
            self._reach(level, min(flying))
            if len(flying) == 1:
                flying.clear()

    def _reach(self, level: int, offset: int) -> None:
        if self.done.get(level, 0) != offset:
            self.done[level] = offset
            self.changed = True
