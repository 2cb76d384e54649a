"""``rmqctl offsets import``: import offsets from a file or another store, offline."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import ClientBroker, ListedOut, StoreQueues, Topic, View, Zone
from rmqctl.errors import RefusedError, UsageError
from rmqctl.parse_values import now_ms, show_times_in

if TYPE_CHECKING:
    from rmqctl.commands.shared.plan_page import Proposal
    from rmqctl.repair.offsets.taken import Rule
    from rmqctl.repair.scratch import Scratch


def command(
    *,
    source: Annotated[str, typer.Argument(
        metavar="SOURCE", show_default=False,
        help="A consumerOffset.json or its backup, the output of `offsets export`, a store (a "
             "slave or an older copy), or the offsets.json of a broadcasting consumer.")],
    group: Annotated[str | None, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        help="Only this consumer group.")] = None,
    topic: Topic = None,
    broker: ClientBroker = None,
    larger: Annotated[bool, typer.Option(
        "--max", help="If both STORE and SOURCE have an offset, use the larger: nothing is "
                      "delivered again.")] = False,
    smaller: Annotated[bool, typer.Option(
        "--min", help="If both STORE and SOURCE have an offset, use the smaller: nothing is "
                      "skipped.")] = False,
    replace: Annotated[bool, typer.Option(
        "--replace", help="If both STORE and SOURCE have an offset, use SOURCE's.")] = False,
    view: View = "auto",
    tz: Zone = UTC,
    apply: ApplyOptions,
    store: StoreQueues,
    out: ListedOut,
) -> None:
    """Import consumer offsets from a file or another store.

    Shows the plan; --apply carries it out. Without --max, --min or --replace, only offsets that are
    missing from STORE are added. Offsets that are missing from SOURCE stay. For a client's
    offsets.json the group is --group, else taken from its folder (CLIENT/GROUP). `rmqctl undo`
    restores the previous file.

        rmqctl offsets import STORE /backup/consumerOffset.json
        rmqctl offsets import STORE SLAVE --max --apply
    """
    from rmqctl.broker.view import after_start
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.offsets.taken import IMPORT, NewOffsets, plan_import
    from rmqctl.store.config.committed import committed, narrowed

    show_times_in(tz)
    if larger + smaller + replace > 1:
        raise UsageError("--max, --min and --replace are mutually exclusive")
    rule: Rule = "max" if larger else "min" if smaller else "replace" if replace else "missing"
    offsets = narrowed(committed(source, group, broker), group, topic)
    if not offsets:
        raise RefusedError(f"{source}: contains no matching offsets")

    def propose(scratch: Scratch) -> Proposal:
        with store.open() as opened:
            move = plan_import(opened, NewOffsets(offsets, rule, source),
                               after_start(opened, view), now_ms, scratch)
        return plan_page.Proposal(move.plan, {
            "source": source, "rule": rule,
            "queues": [moved.as_dict() for moved in move.queues]})

    applying.run(out, store.root, IMPORT, propose, apply, writes=())
