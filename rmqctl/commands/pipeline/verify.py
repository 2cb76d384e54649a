"""``rmqctl pipeline verify``: check many stores, on Spark or by threads of this process."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.options import DryRead, LayoutOptions, ListedOut
from rmqctl.commands.shared.spark_options import SparkOptions, Stores, named_stores


def command(
    *,
    stores: Stores = None,
    only: Annotated[str | None, typer.Option(
        "--only", metavar="NAMES", help="Only (comma-separated) commitlog, consumequeue, index, "
                                        "checkpoint, config, timer, compaction or store.")] = None,
    max_findings: Annotated[int, typer.Option(
        "--limit", "--max-findings", metavar="N", min=0,
        help="List at most N findings per store; all are counted.")] = 1000,
    dry_run: DryRead = False,
    spark: Annotated[SparkOptions, pick(engine="spark")],
    layout: Annotated[LayoutOptions, pick("commitlog_dirs broker_conf")],
    out: ListedOut,
) -> None:
    """Check the integrity of many stores, as `rmqctl verify` does.

    Workers check ranges of the log against consume queues and index; a small store is one task.
    Findings and figures equal those of the local engine for any number of partitions. Every store
    gets a verdict. Exit code 1 if any store has problems, else that of the first store that could
    not be checked.

        rmqctl pipeline verify /backup/*/store -o json
        rmqctl pipeline verify /mnt/a/store /mnt/b/store --master spark://host:7077
    """
    from rmqctl.checks.verify.verify import STRUCTURES, VerifyOptions
    from rmqctl.commands.shared.verifying import end_with, show_stores, structures
    from rmqctl.ext.spark.verify import planned, store_size, total_size, verify_stores

    options = VerifyOptions(structures(only, STRUCTURES), spark.workers, ranges=spark.partitions)
    roots = named_stores(stores)
    dirs = layout.folders_of(roots)
    if dry_run:
        rows = planned(roots, options, dirs)
        out.rows(rows, ("store", "files", "bytes", "partitions"))
        return
    size = total_size(roots, lambda root: store_size(root, dirs))
    with spark.pool(out, size) as pool:
        judged = list(verify_stores(roots, pool, options, max_findings, dirs,
                                    layout.sizes))
    show_stores(out, judged)
    end_with(judged, lambda verdict: not verdict.ok)
