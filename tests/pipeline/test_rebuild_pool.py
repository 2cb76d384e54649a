"""A rebuild on a pool: the same bytes and figures as the local one, however the work is cut."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.ext.spark.rebuild import rebuild as pipeline_rebuild
from rmqctl.ext.spark.rebuild import tasks as rebuild_tasks
from rmqctl.ext.spark.rebuild.index_tasks import IndexTask, index_tasks
from rmqctl.ext.spark.rebuild.rebuild import default_range_size
from rmqctl.files import durable
from rmqctl.formats.local.index_file import IndexShape
from rmqctl.repair.rebuild.index import Expired
from rmqctl.repair.rebuild.rebuild import log_size
from rmqctl.repair.rebuild.steps import derived_steps
from rmqctl.repair.scratch import Scratch
from rmqctl.store.files import StoreFile
from rmqctl.store.log.ranges import Threads
from tests.pipeline.pools import LosingFirst, Unruly, on_pool, outcome
from tests.repair.rebuilding import (
    DERIVED,
    IDS,
    SETS,
    carry_out,
    derived,
    parts_of,
    run,
    settings_of,
    unnamed,
)
from tests.support import snapshot
from tests.support.golden import all_sets
from tests.support.share import sample

DAMAGED = [golden_set for golden_set in all_sets() if golden_set.is_damaged]
SOME = ["4.9.3/basic", "5.3.3/cqext", "5.3.3/batchcq", "5.3.3/lmq"]


def range_size(parts, count: int) -> int:
    """Bytes that cut a log into about ``count`` ranges."""
    return max(1, -(-log_size(parts) // count))


def local(store, settings, kind, folder, **more):
    """What the local rebuild comes to."""
    with Scratch(str(folder), "local") as scratch:
        return outcome(run(store, settings, scratch, kind, **more))


@pytest.mark.parametrize(("jobs", "ranges"), sample(
    [(1, 1), (2, 7)], 0, "threads", always=[(2, 7)]))
@pytest.mark.parametrize("golden_set", sample(SETS, 7, "deleted structures"),
                         ids=lambda golden_store: golden_store.id)
def test_deleted_structures_come_back_as_the_engine_wrote_them(golden_set, jobs, ranges, golden,
                                                               golden_copy, tmp_path):
    folder = golden(golden_set.id)
    settings = settings_of(folder, golden_set.version)
    store = golden_copy(f"{golden_set.id}/store")
    wanted = derived(store)
    for name in DERIVED:
        shutil.rmtree(store / name, ignore_errors=True)
    parts = parts_of(store, golden_set.kind)
    with Scratch(str(tmp_path)) as scratch:
        rebuilt = on_pool(Threads(jobs), store, settings, scratch, golden_set.kind,
                          range_size=range_size(parts, ranges))
        carry_out(derived_steps(rebuilt)[0], store)
        assert set(os.listdir(scratch.root)) <= {*DERIVED, "consumequeue_ext"}
    assert unnamed(derived(store)) == unnamed(wanted)


def same_as_local(store, settings, kind, tmp_path, pool, ranges, groups):
    parts = parts_of(store, kind)
    wanted = local(store, settings, kind, tmp_path)
    with snapshot.assert_unchanged(store), Scratch(str(tmp_path)) as scratch:
        rebuilt = on_pool(pool, store, settings, scratch, kind, groups=groups,
                          range_size=range_size(parts, ranges))
        assert outcome(rebuilt) == wanted
        return derived_steps(rebuilt)


@pytest.mark.parametrize("golden_set", SETS, ids=IDS)
def test_the_same_as_the_local_rebuild(golden_set, golden, tmp_path):
    """Tasks run in any order and several times."""
    folder, pool = golden(golden_set.id), Unruly(7)
    assert same_as_local(folder / "store", settings_of(folder, golden_set.version), golden_set.kind,
                         tmp_path,                          pool, 7, 3) == ([], [])
    assert pool.attempts > 4


@pytest.mark.long
@pytest.mark.parametrize("pool", [Threads(1), Threads(2), Unruly(1)],
                         ids=["1-thread", "2-threads", "unruly"])
@pytest.mark.parametrize("cut", [(1, 1), (2, 5), (64, 13)], ids=str)
@pytest.mark.parametrize("name", sample(IDS, 1, "ranges and groups"))
def test_any_number_of_ranges_and_groups(name, cut, pool, golden, tmp_path):
    folder = golden(name)
    kind = name.partition("/")[2]
    assert same_as_local(folder / "store", settings_of(folder, name[:5]), kind, tmp_path,
                         pool, *cut) == ([], [])


@pytest.mark.long
@pytest.mark.parametrize(("golden_store", "ranges"), sample(
    [(golden_store, ranges) for golden_store in DAMAGED for ranges in (2, 23, 64, 200)], 14,
    "damaged logs"),
    ids=lambda param: getattr(param, "id", param))
def test_damaged_logs(golden_store, ranges, golden, tmp_path):
    """Damage is counted and passed over alike; ranges begin inside of it."""
    folder = golden(golden_store.id)
    same_as_local(folder / "before", settings_of(folder, golden_store.version), golden_store.kind,
                  tmp_path,                   Unruly(ranges), ranges, 3)


@pytest.mark.parametrize("wish", [{"only": {"consumequeue"}}, {"only": {"index"}},
                                  {"log_end": 100_000}], ids=str)
@pytest.mark.parametrize("name", SOME)
def test_parts_of_it(name, wish, golden, tmp_path):
    folder = golden(name)
    store, settings = folder / "store", settings_of(folder, name[:5])
    wanted = local(store, settings, "", tmp_path, **wish)
    with Scratch(str(tmp_path)) as scratch:
        assert outcome(on_pool(Unruly(4), store, settings, scratch, groups=4,
                               range_size=20_000, **wish)) == wanted


@pytest.mark.parametrize("name", SOME)
def test_one_topic_or_queue(name, golden, tmp_path):
    folder = golden(name)
    store, settings = folder / "store", settings_of(folder, name[:5])
    topics = {Path(file).parts[1:3] for file in derived(store) if not file.startswith("index")}
    some = sorted(topics)[::max(1, len(topics) // 2)]
    for topic, queue in some:
        for number in (None, int(queue)):
            wanted = local(store, settings, "", tmp_path, topic=topic, queue=number)
            assert wanted[0]
            with Scratch(str(tmp_path)) as scratch:
                assert outcome(on_pool(Unruly(7), store, settings, scratch, groups=5,
                                       range_size=30_000, topic=topic, queue=number)) == wanted


@pytest.mark.parametrize("golden_set", sample(SETS, 8, "expired heads"),
                         ids=lambda golden_store: golden_store.id)
def test_expired_heads(golden_set, golden, tmp_path):
    """Rows, units and entries of expired messages are taken over; batch queues go on from them."""
    folder = golden(golden_set.id)
    store, settings = folder / "store", settings_of(folder, golden_set.version)
    parts = parts_of(store, golden_set.kind)
    for number in {1, len(parts) // 2} - {0}:
        wanted = local(store, settings, golden_set.kind, tmp_path, parts=parts[number:])
        with Scratch(str(tmp_path)) as scratch:
            rebuilt = on_pool(Unruly(number), store, settings, scratch, golden_set.kind, groups=3,
                              parts=parts[number:], range_size=40_000)
            assert outcome(rebuilt) == wanted
            assert derived_steps(rebuilt) == ([], [])


@pytest.mark.parametrize(("name", "capacity", "ending"), [
    ("4.9.3/basic", 53, None), ("5.3.3/lmq", 31, 150_000), *(pytest.param(
        "5.3.3/basic", count, end, marks=pytest.mark.exhaustive)
        for count in (1, 2, 3, 16) for end in (None, 150_000))])
def test_index_files_by_many_tasks(name, capacity, ending, golden, tmp_path):
    """Files of any size: a message's keys may lie in several, and in those of several tasks."""
    folder = golden(name)
    store = folder / "store"
    settings = settings_of(folder, name[:5], index_max=capacity + 1, index_slots=7)
    wanted = local(store, settings, "", tmp_path, only={"index"}, log_end=ending)
    assert len(wanted[0]) > 8
    for groups in (3, 29):
        with Scratch(str(tmp_path)) as scratch:
            assert outcome(on_pool(
                LosingFirst(nullcontext), store, settings, scratch, groups=groups, only={"index"},
                log_end=ending, range_size=20_000)) == wanted


