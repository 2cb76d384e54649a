"""`verify`, `preflight` and `doctor` never contradict each other, whatever is damaged.

Every golden set, of every layout, each with 50 fixed damages: those of the campaign to the log and
to what follows from it, and any file of the store cut, emptied, overwritten or gone.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from rmqctl.store.store import Sizes
from tests.conftest import GoldenFolder
from tests.repair.campaign import damages
from tests.repair.campaign.stores import Base
from tests.support import damage
from tests.support.cli import run
from tests.support.golden import LAYOUTS, MULTI_PATH, all_sets
from tests.support.share import sample
from tests.support.snapshot import copy_tree

JSON = ("-o", "json")
KINDS = (*damages.KINDS, damages.MIXED)
SETS = (*(each.id for each in all_sets()), *(
    f"{file.parent.name}/{file.name.removesuffix('.tar.xz')}"
    for file in sorted(LAYOUTS.glob("*/*.tar.xz"))))
OF_THE_LOG, OF_WHAT_FOLLOWS, ALL = 20, 30, 50
"""Damages to the log alone; and to what follows from it; and with those of any file."""
CASES = [(name, number) for name in SETS for number in range(ALL)]
OF_MESSAGES = {"log-cut"}
"""Findings which say that messages are gone."""


def hurt_any_file(root: Path, luck: random.Random) -> str:
    """One file of the store, whatever it is."""
    name = luck.choice(sorted(
        str(path.relative_to(root)) for path in root.rglob("*")
        if path.is_file() and path.name != "lock" and path.stat().st_size))
    size = (root / name).stat().st_size
    with (root / name).open("rb") as file:
        at = luck.randrange(max(1, len(file.read(1 << 20).rstrip(b"\0"))))
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
    if number >= OF_WHAT_FOLLOWS or not all((source / each).is_dir() for each in folders):
        return [hurt_any_file(root, luck)]
    target = damages.Target(Base(name, source, Sizes(), folders), root, luck)
    if not target.used:
        return ["the log is empty"]
    done = damages.do(target, KINDS[number % len(KINDS)])
    if number >= OF_THE_LOG:
        done.append(damages.do_derived(target, luck.choice(damages.STATES)))
    return done


def contradictions(verified: Any, started: Any, said: Any, codes: dict[str, int]) -> list[str]:
    """What three documents say that cannot all be true."""
    covered = verified["coverage"]
    found = [f"{name}: verify {covered[name]}, preflight {started[name]}"
             for name in ("messages_already_lost", "messages_undecided", "messages_replaced")
             if covered[name] != started[name]]
    if said["already_lost"] != started["messages_already_lost"]:
        found.append(f"already lost: doctor {said['already_lost']}, preflight "
                     f"{started['messages_already_lost']}")
    # A store without a finding has lost nothing so far; only a start may cost something.
    if verified["ok"] and any(loss["already"] for loss in started["losses"]):
        found.append(f"verify finds nothing, preflight {started['losses']}")
    # Who says that messages are gone counts them.
    gone = {one["category"] for one in verified["findings"] if one["severity"] != "info"
            and (one["category"] in OF_MESSAGES or "messages are gone" in one["detail"])}
    if gone and not started["messages_already_lost"]:
        found.append(f"verify says that messages are gone ({gone}), nobody counts them")
    # Exit code 0 means the same everywhere.
    if (codes["doctor"] == 0) != (codes["verify"] == codes["preflight"] == 0):
        found.append(f"exit codes {codes}")
    if codes["preflight"] == 0 and (started["losses"] or not started["starts"]):
        found.append("preflight ends with 0 and names a loss")
    if ("nothing is lost" in said["verdict"]) and (
            started["messages_already_lost"] or started["messages_undecided"]):
        found.append(said["verdict"])
    return found


@pytest.mark.parametrize(("name", "number"), sample(CASES, 16, "never contradict"))
def test_never(golden: GoldenFolder, tmp_path: Path, name: str, number: int) -> None:
    folder = golden(name)
    states = sorted(path.name for path in folder.iterdir()
                    if path.name in ("store", "before", "after", "store-live"))
    state = states[number % len(states)]
    root = copy_tree(folder / state, tmp_path / "store")
    done = hurt(name, number, folder / state, root)
    options = [word for each in MULTI_PATH for word in ("--commitlog-dir", each)] if (
        name.endswith("/multipath")) else []
    results = {command: run(command, root, *options, *JSON).expect(0, 1, 3)
               for command in ("verify", "preflight", "doctor")}
    codes = {command: result.code for command, result in results.items()}
    # Not all of a store can be judged by all: exit code 3 with a sentence, and nothing is said.
    if 3 in codes.values():
        assert all(result.err.strip() for result in results.values() if result.code == 3)
        return
    documents = {command: result.json() for command, result in results.items()}
    assert contradictions(documents["verify"], documents["preflight"], documents["doctor"],
                          codes) == [], (state, done)
