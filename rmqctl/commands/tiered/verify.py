"""``rmqctl tiered verify``: everything of a tier that can be checked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.shared.options import (
    Jobs,
    NoProgress,
    OutputFormat,
    Quiet,
    Verbose,
    complete_folders,
    open_output,
    worker_count,
)
from rmqctl.commands.shared.tiered_options import (
    Broker,
    MetadataFile,
    TieredIndexMax,
    TieredIndexSlots,
    TierRoot,
    opened_tier,
)
from rmqctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rmqctl.checks.verify.verdict import Verdict
    from rmqctl.tiered.verify.context import Coverage

NAME = ("tiered", "verify")
EFFECT = "read-only"


def command(
    root: TierRoot,
    local: Annotated[str | None, typer.Option(
        "--local", metavar="STORE", help="Also hold the tier against this local store: what is "
        "uploaded, what is in neither, whether both copies are equal.",
        autocompletion=complete_folders)] = None,
    only: Annotated[str | None, typer.Option(
        "--only", metavar="NAMES", help="Check these only, comma-separated: tier (names, gaps), "
        "metadata, commitlog, consumequeue, index, local.")] = None,
    max_findings: Annotated[int, typer.Option(
        "--max-findings", metavar="N", min=0, help="List at most N findings; all are counted.",
    )] = 1000,
    jobs: Jobs = 1,
    metadata: MetadataFile = None,
    broker: Broker = None,
    index_slots: TieredIndexSlots = None,
    index_max: TieredIndexMax = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Check everything of a tier that can be checked, byte by byte.

    Names against offsets, segments against each other and against the metadata, every message of
    the tiered commit logs against its unit in the consume queue and its CRC, every slot and item
    of the index files (uploaded and not) against the keys of messages. What versions of the
    broker are known to leave behind is named and no damage: bytes that no unit leads to, index
    files without items, times of IPv6 hosts. Exit code 1 when something is wrong; info findings
    do not count.

        rmqctl tiered verify /data/tieredstore
        rmqctl tiered verify /data/tieredstore --metadata config/tieredStoreMetadata.json
        rmqctl tiered verify /data/tieredstore --local /data/store -o json
    """
    from contextlib import ExitStack

    from rmqctl.commands.shared.verify_view import show, structures
    from rmqctl.files.lock_probe import probe
    from rmqctl.store import Store
    from rmqctl.tiered.verify.context import LOCAL, STRUCTURES
    from rmqctl.tiered.verify.verify import Options, Verification, verdict

    out = open_output(output, quiet, verbose, no_progress)
    wanted = structures(only, STRUCTURES)
    if local is None and wanted is not None and LOCAL in wanted:
        raise UsageError("--only local needs --local STORE")
    options = Options(wanted, broker, index_slots, index_max,
                      worker_count(jobs))
    with ExitStack() as stack:
        tier = stack.enter_context(opened_tier(root, metadata, broker))
        store = None if local is None else stack.enter_context(Store.open(local))
        if tier.broker_root is not None:
            holder = probe(os.path.join(tier.broker_root, "lock"))
            if holder.held:
                who = f"process {holder.pid}" if holder.pid else "another process"
                out.warn(f"{who} holds {tier.broker_root} ({holder.kind}): this is a moving "
                         "picture")
        size = sum(one.usable for queue in tier.queues(broker=broker)
                   for one in queue.commit_log.segments)
        size += sum(one.size for _, flat in tier.indexes(broker) for one in flat.segments)
        with out.progress("verify", size) as progress:
            found = verdict(Verification(tier, options, store, progress.advance), max_findings)
        show(out, found, covered)
    if not found.ok:
        raise typer.Exit(int(ExitCode.FINDINGS))


def covered(found: Verdict[Coverage]) -> dict[str, str]:
    """What was covered of a tier, for people."""
    from rmqctl.checks.verify.common import plural
    from rmqctl.output.units import count_text, size_text

    cover = found.coverage
    pairs = {
        "queues": count_text(cover.queues),
        "messages": count_text(cover.messages),
        "commit logs": f"{size_text(cover.bytes_total)} = {size_text(cover.bytes_in_messages)} "
                       f"messages + {size_text(cover.bytes_orphaned)} orphans + "
                       f"{size_text(cover.bytes_coda)} codas + "
                       f"{size_text(cover.bytes_zero + cover.bytes_damaged)} no message",
        "consume queue units": f"{count_text(cover.consumequeue_rows)}, "
                               f"{count_text(cover.rows_expired)} expired",
        "index": f"{count_text(cover.index_items)} items in "
                 f"{plural(cover.index_files, 'file')}, {count_text(cover.items_proven)} proven by "
                 "messages",
        "not verifiable": f"{count_text(cover.property_crc_unverifiable)} property CRCs (they "
                          "cover the local offset), "
                          f"{count_text(cover.items_unverifiable)} index items",
    }
    if any(one["structure"] == "local" for one in found.checked):
        pairs["local store"] = (
            f"{count_text(cover.local_equal)} in both and equal, {count_text(cover.local_only)} "
            f"local only, {count_text(cover.tiered_only)} tiered only, "
            f"{count_text(cover.in_neither)} in neither")
    return pairs