def test_how_index_files_are_divided():
    shape = IndexShape(7, 11)
    whole = [(index_task.start, index_task.stop)
             for index_task in index_tasks(Expired(), shape, 45, 100)]
    assert whole == [(0, 10), (10, 20), (20, 30), (30, 40), (40, None)]
    assert [(index_task.start, index_task.stop)
            for index_task in index_tasks(Expired(), shape, 40, 3)] == [
                (0, 10), (10, 20), (20, None)]
    begun = Expired((), StoreFile("x", "x", 1, 1), 4)
    assert [(index_task.start, index_task.stop, index_task.expired.entries)
            for index_task in index_tasks(
                begun, shape, 7, 9)] == [(0, 6, 4), (6, None, 0)]
    for entries in (0, 1, 10):
        assert [(index_task.start, index_task.stop)
                for index_task in index_tasks(Expired(), shape, entries, 9)] == [
                    (0, None)]


def test_a_log_of_no_file(golden, tmp_path):
    folder = golden("4.9.3/basic")
    settings = settings_of(folder, "4.9.3")
    wanted = local(folder / "store", settings, "", tmp_path, parts=[])
    with Scratch(str(tmp_path)) as scratch:
        assert outcome(on_pool(Threads(2), folder / "store", settings, scratch,
                               parts=[])) == wanted


