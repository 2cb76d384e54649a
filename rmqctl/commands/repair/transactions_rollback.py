"""``rmqctl transactions rollback``: roll back pending transactions."""

from __future__ import annotations

from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.ending import All, Group, Id, OlderThan, Which, run
from rmqctl.commands.shared.options import Out, StoreIndex


def command(
    *,
    ids: Id = None,
    everything: All = False,
    older_than: OlderThan = None,
    group: Group = None,
    apply: ApplyOptions,
    store: StoreIndex,
    out: Out,
) -> None:
    """Roll back pending transactions, as their producer would.

    Shows the plan; --apply carries it out. Puts an op message that marks the half messages as
    finished; nothing is delivered. --all and --older-than select transactions that a broker still
    checks; --id can also select others. The store must be closed cleanly. `rmqctl undo`
    reverts it until a broker runs.

        rmqctl transactions rollback STORE --older-than 3d
        rmqctl transactions rollback STORE --id 7F0000010A2B18B4AAC2000000010000 --apply
    """
    run(out, store, "rollback", Which(ids, everything, older_than, group), apply)
