"""``rmqctl undo``: undo a repair."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app import typed
from rmqctl.commands.app.extensions import has
from rmqctl.commands.shared.options import DryRun, Out, StoreRoot, Zone
from rmqctl.errors import NotAStoreError, RmqctlError, UsageError
from rmqctl.output.units import size_text, time_text
from rmqctl.parse_values import now_ms, parse_duration, show_times_in
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.output import Human, Output

_MAX_SHOWN = 20
_FOR_GOOD = "They can no longer be undone."


def command(
    *,
    store: StoreRoot,
    id: Annotated[  # noqa: A002
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="The repair to undo (default: the newest that is not undone).",
            show_default=False,
        ),
    ] = None,
    list_all: Annotated[bool, typer.Option(
        "--list", help="Only list the repairs of STORE, newest first.")] = False,
    force: Annotated[bool, typer.Option(
        "--force", help="Undo even if files have changed since the repair; their current versions "
                        "are kept, too.")] = False,
    moved: Annotated[list[str] | None, typer.Option(
        "--moved", metavar="OLD=NEW", show_default=False,
        help="For a moved or copied store: a folder outside it in which the repair changed files, "
             "and its new location.")] = None,
    write_outside: Annotated[list[str] | None, typer.Option(
        "--write-outside", metavar="FOLDER", show_default=False,
        help="Also write to this folder outside STORE, in which the repair changed files.")] = None,
    abandon: Annotated[bool, typer.Option(
        "--abandon", help="Give up an interrupted repair: STORE and the kept files stay as they "
                          "are.")] = False,
    prune: Annotated[int | None, typer.Option(
        "--prune", metavar="AGE", parser=parse_duration, show_default=False,
        help="Permanently delete the kept files of repairs older than AGE (30d). Without --apply, "
             "only list them.")] = None,
    forget: Annotated[bool, typer.Option(
        "--forget", help="With --prune: also delete the records of what the repairs "
                         "lost.")] = False,
    apply: Annotated[bool, typer.Option(
        "--apply", help="With --prune: delete the kept files permanently. Otherwise no effect: "
                        "undo does not need it.")] = False,
    yes: Annotated[bool, typer.Option(
        "--yes", "-y", help="Do not ask for confirmation, even on a terminal.")] = False,
    dry_run: DryRun = False,
    tz: Zone = UTC,
    out: Out,
) -> None:
    """Undo a repair: restore bytes, sizes, names and times of all files it changed.

    Repairs keep what they replace in STORE/.rmqctl/repairs/ID; undo moves the repair's own files to
    ID/undone. An interrupted repair is undone as far as it got. Undo refuses if a file was changed
    since, or if a later repair changed the same files: undo that first. Scripts should pass the ID:
    without one, a second run undoes a second repair.

    Kept files use disk space until --prune deletes them: those of the oldest repairs, up to the
    first repair younger than AGE. While a repair is unfinished, nothing is deleted. The store
    itself does not change, and the record of lost messages stays.

        rmqctl undo STORE --list
        rmqctl undo STORE 20261121T101112Z-1 --yes -o json
        rmqctl undo STORE --prune 30d
    """
    from rmqctl.commands.shared.applying import ask, at_a_terminal
    from rmqctl.repair.executor.executor import Repair
    from rmqctl.repair.executor.journal import history
    from rmqctl.repair.executor.undo import preview

    show_times_in(tz)
    # Show the list, if requested.
    repairs = history(store.root)
    if not repairs:
        _check_root(store.root)
    if list_all:
        if id is not None or force or abandon or moved:
            raise UsageError("--list cannot be combined with ID, --force, --moved or --abandon")
        _list(out, store.root)
        return
    if prune is not None:
        if id is not None or force or abandon or moved or (apply and dry_run):
            raise UsageError("--prune cannot be combined with ID, --force, --moved or --abandon, "
                             "nor --apply with --dry-run")
        _prune(out, store.root, prune, forget=forget, apply=apply, yes=yes)
        return
    if forget:
        raise UsageError("--forget requires --prune")
    if apply and dry_run:
        raise UsageError("--dry-run and --apply are mutually exclusive")
    if abandon and (force or moved or id is None):
        raise UsageError("--abandon requires an ID and cannot be combined with --force or --moved")
    # Determine what would be reverted, and what was changed since.
    named = [*(write_outside or ()), *_around_tier(store.root)]
    to_undo = preview(store.root, id, moved or (), named)
    document = {**to_undo.entry.as_dict(), "actions": [dict(action) for action in to_undo.actions],
                "changed": list(to_undo.changed), "root": to_undo.root, "host": to_undo.host,
                "kept": f".rmqctl/repairs/{to_undo.entry.id}",
                "undone": False, "next": [typed.again(without=("--dry-run",))]}
    for change in () if abandon else to_undo.changed[:_MAX_SHOWN]:
        out.warn(change)
    if dry_run:
        out.note("dry run: nothing was changed")
        _show(out, store.root, document)
        return
    look = (typed.other("tiered", "verify", store.root)
            if to_undo.entry.command.startswith("tiered ") else typed.other("doctor", store.root))
    # Ask the user, then do the work.
    verb = "Give up" if abandon else "Undo"
    if not yes and at_a_terminal():
        out.tell("Nothing is deleted: the repair's own files are kept in "
                 f"{os.path.join(store.root, '.rmqctl', 'repairs', to_undo.entry.id, 'undone')}")
    ask(out, f"{verb} {to_undo.entry.command} {to_undo.entry.id} ({_count(to_undo.entry.files)})?",
        yes=yes)
    with (
        out.progress("undoing", to_undo.entry.files, unit="steps") as progress,
        Repair(store.root, "undo", progress=progress.advance, finish=False,
               named=named) as repair,
    ):
        if abandon:
            repair.abandon(to_undo.entry.id)
            document |= {"state": "abandoned", "next": [look], "steps": _then(look)}
        else:
            done = repair.undo(to_undo.entry.id, force=force, moved=moved or ())
            document |= {"state": "undone", "undone": True, "next": [look], "steps": _then(look)}
            if done.already:
                out.note(f"{done.id} was already undone; nothing was changed")
    _show(out, store.root, document)


def _then(look: str) -> list[dict[str, Any]]:
    """Return the next step after an undo, in JSON form."""
    from rmqctl.checks.advice import NextStep

    return [NextStep(look, Phrase("checks the store again")).as_dict()]


def _prune(out: Output, root: str, age: int, *, forget: bool, apply: bool, yes: bool) -> None:
    """Show the repairs older than ``age`` (ms). With ``apply``, delete the files that they keep;
    with ``forget``, also delete their records of lost messages.
    """
    from rmqctl.commands.shared.applying import ask, at_a_terminal
    from rmqctl.repair.executor.executor import Repair
    from rmqctl.repair.executor.prune import forgettable, left_elsewhere, prunable

    # Pruning cannot be undone, so it always needs consent.
    if apply and not yes and not at_a_terminal():
        raise UsageError("--prune deletes permanently; without a terminal, --apply requires --yes")
    # Collect what would be deleted; the document is the same for a plan and its application.
    before = now_ms() - age
    prunable_repairs = prunable(root, before)
    total = sum(kept.bytes for kept in prunable_repairs)
    ids = [kept.entry.id for kept in prunable_repairs]
    notes = forgettable(root, before, ids) if forget else []
    document: dict[str, Any] = {
        "before": before, "repairs": [kept.as_dict() for kept in prunable_repairs], "bytes": total,
        "forgets": notes, "applied": False, "next": [typed.again(
            "--apply", without=("--dry-run",))] if (ids or notes) and not apply else []}
    # Nothing proves that kept files in other folders belong to this store, so they stay.
    for kept in prunable_repairs:
        for folder in left_elsewhere(root, kept.entry.id):
            out.warn(f"repair {kept.entry.id} also keeps files in {folder}, from when this store "
                     "was elsewhere; they are not deleted")
    # Ask with the size, then delete under the store's lock.
    if (prunable_repairs or notes) and apply:
        count = f"{len(prunable_repairs)} repair{'' if len(prunable_repairs) == 1 else 's'}"
        ask(out, f"Delete the kept files of {count} ({size_text(total)})? {_FOR_GOOD}", yes=yes)
        with (out.progress("deleting", len(prunable_repairs), unit="repairs") as progress,
              Repair(root, "undo", progress=progress.advance, finish=False) as repair):
            repair.prune(ids, notes)
        document["applied"] = True
    out.document(document, lambda page: _show_pruned(page, document))


def _show_pruned(page: Human, document: dict[str, Any]) -> None:
    rows = document["repairs"]
    # Notes can be deleted even if no repair is old enough.
    if notes := document["forgets"]:
        page.text(f"{'Deleted' if document['applied'] else 'Would delete'} the records of what "
                  f"{len(notes)} repair{'' if len(notes) == 1 else 's'} lost: "
                  f"{', '.join(notes[:_MAX_SHOWN])}")
        if not rows:
            if not document["applied"]:
                page.text("Plan only; nothing was changed. Run again with --apply to delete them.")
            return
    if not rows:
        page.text(f"no repair was made before {time_text(document['before'])}")
        return
    # List the repairs with what they keep.
    page.table(({**row, "time": _when(row["time"]), "keeps": size_text(row["bytes"]),
                 "log files": row["log_files"] or ""} for row in rows[:_MAX_SHOWN]),
               ("id", "time", "command", "state", "keeps", "log files"))
    if len(rows) > _MAX_SHOWN:
        page.text(f"and {len(rows) - _MAX_SHOWN} more (-o json has all)")
    page.blank()
    # State the consequence: space if applied, and what can no longer be restored.
    logs = sum(row["log_files"] for row in rows)
    if document["applied"]:
        page.text(f"Deleted: {size_text(document['bytes'])}. These repairs can no longer be "
                  "undone.")
        return
    page.text("Plan only; nothing was changed. --apply deletes the kept files of these repairs "
              f"({size_text(document['bytes'])}). {_FOR_GOOD}")
    if logs:
        page.text(f"They include {logs} complete log file{'' if logs == 1 else 's'} that these "
                  "repairs moved aside, whose messages may exist nowhere else.")
    page.heading("What next")
    page.text(document["next"][0])


def _check_root(root: str) -> None:
    """Raise NotAStoreError for a folder that is neither a store nor a tier."""
    from rmqctl.store import Store as OpenedStore

    try:
        OpenedStore.open(root).close()
    except NotAStoreError as problem:
        from rmqctl.ext.tiered.tier import Tier

        try:
            Tier.open(root).close()
        except NotAStoreError:
            raise problem from None


def _around_tier(root: str) -> list[str]:
    """Return the paths outside a tier that may be written; an empty list for a store."""
    if not has("tiered"):
        return []
    from rmqctl.ext.tiered.files.metadata_file import writable_around
    from rmqctl.ext.tiered.recover.scope import open_tier

    with contextlib.suppress(RmqctlError), open_tier(root, None):
        return writable_around(root, None)
    return []


def _count(files: int) -> str:
    return "one file or folder" if files == 1 else f"{files} files or folders"


def _list(out: Output, root: str) -> None:
    from rmqctl.repair.executor.journal import history, put_aside

    entries = [*put_aside(root), *history(root)]
    out.rows((entry.as_dict() for entry in reversed(entries)),
             ("id", "time", "command", "state", "actions", "files"),
             empty="no repairs", render={"time": _when})


def _when(time: int | None) -> str:
    return "unknown" if time is None else time_text(time)


def _show(out: Output, store_root: str, document: dict[str, Any]) -> None:
    elsewhere = document["root"] not in ("", os.path.realpath(store_root))

    def page(human: Human) -> None:
        human.pairs({
            "repair": f"{document['command']} {document['id']}",
            "made": _when(document["time"]),
            **({"made in": document["root"], "on host": document["host"] or "-"}
               if elsewhere else {}),
            "state": document["state"],
            "kept in": document["kept"],
        })
        if document["actions"]:
            human.table(({name: action.get(name) for name in ("action", "target", "reason")}
                         for action in document["actions"][:_MAX_SHOWN]),
                        ("action", "target", "reason"), None)
        if len(document["actions"]) > _MAX_SHOWN:
            more = len(document["actions"]) - _MAX_SHOWN
            human.text(f"and {more} more actions (-o json has all)")
        human.heading("What next")
        human.text(document["next"][0])

    out.document(document, page)
