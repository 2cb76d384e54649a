"""``rmqctl tiered verify``: everything of a tier that can be checked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.options import (
    Jobs,
    NoProgress,
    OutputFormat,
    Quiet,
    Verbose,
    complete_folders,
    open_output,
    worker_count,
)
from rmqctl.commands.tiered_options import (
    Broker,
    MetadataFile,
    TieredIndexMax,
    TieredIndexSlots,
    TierRoot,
    opened_tier,
)
from rmqctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.output.human import Human
    from rmqctl.tiered.verify import Verdict

NAME = ("tiered", "verify")
EFFECT = "read-only"

COLUMNS = ("category", "severity", "structure", "file", "offset", "length", "topic", "queue_id",
           "queue_offset", "detail", "next", "position", "count")
_BRIEF = ("severity", "category", "where", "queue", "detail")
_STYLES = {"error": "bad", "warning": "warn", "info": "dim"}


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

    from rmqctl.store import Store
    from rmqctl.store.lockprobe import probe
    from rmqctl.tiered.verify import Options, Verification, verdict

    out = open_output(output, quiet, verbose, no_progress)
    options = Options(structures(only, local), broker, index_slots, index_max,
                      worker_count(jobs))
    with ExitStack() as stack:
        tier = stack.enter_context(opened_tier(root, metadata, broker))
        store = None if local is None else stack.enter_context(Store.open(local))
        if tier.home is not None:
            holder = probe(os.path.join(tier.home, "lock"))
            if holder.held:
                who = f"process {holder.pid}" if holder.pid else "another process"
                out.warn(f"{who} holds {tier.home} ({holder.kind}): this is a moving picture")
        size = sum(one.usable for queue in tier.queues(broker=broker)
                   for one in queue.commit_log.segments)
        size += sum(one.size for _, flat in tier.indexes(broker) for one in flat.segments)
        with out.progress("verify", size) as progress:
            found = verdict(Verification(tier, options, store, progress.advance), max_findings)
        show(out, found)
    if not found.ok:
        raise typer.Exit(int(ExitCode.FINDINGS))


def structures(only: str | None, local: str | None) -> frozenset[str] | None:
    """The value of ``--only``. UsageError."""
    from rmqctl.tiered.verify_context import LOCAL, STRUCTURES

    if only is None:
        return None
    names = frozenset(name.strip() for name in only.split(",") if name.strip())
    unknown = sorted(names - set(STRUCTURES))
    if unknown or not names:
        raise UsageError(f"--only: unknown structure {', '.join(unknown) or only!r}; there are "
                         f"{', '.join(STRUCTURES)}")
    if LOCAL in names and local is None:
        raise UsageError("--only local needs --local STORE")
    return names


def show(out: Output, found: Verdict) -> None:
    """The verdict in the format that is asked for."""
    if found.total > len(found.findings):
        out.warn(f"{found.total - len(found.findings)} more findings are counted, not listed "
                 "(--max-findings)")
    document = found.as_dict()
    rows = document["findings"]
    if out.format == "jsonl":
        out.rows([*rows, {name: value for name, value in document.items()
                          if name != "findings"}])
    elif out.format in ("csv", "tsv"):
        out.rows(rows, COLUMNS)
    else:
        out.document(document, lambda page: _page(page, found))


def _page(page: Human, found: Verdict) -> None:
    from rmqctl.checks.common import plural
    from rmqctl.commands.verify import _brief
    from rmqctl.output.units import count_text, size_text

    if found.ok:
        page.text(f"{found.root}: no damage found", "good")
    else:
        page.text(f"{found.root}: {plural(found.troubles, 'finding')}",
                  "bad")
    if found.findings:
        page.blank()
        page.table([_brief(one, found.root) for one in found.findings], _BRIEF,
                   styles={"severity": _STYLES.get})
        seen = dict.fromkeys(one.next for one in found.findings if one.next and one.is_trouble)
        if seen:
            page.heading("What next")
            page.text("\n".join(list(seen)[:6]))
    cover = found.coverage
    page.heading("Coverage")
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
        "checked": ", ".join(str(one["structure"]) for one in found.checked),
    }
    if any(one["structure"] == "local" for one in found.checked):
        pairs["local store"] = (
            f"{count_text(cover.local_equal)} in both and equal, {count_text(cover.local_only)} "
            f"local only, {count_text(cover.tiered_only)} tiered only, "
            f"{count_text(cover.in_neither)} in neither")
    page.pairs(pairs)
