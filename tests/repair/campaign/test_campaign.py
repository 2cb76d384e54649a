"""Stores damaged at random: what `recover` presents as a good message is what was sent.

Each day some of the cases of `python -m benchmarks.campaign`; with all others, an exhaustive run.
A seed names a case: `python -m benchmarks.campaign --stores 1 --seed N`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.repair.campaign.sources import JSON_LINES, PARQUET
from tests.repair.campaign.trial import Case, base_of, case, try_one
from tests.support.share import RUN

STORES = 700
"""The first of those of the measured campaign."""
PARTS, SHARE, LONG = 10, 2, 50


def campaign(golden: GoldenFolder, folder: Path, seeds: Iterable[int]) -> None:
    for number in seeds:
        scenario = case(number)
        outcome = try_one(scenario, base_of(scenario, folder / "made", golden), folder / "one",
                          by_command=number % 20 == 0)
        assert not outcome.verdict.wrong, outcome.describe()


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_a_share_of_the_campaign(golden: GoldenFolder, tmp_path: Path, part: int) -> None:
    first = (RUN.seed * PARTS + part) * SHARE
    campaign(golden, tmp_path, (1 + number % STORES for number in range(first, first + SHARE)))


@pytest.mark.parametrize("scenario", [
    Case(2011, "files swapped", "split, prefer source", "no index", "bit", False, "made", 18),
    Case(5020, "tail torn", JSON_LINES, "nothing", "byte", False, "made", 3),
    Case(5020, "tail torn", PARQUET, "nothing", "byte", False, "made", 3),
    *map(case, (1821, 2660, 5331, 5672, 6010, 6198, 6305, 6496, 6551, 6968, 40023, 40054, 40098,
                900000842, 900002874, 167529272884, 476272171506, 1277125297222,
                1277125297687)),
    case(20047, "pages swapped", "none"),
], ids=lambda param: f"{param.seed} {param.source}")
def test_what_was_wrong_once(golden: GoldenFolder, tmp_path: Path, scenario: Case) -> None:
    outcome = try_one(scenario, base_of(scenario, tmp_path / "made", golden), tmp_path / "one")
    assert not outcome.verdict.wrong, outcome.describe()


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(20))
def test_a_long_campaign(golden: GoldenFolder, tmp_path: Path, part: int) -> None:
    first = STORES + 1 + 1000 * RUN.seed + LONG * part
    campaign(golden, tmp_path, range(first, first + LONG))
