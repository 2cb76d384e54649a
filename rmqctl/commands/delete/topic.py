"""``rmqctl delete topic``: a topic with everything of it."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqctl.commands.app.completing import complete_topics
from rmqctl.commands.delete.erasing import EraseOptions, run
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import Out, StoreIndex


def command(
    *,
    topic: Annotated[str, typer.Argument(
        metavar="TOPIC", help="The topic.", autocompletion=complete_topics, show_default=False)],
    options: EraseOptions,
    apply: ApplyOptions,
    store: StoreIndex,
    out: Out,
) -> None:
    """Delete a topic: shows the plan, and with --apply carries it out.

    Its messages are erased in the log, with their copies in other topics (delayed, half, retry,
    dead letter); its consume queues, its configuration and all offsets in it go. `rmqctl undo`
    restores them until --purge. Replicas, DLedger members and backups are not changed.

        rmqctl delete topic STORE orders --apply
    """
    from rmqctl.repair.erase.erase import Wanted

    run(out, store, "delete-topic", Wanted(
        topics=(topic,), same_body=options.same_body, purge=options.purge), apply, options)
