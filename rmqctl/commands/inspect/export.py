"""``rmqctl export``: export messages to one file or a folder of files."""

from __future__ import annotations

from typing import Annotated

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.app.without_pandas import leave_pandas_out
from rmqctl.commands.shared.exporting import ExportOptions, run_export
from rmqctl.commands.shared.message_options import SelectOptions
from rmqctl.commands.shared.options import Compacted, Jobs, LayoutOptions, Out, worker_count
from rmqctl.commands.shared.spark_options import Stores, named_stores
from rmqctl.parse_values import is_url


def command(
    *,
    stores: Stores = None,
    select: Annotated[SelectOptions, pick(
        "topic queue from_offset count from_phy to_phy since until tag key where")],
    export: ExportOptions,
    view: Compacted = "auto",
    jobs: Jobs = 0,
    layout: Annotated[LayoutOptions, pick("commitlog_dirs commitlog_file_size broker_conf")],
    out: Out,
) -> None:
    """Export messages to Parquet, JSON lines, CSV, Avro, Arrow or Excel.

    Exports all messages in log order, even without a consume queue entry (`rmqctl read --topic`
    uses the consume queue). With --topic of a compaction topic, exports what a broker serves,
    unless --view disk is given. The file appears only when complete; nothing is overwritten. Damage
    is reported, and messages with a CRC mismatch get crc_ok false, with exit code 1. `rmqctl
    pipeline export` runs on Spark.

        rmqctl export STORE --out orders.parquet --topic orders --since -7d
        rmqctl export STORE --out evidence.csv --provenance --manifest
        rmqctl export '/backup/*/store' --out messages --partition-by topic,day
    """
    leave_pandas_out()
    from rmqctl.export.plan import check_place, plan
    from rmqctl.store.queue.compaction import SERVED

    names = named_stores(stores)
    request = export.request(select, len(names))
    # Check the target before the log is read.
    folders = layout.folders_of(names)
    if export.has_path and not is_url(export.target):
        check_place(export.target, names, folders)
    plans = plan(names, request.wanted, worker_count(jobs), folders=folders, sizes=layout.sizes,
                 compacted=view == "auto")
    if any(store_plan.served for store_plan in plans):
        out.note(f"{request.wanted.topic}: {SERVED}")
    run_export(out, plans, export, request, jobs)
