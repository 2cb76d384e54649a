"""A pool on Spark: executors run the tasks, and the driver receives the results in order.

Several small tasks run in one Spark task (`packed`). A result is a pickled value. The function and
the tasks are sent once (broadcast). Spark repeats a failed task and uses one result per task. The
job is an RDD job: with ``mapInArrow``, the SQL engine would delay the first job by 2 to 3 s.
"""

from __future__ import annotations

import os
import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from rmqctl import kernel, vfs
from rmqctl.checks.verify.log.ranges import VerifyRange
from rmqctl.errors import JobError, RmqctlError
from rmqctl.ext.spark.session import log_of
from rmqctl.files.remote.reader import secrets, share_secrets
from rmqctl.sql.planning import MIN_SIZE, OPENING
from rmqctl.store.log.ranges import FileRange

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
Watch = Callable[[int, int], None]
"""Callback for progress; receives the number of completed tasks and the number of known tasks."""
STORE = 1 << 20
"""Assumed size in bytes of a task whose size is unknown, such as a small store."""
POLL = 0.1
"""Number of seconds between two progress checks."""
_PYTHON = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception))(?:: (.*))?$", re.MULTILINE)
"""Pattern of the last line of a Python traceback."""
_SIGNS = (
    ("crashed", "Python workers were killed repeatedly (out of memory?)"),
    ("ExecutorLostFailure", "executors were lost repeatedly (out of memory?)"),
    ("maxResultSize", "the results are larger than spark.driver.maxResultSize"),
    ("No space left on device", "no space left on device (Spark's local folder?)"),
    ("cancelled", "the Spark job was cancelled"),
)


