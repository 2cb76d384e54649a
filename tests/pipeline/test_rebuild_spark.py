"""A rebuild on Spark itself: the engine's bytes, also when a worker is killed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from contextlib import contextmanager
from functools import partial

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.ext.spark.rebuild import rebuild as pipeline_rebuild
from rmqctl.ext.spark.rebuild import tasks
from rmqctl.files import durable
from rmqctl.repair.rebuild.steps import derived_steps
from rmqctl.repair.scratch import Scratch
from tests.pipeline.pools import on_pool, outcome
from tests.pipeline.test_rebuild_pool import local
from tests.repair.rebuilding import DERIVED, carry_out, derived, settings_of, unnamed
from tests.support import snapshot
from tests.support.share import sample


@pytest.mark.parametrize("name", sample(
    ["4.9.3/basic", "5.3.3/lmq", "5.3.3/batchcq", "5.3.3/cqext"], 1, "rebuilt on Spark"))
def test_deleted_structures_come_back_as_the_engine_wrote_them(name, golden, golden_copy, tmp_path,
                                                               spark_pool):
    folder = golden(name)
    store, settings = golden_copy(f"{name}/store"), settings_of(folder, name[:5])
    wanted = derived(store)
    expected = local(store, settings, "", tmp_path)[1]
    for key in DERIVED:
        shutil.rmtree(store / key, ignore_errors=True)
    with Scratch(str(tmp_path)) as scratch:
        rebuilt = on_pool(spark_pool, store, settings, scratch, range_size=50_000, groups=3)
        assert outcome(rebuilt)[1] == expected | {"root": str(store)}
        carry_out(derived_steps(rebuilt)[0], store)
    assert unnamed(derived(store)) == unnamed(wanted)


@pytest.fixture(autouse=True)
def sent_by_value():
    """Workers do not import the tests: what stands in this module is sent whole."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize("stage", ["spool", "make"])
def test_a_killed_worker_is_made_up_for(stage, golden, tmp_path, spark_pool, monkeypatch):
    folder = golden("5.3.3/lmq")
    store, settings = folder / "store", settings_of(folder, "5.3.3")
    wanted = local(store, settings, "", tmp_path)
    flag = tmp_path / "killed"
    monkeypatch.setattr(pipeline_rebuild, stage,
                        partial(killing_one, str(flag), getattr(tasks, stage)))
    with Scratch(str(tmp_path)) as scratch:
        assert outcome(on_pool(spark_pool, store, settings, scratch,
                               range_size=100_000)) == wanted
    assert flag.exists()


def killing_one(flag, work, job, task):
    """The work; but the worker process that gets there first is killed."""
    if not os.path.exists(flag):
        os.mkdir(flag)
        os.kill(os.getpid(), signal.SIGKILL)
    return work(job, task)


def full(work, job, task):
    """The work on a worker whose disk has no room left behind some writes."""
    with no_room(2):
        return work(job, task)


@contextmanager
def no_room(after: int):
    real, writes = (os.pwrite, os.pwritev), [0]

    def limited(write):
        def tried(*args):
            writes[0] += 1
            if writes[0] > after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(*args)
        return tried

    durable.os.pwrite, durable.os.pwritev = map(limited, real)
    try:
        yield
    finally:
        durable.os.pwrite, durable.os.pwritev = real


@pytest.mark.parametrize("stage", ["spool", "make"])
def test_a_full_disk_of_a_worker_is_said(stage, golden, tmp_path, spark_pool, monkeypatch):
    folder = golden("5.3.3/basic")
    store, settings = folder / "store", settings_of(folder, "5.3.3")
    monkeypatch.setattr(pipeline_rebuild, stage, partial(full, getattr(tasks, stage)))
    with (snapshot.assert_unchanged(store), Scratch(str(tmp_path)) as scratch,
          pytest.raises(StoreIOError, match="no space left on the device")):
        on_pool(spark_pool, store, settings, scratch, range_size=100_000)
    assert not os.path.exists(scratch.root)


def test_the_command_on_spark(rmqctl, golden_copy, spark, monkeypatch):
    root = golden_copy("5.3.3/basic/store")
    wanted = derived(root)
    shutil.rmtree(root / "consumequeue")

    @contextmanager
    def same_session(*_):
        yield spark

    monkeypatch.setattr("rmqctl.commands.shared.spark_options.spark_session", same_session)
    done = rmqctl("pipeline", "rebuild", root, "--apply", "--yes", "-o", "json",
                  "--consumequeue-file-size", next(str(len(data)) for name, data in wanted.items()
                                                   if name.startswith("consume"))).expect(0).json()
    assert done["applied"]
    assert done["actions"]
    assert derived(root) == wanted
    rmqctl("undo", root, "--yes").expect(0)
    assert not (root / "consumequeue").exists()
