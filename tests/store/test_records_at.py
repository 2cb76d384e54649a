"""Records looked up in windows: the same answers as one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmqctl.formats.local import message
from rmqctl.store import Store
from rmqctl.store.log import commit_log
from rmqctl.store.log.commit_log import records_at
from tests.support import damage
from tests.support import tiny as tiny_stores


def look(root: Path, offsets: list[int], sizes: list[int]) -> dict[int, int | None]:
    """Offset -> size of the record found there, None where none is; each row exactly once."""
    numbers: dict[int, int | None] = {}
    with Store.open(root) as store:
        for window in records_at(store.log, np.array(offsets, np.int64), np.array(sizes, np.int64)):
            there = [int(size)
                     for size in window.batch.column("total_size")] if window.batch else []
            for row, ok in zip(window.rows.tolist(), window.is_proved.tolist(), strict=True):
                assert offsets[row] not in numbers
                numbers[offsets[row]] = there.pop(0) if ok else None
            assert not there
    assert list(numbers) == offsets
    return numbers


@pytest.mark.parametrize(("near", "window"), [(64 << 10, 4 << 20), (0, 4 << 20), (0, 300),
                                              (1 << 20, 500)])
def test_every_record_and_every_other_place(near: int, window: int, monkeypatch,
                                            tiny_base: tiny_stores.Tiny) -> None:
    monkeypatch.setattr(commit_log, "_NEAR", near)
    monkeypatch.setattr(commit_log, "_WINDOW", window)
    sizes = {message.start: len(message.raw) for message in tiny_base.messages}
    everywhere = list(range(0, 2 * 1024 + 50, 3)) + list(sizes)
    offsets = sorted(set(everywhere))
    records_at = look(tiny_base.root, offsets, [window] * len(offsets))
    assert records_at == {at: sizes.get(at) for at in offsets}


def test_a_size_that_is_too_small_finds_nothing(tiny_base: tiny_stores.Tiny,
                                                monkeypatch) -> None:
    monkeypatch.setattr(commit_log, "_NEAR", 0)
    first = tiny_base.messages[0]
    assert look(tiny_base.root, [0], [len(first.raw)]) == {0: len(first.raw)}
    assert look(tiny_base.root, [0], [len(first.raw) - 1]) == {0: None}


def test_a_record_inside_another_one_is_none(tmp_path: Path) -> None:
    """Its place is right and its lengths add up, but its bytes are another one's body."""
    inner = replace(tiny_stores.build(tmp_path / "one").messages[0].record, physical_offset=88)
    body = message.build(inner)
    store = tiny_stores.build(tmp_path / "two", [tiny_stores.Spec("orders", 0, body)])
    outer = store.messages[0]
    assert outer.raw[88:88 + len(body)] == body
    assert look(store.root, [0, 88], [1024, 1024]) == {0: len(outer.raw), 88: None}
    assert look(store.root, [88], [1024]) == {88: len(body)}, "alone it cannot be told"


def test_holes_and_files_that_are_gone(tiny: tiny_stores.Tiny) -> None:
    second = next(message for message in tiny.messages if message.start >= 1024)
    damage.remove(tiny.root, f"commitlog/{0:020d}")
    records_at = look(tiny.root, [0, 5000, second.start][::2], [500] * 2)
    assert records_at == {0: None, second.start: len(second.raw)}
    damage.fifo(tiny.root, f"commitlog/{1024:020d}")
    assert look(tiny.root, [0, second.start], [500] * 2) == {0: None, second.start: None}
    assert look(tiny.root, [], []) == {}
