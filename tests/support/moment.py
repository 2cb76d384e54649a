"""Predictions are made for the hour after a store was last used, whenever tests run.

What a start skips, deletes or warns about depends on the clock. Tests of that pass a time of their
own.
"""

from __future__ import annotations

from rmqctl.checks.preflight import around
from rmqctl.store.config.config import TIMERCHECK, load_one
from rmqctl.store.store import Store

HOUR = 3_600_000


def after_the_last_use(store: Store) -> int:
    """An hour after what checkpoint and timer noted last (ms)."""
    check = load_one(store, TIMERCHECK).main.value
    noted = 0 if store.checkpoint is None else store.checkpoint.physic_msg_timestamp
    return max(noted, 0, getattr(check, "last_read_time_ms", 0)) + HOUR


def install() -> None:
    around.clock = after_the_last_use
