"""Code that all repair commands share: show the plan and, with ``--apply``, carry it out.

A command passes to `run` a function that proposes a plan. This module locks the store, completes an
interrupted repair, asks the user, keeps the journal, and prints.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app import typed
from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.advising import START
from rmqctl.commands.shared.plan_page import (
    Proposal,
    show_plan,
    steps_after,
    verdict_of,
    what_next,
)
from rmqctl.errors import (
    ExitCode,
    NotAStoreError,
    RefusedError,
    RmqctlError,
    StoreIOError,
    UsageError,
    noting_refusals,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.units import size_text, time_text
from rmqctl.phrases import Phrase, some_of

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.repair.executor.executor import Applied, Repair
    from rmqctl.repair.scratch import Scratch

_APPLYING = "Applying the plan"

Complete = Annotated[str | None, typer.Option(
    "--complete", metavar="ID", show_default=False, rich_help_panel=_APPLYING,
    help="Complete this interrupted repair even if the path or the files' timestamps have "
         "changed.")]

WriteOutside = Annotated[list[str] | None, typer.Option(
    "--write-outside", metavar="FOLDER", show_default=False,
    help="Also write to FOLDER outside the store, which a link or a setting points to.")]


@dataclass(frozen=True, kw_only=True)
class ApplyOptions(OptionGroup):
    """Options that control whether and how the plan is carried out."""

    apply: Annotated[bool, typer.Option(
        "--apply", help="Carry out the plan (without it, only the plan is shown).",
        rich_help_panel=_APPLYING)] = False
    yes: Annotated[bool, typer.Option(
        "--yes", "-y", rich_help_panel=_APPLYING,
        help="Do not ask for confirmation (never asked without a terminal or with -o json).",
    )] = False
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="No effect: without --apply only the plan is shown.", hidden=True,
        rich_help_panel=_APPLYING)] = False
    write_outside: Annotated[list[str] | None, typer.Option(
        "--write-outside", metavar="FOLDER", rich_help_panel=_APPLYING, show_default=False,
        help="Also write to this folder outside STORE, which a link or the log's settings point "
             "to.")] = None


def parts_of(names: Sequence[str]) -> Callable[[str], str]:
    """Return a parser for the value of ``--only``, a comma-separated list of these ``names``."""

    def parse(text: str) -> str:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts or not set(parts) <= set(names):
            raise UsageError(f"--only {text!r}: expected one or more of {', '.join(names)}")
        return ",".join(parts)

    return parse


def at_a_terminal() -> bool:
    """Return whether standard input is a terminal, where a user can answer a question."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # closed
        return False


def ask(out: Output, question: str, *, yes: bool) -> None:
    """Ask ``question`` on a terminal, unless ``--yes`` is given; return if the answer is yes.

    "No" ends the run with exit code 1; Ctrl-C and the end of input end it as interrupted.
    """
    if yes or not at_a_terminal() or typer.confirm(out.caption(question), err=True):
        return
    out.note("cancelled; nothing was changed")
    raise typer.Exit(int(ExitCode.FINDINGS))


@dataclass(frozen=True, slots=True)
class Tiered:
    """Facts about a tier to repair.

    * ``homes``: store roots of the tier's brokers, which are also locked
    * ``is_root``: raises if a path is not the root of a tier
    * ``writes``: folders with the tier's metadata, to which the repair may write
    """

    homes: Sequence[str]
    is_root: Callable[[str], object]
    writes: Sequence[str] = ()


_UNCHANGED = "nothing was changed"
_FORM_UNPROVEN = (
    "no consume queues are left, and nothing proves whether the broker keeps them in files or in "
    "RocksDB. Nothing was changed. Pass --consumequeue file (storeType=default), --consumequeue "
    "rocksdb (storeType=defaultRocksDB), or --broker-conf")


