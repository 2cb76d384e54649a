"""Stores damaged at random: what `recover` presents as a good message is what was sent.

Each day some of the cases of docs/campaign.md, which `python -m benchmarks.campaign` writes; with
all others, an exhaustive run. A case is told by its seed: `python -m benchmarks.campaign --stores 1
--seed N`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.repair.campaign.trial import base_of, case, try_one
from tests.support.share import RUN

STORES = 700
"""Those of docs/campaign.md."""
PARTS, SHARE, LONG = 10, 6, 50


def campaign(golden: GoldenFolder, folder: Path, seeds: Iterable[int]) -> None:
    for number in seeds:
        one = case(number)
        outcome = try_one(one, base_of(one, folder / "made", golden), folder / "one",
                          by_command=number % 20 == 0)
        assert not outcome.verdict.wrong, outcome.describe()


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_a_share_of_the_campaign(golden: GoldenFolder, tmp_path: Path, part: int) -> None:
    first = (RUN.seed * PARTS + part) * SHARE
    campaign(golden, tmp_path, (1 + one % STORES for one in range(first, first + SHARE)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(20))
def test_a_long_campaign(golden: GoldenFolder, tmp_path: Path, part: int) -> None:
    first = STORES + 1 + 1000 * RUN.seed + LONG * part
    campaign(golden, tmp_path, range(first, first + LONG))
