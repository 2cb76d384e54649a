"""A rebuild that was interrupted goes on where it stopped and ends with the same bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.files import durable
from rmqctl.repair.rebuild import derived_range
from rmqctl.repair.rebuild import rebuild as rebuild_state
from rmqctl.repair.rebuild.rebuild import Rebuilt, log_size
from rmqctl.repair.rebuild.steps import derived_steps
from rmqctl.repair.scratch import Scratch
from rmqctl.store.log import ranges
from tests.repair.rebuilding import carry_out, derived, parts_of, run, settings_of
from tests.support.share import RUN, sample

NAMES = ["4.9.3/basic", "5.3.3/cqext", "5.3.3/batchcq", "5.3.3/lmq"]
PAGE = 4096
HEAD = 1
"""Files that have expired, so that there is something to go on from."""


@pytest.fixture(autouse=True)
def small_stretches(monkeypatch):
    """Many stretches in a small log."""
    monkeypatch.setattr(derived_range, "RANGE_SIZE", 6000)


@pytest.fixture
def case(request, golden):
    """(store, settings, parts, what an uninterrupted run makes)."""
    name = request.param
    folder = golden(name)
    store, settings = folder / "store", settings_of(folder, name[:5])
    parts = parts_of(store)[HEAD:]
    return store, settings, parts


def figures(rebuilt: Rebuilt) -> dict[str, Any]:
    """Everything it tells, without the scratch folder's place."""
    return {name: getattr(rebuilt, name) for name in Rebuilt.__slots__ if name not in (
        "scratch", "scratch_queues")}


def whole(case, tmp_path) -> tuple[dict[str, bytes], dict[str, Any]]:
    store, settings, parts = case
    with Scratch(str(tmp_path), "whole") as scratch:
        rebuilt = run(store, settings, scratch, parts=parts)
        assert derived_steps(rebuilt) == ([], [])
        return derived(Path(scratch.root)), figures(rebuilt)


