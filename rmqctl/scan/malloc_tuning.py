"""Allocator and garbage collector settings for processes that read much data.

A walk makes and drops the same column buffers thousands of times. glibc gives buffers of their size
back to the system at first, and each page is then faulted in again: up to a fifth of a verify's
time. Elsewhere than on glibc `keep_freed_memory` does nothing.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from functools import cache

# From <malloc.h>; the trim threshold must be set with the other one, or glibc still trims.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEEP = 16 << 20


@cache
def keep_freed_memory(largest: int = _KEEP) -> bool:
    """Tell the allocator once per process; whether it listened. Buffers above ``largest`` bytes are
    returned to the system all the same.
    """
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        done = libc.mallopt(_M_MMAP_THRESHOLD, largest) and libc.mallopt(_M_TRIM_THRESHOLD, _KEEP)
    except (OSError, AttributeError):
        return False
    return bool(done)


def give_back() -> None:
    """Return freed memory to the system, before other work that needs much of it begins."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident() -> int:
    """Bytes of memory that the process has; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@cache
def collect_rarely() -> None:
    """Search for cycles less often, once per process, and not in existing objects.

    For millions of short-lived objects without a cycle among them, of which many live at a time:
    looking as often as usual takes a tenth to a fifth of the time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
