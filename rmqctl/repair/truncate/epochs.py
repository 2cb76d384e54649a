"""Truncate the epochs of controller mode together with the log (spec: dledger.md §8)."""

from __future__ import annotations

from rmqctl.checks.verify.common import plural
from rmqctl.formats.config import epoch
from rmqctl.repair.plan import Changes, Replace
from rmqctl.store.controller import read_epochs
from rmqctl.store.store import Store


def cut_epochs(store: Store, to: int) -> Changes:
    """Remove epochs that begin at or after physical offset ``to``, as a broker does.

    The backup is also truncated, because a broker may read it instead of the epoch file. A file
    without remaining epochs is moved aside, because a broker never writes an empty file.
    """
    cut = Changes()
    for copy in read_epochs(store).copies:
        if copy.fault is not None:
            cut.notes.append(f"{copy.name}: {copy.reason}; it is not changed, even if it has "
                             "epochs beyond the cut")
        kept = [entry for entry in copy.epochs if entry.start_offset < to]
        gone = len(copy.epochs) - len(kept)
        if not gone:
            continue
        why = f"{plural(gone, 'epoch begins', 'epochs begin')} at the cut or after it"
        if kept:
            separator = "\r\n" if b"\r\n" in store.read_small(copy.name, most=64) else "\n"
            cut.act(Replace(copy.name, epoch.build(kept, separator)), "truncate", len(copy.epochs),
                    len(kept), why, "entry")
        else:
            cut.move_aside(copy.name, len(copy.epochs), f"{why}; no epoch remains", "entry")
    return cut
