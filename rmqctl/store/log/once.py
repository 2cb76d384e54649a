"""A cached property without a lock, like `functools.cached_property` since Python 3.12.

In earlier versions, all instances share one lock per property. Two threads with one store each
could deadlock: one computes ``log`` for its snapshot while the other computes ``snapshot`` for its
log.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # noqa: N801 - as the one it replaces
    """A cached property for instances that are used by only one thread at a time; different threads
    may use different instances.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        vars(self)["lock"] = nullcontext()
