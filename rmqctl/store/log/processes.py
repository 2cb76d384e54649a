"""A pool of worker processes on this machine: tasks in, results out in their order.

Apart from `rmqctl.store.log.ranges`, because its imports cost a one-process run more than they
are worth to it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from rmqctl.errors import JobError

T = TypeVar("T")
R = TypeVar("R")

_ENDING = (signal.SIGINT, signal.SIGTERM)
_WATCH = 0.5
"""Seconds between two looks at the parent."""


def parallel(work: Callable[[T], R], tasks: Iterable[T], jobs: int, *,
             caller_works: bool = False) -> Iterator[tuple[T, R]]:
    """(task, result) in the order of the tasks, worked on by ``jobs`` processes.

    Only a few more tasks than processes are under way, so memory stays flat. With
    ``caller_works`` this process is one of them: for a caller with much to do about results, it
    works where it would only wait. An exception of a worker is raised here; a worker that was
    killed is a JobError.
    """
    workers = jobs - 1 if caller_works else jobs
    ahead = 4 * workers if caller_works else 2 * workers
    most = 8 * jobs if caller_works else ahead
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, initializer=leave_signals_to_parent)
    waiting: deque[tuple[T, Future[R]]] = deque()
    rest = ((task,) for task in tasks)
    more = True
    try:
        while True:
            # As many tasks as keep the workers busy.
            while (more and len(waiting) < most
                   and sum(not future.done() for _, future in waiting) < ahead):
                if more := (taken := next(rest, None)) is not None:
                    with signals_later():  # the first one forks the workers
                        waiting.append((taken[0], pool.submit(work, taken[0])))
            if not waiting:
                return
            # The first result is not there yet: a task for this process.
            if caller_works and more and len(waiting) < most and not waiting[0][1].done():
                if more := (taken := next(rest, None)) is not None:
                    done: Future[R] = Future()
                    done.set_result(work(taken[0]))
                    waiting.append((taken[0], done))
                continue
            task, future = waiting.popleft()
            yield task, future.result()
    except BrokenProcessPool:
        raise JobError("a worker process was killed (out of memory?); "
                       "--jobs 1 needs the least") from None
    except BaseException:
        end_workers(pool)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def end_workers(pool: ProcessPoolExecutor) -> None:
    """Ends what the workers are doing: nobody wants it any more, and Ctrl-C should not wait."""
    for process in list((pool._processes or {}).values()):
        process.terminate()


@contextmanager
def signals_later() -> Iterator[None]:
    """Holds back Ctrl-C and SIGTERM: raised in the middle of a fork they would be swallowed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_parent() -> None:
    """Ctrl-C goes to the whole process group; the parent answers it and ends the workers.

    A parent that was killed cannot: then a worker ends by itself. It would wait for ever, and
    with it the lock of a store that the parent held.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        threading.Thread(target=_end_with, args=(parent.pid,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH)
    os._exit(1)
