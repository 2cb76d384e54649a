"""Commands of a case run in forks of a warm process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rmqctl.case import runs
from tests.support.forked_case import Forked


@pytest.fixture(scope="module")
def forked() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "Popen", Forked)
        yield patch
