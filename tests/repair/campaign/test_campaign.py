"""Stores damaged at random: what `recover` presents as a good message is what was sent.

Counts over thousands of stores: docs/campaign.md, made by `python -m benchmarks.campaign`. A case
is told by its seed: `python -m benchmarks.campaign --stores 1 --seed N`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.repair.campaign import damages
from tests.repair.campaign.trial import NONE, base_of, case, try_one
from tests.support.share import RUN

KINDS = [*damages.KINDS, damages.MIXED]
PARTS, SHARE = 24, 25


def campaign(golden: GoldenFolder, folder: Path, first: int, count: int, *,
             kind: str | None = None, source: str | None = None) -> None:
    for number in range(first, first + count):
        one = case(number, kind, source)
        outcome = try_one(one, base_of(one, folder / "made", golden), folder / "one",
                          by_command=number % 20 == 0)
        assert not outcome.verdict.wrong, outcome.describe()


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_of_the_campaign(golden: GoldenFolder, tmp_path: Path, kind: str) -> None:
    """Other stores each day."""
    campaign(golden, tmp_path, 100 * RUN.seed, 6, kind=kind, source=NONE)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
def test_a_long_campaign(golden: GoldenFolder, tmp_path: Path, part: int) -> None:
    campaign(golden, tmp_path, 1000 * RUN.seed + SHARE * part, SHARE)
