"""Magics found by column: what a pattern finds, whatever lies around and wherever it begins."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from rmqctl.formats.local.message import (
    BLANK_PATTERN,
    MAGIC_BLANK,
    MAGIC_PATTERN,
    MAGIC_V1,
    MAGIC_V2,
)
from rmqctl.scan.resync import find_magics, next_provable, provable
from rmqctl.scan.source import BytesSource
from tests.scan.test_entries import HEAD
from tests.scan.test_walk import message

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


class Counting(BytesSource):
    """Counts the reads."""

    reads = 0

    def read(self, position: int, length: int) -> bytes:
        self.reads += 1
        return super().read(position, length)


def heads(magic: int, size: int, step: int) -> bytes:
    return struct.pack(">iI", size, magic).ljust(step, b"\0") * ((1 << 20) // step)


@pytest.mark.parametrize("data", [
    heads(MAGIC_V1, 100, 8), heads(MAGIC_V2, 4 << 10, 36), heads(MAGIC_BLANK, 8, 8),
    MAGIC_V1.to_bytes(4) * (1 << 18)], ids=["v1", "v2", "blank", "packed"])
@pytest.mark.parametrize("head", [0, HEAD])
def test_magics_all_over_are_told_by_column(data: bytes, head: int) -> None:
    """A stranger's bytes may be magics all over: none of them costs a read of its own."""
    source = Counting(data + b"end", 1 << 40, head=head)
    assert next_provable(source, 1, len(data)) is None
    assert source.reads < 500


@pytest.mark.parametrize("base", [0, 1 << 40, (1 << 63) - 5000])
def test_a_search_finds_what_is_provable(base: int, seed: int) -> None:
    """The same as asking for each position, with whole records and heads of them anywhere."""
    dice = random.Random(seed)
    for _ in range(8):
        parts: list[bytes] = []
        for _ in range(dice.randrange(8)):
            at = base + sum(map(len, parts))
            whole = message(at, dice.randbytes(dice.randrange(40)))
            parts.append(dice.choice([
                whole, whole, whole[:dice.randrange(60)], dice.randbytes(dice.randrange(20)),
                whole[:28] + bytes(8) + whole[36:], heads(MAGIC_BLANK, 8, 8)[:40]]))
        data = b"".join(parts)
        source = BytesSource(data + struct.pack(">iI", 90, MAGIC_BLANK) + bytes(82), base)
        provables = [place for place in range(source.size) if provable(source, place)]
        for start in range(source.size):
            assert next_provable(source, start, source.size) == next(
                (place for place in provables if place >= start), None)
