"""Places of a log that the disk does not give: every other message of their file counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rmqctl.broker.settings import Settings
from rmqctl.repair.rebuild.rebuild import rebuild
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import FileSource
from rmqctl.scan.tolerant import SKIPPED, STEP
from rmqctl.scan.walk import Walk
from rmqctl.store import Store
from rmqctl.store.stats import Query, collect
from tests.conftest import Runner
from tests.scan.test_walk import BASE, log
from tests.support.worn import worn

BAD = 600_000, 600_512


@pytest.fixture(scope="module")
def whole() -> bytes:
    return log([bytes([65 + number % 26]) * (number * 37 % 1500) for number in range(1200)])


@pytest.fixture
def store(tmp_path: Path, whole: bytes,
          monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[int], list[int]]:
    """A store with a bad place in its log, the messages that must be there and all of them."""
    path = tmp_path / "store/commitlog" / f"{BASE:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(whole)
    with FileSource(str(path), BASE) as source:
        places = np.concatenate([np.stack([batch.offset, batch.column("total_size")])
                                 for batch in Walk(source)], 1)
    near = BASE + BAD[0] - 2 * STEP, BASE + BAD[1] + 2 * SKIPPED
    far = (places[0] + places[1] <= near[0]) | (places[0] >= near[1])
    worn(monkeypatch, path, *BAD)
    return tmp_path / "store", places[0][far].tolist(), places[0].tolist()


def test_read_shows_all_but_what_is_near(store: tuple[Path, list[int], list[int]],
                                         rmqctl: Runner) -> None:
    root, far, every = store
    done = rmqctl("read", root, "-o", "jsonl", "--body", "none").expect(5)
    shown = [row["physical_offset"] for row in done.jsonl()]
    assert shown == sorted(shown)
    assert set(far) <= set(shown) < set(every)
    assert len([line for line in done.err.splitlines() if f"{BASE:020d}" in line]) == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_stats_count_all_but_what_is_near(jobs: int, store: tuple[Path, list[int], list[int]],
                                          rmqctl: Runner) -> None:
    root, far, every = store
    with Store.open(root) as opened:
        sums = collect(opened, Query("none"), jobs, range_size=200_000)
        size = opened.log.size
    assert len(far) <= sums.groups()[None].messages < len(every)
    assert BAD[1] - BAD[0] <= sums.bytes_unread < 3 * SKIPPED
    assert sums.bytes_in_messages + sums.bytes_unread + sums.bytes_zero == size
    done = rmqctl("stats", root, "-o", "json").expect(5)
    assert len(far) <= sum(row["messages"] for row in done.json()["rows"]) < len(every)
    assert f"{BASE:020d}" in done.err


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_rebuild_takes_all_but_what_is_near(jobs: int, tmp_path: Path,
                                              store: tuple[Path, list[int], list[int]]) -> None:
    root, far, every = store
    with Store.open(root) as opened:
        parts = [LogPart(file.base, file.size, file.path) for file in opened.log.files]
    with Scratch(str(tmp_path)) as scratch:
        rebuilt = rebuild(parts, str(root), Settings(), scratch, jobs=jobs)
        assert len(far) <= rebuilt.messages < len(every)
        assert rebuilt.last == every[-1]
        [note] = [note for note in rebuilt.notes if "of the log skipped" in note]
    assert f"{BASE:020d}" in note


def test_the_table_of_queues_is_made_of_what_can_be_read(
        store: tuple[Path, list[int], list[int]], rmqctl: Runner) -> None:
    done = rmqctl("recover", "table", store[0], "-o", "json").expect(5)
    assert done.json() == {"T-0": 2}
    assert "cannot read at offset" in done.err


def test_reading_from_a_place_behind_what_cannot_be_read(
        store: tuple[Path, list[int], list[int]], rmqctl: Runner) -> None:
    """Where a message starts there is not known from the rows or the file's beginning then."""
    root, _, every = store
    begin = BASE + BAD[1] + 3 * SKIPPED
    done = rmqctl("read", root, "-o", "jsonl", "--body", "none", "--from-phy", str(begin)).expect(0)
    assert [row["physical_offset"] for row in done.jsonl()] == [
        place for place in every if place >= begin]
