"""What is to be known of a store before one relies on what is read of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.files.lock_probe import LockState
    from rmqctl.output import Output
    from rmqctl.store import Store
    from rmqctl.store.log.bounds import View


def warn_of_log(out: Output, store: Store) -> None:
    """Names what of the commitlog could not be taken for a file of it."""
    for trouble in store.log_troubles:
        out.warn(f"{trouble.path}: {trouble.reason}")
    tell_left_over(out, store)


def tell_left_over(out: Output, store: Store) -> None:
    """Says what lies behind the end of a DLedger log and is no part of it."""
    left = store.left_over
    if left is not None:
        out.note(left.said)


def warn_if_held(out: Output, lock: LockState, held: str) -> None:
    """Says that a process holds ``held``, and may change it meanwhile."""
    if lock.held:
        said = {"held": held, "kind": lock.kind}
        out.warn(Phrase("process {pid} holds {held} ({kind}): this is a moving picture",
                        pid=lock.pid, **said) if lock.pid else
                 Phrase("another process holds {held} ({kind}): this is a moving picture", **said))


def warn_of_cut(out: Output, view: View) -> bool:
    """Says what the broker's view leaves out; whether it does: damage hides what lies beyond."""
    from rmqctl.broker.view import cut_by_broker

    cut = cut_by_broker(view)
    if cut is not None:
        out.warn(f"a broker would end this log at {cut[0]}, at the first record it cannot read; "
                 f"records up to {cut[1]} are left out (--view disk shows what is there, "
                 "`rmqctl verify` what is wrong)")
    return cut is not None
