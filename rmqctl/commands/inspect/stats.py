"""``rmqctl stats``: counts, bytes and rates of the messages in the log."""

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
    Figures,
    Source,
    StatsOptions,
    count,
    lacking,
    show,
)


def command(
    *,
    by: Annotated[By, typer.Option("--by", help="What to count by.")] = "topic",
    figures: StatsOptions,
    spark: Annotated[SparkOptions, pick("jobs engine master partitions conf spark_log",
                                        engine="local")],
    store: StoreLog,
    out: Out,
) -> None:
    """Count the messages of the log: how many, how large, how fast they came.

    Reads the whole log once (with --since and --until only the files whose time it may be).
    Rates are over the time from a group's first to its last message, by time over the whole
    minute, hour or day. By key a message counts for each of its keys. With more groups than fit
    into memory the log is read twice, and the light ones are summed as (other). Damaged spans are
    passed over and counted; `rmqctl verify` names them.
    """
    from rmqctl.store.stats import Query

    query = Query(by, figures.topic, *figures.times())
    if spark.engine != "local":
        store = replace(store, root=vfs.abspath(store.root))  # workers stand in other folders
    with store.open() as opened:
        sources = [Source.choose(out, opened, query)]
        sums = count(out, sources, query, spark)
        known = Figures(by, sums, lacking=lacking(out, sources, sums))
    show(out, known, figures)
