"""Orders from the program that started ``serve --temp``.

An order stops or starts the server, or causes faults for the program's tests. Orders arrive through
the pipe on standard input; clients cannot send them. Each order is a line with a JSON object; the
server answers it with an event ``order``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import field
from types import FrameType
from typing import Annotated, Literal, NoReturn

import msgspec

from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.lazy_dataclass import dataclass

_MAX_HELD = 1 << 20
_FOR_EVER = -1


@dataclass(slots=True)
class Faults:
    """Faults for tests.

    ``times``: number of sends that are still to be refused (-1: all sends). ``slow``: delay of each
    response in seconds.
    """

    times: int = 0
    topic: str | None = None
    code: int = Status.SERVICE_NOT_AVAILABLE
    slow: float = 0.0

    def refuse(self, topic: str) -> None:
        """Raise Failed if a send to the topic must be refused."""
        if self.times and self.topic in (None, topic):
            self.times -= self.times > 0
            raise Failed(self.code, "refused because the test asked for it")


class _Order(msgspec.Struct, forbid_unknown_fields=True):
    order: Literal["refuse_sends", "slow", "pause", "resume", "stop", "start"]
    times: Annotated[int, msgspec.Meta(ge=_FOR_EVER)] = _FOR_EVER
    topic: str | None = None
    code: Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)] = Status.SERVICE_NOT_AVAILABLE
    ms: Annotated[float, msgspec.Meta(ge=0, le=600_000)] = 0.0


class _EndedError(Exception):
    """A signal arrived while waiting for orders."""


@dataclass(eq=False)
class Orders:
    """Orders from a pipe.

    ``pipe``: file descriptor to read orders from; the end of the file stops the server.
    ``on_event`` is called with the events that answer orders. If not ``is_allowed``, all orders are
    ignored.
    """

    pipe: int
    on_event: Callable[..., None]
    is_allowed: bool
    faults: Faults = field(default_factory=Faults)
    _state: str = "runs"
    """State of the server: ``runs``, ``paused``, ``stopped`` or ``ended``."""
    _starts: bool = False
    _held: bytes = b""

    def carry_out(self, end: Callable[[], None]) -> None:
        """Read orders and carry them out; ``end`` stops the server.

        While the server is paused, this function blocks the server and every client.
        """
        self._read()
        self._go_on(end)

    def started(self, end: Callable[[], None]) -> None:
        """Record that the server has started, and carry out orders that were read earlier."""
        if self._starts:
            self._starts = False
            self.on_event(event="order", order="start")
        self._go_on(end)

    def _go_on(self, end: Callable[[], None]) -> None:
        while self._state == "runs" and self._obey():
            if self._state == "paused":
                self._wait("paused")
        if self._state != "runs":
            end()

    def wait_for_start(self) -> bool:
        """After the server has stopped, wait for an order. Return whether to start the server
        again.
        """
        if self._state != "stopped":
            return False
        self._wait("stopped")
        return self._state == "runs"

    def _wait(self, state: str) -> None:
        """Carry out orders as they arrive, until the state is no longer ``state``."""
        def end(_number: int, _frame: FrameType | None) -> NoReturn:
            raise _EndedError

        before = {number: signal.signal(number, end)
                  for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            # Answered now: the program that waits for it may stop the server at once.
            self.on_event(event="order", order="stop" if state == "stopped" else "pause")
            while self._state == state:
                if not self._obey():
                    self._read()
        except _EndedError:
            self._state = "ended"
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _read(self) -> None:
        data = os.read(self.pipe, 1 << 16)
        self._held = (self._held + data)[-_MAX_HELD:] if self.is_allowed else b""
        if not data:
            self._state = "ended"

    def _obey(self) -> bool:
        """Carry out the next order that was read. Return whether there was such an order."""
        line, ends, rest = self._held.partition(b"\n")
        if not ends:
            return False
        self._held = rest
        try:
            order = msgspec.json.decode(line, type=_Order)
        except msgspec.MsgspecError as error:
            self.on_event(event="order", order=None, problem=str(error))
            return True
        was, faults = self._state, self.faults
        match order.order:
            case "refuse_sends":
                faults.times, faults.topic, faults.code = order.times, order.topic, order.code
            case "slow":
                faults.slow = order.ms / 1000
            case "pause" if was == "runs":
                self._state = "paused"
            case "resume" if was == "paused":
                self._state = "runs"
            case "stop" if was != "stopped":
                self._state = "stopped"
            case "start" if was == "stopped":
                self._state, self._starts = "runs", True
        # Pause, stop and start are answered when they are done.
        if self._state == was or order.order == "resume":
            self.on_event(event="order", order=order.order)
        return True
