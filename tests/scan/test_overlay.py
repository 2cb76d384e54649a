"""Reads of a log through a window, and the distinct values of an array."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.scan.frames import distinct
from rmqctl.scan.overlay import Nearby
from rmqctl.scan.source import BytesSource

_DATA = random.Random(7).randbytes(1 << 20)


class _Counted(BytesSource):
    """A source that counts the bytes it reads."""

    count = 0

    def read(self, position: int, length: int) -> bytes:
        data = super().read(position, length)
        self.count += len(data)
        return data


@given(st.lists(st.tuples(st.integers(0, len(_DATA) + 10), st.integers(0, 6000)), max_size=40))
def test_a_window_gives_the_bytes_of_its_source(reads: Sequence[tuple[int, int]]) -> None:
    window, source = Nearby(BytesSource(_DATA)), BytesSource(_DATA)
    for position, length in reads:
        assert window.read(position, length) == source.read(position, length)


def test_close_reads_share_a_window() -> None:
    source = _Counted(_DATA)
    window = Nearby(source)
    for position in range(0, len(_DATA) - 300, 100):
        window.read(position, 300)
    assert source.count < 1.2 * len(_DATA)


def test_the_bytes_between_distant_reads_are_not_read() -> None:
    source = _Counted(_DATA)
    window = Nearby(source)
    for position in range(0, len(_DATA), 64 << 10):
        window.read(position, 300)
    assert source.count < len(_DATA) // 8


@given(st.lists(st.integers(-5, 5)))
def test_distinct_values_are_those_of_numpy(values: Sequence[int]) -> None:
    array = np.array(values, np.int64)
    assert distinct(array).tolist() == np.unique(array).tolist()