def test_small_segments_and_many_of_them(golden, tmp_path, monkeypatch):
    monkeypatch.setattr(rebuild_tasks, "MAX_HELD", 1)
    monkeypatch.setattr("rmqctl.scan.walk.CHUNK", 3000)
    for name in SOME:
        folder = golden(name)
        store, settings = folder / "store", settings_of(folder, name[:5])
        wanted = local(store, settings, "", tmp_path)
        with Scratch(str(tmp_path)) as scratch:
            assert outcome(on_pool(Unruly(1), store, settings, scratch, groups=3)) == wanted


# -- what goes wrong ------------------------------------------------------------------------------


@contextmanager
def full_disk(monkeypatch, after: int):
    """No room behind the first ``after`` writes."""
    writes = [0]

    def limited(real):
        def write(*args):
            writes[0] += 1
            if writes[0] > after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)
        return write

    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "pwrite", limited(os.pwrite))
        patch.setattr(durable.os, "pwritev", limited(os.pwritev))
        yield


@pytest.mark.parametrize("name", SOME)
def test_lost_attempts_leave_nothing_behind(name, golden, tmp_path, monkeypatch):
    """Each task's first attempt dies in the middle of its writing."""
    folder = golden(name)
    store, settings = folder / "store", settings_of(folder, name[:5])
    wanted = local(store, settings, "", tmp_path)
    for after in (0, 1, 5):
        pool = LosingFirst(partial(full_disk, monkeypatch, after))
        with Scratch(str(tmp_path)) as scratch:
            assert outcome(on_pool(pool, store, settings, scratch, groups=3,
                                   range_size=50_000)) == wanted
            assert not os.path.exists(scratch.path(pipeline_rebuild.FOLDER))
        assert pool.lost >= 3


def test_a_full_disk_is_said_and_the_store_stays(golden, tmp_path, monkeypatch):
    folder = golden("5.3.3/basic")
    store, settings = folder / "store", settings_of(folder, "5.3.3")
    for after in (0, 3, 40):
        with (snapshot.assert_unchanged(store), Scratch(str(tmp_path)) as scratch,
              full_disk(monkeypatch, after),
              pytest.raises(StoreIOError, match="no space left on the device")):
            on_pool(Unruly(3), store, settings, scratch, range_size=50_000)
        assert not os.path.exists(scratch.root)


