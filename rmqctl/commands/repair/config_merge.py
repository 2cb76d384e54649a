"""``rmqctl config merge``: add topics, groups and similar entries that are missing from a store."""

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
    source: Annotated[str, typer.Option(
        "--from", metavar="SOURCE", show_default=False,
        help="A store, a folder with configuration files, one of these files, or mqadmin "
             "exportMetadata output.")],
    replace: Annotated[bool, typer.Option(
        "--replace", help="Use SOURCE's entry where STORE has a different one.")] = False,
    apply: ApplyOptions,
    store: StoreQueues,
    out: ListedOut,
) -> None:
    """Copy topics and groups from another configuration if they are missing from STORE.

    Shows the plan; --apply carries it out. Copies missing topics, subscription groups, topics
    forbidden to groups, and delivery modes (pull or POP). Entries that differ are listed and kept,
    unless --replace is given; nothing is removed. Built-in entries, offsets and SQL92 filters
    (consumers register them again) are not copied. `rmqctl undo` restores the previous file.

        rmqctl config merge STORE --from MASTER
        rmqctl config merge STORE --from metadata.json --apply
    """
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.config.entries import MERGE, plan_merge

    def propose(scratch: Scratch) -> Proposal:
        with store.open() as opened:
            merge = plan_merge(opened, source, now_ms, scratch, replace=replace)
        return plan_page.Proposal(merge.plan, {
            "source": source, "differ": [difference.as_dict() for difference in merge.differ]})

    applying.run(out, store.root, MERGE, propose, apply, writes=())
