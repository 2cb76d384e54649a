"""FIFO lines of waiting POP requests, from clients of both protocols (remoting and gRPC)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from rmqctl.ext.serve.broker import ANY_QUEUE, Broker
from rmqctl.ext.serve.consuming.subscriptions import ALL, TAG


class Line(NamedTuple):
    """The key of a line: all requests with the same key wait in the same line.

    ``notice``: whether the requests ask for a notification only, not for messages.
    """

    group: str
    topic: str
    queue_id: int = ANY_QUEUE
    kind: str = TAG
    expression: str = ALL
    fifo: bool = False
    notice: bool = False


class WaitingLines:
    """Lines of waiting requests, each in order of arrival.

    Only the first request of a line is notified of new messages. When this request leaves the line,
    the next request checks for messages.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._all: dict[Line, OrderedDict[Callable[[bool], None], None]] = {}

    def join(self, line: Line, look: Callable[[bool], None]) -> None:
        """Append a request to its line."""
        waiting = self._all.setdefault(line, OrderedDict())
        waiting[look] = None
        if len(waiting) == 1:
            self._broker.listen((line.topic, ANY_QUEUE), look)

    def leave(self, line: Line, look: Callable[[bool], None]) -> None:
        """Remove a waiting request from its line."""
        waiting = self._all[line]
        was_first = self.is_first(line, look)
        del waiting[look]
        if not was_first:
            return
        if waiting:
            following = next(iter(waiting))
            self._broker.listen((line.topic, ANY_QUEUE), following)
            self._broker.wake(following)
        else:
            del self._all[line]
        self._broker.stop_listening((line.topic, ANY_QUEUE), look)

    def is_first(self, line: Line, look: Callable[[bool], None]) -> bool:
        """Return whether a waiting request is the first in its line.

        Only the first request is notified of new messages.
        """
        return next(iter(self._all[line])) == look

    def count(self, group: str, topic: str, queue_id: int) -> int:
        """Return how many of a group's requests are waiting for messages from a topic's queue.

        ``queue_id`` may be `ANY_QUEUE`.
        """
        return sum(len(waiting) for line, waiting in self._all.items() if line[:3] == (
            group, topic, queue_id) and not line.notice)

    @property
    def behind(self) -> int:
        """Return the number of requests that are not the first in their line."""
        return sum(len(waiting) - 1 for waiting in self._all.values())
