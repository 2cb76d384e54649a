"""Threads that read remote files, and interruptible waiting for them.

A server may send nothing for a minute, so the wait can be interrupted. The process then exits
without waiting for running requests, which only read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, TypeVar

from rmqctl.scan import stopping

T = TypeVar("T")
R = TypeVar("R")
THREADS = 16
"""Maximum number of simultaneous requests."""
_LOOK = 0.25
"""Seconds after which a waiting thread checks whether it was asked to stop."""


class _Pool:
    """A `ThreadPoolExecutor` whose threads Python does not wait for at exit."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        future = Future[Any]()
        self._work.put((future, work))
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if self._threads < THREADS:
                    self._threads += 1
                    threading.Thread(target=self._run, name="rmqctl-range", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, work = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001  # raised where it is waited for
                    future.set_exception(error)
            del future, work
            self._idle.release()


@cache
def _pool() -> _Pool:
    return _Pool()


os.register_at_fork(after_in_child=_pool.cache_clear)


def submit(work: Callable[..., R], *values: Any) -> Future[R]:
    """Run a function in a thread."""
    return _pool().submit(partial(work, *values))


def taken(future: Future[R]) -> R:
    """Wait for a result.

    Raises: `Stopped` if the waiting thread was asked to stop.
    """
    while not wait((future,), _LOOK).done:
        stopping.check()
    return future.result()


def run_all(work: Callable[[T], R], values: Iterable[T]) -> list[R]:
    """Run a function for many values at the same time. After a failure, start no further call."""
    under_way = [submit(work, value) for value in values]
    try:
        return [taken(future) for future in under_way]
    finally:
        for future in under_way:
            future.cancel()
