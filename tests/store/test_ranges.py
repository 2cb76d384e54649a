"""Ranges and threads: any cut, also inside messages, blanks and damage, changes nothing."""

from __future__ import annotations

import errno
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqctl.errors import StoreIOError, noting_refusals
from rmqctl.scan.source import FileSource
from rmqctl.store import Store, stats
from rmqctl.store.log import ranges, threads
from rmqctl.store.stats import Query, collect
from tests.conftest import GoldenFolder
from tests.support import damage, forged
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores
from tests.support.share import sample

COUNTS = ("bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged", "damaged_spans")


def figures(root: Path, by: str = "queue", **options: Any) -> tuple[Any, ...]:
    with Store.open(root) as store:
        sums = collect(store, Query(by), **options)
    return {key: tuple(group) for key, group in sums.groups().items()}, *(
        getattr(sums, name) for name in COUNTS)


@pytest.fixture
def as_if_parallel(monkeypatch: pytest.MonkeyPatch) -> list[ranges.FileRange[Any]]:
    """`parallel` without threads: each range on its own, seams and all. Gives the ranges
    that had to be walked again."""
    again: list[ranges.FileRange[Any]] = []

    def serial(work: Callable[..., Any], tasks: Iterable[Any], _: int) -> Iterator[Any]:
        for task in tasks:
            yield task, work(task)

    def counted(query: Query, only: Any, part: ranges.FileRange[Any]) -> Any:
        if part.start and not part.resync:
            again.append(part)
        return original(query, only, part)

    original = stats._work
    monkeypatch.setattr(threads, "parallel", serial)
    monkeypatch.setattr(stats, "_work", counted)
    return again


def broken(root: Path, seed: int) -> None:
    """Damage of several kinds in the log of a copy."""
    rng = random.Random(seed)
    files = sorted((root / "commitlog").iterdir())
    for _ in range(6):
        file = rng.choice(files)
        name, size = f"commitlog/{file.name}", file.stat().st_size
        at = rng.randrange(size - 64)
        kind = rng.randrange(3)
        if kind == 0:
            damage.flip_bit(root, name, at, 3)
        elif kind == 1:
            damage.zero(root, name, at, min(rng.randrange(1, 6000), size - at))
        else:
            damage.garbage_tail(root, name, at, seed, min(3000, size - at))


@pytest.mark.parametrize("store", [pytest.param(golden_store, id=golden_store.id)
                                   for golden_store in sample(golden_sets.golden_stores(), 14,
                                                              "ranges")
                                   if golden_store.kind != "multipath"])
def test_ranges_of_golden_stores(store: golden_sets.GoldenStore, golden: GoldenFolder,
                                 as_if_parallel: list[Any]) -> None:
    root = golden(store.id)
    whole = figures(root)
    for size in (1009, 4096, 20_011):
        assert figures(root, range_size=size) == whole
        assert figures(root, range_size=size, jobs=2) == whole


def test_every_cut_of_a_tiny_store(tiny_base: tiny_stores.Tiny,
                                   as_if_parallel: list[Any]) -> None:
    whole = figures(tiny_base.root)
    for size in range(1, 1025, 3):
        assert figures(tiny_base.root, range_size=size, jobs=2) == whole, size


@pytest.mark.parametrize("round_", sample(range(12), 4, "cuts inside damage"))
def test_cuts_inside_damage(round_: int, golden_copy: GoldenFolder, seed: int,
                            as_if_parallel: list[Any]) -> None:
    root = golden_copy("5.3.3/crash-base/store" if round_ % 2 else "4.9.3/basic/store")
    whole = figures(root)
    while not whole[4]:  # what is hit may be no record, or a field that nothing proves
        broken(root, seed + round_)
        seed += 100
        whole = figures(root)
    for size in (509, 1777, 9973):
        assert figures(root, range_size=size, jobs=2) == whole


def test_a_forged_record_inside_a_body_is_found_out(tmp_path: Path,
                                                    as_if_parallel: list[Any]) -> None:
    """A body that holds well placed, chained records: a resync takes them for real, the seam
    does not fit, and the range is walked again from where the one before it ended."""
    tiny, inside = forged.build(tmp_path)
    whole = figures(tiny.root, "topic")
    assert {key: item[0] for key, item in whole[0].items()} == {b"orders": 3}
    assert figures(tiny.root, "topic", range_size=inside - 20, jobs=2) == whole
    assert as_if_parallel, "the forged record was not even met"


