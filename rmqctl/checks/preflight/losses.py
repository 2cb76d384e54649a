"""The account of a store: the one way to ask what is lost of it (`rmqctl.checks.losses`)."""

from __future__ import annotations

from collections.abc import Callable

from rmqctl.checks.losses import Losses, PlannedLosses
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.store.store import Store


def losses(store: Store, plan: PlannedLosses | None = None,
           progress: Callable[[int], None] | None = None) -> Losses:
    """Return what is lost of a store, would be lost by the next startup, is undecided, or was
    replaced; with a ``plan``, once that is carried out. Reads all of the log, whose bytes are
    passed to ``progress``, and may raise. StoreIOError.
    """
    account = preflight(store, progress=progress).account
    return account if plan is None else account.after(plan)
