"""What many tests of tiers start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.tiered import recovering
from tests.tiered.verifying import Small, small


@pytest.fixture
def tier(tmp_path: Path) -> Small:
    return small(tmp_path)


@pytest.fixture
def root(golden_copy: GoldenFolder) -> Path:
    """The engine's store with its tier, to be changed."""
    return golden_copy(recovering.GOLDEN)
