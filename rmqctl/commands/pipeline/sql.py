"""``rmqctl pipeline sql``: query the tables of stores and tiers."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl import vfs
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.options import DryRead, Out
from rmqctl.commands.shared.spark_options import (
    QueryFile,
    SparkOptions,
    StoresAndQuery,
    named_stores,
    stores_and_query,
    tasks_shown,
)
from rmqctl.errors import ExitCode, require
from rmqctl.output.units import count_text, counted, size_text

if TYPE_CHECKING:
    from rmqctl.output import Output


def command(
    *,
    arguments: StoresAndQuery,
    file: QueryFile = None,
    out_path: Annotated[str | None, typer.Option(
        "--out", metavar="PATH", help="Write the rows to a new folder instead of the screen; it "
                                      "appears only when complete.")] = None,
    form: Annotated[Literal["parquet", "json", "csv"], typer.Option(
        "--format", help="Format of the files in --out.")] = "parquet",
    limit: Annotated[int | None, typer.Option(
        "--limit", metavar="N", min=0, help="At most N rows.")] = None,
    dry_run: DryRead = False,
    spark: Annotated[SparkOptions, pick("master partitions conf spark_log")],
    out: Out,
) -> None:
    """Query stores with Spark SQL: messages, frames, consumequeue, index and tiered_messages.

    `DESCRIBE messages` lists the columns; `store` is in every view. Only the needed columns are
    read; filters on topic, queue_id, store_timestamp and physical_offset are applied while reading.
    Rows are in no fixed order, times in ISO-8601 (unix_millis() for milliseconds), binary in
    base64.

        rmqctl pipeline sql store "SELECT topic, count(*) AS n FROM messages GROUP BY topic"
        rmqctl pipeline sql '/backup/*/store' --file late.sql --out late --format csv
    """
    require("pyspark", "pyarrow")
    from rmqctl.commands.shared.store_warnings import warn_of_lost
    from rmqctl.ext.spark.source.losses import SWITCH
    from rmqctl.ext.spark.versions import require_source
    from rmqctl.sql.schema import FRAMES, MESSAGES, named_tables
    from rmqctl.store import Store

    require_source()
    names, text = stores_and_query(arguments, file)
    stores = named_stores(names)
    for store in stores:  # check before Spark starts
        if not _only_tiers(text, store):
            Store.open(vfs.abspath(store)).close()
    if out_path is not None:
        from rmqctl.export.staging import checked_target

        checked_target(out_path)
    # Losses are reported below as warnings; the query continues.
    options = {SWITCH: "false"} | (
        {} if spark.partitions is None else {"numPartitions": str(spark.partitions)})
    if dry_run:
        _show_pieces(out, stores, text, options)
        return
    with ExitStack() as held:
        session = held.enter_context(spark.session(out))
        from rmqctl.ext.spark import sql
        from rmqctl.ext.spark.pool import watched

        progress = held.enter_context(out.progress("query", None, unit="tasks"))
        held.enter_context(watched(session, tasks_shown(progress)))
        frame = sql.query(session, stores, text, options=options)
        if limit is not None:
            frame = frame.limit(limit)
        if out_path is not None:
            sql.write(frame, out_path, form)
            out.note(f"written to {out_path}")
        else:
            out.rows(sql.rows(frame), sql.columns(frame))
        tables = set(named_tables(text))
        progress.hide()
        damaged = sql.damaged(session, stores) if MESSAGES in tables else {}
        for store, count in damaged.items():
            out.warn(f"{store}: {counted(count, 'damaged range')} of the log skipped; `rmqctl "
                     "verify` shows where")
        if {MESSAGES, FRAMES} & tables:
            warn_of_lost(out, stores, (), damaged=bool(damaged))
    if damaged:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _only_tiers(text: str, store: str) -> bool:
    """Return whether ``store`` is or contains a tier, and the query reads only tiers."""
    from rmqctl.ext.spark.source.tiered import has_tier
    from rmqctl.sql.schema import TIERED_MESSAGES, named_tables

    return named_tables(text) == [TIERED_MESSAGES] and has_tier(store)


def _show_pieces(out: Output, stores: list[str], text: str, options: dict[str, str]) -> None:
    """Show how much data a query reads at most; only Spark knows its conditions and columns."""
    from rmqctl.ext.spark.source.planning import estimate
    from rmqctl.ext.spark.source.tiered import holding
    from rmqctl.sql.options import ReadOptions
    from rmqctl.sql.schema import named_tables

    rows = []
    for table in named_tables(text):
        named = holding(table, stores)
        given = {**options, "table": table, "paths": json.dumps(named)}
        pieces, size = estimate(ReadOptions.of(given))
        rows.append({"view": table, "stores": len(named), "partitions": pieces, "bytes": size})
    if not rows:
        out.note("the query reads none of the views")
    out.rows(rows, ("view", "stores", "partitions", "bytes"),
             render={"partitions": count_text, "bytes": size_text})
