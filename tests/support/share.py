"""Which cases of a long list a run takes: `sample` and `every`.

``make test`` takes a share of each list, ``make test-exhaustive`` the whole list. The share follows
from the run's seed: `FIXED_SEED`, so that a commit gets the same verdict in every run, or
``RMQCTL_SEED=N`` (`make test SEED=N`).

    @pytest.mark.parametrize("store", sample(golden_stores(), 10, "walk", always=is_covering))

    for position in every(11, range(len(data)), "bits of the index"):
        ...

    @settings(max_examples=examples(300))

All are functions of the seed and the name alone, so the processes of a parallel run agree.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
FIXED_SEED = 0
"""The seed of every run that is not exhaustive and was not given another one."""


@dataclass(slots=True)
class Run:
    """What this run of the suite is: `tests.plugin_run` sets it before anything is collected."""

    seed: int = 0
    exhaustive: bool = False
    replays: bool = False
    """Whether the seed was given, not picked."""

    def number(self, name: str) -> int:
        """A number for whatever has this name: fixed for `make test`, else of the run's seed."""
        return zlib.crc32((f"{self.seed} {name}" if self.exhaustive or self.replays else name)
                          .encode())


RUN = Run()


def sample(items: Iterable[T], count: int, name: str, *,
              always: Container[T] | Callable[[T], bool] = ()) -> list[T]:
    """``count`` of the items in their order, all of them in an exhaustive run.

    Args:
        items: the whole list.
        count: how many of those that are not in ``always``.
        name: what the list is; lists of different names are not taken in step.
        always: the items, or a rule for the items, that every run takes.

    Consecutive seeds take consecutive shares: every item has its turn once in
    ``len(items) / count`` seeds.
    """
    whole = list(items)
    if RUN.exhaustive:
        return whole
    is_fixed = always if callable(always) else always.__contains__
    others = [number for number, item in enumerate(whole) if not is_fixed(item)]
    turns = _shuffled(others, name)
    start = RUN.seed * count % len(turns) if turns else 0
    left_out = set((turns[start:] + turns[:start])[count:])
    return [item for number, item in enumerate(whole) if number not in left_out]


def every(step: int, items: Sequence[T], name: str) -> Sequence[T]:
    """Each ``step``-th of the items, all in an exhaustive run; the seed says where to start."""
    if RUN.exhaustive:
        return items
    return items[(RUN.seed + zlib.crc32(name.encode())) % step::step]


def examples(count: int) -> int:
    """How many examples of a property hypothesis tries: all in an exhaustive run, else two fifths.

    Which ones follows from the run's seed.
    """
    return count if RUN.exhaustive else count * 2 // 5


def _shuffled(numbers: list[int], name: str) -> list[int]:
    """An order that belongs to the name, the same in every run."""
    return random.Random(zlib.crc32(name.encode())).sample(numbers, len(numbers))
