"""Tasks worked on by threads of this process: tasks in, results out in their order.

The loops over bytes (the kernel's, NumPy's, `pread`) run without the GIL, so threads share the
cores. A pool of our own: that of the standard library loads three times as many modules.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from queue import SimpleQueue
from typing import Generic, TypeVar

from rmqctl.scan import stopping

T = TypeVar("T")
R = TypeVar("R")

MOST = 4
"""Threads at most. A fifth to a third of the work holds the GIL, so more of them hardly help, and
each has buffers, columns and a result of its own: this is what bounds memory."""
_LOOK_S = 0.5
_ENDING = (signal.SIGINT, signal.SIGTERM)


def parallel(work: Callable[[T], R], tasks: Iterable[T], jobs: int) -> Iterator[tuple[T, R]]:
    """(task, result) in the order of the tasks, worked on by ``jobs`` threads (`MOST` at most).

    One task more than threads is under way, so memory stays flat. An exception of a task is
    raised here in its turn. Whatever ends this, all threads have ended then; tasks that run end
    when they read next (`rmqctl.scan.stopping`).
    """
    threads: list[threading.Thread] = []
    todo: SimpleQueue[_Slot[T, R] | None] = SimpleQueue()
    waiting: deque[_Slot[T, R]] = deque()
    stop = stopping.Stop()
    most = min(jobs, MOST)
    rest = iter(tasks)
    more = True
    try:
        while True:
            while more and len(waiting) <= most:
                slot: _Slot[T, R] | None = next((_Slot(task) for task in rest), None)
                if slot is None:
                    more = False
                    break
                waiting.append(slot)
                todo.put(slot)
                if len(threads) < most and not _start(threads, work, todo, stop):
                    most = len(threads)
            if not waiting:
                return
            slot = waiting.popleft()
            if not threads:  # the system gives none
                todo.get()
                slot.run(work)
            yield slot.task, slot.taken()
    finally:
        stop.asked = True
        for _ in threads:
            todo.put(None)
        for thread in threads:
            if thread.ident is not None:
                thread.join()


class _Slot(Generic[T, R]):
    """A task, and what becomes of it."""

    __slots__ = ("_done", "_error", "_result", "task")

    def __init__(self, task: T) -> None:
        self.task = task
        self._result: R | None = None
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def run(self, work: Callable[[T], R]) -> None:
        try:
            self._result = work(self.task)
        except BaseException as error:  # noqa: BLE001  # raised by `taken`
            self._error = error
        finally:
            self._done.release()

    def taken(self) -> R:
        """The result, once it is there, or the exception instead of it."""
        # A signal interrupts it, in the main thread; but not one that another thread took before it
        # shut them out, nor one that came right before this slept: so it looks now and then.
        while not self._done.acquire(timeout=_LOOK_S):
            pass
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


def _start(threads: list[threading.Thread], work: Callable[[T], R],
           todo: SimpleQueue[_Slot[T, R] | None], stop: stopping.Stop) -> bool:
    """One thread more; False where the system gives none."""
    def serve() -> None:
        # Ctrl-C and SIGTERM are the main thread's.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        stopping.current.set(stop)
        while (slot := todo.get()) is not None:
            if stop.asked:
                return
            slot.run(work)
            del slot  # its result is the taker's alone

    # With the caller's context, so that what he notes by it (errors.refusals) hears of threads.
    # A daemon, so that a run of which nobody closed the results can end.
    thread = threading.Thread(target=copy_context().run, args=(serve,), daemon=True)
    threads.append(thread)  # before it starts: interrupted here, it is told to end all the same
    try:
        thread.start()
    except RuntimeError:
        threads.remove(thread)
        return False
    return True
