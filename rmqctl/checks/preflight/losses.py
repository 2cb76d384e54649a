"""The account of a store's losses (`rmqctl.checks.losses`), from which all commands take their
figures.
"""

from __future__ import annotations

from collections.abc import Callable

from rmqctl.checks.losses import Losses, PlannedLosses
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.store.store import Store


def losses(store: Store, plan: PlannedLosses | None = None,
           progress: Callable[[int], None] | None = None) -> Losses:
    """Return the numbers of messages of a store that are lost, would be lost by the next startup,
    are undecided, or were replaced. ``plan``: a repair whose result is included. Reads the whole
    log and passes the number of bytes read to ``progress``.
    Raises: StoreIOError.
    """
    account = preflight(store, progress=progress).account
    return account if plan is None else account.after(plan)
