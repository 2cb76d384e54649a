"""``rmqctl recover``: repair a damaged store, or do what a broker's startup would do."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import ApplyOptions, Complete, parts_of
from rmqctl.commands.shared.engine_options import REBUILD, EngineOptions
from rmqctl.commands.shared.options import (
    Form,
    Jobs,
    ListedOut,
    Queue,
    StoreOptions,
    Topic,
    Zone,
    complete_folders,
    with_form,
    worker_count,
)
from rmqctl.errors import ExitCode, UsageError
from rmqctl.parse_values import now_ms, parse_size, show_times_in

if TYPE_CHECKING:
    from rmqctl.output import Human, Output
    from rmqctl.repair.plan import Plan
    from rmqctl.repair.recover import RecoverOptions
    from rmqctl.repair.scratch import Scratch

_STRUCTURES = ("commitlog", "consumequeue", "index", "checkpoint", "topic-queue-table", "timer",
               "config")


def _parse_fillers(text: str) -> str:
    if text not in ("in-place", "none", "topic"):  # topic: former value, without effect
        raise UsageError(f"--fillers {text}: expected in-place or none")
    return text


def command(
    *,
    only: Annotated[str | None, typer.Option(
        "--only", metavar="PARTS", parser=parts_of(_STRUCTURES),
        help="Only (comma-separated) commitlog, consumequeue, index, checkpoint, "
             "topic-queue-table, timer or config.")] = None,
    strategy: Annotated[Literal["salvage", "broker"], typer.Option(
        "--strategy", help="salvage: keep every intact message. broker: truncate at the first "
                           "damage, as a broker's startup does.")] = "salvage",
    topic: Topic = None,
    queue: Queue = None,
    missing_file: Annotated[Literal["fillers", "blank"], typer.Option(
        "--missing-file", help="How to replace a missing commitlog file: with fillers for the "
                               "known messages, or with one blank record.")] = "fillers",
    ambiguous: Annotated[Literal["leave-out", "keep"] | None, typer.Option(
        "--ambiguous", help="Undecided records after damage: keep them as messages, or discard "
                            "(leave-out). --apply requires this option.")] = None,
    max_message_size: Annotated[int | None, typer.Option(
        "--max-message-size", metavar="SIZE", parser=parse_size, show_default=False,
        help="Largest possible record (default: maxMessageSize or 4 MiB, or the largest with an "
             "entry, plus 64 KiB).")] = None,
    correct: Annotated[Literal["bit", "byte", "off"], typer.Option(
        "--correct", help="Correct a CRC mismatch if exactly one change explains it. bit: one bit; "
                          "byte: also 1 to 4 bytes.",
    )] = "byte",
    keep_damaged: Annotated[bool, typer.Option(
        "--keep-damaged", help="Instead of fillers, deliver damaged bodies, with a new CRC and "
                               "the property RMQCTL=damaged.")] = False,
    fillers: Annotated[str, typer.Option(
        "--fillers", metavar="in-place|none", parser=_parse_fillers,
        help="in-place: replace lost messages with fillers in their topics. none: refuse a repair "
             "that needs fillers.")] = "in-place",
    sources: Annotated[list[str] | None, typer.Option(
        "--from", metavar="SOURCE", autocompletion=complete_folders,
        help="Another copy of the log (read-only, repeatable): store, commitlog file, messages, "
             "tier or config export.")] = None,
    prefer: Annotated[str | None, typer.Option(
        "--prefer", metavar="SOURCE", autocompletion=complete_folders,
        help="Which copy wins where a SOURCE has a different message at the same offset (default: "
             "ours, exit code 1).")] = None,
    explain: Annotated[int | None, typer.Option(
        "--explain", metavar="OFFSET", min=0, show_default=False,
        help="Only show verdict, planned repair and evidence for one physical offset.")] = None,
    consumequeue: Form = None,
    complete: Complete = None,
    apply: ApplyOptions,
    jobs: Jobs = 0,
    engine: Annotated[EngineOptions, pick(REBUILD)],
    store: StoreOptions,
    tz: Zone = UTC,
    out: ListedOut,
) -> None:
    """Repair a damaged store without losing intact messages.

    Shows the plan; --apply carries it out. Fillers (RMQCTL=lost) replace damaged parts of the log
    in place, so intact messages stay and no queue has a gap; lost messages are listed. Consume
    queues, index and checkpoint are then rebuilt where they differ. A DLedger member is repaired
    only from another member (--from). `rmqctl undo` restores what was replaced. Exit code 1 if
    messages are lost or an index of unknown shape stays damaged.

        rmqctl recover STORE
        rmqctl recover STORE --apply
        rmqctl recover STORE --correct bit
        rmqctl recover STORE --from /backup/store --apply
        rmqctl recover STORE --only consumequeue --topic TopicTest --queue 3 --apply
        rmqctl recover STORE --strategy broker --broker-version 5.3.3
    """
    from rmqctl.api import source_readers
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.phrases import Phrase
    from rmqctl.repair.recover import RecoverOptions

    # Refuse options that contradict each other before the store is opened.
    show_times_in(tz)
    if fillers == "topic":
        out.note(Phrase("--fillers topic has no effect: fillers are always in the lost message's "
                        "topic"))
    _refuse(only, strategy, topic, queue)
    _refuse_sources(strategy, topic, sources or (), prefer)
    # Collect all options in one object for the planner.
    parts = only.split(",") if only else (["consumequeue"] if topic else list(_STRUCTURES))
    given = store.over_conf(engine.given(REBUILD))
    wishes = RecoverOptions(frozenset(parts), topic, queue, missing_file,
                            ambiguous or "leave-out",
                            worker_count(jobs), store.folders,
                            replace(with_form(store.sizes, consumequeue),
                                    largest_record=max_message_size), given, correct,
                            keep_damaged, "none" if fillers == "none" else "in-place",
                            sources or (), prefer, source_readers(),
                            engine.multi_dispatch, consumequeue)
    # A single queue table, --explain and the broker's strategy have their own planners.
    if parts == ["topic-queue-table"] and not out.is_data:
        from rmqctl.commands.check import recover_table

        recover_table.command(jobs=jobs, store=store, out=out)
        return
    if explain is not None:
        _explain(out, store, wishes, explain, apply)
        return
    if strategy == "broker":
        _as_broker(out, store, wishes, engine.version, apply, complete)
        return

    # The plan decides the exit code, and whether the user must choose first.
    def propose(scratch: Scratch) -> plan_page.Proposal:
        from rmqctl.repair.outlook import damaged_tail
        from rmqctl.repair.recover import plan_opened
        from rmqctl.store import Store

        with Store.open(store.root, wishes.commitlog_dirs, wishes.sizes) as opened:
            plan = plan_opened(opened, scratch, wishes, out.watch)
            tail = None if apply.apply else damaged_tail(opened, plan)
        lost = bool(plan.lost or plan.ambiguous
                    or plan.kept_damaged or plan.conflicts or plan.left_damaged)
        instead = ("undo", store.root, plan.undo_first) if plan.undo_first is not None else ()
        proposal = plan_page.Proposal(plan, ends_with=ExitCode.FINDINGS if lost else ExitCode.OK,
                                      instead=instead, is_repair=True,
                                      tail=tail)
        if _is_undecided(plan, ambiguous):
            proposal = replace(proposal, refused=_undecided(plan.ambiguous), choice=(
                ("--ambiguous", "keep"), ("--ambiguous", "leave-out")))
        return applying.asking_for_form(proposal)

    applying.run(out, store.root, "recover", propose, apply, resume=True, made_anew=True,
                 mends=True, folders=store.folders, writes=wishes.writes, complete=complete)


def _explain(out: Output, store: StoreOptions, wishes: RecoverOptions, offset: int,
             apply: ApplyOptions) -> None:
    from rmqctl.repair.explain import explain
    from rmqctl.repair.recover import plan_opened
    from rmqctl.repair.scratch import Scratch
    from rmqctl.store import Store

    if apply.apply:
        raise UsageError("--explain and --apply are mutually exclusive")
    with Store.open(store.root, wishes.commitlog_dirs, wishes.sizes) as opened:
        with Scratch(None, f"rmqctl-{uuid.uuid4().hex}") as scratch:
            plan = plan_opened(opened, scratch, wishes, out.watch)
        place = explain(opened, plan, offset)

    def show(page: Human) -> None:
        page.pairs({"place": f"{place.start} to {place.end}", "verdict": place.verdict.value,
                    "remedy": place.remedy.value})
        page.blank()
        page.table([{"source": piece.source, "detail": piece.detail} for piece in place.evidence],
                   ("source", "detail"))

    out.document(place.as_dict(), show)


def _is_undecided(plan: Plan, ambiguous: str | None) -> bool:
    """Return whether the user must decide about undecided records before the plan is applied."""
    return bool(plan.ambiguous) and ambiguous is None


def _undecided(count: int) -> str:
    return (f"{count:,} record{'s are' if count > 1 else ' is'} undecided: messages, or part of a "
            "damaged message's body. Nothing was changed. Pass --ambiguous keep or --ambiguous "
            "leave-out")


def _refuse(only: str | None, strategy: str, topic: str | None, queue: int | None) -> None:
    if strategy == "broker" and (only or topic):
        raise UsageError("--strategy broker cannot be combined with --only or --topic")
    if queue is not None and topic is None:
        raise UsageError("--queue requires --topic")
    if topic is not None and only not in (None, "consumequeue"):
        raise UsageError("--topic requires --only consumequeue")


def _refuse_sources(strategy: str, topic: str | None, sources: Sequence[str],
                    prefer: str | None) -> None:
    if sources and (strategy == "broker" or topic):
        raise UsageError("--from cannot be combined with --strategy broker or --topic")
    if prefer is None:
        return
    if not sources:
        raise UsageError("--prefer requires --from")
    named = {os.path.realpath(name) for name in sources}
    if prefer != "ours" and os.path.realpath(prefer) not in named:
        raise UsageError(f"--prefer {prefer}: expected ours, or one of the --from sources")


def _as_broker(out: Output, store: StoreOptions, wishes: RecoverOptions, version: str | None,
               apply: ApplyOptions, complete: str | None) -> None:
    from rmqctl.broker.queue_form import refuse_other
    from rmqctl.checks.preflight.preflight import preflight
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.broker import plan_broker
    from rmqctl.store import Store

    # Plan exactly what the prediction says, so both must come from the same opened store.
    def propose(scratch: Scratch) -> plan_page.Proposal:
        with Store.open(store.root, store.folders, wishes.sizes) as opened:
            refuse_other(opened, wishes.form)
            with out.progress("reading the log", opened.log.size) as progress:
                prediction = preflight(opened, version, progress=progress.advance)
            plan = plan_broker(opened, version, scratch, now_ms, given=wishes.given,
                               prediction=prediction)
        # Undecided records block the plan, as the result of a broker's start is unknown.
        undecided = prediction.undecided
        refused = "" if not undecided else (
            f"{undecided[0]}. Nothing was changed")
        ends_with = (ExitCode.FAILED if not prediction.starts else
                     ExitCode.OK if prediction.harmless else ExitCode.FINDINGS)
        return applying.asking_for_form(plan_page.Proposal(plan, {
            "starts": prediction.starts, "recovery": prediction.broker.recovery,
            "truncate_to": prediction.log.truncate_to,
            "messages_lost_total": prediction.account.cut}, ends_with=ends_with,
            impact=prediction.cut_impact, refused=refused,
            instead=() if prediction.starts else ("recover", store.root),
            is_repair=True))

    applying.run(out, store.root, "recover", propose, apply, folders=store.folders,
                 made_anew=True, complete=complete)
