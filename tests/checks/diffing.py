"""What the tests of diff share: running it, and its answer in short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqctl.checks.diff.diff import Diff, DiffOptions
from rmqctl.store import Store
from tests.support import damage
from tests.support import tiny as tiny_stores
from tests.support.snapshot import copy_tree
from tests.support.tiny import Placed, Spec, Tiny

MIRROR = {"missing-in-a": "missing-in-b", "missing-in-b": "missing-in-a",
          "damaged-in-a": "damaged-in-b", "damaged-in-b": "damaged-in-a"}
Brief = tuple[str, int | None]


def diff(a: Path, b: Path, by: str = "auto", *, dirs: Sequence[str] = (),
         dirs_b: Sequence[str] | None = None, **options: Any) -> Diff:
    with Store.open(a, dirs) as left, Store.open(b, dirs if dirs_b is None else dirs_b) as right:
        run = Diff(left, right, DiffOptions(by, **options))
        run.run()
        return run


def brief(run: Diff) -> list[Brief]:
    return [(difference.kind, difference.physical_offset) for difference in run.differences.listed]


def in_log(run: Diff) -> list[Brief]:
    return [(difference.kind, difference.physical_offset) for difference in run.differences.listed
            if difference.structure == "commitlog"]


def swapped(differences: Iterable[Brief]) -> list[Brief]:
    return [(MIRROR.get(kind, kind), offset) for kind, offset in differences]


def counts(run: Diff) -> tuple[int, int, int, int]:
    return tuple(run.summary[name] for name in (  # type: ignore[return-value]
        "equal", "different", "missing_in_a", "missing_in_b"))


@pytest.fixture
def pair(tiny: Tiny, tmp_path: Path) -> tuple[Tiny, Tiny]:
    """The tiny store twice."""
    return tiny, tiny.moved(copy_tree(tiny.root, tmp_path / "b"))


@pytest.fixture
def long_pair(tmp_path: Path) -> tuple[Tiny, Tiny]:
    """Twelve messages over six files, twice."""
    specs = [Spec("t", number % 2, bytes([number]) * 300) for number in range(12)]
    a = tiny_stores.build(tmp_path / "a", specs)
    assert len(a.files("commitlog")) == 6
    return a, a.moved(copy_tree(a.root, tmp_path / "b"))


def change(tiny: Tiny, record: Placed, at: int, bit: int = 0) -> None:
    file, position = tiny.place(record.start + at)
    damage.flip_bit(tiny.root, file, position, bit)


def earlier(tiny: Tiny, only: Placed | None = None) -> None:
    """Takes from all times the step that one more message in front has added."""
    for message in tiny.messages if only is None else [only]:
        file, position = tiny.place(message.start)
        record = message.record
        for at, value in ((40, record.born_timestamp), (56, record.store_timestamp)):
            damage.write(tiny.root, file, position + at,
                         (value - tiny_stores.STEP).to_bytes(8, "big"))