def asking_for_form(proposal: Proposal) -> Proposal:
    """Return the proposal. If the form of the consume queues is only assumed, mark the returned
    proposal so that ``--apply`` rejects it.
    """
    if not proposal.plan.form_unproven:
        return proposal
    forms = [("--consumequeue", form) for form in ("file", "rocksdb")]
    choice = [(*form, *words) for form in forms for words in proposal.choice or ((),)]
    note = Phrase("No consume queues are left, and nothing proves whether the broker keeps them in "
                  "files or in RocksDB: this plan assumes files, and --apply rejects it.")
    return replace(
        proposal, refused=_FORM_UNPROVEN, choice=choice, ends_with=ExitCode.FINDINGS,
        why_choose=Phrase("names where the broker keeps its consume queues"),
        plan=replace(proposal.plan, notes=(*proposal.plan.notes, note)))


def check_options(out: Output, options: ApplyOptions) -> None:
    """Raise UsageError if the options contradict each other; print a note if ``--dry-run`` has no
    effect.
    """
    if options.dry_run and options.apply:
        raise UsageError("--dry-run and --apply are mutually exclusive")
    if options.yes and not options.apply:
        raise UsageError("--yes requires --apply")
    if options.dry_run:
        out.note(Phrase("--dry-run has no effect: without --apply only the plan is shown"))


Propose = Callable[["Scratch"], Proposal]


def run(out: Output, store_root: str, name: str, propose: Propose, options: ApplyOptions, *,
        resume: bool = False, scratch_above: str | None = None, tier: Tiered | None = None,
        writes: Sequence[str] | None = None, made_anew: bool = False, mends: bool = False,
        folders: Sequence[str] = (), complete: str | None = None) -> None:
    """Show the plan of the command ``name`` for a store; with ``--apply``, carry it out.

    * ``propose``: returns the plan. It receives a scratch folder, in which it may create files.
      With ``--apply`` this folder is on the store's file system and is created under the store's
      lock. For a plan that is only shown, it is a temporary folder below ``scratch_above``.
    * ``scratch_above``: parent of temporary folders (None: the system's default)
    * ``resume``: whether the scratch folder may contain files of an interrupted run, and is kept if
      this run is interrupted
    * ``tier``: facts about the tier if ``store_root`` is the root of a tier
    * ``writes``: structures that must be in a writable form (None: all)
    * ``made_anew``, ``mends``: see `Layout.require_writable`
    * ``folders``: log folders that options name
    * ``complete``: id of the interrupted repair to complete without asking

    Asks for confirmation on a terminal, unless ``--yes`` is given or the output is data. Without a
    terminal, ``--apply`` is enough, because `undo` reverts everything.
    Raises: UsageError, StoreHeldError, and the errors of `Repair`.
    """
    # Refuse bad options, and collect the folders that the command may write to.
    check_options(out, options)
    named = [os.path.join(store_root, folder)
             for folder in (*folders, *(tier.writes if tier else ()))]
    named += map(os.path.abspath, options.write_outside or ())  # as the shell has it
    if options.apply:
        yes = options.yes or out.is_data or not at_a_terminal()
        _apply(out, store_root, name, propose, yes=yes, resume=resume, tier=tier, writes=writes,
               made_anew=made_anew, mends=mends, folders=folders, named=named, complete=complete)
        return
    from rmqctl.files.bounds import stores_around
    from rmqctl.repair.executor.check_plan import check
    from rmqctl.repair.executor.room import rooms
    from rmqctl.repair.scratch import Scratch

    # A plan must also mention an interrupted repair and running brokers.
    unfinished = _unfinished(out, store_root, named, complete, tier)
    roots = (*(tier.homes if tier else ()), store_root)
    for root in {os.path.realpath(root): root for root in (
            *roots, *stores_around(named, roots))}.values():
        _warn_if_held(out, root)
    with Scratch(scratch_above, f"rmqctl-{uuid.uuid4().hex}") as scratch:
        with noting_refusals() as refused:
            proposal = _propose(out, propose, scratch)
        todo = check(store_root, proposal.plan.steps, named)  # --apply would refuse: no plan
        # Offer exactly one next command: another repair, the interrupted one, a check, or --apply.
        following = (typed.other(*proposal.instead) if proposal.instead else
                     unfinished.next if unfinished is not None and unfinished.next else
                     None if proposal.plan.empty else
                     _look(store_root, tier) if refused else
                     typed.again(*(proposal.choice[0] if proposal.choice else ("--apply",)),
                                 without=("--dry-run",)))
        proposal = replace(_looked_at(store_root, proposal), room=rooms(store_root, todo))
        show_plan(out, _with_unfinished(proposal, unfinished),
              "" if proposal.plan.empty else
              Phrase("Plan only; nothing was changed. Before --apply, choose one of: {words}",
                     words=" | ".join(map(" ".join, proposal.choice))) if proposal.choice else
              Phrase("Plan only; nothing was changed. Run again with --apply to carry it out.")
              if all(room.is_enough for room in proposal.room) else
              Phrase("Plan only; nothing was changed. There is too little disk space for --apply."),
              following)
    if refused:
        # What could not be read may look damaged, so such a plan must not be applied.
        raise StoreIOError(f"{refused[0]}; the plan was made without it and cannot be applied")
    _end(proposal)


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """An interrupted repair, shown with the plan. ``fields``: for the JSON document. ``page``: for
    the human-readable page. ``next``: the command that completes the repair; empty if ``--apply``
    does.
    """

    fields: Mapping[str, Any]
    page: Mapping[str, str]
    next: str = ""


