"""Counting the messages of stores for ``stats``: which files, by which engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rmqctl.commands.shared.pipeline_options import EngineName, chosen_engine, opened_pool
from rmqctl.commands.shared.stats_view import warn

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.scan.aggregate import Aggregate
    from rmqctl.store import Store
    from rmqctl.store.files import StoreFile
    from rmqctl.store.stats.stats import Query


@dataclass(frozen=True, slots=True)
class Source:
    """The log files of a store that are read."""

    store: str
    files: list[StoreFile]

    @classmethod
    def choose(cls, out: Output, store: Store, query: Query, name: str | None = None) -> Self:
        """Those whose time it may be; ``name`` where there are several stores."""
        from rmqctl.store.stats.stats import choose_files

        files = choose_files(store, query)
        for trouble in store.log_troubles:
            out.warn(f"{trouble.path}: {trouble.reason}")
        left = len(store.log.files) - len(files)
        if left:
            where = "" if name is None else f"{name}: "
            out.debug(f"{where}{left} log files lie outside the time asked for")
        return cls(name or store.root, files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def range_size(sources: Sequence[Source], partitions: int | None, jobs: int) -> int:
    """Bytes of a range; ``partitions`` are those of the largest store."""
    from rmqctl.store.stats.stats import range_size_for

    logs = [one.files for one in sources]
    if partitions is not None:
        logs = [max(sources, key=lambda one: one.size).files]
    return range_size_for(logs, jobs, partitions)


def count(out: Output, sources: Sequence[Source], query: Query, engine: EngineName | None,
          jobs: int, *, partitions: int | None = None, together: bool = False,
          **spark: Any) -> list[Aggregate]:
    """The sums by store (``together``: one for all), and what they leave out as warnings.

    ``spark``: master, conf and log, as `opened_pool` takes them.
    """
    from rmqctl.output.progress import Progress
    from rmqctl.store.log.ranges import RANGE_SIZE, Processes
    from rmqctl.store.stats.stats import collect_many

    size = sum(one.size for one in sources)
    logs = [one.files for one in sources]
    with opened_pool(out, engine, size, jobs=jobs, **spark) as pool:
        local = isinstance(pool, Processes)
        fine = RANGE_SIZE if local and partitions is None else range_size(sources, partitions,
                                                                           pool.jobs)
        # One process goes on where a range ended; it needs no pool, which would look for borders.
        plain = local and jobs == 1 and partitions is None
        # Spark's results come all at once: its own bar shows the tasks that are done.
        with out.progress("counting", size) if local else Progress() as progress:
            total = [size]

            def again(more: int) -> None:
                total[0] += more
                progress.total(total[0])
                progress.label("counting the heavy ones")
                out.debug("more groups than fit: the log is read again for the heavy ones")

            sums = collect_many(logs, query, jobs, range_size=fine,
                                progress=progress.advance, pool=None if plain else pool,
                                again=again, together=together)
    for number, one in enumerate(sums):
        named = len(sources) > 1 and not together
        warn(out, one, sources[number].store if named else None)
    return sums


def pieces(sources: Sequence[Source], engine: EngineName | None, master: str, jobs: int,
           partitions: int | None) -> tuple[str, str, list[dict[str, Any]]]:
    """(engine, why, a row per store with files, ranges and bytes): what would be read.

    Nothing of the logs is read but where the bytes in use end.
    """
    from rmqctl.store.log.ranges import RANGE_SIZE, split

    name, why = chosen_engine(engine, master, sum(one.size for one in sources))
    if name == "spark":
        from rmqctl.pipeline.session import workers_of

        jobs = workers_of(master) or jobs
    local = name == "local" and partitions is None
    fine = RANGE_SIZE if local else range_size(sources, partitions, jobs)
    found = []
    for one in sources:
        parts = list(split(one.files, fine))
        found.append({"store": one.store, "files": len(one.files), "partitions": len(parts),
                      "bytes": sum(part.end - part.start for part in parts),
                      "file_bytes": one.size})
    return name, why, found
