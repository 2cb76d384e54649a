"""``rmqctl tiered commit``: complete an interrupted upload."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Annotated

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import WriteOutside
from rmqctl.commands.shared.deferred_signals import DeferredSignals
from rmqctl.commands.shared.options import DryRun, Out
from rmqctl.commands.shared.tiered_options import TierOptions
from rmqctl.errors import ExitCode
from rmqctl.parse_values import now_ms

_COLUMNS = ("broker", "topic", "queue_id", "units_added", "bytes_cut", "entries_changed", "status",
            "reason")


def command(
    *,
    tier: Annotated[TierOptions, pick("metadata broker_conf")],
    dry_run: DryRun = False,
    write_outside: WriteOutside = None,
    out: Out,
) -> int:
    """Complete an interrupted upload to a tier.

    Cuts torn entries at the end of consume queues. Adds entries for complete messages after the
    last entry if they continue the queue, and cuts a torn message after them. Cut bytes are kept
    below DIR/.rmqctl. Then all files are flushed to disk and the metadata is updated. Nothing is
    uploaded: `rmqctl tiered dispatch` does the same before it uploads. For other damage, use
    `rmqctl tiered recover`.

        rmqctl tiered commit /mnt/tier
        rmqctl tiered commit /mnt/tier --metadata STORE/config/tieredStoreMetadata.json --dry-run
    """
    from rmqctl.ext.tiered.dispatch.resume import Committed, commit_tier

    if _is_empty(tier.root):
        out.rows([], _COLUMNS, empty="nothing to complete: the tier is empty")
        return ExitCode.OK
    committed: list[Committed] = []
    with DeferredSignals() as signals, closing(
            commit_tier(tier.root, tier.metadata, now_ms, dry_run=dry_run,
                        outside=write_outside or ())) as queues:
        for queue in queues:
            if queue.done.changed or queue.done.fault:
                committed.append(queue)
            signals.check()
    for queue in committed:
        if queue.done.fault:
            out.warn(f"{queue.queue.name.path}: {queue.done.fault}")
        for path, size, kept_as in queue.done.cut:
            out.note(f"{path}: {size} bytes cut, kept as {kept_as}" if kept_as
                     else f"{path}: {size} bytes would be cut")
    if dry_run:
        out.note("dry run: nothing was changed")
    out.rows([queue.as_dict() for queue in committed], _COLUMNS, empty="nothing to complete")
    return ExitCode.FINDINGS if any(queue.done.fault for queue in committed) else ExitCode.OK


def _is_empty(root: str) -> bool:
    """Return whether nothing was ever uploaded: the folder exists but contains no folder of
    a cluster.
    """
    try:
        return set(os.listdir(root)) <= {"config", ".rmqctl"}
    except (OSError, ValueError):
        return False  # at a URL, or missing: opening it shows which
