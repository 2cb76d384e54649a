"""The log pass over a whole log: in one piece, or cut into ranges for several threads.

A range starts at the first provable record at or after the cut. The previous range must end exactly
there. If it does not, for example because of a forged record inside a body, the later range is read
again from the true boundary. So the result does not depend on the number of threads.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rmqctl.checks.verify.context import ComparedStructures, RangeResult
from rmqctl.checks.verify.log.log_pass import LogPass
from rmqctl.checks.verify.log.sound import MappingError
from rmqctl.checks.verify.queue.rows import QueueKey
from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import malloc_tuning
from rmqctl.scan.tolerant import TolerantWalk
from rmqctl.store.live import Snapshot
from rmqctl.store.log.end import used_size
from rmqctl.store.log.ranges import Pool, Threads
from rmqctl.store.store import Store

MIN_RANGE = 32 << 20
_BY_QUEUE, _BY_FILE = 128 << 10, 32 << 10
"""Minimum size of a range: this many bytes for each queue of the store, and for each file of its
log.

The check of each range opens all queues and files, which one thread does at a time: shorter
ranges take longer than one.
"""
_MAX_BYTES = 1 << 30
"""Maximum size of a range in bytes, with several threads.

A range may report its progress only once, and a larger range would report it too late.
"""
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class VerifyRange:
    """Physical offsets ``[start, end)``. ``resync``: whether the start may be inside a record."""

    start: int
    end: int
    resync: bool


def split(store: Store, parts: int, minimum: int = MIN_RANGE,
          used: Sequence[int] | None = None) -> list[VerifyRange]:
    """Split all files of the log into at most ``parts`` ranges of about equal size.

    ``used``: for each file, the position of the zeros at its end. Only the bytes before these zeros
    then count, so that each range contains data.
    """
    files = [file for file in store.log.files if file.size]
    sizes = [file.size if used is None else used[number]
             for number, file in enumerate(store.log.files) if file.size]
    total = sum(sizes)
    parts = max(1, min(parts, total // max(minimum, 1)))
    cuts: list[tuple[int, bool]] = []
    for number in range(1, parts):
        left = total * number // parts
        for file, size in zip(files, sizes, strict=True):
            if left < size:
                cuts.append((file.base + left, left > 0))
                break
            left -= size
    starts = [(files[0].base if files else 0, False), *cuts]
    ends = [*(cut for cut, _ in cuts), store.log.end]
    return [VerifyRange(start, end, resync)
            for (start, resync), end in zip(starts, ends, strict=True)]


def _used(store: Store) -> list[int]:
    """Return, for each file, the position of the zeros at its end, so that these zeros are read
    only once.
    """
    ends = []
    for number, file in enumerate(store.log.files):
        try:
            ends.append(used_size(store.log.source(number)))
        except StoreIOError:  # the check of the range reports it
            ends.append(file.size)
    return ends


def run_range(store: Store, ends: dict[QueueKey, int], wanted: ComparedStructures,
              part: VerifyRange, last: bool,
              progress: Progress | None = None) -> RangeResult:
    """Check one range in this process. ``first`` of the result: start of the first frame."""
    malloc_tuning.keep_freed_memory()
    try:
        return _checked(store, ends, wanted, part, last, progress, mapped=True)
    except MappingError:
        return _checked(store, ends, wanted, part, last, progress, mapped=False)


def _checked(store: Store, ends: dict[QueueKey, int], wanted: ComparedStructures,
             part: VerifyRange, last: bool, progress: Progress | None, *,
             mapped: bool) -> RangeResult:
    job = LogPass(store, ends, wanted, part.start, progress)
    for number, file in enumerate(store.log.files):
        if file.end <= part.start and not (file.end == part.start == file.base):
            continue
        if file.base >= part.end:
            break
        inside = max(part.start - file.base, 0)
        job.run(file, TolerantWalk(partial(store.log.source, number), inside,
                                   min(part.end - file.base, file.size),
                                   resync=part.resync and inside > 0, whole=not file.head,
                                   sound=job.passes(file), mapped=mapped))
    return job.finish(last=last)


@dataclass(frozen=True, slots=True)
class _PassJob:
    """Data that the checks of all ranges of a store need."""

    root: str
    folders: list[str]
    sizes: Any
    ends: dict[QueueKey, int]
    wanted: ComparedStructures
    snapshot: Snapshot | None
    log_end: int
    used: list[int]


def _worker(job: _PassJob, part: VerifyRange, shared: _SharedProgress | None = None,
            whole: Store | None = None) -> RangeResult:
    with Store(job.root, job.folders, job.sizes, job.snapshot) as store:
        if whole is not None:
            whole.lend(store, evidence=True)
        store.log.zeros_from(job.used)
        return run_range(store, job.ends, job.wanted, part, part.end >= job.log_end,
                         None if shared is None else shared.of(part))


class _SharedProgress:
    """Progress of several threads, which report the bytes of their ranges as they check them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._left: dict[int, int] = {}

    def of(self, part: VerifyRange) -> Progress:
        """Return the callback for the progress of a range."""
        return partial(self._tell, part)

    def _tell(self, part: VerifyRange, count: int) -> None:
        with self._lock:
            left = self._left.setdefault(part.start, part.end - part.start)
            count = min(count, left)
            self._left[part.start] = left - count
            self._progress(count)

    def finish(self, part: VerifyRange) -> None:
        """Report the remaining bytes of a finished range."""
        self._tell(part, part.end - part.start)


