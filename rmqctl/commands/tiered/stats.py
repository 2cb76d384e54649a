"""``rmqctl tiered stats``: counts, bytes and rates of the messages in a tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.options import (
    NoProgress,
    OutputFormat,
    Quiet,
    Since,
    Topic,
    Until,
    Verbose,
    Zone,
    open_output,
)
from rmqctl.commands.shared.parsing import parse_time_range
from rmqctl.commands.shared.stats_view import Plot, SortBy, Top
from rmqctl.commands.shared.tiered_options import Broker, MetadataFile, TierRoot, opened_tier
from rmqctl.errors import ExitCode

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.tiered.read.stats import Figures

NAME = ("tiered", "stats")
EFFECT = "read-only"

By = Literal["topic", "queue", "broker", "tag", "key", "hour", "day", "minute", "store-host",
             "size", "flag", "transaction", "compression", "none"]  # fmt: skip


def command(
    root: TierRoot,
    by: Annotated[By, typer.Option("--by", help="What to count by.")] = "topic",
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    tz: Zone = "UTC",  # type: ignore[assignment]
    top: Top = None,
    sort: SortBy = None,
    plot: Plot = False,
    metadata: MetadataFile = None,
    broker: Broker = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Count the messages of a tier: how many, how large, of which time.

    Reads the tiered commit logs once. Counted are the messages a consume queue leads to; what it
    does not lead to (written again after a failure, or no message at all) is counted apart, and
    so are the uploaded index files. Times and rates are of the messages themselves, not of the
    metadata.

        rmqctl tiered stats /mnt/tier --by queue

        rmqctl tiered stats /mnt/tier --topic orders --by hour --plot
    """
    from rmqctl.tiered.read.stats import Query, collect

    out = open_output(output, quiet, verbose, no_progress)
    begin, end = parse_time_range(since, until, tz=tz)
    apart = by == "broker"
    query = Query("none" if apart else by, broker, topic, begin, end)
    with opened_tier(root, metadata, broker) as tier:
        size = sum(one.usable for queue in tier.queues(topic, broker=broker)
                   for one in queue.commit_log.segments)
        with out.progress("counting", size) as progress:
            found = collect(tier, query, apart=apart, progress=progress.advance)
    _show(out, found, by, tz, sort, top, plot)
    if not found.is_whole:
        raise typer.Exit(int(ExitCode.IO))


def _show(out: Output, found: Figures, by: str, tz: Zone, sort: SortBy, top: Top,
          plot: bool) -> None:
    from rmqctl.checks.verify.common import plural
    from rmqctl.commands.shared import stats_view
    from rmqctl.store.stats.rows import VALUE_COLUMNS

    for problem in found.problems[:20]:
        out.warn(problem)
    for one in found.brokers.values():
        stats_view.warn(out, one)
    names = sorted(found.brokers)
    sums = [found.brokers[name] for name in names]
    if not sums:
        from rmqctl.tiered.read.stats import Query

        names, sums = [""], [Query("none" if by == "broker" else by).start(None)]
    figures = stats_view.Figures("none" if by == "broker" else by, sums,
                                 names if by == "broker" else None)
    if by == "broker":
        rows = [{"broker": row.pop("store"), **row} for row in figures.rows(tz, sort)]
        rows = rows if top is None else rows[:top]
    else:
        rows = []
    orphans = {"messages": found.orphans, "bytes": found.bytes_orphaned,
               "bytes_no_message": found.bytes_other}
    index = {"files": found.index_files, "items": found.index_items, "bytes": found.index_bytes}
    if out.format == "json":
        everything = figures.rows(tz, sort)
        shown = rows or (everything if top is None else everything[:top])
        document = stats_view._document(figures, shown, len(everything))
        document.pop("stores", None)
        out.document({**document, "by": by, "orphans": orphans, "index": index})
        return
    if by == "broker":
        out.rows(rows, ("broker", *VALUE_COLUMNS), brief=("broker", *stats_view._BRIEF),
                 empty="no messages", render=stats_view._render("none", tz))
    else:
        stats_view.show(out, figures, tz, sort, top, plot)
    if found.orphans or found.bytes_other:
        out.note(f"{found.orphans:,} messages ({found.bytes_orphaned:,} bytes) and "
                 f"{found.bytes_other:,} other bytes that no consume queue leads to are not in it")
    out.note(f"{plural(found.index_files, 'uploaded index file')}: {found.index_items:,} items, "
             f"{found.index_bytes:,} bytes")
