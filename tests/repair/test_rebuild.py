"""The engine is the judge: what is rebuilt from its logs is what it wrote, byte for byte."""

from __future__ import annotations

import shutil

import pytest

from rmqctl.repair.rebuild.steps import derived_steps, topic_queue_table
from rmqctl.repair.scratch import Scratch
from tests.repair.rebuilding import DERIVED, SETS, derived, mend, run, settings_of, unnamed
from tests.support import engine, snapshot
from tests.support.share import sample

each_set = pytest.mark.parametrize("golden_set", sample(SETS, 12, "rebuilt sets"),
                                   ids=lambda golden_store: golden_store.id)


@pytest.mark.parametrize(("golden_store", "jobs"), sample(
    [(golden_set, jobs) for golden_set in SETS for jobs in (1, 2)], 20, "rebuild"),
    ids=lambda param: getattr(param, "id", str(param)))
def test_deleted_structures_come_back_as_the_engine_wrote_them(golden_store, jobs, golden,
                                                               golden_copy,
                                                               tmp_path):
    folder = golden(golden_store.id)
    settings = settings_of(folder, golden_store.version)
    store = golden_copy(f"{golden_store.id}/store")
    wanted = derived(store)
    for name in DERIVED:
        shutil.rmtree(store / name, ignore_errors=True)
    done = mend(store, settings, tmp_path, golden_store.kind, jobs=jobs)
    assert unnamed(derived(store)) == unnamed(wanted)
    assert all("missing" in line for line in done)
    assert mend(store, settings, tmp_path, golden_store.kind) == []


@each_set
def test_nothing_is_planned_for_what_is_right(golden_set, golden, tmp_path):
    folder = golden(golden_set.id)
    with snapshot.assert_unchanged(folder / "store"), Scratch(str(tmp_path)) as scratch:
        rebuilt = run(folder / "store", settings_of(folder, golden_set.version), scratch,
                      golden_set.kind)
        assert derived_steps(rebuilt) == ([], [])
        assert rebuilt.notes == ()
        expected = {f"{queue.topic}-{queue.queue_id}": queue.max
                    for queue in engine.load(folder / "expect.json").queues}
        assert topic_queue_table(rebuilt) == {key: end for key, end in expected.items() if end}
