"""What messages lead to is the same by the kernel in one loop and by column: on every golden set,
as it is and with bits turned, and on the damaged worlds of the campaign.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.broker.settings import Settings
from rmqctl.engine.dispatch import in_one_loop
from rmqctl.engine.dispatch.derive import Derived
from rmqctl.engine.dispatch.in_one_loop import LeadPass
from rmqctl.repair.rebuild.derived_range import derive, log_as_it_is
from rmqctl.repair.rebuild.kept import KeptEntries
from rmqctl.store.log import ranges
from rmqctl.store.store import Sizes, Store
from tests.checks.test_sound_pass import STORES, WORLDS, damage
from tests.conftest import GoldenFolder
from tests.repair.campaign.worlds import grounds, trial
from tests.support.golden import GoldenStore, is_covering
from tests.support.kernels import compiled_only
from tests.support.share import sample
from tests.support.snapshot import copy_tree

pytestmark = compiled_only


def derived_parts(settings: Settings, rows: bool, limit: int | None, root: Path,
                  sizes: Sizes | None) -> list[Any]:
    values = []
    with Store.open(str(root), (), sizes) as store, KeptEntries.of(str(root), settings) as kept:
        for part in ranges.split(log_as_it_is(store), 1 << 16):
            result = derive(settings, rows, limit, kept, part)
            values.append((result.first, result.position, result.messages, result.last, result.end,
                           result.newest,                            result.damage,
                           columns(result.derived)))
    return values


def columns(parts: list[Derived]) -> dict[str, Any]:
    if not parts:
        return {}
    joined = Derived.joined(parts)
    values_by_name = {name: getattr(joined, name).tolist() for name in (
        "queue_id", "queue_offset", "physical", "size", "store_timestamp", "tags", "rowed")}
    values_by_name["topic"] = [joined.topics[number] for number in joined.topic.tolist()]
    if joined.key_row is not None and joined.key_hash is not None:
        values_by_name["keys"] = [*zip(joined.key_row.tolist(), joined.key_hash.tolist(),
                                       strict=True)]
    if joined.further is not None:
        further = joined.further
        values_by_name["further"] = [*zip(further.message.tolist(), (
            further.names[number] for number in further.name.tolist()), further.offset.tolist(),
            strict=True)]
    if joined.inner is not None:
        values_by_name["inner"] = np.column_stack(joined.inner).tolist()
    return values_by_name


def assert_equal(root: Path, sizes: Sizes | None, monkeypatch: pytest.MonkeyPatch,
                 version: str) -> None:
    with Store.open(str(root), (), sizes) as store:
        middle = (store.log.min_offset + store.log.end) // 2
    for settings, rows, limit in ((Settings(version, multi_dispatch=True), True, None),
                                  (Settings(version), True, middle),
                                  (Settings(version), False, None),
                                  (Settings(version, message_index=False), True, None)):
        by_the_kernel = derived_parts(settings, rows, limit, root, sizes)
        with monkeypatch.context() as patch:
            patch.setattr(in_one_loop, "active", lambda: None)
            by_column = derived_parts(settings, rows, limit, root, sizes)
        assert by_the_kernel == by_column


@pytest.mark.parametrize("store", sample(STORES, 10, "derived", always=is_covering), ids=str)
def test_golden_stores(store: GoldenStore, golden: GoldenFolder, tmp_path: Path,
                       monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden(store.id)
    if not (root / "commitlog").exists():
        pytest.skip("no plain log")
    assert_equal(root, None, monkeypatch, store.version)
    copy = copy_tree(root, tmp_path / "copy")
    damage(copy, random.Random(1))
    assert_equal(copy, None, monkeypatch, store.version)


@pytest.mark.parametrize("seed", sample(range(WORLDS), 15, "worlds of derived"))
def test_damaged_worlds(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = trial.world(seed)
    ground = grounds.make(tmp_path / "made", world.form, world.forged, world.number)
    root = ground.copy(tmp_path / "store")
    trial._damaged(world, ground, root)
    assert_equal(root, ground.sizes, monkeypatch, "5.3.3")


def test_little_room(golden: GoldenFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that are full are given away."""
    room = LeadPass._more_room

    def few(self: LeadPass) -> bool:
        self._room, self._keys_each = 7, 1
        return room(self)

    settings, root = Settings("5.3.3"), golden("5.3.3/basic/store")
    before = derived_parts(settings, True, None, root, None)
    monkeypatch.setattr(LeadPass, "_more_room", few)
    assert derived_parts(settings, True, None, root, None) == before
