"""``rmqctl topic restore``: restore a topic that is missing from the configuration, offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import ListedOut, StoreQueues
from rmqctl.parse_values import now_ms

if TYPE_CHECKING:
    from rmqctl.commands.shared.plan_page import Proposal
    from rmqctl.repair.scratch import Scratch


def command(
    *,
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic.", show_default=False)],
    apply: ApplyOptions,
    store: StoreQueues,
    out: ListedOut,
) -> None:
    """Restore a topic that is missing from topics.json.

    Shows the plan; --apply carries it out. Takes the entry from topics.json.bak, else the queues,
    queue type and message type that the log and the consume queues prove; all other settings are
    listed and get a broker's defaults. `rmqctl undo` restores the previous file.

        rmqctl topic restore STORE orders
        rmqctl topic restore STORE orders --apply
    """
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.config.entries import RESTORE, plan_restore

    def propose(scratch: Scratch) -> Proposal:
        with store.open() as opened:
            return plan_page.Proposal(plan_restore(opened, name, now_ms, scratch), {
                "topic": name})

    applying.run(out, store.root, RESTORE, propose, apply, writes=())
