"""Interruption of a query by a signal.

Python runs signal handlers only between its own instructions, so a library call that computes for
minutes delays them. But a signal also writes a byte into a pipe, without delay. A thread that waits
for this byte stops the library call; then the handler runs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.2
"""Seconds between repeated interrupts: an interrupt that arrives before the query starts has no
effect.
"""


@contextmanager
def interrupted_by_signals(interrupt: Callable[[], object]) -> Iterator[list[int]]:
    """While this context is active, call ``interrupt`` in another thread on SIGINT or SIGTERM.

    Yield the list of received signals, because a library may drop the exceptions that signal
    handlers raise. Do nothing outside of the main thread, or if another wakeup file descriptor is
    set.
    """
    # A handler written in Python runs late in a library's call; the wake-up pipe does not.
    came: list[int] = []
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, end == reading)
    try:
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    except ValueError:  # not in the main thread
        before = None
    # Leave the pipe of another waiter in place, and do nothing here.
    if before is None or before != -1:
        if before is not None:
            signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
        yield came
        return
    # Repeat the interrupt until the work ends: a library may miss the first one.
    done = threading.Event()

    def wait() -> None:
        number = 0
        while number not in _ENDING and not done.is_set():
            number, = os.read(reading, 1)
        if not done.is_set():
            came.append(number)
            interrupt()
            while not done.wait(_AGAIN_S):
                interrupt()

    watcher = threading.Thread(target=wait, name="rmqctl-signals", daemon=True)
    watcher.start()
    # Restore the previous state before the pipe is closed.
    try:
        yield came
    finally:
        done.set()
        signal.set_wakeup_fd(-1)
        os.write(writing, b"\0")
        watcher.join()
        os.close(reading)
        os.close(writing)
