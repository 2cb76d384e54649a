"""The order of a ``ConcurrentHashMap``, against what OpenJDK 17 gave for the same keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.formats.config import java_concurrent_map as maps

KEYS = [f"b/T{i * 7919 % 1000}/{i % 3}" for i in range(30)]
# By number of keys: filled one by one; made for 1024 keys and filled; a copy of that.
JAVA = {
    12: ([6, 2, 7, 11, 9, 4, 0, 1, 5, 8, 3, 10],
         [7, 2, 10, 5, 11, 9, 6, 4, 1, 8, 0, 3],
         [2, 11, 9, 4, 8, 3, 6, 7, 0, 1, 5, 10]),
    13: ([6, 12, 2, 7, 11, 9, 4, 0, 1, 5, 8, 3, 10],
         [12, 7, 2, 10, 5, 11, 9, 6, 4, 1, 8, 0, 3],
         [12, 2, 11, 9, 4, 8, 3, 6, 7, 0, 1, 5, 10]),
    24: ([12, 2, 21, 17, 11, 9, 19, 4, 22, 8, 3, 13, 18, 6, 23, 14, 7, 0, 1, 5, 16, 15, 10, 20],
         [12, 7, 13, 2, 18, 23, 10, 21, 5, 17, 11, 9, 22, 6, 15, 4, 20, 1, 19, 8, 16, 0, 14, 3],
         [12, 21, 6, 14, 7, 0, 1, 15, 20, 2, 17, 11, 9, 19, 4, 22, 8, 3, 13, 18, 23, 5, 16, 10]),
    30: ([12, 2, 21, 17, 11, 29, 9, 19, 27, 4, 26, 22, 8, 3, 13, 18, 28, 6, 24, 23, 14, 7, 0, 1, 5,
          16, 15, 25, 10, 20],
         [12, 7, 13, 2, 29, 18, 23, 10, 21, 5, 17, 11, 9, 22, 28, 6, 26, 15, 4, 20, 1, 19, 25, 27,
          8, 16, 0, 24, 14, 3],
         [12, 21, 26, 6, 24, 14, 7, 0, 1, 15, 20, 2, 17, 29, 11, 9, 19, 27, 4, 22, 8, 3, 13, 18,
          28, 23, 5, 16, 25, 10]),
}


@pytest.mark.parametrize("count", JAVA)
def test_order(count):
    filled, large, copy = JAVA[count]
    table = {key: number for number, key in enumerate(KEYS[:count])}
    assert [number for _, number in maps.ordered(table)] == filled
    source = maps.ordered(table, maps.sized(1024))
    assert [number for _, number in source] == large
    assert [number for _, number in maps.ordered(dict(source), maps.copied(count))] == copy


def test_capacities():
    assert maps.sized(1024) == 2048
    assert [maps.copied(count) for count in (0, 1, 5, 6, 10, 11, 13, 21, 22, 40, 100)] == [
        16, 16, 16, 32, 32, 64, 64, 64, 128, 128, 512]


def test_base_offsets_as_the_engine_wrote_them():
    """tiered.md §20.5"""
    assert [key for key, _ in maps.ordered(dict.fromkeys((0, 381, 762)))] == [0, 762, 381]


@given(st.lists(st.text() | st.from_regex(r"[AaBb]{8}"), unique=True, max_size=80),
       st.sampled_from([16, 64, 2048]))
def test_every_key_once(keys, capacity):
    table = {key: number for number, key in enumerate(keys)}
    assert dict(ordered := maps.ordered(table, capacity)) == table
    assert len(ordered) == len(table)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), unique=True, max_size=80))
def test_numbers(keys):
    assert sorted(key for key, _ in maps.ordered(dict.fromkeys(keys))) == sorted(keys)
