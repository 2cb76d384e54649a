"""``rmqctl stats``: counts, bytes and rates of the messages in the log."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rmqctl.commands.shared.options import (
    CommitlogDirs,
    CommitlogFileSize,
    Jobs,
    NoProgress,
    OutputFormat,
    Quiet,
    Since,
    Store,
    Topic,
    Until,
    Verbose,
    Zone,
    open_output,
    worker_count,
)
from rmqctl.commands.shared.parsing import parse_time_range
from rmqctl.commands.shared.pipeline_options import Conf, Engine, Master, Partitions, SparkLog
from rmqctl.commands.shared.stats_view import By, Plot, SortBy, Top

NAME = ("stats",)
EFFECT = "read-only"


def command(
    store: Store,
    by: Annotated[By, typer.Option("--by", help="What to count by.")] = "topic",
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    tz: Zone = "UTC",  # type: ignore[assignment]
    top: Top = None,
    sort: SortBy = None,
    plot: Plot = False,
    jobs: Jobs = 1,
    engine: Engine = "local",
    master: Master = "local[*]",
    partitions: Partitions = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    commitlog_dirs: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Count the messages of the log: how many, how large, how fast they came.

    Reads the whole log once (with --since and --until only the files whose time it may be).
    Rates are over the time from a group's first to its last message, by time over the whole
    minute, hour or day. By key a message counts for each of its keys. With more groups than fit
    into memory the log is read twice, and the light ones are summed as (other). Damaged spans are
    passed over and counted; `rmqctl verify` names them.
    """
    from rmqctl.commands.shared.stats_view import Figures, show
    from rmqctl.commands.shared.stats_work import Source, count
    from rmqctl.store import Sizes
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.stats.stats import Query

    out = open_output(output, quiet, verbose, no_progress)
    begin, end = parse_time_range(since, until, tz=tz)
    query = Query(by, topic, begin, end)
    if engine != "local":
        store = os.path.abspath(store)  # workers stand in other folders
    with OpenedStore.open(store, commitlog_dirs or (), Sizes(commitlog_file_size)) as opened:
        sources = [Source.choose(out, opened, query)]
        sums = count(out, sources, query, engine, worker_count(jobs), master=master,
                     partitions=partitions, conf=conf, log=spark_log)  # fmt: skip
    show(out, Figures(by, sums), tz, sort, top, plot)
