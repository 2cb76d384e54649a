"""``rmqctl tiered dispatch``: upload a local store's messages to a tier, as a broker does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.applying import WriteOutside
from rmqctl.commands.shared.deferred_signals import DeferredSignals
from rmqctl.commands.shared.options import DryRun, Out, StoreQueues
from rmqctl.commands.shared.plan_page import blank_for_none
from rmqctl.commands.shared.tiered_options import TieredIndexMax, TieredIndexSlots, TierRoot
from rmqctl.errors import ExitCode, UsageError
from rmqctl.output.units import count_text, size_text
from rmqctl.parse_values import now_ms, parse_duration, parse_size, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmqctl.ext.tiered.dispatch.plan import Start
    from rmqctl.ext.tiered.dispatch.request import Request, Result
    from rmqctl.output import Human, Output

_BROKER = "The broker's configuration"
_COLUMNS = ("topic", "queue_id", "from", "to", "messages", "bytes", "completed", "status", "reason")

Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata", metavar="FILE",
        help="tieredStoreMetadata.json (default: in STORE/config). The parent of its folder "
             "contains tiered_index_file/.",
    ),
]
Broker = Annotated[
    str | None,
    typer.Option("--broker", metavar="NAME", rich_help_panel=_BROKER,
                 help="brokerName, if neither the tier nor a brokerIdentity file contains it."),
]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", rich_help_panel=_BROKER,
                 help="brokerClusterName, if the tier contains none (default: DefaultCluster)."),
]


def _size(option: str, default: str, meaning: str) -> Any:
    return typer.Option(option, metavar="SIZE", parser=parse_size, rich_help_panel=_BROKER,
                        help=f"{meaning} (default {default}, or that of the tier's first upload).")


def command(
    *,
    root: TierRoot,
    metadata: Metadata = None,
    cluster: Cluster = None,
    broker: Broker = None,
    topic: Annotated[list[str] | None, typer.Option(
        "--topic", "-t", metavar="TOPIC", help="Only this topic; repeatable.")] = None,
    start: Annotated[str, typer.Option(
        "--start", metavar="earliest|broker|TIME",
        help="Where a new queue starts: at its first message, two minutes ago (as with a broker), "
             "or at a time.")] = "earliest",
    only_due: Annotated[bool, typer.Option(
        "--only-due", help="Only queues that a broker would upload now: by the age of the oldest "
                           "message or the number of messages.")] = False,
    restart_queue: Annotated[bool, typer.Option(
        "--restart-queue", help="Move aside and restart a tiered queue that the local queue does "
                                "not continue. (A broker deletes it.)")] = False,
    commit_log_max: Annotated[
        int | None, _size("--commitlog-max-size", "1GiB", "tieredStoreCommitLogMaxSize")] = None,
    consume_queue_max: Annotated[
        int | None,
        _size("--consumequeue-max-size", "100MiB", "tieredStoreConsumeQueueMaxSize")] = None,
    index_slots: TieredIndexSlots = None,
    index_max: TieredIndexMax = None,
    group_commit_count: Annotated[int | None, typer.Option(
        "--group-commit-count", metavar="N", min=1, rich_help_panel=_BROKER,
        help="tieredStoreGroupCommitCount (default 4096).")] = None,
    group_commit_size: Annotated[int | None, typer.Option(
        "--group-commit-size", metavar="SIZE", parser=parse_size, rich_help_panel=_BROKER,
        help="tieredStoreGroupCommitSize (default 4MiB).")] = None,
    group_commit_timeout: Annotated[int | None, typer.Option(
        "--group-commit-timeout", metavar="AGE", parser=parse_duration, rich_help_panel=_BROKER,
        help="tieredStoreGroupCommitTimeout (default 30s).")] = None,
    rolling_interval: Annotated[int | None, typer.Option(
        "--rolling-interval", metavar="AGE", parser=parse_duration, rich_help_panel=_BROKER,
        help="commitLogRollingInterval (default 24h): older segments are closed.")] = None,
    rolling_min_size: Annotated[int | None, typer.Option(
        "--rolling-min-size", metavar="SIZE", parser=parse_size, rich_help_panel=_BROKER,
        help="commitLogRollingMinimumSize (default 16MiB): smaller segments stay open.")] = None,
    no_index: Annotated[bool, typer.Option(
        "--no-index", help="Do not create an index (messageIndexEnable=false).")] = False,
    seal_index: Annotated[bool, typer.Option(
        "--seal-index",
        help="Also upload the open index file, as a broker does at shutdown.")] = False,
    verify_after: Annotated[bool, typer.Option(
        "--verify-after", help="Read back the upload, compare it with STORE, and verify this "
                               "broker's whole tier.")] = False,
    dry_run: DryRun = False,
    write_outside: WriteOutside = None,
    now: Annotated[str | None, typer.Option(
        "--now", metavar="TIME", help="The current time to assume.")] = None,
    store: StoreQueues,
    out: Out,
) -> int:
    """Upload a local store's messages to a tier; no broker may run on the store.

    Writes the messages to DIR. The metadata (config/tieredStoreMetadata.json) and the index files
    (tiered_index_file/) are written in STORE, or where --metadata points. A broker can continue the
    upload. A damaged message stops its queue (exit code 1), not the others. The next run completes
    an interrupted upload. Times are those of the messages, even where a broker misreads them (IPv6
    hosts).

        rmqctl tiered dispatch STORE /mnt/tier --broker broker-a
        rmqctl tiered dispatch STORE /mnt/tier --only-due --verify-after
    """
    from rmqctl.ext.tiered.dispatch.request import Request

    fixed = None if now is None else parse_time(now)

    def clock() -> int:
        return now_ms() if fixed is None else fixed

    conf = {} if store.broker_conf is None else store.broker_conf.tier
    request = Request(
        store.root, root, metadata, cluster or conf.get("cluster"), broker or conf.get("broker"),
        tuple(topic or ()), _start(start, clock),
        only_due, restart_queue, not no_index, seal_index, verify_after,
        {"commit_log_max": commit_log_max,
         "consume_queue_max": consume_queue_max or conf.get("consumequeue_max_size"),
         "index_slots": index_slots or conf.get("index_slots"),
         "index_max": index_max or conf.get("index_max"),
         "group_commit_count": group_commit_count, "group_commit_size": group_commit_size,
         "group_commit_timeout": group_commit_timeout, "rolling_interval": rolling_interval,
         "rolling_min_size": rolling_min_size},
        store.folders, store.sizes, tuple(write_outside or ()))
    if seal_index and no_index:
        raise UsageError("--seal-index cannot be combined with --no-index")
    result = _rehearsed(request, clock) if dry_run else _run(out, request, clock)
    _show(out, result, dry_run=dry_run)
    return ExitCode.FINDINGS if result.is_fault else ExitCode.OK


def _start(text: str, clock: Callable[[], int]) -> Start:
    from rmqctl.ext.tiered.dispatch.plan import BROKERS_START, Start

    if text == "earliest":
        return Start()
    return Start(clock() - BROKERS_START if text == "broker" else parse_time(text, clock=clock))


def _rehearsed(request: Request, clock: Callable[[], int]) -> Result:
    from rmqctl.ext.tiered.dispatch import session

    return session.dry_run(request, clock)


def _run(out: Output, request: Request, clock: Callable[[], int]) -> Result:
    from rmqctl.ext.tiered.dispatch.request import DispatchObserver
    from rmqctl.ext.tiered.dispatch.session import dispatch

    with DeferredSignals() as signals, out.progress("uploading", None) as progress:
        result = dispatch(request, clock,
                          DispatchObserver(progress.total, progress.advance, progress.label,
                                                           lambda: signals.requested))
        if result.stopped or signals.requested:
            progress.hide()
            _show(out, result, dry_run=False)
            if result.stopped:
                out.warn("interrupted: uploaded messages are kept, and the next run continues "
                         "after them")
            signals.check()
    return result


def _show(out: Output, result: Result, *, dry_run: bool) -> None:
    for text in result.notes:
        out.note(text)
    for outcome in result.outcomes:
        if outcome.reason is not None:
            out.warn(f"{outcome.topic}/{outcome.queue_id}: {outcome.reason}")
    if result.checked is not None:
        for text in result.checked.problems:
            out.warn(f"read back: {text}")
        for text in result.checked.findings:
            out.warn(f"verify: {text}")
    if dry_run:
        out.note("dry run: nothing was changed")
    document = {**result.as_dict(), "dry_run": dry_run}
    rows = [outcome.as_dict() for outcome in result.outcomes]
    out.listing(document, lambda page: _page(page, result), rows=rows, columns=_COLUMNS)


def _page(page: Human, result: Result) -> None:
    from rmqctl.checks.verify.common import plural

    page.pairs({
        "tier of": f"{result.broker} ({result.cluster})",
        "messages": count_text(sum(outcome.messages for outcome in result.outcomes)),
        "size": size_text(sum(outcome.bytes for outcome in result.outcomes)),
        "index": f"{count_text(result.items)} items, {plural(result.index_files, 'file')} uploaded",
        **({} if result.checked is None else
           {"read back": f"{count_text(result.checked.messages)} messages identical to those "
                         "in the store",
            "verified": "no findings" if not result.checked.findings else "see the warnings"}),
    })
    rows = [blank_for_none(outcome.as_dict()) for outcome in result.outcomes]
    if rows:
        page.blank()
        page.table(rows, [name for name in _COLUMNS[:-1]
                          if name != "completed" or any(row[name] for row in rows)])
