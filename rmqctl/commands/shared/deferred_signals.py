"""Signals that take effect only after the current step of a command.

During a step, Ctrl-C and SIGTERM are only recorded. `DeferredSignals.check` raises their exception
between two steps. While the command waits for input, a signal interrupts the command at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class DeferredSignals:
    """A context manager that defers SIGINT and SIGTERM."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._came: int | None = None
        self._waiting = False
        self._pipe: tuple[int, int] | None = None
        self._woken_before = -1

    def __enter__(self) -> Self:
        try:
            for signal_number in _SIGNALS:
                self._before[signal_number] = signal.signal(signal_number, self._note)
        except ValueError:  # not in the main thread, which handles signals
            self._before.clear()
            return self
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._woken_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        return self

    @property
    def wake(self) -> int | None:
        """Return a file descriptor that becomes readable when a signal arrives.

        A signal that arrives just before a read does not interrupt the read. So code that waits for
        input must also wait for this descriptor.
        """
        return None if self._pipe is None else self._pipe[0]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for signal_number, before in self._before.items():
            signal.signal(signal_number, before)
        self._before.clear()
        if self._pipe is not None:
            signal.set_wakeup_fd(self._woken_before)
            for end in self._pipe:
                os.close(end)
            self._pipe = None
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
        """Raise the exception of a deferred signal, if one has arrived."""
        if self._came is not None:
            self._let_through(self._came, None)

    @property
    def requested(self) -> bool:
        """Return whether a signal has arrived and is deferred."""
        return self._came is not None

    def wait_for(self, read: Callable[[], T]) -> T:
        """Return ``read()``; a signal interrupts this call at once."""
        self.check()
        self._waiting = True
        try:
            self.check()
            return read()
        finally:
            self._waiting = False
