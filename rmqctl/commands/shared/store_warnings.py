"""Warnings about the state of a store, which affects every result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rmqctl import vfs
from rmqctl.output.units import counted
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.checks.preflight.missing import MissingMessages
    from rmqctl.files.lock_probe import LockState
    from rmqctl.output import Output
    from rmqctl.store import Store
    from rmqctl.store.log.bounds import View


def warn_of_log(out: Output, store: Store) -> None:
    """Warn about files in the commitlog folders that are not commitlog files; print a note about
    stale DLedger entries.
    """
    for trouble in store.log_troubles:
        out.warn(f"{trouble.path}: {trouble.reason}")
    tell_left_over(out, store)


def tell_left_over(out: Output, store: Store) -> None:
    """Print a note about stale entries after the end of a DLedger log."""
    left = store.left_over
    if left is not None:
        out.note(left.detail)


def warn_if_held(out: Output, lock: LockState, held: str) -> None:
    """Warn if a process holds the store's lock. ``held``: the store's name in the warning."""
    if lock.held:
        values = {"held": held, "kind": lock.kind}
        out.warn(Phrase("process {pid} holds {held} ({kind}): the store is being written to; "
                        "results may be inconsistent",
                        pid=lock.pid, **values) if lock.pid else
                 Phrase("another process holds {held} ({kind}): the store is being written to; "
                        "results may be inconsistent", **values))


def warn_of_cut(out: Output, view: View) -> bool:
    """Warn if ``view`` omits messages that a broker would truncate; return whether it does."""
    from rmqctl.broker.view import cut_by_broker

    cut = cut_by_broker(view)
    if cut is not None:
        out.warn(f"a broker would truncate this log at {cut[0]}, at the first record it cannot "
                 f"read; records up to {cut[1]} are not shown (--view disk shows them, `rmqctl "
                 "verify` the damage)")
    return cut is not None


def lost_texts(lost: MissingMessages) -> Iterator[str]:
    """Yield notes about lost messages: missing in the log, or dropped by repairs."""
    if count := lost.known_lost:
        yield (f"{counted(count, 'message')} {'is' if count == 1 else 'are'} already lost, "
               "according to consume queues, index or consumer offsets; run `rmqctl doctor` for "
               "details")
    if count := lost.in_repairs + lost.discarded:
        yield (f"{counted(count, 'message')} or undecided record"
               f"{' is' if count == 1 else 's are'} missing since earlier repairs; `rmqctl doctor` "
               "lists them")


def warn_of_lost(out: Output, stores: Sequence[str], folders: Sequence[str], *,
                 damaged: bool = False) -> None:
    """Warn about the lost messages of each store, because they are missing from every result.

    ``damaged``: whether the log is known to be damaged.
    """
    from rmqctl.store import Store

    for name in stores:
        with Store.open(vfs.abspath(name), folders) as store:
            warn_of_missing(out, store, name if len(stores) > 1 else "", damaged=damaged)


def warn_of_missing(out: Output, store: Store, name: str = "", *, damaged: bool = False) -> None:
    """Warn about the lost messages of a store, like `warn_of_lost`. ``name``: its name, if several
    stores are read.
    """
    from rmqctl.checks.preflight.missing import missing

    for text in lost_texts(missing(store, damaged=damaged)):
        out.warn(f"{name}: {text}" if name else text)
