"""A plugin of pytest for a copy of the program without ``rmqctl/ext``.

What belongs to an extension is not collected; a case that meets one ends as skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cli

MISSING = "an extension that is not installed"
_IMPORTED = re.compile(
    r"^(?:from|import) (?:rmqctl\.(?:ext|pipeline|testing)"
    r"|tests\.(?:browse|pipeline|remoting|serve|tiered))\b", re.MULTILINE)


def pytest_configure() -> None:
    """Skip a case whose command needs an extension."""
    checked = cli._checked

    def or_skipped(result: cli.Result) -> cli.Result:
        if MISSING in result.err:
            assert (result.code, result.out) == (3, ""), result.describe()
            pytest.skip(MISSING)
        return checked(result)

    cli._checked = or_skipped


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore modules that import an extension."""
    is_module = collection_path.suffix == ".py" and collection_path.name != "conftest.py"
    return True if is_module and _IMPORTED.search(collection_path.read_text()) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a case that imports an extension."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rmqctl.ext"):
            pytest.skip(MISSING)
        raise
