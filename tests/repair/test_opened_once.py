"""How often `recover` opens what it reads: a bound that may only fall."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from rmqctl.store.store import Store

EXAMPLE = Path(__file__).parents[2] / "examples" / "store"
MOST_OPENS, MOST_STORES = 150, 2
_watched: list[list[str]] = []


def _note(event: str, given: tuple[object, ...]) -> None:
    if event == "open" and _watched and isinstance(given[0], str | bytes):
        _watched[-1].append(os.fsdecode(given[0]))


def test_a_plan_opens_files_and_stores_a_bounded_number_of_times(
        rmqctl, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of five files with six queues."""
    root = tmp_path / "store"
    shutil.copytree(EXAMPLE, root)
    stores = []
    begin = Store.__init__

    def counted(self: Store, *given: object, **named: object) -> None:
        stores.append(self)
        begin(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "__init__", counted)
    sys.addaudithook(_note)
    _watched.append([])
    try:
        rmqctl("recover", root, "--jobs", "1", "-o", "json").expect(0, 1)
    finally:
        names = _watched.pop()
    opens = [name for name in names if name.startswith(str(root))]
    assert 50 < len(opens) <= MOST_OPENS
    assert 0 < len(stores) <= MOST_STORES
