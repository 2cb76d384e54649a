"""Threads that must end before the interpreter does.

When the interpreter exits, a running thread is stopped at its next use of Python. This aborts the
process or blocks the thread forever. In the second case, code that waits for the thread in a late
``finally`` never returns.

So objects with threads, and objects that threads of other libraries call, are registered here. They
are ended before the process exits. This is a safety net: code that starts threads should end them
itself.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Ending(Protocol):
    """An object whose ``end`` returns once all its threads have ended. ``end`` may be called more
    than once.
    """

    def end(self) -> None: ...


_noted: WeakSet[Ending] = WeakSet()


def note(ending: Ending) -> None:
    """Register an object to be ended before the interpreter exits, if it is still
    referenced then.
    """
    _noted.add(ending)


@atexit.register
def end_all() -> None:
    """End all registered objects, even after an interrupt."""
    while _noted:
        ending = _noted.pop()
        while True:
            with suppress(Exception):
                try:
                    ending.end()
                except KeyboardInterrupt:
                    continue
            break


class Stream(Generic[T]):
    """An iterator for threads of another library; it yields nothing once the interpreter is
    exiting.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()
        self._ended = False
        note(self)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            if self._ended:
                raise StopIteration
            return next(self._items)

    def end(self) -> None:
        """Wait for the running call; later callers get the end of the stream."""
        with self._lock:
            self._ended = True
