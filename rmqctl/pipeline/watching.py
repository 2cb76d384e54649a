"""How far Spark has come with what it is doing, from its status tracker."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Watch = Callable[[int, int], None]
"""(tasks done, tasks in all, as far as they are known)"""
POLL = 0.1
"""Seconds between two looks."""


def new_group() -> str:
    """A name for a group of jobs."""
    return f"rmqctl-{uuid.uuid4().hex}"


def tasks_of(context: SparkContext, group: str) -> tuple[int, int]:
    """(tasks done, tasks in all) of the stages of a group's jobs that have begun.

    One that Spark skips, because an earlier job has done it, never begins.
    """
    status, done, count = context.statusTracker(), 0, 0
    for job in status.getJobIdsForGroup(group):
        info = status.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            known = status.getStageInfo(stage)
            if known is not None and (known.numCompletedTasks or known.numActiveTasks):
                done += known.numCompletedTasks
                count += known.numTasks
    return done, count


@contextmanager
def watched(spark: SparkSession, watch: Watch) -> Iterator[None]:
    """``watch`` hears of the tasks of everything this thread has Spark do meanwhile.

    What is under way is cancelled when this is left by an exception.
    """
    context, group, over = spark.sparkContext, new_group(), threading.Event()

    def look() -> None:
        while not over.wait(POLL):
            with suppress(Exception):  # a look that fails must not end the work
                watch(*tasks_of(context, group))

    context.setJobGroup(group, "rmqctl", interruptOnCancel=True)
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        with suppress(Exception):
            context.cancelJobGroup(group)
        raise
    finally:
        over.set()
        thread.join()
