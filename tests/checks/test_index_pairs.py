"""Keys of messages and entries of the index: what is a pair, whatever else a block has."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rmqctl.checks.verify.index.keys import paired
from rmqctl.checks.verify.verify import Verification
from rmqctl.store import Store
from tests.support import damage
from tests.support import tiny as tiny_stores


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(rows, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@pytest.mark.parametrize("seed", range(6))
def test_equal_ones_are_paired_as_often_as_they_are_there(seed: int) -> None:
    chance = random.Random(seed)

    def rows(most: int) -> list[tuple[int, int]]:
        return [(chance.randrange(seed + 1), chance.randrange(3) - 1)
                for _ in range(chance.randrange(most))]

    for _ in range(30):
        wanted, actual = rows(12), rows(12)
        partner, left = paired(columns(wanted), columns(actual))
        open_keys = Counter(wanted)
        for row, number in zip(actual, partner.tolist(), strict=True):
            assert (number >= 0) == (open_keys[row] > 0)
            if number >= 0:
                assert wanted[number] == row
                open_keys[row] -= 1
        assert [wanted[number] for number in left.tolist()] == list(open_keys.elements())


def test_times_of_entries_count_beside_damage(tmp_path: Path) -> None:
    # A key that is missing in the same block hides no entry whose time is wrong.
    store = tiny_stores.build(tmp_path / "store", tiny_stores.DEFAULT * 4, index_max=128)
    file = store.files("index")[0]
    with Store.open(store.root) as opened:
        index = opened.index.open(opened.index.listing.files[0])
        slots, entry = index.shape.slots, index.entry(5)
        index.close()
    assert entry is not None

    def category_counts() -> Counter[str]:
        with Store.open(store.root) as opened:
            return Counter(finding.category for finding in Verification(opened).findings())

    damage.index_set(store.root, file, slots, 5, seconds=entry.time_diff + 1000)
    alone = category_counts()
    assert alone["index-time"] == 1
    damage.index_wrong_hash(store.root, file, slots, 9)
    both = category_counts()
    assert both["index-time"] == 1
    assert both["index-entry"] + both["index-key-missing"] > 0
