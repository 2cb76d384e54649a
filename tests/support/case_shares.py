"""How many cases of each expensive test function `make test` runs: ``tests/shares.toml``.

The table is written by ``make shares`` from the times of a run of all cases. A function that is not
in it runs with all its cases. The cases that are left out run in the target of their area and in
``make test-exhaustive``.
"""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TABLE = Path(__file__).parents[1] / "shares.toml"
FUNCTION_S = 0.2
"""A function whose cases take less than this together runs with all of them."""
SHARE_S = 0.1
"""Of another one as many cases as take this long, but one at least ..."""
CASE_S = 0.3
"""... unless a single case takes longer than this: then none."""
WHOLE = ("tests/test_transcripts.py", "tests/test_docs.py", "tests/test_imports.py",
         "tests/engine/test_engine_is_judge.py", "tests/test_run.py")
"""Modules that run with all cases whatever they cost: what users see, and the engine's answers."""
ALWAYS = {"tests/kernel/test_equal.py::test_walks",
          "tests/repair/test_nothing_deleted.py::test_whatever_takes_away_is_known",
          "tests/repair/executor/test_kills.py::test_apply",
          "tests/serve/test_command.py::test_it_serves_on_when_nobody_reads_its_events_any_more"}
"""Further functions that do; cases of theirs over the budget are marked ``long``."""


def function_of(nodeid: str) -> str:
    """The part of a node id that names the function: without its parameters and xdist group."""
    return nodeid.split("[", maxsplit=1)[0].split("@", maxsplit=1)[0]


@cache
def table() -> dict[str, int]:
    """The number of cases of each function in the table."""
    modules = tomllib.loads(TABLE.read_text())
    return {f"{module}::{function}": count
            for module, counts in modules.items() for function, count in counts.items()}


def reduced(items: Sequence[pytest.Item], counts: Mapping[str, int]) -> list[pytest.Item]:
    """The items without those cases that exceed their function's count; always the same ones."""
    cases: dict[str, list[str]] = {}
    for item in items:
        if (function := function_of(item.nodeid)) in counts:
            cases.setdefault(function, []).append(item.nodeid)
    left_out: set[str] = set()
    for function, names in cases.items():
        names.sort(key=lambda name: (zlib.crc32(name.encode()), name))
        left_out.update(names[counts[function]:])
    return [item for item in items if item.nodeid not in left_out]


def written(costs: Mapping[str, Sequence[float]]) -> str:
    """The table for these times (seconds) of each function's cases."""
    modules: dict[str, list[str]] = {}
    for function, seconds in sorted(costs.items()):
        module, name = function.split("::", 1)
        total, number = sum(seconds), len(seconds)
        if total < FUNCTION_S or module in WHOLE or function in ALWAYS:
            continue
        mean = total / number
        count = min(int(SHARE_S / mean), number) or int(mean <= CASE_S)
        if count < number:
            modules.setdefault(module, []).append(f"{name} = {count}  # of {number}\n")
    head = "# Cases of expensive tests that `make test` runs. Written by `make shares`.\n"
    return head + "".join(f'\n["{module}"]\n{"".join(lines)}'
                          for module, lines in modules.items())
