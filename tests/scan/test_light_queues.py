"""Under which queue ids the rows of light queues lie."""

from __future__ import annotations

import numpy as np
import pytest

from rmqctl.scan.frames import Array
from rmqctl.scan.queue_reach import LightQueues

NAMES = [b"%LMQ%a", b"P", b"%LMQ%b"]
OWN = frozenset({("%LMQ%a", 2)})


def ids(light: LightQueues, rows: list[tuple[int, int]], there: set[tuple[str, int, int, int]] |
        None = None) -> list[int]:
    """For (number of the name, own queue id); the row at offset i leads to place 100 + i."""
    name, own = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    offset = np.arange(len(rows))

    def leads(key: tuple[str, int], at: Array, place: Array) -> Array:
        return np.array([(*key, o, p) in (there or ()) for o, p in zip(
            at.tolist(), place.tolist(), strict=True)], bool)

    ids = light.ids(NAMES, name, own, offset, offset + 100, None if there is None else leads)
    return [int(number) for number in ids]


ROWS = [(0, 2), (1, 2), (2, 2), (0, 1), (0, 0), (0, -7)]


@pytest.mark.parametrize(("light", "expected"), [
    (LightQueues(), [0, 2, 0, 0, 0, 0]),
    (LightQueues(OWN), [2, 2, 0, 0, 0, 0]),
    (LightQueues(OWN, own_ids=True), [2, 2, 2, 1, 0, -7]),
])
def test_by_files(light: LightQueues, expected: list[int]) -> None:
    assert ids(light, ROWS) == expected


def test_a_row_that_is_there_decides() -> None:
    light = LightQueues(OWN, own_ids=True)
    main = {("%LMQ%a", 0, 0, 100), ("%LMQ%a", 0, 3, 103)}
    assert ids(light, ROWS, main) == [0, 2, 2, 0, 0, -7]
    assert ids(light, ROWS, main | {("%LMQ%a", 2, 0, 100)}) == [2, 2, 2, 0, 0, -7]
    assert ids(LightQueues(), ROWS, {("%LMQ%a", 2, 0, 100)}) == [0, 2, 0, 0, 0, 0]


def test_no_rows() -> None:
    none: Array = np.zeros(0, np.int64)
    assert len(LightQueues(OWN).ids([], none, none)) == 0
