"""Keeps freed memory in the process while a log is walked.

A walk makes and drops the same column buffers thousands of times. glibc gives buffers of their
size back to the system at first, and each page is then faulted in anew: up to a fifth of a
verify's time. Elsewhere than on glibc this does nothing.
"""

from __future__ import annotations

from functools import cache

# From <malloc.h>; the trim threshold must be set with the other one, or glibc still trims.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEEP = 16 << 20


@cache
def keep() -> bool:
    """Tells the allocator once per process; whether it listened."""
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        done = libc.mallopt(_M_MMAP_THRESHOLD, _KEEP) and libc.mallopt(_M_TRIM_THRESHOLD, _KEEP)
    except (OSError, AttributeError):
        return False
    return bool(done)
