"""A pool that behaves as badly as a cluster may, and comparisons of rebuilds."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rmqctl.broker.settings import Settings
from rmqctl.errors import StoreIOError
from rmqctl.ext.spark.rebuild.rebuild import rebuild_on
from rmqctl.repair.rebuild.rebuild import Rebuilt
from rmqctl.repair.scratch import Scratch
from rmqctl.store.log.ranges import Pool
from tests.repair.rebuilding import derived, parts_of, unnamed


class Unruly:
    """Runs tasks in any order, some of them several times, and loses attempts.

    An attempt that is lost has written everything. Work, tasks and results are pickled, as between
    machines. ``attempts`` counts what was run.
    """

    def __init__(self, seed: int = 0, jobs: int = 3) -> None:
        self.jobs, self._random, self.attempts = jobs, random.Random(seed), 0

    def run(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        all_tasks = list(tasks)
        texts: dict[int, Any] = {}
        order = [number for number in range(len(all_tasks))
                 for _ in range(self._random.randint(1, 3))]
        self._random.shuffle(order)
        for number in order:
            self.attempts += 1
            do, task = pickle.loads(pickle.dumps((work, all_tasks[number])))
            texts[number] = pickle.dumps(do(task))
        for number, task in enumerate(all_tasks):
            yield task, pickle.loads(texts[number])


class LosingFirst:
    """Ends each task's first attempt half way, as a killed worker, and tries again."""

    jobs = 2

    def __init__(self, breaking: Callable[[], Any]) -> None:
        self._breaking, self.lost = breaking, 0

    def run(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        for task in tasks:
            with self._breaking():
                try:
                    work(task)
                except (StoreIOError, OSError):
                    self.lost += 1
            yield task, work(task)


def on_pool(pool: Pool, store: Path, settings: Settings, scratch: Scratch, kind: str = "",
            parts: Any = None, **more: Any) -> Rebuilt:
    """A rebuild on a pool, with the settings' own batch topics."""
    return rebuild_on(pool, parts if parts is not None else parts_of(store, kind), str(store),
                      settings, scratch, batch_topics=settings.batch_topics, **more)


def figures(rebuilt: Rebuilt) -> dict[str, Any]:
    """Everything it tells, without the scratch folder's place."""
    return {name: getattr(rebuilt, name) for name in Rebuilt.__slots__ if name not in (
        "scratch", "scratch_queues")}


def outcome(rebuilt: Rebuilt) -> tuple[dict[str, bytes], dict[str, Any]]:
    """(files with their bytes, index files by order; everything it tells)."""
    return unnamed(derived(Path(rebuilt.scratch.root))), figures(rebuilt)
