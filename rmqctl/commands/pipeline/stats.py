"""``rmqctl pipeline stats``: the figures of ``rmqctl stats`` for many stores, on Spark."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl import vfs
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.options import DryRead, Out
from rmqctl.commands.shared.spark_options import SparkOptions, Stores, named_stores
from rmqctl.commands.shared.stats import (
    By,
    StatsFigures,
    StatsOptions,
    StatsSource,
    count,
    lacking,
    pieces,
    show,
)
from rmqctl.errors import UsageError
from rmqctl.output.units import count_text, size_text

if TYPE_CHECKING:
    from rmqctl.output import Output


def command(
    *,
    stores: Stores = None,
    by: Annotated[Literal[By, "store"], typer.Option(
        "--by", help="Count by this key, in each store.")] = "topic",
    together: Annotated[bool, typer.Option(
        "--together", help="Combine all stores instead of one row per store.")] = False,
    figures: StatsOptions,
    spark: Annotated[SparkOptions, pick("engine jobs master partitions conf spark_log",
                                        engine="spark")],
    dry_run: DryRead = False,
    out: Out,
) -> None:
    """Count messages, bytes and rates of many stores.

    Shows the figures of `rmqctl stats` with a column for the store; shares are of all messages in
    all stores. --by store gives one row per store, --together combines all stores. The result does
    not depend on the engine or the number of partitions.
    """
    from rmqctl.store import Store
    from rmqctl.store.stats import Query

    if together and by == "store":
        raise UsageError("--together and --by store are mutually exclusive")
    query = Query("none" if by == "store" else by, figures.topic, *figures.times())
    names = named_stores(stores)
    with ExitStack() as opened:
        sources = [
            # Workers run in other folders.
            StatsSource.choose(
                out, opened.enter_context(Store.open(vfs.abspath(name))), query, name)
            for name in names
        ]
        if dry_run:
            _show_pieces(out, *pieces(sources, spark))
            return
        sums = count(out, sources, query, spark, together=together)
        statistics = StatsFigures(by, sums, None if together else names,
                                  lacking(out, sources, sums))
    show(out, statistics, figures)


def _show_pieces(out: Output, engine: str, why: str, rows: list[dict[str, object]]) -> None:
    if out.is_value:
        out.document({"engine": engine, "why": why, "stores": rows})
        return
    out.note(f"engine: {engine}, {why}")
    out.rows(
        rows,
        ("store", "files", "partitions", "bytes", "file_bytes"),
        render={"files": count_text, "partitions": count_text, "bytes": size_text,
                "file_bytes": size_text},
    )