@pytest.mark.long
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("case", NAMES, indirect=True)
def test_interrupted_between_two_stretches(case, jobs, tmp_path):
    store, settings, parts = case
    wanted = whole(case, tmp_path)
    stretches = len(list(ranges.split(parts, derived_range.RANGE_SIZE)))
    assert stretches > 12
    for stop in sample([0, 1, stretches // 2, stretches - 2], 2, f"stop {jobs}"):
        steps: list[int] = []

        def progress(length: int, steps: list[int] = steps, stop: int = stop) -> None:
            steps.append(length)
            if len(steps) > stop:
                raise KeyboardInterrupt

        scratch = Scratch(str(tmp_path), f"stop-{stop}", keep=True)
        with pytest.raises(KeyboardInterrupt):
            run(store, settings, scratch, parts=parts, progress=progress, jobs=jobs)
        done = json.loads(Path(scratch.path("rebuild.json")).read_text())
        assert done["durable"]
        assert done["progress"]["done"] > parts[0].base
        again: list[int] = []
        rebuilt = run(store, settings, scratch, parts=parts, progress=again.append, jobs=jobs)
        assert (derived(Path(scratch.root)), figures(rebuilt)) == wanted
        assert sum(again) == log_size(parts)
        assert 1 < len(again) <= stretches - stop + 1  # the first tells what was there
        third: list[int] = []
        run(store, settings, scratch, parts=parts, progress=third.append)
        assert len(third) <= 2
        assert sum(third) == log_size(parts)
        scratch.remove()


@pytest.mark.long
@pytest.mark.parametrize("case", NAMES, indirect=True)
def test_killed_anywhere(case, tmp_path, seed, monkeypatch):
    """Each process dies at a random write, which may be written in part."""
    store, settings, parts = case
    wanted = whole(case, tmp_path)
    choose = random.Random(seed)
    scratch = Scratch(str(tmp_path), "killed", keep=True)
    deaths = 0
    for step in range(60 if RUN.exhaustive else 25):
        last = choose.randrange(1, 40 + 4 * step)
        share = choose.random()
        child = os.fork()
        if child == 0:
            _die_at(last, share)
            try:
                run(store, settings, scratch, parts=parts, save_every=choose.choice([0, 9.0]))
            except BaseException:  # noqa: BLE001 (the process must not go on as a test)
                os._exit(3)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9)
        if not status:
            break
        deaths += 1
    assert deaths > 2
    rebuilt = run(store, settings, scratch, parts=parts)
    assert derived(Path(scratch.root)) == wanted[0]
    assert derived_steps(rebuilt) == ([], [])
    expected = figures(rebuilt)
    assert {**expected, "gaps": 0} == wanted[1]


def _die_at(last: int, share: float) -> None:
    """The ``last``-th write of this process writes a share of its pages and ends it.

    The system does not stop inside a page.
    """
    write = os.pwrite
    count = 0

    def pwrite(fd: int, data: Any, at: int) -> int:
        nonlocal count
        count += 1
        if count == last:
            some = max(0, (at + int(len(data) * share)) // PAGE * PAGE - at)
            write(fd, bytes(data)[:some], at)
            os._exit(9)
        return write(fd, data, at)

    os.pwrite = pwrite


@pytest.mark.parametrize("case", NAMES[:2], indirect=True)
def test_a_failed_write_can_be_done_again(case, tmp_path, monkeypatch):
    store, settings, parts = case
    wanted = whole(case, tmp_path)
    scratch = Scratch(str(tmp_path), "full", keep=True)
    whole_write = durable.write_all
    for fail in (3, 17, 40, 90):
        count = 0

        def pwrite(fd: int, data: Any, at: int, fail: int = fail) -> int:
            nonlocal count
            count += 1
            if count >= fail:
                raise OSError(28, "No space left on device")
            return os.write_back(fd, data, at)  # type: ignore[attr-defined]

        with monkeypatch.context() as patch:
            patch.setattr(os, "write_back", os.pwrite, raising=False)
            patch.setattr(os, "pwrite", pwrite)
            with pytest.raises(StoreIOError, match="no space left"):
                run(store, settings, scratch, parts=parts)
    assert whole_write is durable.write_all
    rebuilt = run(store, settings, scratch, parts=parts)
    assert (derived(Path(scratch.root)), figures(rebuilt)) == wanted


@pytest.mark.long
@pytest.mark.parametrize("case", NAMES[:1], indirect=True)
def test_a_scratch_folder_of_something_else_is_emptied(case, tmp_path, monkeypatch):
    store, settings, parts = case
    wanted = whole(case, tmp_path)
    scratch = Scratch(str(tmp_path), "other", keep=True)
    run(store, settings, scratch, parts=parts, log_end=parts[-1].base)
    assert derived(Path(scratch.root)) != wanted[0]
    run(store, settings, scratch, parts=parts)
    assert derived(Path(scratch.root)) == wanted[0]
    # After a crash of the machine only what was fsynced counts.
    state = Path(scratch.path("rebuild.json"))
    for change in ({"boot": "another"}, {"version": 2}, {"progress": {"done": "x"}}, None):
        document = json.loads(state.read_text())
        state.write_text("{" if change is None else json.dumps({**document, **change}))
        some = next(Path(scratch.path("consumequeue")).rglob("0" * 20))
        some.write_bytes(b"torn")
        run(store, settings, scratch, parts=parts)
        assert derived(Path(scratch.root)) == wanted[0]
    # Whoever carried the plan out has moved the files away.
    shutil.rmtree(scratch.path("consumequeue"))
    run(store, settings, scratch, parts=parts)
    assert derived(Path(scratch.root)) == wanted[0]
    monkeypatch.setattr(rebuild_state, "_BOOT", str(tmp_path / "none"))
    run(store, settings, scratch, parts=parts)
    assert derived(Path(scratch.root)) == wanted[0]
    scratch.remove()


@pytest.mark.long
def test_results_do_not_depend_on_stretches_or_jobs(golden, golden_copy, tmp_path, monkeypatch):
    folder = golden("5.3.3/basic")
    settings = settings_of(folder, "5.3.3")
    store = golden_copy("5.3.3/basic/store")
    for name in ("index", "consumequeue"):
        shutil.rmtree(store / name)
    values = []
    for stretch, jobs in ((1000, 1), (7777, 3), (1 << 20, 2)):
        monkeypatch.setattr(derived_range, "RANGE_SIZE", stretch)
        with Scratch(str(tmp_path), f"{stretch}") as scratch:
            rebuilt = run(store, settings, scratch, jobs=jobs)
            steps, actions = derived_steps(rebuilt)
            target = tmp_path / f"store-{stretch}"
            target.mkdir()
            carry_out(steps, target)
            values.append((derived(target), actions, figures(rebuilt)))
    assert values[0] == values[1] == values[2]
