"""Run decoders within limits: of bytes, values, nesting depth and CPU time for each body.

Every decoder runs in `bounded`: built-in decoders, and decoders from libraries, plug-ins and the
user's own functions. A decoder that exceeds a limit ends with an error for that body only.

A `Budget` limits bytes, values and depth. A decoder whose work is bounded by these limits needs no
time limit. A thread watches all other decoders: it checks each second for bodies that take more
than `MAX_SECONDS` of CPU time, and makes Python raise `TooLongError` in the decoding thread.

Python raises this error only between two bytecode instructions. It cannot interrupt C code, so
decoders in C must run in linear time.
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
"""Maximum bytes of a body to decode, after decompression; decoded values need many times as much
memory.
"""
MAX_SECONDS = 10.0
"""Maximum CPU time in seconds for decoding a body; wall-clock time if the system does not measure
the CPU time of threads.
"""
_LOOK, _IDLE = 1.0, 5


class MessageInfo(NamedTuple):
    """Information about the message to which a body belongs: its topic (the original topic if the
    message is delayed or retried) and all its properties.
    """

    topic: str
    properties: Mapping[str, str]


class Plain(NamedTuple):
    """A decoded value that needs no conversion and is within the limits. Most JSON values are of
    this kind.
    """

    value: Any


Decoder = Callable[[bytes, MessageInfo], tuple[Any, str]]


class TooLongError(BaseException):
    """Raised in a thread that decodes for too long. This class is not an `Exception`, so that a
    plug-in with ``except Exception`` does not catch it.
    """


def bounded(decode: Decoder, body: bytes, message: MessageInfo) -> tuple[Any, str]:
    """Return the plain value of ``body``, and the name of its format. Raise the exceptions of
    ``decode``, and BudgetError if a limit is exceeded.
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
        _WATCH.leave()  # again: the error may have interrupted it
        raise BudgetError(f"takes longer than {MAX_SECONDS:g} s") from None


class _Watch:
    """The decoding threads with their start times, and the thread that interrupts slow decoding
    threads.
    """

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
        """Stop watching this thread. This call may raise a pending `TooLongError`; after its return
        no `TooLongError` is raised.
        """
        thread = threading.get_ident()
        with self._lock:
            self._started.pop(thread, None)
            if thread in self._ended:
                self._ended.discard(thread)
                _raise_in(thread, None)

    def look(self) -> None:
        """Interrupt each thread that decodes for too long, once for each body."""
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
    """Return the CPU time in seconds of a running thread of this process."""
    if hasattr(time, "pthread_getcpuclockid"):
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    return time.monotonic()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Make Python raise ``error`` in a thread; None cancels an error that is still pending."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error))


_WATCH = _Watch()
if hasattr(os, "register_at_fork"):  # a fork has neither the thread nor the lock's holder
    os.register_at_fork(after_in_child=_WATCH.__init__)  # type: ignore[misc]
