"""What all repair commands share: the plan is shown, and with ``--apply`` carried out.

A command gives `run` a function that makes its plan; everything else (lock, completing what an
interrupted run left, asking, journal, what is printed) happens here.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.errors import RmqctlError, StoreIOError, UsageError, noting_refusals

if TYPE_CHECKING:
    from rmqctl.output import Human, Output
    from rmqctl.repair.executor.executor import Applied, Repair
    from rmqctl.repair.plan import Plan
    from rmqctl.repair.scratch import Scratch

_APPLYING = "Carrying it out"
_SHOWN = 40
_LOST_SHOWN = 5
_COLUMNS = ("action", "target", "from", "to", "reason")
_LOST_COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp")

Apply = Annotated[
    bool,
    typer.Option("--apply", help="Carry the plan out; without it nothing is changed.",
                 rich_help_panel=_APPLYING),
]  # fmt: skip
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", rich_help_panel=_APPLYING,
        help="Do not ask. Without a terminal (cron) and with -o json nothing is asked anyway.",
    ),
]  # fmt: skip
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Only show the plan, which is the default.",
                 rich_help_panel=_APPLYING),
]  # fmt: skip

MakePlan = Callable[["Scratch"], "Plan"]
Extra = Callable[["Plan"], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Tiered:
    """A root that is a tier's: the roots of its brokers, which are held as well, and what raises
    where no tier is.
    """

    homes: Sequence[str]
    is_root: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to. ``applied`` None: the plan was only shown, or was not agreed to."""

    plan: Plan
    applied: Applied | None = None


def run(out: Output, store_root: str, name: str, make_plan: MakePlan, *, apply: bool, yes: bool,
        dry_run: bool = False, extra: Extra | None = None, summary: Extra | None = None,
        resume: bool = False, scratch_above: str | None = None, tier: Tiered | None = None
        ) -> Outcome:
    """Shows the plan of the command ``name`` for a store, and carries it out with ``apply``.

    ``make_plan`` works in the scratch folder it is given: a temporary one for a plan that is only
    shown; for one that is applied, one on the store's file system, made under the store's lock.
    It is empty unless ``resume``: then it may hold what an interrupted run had made, and is kept
    if this one is interrupted. ``scratch_above``: where the temporary one is made, instead of the
    system's folder for such. ``extra`` gives further fields of the JSON document, ``summary``
    what people read above the actions; both are asked once the plan is made. ``tier``: the root
    is a tier's, not a store's.

    Asks on a terminal, unless ``yes`` or the output is data; elsewhere ``apply`` is consent enough:
    `undo` takes everything back. UsageError, StoreHeldError, and what `Repair` raises.
    """
    from rmqctl.commands.shared.confirm import at_a_terminal

    _refuse(apply=apply, yes=yes, dry_run=dry_run)
    yes = yes or out.is_data or not at_a_terminal()
    shown = _Shown(out, extra or (lambda _: {}), summary or (lambda _: {}))
    if apply:
        return _apply(shown, store_root, name, make_plan, yes=yes, resume=resume, tier=tier)
    from rmqctl.repair.executor.check_plan import check
    from rmqctl.repair.executor.journal import pending
    from rmqctl.repair.scratch import Scratch

    unfinished = pending(store_root)
    if unfinished is not None:
        out.warn(f"repair {unfinished} was interrupted and is not finished: --apply completes it "
                 f"first, `rmqctl undo {store_root} {unfinished}` takes it back")
    for place in {os.path.realpath(one): one for one in (
            *(tier.homes if tier else ()), store_root)}.values():
        _warn_if_held(out, place)
    with Scratch(scratch_above, f"rmqctl-{uuid.uuid4().hex}") as scratch:
        with noting_refusals() as refused:
            plan = make_plan(scratch)
        check(store_root, plan.steps)  # what --apply refuses is no plan
        plan = _warned(store_root, plan)
        shown(plan, "There is nothing to do." if plan.empty else
              "Nothing was changed. --apply carries this out.")
    if refused:
        raise StoreIOError(f"{refused[0]}; the plan is made without it and cannot be applied")
    return Outcome(plan)


def _refuse(*, apply: bool, yes: bool, dry_run: bool) -> None:
    if dry_run and apply:
        raise UsageError("--dry-run only shows the plan, --apply carries it out: give one of them")
    if yes and not apply:
        raise UsageError("--yes goes with --apply")


def _warned(store_root: str, plan: Plan) -> Plan:
    """With a note where a repair changes more than one name leads to."""
    from rmqctl.repair.executor.check_plan import shared

    found = shared(store_root, plan.steps)
    if not found:
        return plan
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return replace(plan, notes=(*plan.notes, (
        f"{found[0]}{more}: changed in place, and there are hard links to it: what else these "
        "belong to (a backup?) changes too")))


def _warn_if_held(out: Output, store_root: str) -> None:
    from rmqctl.files.lock_probe import probe

    holder = probe(os.path.join(store_root, "lock"))
    if holder.held:
        who = f"process {holder.pid}" if holder.pid else "another process"
        out.warn(f"{who} holds the store ({holder.kind}): the plan may be another one a moment "
                 "later, and cannot be applied now")


# -- with --apply ---------------------------------------------------------------------------------


