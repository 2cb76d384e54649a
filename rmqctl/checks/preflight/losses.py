"""The account of a store: the one way to ask what is lost of it (`rmqctl.checks.losses`)."""

from __future__ import annotations

from rmqctl.checks.losses import Losses, PlannedLosses
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.store.store import Store


def losses(store: Store, plan: PlannedLosses | None = None) -> Losses:
    """What is lost of a store, would be by the next startup, is undecided, or was replaced; with a
    ``plan``, once that is carried out. Reads all of the log. StoreIOError.
    """
    found = preflight(store).account
    return found if plan is None else found.after(plan)
