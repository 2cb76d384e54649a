"""A plan for many damaged records equals one in which each record and entry gets a closer look."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.grown import Shape, make
from rmqctl.damage import evidence
from rmqctl.repair.salvage.mend import mend
from rmqctl.repair.salvage.salvage import Salvage, salvage
from rmqctl.store.store import Store

_SHAPE = Shape(messages=4000, queues=5, files=2, damages=600)
_ENTRY = 20


def _planned(store: Path) -> Salvage:
    with Store.open(str(store)) as opened:
        return salvage(opened)


def _closely(store: Path, monkeypatch: pytest.MonkeyPatch) -> Salvage:
    """Plan without the ways for many records."""
    with monkeypatch.context() as patch:
        patch.setattr(evidence, "_FEW", 1 << 60)
        patch.setattr(mend._Round, "_as_led", lambda *_: None)
        return _planned(store)


def _assert_equal(first: Salvage, second: Salvage) -> None:
    assert first.parts == second.parts
    assert first.actions == second.actions
    assert (first.lost, first.lost_total, first.notes) == (
        second.lost, second.lost_total, second.notes)


def test_the_records_are_restored_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(_SHAPE, tmp_path / "store")
    planned = _planned(tmp_path / "store")
    assert planned.restored == _SHAPE.damages
    _assert_equal(planned, _closely(tmp_path / "store", monkeypatch))


@pytest.mark.parametrize("seed", range(6))
def test_damaged_entries_are_judged_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          seed: int) -> None:
    """Entries of damaged and of intact messages are zeroed, shifted, or have a changed bit."""
    make(_SHAPE, tmp_path / "store")
    luck = random.Random(seed)
    for path in sorted((tmp_path / "store" / "consumequeue").glob("*/*/*")):
        data = bytearray(path.read_bytes())
        used = len(data.rstrip(b"\0")) // _ENTRY
        for _ in range(40):
            at = luck.randrange(used) * _ENTRY
            kind = luck.randrange(4)
            if kind == 0:
                data[at:at + _ENTRY] = bytes(_ENTRY)
            elif kind == 1:
                data[at + luck.randrange(12)] ^= 1 << luck.randrange(8)
            elif kind == 2:
                data[at:at + _ENTRY] = data[at + _ENTRY:at + 2 * _ENTRY]
            else:
                data[at:at + 8] = luck.randrange(1 << 21).to_bytes(8, "big")
        path.write_bytes(data)
    planned = _planned(tmp_path / "store")
    assert planned.restored > _SHAPE.damages // 2
    _assert_equal(planned, _closely(tmp_path / "store", monkeypatch))
