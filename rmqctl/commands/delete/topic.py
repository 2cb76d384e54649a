"""``rmqctl delete topic``: delete a topic and everything that belongs to it."""

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
        metavar="TOPIC", help="Topic.", autocompletion=complete_topics, show_default=False)],
    options: EraseOptions,
    apply: ApplyOptions,
    store: StoreIndex,
    out: Out,
) -> None:
    """Delete a topic: messages, queues, offsets and configuration.

    Shows the plan; --apply carries it out. Erases the messages in the log, including copies in
    other topics (delayed, half, retry, dead letter), and removes the consume queues, the
    configuration and all offsets of the topic. `rmqctl undo` restores them until a run with
    --purge. Replicas, DLedger members and backups are not changed.

        rmqctl delete topic STORE orders --apply
    """
    from rmqctl.repair.erase.erase import EraseSelection

    run(out, store, "delete-topic", EraseSelection(topics=(topic,)), apply, options)
