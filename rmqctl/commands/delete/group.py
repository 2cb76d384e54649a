"""``rmqctl delete group``: delete a consumer group with everything that belongs to it."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.delete.erasing import EraseOptions, run
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import Out, StoreIndex


def command(
    *,
    group: Annotated[str, typer.Argument(
        metavar="GROUP", help="Consumer group.", autocompletion=complete_groups,
        show_default=False)],
    options: EraseOptions,
    apply: ApplyOptions,
    store: StoreIndex,
    out: Out,
) -> None:
    """Delete a consumer group, its offsets, retry messages and dead letters.

    Shows the plan; --apply carries it out. Deletes the configuration, the offsets, and the retry
    and dead letter topics with their messages. `rmqctl undo` restores them until a run with
    --purge. Replicas, DLedger members and backups are not changed.

        rmqctl delete group STORE billing --apply
    """
    from rmqctl.repair.erase.erase import EraseSelection

    run(out, store, "delete-group", EraseSelection(groups=(group,)), apply, options)
