"""``rmqctl pipeline verify``: many stores checked, on Spark or by threads of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app import typed
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.options import DryRead, LayoutOptions, Out
from rmqctl.commands.shared.spark_options import SparkOptions, Stores, named_stores
from rmqctl.errors import ExitCode
from rmqctl.output.units import count_text, counted, size_text

if TYPE_CHECKING:
    from rmqctl.output import Human, Output
    from rmqctl.pipeline.verify import Judged


def command(
    *,
    stores: Stores = None,
    only: Annotated[str | None, typer.Option(
        "--only", metavar="NAMES", help="Check these structures only, comma-separated: "
        "commitlog, consumequeue, index, checkpoint, config, timer, compaction, store.")] = None,
    max_findings: Annotated[int, typer.Option(
        "--limit", "--max-findings", metavar="N", min=0,
        help="List at most N findings of a store; all are counted.")] = 1000,
    dry_run: DryRead = False,
    spark: Annotated[SparkOptions, pick(engine="spark")],
    layout: Annotated[LayoutOptions, pick("commitlog_dirs broker_conf")],
    out: Out,
) -> None:
    """Check everything of many stores that can be checked, as `rmqctl verify` does of one.

    The log is cut into ranges, which workers walk and hold against consumequeue and index; small
    stores are one task each. Findings and figures are those of the local engine, whatever the
    number of ranges. Every store gets a verdict; exit code 1 when any has something wrong, and
    that of the first store which could not be judged at all.

        rmqctl pipeline verify /backup/*/store -o json
        rmqctl pipeline verify /mnt/a/store /mnt/b/store --master spark://host:7077
    """
    from rmqctl.checks.verify.verify import STRUCTURES, VerifyOptions
    from rmqctl.commands.shared.verifying import structures
    from rmqctl.pipeline.verify import planned, store_size, total_size, verify_stores

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
    _show(out, judged)
    failed = next((store.error for store in judged if store.error is not None), None)
    if failed is not None:
        if len(judged) == 1:
            raise failed
        raise typer.Exit(int(failed.exit_code))
    if any(store.verdict is not None and not store.verdict.ok for store in judged):
        raise typer.Exit(int(ExitCode.FINDINGS))
    for store in judged:
        if store.verdict is not None:
            store.verdict.require_judged()


def _show(out: Output, judged: list[Judged]) -> None:
    from rmqctl.commands.shared.verifying import COLUMNS
    from rmqctl.pipeline.verify import document

    for store in judged:
        if store.error is not None and len(judged) > 1:
            out.warn(_reason(store))
        elif store.verdict is not None and store.verdict.total > len(store.verdict.findings):
            more = store.verdict.total - len(store.verdict.findings)
            out.warn(f"{store.root}: {more} more findings are counted, not listed (--limit)")
    verdicts = document(judged)
    for row in (*verdicts["findings"], *verdicts["stores"]):
        if "next" in row:
            row["next"] = typed.completed(row["next"])
    out.listing(verdicts, lambda page: _page(page, judged), columns=("store", *COLUMNS),
                rows=verdicts["findings"])


def _reason(store: Judged) -> str:
    text = str(store.error)
    return text if store.root in text else f"{store.root}: {text}"


def _page(page: Human, judged: list[Judged]) -> None:
    from rmqctl.commands.check.verify import covered
    from rmqctl.commands.shared.verifying import show_page

    if len(judged) == 1 and judged[0].verdict is not None:
        show_page(page, judged[0].verdict, covered)
        return
    rows = []
    for store in judged:
        if store.verdict is None:
            rows.append({"store": store.root, "verdict": "not judged", "detail": str(store.error)})
            continue
        each, cover = store.verdict, store.verdict.coverage
        top = each.counts.most_common(3)
        rows.append({
            "store": store.root,
            "verdict": "no damage" if each.ok else counted(each.troubles, "finding"),
            "messages": count_text(cover.messages), "commitlog": size_text(cover.bytes_total),
            "damaged": size_text(cover.bytes_damaged),
            "detail": ", ".join(f"{count} {name}" for (name, _), count in top)})
    page.table(rows, ("store", "verdict", "messages", "commitlog", "damaged", "detail"),
               styles={"verdict": lambda value: "good" if value == "no damage" else "bad"})
    bad = [store.root for store in judged if store.verdict is not None and not store.verdict.ok]
    if bad:
        page.heading("What next")
        page.text("\n".join(typed.other("verify", root) for root in bad[:6]))
