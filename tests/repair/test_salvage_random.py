"""salvage against random damage: every intact message is kept, every queue goes on."""

from __future__ import annotations

import pytest

from tests.conftest import GoldenFolder
from tests.repair import damage, salvaging
from tests.support.replay import settings_of
from tests.support.share import sample

SETS = [f"{version}/{kind}" for kind in ("basic", "batch", "delay", "lmq", "cqext", "transaction")
        for version in ("4.9.3", "5.3.3")]
FURTHER = ["5.3.3/appendcrc", "5.3.3/batchcq", "4.9.3/ipv6", "5.3.3/ipv6", "5.3.3/v2topic",
           "5.3.3/timer", "4.9.3/delay-delivered"]


def salvaged(golden: GoldenFolder, golden_copy: GoldenFolder, name: str, seed: int) -> None:
    root = golden_copy(f"{name}/store")
    settings = settings_of(golden(name), name.partition("/")[0], lmq=True, multi_dispatch=True)
    whole, rows = damage.remember(root), salvaging.rows_of(root)
    print(damage.do(root, seed))
    outcome = salvaging.check(root, whole, rows, settings)
    assert outcome.kept == outcome.intact


@pytest.mark.parametrize("seed", sample(range(24), 6, "salvage"))
def test_a_few_seeds(golden: GoldenFolder, golden_copy: GoldenFolder, seed: int) -> None:
    salvaged(golden, golden_copy, SETS[seed % len(SETS)], seed)


@pytest.mark.parametrize("name", FURTHER)
def test_the_other_kinds_of_stores(golden: GoldenFolder, golden_copy: GoldenFolder,
                                   name: str) -> None:
    for seed in sample(range(3), 1, name):
        salvaged(golden, golden_copy, name, 1000 + seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(24, 200))
def test_many_seeds(golden: GoldenFolder, golden_copy: GoldenFolder, seed: int) -> None:
    salvaged(golden, golden_copy, SETS[seed % len(SETS)], seed)


def one_kind(golden: GoldenFolder, golden_copy: GoldenFolder, name: str, kind: str,
             seed: int) -> None:
    """Damage of one kind is repaired without losing an intact message."""
    root = golden_copy(f"{name}/store")
    settings = settings_of(golden(name), name.partition("/")[0], lmq=True, multi_dispatch=True)
    whole, rows = damage.remember(root), salvaging.rows_of(root)
    damage.do(root, seed, [kind])
    salvaging.check(root, whole, rows, settings)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", damage.KINDS)
@pytest.mark.parametrize("name", [*SETS, *FURTHER])
def test_each_kind_of_damage_alone(golden: GoldenFolder, golden_copy: GoldenFolder, name: str,
                                   kind: str) -> None:
    for seed in range(10):
        one_kind(golden, golden_copy, name, kind, seed)
