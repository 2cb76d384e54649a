"""The program's own text, as a tree: parsed once for all tests that look at it, and when asked.

Such tests are marked `together`, so that one process of a run does it.
"""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "rmqctl"
together = pytest.mark.xdist_group("source")


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module of the package by its file, sorted."""
    gc.disable()  # all of it stays: to look for garbage among it takes three times as long
    try:
        return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All of a tree, as `ast.walk` finds them, which takes seconds for the package."""
    return tuple(ast.walk(tree))
