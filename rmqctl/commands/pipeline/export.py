"""``rmqctl pipeline export``: messages of one or many stores as Parquet, JSON, CSV or Avro."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.exporting import named_parts, report
from rmqctl.commands.shared.message_options import IN_LOG_ORDER, Fields, SelectOptions
from rmqctl.commands.shared.options import Body, DryRead, LayoutOptions, Out, Zone
from rmqctl.commands.shared.spark_options import SparkOptions, Stores, named_stores
from rmqctl.errors import ExitCode, require
from rmqctl.output.units import count_text, counted, size_text

if TYPE_CHECKING:
    from rmqctl.export.plan import StorePlan
    from rmqctl.export.result import ExportResult
    from rmqctl.export.spec import Export
    from rmqctl.output import Human, Output



def command(
    *,
    target: Annotated[str, typer.Option(
        "--out", metavar="PATH", help="The new folder; it must be empty or not exist.")],
    stores: Stores = None,
    format: Annotated[  # noqa: A002
        Literal["parquet", "json", "csv", "avro"],
        typer.Option("--format", help="json: a message object per line (`rmqctl read -o jsonl`); "
                                      "csv: its fields; parquet, avro: typed columns."),
    ] = "parquet",
    select: Annotated[SelectOptions, pick(IN_LOG_ORDER)],
    fields: Fields = None,
    body: Body = "auto",
    partition_by: Annotated[str, typer.Option(
        "--partition-by", metavar="NAMES",
        help="Subfolders: any of topic, day (of the store time, in --tz) and store, "
             "comma-separated, or none.")] = "topic,day",
    compression: Annotated[str | None, typer.Option(
        "--compression", metavar="NAME",
        help="parquet: zstd, snappy, gzip, lz4, none; json, csv: none, gzip, zstd; avro: deflate, "
             "none (first: default).")] = None,
    tz: Zone = UTC,
    dry_run: DryRead = False,
    spark: SparkOptions,
    layout: Annotated[LayoutOptions, pick("commitlog_dirs commitlog_file_size broker_conf")],
    out: Out,
) -> None:
    """Export messages of stores as Parquet, JSON, CSV or Avro, in folders by topic and day.

    Exports all messages, even without a consume queue entry, as one data set for Spark, Arrow and
    others. PATH appears only when complete. Its _rmqctl_export.json lists the contents and what is
    missing: damaged ranges, missing files, and messages with a CRC mismatch (which are exported).
    Exit code 1 if anything is missing.

        rmqctl pipeline export STORE --out messages
        rmqctl pipeline export '/backup/*/store' --out orders --topic orders --since -7d
    """
    require("pyarrow", *(["fastavro"] if format == "avro" else []))
    from rmqctl.export.plan import check_place, estimate, plan, plan_document
    from rmqctl.export.spec import Export

    names = named_stores(stores)
    wanted = select.selection(tz)
    spec = Export.of(
        format, fields=None if fields is None else fields.split(","), body=body,
        partition_by=named_parts(partition_by), compression=compression, zone=tz,
        conditions=wanted.in_log(), stores=len(names))
    folders = layout.folders_of(names)
    check_place(target, names, folders)
    plans = plan(names, wanted, spark.workers, count=spark.partitions, folders=folders,
                 sizes=layout.sizes)
    if dry_run:
        document = plan_document(plans, target, estimate(spec, plans))
        out.document(document, lambda page: _show_plan(page, document))
        return
    result = _exported(out, plans, spec, target, spark)
    report(out, result, spec)
    if not result.total("rows"):
        out.note("no messages")
    if not result.complete:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _exported(out: Output, plans: list[StorePlan], spec: Export, target: str,
              spark: SparkOptions) -> ExportResult:
    from rmqctl.export.export import export
    from rmqctl.store.log.ranges import Threads

    total = sum(piece.length for plan in plans for piece in plan.pieces)
    with spark.pool(out, sum(plan.bytes for plan in plans)) as pool:
        if not isinstance(pool, Threads):  # Spark shows the tasks that are done
            return export(plans, spec, target, pool)
        with out.progress("exporting", total) as progress:
            return export(plans, spec, target, pool, progress.advance)


# -- what is shown ----------------------------------------------------------------------------


def _show_plan(page: Human, document: dict[str, Any]) -> None:
    page.table(document["stores"], ("store", "files", "used_bytes", "partitions", "missing"),
               render={"used_bytes": size_text, "files": count_text, "partitions": count_text})
    page.blank()
    page.pairs({
        "log to read": f"{size_text(document['used_bytes'])} in "
        f"{counted(document['partitions'], 'partition')}",
        "expected size": f"about {size_text(document['expected_bytes'])} (estimated from "
                         f"{size_text(document['sampled_bytes'])} of the log)",
        "free space": size_text(document["free_bytes"]),
    })
    if document["expected_bytes"] > document["free_bytes"]:
        page.text("Not enough disk space.")