def run(store: Store, ends: dict[QueueKey, int], wanted: ComparedStructures, jobs: int,
        progress: Progress | None = None, minimum: int | None = None, pool: Pool | None = None,
        count: int | None = None) -> RangeResult:
    """Check the whole log with ``jobs`` threads or a ``pool``.

    ``progress``: called by any of the threads, but by one at a time.
    ``minimum``: minimum size of a range, and ``count``: number of ranges (None: automatic).
    Raises: StoreIOError.
    """
    # The pieces, about four for each thread.
    jobs = max(1, jobs or os.cpu_count() or 1) if pool is None else pool.jobs
    log_end = store.log.end
    least = minimum or max(MIN_RANGE, _BY_QUEUE * len(ends), _BY_FILE * len(store.log.files))
    if pool is None and count is None and (jobs == 1 or store.log.size < 2 * least):
        everything = VerifyRange(split(store, 1)[0].start, log_end, False)
        return run_range(store, ends, wanted, everything, True, progress)
    used = _used(store)
    pieces = split(store, count or max(jobs * 4, store.log.size // _MAX_BYTES),
                   least if count is None else 1, used)
    if pool is None:
        pool = Threads(min(jobs, len(pieces)))
    shared = None if progress is None else _SharedProgress(progress)
    job = _PassJob(store.root, store.log_folders, store.sizes, ends, wanted, store.snapshot,
                   log_end, used)
    total: RangeResult | None = None
    # The tasks of a cluster do not carry it: they report when they are done.
    work = partial(_worker, job)
    if isinstance(pool, Threads):
        work = partial(work, shared=shared, whole=store)
    for part, result in pool.run(work, pieces):
        if total is None:
            total = result
        elif result.first == (seam := _seam(store, total.position)):
            total.merge(result)
        else:
            again = VerifyRange(seam, max(part.end, seam), False)
            total.merge(run_range(store, ends, wanted, again, part.end >= log_end))
        if shared is not None:
            shared.finish(part)
    assert total is not None
    return total


def _seam(store: Store, position: int) -> int:
    """Return ``position``, or the start of the next file if ``position`` is in no file."""
    if store.log.file_of(position) is not None:
        return position
    later = [file.base for file in store.log.files if file.base >= position]
    return min(later, default=position)


PIECE = 64 << 20
"""Size in bytes of one piece of a sampled log."""


def sample(store: Store, share: float, seed: int) -> list[VerifyRange]:
    """Return pieces that cover about ``share`` of the log, at least one.

    The same seed gives the same pieces. The piece with the end of the used log is always included,
    as crashes damage that part.
    """
    pieces = split(store, 1 << 30, min(PIECE, max(1, store.log.end // 64)))
    used = [part for part in pieces if not _unused(store, part)]
    if not used:
        return pieces[-1:]
    count = max(1, round(len(used) * share))
    # The only requirement is the same pieces for the same seed.
    chance = random.Random(seed)  # noqa: S311
    picked = set(chance.sample(range(len(used)), count - 1))
    picked.add(len(used) - 1)
    return [used[number] for number in sorted(picked)]


def _unused(store: Store, part: VerifyRange) -> bool:
    """Return whether a range contains no data (a hole in a preallocated file)."""
    place = store.log.locate(part.start)
    if place is None:
        return True
    source, position = place
    data = source.next_data(position)
    return data >= min(source.size, position + part.end - part.start)


def run_parts(store: Store, ends: dict[QueueKey, int], wanted: ComparedStructures,
              parts: list[VerifyRange],
              progress: Progress | None = None) -> RangeResult:
    """Check only some ranges of the log, one after the other, without conclusions about the bytes
    between them.
    """
    total: RangeResult | None = None
    for part in parts:
        result = run_range(store, ends, wanted, part, part.end >= store.log.end, progress)
        if total is None:
            total = result
        else:
            total.merge(result)
    return total or RangeResult(0)
