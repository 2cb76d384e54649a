"""``rmqctl tiered verify``: check the integrity of a tier."""

from __future__ import annotations

import os
from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.shared.options import (
    Jobs,
    ListedOut,
    MaxFindings,
    Zone,
    complete_folders,
    worker_count,
)
from rmqctl.commands.shared.store_warnings import warn_if_held
from rmqctl.commands.shared.tiered_options import TierIndex
from rmqctl.errors import ExitCode, UsageError
from rmqctl.output.units import count_text, size_text
from rmqctl.parse_values import show_times_in
from rmqctl.phrases import counted

if TYPE_CHECKING:
    from rmqctl.checks.verify.verdict import VerifyResult
    from rmqctl.ext.tiered.verify.context import TierCoverage


def command(
    *,
    local: Annotated[str | None, typer.Option(
        "--local", metavar="STORE", help="Also compare the tier with this local store: uploaded "
                                         "messages, messages in neither, differences.",
        autocompletion=complete_folders)] = None,
    only: Annotated[str | None, typer.Option(
        "--only", metavar="NAMES", help="Check only these, comma-separated: tier (names, gaps), "
                                        "metadata, commitlog, consumequeue, index, local.")] = None,
    max_findings: MaxFindings = 1000,
    jobs: Jobs = 0,
    tier: TierIndex,
    tz: Zone = UTC,
    out: ListedOut,
) -> None:
    """Check the integrity of a tier, byte by byte.

    Checks names and offsets, segments against each other and the metadata, every message against
    its consume queue entry and CRC, and every slot and item of index files (uploaded or not)
    against the messages' keys. Known leftovers of broker versions are listed, but are not damage:
    bytes without an entry, index files without items, wrong times for IPv6 hosts. Exit code 1 if
    something is wrong; info findings do not count.

        rmqctl tiered verify /data/tieredstore
        rmqctl tiered verify /data/tieredstore --metadata config/tieredStoreMetadata.json
        rmqctl tiered verify /data/tieredstore --local /data/store -o json
    """
    from contextlib import ExitStack

    from rmqctl.commands.shared.verifying import show, structures
    from rmqctl.ext.tiered.verify.context import LOCAL, STRUCTURES
    from rmqctl.ext.tiered.verify.in_store import size_of, without_empty_advice
    from rmqctl.ext.tiered.verify.verify import Options, TierVerification, verdict
    from rmqctl.files.lock_probe import probe
    from rmqctl.store import Store

    # Refuse a selection that cannot be checked.
    show_times_in(tz)
    wanted = structures(only, STRUCTURES)
    if local is None and wanted is not None and LOCAL in wanted:
        raise UsageError("--only local requires --local STORE")
    options = Options(wanted, tier.broker, tier.index_slots, tier.index_max, worker_count(jobs))
    # A running broker may change the tier during the check, so warn about it.
    with ExitStack() as stack:
        opened = stack.enter_context(tier.open())
        store = None if local is None else stack.enter_context(Store.open(local))
        if opened.broker_root is not None:
            warn_if_held(out, probe(os.path.join(opened.broker_root, "lock")), opened.broker_root)
        with out.progress("verify", size_of(opened, tier.broker)) as progress:
            result = without_empty_advice(opened, verdict(
                TierVerification(opened, options, store, progress.advance), max_findings))
        show(out, result, covered)
    if not result.ok:
        raise typer.Exit(int(ExitCode.FINDINGS))


def covered(verdict: VerifyResult[TierCoverage]) -> dict[str, str]:
    """Return what was checked in a tier, as captions and texts."""
    from rmqctl.checks.verify.common import plural

    # Lines about repairs and undecided records appear only if there are any.
    cover = verdict.coverage
    pairs = {
        "queues": count_text(cover.queues),
        "messages": count_text(cover.messages),
        **({"undecided": f"{count_text(cover.messages_undecided)} (messages, or part of a damaged "
                         "message's body)"} if cover.messages_undecided else {}),
        **({"replaced": f"{count_text(cover.messages_replaced)} (fillers for lost messages, or "
                        "kept damaged bodies)"} if cover.messages_replaced else {}),
        **({"already lost": counted(verdict.already_lost, "message")}
           if verdict.already_lost else {}),
        **({"since repairs": count_text(cover.messages_lost_in_repairs)}
           if cover.messages_lost_in_repairs else {}),
        "commit logs": f"{size_text(cover.bytes_total)} = {size_text(cover.bytes_in_messages)} "
                       f"messages + {size_text(cover.bytes_orphaned)} orphans + "
                       f"{size_text(cover.bytes_coda)} codas + "
                       f"{size_text(cover.bytes_zero + cover.bytes_damaged)} other bytes",
        "consume queue entries": f"{count_text(cover.consumequeue_rows)}, "
                               f"{count_text(cover.rows_expired)} expired",
        "index": f"{count_text(cover.index_items)} items in "
                 f"{plural(cover.index_files, 'file')}, {count_text(cover.items_proven)} proven by "
                 "messages",
        "not verifiable": f"{count_text(cover.property_crc_unverifiable)} property CRCs (they "
                          "cover the local offset), "
                          f"{count_text(cover.items_unverifiable)} index items",
    }
    # A comparison with the local store was requested.
    if any(row["structure"] == "local" for row in verdict.checked):
        pairs["local store"] = (
            f"{count_text(cover.local_equal)} in both and equal, {count_text(cover.local_only)} "
            f"local only, {count_text(cover.tiered_only)} tiered only, "
            f"{count_text(cover.in_neither)} in neither")
    return pairs
