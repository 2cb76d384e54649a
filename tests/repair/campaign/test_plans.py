"""The classes in which `benchmarks.plans` puts two plans of one store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plans


def plan(lost: int = 0, undecided: int = 0, *actions: tuple[str, int], note: str = "") -> dict[
        str, Any]:
    return {"messages_lost": [{}] * lost, "messages_undecided": undecided, "notes": [note],
            "actions": [{"action": name, "target": "commitlog", "offset": offset, "length": 5}
                        for name, offset in actions]}


@pytest.mark.parametrize(("before", "after", "name"), [
    (plan(1), plan(1), "equal"),
    (plan(note="a"), plan(note="b"), "other words only"),
    ({}, plan(), "refused before, planned now"),
    (plan(), {}, "planned before, refused now"),
    (plan(2, 5), plan(1, 9), "fewer messages lost"),
    (plan(1), plan(2), "more messages lost"),
    (plan(1, 2), plan(1, 1, ("fill", 3)), "fewer records undecided"),
    (plan(0, 0, ("fill", 3)), plan(0, 0, ("fill", 4)),
     "other places of the log, as many lost"),
    (plan(0, 0, ("rebuild", 3)), plan(0, 0), "other derived files or configuration"),
])
def test_the_class_of_a_difference(before: dict[str, Any], after: dict[str, Any], name: str,
                                   tmp_path: Path) -> None:
    files = tmp_path / "before", tmp_path / "after"
    for file, item in zip(files, (before, after), strict=True):
        file.write_text(json.dumps({"seed": 7, "plan": item}) + "\n")
    counts, seeds = plans.compare(*files)
    assert (counts, seeds) == ({name: 1}, {name: [7]})
    assert f"| {name} | 1 |" in plans.table(counts, seeds)