def _unfinished(out: Output, store_root: str, named: Sequence[str], complete: str | None,
                tier: Tiered | None) -> _Unfinished | None:
    """Warn about an interrupted repair and return it; return None if no repair was interrupted.
    Raises: UsageError if ``complete`` is not the id of the interrupted repair.
    """
    from rmqctl.repair.executor.journal import pending
    from rmqctl.repair.executor.relocated import interrupted, refuse_unknown

    repair_id = pending(store_root)
    refuse_unknown(store_root, complete, repair_id)
    if repair_id is None:
        return None
    unfinished = interrupted(store_root, named)
    if unfinished is None or not unfinished.question or complete:
        out.warn(Phrase("Repair {id} was interrupted. --apply completes it first; `rmqctl undo "
                        "{store} {id}` reverts it.", id=repair_id,
                        store=store_root))
        follows = ""
    else:
        words = ("tiered", "recover") if tier else ("recover",)
        follows = typed.other(*words, store_root, "--complete", repair_id, "--apply")
        out.warn(Phrase("Repair {id} was interrupted, and {question}. --apply does not complete "
                        "it; `{command}` does, `rmqctl undo {store} {id}` reverts it.",
                        id=repair_id, question=unfinished.question, command=follows,
                        store=store_root))
    if unfinished is None:
        return None
    return _Unfinished(unfinished.as_dict(), {
        "interrupted repair":
        f"{unfinished.id} ({unfinished.command}, {time_text(unfinished.time)})",
        "made in": unfinished.root, "on host": unfinished.host or "-"}, follows)


def _with_unfinished(proposal: Proposal, unfinished: _Unfinished | None) -> Proposal:
    if unfinished is None:
        return proposal
    return replace(proposal, fields={**proposal.fields, "interrupted": unfinished.fields},
                   unfinished=unfinished.page)


def _look(store_root: str, tier: Tiered | None) -> str:
    """Return the command that checks the store or tier without changing it."""
    return typed.other(*(("tiered", "verify") if tier else ("verify",)), store_root)


def _check_again(store_root: str, tier: Tiered | None) -> str:
    """Return the command to run after the repair, which shows any remaining damage."""
    return _look(store_root, tier) if tier else typed.other("doctor", store_root)


