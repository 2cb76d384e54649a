"""A set of queue offsets as runs, against a set of numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rmqctl.checks.offset_runs import OffsetRuns


def random_runs(random: random.Random) -> tuple[OffsetRuns, set[int]]:
    runs, numbers = OffsetRuns(), set()
    for _ in range(random.randrange(8)):
        offsets = [random.randrange(-3, 60) for _ in range(random.randrange(6))]
        counts = [random.randrange(-1, 5) for _ in offsets]
        runs.add(np.array(offsets, np.int64), np.array(counts, np.int64))
        numbers |= {number for offset, count in zip(offsets, counts, strict=True)
                    if offset >= 0 for number in range(offset, offset + count)}
    return runs, numbers


@pytest.mark.parametrize("turn", range(60))
def test_as_a_set_of_numbers(seed: int, turn: int) -> None:
    chance = random.Random(f"{seed} {turn}")
    (store, numbers), (other, others) = random_runs(chance), random_runs(chance)
    for runs, wanted in ((store, numbers), (store.without(other), numbers - others),
                         (store.join(other), numbers | others)):
        assert [number for first, end in runs.runs().tolist() for number in range(first, end)
                ] == sorted(wanted)
        assert runs.has(np.arange(-5, 70)).tolist() == [at in wanted for at in range(-5, 70)]
        first, end = sorted(chance.sample(range(-5, 70), 2))
        assert runs.count(first, end) == len(wanted.intersection(range(first, end)))
        assert runs.count() == len(wanted)
        assert bool(runs) == bool(wanted)
    assert store.complete


def test_what_no_queue_can_have_is_left_out_and_too_many_runs_are_said() -> None:
    runs = OffsetRuns()
    runs.add(np.array([-1, (1 << 63) - 1, 1 << 62, 7], np.int64))
    runs.add_run(-10, 2)
    assert runs.runs().tolist() == [[0, 2], [7, 8]]
    assert runs.complete
    runs.add(np.arange(0, 1 << 18, 2))
    assert runs.count() > 1 << 15
    assert not runs.complete
