"""Work that is to end, because nobody wants its result any more.

A thread cannot be ended from outside. It asks here whenever it reads from a file, as all that
takes long does again and again.
"""

from __future__ import annotations

from contextvars import ContextVar


class Stopped(BaseException):
    """Ends work that was asked to. No Exception, so nobody takes it for a failure of his own."""


class Stop:
    """Return whether the work was asked to end."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = False


current: ContextVar[Stop | None] = ContextVar("stop", default=None)
"""The stop request of the running work; None: it runs to its end."""


def check() -> None:
    """Raise `Stopped` where the running work was asked to end."""
    stop = current.get()
    if stop is not None and stop.asked:
        raise Stopped
