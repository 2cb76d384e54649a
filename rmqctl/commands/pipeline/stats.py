"""``rmqctl pipeline stats``: the figures of ``rmqctl stats`` for many stores, on Spark."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.options import (
    Jobs,
    NoProgress,
    OutputFormat,
    Quiet,
    Since,
    Topic,
    Until,
    Verbose,
    Zone,
    open_output,
    worker_count,
)
from rmqctl.commands.shared.parsing import parse_time_range
from rmqctl.commands.shared.pipeline_options import (
    Conf,
    DryRun,
    Engine,
    Master,
    Partitions,
    SparkLog,
    Stores,
    named_stores,
)
from rmqctl.commands.shared.stats_view import By, Plot, SortBy, Top

if TYPE_CHECKING:
    from rmqctl.output import Output

NAME = ("pipeline", "stats")
EFFECT = "read-only"


def command(
    stores: Stores = None,
    by: Annotated[
        Literal[By, "store"], typer.Option("--by", help="What to count by, in each store.")
    ] = "topic",
    together: Annotated[
        bool, typer.Option("--together", help="Add the stores up, instead of rows by store.")
    ] = False,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    tz: Zone = "UTC",  # type: ignore[assignment]
    top: Top = None,
    sort: SortBy = None,
    plot: Plot = False,
    engine: Engine = "spark",
    jobs: Jobs = 0,
    master: Master = "local[*]",
    partitions: Partitions = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    dry_run: DryRun = False,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Count the messages of many stores: how many, how large, how fast they came.

    The figures are those of `rmqctl stats`, with a column for the store; shares are of all
    messages of all stores. --by store gives a row for each, --together adds the stores up as if
    they were one. The answer depends neither on the engine nor on how the logs are cut.
    """
    from rmqctl.commands.shared.stats_view import Figures, show
    from rmqctl.commands.shared.stats_work import Source, count, pieces
    from rmqctl.errors import UsageError
    from rmqctl.store import Store
    from rmqctl.store.stats.stats import Query

    out = open_output(output, quiet, verbose, no_progress)
    if together and by == "store":
        raise UsageError("--together leaves nothing to count by store")
    begin, end = parse_time_range(since, until, tz=tz)
    query = Query("none" if by == "store" else by, topic, begin, end)
    names = named_stores(stores)
    with ExitStack() as opened:
        sources = [
            # Workers stand in other folders.
            Source.choose(out, opened.enter_context(Store.open(os.path.abspath(one))), query, one)
            for one in names
        ]
        if dry_run:
            _show_pieces(out, *pieces(sources, engine, master, worker_count(jobs), partitions))
            return
        sums = count(out, sources, query, engine, worker_count(jobs), partitions=partitions,
                     together=together, master=master, conf=conf, log=spark_log)  # fmt: skip
    show(out, Figures(by, sums, None if together else names), tz, sort, top, plot)


def _show_pieces(out: Output, engine: str, why: str, rows: list[dict[str, object]]) -> None:
    if out.format == "json":
        out.document({"engine": engine, "why": why, "stores": rows})
        return
    from rmqctl.output.units import count_text, size_text

    out.note(f"engine: {engine}, {why}")
    out.rows(
        rows,
        ("store", "files", "partitions", "bytes", "file_bytes"),
        render={"files": count_text, "partitions": count_text, "bytes": size_text,
                "file_bytes": size_text},
    )  # fmt: skip
