"""Stops work whose result is no longer needed.

A thread cannot be ended from outside. So all long work checks for a stop request at each read from
a file.
"""

from __future__ import annotations

from contextvars import ContextVar


class Stopped(BaseException):
    """Raised to end work on request. Not an Exception, so that it is not handled as a failure."""


class Stop:
    """Return whether the work was asked to end."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = False


current: ContextVar[Stop | None] = ContextVar("stop", default=None)
"""The function that reports a stop request to the running work; None: the work cannot
be stopped.
"""


def check() -> None:
    """Raise `Stopped` if the running work was asked to end."""
    stop = current.get()
    if stop is not None and stop.asked:
        raise Stopped
