"""Ranges and processes: any cut, also inside messages, blanks and damage, changes nothing."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqctl.errors import JobError, StoreIOError
from rmqctl.store import Store, stats
from rmqctl.store.log import processes, ranges
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
    return {key: tuple(one) for key, one in sums.groups().items()}, *(
        getattr(sums, name) for name in COUNTS)


@pytest.fixture
def as_if_parallel(monkeypatch: pytest.MonkeyPatch) -> list[ranges.Range[Any]]:
    """`parallel` without processes: each range on its own, seams and all. Gives the ranges
    that had to be walked again."""
    again: list[ranges.Range[Any]] = []

    def serial(work: Callable[..., Any], tasks: Iterable[Any], _: int,
               **_how: bool) -> Iterator[Any]:
        for task in tasks:
            yield task, work(task)

    def counted(query: Query, only: Any, part: ranges.Range[Any]) -> Any:
        if part.start and not part.resync:
            again.append(part)
        return original(query, only, part)

    original = stats._work
    monkeypatch.setattr(processes, "parallel", serial)
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


@pytest.mark.parametrize("store", [pytest.param(each, id=each.id)
                                   for each in sample(golden_sets.golden_stores(), 8, "ranges",
                                                      always=golden_sets.is_covering)
                                   if each.kind != "multipath"])
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


@pytest.mark.parametrize("round_", range(12))
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
    assert {key: one[0] for key, one in whole[0].items()} == {b"orders": 3}
    assert figures(tiny.root, "topic", range_size=inside - 20, jobs=2) == whole
    assert as_if_parallel, "the forged record was not even met"


@pytest.mark.parametrize("jobs", [2, 3])
def test_real_processes(jobs: int, golden_copy: GoldenFolder) -> None:
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


def _fail(task: int) -> int:
    if task == 3:
        raise StoreIOError("cannot read the third")
    return task * task


def _die(task: int) -> int:
    if task == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_parallel_keeps_the_order() -> None:
    assert list(processes.parallel(partial(pow, 2), range(20), 3)) == [
        (number, 2**number) for number in range(20)]


def test_an_error_of_a_worker_arrives() -> None:
    with pytest.raises(StoreIOError, match="the third"):
        list(processes.parallel(_fail, range(10), 2))


def test_a_killed_worker_does_not_hang() -> None:
    with pytest.raises(JobError, match="killed"):
        list(processes.parallel(_die, range(10), 2))


def test_leaving_early_ends_the_workers() -> None:
    for task, result in processes.parallel(_fail, range(10), 2):
        assert task == result == 0
        break
