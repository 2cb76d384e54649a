"""``rmqctl convert``: convert consume queues, or create a new store with a plain log."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.deferred_signals import DeferredSignals
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import Jobs, ListedOut, StoreOptions, worker_count
from rmqctl.errors import ExitCode, RmqctlError, UsageError, require
from rmqctl.output.cells import cut
from rmqctl.output.units import count_text, size_text
from rmqctl.parse_values import now_ms
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.commands.shared.plan_page import Proposal
    from rmqctl.output import Human, Output
    from rmqctl.repair.convert.release import ForRelease
    from rmqctl.repair.scratch import Scratch

_LEFT = ("count", "what", "topic", "consequence")
_TOPIC = 30
_SETTINGS = ("file", "name", "field", "value")
_ENGINE = "version lmq multi_dispatch message_delay_level"


def command(
    *,
    commitlog: Annotated[Literal["plain", "multi-path"] | None, typer.Option(
        "--commitlog", show_default=False,
        help="With --out. plain: one folder, without DLedger; multi-path: several folders "
             "(--into).")] = None,
    into: Annotated[list[str] | None, typer.Option(
        "--into", metavar="FOLDER", show_default=False,
        help="Folder of the new log for --commitlog multi-path, relative to NEWSTORE or absolute; "
             "pass two or more.")] = None,
    consumequeue: Annotated[Literal["file", "rocksdb"] | None, typer.Option(
        "--consumequeue", show_default=False,
        help="Form of the consume queues: file, or rocksdb (defaultRocksDB, 5.2.0 and later; extra "
             "[rocksdb]).")] = None,
    release: Annotated[str | None, typer.Option(
        "--for", metavar="RELEASE", show_default=False,
        help="Prepare the store for brokers of this older release, such as 4.9.3.")] = None,
    target: Annotated[str | None, typer.Option(
        "--out", metavar="NEWSTORE", show_default=False,
        help="Create a new store here (an empty or new folder) and leave STORE unchanged.")] = None,
    apply: ApplyOptions,
    jobs: Jobs = 0,
    engine: Annotated[EngineOptions, pick(_ENGINE)],
    store: StoreOptions,
    out: ListedOut,
) -> None:
    """Convert a store to another layout, or for brokers of an older release.

    Shows the plan for STORE; --apply carries it out and `rmqctl undo` reverts it. With --out, the
    store is copied and the copy is converted. A damaged log is rejected: run `rmqctl recover`
    first.

    --consumequeue rebuilds the consume queues from the log; a queue whose messages have all expired
    keeps its offset. --for RELEASE converts RocksDB consume queues and configuration to files and
    removes newer JSON fields; what cannot be converted is listed, with exit code 1. For config/
    alone, see `rmqctl config convert`.

    --commitlog plain copies each intact message of a DLedger log with its queue offset, so consumer
    offsets stay valid; .rmqctl/physical-offsets.csv maps the old physical offsets to the new ones.
    Fillers replace damaged messages, with exit code 1. A log in several folders is copied
    unchanged.

        rmqctl convert STORE --consumequeue rocksdb
        rmqctl convert STORE --consumequeue file --apply
        rmqctl convert STORE --commitlog plain --out NEWSTORE
        rmqctl convert STORE --for 4.9.3 --out NEWSTORE
    """
    given = store.over_conf(engine.given(_ENGINE))
    if release is not None and (commitlog or consumequeue):
        raise UsageError("--for cannot be combined with --consumequeue or --commitlog: it converts "
                         "consume queues itself; run --commitlog plain first")
    if (commitlog == "multi-path") != bool(into):
        raise UsageError("--commitlog multi-path requires two or more --into FOLDER")
    # A log without DLedger gets other physical offsets, so it is always a new store.
    if commitlog is not None:
        if target is None:
            raise UsageError(f"--commitlog {commitlog} requires --out NEWSTORE")
        if consumequeue == "rocksdb":
            raise UsageError("run --commitlog plain --out NEWSTORE first, then `rmqctl convert "
                             "NEWSTORE --consumequeue rocksdb`")
        with store.open() as opened:
            in_folders = commitlog == "multi-path" or opened.layout.commitlog == "multi-path"
        if in_folders:
            _in_folders(out, store, target, into or ())
        else:
            _without_dledger(out, store, target, given)
        return
    if consumequeue is None and release is None:
        raise UsageError("pass --consumequeue file or rocksdb, --commitlog plain, or --for RELEASE")
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.convert.queues import WRITES, ConvertOptions, plan_convert
    from rmqctl.repair.convert.release import plan_for, target_release

    older = None if release is None else target_release(release)
    if consumequeue:
        require("rocksdict")
    options = ConvertOptions(consumequeue or "file", worker_count(jobs), store.folders,
                             store.sizes, given)
    # For an older release a DLedger log stays as it is, or is refused.
    root, writes = store.root, WRITES if older is None else ()
    # With --out the copy is converted, and the original is only read.
    if target is not None:
        from rmqctl.repair.convert.new_store import copy_store, remember

        with store.open() as opened, DeferredSignals() as signals, out.progress(
                "copying", opened.log.size) as progress:
            opened.layout.require_writable(root, writes)
            copy_store(opened, target, progress.advance, signals.check)
            if older is not None:
                remember(target, {**opened.config.remembered, "version": older})
        out.note(Phrase("converting {store}, a copy of {source}", store=target,
                        source=root))
        root, apply = target, replace(apply, apply=True, yes=True)

    # From here on, conversion is a plan like any other repair.
    def propose(scratch: Scratch) -> plan_page.Proposal:
        if older is None:
            return plan_page.Proposal(plan_convert(root, scratch, options, out.watch))
        return _for_release(plan_for(root, older, scratch, options, out.watch, now_ms()), older)

    try:
        applying.run(out, root, "convert", propose, apply, writes=writes)
    except RmqctlError:
        if target is not None:
            out.warn(Phrase("{store} is an unconverted copy", store=target))
        raise


def _for_release(conversion: ForRelease, release: str) -> Proposal:
    """Return the plan, extended by a list of what cannot be converted and by remedies."""
    from rmqctl.checks.losses import summed
    from rmqctl.commands.shared.plan_page import Proposal

    rows = [left.as_dict() for left in conversion.left]
    settings = [setting.as_dict() for setting in conversion.settings]
    others = summed(left.loss for left in conversion.left if left.is_loss and not left.is_counted)
    remedies = dict.fromkeys(str(row["remedy"]) for row in rows if row["remedy"])
    return Proposal(
        replace(conversion.plan, notes=(*conversion.plan.notes, *remedies)),
        {"for": release, "not_converted": rows, "settings_dropped": settings},
        ends_with=ExitCode.FINDINGS if any(left.is_loss for left in conversion.left)
        else ExitCode.OK,
        checked_by=("preflight", conversion.plan.root, "--broker-version", release),
        also=None if others is None else Phrase("{what} not converted", what=others),
        listed=((Phrase("Cannot be converted"), [
            {**row, "topic": cut(row["topic"] or "", _TOPIC)} for row in rows], _LEFT),
                (Phrase("Dropped settings"), settings, _SETTINGS)))


def _in_folders(out: Output, store: StoreOptions, target: str, into: Sequence[str]) -> None:
    from rmqctl.repair.convert.folders import READ_ONLY, SETTING, InFolders

    if len(into) == 1:
        raise UsageError("--commitlog multi-path requires two or more --into FOLDER")
    with store.open() as opened, DeferredSignals() as signals:
        conversion = InFolders(opened, target, into)
        with out.progress("copying", conversion.size) as progress:
            done = conversion.run(progress.advance, signals.check)
    document = {**done.as_dict(), "next": [f"rmqctl verify {shlex.quote(target)}"]}

    def show(page: Human) -> None:
        page.pairs({"new store": done.store, "log copied": size_text(done.bytes_copied),
                    SETTING: done.setting})
        page.heading(Phrase("Log folders"))
        page.table(({"folder": folder, "files": count}
                    for folder, count in done.folders.items()), ("folder", "files"))
        page.heading(Phrase("What next"))
        page.text(document["next"][0])

    out.document(document, show)
    out.note(Phrase("a broker on the new store needs {setting}={value} in its configuration "
                    "and must not set {other}", setting=SETTING, value=done.setting,
                    other=READ_ONLY))


def _without_dledger(out: Output, store: StoreOptions, target: str, given: dict[str, Any]) -> None:
    from rmqctl.repair.convert.new_store import WithPlainLog

    with store.open() as opened, DeferredSignals() as signals:
        conversion = WithPlainLog(opened, target, given)
        with out.progress("converting", conversion.size) as progress:
            done = conversion.run(progress.advance, signals.check)
    document = {**done.as_dict(), "next": [f"rmqctl verify {shlex.quote(target)}"]}
    out.document(document, lambda page: _show(page, document))
    for note in conversion.notes:
        out.note(note)
    for text, count in done.refused.most_common():
        out.warn(f"{count_text(count)} rejected: {text}")
    if not done.is_whole:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _show(page: Human, document: Mapping[str, Any]) -> None:
    places = document["left_out_at"]
    page.pairs({
        "new store": document["store"],
        "messages": count_text(document["messages"]),
        "log copied": size_text(document["bytes_copied"]),
        "log written": size_text(document["bytes_written"]),
        **({"skipped": f"{count_text(document['left_out'])} damaged, at "
                        f"{', '.join(map(str, places))}; replaced by "
                        f"{count_text(document['fillers'])} fillers"}
           if places else {}),
        **({"unmapped": f"{count_text(document['unmapped'])} commits or rollbacks of half "
                           "messages that are not in the log"} if document["unmapped"] else {}),
        "physical offsets": document["mapping"],
    })
    page.heading("What next")
    page.text(document["next"][0])
