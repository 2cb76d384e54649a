"""The program's own text, as a tree: parsed once for all tests that look at it, and when asked."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "rmqctl"


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module of the package by its file, sorted."""
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
