"""Keep what tests write in memory where there is room: 300,000 files are dear on a slow disk."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = "/dev/shm"
VARIABLE = "PYTEST_DEBUG_TEMPROOT"
ROOM = 8 << 30
"""Bytes; tests remove what they wrote, so a run holds a small part of this at a time."""


def install() -> None:
    """Let pytest make its temporary folders in memory, unless a place for them is given."""
    if VARIABLE not in os.environ and _has_room():
        os.environ[VARIABLE] = FOLDER


def _has_room() -> bool:
    try:
        state = os.statvfs(FOLDER)
        available = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(),
                              re.MULTILINE)
    except OSError:
        return False
    return (os.access(FOLDER, os.W_OK) and not state.f_flag & os.ST_NOEXEC
            and state.f_bavail * state.f_frsize >= ROOM
            and available is not None and int(available[1]) << 10 >= ROOM)
