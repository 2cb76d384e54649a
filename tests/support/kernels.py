"""The two builds of the loops over records: each in turn, or both on the same bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rmqctl import kernel
from rmqctl.errors import UnsupportedError


def _missing() -> str:
    with using("compiled"):
        try:
            kernel.active()
        except UnsupportedError as exc:
            return str(exc)
    return ""


@contextmanager
def using(name: str) -> Iterator[None]:
    """Within, this process and those that it starts use the kernel of this name."""
    before = os.environ.get(kernel.VARIABLE)
    os.environ[kernel.VARIABLE] = name
    kernel.active.cache_clear()
    try:
        yield
    finally:
        del os.environ[kernel.VARIABLE]
        if before is not None:
            os.environ[kernel.VARIABLE] = before
        kernel.active.cache_clear()


MISSING = _missing()
compiled_only = pytest.mark.skipif(bool(MISSING), reason=MISSING)
KERNELS = ["python", pytest.param("compiled", marks=compiled_only)]
