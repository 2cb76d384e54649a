"""The pass over sound messages in one loop leaves what the pass by column alone does.

On every golden set, as it is and with bits turned, and on the damaged worlds of the campaign; whole
and cut into ranges.
"""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.context import ComparedStructures, RangeResult
from rmqctl.checks.verify.log import log_pass, ranges
from rmqctl.checks.verify.log.sound import SoundPass
from rmqctl.checks.verify.queue.rows import QueueTally, merged
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.errors import StoreIOError, UnsupportedError
from rmqctl.store.store import Sizes, Store
from tests.conftest import GoldenFolder
from tests.repair.campaign.worlds import grounds, trial
from tests.support.golden import GoldenStore, golden_stores, is_covering, rocksdb_stores
from tests.support.kernels import compiled_only
from tests.support.share import sample
from tests.support.snapshot import copy_tree

pytestmark = compiled_only

STORES = [golden_store for golden_store in (*golden_stores(), *rocksdb_stores())
          if golden_store.kind != "tiered"]
WORLDS = 400


def outcome_of(result: RangeResult) -> dict[str, Any]:
    """Everything that a pass leaves, in one order."""
    result.headers.settle()
    result.keys.settle()
    fields_by_name: dict[str, Any] = {attribute.name: getattr(result, attribute.name)
                                      for attribute in fields(result)}
    fields_by_name["queues"] = {key: tally_of(tally) for key, tally in sorted(result.queues.items())
                                if tally != QueueTally()}
    fields_by_name["keys"] = {attribute.name: getattr(result.keys, attribute.name)
                              for attribute in fields(result.keys)
                              if attribute.name != "files"}
    for name in ("extra", "missing", "late"):
        fields_by_name["keys"][name] = sorted(fields_by_name["keys"][name])
    fields_by_name["headers"] = {
        attribute.name: value.tolist()
        if isinstance(value := getattr(result.headers, attribute.name),
                      np.ndarray) else value
        for attribute in fields(result.headers)}
    return fields_by_name


def tally_of(tally: QueueTally) -> dict[str, Any]:
    fields_by_name = {attribute.name: getattr(tally, attribute.name) for attribute in fields(tally)}
    fields_by_name["covered"] = merged(tally.covered)
    return fields_by_name


def passed(root: Path, sizes: Sizes | None, wanted: ComparedStructures,
           folders: tuple[str, ...] = (),
           count: int | None = None) -> dict[str, Any] | str:
    with Store.open(str(root), folders, sizes) as store:
        try:
            ends = {key: queue.disk_end for key, queue in store.queues.by_key.items()}
            return outcome_of(ranges.run(store, ends, wanted, 1 if count is None
                                         else 2, count=count))
        except (StoreIOError, UnsupportedError) as error:
            return str(error)


def assert_equal(root: Path, sizes: Sizes | None, monkeypatch: pytest.MonkeyPatch,
                 folders: tuple[str, ...] = ()) -> None:
    for wanted in (ComparedStructures(), ComparedStructures(queues=False),
                   ComparedStructures(index=False)):
        for count in (None, 3):
            in_one_loop = passed(root, sizes, wanted, folders, count)
            with monkeypatch.context() as patch:
                patch.setattr(log_pass, "active", lambda: None)
                by_column = passed(root, sizes, wanted, folders, count)
            assert in_one_loop == by_column


def damage(root: Path, luck: random.Random) -> None:
    """A few bits of the log, its entries and its index, or many of the log."""
    for name in ("commitlog", "consumequeue", "index"):
        files = [path for path in sorted((root / name).rglob("*")) if path.is_file()]
        for path in luck.sample(files, min(len(files), 2)):
            with path.open("r+b") as file:
                used = len(file.read(1 << 20).rstrip(b"\0"))
                for _ in range(luck.choice((0, 1, 3, 60 if name == "commitlog" else 2))):
                    at = luck.randrange(max(used, 1))
                    file.seek(at)
                    old = file.read(1) or b"\0"
                    file.seek(at)
                    file.write(bytes([old[0] ^ 1 << luck.randrange(8)]))


@pytest.mark.parametrize("store", sample(STORES, 20, "sound passes", always=is_covering), ids=str)
def test_golden_stores(store: GoldenStore, golden: GoldenFolder, tmp_path: Path,
                       monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden(store.id)
    if not (root / "commitlog").exists():
        pytest.skip("no plain log")
    assert_equal(root, None, monkeypatch)
    for seed in range(3):
        copy = copy_tree(root, tmp_path / str(seed))
        damage(copy, random.Random(seed))
        assert_equal(copy, None, monkeypatch)


@pytest.mark.parametrize("seed", sample(range(WORLDS), 25, "worlds of sound passes"))
def test_damaged_worlds(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = trial.world(seed)
    ground = grounds.make(tmp_path / "made", world.form, world.forged, world.number)
    root = ground.copy(tmp_path / "store")
    trial._damaged(world, ground, root)
    assert_equal(root, ground.sizes, monkeypatch)


def test_sound_messages_come_in_no_batch(golden: GoldenFolder,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = log_pass.LogPass._take
    monkeypatch.setattr(log_pass.LogPass, "_take", lambda self, batch: (
        taken.append(len(batch)), take(self, batch))[1])
    runs: list[int] = []
    settle = SoundPass.settle
    monkeypatch.setattr(SoundPass, "settle", lambda self, result: (
        runs.append(self.waiting), settle(self, result))[1])
    pass_result = passed(golden("5.3.3/basic/store"), None, ComparedStructures())
    assert isinstance(pass_result, dict)
    assert sum(taken) == 0
    assert sum(runs) == pass_result["messages"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_much_damaged_index(seed: int, golden_copy: GoldenFolder,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that are paired with their keys at the end have their times compared, too."""
    root, luck = golden_copy("5.3.3/basic/store"), random.Random(seed)
    for path in sorted((root / "index").iterdir()):
        data = bytearray(path.read_bytes())
        for _ in range(60):
            data[luck.randrange(len(data.rstrip(b"\0")))] ^= 1 << luck.randrange(8)
        path.write_bytes(data)
    in_one_loop = found_in(root)
    monkeypatch.setattr(log_pass, "active", lambda: None)
    by_column = found_in(root)
    assert in_one_loop == by_column
    assert sum(finding.category == "index-time" for finding in by_column) > 1


def found_in(root: Path) -> list[Finding]:
    with Store.open(str(root)) as store:
        return list(Verification(store, VerifyOptions()).findings())