def test_what_a_killed_driver_left_is_cleared(golden, tmp_path):
    folder = golden("4.9.3/basic")
    store, settings = folder / "store", settings_of(folder, "4.9.3")
    wanted = local(store, settings, "", tmp_path)
    scratch = Scratch(str(tmp_path), "kept", keep=True)
    for name in ("pipeline/spools", "pipeline/old.spool", "consumequeue/Other/0/x",
                 "pipeline/made/consumequeue/T/0/00000000000000000000"):
        path = Path(scratch.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"old")
    assert outcome(on_pool(Threads(1), store, settings, scratch)) == wanted


def blind(job, task):
    """A worker on another machine, with a its own folder of that name."""
    moved = job.folder + "-elsewhere"
    shutil.copytree(job.folder, moved, dirs_exist_ok=True)
    spooled_range = rebuild_tasks.spool(_at(job, moved), task)
    shutil.rmtree(moved)
    return spooled_range


def _at(job, folder):
    return rebuild_tasks.RebuildJob(job.root, folder, job.settings, job.grouping, job.rows,
                                    job.log_min, job.log_end, job.batch_topics)


def test_workers_that_see_other_folders_are_noticed(golden, tmp_path, monkeypatch):
    folder = golden("4.9.3/basic")
    store, settings = folder / "store", settings_of(folder, "4.9.3")
    monkeypatch.setattr(pipeline_rebuild, "spool", blind)
    with (Scratch(str(tmp_path)) as scratch,
          pytest.raises(StoreIOError, match="the driver does not see it")):
        on_pool(Threads(1), store, settings, scratch)
    monkeypatch.setattr(pipeline_rebuild, "spool", lambda job, part: rebuild_tasks.spool(
        _at(job, job.folder + "-elsewhere"), part))
    with (Scratch(str(tmp_path)) as scratch,
          pytest.raises(StoreIOError, match="at the same paths")):
        on_pool(Threads(1), store, settings, scratch)


@pytest.mark.parametrize("harm", ["cut", "emptied", "overwritten"])
def test_a_spool_that_was_changed_is_refused(harm, golden, tmp_path):
    folder = golden("4.9.3/basic")
    store, settings = folder / "store", settings_of(folder, "4.9.3")

    class Harming(Unruly):
        def run(self, work, tasks):
            all_tasks = list(tasks)
            if not isinstance(all_tasks[0], rebuild_tasks.QueueGroup | IndexTask):
                yield from super().run(work, all_tasks)
                return
            for path in Path(scratch.path("pipeline")).glob("*.spool"):
                data = path.read_bytes()
                path.write_bytes({"cut": data[:-30], "emptied": b"",
                                  "overwritten": b"\xff" * 64 + data[64:]}[harm])
            yield from super().run(work, all_tasks)

    with Scratch(str(tmp_path)) as scratch, pytest.raises(StoreIOError, match="incomplete; it"):
        on_pool(Harming(), store, settings, scratch)


def test_progress_comes_to_the_whole_log(golden, tmp_path):
    folder = golden("4.9.3/basic")
    store, settings = folder / "store", settings_of(folder, "4.9.3")
    for pool in (Threads(1), Unruly()):
        steps: list[int] = []
        with Scratch(str(tmp_path)) as scratch:
            on_pool(pool, store, settings, scratch, range_size=30_000, progress=steps.append)
        assert sum(steps) == log_size(parts_of(store))
        assert len(steps) > 5
        assert min(steps) > 0


def test_ranges_suit_log_and_pool():
    assert default_range_size(0, 2) == 16 << 20
    assert default_range_size(1 << 30, 2) == 128 << 20
    assert default_range_size(1 << 40, 4) == 1 << 30
