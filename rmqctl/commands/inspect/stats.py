"""``rmqctl stats``: count the messages in the log, with their bytes and rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from rmqctl import vfs
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.options import Out, StoreLog
from rmqctl.commands.shared.spark_options import SparkOptions
from rmqctl.commands.shared.stats import (
    By,
    StatsFigures,
    StatsOptions,
    StatsSource,
    count,
    lacking,
    show,
)


def command(
    *,
    by: Annotated[By, typer.Option("--by", help="Count by this key.")] = "topic",
    figures: StatsOptions,
    spark: Annotated[SparkOptions, pick("jobs engine master partitions conf spark_log",
                                        engine="local")],
    store: StoreLog,
    out: Out,
) -> None:
    """Count messages, bytes and rates by topic, queue, tag, time and more.

    Reads the whole log once (with --since or --until only the files that may match). Rates cover
    the time from a group's first to its last message, or the full minute, hour or day. A message
    with several keys counts for each of them. If there are too many groups for memory, the log is
    read twice and small groups are combined as (other). Damaged ranges are counted and skipped;
    `rmqctl verify` lists them.
    """
    from rmqctl.store.stats import Query

    query = Query(by, figures.topic, *figures.times())
    if spark.engine != "local":
        store = replace(store, root=vfs.abspath(store.root))  # workers run in other folders
    with store.open() as opened:
        sources = [StatsSource.choose(out, opened, query)]
        sums = count(out, sources, query, spark)
        statistics = StatsFigures(by, sums, lacking=lacking(out, sources, sums))
    show(out, statistics, figures)
