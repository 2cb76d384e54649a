"""Stops work whose result is no longer needed.

A thread cannot be ended from outside. It checks for a request at each read from a file, which all
long work does again and again.
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
"""The stop request of the running work; None: it runs to its end."""


def check() -> None:
    """Raise `Stopped` if the running work was asked to end."""
    stop = current.get()
    if stop is not None and stop.asked:
        raise Stopped
