"""salvage of missing files by column: the same as one by one, in a file of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.damage import evidence
from rmqctl.repair.plan import Create, FileContent
from rmqctl.repair.salvage import bulk, lost
from rmqctl.repair.salvage.salvage import Salvage, salvage
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.overlay import LogPart
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.repair import salvaging
from tests.repair.accidents import bytes_of
from tests.repair.test_salvage import Case

SETS = ["4.9.3/basic", "5.3.3/basic", "4.9.3/lmq", "5.3.3/batchcq", "5.3.3/appendcrc",
        "4.9.3/transaction", "5.3.3/delay", "4.9.3/batch"]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "FEW", 0)
    monkeypatch.setattr(bulk, "_CHUNK", 3000)


def bytes_at(part: LogPart) -> bytes:
    with part.open() as source:
        return source.read(0, part.size)


def both(root: Path, scratch: Scratch, **options: Any) -> tuple[Salvage, Salvage]:
    with Store.open(root) as store:
        return salvage(store, **options), salvage(store, scratch=scratch, **options)


def missing(case: Case) -> Path:
    """Takes a file away that had messages, and messages behind it."""
    path = case.log[len(case.log) // 2]
    while not any(int(path.name) <= place < int(path.name) + case.whole.file_size
                  for place in case.places):
        path = case.log[case.log.index(path) - 1]
    path.unlink()
    return path


@pytest.mark.parametrize("name", SETS)
def test_by_column_and_one_by_one_are_the_same(golden: GoldenFolder, golden_copy: GoldenFolder,
                                               tmp_path: Path, name: str) -> None:
    case = Case(golden, golden_copy, name)
    path = missing(case)
    with Scratch(str(tmp_path), "scratch") as scratch:
        first, other = both(case.root, scratch)
        step, = other.steps
        assert isinstance(step, Create)
        assert isinstance(step.content, FileContent)
        assert step.target == f"commitlog/{path.name}"
        assert step.mtime_ns == first.steps[0].mtime_ns
        assert [bytes_at(part) for part in first.parts] == [bytes_at(part) for part in other.parts]
        assert replace(other, parts=first.parts, steps=first.steps) == first
        with Store.open(case.root) as store:  # the same file again, for a rebuild that goes on
            about = os.stat(step.content.path)
            assert salvage(store, scratch=scratch) == other
            after = os.stat(step.content.path)
            assert (about.st_ino, about.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("name", SETS[:4])
def test_with_rows_missing_overlapping_and_too_small(golden: GoldenFolder,
                                                     golden_copy: GoldenFolder, tmp_path: Path,
                                                     name: str) -> None:
    """Random rows of the missing file are taken away or changed."""
    case = Case(golden, golden_copy, name)
    path = missing(case)
    luck = np.random.default_rng(7)
    base = int(path.name)
    for file in (case.root / "consumequeue").rglob("0*"):
        if not file.is_file():
            continue
        data = bytearray(file.read_bytes())
        for at in range(0, len(data), 20):
            physical = int.from_bytes(data[at:at + 8], "big")
            if base <= physical < base + case.whole.file_size and luck.random() < 0.3:
                what = luck.integers(3)
                if what == 0:
                    data[at:at + 20] = bytes(20)
                elif what == 1:
                    data[at + 8:at + 12] = (40).to_bytes(4, "big")
                else:
                    data[at:at + 8] = (physical + 7).to_bytes(8, "big")
        file.write_bytes(data)
    with Scratch(str(tmp_path), "scratch") as scratch:
        first, other = both(case.root, scratch)
        assert set(salvaging.records(other.parts)) >= {
            place for place in case.places if not base <= place < base + case.whole.file_size}
        key = {(message.topic, message.queue_id, message.queue_offset) for message in first.lost}
        assert {(message.topic, message.queue_id, message.queue_offset)
                for message in other.lost} == key


def test_one_blank_if_that_is_wanted(golden: GoldenFolder, golden_copy: GoldenFolder,
                                     tmp_path: Path) -> None:
    case = Case(golden, golden_copy, "5.3.3/basic")
    missing(case)
    with Scratch(str(tmp_path), "scratch") as scratch:
        first, other = both(case.root, scratch, missing_file="blank")
        assert other == first
        assert other.lost


def test_the_first_of_very_many(golden: GoldenFolder, golden_copy: GoldenFolder, tmp_path: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(golden, golden_copy, "4.9.3/basic")
    missing(case)
    with Scratch(str(tmp_path), "scratch") as scratch:
        full, _ = both(case.root, scratch)
        for module in (evidence, lost):
            monkeypatch.setattr(module, "MAX_LISTED", 5)
        _, some = both(case.root, scratch)
    assert some.lost == full.lost[:5]
    assert some.lost_total == full.lost_total


@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/appendcrc"])
def test_recover_carries_it_out(golden: GoldenFolder, golden_copy: GoldenFolder, rmqctl: Any,
                                name: str) -> None:
    case = Case(golden, golden_copy, name)
    path = missing(case)
    was = bytes_of(case.root)
    planned = rmqctl("recover", case.root, "-o", "json").recovered()
    assert bytes_of(case.root) == was
    done = rmqctl("recover", case.root, "--apply", "--yes", "-o", "json").recovered()
    assert done["actions"] == planned["actions"]
    assert path.stat().st_size == case.whole.file_size
    rmqctl("verify", case.root).expect(0)
    assert rmqctl("recover", case.root, "-o", "json").recovered()["actions"] == []
    rmqctl("undo", case.root, "--yes").expect(0)
    assert bytes_of(case.root) == was