def _end(proposal: Proposal) -> None:
    if proposal.ends_with is not ExitCode.OK:
        raise typer.Exit(int(proposal.ends_with))


def _looked_at(store_root: str, proposal: Proposal) -> Proposal:
    """Add the list of files that will be moved aside to the proposal. Also add a note if files with
    hard links will be changed in place.
    """
    from rmqctl.repair.executor.check_plan import moved_aside, shared

    plan = proposal.plan
    linked = shared(store_root, plan.steps)
    moved = moved_aside(store_root, plan.steps)
    proposal = replace(proposal, moved=moved, fields={
        "interrupted": None, "moved_aside": moved, **proposal.fields})
    if not linked:
        return proposal
    note = Phrase("{names}: will be changed in place but has hard links; other copies (a backup?) "
                  "change too", names=some_of(linked, 1))
    return replace(proposal, plan=replace(plan, notes=(*plan.notes, note)))


def _warn_if_held(out: Output, store_root: str) -> None:
    from rmqctl.files.lock_probe import probe

    holder = probe(os.path.join(store_root, "lock"))
    if holder.held:
        out.warn(Phrase("process {pid} holds the store ({kind}): the plan may become outdated, "
                        "and cannot be applied while that process runs", pid=holder.pid,
                        kind=holder.kind)
                 if holder.pid else
                 Phrase("another process holds the store ({kind}): the plan may become "
                        "outdated, and cannot be applied while that process runs",
                        kind=holder.kind))


# -- with --apply ---------------------------------------------------------------------------------


def _apply(out: Output, store_root: str, name: str, propose: Propose, *, yes: bool,
           resume: bool, tier: Tiered | None, writes: Sequence[str] | None,
           made_anew: bool, mends: bool, folders: Sequence[str], named: Sequence[str],
           complete: str | None) -> None:
    from rmqctl.repair.executor.executor import Repair
    from rmqctl.repair.executor.planned import planned
    from rmqctl.store import Store

    if tier is None:  # before the first byte, a scratch folder too
        with contextlib.suppress(NotAStoreError):  # the planner reports it, with more options
            Store.open(store_root, folders).layout.require_writable(store_root, writes,
                                                                    made_anew=made_anew,
                                                                    mends=mends)
    homes, is_root = (tier.homes, tier.is_root) if tier else (None, None)
    with Repair(store_root, name, broker_roots=homes, is_root=is_root, named=named,
                complete=complete) as repair:
        if repair.finished is not None:
            id = repair.finished.id  # noqa: A001
            out.warn(Phrase("the interrupted undo of repair {id} was completed "
                            "first", id=id) if repair.finished.undone else
                     Phrase("the interrupted repair {id} was completed first", id=id))
        try:
            with planned(repair, partial(_propose, out, propose), resume=resume) as proposal:
                if proposal.refused:
                    raise RefusedError(f"{store_root}: {proposal.refused}")
                _carry_out(out, store_root, repair, _looked_at(store_root, proposal),
                           typed.other(*proposal.checked_by) if proposal.checked_by else
                           _check_again(store_root, tier), yes=yes,
                           around=tier.writes if tier else (), named=named)
        except StoreIOError as error:
            raise _unchanged(store_root, error) from None
    _end(proposal)


def _propose(out: Output, propose: Propose, scratch: Scratch) -> Proposal:
    with out.progress("planning"):
        return propose(scratch)


def _unchanged(store_root: str, error: StoreIOError) -> StoreIOError:
    """Return the error; if no repair was started, with a note that nothing was changed."""
    from rmqctl.repair.executor.journal import pending

    with contextlib.suppress(RmqctlError, OSError):
        if pending(store_root) is None and not str(error).endswith(_UNCHANGED):
            with_note = StoreIOError(f"{error}; {_UNCHANGED}")
            with_note.errno = error.errno
            return with_note
    return error


