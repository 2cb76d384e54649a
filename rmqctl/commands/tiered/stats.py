"""``rmqctl tiered stats``: counts, bytes and rates of the messages in a tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.options import Out
from rmqctl.commands.shared.stats import StatsOptions
from rmqctl.commands.shared.tiered_options import TierBroker
from rmqctl.errors import ExitCode

if TYPE_CHECKING:
    from rmqctl.ext.tiered.read.stats import Figures
    from rmqctl.output import Output

By = Literal["topic", "queue", "broker", "tag", "key", "hour", "day", "minute", "store-host",
             "size", "flag", "transaction", "compression", "none"]


def command(
    *,
    by: Annotated[By, typer.Option("--by", help="Count by this key.")] = "topic",
    options: StatsOptions,
    tier: TierBroker,
    out: Out,
) -> None:
    """Count a tier's messages, bytes and rates.

    Reads the tiered commit logs once and counts the messages that consume queues point to. Other
    bytes (messages written again after a failure, or data that is not a message) and uploaded index
    files are counted separately. Times and rates come from the messages, not from the metadata.

        rmqctl tiered stats /mnt/tier --by queue
        rmqctl tiered stats /mnt/tier --topic orders --by hour --plot
    """
    from rmqctl.ext.tiered.read.stats import TierQuery, collect

    apart = by == "broker"
    query = TierQuery("none" if apart else by, tier.broker, options.topic, *options.times())
    with tier.open() as opened:
        size = sum(segment.usable for queue in opened.queues(options.topic, broker=tier.broker)
                   for segment in queue.commit_log.segments)
        with out.progress("counting", size) as progress:
            figures = collect(opened, query, apart=apart, progress=progress.advance)
    _show(out, figures, by, options)
    if not figures.is_whole:
        raise typer.Exit(int(ExitCode.IO))


def _show(out: Output, counted: Figures, by: str, options: StatsOptions) -> None:
    from rmqctl.checks.verify.common import plural
    from rmqctl.commands.shared import stats
    from rmqctl.store.stats import VALUE_COLUMNS

    tz, sort, top = options.tz, options.sort, options.top
    # Report what could not be counted.
    for problem in counted.problems[:20]:
        out.warn(problem)
    for aggregate in counted.brokers.values():
        stats.warn(out, aggregate)
    # Compute the figures by broker, or by the requested key.
    names = sorted(counted.brokers)
    sums = [counted.brokers[name] for name in names]
    if not sums:
        from rmqctl.ext.tiered.read.stats import TierQuery

        names, sums = [""], [TierQuery("none" if by == "broker" else by).start(None)]
    figures = stats.StatsFigures("none" if by == "broker" else by, sums,
                                 names if by == "broker" else None)
    if by == "broker":
        rows = [{"broker": row.pop("store"), **row} for row in figures.rows(tz, sort)]
        rows = rows[:top]
    else:
        rows = []
    # Add what the figures omit, and the index.
    orphans = {"messages": counted.orphans, "bytes": counted.bytes_orphaned,
               "bytes_no_message": counted.bytes_other}
    index = {"files": counted.index_files, "items": counted.index_items,
             "bytes": counted.index_bytes}
    # Show a document, or tables with notes.
    if out.is_value:
        everything = figures.rows(tz, sort)
        shown = rows or everything[:top]
        document = stats.document_of(figures, shown, len(everything))
        document.pop("stores", None)
        out.document({**document, "by": by, "orphans": orphans, "index": index})
        return
    if by == "broker":
        out.rows(rows, ("broker", *VALUE_COLUMNS), brief=("broker", *stats._BRIEF),
                 empty="no messages", render=stats._render("none", tz))
    else:
        stats.show(out, figures, options)
    if counted.orphans or counted.bytes_other:
        out.note(f"not counted: {counted.orphans:,} messages ({counted.bytes_orphaned:,} bytes) "
                 f"and {counted.bytes_other:,} other bytes without a consume queue entry")
    out.note(f"{plural(counted.index_files, 'uploaded index file')}: {counted.index_items:,} "
             f"items, {counted.index_bytes:,} bytes")
