"""Runs tasks in threads of this process; results are in the order of the tasks.

`parallel` runs many tasks at once; `Behind` runs them one after the other, in a thread beside the
caller.

The loops over bytes (in the kernel extension, NumPy and `pread`) run without the GIL, so threads
use several cores. The standard library's thread pool is not used, because it imports three times as
many modules.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from queue import SimpleQueue
from typing import Generic, TypeVar

from rmqctl.scan import ending, stopping

T = TypeVar("T")
R = TypeVar("R")

MAX_THREADS = 4
"""Maximum number of threads. A fifth to a third of the work holds the GIL, so more threads hardly
help.

This maximum also limits memory, because each thread has its own buffers, columns and result.
"""
_LOOK_S = 0.5
_ENDING = (signal.SIGINT, signal.SIGTERM)


def parallel(work: Callable[[T], R], tasks: Iterable[T], jobs: int) -> Iterator[tuple[T, R]]:
    """Carry out tasks in ``jobs`` threads (at most `MAX_THREADS`). Yield (task, result) in the
    order of the tasks.

    At most one task more than threads is in progress, so memory stays flat. When this generator
    ends, for any reason, all threads have ended. Running tasks end at their next read
    (`rmqctl.scan.stopping`).

    Raises: the exception of a task, when its result would be yielded.
    """
    crew: _Crew[T, R] = _Crew(work)
    waiting: deque[_Slot[T, R]] = deque()
    most = min(jobs, MAX_THREADS)
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
                crew.todo.put(slot)
                if len(crew.threads) < most and not crew.start_one():
                    most = len(crew.threads)
            if not waiting:
                return
            slot = waiting.popleft()
            if not crew.threads:  # the system provides no thread
                crew.todo.get()
                slot.run(work)
            yield slot.task, slot.taken()
    finally:
        crew.end()


class Behind(Generic[T]):
    """A thread that carries out ``work`` for items, one after the other, while the caller prepares
    the next item.

    At most one item is in progress, so memory stays flat. The caller must call `end`. The work
    should not need the GIL for long.
    """

    def __init__(self, work: Callable[[T], None]) -> None:
        self._work: Callable[[list[T]], None] = lambda box: work(box.pop())
        self._crew: _Crew[list[T], None] = _Crew(self._work)
        self._slot: _Slot[list[T], None] | None = None

    def put(self, item: T) -> None:
        """Wait until the previous item is done, and begin with this one.

        Raises: the exception of the previous item.
        """
        self.settle()
        slot: _Slot[list[T], None] = _Slot([item])  # a box: nothing refers to an item that is done
        del item
        if not self._crew.threads and not self._crew.start_one():  # no thread is available
            slot.run(self._work)
            slot.taken()
            return
        self._slot = slot
        self._crew.todo.put(slot)

    def settle(self) -> None:
        """Wait until no item is in progress. Raises: the exception of the item."""
        slot = self._slot
        if slot is not None:
            try:
                slot.taken()
            finally:
                self._slot = None

    def end(self) -> None:
        """End the thread, and wait until it has ended. May be called more than once."""
        self._crew.end()


class _Slot(Generic[T, R]):
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
        """Wait for the result and return it, or raise the exception of the task."""
        # A signal interrupts it in the main thread, except one that another thread received
        # earlier, or one right before this wait: so it wakes up regularly.
        while not self._done.acquire(timeout=_LOOK_S):
            pass
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class _Crew(Generic[T, R]):
    """A group of threads that carry out the tasks in the slots of ``todo``."""

    def __init__(self, work: Callable[[T], R]) -> None:
        self.todo: SimpleQueue[_Slot[T, R] | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self._work, self._stop = work, stopping.Stop()
        ending.note(self)

    def start_one(self) -> bool:
        """Start one more thread; return False if the system refuses to start one."""
        # Use the caller's context, so that the refusals that it collects (errors.refusals) include
        # those of threads. Daemon threads let a run end even if its results were not closed.
        thread = threading.Thread(target=copy_context().run, daemon=True,
                                  args=(_serve, self._work, self.todo, self._stop))
        self.threads.append(thread)  # before it starts: if interrupted here, it is still ended
        try:
            thread.start()
        except RuntimeError:
            self.threads.remove(thread)
            return False
        return True

    def end(self) -> None:
        """End all threads, and wait until they have ended."""
        self._stop.asked = True
        for _ in self.threads:
            self.todo.put(None)
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()


def _serve(work: Callable[[T], R], todo: SimpleQueue[_Slot[T, R] | None],
           stop: stopping.Stop) -> None:
    """Carry out tasks until the group of threads ends.

    A thread has no reference to its group, so an unused group is freed.
    """
    # Ctrl-C and SIGTERM belong to the main thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    stopping.current.set(stop)
    while (slot := todo.get()) is not None:
        if stop.asked:
            return
        slot.run(work)
        del slot  # only the taker keeps its result