def _carry_out(out: Output, store_root: str, repair: Repair, proposal: Proposal, following: str, *,
               yes: bool, around: Sequence[str], named: Sequence[str]) -> None:
    """Ask for confirmation, then apply the plan.

    * ``following``: the command to recommend afterwards
    * ``around``: folders outside the store that `undo` finds without ``--write-outside``
    * ``named``: folders that options name
    """
    from rmqctl.files.bounds import WritableFolders
    from rmqctl.files.disk_usage import bytes_below

    # Nothing to do needs no question.
    if proposal.plan.empty:
        _nothing(out, proposal)
        return
    # Ask only after the complete plan is on the screen.
    if not yes:
        from rmqctl.repair.executor.check_plan import check
        from rmqctl.repair.executor.room import rooms

        show_plan(out, replace(proposal, room=rooms(store_root, check(
            store_root, proposal.plan.steps, named))))
        if not proposal.purges:
            out.tell(Phrase("Nothing is deleted: replaced and moved files are kept in {folder}. To "
                            "undo: rmqctl undo {store}",
                            folder=os.path.join(store_root, ".rmqctl", "repairs"),
                            store=shlex.quote(store_root)))
        ask(out, "Apply this plan?", yes=False)
    # An error explains itself; after an interrupt, say how to continue or undo.
    try:
        with out.progress("applying the plan", len(proposal.plan.steps), unit="steps") as progress:
            repair.progress = progress.advance
            done = repair.apply(proposal.plan)
    except RmqctlError:
        raise
    except BaseException:
        _say_interrupted(out, store_root)
        raise
    if done.already:
        _nothing(out, proposal)
        return
    # Say where the replaced files are kept, and how much space they use.
    backup = os.path.join(store_root, done.backup)
    backup_bytes = bytes_below(backup)
    bounds = WritableFolders(store_root, around)
    last = Phrase("Done.") if proposal.purges else _last_line(
        store_root, done, backup, backup_bytes,
        [folder for folder in done.outside if not bounds.contain(folder)])
    # After a question the plan is already on the screen, so only the result follows.
    if yes:
        show_plan(out, proposal, last, following, {
            "applied": True, "id": done.id, "kept": done.backup, "kept_bytes": backup_bytes})
    else:
        page = out.human()
        page.text(last)
        what_next(page, steps_after(proposal.plan, following)[0].command,
                  START if proposal.is_repair else None)
        out.conclude(verdict_of(proposal, {**proposal.plan.as_dict(), **proposal.fields,
                                            "applied": True}))


def _nothing(out: Output, proposal: Proposal) -> None:
    """Report that there is nothing to do. Without a terminal, report this only as data, so that
    cron sends no mail.
    """
    if out.is_data:
        show_plan(out, proposal)
        return
    attended = at_a_terminal()
    for text in proposal.plan.notes:
        (out.warn if attended or proposal.ends_with is not ExitCode.OK else out.debug)(text)
    if attended:
        out.note(Phrase("nothing to do"))


def _say_interrupted(out: Output, store_root: str) -> None:
    from rmqctl.repair.executor.journal import pending

    with contextlib.suppress(RmqctlError, OSError):
        id = pending(store_root)  # noqa: A001
        if id is None:
            out.warn(Phrase("interrupted before anything was changed"))
        else:
            out.warn(Phrase("Repair {id} is not finished. Nothing is lost: run the command again "
                            "to complete it, or `rmqctl undo {store} {id}` to revert it.",
                            id=id, store=store_root))


def _last_line(store_root: str, done: Applied, backup: str, backup_bytes: int,
               outside: Sequence[str]) -> Phrase:
    named = "".join(f" --write-outside {shlex.quote(folder)}" for folder in outside)
    return Phrase("Done. Replaced and moved files are kept in {folder} ({size} on the store's disk "
                  "until you remove it). To undo:\n  rmqctl undo {store} "
                  "{id}", folder=backup, size=size_text(backup_bytes),
                  store=store_root, id=f"{done.id}{named}")
