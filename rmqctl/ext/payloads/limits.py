"""The one wrapper of all decoders: what a body costs in bytes, values, levels and time is bounded.

Whatever decodes a body, an own decoder, a library, a plug-in or a function of the user, runs in
`bounded`. Beyond a bound it ends with an error of that body alone, and the listing continues.

Bytes, values and levels are a `Budget`'s. Decoders whose work these bound need no clock. For all
others a thread looks each second for bodies that take longer than `MAX_SECONDS` of CPU time, and
has Python raise `TooLongError` in the thread that decodes. Python does that between two
instructions: a library that stays in C is not interrupted, so decoders in C have to be linear.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rmqctl.ext.payloads.values import plain
from rmqctl.formats.budget import BudgetError

MAX_BYTES = 8 << 20
"""Maximum size of a body that is decoded, after decompression: values need many times as much
memory.
"""
MAX_SECONDS = 10.0
"""CPU time of one body; the time of a clock where a system does not know that of a thread."""
_LOOK, _IDLE = 1.0, 5


class Message(NamedTuple):
    """The message of a body, as a decoder sees it: the topic it is meant for, and all its
    properties.
    """

    topic: str
    properties: Mapping[str, str]


class Plain(NamedTuple):
    """A value that its decoder made plain within the bounds, as that of JSON mostly is."""

    value: Any


Decoder = Callable[[bytes, Message], tuple[Any, str]]


class TooLongError(BaseException):
    """Raised in a thread that decodes too long. No Exception: a plug-in may catch these."""


def bounded(decode: Decoder, body: bytes, message: Message) -> tuple[Any, str]:
    """Return the plain value of ``body``, and what it was decoded as. Raises what ``decode`` does,
    and BudgetError beyond a bound.
    """
    if len(body) > MAX_BYTES:
        raise BudgetError(f"larger than {MAX_BYTES >> 20} MiB")
    try:
        _WATCH.enter()
        try:
            value, kind = decode(body, message)
            return value.value if isinstance(value, Plain) else plain(value), kind
        finally:
            _WATCH.leave()
    except TooLongError:
        _WATCH.leave()  # again: the error may have come in the middle of it
        raise BudgetError(f"takes longer than {MAX_SECONDS:g} s") from None


class _Watch:
    """The threads that decode, with their start times, and the thread that ends slow ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[int, float] = {}
        self._ended: set[int] = set()
        self._running = False

    def enter(self) -> None:
        thread = threading.get_ident()
        with self._lock:
            self._started[thread] = _time_of(thread)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="rmqctl-decoding", daemon=True).start()

    def leave(self) -> None:
        """End the watch: no `TooLongError` comes any more; one that is on its way may come
        within.
        """
        thread = threading.get_ident()
        with self._lock:
            self._started.pop(thread, None)
            if thread in self._ended:
                self._ended.discard(thread)
                _raise_in(thread, None)

    def look(self) -> None:
        """End what takes too long; each body once."""
        with self._lock:
            for thread, since in self._started.items():
                if thread not in self._ended and _time_of(thread) - since > MAX_SECONDS:
                    self._ended.add(thread)
                    _raise_in(thread, TooLongError)

    def _run(self) -> None:
        idle = 0
        while idle < _IDLE:  # then this thread ends, and the next body starts another
            time.sleep(_LOOK)
            self.look()
            with self._lock:
                idle = 0 if self._started else idle + 1
                self._running = idle < _IDLE


def _time_of(thread: int) -> float:
    """Return the CPU time in seconds of a thread of this process that still runs."""
    if hasattr(time, "pthread_getcpuclockid"):
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    return time.monotonic()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Make Python raise ``error`` in a thread; None revokes one that was not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error))


_WATCH = _Watch()
if hasattr(os, "register_at_fork"):  # a fork has neither the thread nor who holds the lock
    os.register_at_fork(after_in_child=_WATCH.__init__)  # type: ignore[misc]
