"""Check that there is enough memory before numpy is loaded, and recognize out-of-memory errors.

OpenBLAS, which numpy contains, ends the process with exit code 1 if it cannot allocate memory. In
rmqctl, exit code 1 means "findings". So if the address space is limited (``ulimit -v``), rmqctl
checks that there is enough before it imports numpy.
"""

from __future__ import annotations

import mmap
import os
import resource

_LIBRARIES = 96 << 20
"""Bytes of address space that numpy needs with one thread of OpenBLAS (82 MiB measured)."""


def expect_room() -> None:
    """Raise MemoryError if there is too little address space to load numpy.

    Also limit OpenBLAS to one thread, with a buffer of 32 MiB, because rmqctl does no linear
    algebra.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    try:
        mmap.mmap(-1, _LIBRARIES).close()
    except OSError as error:
        raise MemoryError from error


def is_lack_of_memory(error: BaseException | None) -> bool:
    """Return whether ``error``, or an error that caused it, means that memory is exhausted."""
    while error is not None:
        text = str(error)
        if isinstance(error, MemoryError) or (isinstance(error, ImportError) and (
                "failed to map segment" in text or "Cannot allocate memory" in text)) or (
                isinstance(error, RuntimeError) and "can't start new thread" in text):
            return True
        error = error.__cause__ or error.__context__
    return False
