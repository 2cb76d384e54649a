"""`verify`, `preflight` and `doctor` never contradict each other, whatever is damaged.

Every golden set, of every layout, each with 50 fixed damages: those of the campaign to the log and
to what follows from it, and any file of the store cut, emptied, overwritten or gone.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rmqctl.store.store import Sizes
from tests.commands.test_advice import followed
from tests.conftest import GoldenFolder
from tests.repair.campaign import damages
from tests.repair.campaign.stores import Base
from tests.support import damage
from tests.support.cli import run
from tests.support.contradictions import contradictions
from tests.support.golden import LAYOUTS, MULTI_PATH, all_sets
from tests.support.share import sample
from tests.support.snapshot import copy_tree
from tests.test_cases import CASES as CASES_OF_OPERATORS
from tests.test_cases import built

INCIDENTS = [case for case in CASES_OF_OPERATORS if case.name.startswith("incident-")]
KINDS = (*damages.KINDS, damages.MIXED)
SETS = (*(golden_set.id for golden_set in all_sets()), *(
    f"{file.parent.name}/{file.name.removesuffix('.tar.xz')}"
    for file in sorted(LAYOUTS.glob("*/*.tar.xz"))))
OF_THE_LOG, OF_WHAT_FOLLOWS, ALL = 20, 30, 50
"""Damages to the log alone; and to what follows from it; and with those of any file."""
CASES = [(name, number) for name in SETS for number in range(ALL)]
FOUND = (("4.9.3/dledger-mixed", 23), ("5.3.3/tiered", 30), ("5.3.3/rocksdb-crash-nocq", 9),
         ("5.3.3/crash-nocq", 9), ("5.3.3/rocksdb-config-v1-kill", 31), ("5.3.3/controller", 14),
         ("5.3.3/lmq", 21))
"""Cases that failed once."""


def hurt_any_file(root: Path, luck: random.Random) -> str:
    """One file of the store, whatever it is."""
    name = luck.choice(sorted(
        str(path.relative_to(root)) for path in root.rglob("*")
        if path.is_file() and path.name != "lock" and path.stat().st_size))
    size = (root / name).stat().st_size
    with (root / name).open("rb") as file:
        at = luck.randrange(min(size, max(1, len(file.read(1 << 20).rstrip(b"\0")))))
    kind = luck.choice(("bit", "zeros", "noise", "cut", "gone", "empty"))
    if kind == "bit":
        damage.flip_bit(root, name, at, luck.randrange(8))
    elif kind == "zeros":
        damage.zero(root, name, at, min(luck.choice((20, 100, 512, 4096)), size - at))
    elif kind == "noise":
        damage.write(root, name, at, luck.randbytes(min(64, size - at)))
    elif kind == "cut":
        damage.truncate(root, name, at)
    elif kind == "gone":
        damage.remove(root, name)
    else:
        damage.empty_file(root, name)
    return f"{kind}: {name} @{at}"


def hurt(name: str, number: int, source: Path, root: Path) -> list[str]:
    """Does damage ``number``; says what it is. The first of all is none."""
    luck = random.Random(f"{name} {number}")
    folders = MULTI_PATH if name.endswith("/multipath") else ("commitlog",)
    if not number:
        return ["none"]
    if number >= OF_WHAT_FOLLOWS or not all((source / folder).is_dir() for folder in folders):
        return [hurt_any_file(root, luck)]
    target = damages.Target(Base(name, source, Sizes(), folders), root, luck)
    if not target.used:
        return ["the log is empty"]
    done = damages.do(target, KINDS[number % len(KINDS)])
    if number >= OF_THE_LOG:
        done.append(damages.do_derived(target, luck.choice(damages.STATES)))
    return done


def damaged(golden: GoldenFolder, folder: Path, name: str, number: int) -> tuple[
        Path, str, list[str]]:
    """(the store of a case, its state in the golden set, what was done to it)."""
    source = golden(name)
    states = sorted(path.name for path in source.iterdir()
                    if path.name in ("store", "before", "after", "store-live"))
    state = states[number % len(states)]
    root = copy_tree(source / state, folder / "store")
    return root, state, hurt(name, number, source / state, root)


def options_of(name: str) -> list[str]:
    return [word for golden_set in MULTI_PATH for word in ("--commitlog-dir", golden_set)] if (
        name.endswith("/multipath")) else []


@pytest.mark.parametrize(("name", "number"), sample(CASES, 16, "never contradict"))
def test_never(golden: GoldenFolder, tmp_path: Path, name: str, number: int) -> None:
    root, state, done = damaged(golden, tmp_path, name, number)
    assert contradictions(root, *options_of(name)) == [], (state, done)


@pytest.mark.long
@pytest.mark.parametrize(("name", "number"), sample(CASES, 2, "the advice closes", always=FOUND))
def test_the_advice_closes(golden: GoldenFolder, tmp_path: Path, name: str, number: int) -> None:
    """No step is advised twice, each changes something, and at the end the store is sound, or what
    to do by hand is said.
    """
    root, _, _ = damaged(golden, tmp_path, name, number)
    assert contradictions(root, *options_of(name)) == []
    changes = followed(run, root, options_of(name))
    assert changes["sound"] or changes["remains"]


@pytest.mark.long
@pytest.mark.parametrize("case", INCIDENTS, ids=[path.name for path in INCIDENTS])
def test_never_in_an_incident(case: Path, tmp_path: Path) -> None:
    out = built(case, tmp_path / "built")
    stores = [path.parent for path in sorted(out.rglob("commitlog")) if path.is_dir()]
    assert stores
    for store in stores:
        assert contradictions(store) == [], store
