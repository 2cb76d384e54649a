"""``rmqctl transactions commit``: commit pending transactions."""

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
    """Commit pending transactions, as their producer would.

    Shows the plan; --apply carries it out. Puts each message into its topic, and an op message
    that marks its half messages as finished. --all and --older-than select transactions that a
    broker still checks; --id can also select discarded ones. Ask the producer's owner first: only
    they know whether the transaction succeeded. The store must be closed cleanly. `rmqctl
    undo` reverts it until a broker runs.

        rmqctl transactions commit STORE --id 7F0000010A2B18B4AAC2000000010000
        rmqctl transactions commit STORE --older-than 6h --group orders-producer --apply
    """
    run(out, store, "commit", Which(ids, everything, older_than, group), apply)
