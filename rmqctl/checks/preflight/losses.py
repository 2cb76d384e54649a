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
    """Return the numbers of lost, undecided and replaced messages, and of messages that the next
    startup would lose. Reads the whole log.

    ``plan``: a repair whose result is included.
    ``progress``: receives the number of bytes read.
    Raises: StoreIOError.
    """
    account = preflight(store, progress=progress).account
    return account if plan is None else account.after(plan)
