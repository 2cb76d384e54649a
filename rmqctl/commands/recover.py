"""``rmqctl recover``: makes a damaged store whole, or leaves what a broker's start would leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.shared.applying import Apply, DryRun, Yes
from rmqctl.commands.shared.engine_options import (
    BatchConsumequeueFileSize,
    BrokerVersion,
    ConsumequeueExt,
    ConsumequeueExtFileSize,
    DelayLevels,
    Lmq,
    MultiDispatch,
)
from rmqctl.commands.shared.options import (
    CommitlogDirs,
    CommitlogFileSize,
    ConsumequeueFileSize,
    IndexMax,
    IndexSlots,
    Jobs,
    NoProgress,
    OutputFormat,
    Queue,
    Quiet,
    Store,
    Topic,
    Verbose,
    open_output,
    worker_count,
)
from rmqctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.repair.plan import Plan
    from rmqctl.repair.recover import Wishes
    from rmqctl.repair.scratch import Scratch

NAME = ("recover",)
EFFECT = "mutates"

_STRUCTURES = ("commitlog", "consumequeue", "index", "checkpoint", "topic-queue-table")


def parse_only(text: str) -> str:
    """``commitlog,index``: some of the structures."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    unknown = [one for one in found if one not in _STRUCTURES]
    if unknown or not found:
        raise UsageError(f"--only {text!r}: choose from {', '.join(_STRUCTURES)}")
    return ",".join(found)


def command(
    store: Store,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="PARTS", parser=parse_only,
            help="Some of commitlog, consumequeue, index, checkpoint, topic-queue-table, with "
            "commas between.",
        ),
    ] = None,
    strategy: Annotated[
        Literal["salvage", "broker"],
        typer.Option(
            "--strategy",
            help="salvage keeps every intact message; broker leaves what a broker's own start "
            "would leave, which ends the log at the first damage.",
        ),
    ] = "salvage",
    topic: Topic = None,
    queue: Queue = None,
    missing_file: Annotated[
        Literal["fillers", "blank"],
        typer.Option(
            "--missing-file",
            help="What stands for a commitlog file that is missing between others: fillers "
            "of the messages known of it, or one blank record.",
        ),
    ] = "fillers",
    apply: Apply = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    jobs: Jobs = 1,
    broker_version: BrokerVersion = None,
    consumequeue_ext: ConsumequeueExt = None,
    lmq: Lmq = None,
    multi_dispatch: MultiDispatch = None,
    delay_levels: DelayLevels = None,
    consumequeue_ext_file_size: ConsumequeueExtFileSize = None,
    batch_consumequeue_file_size: BatchConsumequeueFileSize = None,
    commitlog_dirs: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    consumequeue_file_size: ConsumequeueFileSize = None,
    index_slots: IndexSlots = None,
    index_max: IndexMax = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Make a damaged store whole: shows the plan, and with --apply carries it out.

    Damaged parts of the log become filler messages, in place, so that every intact message
    stays and no queue has a gap; what is lost is listed with all that is known of it. Then
    consumequeues, index and checkpoint are made anew from the log where they differ. With
    --topic and --queue only these consumequeues. Nothing is deleted: what is replaced is kept,
    and `rmqctl undo` brings it back.

        rmqctl recover STORE

        rmqctl recover STORE --apply

        rmqctl recover STORE --only consumequeue --topic TopicTest --queue 3 --apply

        rmqctl recover STORE --strategy broker --broker-version 5.3.3
    """
    from rmqctl.commands.shared import applying
    from rmqctl.repair.recover import Wishes
    from rmqctl.store import Sizes

    out = open_output(output, quiet, verbose, no_progress)
    _refuse(only, strategy, topic, queue)
    parts = only.split(",") if only else (["consumequeue"] if topic else list(_STRUCTURES))
    given = {
        "version": broker_version, "consumequeue_ext": consumequeue_ext, "lmq": lmq,
        "multi_dispatch": multi_dispatch, "message_delay_level": delay_levels,
        "commitlog_file_size": commitlog_file_size,
        "consumequeue_file_size": consumequeue_file_size,
        "consumequeue_ext_file_size": consumequeue_ext_file_size,
        "batch_consumequeue_file_size": batch_consumequeue_file_size,
        "index_slots": index_slots, "index_max": index_max,
    }
    wishes = Wishes(
        frozenset(parts), topic, queue, missing_file, worker_count(jobs),
        tuple(commitlog_dirs or ()),
        Sizes(commitlog_file_size, consumequeue_file_size, index_slots, index_max), given,
    )  # fmt: skip
    if parts == ["topic-queue-table"] and not out.is_data:
        from rmqctl.commands import recover_table

        recover_table.command(
            store, jobs=jobs, commitlog_dirs=commitlog_dirs,
            commitlog_file_size=commitlog_file_size,
            consumequeue_file_size=consumequeue_file_size, output=output, quiet=quiet,
            verbose=verbose, no_progress=no_progress)  # fmt: skip
        return
    if strategy == "broker":
        _as_broker(out, store, wishes, broker_version, apply=apply, yes=yes, dry_run=dry_run)
        return

    @contextmanager
    def watch(label: str, total: int) -> Iterator[Callable[[int], None]]:
        with out.progress(label, total) as progress:
            yield progress.advance

    def make(scratch: Scratch) -> Plan:
        from rmqctl.repair.recover import plan_recover

        return plan_recover(store, scratch, wishes, watch)

    applying.run(out, store, "recover", make, apply=apply, yes=yes, dry_run=dry_run, resume=True)


def _refuse(only: str | None, strategy: str, topic: str | None, queue: int | None) -> None:
    if strategy == "broker" and (only or topic):
        raise UsageError("a broker's recovery is done wholly: --strategy broker goes without "
                         "--only and --topic")
    if queue is not None and topic is None:
        raise UsageError("--queue needs --topic")
    if topic is not None and only not in (None, "consumequeue"):
        raise UsageError("--topic goes with --only consumequeue")


def _as_broker(out: Output, store: str, wishes: Wishes, version: str | None, *, apply: bool,
               yes: bool, dry_run: bool) -> None:
    from rmqctl.checks.preflight.preflight import preflight
    from rmqctl.commands.shared import applying
    from rmqctl.engine.clock import now_ms
    from rmqctl.repair.broker.broker import plan_broker
    from rmqctl.store import Store as OpenedStore

    seen: dict[str, Any] = {}

    def make(scratch: Scratch) -> Plan:
        with OpenedStore.open(store, wishes.commitlog_dirs, wishes.sizes) as opened:
            total = sum(one.size for one in opened.log.files)
            with out.progress("reading the log", total) as progress:
                found = preflight(opened, version, progress=progress.advance)
            seen.update(starts=found.starts, recovery=found.recovery,
                        truncate_to=found.truncate_to, messages_lost_total=found.messages_lost)
            return plan_broker(opened, version, scratch, now_ms, given=wishes.given,
                               commitlog_dirs=wishes.commitlog_dirs, prediction=found)

    applying.run(out, store, "recover", make, apply=apply, yes=yes, dry_run=dry_run,
                 extra=lambda _: dict(seen))
    if not seen["starts"]:
        raise typer.Exit(int(ExitCode.FAILED))
