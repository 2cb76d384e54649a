"""Memory for libraries: tested before they are loaded, and limited.

OpenBLAS, which is part of numpy, exits the process with code 1 when it cannot allocate memory. In
rmqctl that code means "findings", so under a limit (``ulimit -v``) the address space is tested
first.
"""

from __future__ import annotations

import mmap
import os
import resource

_LIBRARIES = 96 << 20
"""Bytes of address space that numpy needs with one thread of OpenBLAS (82 MiB measured)."""


def expect_room() -> None:
    """Check that there is enough memory to load the libraries.

    rmqctl does no linear algebra: one thread of OpenBLAS, with its buffer of 32 MiB, is enough.
    Raises: MemoryError.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    try:
        mmap.mmap(-1, _LIBRARIES).close()
    except OSError as error:
        raise MemoryError from error


def is_lack_of_memory(error: BaseException | None) -> bool:
    """Return whether an error of any library means that no memory is available."""
    while error is not None:
        text = str(error)
        if isinstance(error, MemoryError) or (isinstance(error, ImportError) and (
                "failed to map segment" in text or "Cannot allocate memory" in text)) or (
                isinstance(error, RuntimeError) and "can't start new thread" in text):
            return True
        error = error.__cause__ or error.__context__
    return False
