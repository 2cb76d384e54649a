"""Faults at the n-th call of the system functions that change something."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

CHANGING = ("open", "mkdir", "pwrite", "write", "fsync", "fdatasync", "rename", "replace", "unlink",
            "link", "ftruncate")


class Killed(BaseException):
    """Stands for SIGKILL: nothing that handles errors may see it."""


def out_of_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class Counter:
    """How many calls there were, and which one fails (counted from 0; None: none)."""

    def __init__(self, fail_at: int | None, error: Callable[[], BaseException]) -> None:
        self.calls, self.fail_at, self.error = 0, fail_at, error
        self.failed = False

    def __call__(self) -> None:
        number, self.calls = self.calls, self.calls + 1
        if number == self.fail_at:
            self.failed = True
            raise self.error()


@contextmanager
def failing(fail_at: int | None, error: Callable[[], BaseException] = out_of_space) -> Iterator[
        Counter]:
    counter = Counter(fail_at, error)

    def wrap(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            counter()
            return real(*args, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGING:
            patch.setattr(os, name, wrap(getattr(os, name)))
        yield counter
