"""Stopping between two steps: a signal waits until what is under way is whole.

While a command works on a store, Ctrl-C and SIGTERM only leave a mark; `Gently.check` lets them
through where nothing is half done. While it waits for input they come at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Gently:
    """Holds SIGINT and SIGTERM back between `__enter__` and `__exit__`."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._came: int | None = None
        self._waiting = False

    def __enter__(self) -> Self:
        try:
            for one in _SIGNALS:
                self._before[one] = signal.signal(one, self._note)
        except ValueError:  # not in the main thread: someone else decides about signals
            self._before.clear()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for one, before in self._before.items():
            signal.signal(one, before)
        self._before.clear()
        if kind is None and self._came is not None:
            self._let_through(self._came, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._waiting:
            self._let_through(number, frame)
        self._came = number

    def _let_through(self, number: int, frame: FrameType | None) -> None:
        self._came = None
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises what the signal stands for, if one came."""
        if self._came is not None:
            self._let_through(self._came, None)

    @property
    def requested(self) -> bool:
        """Whether a signal came that was not let through yet."""
        return self._came is not None

    def wait_for(self, read: Callable[[], T]) -> T:
        """``read()``, which a signal may interrupt."""
        self.check()
        self._waiting = True
        try:
            self.check()
            return read()
        finally:
            self._waiting = False
