from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kernels import KERNELS, using


@pytest.fixture(autouse=True, scope="module", params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test of this folder runs on both builds."""
    with using(request.param):
        yield request.param
