"""The growth test judges powers, and its stores are sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import damaged, grown, growth
from benchmarks.growth import Cost, Growth, exponent
from rmqctl.checks.verify.verify import Verification
from rmqctl.store import Store


@pytest.mark.parametrize("power", [0.5, 1.0, 1.1, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("fixed", [0.0, 5.0, 1000.0])
def test_the_power_is_found_whatever_does_not_grow(power: float, fixed: float) -> None:
    costs = [fixed + 3 * times ** power for times in growth.TIMES]
    assert exponent(costs, 0.1) == pytest.approx(power, abs=0.01)


def test_what_hardly_grows_is_no_growth() -> None:
    assert exponent([1.0, 1.01, 1.0, 1.2], 0.25) is None
    assert exponent([1.0, 1.01, 1.0, 9.0], 0.25) is not None


@pytest.mark.parametrize(("cpu", "read", "too_fast"), [
    ((1, 2, 4, 8), (10, 20, 40, 80), False), ((1, 4, 16, 64), (10, 20, 40, 80), True),
    ((1, 2, 4, 8), (10, 40, 160, 640), True), ((0, 0, 0, 0), (0, 0, 0, 0), False),
])
def test_either_cost_may_grow_too_fast(cpu: tuple[int, ...], read: tuple[int, ...],
                                       *, too_fast: bool) -> None:
    result = Growth("info", "queues", tuple(map(Cost, cpu, read)))
    assert result.is_too_fast == too_fast
    assert ("TOO FAST" in growth.table([result])[-1]) == too_fast


@pytest.mark.parametrize("shape", [
    grown.Shape(10, 1, 1, 1), grown.Shape(300, 7, 4, 3), grown.Shape(40, 40, 40, 2)])
def test_its_stores_are_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                              shape: grown.Shape) -> None:
    monkeypatch.setattr(grown, "INDEX_SLOTS", 1_000)
    monkeypatch.setattr(grown, "INDEX_MAX", 4_000)
    store = tmp_path / "store"
    grown.make(shape, store)
    with Store.open(str(store)) as opened:
        verification = Verification(opened)
        assert list(verification.findings()) == []
        assert len(opened.log.files) == shape.files
        assert len(opened.queues.by_key) == shape.queues


@pytest.mark.parametrize("damages", [1, 3, 40])
def test_so_many_records_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                     damages: int) -> None:
    monkeypatch.setattr(grown, "INDEX_SLOTS", 1_000)
    monkeypatch.setattr(grown, "INDEX_MAX", 4_000)
    store = tmp_path / "store"
    grown.make(grown.Shape(300, 7, 2, 1, damages), store)
    with Store.open(str(store)) as opened:
        categories = [finding.category for finding in Verification(opened).findings()
                      if finding.is_trouble]
    assert categories.count("body-crc") == -(-damages // 3)
    assert categories.count("body-crc") + categories.count("record-damaged") == damages


def test_the_table_of_damage_says_how_much_more_it_costs() -> None:
    sound, hit = Cost(1.0, 100.0), Cost(1.5, 120.0)
    line = damaged.line("verify", 10, 1000, sound, hit, 90.0)
    assert line.split(" | ")[-4:] == ["1.00", "1.50", "1.50", "1.33 |"]
