"""Allocator and garbage collector settings for processes that read a lot of data.

A walk creates and drops the same column buffers thousands of times. By default, glibc returns such
buffers to the system. Faulting their pages in again takes up to a fifth of the run time of
`verify`. Without glibc, `keep_freed_memory` does nothing.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from functools import cache

# From <malloc.h>; the trim threshold must be set together with the other one, or glibc still trims.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_KEEP = 16 << 20


@cache
def keep_freed_memory(largest: int = _KEEP) -> bool:
    """Configure the allocator once per process. Return whether the settings were accepted. Buffers
    above ``largest`` bytes are still returned to the system.
    """
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        done = libc.mallopt(_M_MMAP_THRESHOLD, largest) and libc.mallopt(_M_TRIM_THRESHOLD, _KEEP)
    except (OSError, AttributeError):
        return False
    return bool(done)


@cache
def share_freed_memory() -> None:
    """Let threads that start from now on allocate from what others have freed, not each from an
    arena of its own. Takes effect once per process.
    """
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Return freed memory to the system before other work that needs much memory."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident() -> int:
    """Return the process's resident memory in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@cache
def collect_rarely() -> None:
    """Search for reference cycles less often, and never in existing objects. Takes effect once per
    process.

    A scan has millions of objects without cycles, many of them alive at the same time. The usual
    frequency would cost a tenth to a fifth of the run time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
