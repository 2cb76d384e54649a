"""Whose requests are answered next.

What arrives is answered at once, as long as the event loop has time. Who has more to be answered
than one turn takes goes to the end of a line, and so does everybody who comes in a round that is
over. Clients that took little of this second are answered before those that took much, so however
many of those there are, the others wait for two rounds at most.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

TURN_S = 0.005
"""So long requests of one connection are answered before it is the others' turn."""
ROUND_S = 0.02
"""So long requests are answered before the event loop looks what else has arrived."""
_LIGHT_S = 0.02
"""Who took less of the current second is answered before the others."""


class Worker(Protocol):
    """A connection with requests. ``spent`` seconds of that second of the clock."""

    spent: float
    second: int

    def work(self, late: float) -> bool:
        """Answers until that time of the clock; whether it could go on."""
        ...

    def in_line(self, *, waits: bool) -> None:
        """Hears that it waits for its turn, or has had it and has nothing left to do."""


class Turns:
    """Shares the time of an event loop. ``soon`` has a function called when the event loop has
    looked what arrived.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], Any],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._soon, self.clock = soon, clock
        self._light: deque[Worker] = deque()
        self._heavy: deque[Worker] = deque()
        self._spent = 0.0
        self._begins_soon = False

    def come(self, worker: Worker) -> None:
        """Something arrived for one that does not wait: it is answered now, or in its turn."""
        is_light = worker.second != int(self.clock()) or worker.spent < _LIGHT_S
        if self._spent >= ROUND_S or self._light or (self._heavy and not is_light):
            (self._light if is_light else self._heavy).append(worker)
            worker.in_line(waits=True)
            self._begin_soon()
        elif self._turn(worker):
            worker.in_line(waits=True)

    def _begin_soon(self) -> None:
        if not self._begins_soon:
            self._begins_soon = True
            self._soon(self._round)

    def _turn(self, worker: Worker) -> bool:
        """One turn; whether the worker goes on waiting."""
        begun = self.clock()
        if worker.second != int(begun):
            worker.second, worker.spent = int(begun), 0.0
        more = worker.work(begun + TURN_S)
        spent = self.clock() - begun
        worker.spent += spent
        self._spent += spent
        if more:
            self._heavy.append(worker)
        if more or self._spent >= TURN_S:
            self._begin_soon()
        return more

    def _round(self) -> None:
        """Light workers first, beginning with the one that came last: where there are too many,
        most of those that come are still answered at once. The one that has waited for the longest
        time and one that took much have a turn in any round.
        """
        self._spent, self._begins_soon = 0.0, False
        while self._light and self._spent < ROUND_S:
            self._turn_of(self._light.pop())
        for line in self._light, self._heavy:
            if line:
                self._turn_of(line.popleft())
        while self._heavy and self._spent < ROUND_S:
            self._turn_of(self._heavy.popleft())
        if self._light or self._heavy:
            self._begin_soon()

    def _turn_of(self, worker: Worker) -> None:
        if not self._turn(worker):
            worker.in_line(waits=False)
