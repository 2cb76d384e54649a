"""Delayed messages of a writable server: put into their own queues when they are due.

What waits in the store is known from its schedule queues; how far each level was delivered stands
in ``config/delayOffset.json``, as a broker keeps it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from rmqctl.engine.put.message import PutResult
from rmqctl.formats.local.properties import SCHEDULE_TOPIC
from rmqctl.parse_values import now_ms
from rmqctl.serve.producing.writing import Writer, delivered
from rmqctl.store.config.config import load_one
from rmqctl.store.log.bounds import View

_AT_ONCE = 10_000
"""Messages that are delivered in one go, before others get their turn."""


@dataclass(slots=True)
class Delays:
    """What is not due yet, soonest first: (when, number, level, physical offset, size)."""

    writer: Writer
    waiting: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=dict)
    """Level to the queue offset in its schedule queue up to which all was delivered."""
    changed: bool = False
    _number: int = 0

    def load(self) -> None:
        """What the store says is waiting. StoreIOError."""
        store = self.writer.source.store
        for row in load_one(store, "delayOffset.json").rows():
            if isinstance(row.get("offset"), int) and isinstance(row.get("level"), int):
                self.done[row["level"]] = row["offset"]
        view = View(store)
        for (topic, queue_id), queue in store.queues.items():
            if topic != SCHEDULE_TOPIC:
                continue
            bounds = view.bounds(queue)
            first = min(max(self.done.get(queue_id + 1, 0), bounds.first), bounds.end)
            self.done[queue_id + 1] = first
            for _, rows in queue.pages(first, bounds.end):
                for physical, size, due in rows.tolist():
                    self.add(due, queue_id + 1, physical, size)
            queue.close()

    def add(self, due: int, level: int, physical: int, size: int) -> None:
        """A message that was just put, or was found waiting."""
        self._number += 1
        heapq.heappush(self.waiting, (due, self._number, level, physical, size))

    def _due(self) -> Iterator[tuple[int, int, int, int]]:
        now = now_ms()
        for _ in range(_AT_ONCE):
            if not self.waiting or self.waiting[0][0] > now:
                return
            due, _, level, physical, size = heapq.heappop(self.waiting)
            yield due, level, physical, size

    def deliver(self) -> None:
        """Puts what is due. A message that cannot be read is passed over."""
        if self.writer.failure is not None:
            return
        for each in self._due():
            raw = self.writer.source.log.record(*each[2:])
            message = None if raw is None else delivered(raw)
            if message is None:
                self._count(each[1])
            else:
                self.writer.put(message, partial(self._put, each))

    def _put(self, waiting: tuple[int, int, int, int], result: PutResult) -> None:
        if result.status in ("SERVICE_NOT_AVAILABLE", "UNKNOWN_ERROR"):
            self.add(*waiting)  # not now
        else:
            self._count(waiting[1])

    def _count(self, level: int) -> None:
        self.done[level] = self.done.get(level, 0) + 1
        self.changed = True
