"""How much room a patch of many pieces takes: as if each were looked at by itself."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmqctl.repair.executor import room
from rmqctl.scan.holes import PAGE, data_ranges


def by_itself(path: Path, step: Any) -> int:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return sum(2 * sum(len(data) for _, data in piece.parts) + sum(
            high - low for low, high in data_ranges(file.fileno(), piece.at, min(piece.end, size)))
            for piece in step.pieces)


@pytest.mark.parametrize("seed", range(40))
def test_pieces_over_data_and_holes(seed: int, tmp_path: Path) -> None:
    luck = random.Random(seed)
    path = tmp_path / "file"
    with path.open("wb") as file:
        for page in range(40):
            if luck.random() < 0.5:
                file.seek(page * PAGE)
                file.write(b"x" * PAGE)
        file.truncate(40 * PAGE)
    pieces, at = [], 0
    while at < 44 * PAGE:
        at += luck.choice((0, 10, 5000, 20000))
        end = at + luck.choice((1, 100, PAGE, 30000))
        pieces.append(SimpleNamespace(at=at, end=end, parts=[(0, b"abc")]))
        at = end
    step: Any = SimpleNamespace(pieces=pieces)
    assert room._of_patch(str(path), step) == by_itself(path, step)
