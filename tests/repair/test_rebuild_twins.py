"""Queues that a store has just so are not made; whatever else lies there is seen all the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl.repair.scratch import Scratch
from tests.repair.rebuilding import derived, mend, planned, settings_of


def _zeroed(queue: Path) -> None:
    file = min(queue.iterdir())
    data = file.read_bytes()
    file.write_bytes(data[:20] + bytes(40) + data[60:])


def _dirty_behind(queue: Path) -> None:
    file = max(queue.iterdir())
    data = file.read_bytes()
    file.write_bytes(data[:-20] + b"\1" * 20)


def _emptied(queue: Path) -> None:
    max(queue.iterdir()).write_bytes(b"")


def _linked(queue: Path) -> None:
    file = max(queue.iterdir())
    other = queue.parent / "elsewhere"
    file.rename(other)
    file.symlink_to(other)


def _shared(queue: Path) -> None:
    (queue / "below").mkdir()
    (queue / "below" / "notes").write_text("x")


def _one_more(queue: Path) -> None:
    last = max(queue.iterdir())
    (queue / f"{int(last.name) + last.stat().st_size:020d}").write_bytes(
        bytes(last.stat().st_size))


def _other_name(queue: Path) -> None:
    queue.rename(queue.with_name(f"0{queue.name}"))


@pytest.mark.parametrize("harm", [_zeroed, _dirty_behind, _emptied, _linked, _shared, _one_more,
                                  _other_name])
def test_what_only_looks_the_same_is_planned(harm: Callable[[Path], None], golden, golden_copy,
                                             tmp_path):
    folder = golden("5.3.3/basic")
    store, settings = golden_copy("5.3.3/basic/store"), settings_of(folder, "5.3.3")
    wanted = derived(store)
    queue = max((store / "consumequeue").glob("*/*"),
                key=lambda path: (sum(1 for _ in path.iterdir()) > 1, os.path.getsize(min(
                    path.iterdir())), str(path)))
    harm(queue)
    with Scratch(str(tmp_path)) as scratch:
        steps, actions = planned(store, settings, scratch)
    assert steps
    assert {action.target for action in actions} == {str(queue.relative_to(store))}
    mend(store, settings, tmp_path)
    data_by_name = {name: data for name, data in derived(store).items() if "/below/" not in name}
    assert {name: data_by_name.get(name) for name in wanted} == wanted
