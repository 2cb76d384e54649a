"""``rmqctl pipeline sql``: a query over messages, frames, consumequeue and index of stores."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from rmqctl.commands.options import (
    NoProgress,
    OutputFormat,
    Quiet,
    Verbose,
    open_output,
)
from rmqctl.commands.pipeline_options import (
    Conf,
    Master,
    Partitions,
    SparkLog,
    named_stores,
    spark_session,
    tasks_shown,
)
from rmqctl.errors import StoreIOError, UsageError

NAME = ("pipeline", "sql")
EFFECT = "writes-new"


def command(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="STORE... QUERY",
            help="Store roots or patterns, then the query as one argument (in quotes); with "
            "--file store roots only.",
            show_default=False,
        ),
    ],
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="Read the query from a file.")
    ] = None,
    out_path: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="PATH", help="Write the rows into a new folder instead of showing "
            "them: whole, or not at all.",
        ),
    ] = None,
    form: Annotated[
        Literal["parquet", "json", "csv"],
        typer.Option("--format", help="What kind of files --out has."),
    ] = "parquet",
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=0, help="At most N rows.")
    ] = None,
    master: Master = "local[*]",
    partitions: Partitions = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Ask stores in SQL: the views messages, frames, consumequeue and index.

    The query is Spark's SQL. Views have the columns of the data source (DESCRIBE messages names
    them) with a column `store`; only the columns a query needs are read, and conditions on topic,
    queue_id, store_timestamp and physical_offset are applied while reading. Rows come as they are
    found; times of the type TIMESTAMP as ISO-8601, binary in base64.

        rmqctl pipeline sql store "SELECT topic, count(*) AS n FROM messages GROUP BY topic"
        rmqctl pipeline sql '/backup/*/store' --file late.sql --out late --format csv
    """
    from rmqctl.store import Store

    out = open_output(output, quiet, verbose, no_progress)
    names, text = _told_apart(arguments, file)
    stores = named_stores(names)
    for one in stores:  # before Spark is started for something that is no store
        Store.open(os.path.abspath(one)).close()
    with ExitStack() as held:
        spark = held.enter_context(spark_session(out, master, conf, spark_log))
        from rmqctl.pipeline import sql
        from rmqctl.pipeline.watching import watched

        progress = held.enter_context(out.progress("query", None, unit="tasks"))
        held.enter_context(watched(spark, tasks_shown(progress)))
        options = {} if partitions is None else {"numPartitions": str(partitions)}
        frame = sql.query(spark, stores, text, options=options)
        if limit is not None:
            frame = frame.limit(limit)
        if out_path is not None:
            sql.write(frame, out_path, form)
            out.note(f"written to {out_path}")
        else:
            out.rows(sql.rows(frame), sql.columns(frame))


def _told_apart(arguments: list[str], file: str | None) -> tuple[list[str], str]:
    """(stores, query): the query is the last argument, unless it comes from a file."""
    if file is not None:
        if len(arguments) > 1 and any(one.isspace() for one in arguments[-1].strip()) and (
                not os.path.lexists(arguments[-1])):
            raise UsageError("a query and --file: one of them")
        try:
            text = Path(file).read_text(encoding="utf-8")
        except OSError as error:
            raise StoreIOError.from_oserror(error, file, "read") from None
        except UnicodeDecodeError:
            raise UsageError(f"{file}: not UTF-8") from None
        if not text.strip():
            raise UsageError(f"{file}: no query in it")
        return arguments, text
    *stores, text = arguments
    if not any(one.isspace() for one in text.strip()) or os.path.lexists(text):
        raise UsageError(f"the query is missing: the last argument ({text}) is none; give it in "
                         "quotes, or --file")
    return stores, text
