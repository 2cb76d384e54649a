"""Code that `transactions commit` and `transactions rollback` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.errors import UsageError
from rmqctl.output.units import count_text
from rmqctl.parse_values import now_ms, parse_duration
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.commands.shared.options import StoreOptions
    from rmqctl.commands.shared.plan_page import Proposal
    from rmqctl.output import Output
    from rmqctl.repair.scratch import Scratch
    from rmqctl.repair.transactions import End

_ENDED = ("topic", "queue_id", "transaction_id", "producer_group", "keys")
_LEFT = ("topic", "queue_id", "transaction_id", "reason")

Id = Annotated[list[str] | None, typer.Option(
    "--id", metavar="MSGID", show_default=False,
    help="Transaction id (repeatable): message id of the producer or of the half message.")]
All = Annotated[bool, typer.Option("--all", help="All transactions that a broker still checks.")]
OlderThan = Annotated[int | None, typer.Option(
    "--older-than", metavar="AGE", parser=parse_duration,
    help="Transactions that a broker still checks and that are older than this: 1h, 3d.")]
Group = Annotated[str | None, typer.Option(
    "--group", "-g", metavar="GROUP", help="Only transactions of this producer group.")]


class Which(NamedTuple):
    """The values of the options that select transactions."""

    ids: list[str] | None
    everything: bool
    older_than: int | None
    group: str | None


def run(out: Output, store: StoreOptions, end: End, which: Which, apply: ApplyOptions) -> None:
    """Show or apply the plan that commits or rolls back transactions. Raises: UsageError."""
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.transactions import TransactionFilter, plan_end

    if sum((bool(which.ids), which.everything, which.older_than is not None)) != 1:
        raise UsageError("pass one of --id, --all and --older-than")
    wanted = TransactionFilter(frozenset(which.ids or ()), which.older_than, which.group)

    def propose(scratch: Scratch) -> Proposal:
        with store.open() as opened:
            ending = plan_end(opened, end, wanted, now_ms, scratch)
        return plan_page.Proposal(
            ending.plan, {"end": end, "transactions": ending.ended, "left": ending.left},
            {"transactions": count_text(len(ending.ended)), "left": count_text(len(ending.left))},
            listed=((Phrase("Transactions"), ending.ended, _ENDED),
                    (Phrase("Not ended"), ending.left, _LEFT)))

    applying.run(out, store.root, f"transactions-{end}", propose, apply, folders=store.folders,
                 made_anew=True)
