"""A store as its broker would have it after a start: the ``broker`` view of what is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.broker.versions import BrokerVersion

SMALL_LOG = 64 << 20
"""Bytes of log that are walked without a thought to know where a broker ends it."""


def broker_view(store: Store, version: BrokerVersion | None = None) -> View:
    """Return what a broker of ``version`` (None: the store's own) would have of ``store``. Of a
    DLedger log that is what DLedger leaves when it starts, committed or not: only a group knows.
    """
    from rmqctl.broker.recovery import default_version, recover_log

    rules = version or default_version(store)
    if store.log.files and store.log.files[-1].head:
        return View(store, lambda: _ledger_end(store), rules.generation)
    return View(store, lambda: recover_log(store, rules).end, rules.generation)


def _ledger_end(store: Store) -> int:
    from rmqctl.broker.dledger import recovered

    return recovered(store, store.log).end


def view_of(store: Store, kind: str, version: BrokerVersion | None = None) -> View:
    """Return the view ``disk``, ``broker``, or ``auto``: the one for answers that a broker gives.

    ``auto`` is the broker's as long as the log is small; else finding the end of its recovery would
    cost a walk through gigabytes, and the disk's is taken.
    """
    if kind == "auto" and (not store.layout.reads("consumequeue") or store.layout.is_dledger):
        kind = "disk"  # a broker's recovery begins where its consume queues say
    if kind == "auto":
        size = sum(file.size for file in store.log.files)
        kind = "broker" if size <= SMALL_LOG else "disk"
    if kind == "broker":
        return broker_view(store, version)
    return View(store, generation=None if version is None else version.generation)


def after_start(store: Store, kind: str) -> View:
    """Return the view of a plan that a start of the broker follows: the broker's, unless the
    ``disk``'s is asked for, or no other view exists.
    """
    return view_of(store, "disk" if kind == "disk" or not store.layout.reads("consumequeue")
                   else "broker")


def cut_by_broker(view: View) -> tuple[int, int] | None:
    """Return (where a broker ends the log, where the last record on disk ends) if they differ."""
    if view.log_end is None:
        return None
    end = view.disk_end.offset
    return (view.log_end, end) if end > view.log_end else None
