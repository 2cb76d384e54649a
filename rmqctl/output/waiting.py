"""Waiting between two looks at something, while watching whether anybody still reads stdout."""

from __future__ import annotations

import select
import sys
import time


def wait(seconds: float) -> None:
    """Sleep; raise BrokenPipeError as soon as whoever reads stdout has gone.

    Without it ``tail -f | head -1`` on a quiet store would stay for ever: a write is what
    usually tells, and there is nothing to write. A terminal or a file never goes away.
    """
    until = time.monotonic() + seconds
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)  # errors and hang-ups are told unasked
        events = watched.poll(seconds * 1000)
    except (OSError, ValueError, AttributeError):  # no descriptor behind it, or none at all
        events = []
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in events):
        raise BrokenPipeError
    time.sleep(max(until - time.monotonic(), 0))
