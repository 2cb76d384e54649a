"""A cached property without a lock, as Python has it from 3.12 on.

Before, one lock per property serves all instances: two threads with a store each wait for each
other for ever, where one computes ``log`` for its snapshot, the other the snapshot for its log.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # noqa: N801 - as the one it replaces
    """One thread at a time may use an instance; several threads may have one each."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        vars(self)["lock"] = nullcontext()
