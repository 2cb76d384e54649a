"""``rmqctl offsets copy``: copy the offsets of a consumer group to another, offline."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import ListedOut, StoreQueues, Topic, View, Zone
from rmqctl.parse_values import now_ms, show_times_in

if TYPE_CHECKING:
    from rmqctl.commands.shared.plan_page import Proposal
    from rmqctl.repair.scratch import Scratch


def command(
    *,
    from_group: Annotated[str, typer.Option(
        "--from-group", metavar="GROUP", autocompletion=complete_groups,
        show_default=False, help="The group to copy offsets from.")],
    to_group: Annotated[str, typer.Option(
        "--to-group", metavar="GROUP", autocompletion=complete_groups,
        show_default=False, help="The group to copy offsets to.")],
    topic: Topic = None,
    view: View = "auto",
    tz: Zone = UTC,
    apply: ApplyOptions,
    store: StoreQueues,
    out: ListedOut,
) -> None:
    """Copy the offsets of one group to another.

    Shows the plan; --apply carries it out. Without --topic, copies all topics in which the source
    group committed offsets, except its retry topics. Queues in which only the target group has an
    offset keep it. `rmqctl undo` restores the previous file.

        rmqctl offsets copy STORE --from-group billing --to-group billing-v2
        rmqctl offsets copy STORE --from-group billing --to-group audit --topic orders --apply
    """
    from rmqctl.broker.view import after_start
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.offsets.taken import COPY, plan_copy

    show_times_in(tz)

    def propose(scratch: Scratch) -> Proposal:
        with store.open() as opened:
            move = plan_copy(opened, from_group, to_group, topic, after_start(opened, view),
                             now_ms, scratch)
        return plan_page.Proposal(move.plan, {
            "from_group": from_group, "to_group": to_group,
            "queues": [moved.as_dict() for moved in move.queues]})

    applying.run(out, store.root, COPY, propose, apply, writes=())
