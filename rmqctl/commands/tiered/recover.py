"""``rmqctl tiered recover``: repair a tier from its own files."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.applying import ApplyOptions, Complete
from rmqctl.commands.shared.options import ListedOut, Zone
from rmqctl.commands.shared.tiered_options import TierOptions
from rmqctl.errors import ExitCode
from rmqctl.parse_values import parse_size, show_times_in

if TYPE_CHECKING:
    from rmqctl.repair.scratch import Scratch


def command(
    *,
    only: Annotated[str | None, typer.Option(
        "--only", metavar="PARTS", help="Only metadata, queues or index (comma-separated). With "
                                        "index alone, an index without files is rebuilt, "
                                        "too.")] = None,
    drop_orphans: Annotated[bool, typer.Option(
        "--drop-orphans", help="Cut messages without an entry from the end of commit logs instead "
                               "of adding entries for them.")] = False,
    ambiguous: Annotated[Literal["leave-out", "keep"], typer.Option(
        "--ambiguous", help="Unconfirmed records after damage: keep them as messages, or leave-out "
                            "to discard them.")] = "leave-out",
    tier: TierOptions,
    consumequeue_max_size: Annotated[int | None, typer.Option(
        "--consumequeue-max-size", metavar="SIZE", parser=parse_size,
        help="tieredStoreConsumeQueueMaxSize of new files (default: from the tier's files or "
             "metadata, else 100 MiB).")] = None,
    complete: Complete = None,
    apply: ApplyOptions,
    tz: Zone = UTC,
    out: ListedOut,
) -> None:
    """Repair a tier from its own files.

    Shows the plan; --apply carries it out. Rebuilds lost or stale metadata from names and contents;
    topic ids come from messages that index items point to. Truncates consume queues after the last
    complete entry, and rebuilds wrong or missing entries from the messages. Adds missing index
    items. Intact files are not changed. `rmqctl undo DIR` restores what was replaced. The
    broker must be stopped.

        rmqctl tiered recover STORE/tieredstore
        rmqctl tiered recover STORE/tieredstore --apply
        rmqctl tiered recover DIR --metadata CONFIG/tieredStoreMetadata.json --only metadata
    """
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.ext.tiered.files.locking import refuse_noted
    from rmqctl.ext.tiered.files.metadata_file import writable_around
    from rmqctl.ext.tiered.recover.recover import (
        PARTS,
        TierRecoverOptions,
        check_parts,
        plan_recover,
    )
    from rmqctl.ext.tiered.recover.scope import check_root, open_tier, scope_of

    # Settle parts and sizes; a broker.conf provides what no option names.
    show_times_in(tz)
    parts = check_parts(only) if only is not None else frozenset(PARTS)
    if consumequeue_max_size is None and tier.broker_conf is not None:
        consumequeue_max_size = tier.broker_conf.tier.get("consumequeue_max_size")
    options = TierRecoverOptions(parts, drop_orphans, ambiguous == "keep", consumequeue_max_size,
                                 tier.index_slots, tier.index_max, all_index=parts == {"index"})
    # Find out which broker owns the tier before anything is planned.
    with open_tier(tier.root, tier.metadata) as opened:
        place, scope = opened.name, scope_of(opened, tier.cluster, tier.broker)

    # Open the tier again: the plan that is applied is made under the lock.
    def propose(scratch: Scratch) -> plan_page.Proposal:
        with open_tier(tier.root, tier.metadata) as opened:
            plan = plan_recover(opened, scope, scratch, options, out.watch)
        return plan_page.Proposal(plan, {"cluster": scope.cluster, "broker": scope.broker,
                                        "metadata": scope.metadata_path},
                                 ends_with=ExitCode.FINDINGS if plan.ambiguous else ExitCode.OK)

    if apply.apply:
        refuse_noted(place, scope.metadata_path, tier.metadata, apply.write_outside or ())
    applying.run(out, place, "tiered recover", propose, apply,
                 tier=applying.Tiered([scope.broker_root], check_root(tier.metadata),
                                      writable_around(place, tier.metadata)),
                 complete=complete)
