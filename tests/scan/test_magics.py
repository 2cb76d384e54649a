"""Magics found by column: what a pattern finds, whatever lies around and wherever it begins."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rmqctl.formats.local.message import (
    BLANK_PATTERN,
    MAGIC_BLANK,
    MAGIC_PATTERN,
    MAGIC_V1,
    MAGIC_V2,
)
from rmqctl.scan.resync import find_magics

PIECES = (b"", b"\0", b"\xda", b"\xda\xa3", b"\xda\xa3\x20", *(
    magic.to_bytes(4) for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK, MAGIC_V1 + 1)))


def expected(data: bytes, low: int, high: int) -> list[int]:
    return [hit.start() for hit in MAGIC_PATTERN.finditer(data) if low <= hit.start() < high]


@pytest.mark.parametrize("room", [0, 1, 7, 9000])
def test_as_a_pattern_finds_them(room: int, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(300):
        data = b"".join(dice.choice(PIECES) + dice.randbytes(dice.randrange(room + 1))
                        for _ in range(dice.randrange(12)))
        low = dice.randrange(len(data) + 1)
        high = dice.randrange(len(data) + 6)
        columns = np.frombuffer(data, np.uint8)
        assert find_magics(columns, low, high).tolist() == expected(data, low, high)
        assert find_magics(columns, 0, len(data), (MAGIC_BLANK,)).tolist() == [
            hit.start() for hit in BLANK_PATTERN.finditer(data)]


def test_one_behind_the_other() -> None:
    data = MAGIC_V1.to_bytes(4) * 5000
    for low in range(4):
        assert find_magics(np.frombuffer(b"\1" * low + data, np.uint8), low, len(data)).tolist() \
            == list(range(low, len(data), 4))