def _apply(shown: _Shown, store_root: str, name: str, make_plan: MakePlan, *, yes: bool,
           resume: bool, tier: Tiered | None) -> Outcome:
    from rmqctl.repair.executor.executor import Repair
    from rmqctl.repair.scratch import Scratch

    homes, is_root = (tier.homes, tier.is_root) if tier else (None, None)
    with Repair(store_root, name, homes=homes, is_root=is_root) as repair:
        if repair.finished is not None:
            done = "the undoing of repair" if repair.finished.undone else "repair"
            shown.out.warn(f"{done} {repair.finished.id}, which had been interrupted, was "
                           "completed first")
        scratch = Scratch(repair.scratch_folder, name, keep=resume)
        if not resume:
            scratch.clear()
        try:
            with scratch:
                with noting_refusals() as refused:
                    plan = make_plan(scratch)
                if refused:
                    raise StoreIOError(f"{refused[0]}; a plan made without it is not carried out, "
                                       "nothing was changed")
                outcome = _with_scratch(shown, store_root, repair, _warned(store_root, plan),
                                        yes=yes)
            scratch.remove()
        finally:
            for folder in (repair.scratch_folder, os.path.dirname(repair.scratch_folder)):
                with contextlib.suppress(OSError):  # it holds something else
                    os.rmdir(folder)
    return outcome


def _with_scratch(shown: _Shown, store_root: str, repair: Repair, plan: Plan, *,
                  yes: bool) -> Outcome:
    out = shown.out
    if plan.empty:
        _nothing(shown, plan)
        return Outcome(plan)
    if not yes:
        shown(plan)
        if not typer.confirm("Carry this out?", err=True):
            out.note("nothing was changed")
            return Outcome(plan)
    try:
        done = repair.apply(plan)
    except RmqctlError:
        raise
    except BaseException:
        _say_interrupted(out, store_root)
        raise
    if done.already:
        _nothing(shown, plan)
        return Outcome(plan)
    where = os.path.join(store_root, done.kept)
    kept = _bytes_below(where)
    last = _last_line(store_root, done, where, kept)
    if yes:
        shown(plan, last, {"applied": True, "id": done.id, "steps": done.steps, "kept": done.kept,
                           "kept_bytes": kept})
    else:
        out.human().text(last)
    return Outcome(plan, done)


def _nothing(shown: _Shown, plan: Plan) -> None:
    """Quiet, so that cron only writes of what was done; a document is one all the same."""
    from rmqctl.commands.shared.confirm import at_a_terminal

    if shown.out.is_data:
        shown(plan)
        return
    there = at_a_terminal()
    for text in plan.notes:
        (shown.out.warn if there else shown.out.debug)(text)
    if there:
        shown.out.note("there is nothing to do")


def _say_interrupted(out: Output, store_root: str) -> None:
    from rmqctl.repair.executor.journal import pending

    with contextlib.suppress(RmqctlError, OSError):
        id = pending(store_root)  # noqa: A001
        if id is None:
            out.warn("interrupted before anything was changed")
        else:
            out.warn(f"repair {id} is not finished: nothing is lost, running the command again "
                     f"completes it, and `rmqctl undo {store_root} {id}` takes it back")


def _bytes_below(folder: str) -> int:
    """Bytes on disk of all that lies below a folder."""
    total = 0
    for at, _, names in os.walk(folder):
        for one in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(at, one)).st_blocks * 512
    return total


def _last_line(store_root: str, done: Applied, where: str, kept: int) -> str:
    from rmqctl.output.units import size_text

    return (f"Done. What was replaced or moved away is kept in {where} ({size_text(kept)}, on the "
            "store's disk until you remove it); it comes back with:\n"
            f"  rmqctl undo {store_root} {done.id}")


# -- what is printed ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shown:
    """Shows plans: as a document, or as a page for people."""

    out: Output
    fields: Extra
    summary: Extra

    def __call__(self, plan: Plan, last: str = "", done: Mapping[str, Any] | None = None) -> None:
        document = {**plan.as_dict(), "notes": list(plan.notes), **self.fields(plan),
                    "applied": False, "id": None, **(done or {})}  # fmt: skip
        if self.out.is_data or not (done and self.out.quiet):
            self.out.document(document, lambda page: self._page(page, plan, document, last))
        for text in plan.notes:
            self.out.warn(text)

    def _page(self, page: Human, plan: Plan, document: Mapping[str, Any], last: str) -> None:
        pairs = self.summary(plan) if plan.actions else {}
        if pairs:
            page.pairs(pairs)
            page.blank()
        if plan.actions:
            rows = [{name: "" if value is None else value
                     for name, value in one.as_dict().items()} for one in plan.actions[:_SHOWN]]
            page.table(rows, [name for name in _COLUMNS if any(row[name] != "" for row in rows)])
            if len(plan.actions) > _SHOWN:
                page.text(f"and {len(plan.actions) - _SHOWN} more actions (-o json has all)")
        lost = int(document.get("messages_lost_total", len(plan.messages_lost)))
        if lost:
            _lost(page, plan, lost)
        if last:
            if plan.actions:
                page.blank()
            page.text(last)


def _lost(page: Human, plan: Plan, count: int) -> None:
    from rmqctl.output.units import count_text, time_text

    page.heading(f"{count_text(count)} message{'s' if count != 1 else ''} lost")
    rows = []
    for one in plan.messages_lost[:_LOST_SHOWN]:
        row = {**one.as_dict(), "store_timestamp": "" if one.time_from is None
               else time_text(one.time_from)}  # fmt: skip
        rows.append({name: "" if row[name] is None else row[name] for name in _LOST_COLUMNS})
    page.table(rows, _LOST_COLUMNS)
    if count > len(rows):
        page.text(f"and {count_text(count - len(rows))} more (-o json lists them)")
