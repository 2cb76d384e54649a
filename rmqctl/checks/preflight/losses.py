"""The account of the losses of a store, the single source for all commands
(`rmqctl.checks.losses`).
"""

from __future__ import annotations

from collections.abc import Callable

from rmqctl.checks.losses import Losses, PlannedLosses
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.store.store import Store


def losses(store: Store, plan: PlannedLosses | None = None,
           progress: Callable[[int], None] | None = None) -> Losses:
    """Return the messages of a store that are lost, would be lost by the next startup, are
    undecided, or were replaced; with a ``plan``, after it is carried out. Reads the whole log and
    passes its bytes to ``progress``.
    Raises: StoreIOError.
    """
    account = preflight(store, progress=progress).account
    return account if plan is None else account.after(plan)
