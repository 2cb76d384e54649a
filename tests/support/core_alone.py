"""A plugin of pytest for a copy of the program without ``rmqctl/ext``.

What belongs to an extension is not collected; a case that meets one ends as skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import cli

MISSING = "is required but not installed"
ROOT = Path(__file__).parents[2]
_EXTENSION = re.compile(r"^(?:from|import) rmqctl\.(?:ext|pipeline|testing)\b", re.MULTILINE)
_OF_TESTS = re.compile(r"^from (tests[\w.]*) import ([\w, ]+)", re.MULTILINE)


@cache
def needs_extension(module: Path) -> bool:
    """Return whether a module of the tests imports an extension, itself or through others."""
    text = module.read_text()
    others = [ROOT.joinpath(*name.split(".")).with_suffix(".py")
              for package, names in _OF_TESTS.findall(text)
              for name in (package, *(f"{package}.{name}" for name in names.split(", ")))]
    return bool(_EXTENSION.search(text)) or any(
        needs_extension(other) for other in others if other.is_file())


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
    return True if is_module and needs_extension(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a case that imports an extension."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rmqctl.ext"):
            pytest.skip(MISSING)
        raise
