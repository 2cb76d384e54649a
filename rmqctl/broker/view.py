"""The ``broker`` view of a store: the content that a broker would see after startup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.broker.versions import BrokerVersion

SMALL_LOG = 64 << 20
"""Maximum size in bytes of a log for which ``auto`` selects the broker's view."""


def broker_view(store: Store, version: BrokerVersion | None = None) -> View:
    """Return the view of ``store`` that a broker of ``version`` (None: the store's own) would have.

    For a DLedger log, this is the view after DLedger's recovery. Some entries in it may not be
    committed: only the DLedger group knows which entries are committed.
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
    """Return the view ``disk`` or ``broker``.

    ``kind``: ``disk``, ``broker``, or ``auto`` for answers that imitate a broker. ``auto`` selects
    the broker's view for a small log. For a large log, ``auto`` selects the disk view: the broker's
    end of the log would need a scan of gigabytes.
    """
    if kind == "auto" and (not store.layout.reads("consumequeue") or store.layout.is_dledger):
        kind = "disk"  # a broker's recovery begins where its consume queues end
    if kind == "auto":
        size = sum(file.size for file in store.log.files)
        kind = "broker" if size <= SMALL_LOG else "disk"
    if kind == "broker":
        return broker_view(store, version)
    return View(store, generation=None if version is None else version.generation)


def after_start(store: Store, kind: str) -> View:
    """Return the view for a plan after which a broker starts. This is the broker's view, or the
    disk view if ``kind`` is ``disk`` or the consume queues cannot be read.
    """
    return view_of(store, "disk" if kind == "disk" or not store.layout.reads("consumequeue")
                   else "broker")


def cut_by_broker(view: View) -> tuple[int, int] | None:
    """Return (the end of the log as a broker sees it, the end of the last record on disk). Return
    None if a broker does not truncate records.
    """
    if view.log_end is None:
        return None
    end = view.disk_end.offset
    return (view.log_end, end) if end > view.log_end else None