class SparkPool:
    """A `rmqctl.store.log.ranges.Pool` on a Spark session.

    * ``jobs``: number of tasks that the cluster runs at a time
    * ``watch``: receives the progress
    * ``kernels``: names of the kernels that tasks have used (`rmqctl.kernel.name`)
    """

    def __init__(self, spark: SparkSession, watch: Watch | None = None) -> None:
        self.spark, self.watch = spark, watch
        self.jobs = max(1, spark.sparkContext.defaultParallelism)
        self.kernels: set[str] = set()

    def run(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
        """Run the tasks and yield their results (see `Pool.run`). An interrupt cancels the Spark
        job.
        """
        all_tasks = list(tasks)
        if not all_tasks:
            return
        for task, pickled in zip(all_tasks, self._results(work, all_tasks), strict=True):
            used, value = pickle.loads(pickled)  # noqa: S301  # from this program's workers
            self.kernels.add(used)
            if isinstance(value, _Failed):
                raise value.error
            yield task, value

    def _results(self, work: Callable[[T], R], tasks: list[T]) -> list[bytes]:
        from pyspark import cloudpickle

        context = self.spark.sparkContext
        dumps: Callable[[Any], bytes] = cloudpickle.dumps
        function, pickled = dumps(work), [dumps(task) for task in tasks]
        sent = context.broadcast((function, pickled))
        # Mount remote paths of the work and its tasks on executors, too.
        roots = [root for root in vfs.roots()
                 if any(root.encode() in named for named in (function, *pickled))]
        try:
            worker = _SparkWorker(sent, os.getcwd(), secrets(), roots)
            results = self._collected(context, worker, packed(
                [weight(task) for task in tasks], self.jobs))
        finally:
            sent.unpersist()
        return results

    def _collected(self, context: SparkContext, worker: _SparkWorker, packs: list[range]) -> list[
            bytes]:
        """Run the job in another thread, so that this thread can show progress and be interrupted;
        return the pickled results.
        """
        # A job group can be cancelled from another thread.
        count = packs[-1].stop
        group = new_group()
        outcome: list[Any] = []

        def job() -> None:
            context.setJobGroup(group, "rmqctl", interruptOnCancel=True)
            try:
                outcome.append(context.parallelize(packs, len(packs)).flatMap(worker).collect())
            except BaseException as error:  # noqa: BLE001  # raised again in the other thread
                outcome.append(error)

        from pyspark import InheritableThread

        # Wait in this thread: it shows progress and receives interrupts.
        thread = InheritableThread(target=job, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(POLL)
                if self.watch is not None:
                    self.watch(min(len(packs), tasks_of(context, group)[0]), len(packs))
        except BaseException:
            # Cancel on any error, so that executors do not continue without a reader.
            context.cancelJobGroup(group)
            thread.join(20)
            raise
        # Raise the error of the job here, and check that no result is missing.
        result = outcome[0]
        if isinstance(result, BaseException):
            raise failure(result, log_of(self.spark)) from None
        if len(result) != count:
            raise JobError(f"Spark returned {len(result)} results for {count} tasks")
        if self.watch is not None:
            self.watch(len(packs), len(packs))
        results: list[bytes] = result
        return results


class _Failed:
    """Result of a task that failed with an error, which the driver raises."""

    def __init__(self, error: RmqctlError) -> None:
        self.error = error


class _SparkWorker:
    """The function that runs on an executor.

    It receives task numbers, and yields the name of the kernel and the pickled result of each
    task. If the driver's working folder exists on the executor, the tasks run in this folder, so
    that relative paths have the same meaning. ``roots``: URLs that tasks may need.
    """

    def __init__(self, sent: Any, folder: str, secrets: dict[str, str],
                 roots: Sequence[str] = ()) -> None:
        self._sent, self._folder, self._secrets, self._roots = sent, folder, secrets, roots

    def __call__(self, numbers: range) -> Iterator[bytes]:
        work, tasks = self._sent.value
        do = pickle.loads(work)  # noqa: S301
        share_secrets(self._secrets)
        with ExitStack() as held:
            with suppress(OSError):
                held.enter_context(chdir(self._folder))
            for number in numbers:
                used = ""
                try:
                    used = kernel.name()  # a missing required kernel is an error of the task
                    self._mount(work, tasks[number])
                    answer = do(pickle.loads(tasks[number]))  # noqa: S301
                except RmqctlError as error:
                    answer = _Failed(error)
                yield pickle.dumps((used, answer), pickle.HIGHEST_PROTOCOL)

    def _mount(self, *named_in: bytes) -> None:
        """Mount the URLs that the function or the task contains; other URLs may be unreachable."""
        for root in self._roots:
            if any(root.encode() in named for named in named_in) and not vfs.is_mounted(root):
                from rmqctl.files.remote.tree import mounted

                mounted(root)


@runtime_checkable
class Weighed(Protocol):
    """A task with the approximate number of bytes that it reads."""

    @property
    def weight(self) -> int: ...


def weight(task: Any) -> int:
    """Return the approximate number of bytes that a task reads, including the cost of opening a
    file, expressed in bytes.
    """
    if isinstance(task, FileRange | VerifyRange):
        return max(task.end - task.start, 0) + OPENING
    if isinstance(task, Weighed):
        return task.weight + OPENING
    return STORE


def packed(weights: Sequence[int], jobs: int) -> list[range]:
    """Divide the tasks into ranges of consecutive tasks; each range becomes one Spark task.

    A range ends when it has `MIN_SIZE` bytes, or fewer if each of ``jobs`` would otherwise get
    fewer than four ranges. Larger ranges save time, because starting a Spark task takes as long as
    reading megabytes.
    """
    enough = min(MIN_SIZE, max(sum(weights) // (4 * jobs), 1))
    packs, start, held = [], 0, 0
    for number, one_weight in enumerate(weights):
        held += one_weight
        if held >= enough:
            packs.append(range(start, number + 1))
            start, held = number + 1, 0
    if start < len(weights):
        packs.append(range(start, len(weights)))
    return packs


def failure(error: BaseException, log: str | None) -> BaseException:
    """Return the error that a user sees for a failed Spark job."""
    if not isinstance(error, Exception):
        return error
    text = str(error)
    where = f" (Spark's messages: {log})" if log else ""
    for sign, words in _SIGNS:
        if sign in text:
            return JobError(words + where)
    tracebacks = _PYTHON.findall(text)
    if tracebacks:
        name, words = tracebacks[-1]
        reason = words if name.startswith("rmqctl.") and words else f"{name}: {words}".rstrip(": ")
        return JobError(f"the Spark job failed: {reason}{where}")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return JobError(f"the Spark job failed: {first or type(error).__name__}{where}")


# -- how far Spark has come, from its status tracker ----------------------------------------------


def new_group() -> str:
    """Return a name for a group of jobs."""
    return f"rmqctl-{uuid.uuid4().hex}"


def tasks_of(context: SparkContext, group: str) -> tuple[int, int]:
    """Return the numbers of completed tasks and of all tasks for the jobs of a group.

    Only stages that have begun count. A stage that Spark skips, because an earlier job has done the
    work, never begins.
    """
    status, done, count = context.statusTracker(), 0, 0
    for job in status.getJobIdsForGroup(group):
        info = status.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            state = status.getStageInfo(stage)
            if state is not None and (state.numCompletedTasks or state.numActiveTasks):
                done += state.numCompletedTasks
                count += state.numTasks
    return done, count


@contextmanager
def watched(spark: SparkSession, watch: Watch) -> Iterator[None]:
    """Report the progress of all Spark jobs of this thread to ``watch``.

    Running jobs are cancelled if the block ends with an exception.
    """
    context, group, over = spark.sparkContext, new_group(), threading.Event()

    def look() -> None:
        while not over.wait(POLL):
            with suppress(Exception):  # a failed check of the progress must not end the work
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