@pytest.mark.parametrize("jobs", [2, 3])
def test_real_threads(jobs: int, golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/crash-base/store")
    broken(root, 11)
    for by in ("topic", "tag", "minute"):
        assert figures(root, by, range_size=10_007, jobs=jobs) == figures(root, by)


def test_progress_counts_every_byte(tiny_base: tiny_stores.Tiny) -> None:
    for size, jobs in ((100, 1), (100, 2), (1 << 20, 1)):
        heard: list[int] = []
        figures(tiny_base.root, range_size=size, jobs=jobs, progress=heard.append)
        assert sum(heard) == 2 * tiny_base.options.commitlog_file_size


def test_zeros_at_the_end_are_no_work(tmp_path: Path) -> None:
    tiny = tiny_stores.variant(tmp_path / "store", "preallocated")
    with Store.open(tiny.root) as store:
        parts = list(ranges.split(store.log.files, 100))
    used = {part.file.name: part.end for part in parts}
    assert used[f"{1024:020d}"] <= tiny.log_end - 1024
    assert [part.end for part in parts if part.file.base >= 2048] == [0, 0]
    assert sum(part.length for part in parts) == 4 * 1024


# -- the pool itself ------------------------------------------------------------------------------


def _fail(task: int) -> int:
    if task == 3:
        raise StoreIOError("cannot read the third")
    return task * task


def _open_files() -> int:
    """How many files are open, but for those of queues: a few of these stay so."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder itself is closed by now
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum("/consumequeue/" not in name for name in names)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No thread and no descriptor more at the end than before."""
    gc.collect()  # what other tests have left open is closed now, or not before the end
    threads, files = set(threading.enumerate()), _open_files()
    yield
    gc.collect()
    assert set(threading.enumerate()) <= threads  # one of before may have ended meanwhile
    assert _open_files() == files


pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("jobs", [2, 3, 100])
def test_parallel_keeps_the_order(jobs: int) -> None:
    assert list(threads.parallel(partial(pow, 2), range(20), jobs)) == [
        (number, 2**number) for number in range(20)]


def test_no_more_threads_and_results_than_memory_is_there_for() -> None:
    begun: list[int] = []
    names: set[int] = set()

    def work(task: int) -> int:
        names.add(threading.get_ident())
        begun.append(task)
        return task

    for task, _ in threads.parallel(work, range(40), 100):
        time.sleep(0.001)
        assert len(begun) <= task + 1 + threads.MAX_THREADS + 1
    assert 1 < len(names) <= threads.MAX_THREADS


def test_an_error_of_a_task_arrives_in_its_turn() -> None:
    results = threads.parallel(_fail, range(10), 2)
    assert [next(results)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StoreIOError, match="the third"):
        next(results)


def test_leaving_early_ends_the_threads() -> None:
    for task, result in threads.parallel(_fail, range(10), 2):
        assert task == result == 0
        break


def test_what_was_refused_in_a_thread_is_noted_by_the_caller() -> None:
    def work(task: int) -> None:
        StoreIOError.from_oserror(OSError(errno.EIO, ""), f"file {task}")

    with noting_refusals() as refusals:
        list(threads.parallel(work, range(4), 2))
    assert {text.split(":")[0] for text in refusals} == {f"file {task}" for task in range(4)}


def test_without_threads_the_caller_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(threads.parallel(partial(pow, 2), range(5), 2)) == [
        (number, 2**number) for number in range(5)]


@pytest.mark.parametrize("ending", [KeyboardInterrupt, StoreIOError])
def test_a_task_in_the_midst_of_its_work_ends_when_it_reads(tmp_path: Path, ending: type) -> None:
    """The first task fails (Ctrl-C comes); others that would read for ever end at once."""
    file, reading = tmp_path / "file", threading.Event()
    file.write_bytes(bytes(100))
    closed: list[int] = []

    def work(task: int) -> None:
        if not task:
            reading.wait(10)
            raise ending("now")
        with FileSource(str(file)) as source:
            try:
                while True:
                    source.read(0, 10)
                    source.read_into(memoryview(bytearray(10)), 0)
                    reading.set()
            finally:
                closed.append(task)

    with pytest.raises(ending):
        list(threads.parallel(work, range(10), 3))
    assert closed


@pytest.mark.parametrize("name", ["topic", "key"])
def test_ranges_that_ask_the_same_witness(name: str, golden_copy: GoldenFolder) -> None:
    """What rows and index say of a damaged log is read once, whichever thread asks first."""
    root = golden_copy("5.3.3/basic/store")
    for position in (40301, 48092, 52000, 9000):
        damage.flip_bit(root, "commitlog/00000000000000000000", position, 0)
    whole = figures(root, name)
    assert whole[4]
    for _ in range(5):
        assert figures(root, name, range_size=9973, jobs=4) == whole
