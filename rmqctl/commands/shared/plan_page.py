"""Output of a repair plan: a JSON document for programs, a page for people."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from rmqctl.commands.app import typed
from rmqctl.commands.shared.advising import REPAIR, START
from rmqctl.commands.shared.consumers import show_section
from rmqctl.commands.shared.summed import show_actions
from rmqctl.errors import ExitCode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.units import size_text, time_text
from rmqctl.phrases import Joined, Phrase, counted

if TYPE_CHECKING:
    from rmqctl.checks.advice import DamagedTail, NextStep
    from rmqctl.checks.impact import Impact
    from rmqctl.output import Human, Output
    from rmqctl.repair.executor.room import Room
    from rmqctl.repair.plan import Plan

_MIB = 1 << 20
_MAX_SHOWN = 40
_MAX_LOST_SHOWN = 5
_COLUMNS = ("action", "target", "from", "to", "reason")
_LOST_COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp")
_BROKERS_NAME = re.compile(r"\d{20}|\d{17}|\d{6}\.(sst|log)|CURRENT|IDENTITY|LOCK|LOG(\.old.*)?|"
                           r"(MANIFEST|OPTIONS)-\d{6}")
"""Pattern of a broker's file names in the log, the consume queues, the index, and RocksDB
databases.
"""
_FILLED = Phrase("Each lost message is replaced by a filler: an empty message with the property "
                 "RMQCTL=lost, which consumers receive.")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan, and the texts and data that a command shows with it.

    * ``fields``: for the JSON document
    * ``summary``: shown above the actions
    * ``ends_with``: exit code after the plan was shown or applied
    * ``impact``: affected messages, if other than those in the plan
    * ``instead``: words of the command to run instead of ``--apply``
    * ``refused``: why ``--apply`` rejects the plan
    * ``choice``: alternative options, one of which the user must add to the command line
    * ``why_choose``: what this choice decides
    * ``unfinished``: description of an interrupted repair
    * ``moved``: all files that are moved aside
    * ``is_repair``: whether the plan is step 3 (repair) of the four steps
    * ``tail``: the damaged end of the log, which could be truncated instead
    * ``room``: disk space that the plan needs
    * ``listed``: tables above the actions, each (heading, rows, columns)
    * ``also``: text to add to the verdict
    * ``checked_by``: words of the command that checks the store afterwards
    * ``purges``: whether kept files are deleted; `undo` then cannot revert the plan
    """

    plan: Plan
    fields: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    ends_with: ExitCode = ExitCode.OK
    impact: Impact | None = None
    instead: Sequence[str] = ()
    refused: str = ""
    choice: Sequence[Sequence[str]] = ()
    why_choose: Phrase = field(default_factory=lambda: Phrase("decides about undecided records"))
    unfinished: Mapping[str, str] = field(default_factory=dict)
    moved: Sequence[str] = ()
    is_repair: bool = False
    tail: DamagedTail | None = None
    room: Sequence[Room] = ()
    listed: Sequence[tuple[Phrase, Sequence[Mapping[str, Any]], Sequence[str]]] = ()
    also: Phrase | None = None
    checked_by: Sequence[str] = ()
    purges: bool = False


def show_plan(out: Output, proposal: Proposal, last: str = "", following: str | None = None,
              done: Mapping[str, Any] | None = None) -> None:
    """Show the plan as a JSON document or as a human-readable page.

    * ``last``: last sentence of the page
    * ``following``: the command to run next; after ``--apply``, the command that checks the store
    * ``done``: result fields if the plan was applied
    """
    plan = proposal.plan
    impact = _impact(proposal)
    steps = (_steps(proposal, following) if not done or following is None
             else steps_after(plan, following))
    document = {**plan.as_dict(), "notes": list(plan.notes), **proposal.fields,
                "impact": None if impact is None else impact.as_dict(),
                "next": [step.command for step in steps],
                "steps": [step.as_dict() for step in steps],
                **({"room": [room.as_dict() for room in proposal.room]} if proposal.room else {}),
                "applied": False, "id": None, **(done or {})}
    shown = out.is_data or not (done and out.quiet)
    if shown:
        out.document(document, lambda page: _page(page, proposal, document, last))
    for text in plan.notes:
        out.warn(text)
    if shown and not _is_one_line(proposal):
        out.conclude(verdict_of(proposal, document))


def _is_one_line(proposal: Proposal) -> bool:
    """Return whether the page for people needs only one line, the verdict."""
    plan = proposal.plan
    return plan.empty and not (plan.actions or proposal.unfinished or any(
        rows for _, rows, _ in proposal.listed) or _impact(proposal) or (
            plan.consumers is not None and plan.consumers.groups_affected))


def verdict_of(proposal: Proposal, document: Mapping[str, Any]) -> Phrase:
    """Return in one line what the plan will do or, if it was applied, what it has done."""
    plan = proposal.plan
    lost = _lost_by(plan, document)
    parts = [counted(len(plan.actions), "change")] if plan.actions else []
    if lost:
        parts.append(Phrase("{count:,} message lost", "{count:,} messages lost", count=lost))
    if plan.kept_damaged:
        parts.append(Phrase("{count:,} kept damaged", count=plan.kept_damaged))
    if discarded := plan.drops[1] if not proposal.choice else 0:
        parts.append(Phrase("{count:,} undecided record discarded",
                            "{count:,} undecided records discarded", count=discarded))
    if proposal.also is not None:
        parts.append(proposal.also)
    what = Joined(", ", parts)
    if document["applied"]:
        return (Phrase("done: {what}", what=what) if proposal.purges
                else Phrase("done: {what}; `undo` reverts it", what=what))
    if plan.empty:
        return Phrase("nothing to do: {what}", what=what) if parts else Phrase("nothing to do")
    if plan.form_unproven:
        return Phrase("plan: {what}; nothing was changed: pass --consumequeue to name the form of "
                      "the consume queues", what=what)
    if proposal.choice:
        return Phrase("plan: {what}; nothing was changed: undecided records need a decision",
                      what=what)
    return Phrase("plan: {what}; nothing was changed", what=what)


def _lost_by(plan: Plan, document: Mapping[str, Any]) -> int:
    return int(document.get("messages_lost_total", len(plan.messages_lost)))


def _steps(proposal: Proposal, following: str | None) -> list[NextStep]:
    """Return the next step, or several alternative steps from which the user has to choose."""
    from rmqctl.checks.advice import NextStep

    if following is None:
        return []
    if proposal.plan.empty:
        return [NextStep(following, Phrase("checks the store again"))]
    lost = proposal.plan.lost_for_sure if proposal.choice else proposal.plan.lost
    loses = {"messages": lost} if lost else {}
    if proposal.instead:
        return [NextStep(following, Phrase("carries the plan out; `undo` reverts it"), "reversible",
                         loses)]
    if not proposal.choice:
        tail = [] if proposal.tail is None else [
            proposal.tail.truncated(shlex.quote(proposal.plan.root))]
        if proposal.purges:
            return [NextStep(following, Phrase("carries the plan out, for good"), "irreversible",
                             loses)]
        return [*(replace(step, command=typed.completed(step.command) or "") for step in tail),
                NextStep(following, Phrase("carries the plan out; `undo` reverts it"), "reversible",
                         loses)]
    return [NextStep(typed.again(*words, without=("--dry-run",)), proposal.why_choose, "reversible",
                     loses)
            for words in proposal.choice]


def steps_after(plan: Plan, look: str) -> list[NextStep]:
    """Return the steps to take once the plan has been applied: reset the consumer offsets beyond
    the end of a queue, group by group, then check the store with the command ``look``.
    """
    from rmqctl.checks.advice import NextStep, to_the_end

    beyond = () if plan.consumers is None else {
        queue.group for queue in plan.consumers.affected if queue.beyond_end}
    return [*(replace(step, command=typed.completed(step.command) or "")
              for step in to_the_end(shlex.quote(plan.root), beyond)),
            NextStep(look, Phrase("checks the store again"))]


def _page(page: Human, proposal: Proposal, document: Mapping[str, Any], last: str) -> None:
    # The verdict comes first, then the state of an interrupted repair, then the actions.
    plan = proposal.plan
    page.text(verdict_of(proposal, document))
    if _is_one_line(proposal) and not document["next"]:
        return
    has_lists = any(rows for _, rows, _ in proposal.listed)
    if proposal.unfinished or (plan.actions and proposal.summary) or not has_lists:
        page.blank()
    if proposal.unfinished:
        page.pairs(proposal.unfinished)
        page.blank()
    if plan.actions and proposal.summary:
        page.pairs(proposal.summary)
        if not has_lists:
            page.blank()
    for heading, rows, columns in proposal.listed:
        _listed(page, heading, rows, columns)
    is_complete = show_actions(page, plan.actions, _COLUMNS, _MAX_SHOWN) if plan.actions else True
    _moved(page, proposal, is_complete=is_complete)
    # List what the plan loses, and how certain its corrections are.
    lost = _lost_by(plan, document)
    if lost:
        _lost(page, plan, lost)
    if plan.kept_damaged:
        page.text(Phrase("messages kept damaged (marked RMQCTL=damaged): {some:,}",
                         some=plan.kept_damaged))
    if "wrong_corrections_expected" in document:
        page.text(Phrase("Expected number of wrong corrections: {some} (at most 0.01 per repair).",
                         some=f"{plan.wrong_corrections:.1g}"))
    # Show the effect on messages and consumers.
    impact = _impact(proposal)
    if impact is not None:
        page.text(impact.in_words())
    show_section(page, plan.consumers, plan.notes)
    _room(page, proposal.room)
    # End with the single command to run next.
    if last:
        if plan.actions or (plan.consumers is not None and plan.consumers.groups_affected):
            page.blank()
        page.text(last)
    what_next(page, next(iter(document["next"]), None) if proposal.tail is None else "\n".join(
        f"{step['command']}\n   {step['why']}" for step in document["steps"]),
              START if proposal.is_repair and document["applied"] else
              REPAIR if proposal.is_repair else None)


def _listed(page: Human, heading: Phrase, rows: Sequence[Mapping[str, Any]],
            columns: Sequence[str]) -> None:
    """Show one of the tables above the plan's actions, unless it is empty."""
    if rows:
        page.heading(heading)
        page.table(map(blank_for_none, rows[:None if page.every else _MAX_SHOWN]), columns)
        if len(rows) > _MAX_SHOWN and not page.every:
            page.text(Phrase("and {more:,} more (-o json lists them)", more=len(rows) - _MAX_SHOWN))
        page.blank()


def _room(page: Human, rooms: Sequence[Room]) -> None:
    for room in rooms:
        sizes = {"needed": size_text(-(-room.needed // _MIB) * _MIB),
                 "free": "-" if room.free is None else size_text(room.free)}
        page.text(Phrase("Disk space: needed {needed}, free {free}.", **sizes) if len(rooms) == 1
                  else Phrase("Disk space in {folder}: needed {needed}, free {free}.",
                              folder=room.folder, **sizes), None if room.is_enough else "bad")


def _moved(page: Human, proposal: Proposal, *, is_complete: bool) -> None:
    """Show, by folder, the files to be moved aside that are not in the table of actions.

    In a folder, three or more files with a broker's file names share a row; every other file has
    its own row. ``is_complete``: whether each action has a row in the table of actions.
    """
    actions = proposal.plan.actions
    listed = actions[:_MAX_SHOWN] if is_complete and not page.every else actions
    named = {action.target for action in listed
             if action.action == "move aside" and (
                 is_complete or _BROKERS_NAME.fullmatch(os.path.basename(action.target)))}
    folders: dict[str, list[str]] = {}
    for path in proposal.moved:
        if path not in named:
            folder, name = os.path.split(path)
            folders.setdefault(folder, []).append(name)
    rows: list[dict[str, str]] = []
    more = 0
    for folder, names in folders.items():
        own = sorted(filter(_BROKERS_NAME.fullmatch, names))
        others = [name or os.curdir for name in names if not _BROKERS_NAME.fullmatch(name)]
        if not others and len(rows) >= _MAX_SHOWN:
            more += len(own)
            continue
        runs = own if len(own) < 3 else [f"{own[0]} - {own[-1]} ({len(own)})"]
        rows += [{"folder": folder, "file": name} for name in (*others, *runs)]
    if rows:
        page.heading(Phrase("Moved aside"))
        page.table(rows, ("folder", "file"))
    if more:
        page.text(Phrase("and {more:,} more files (-o json lists them)", more=more))


def _impact(proposal: Proposal) -> Impact | None:
    return proposal.plan.impact if proposal.impact is None else proposal.impact


def what_next(page: Human, following: str | None, where: Phrase | None = None) -> None:
    """Show the command to run next; if it is None, show nothing. ``where``: sentence that says
    which of the four steps the command is.
    """
    if following is not None:
        page.heading("What next")
        if where is not None:
            page.text(where)
        page.text(following)


def blank_for_none(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table row with None values replaced by empty cells."""
    return {name: "" if value is None else value for name, value in row.items()}


def _lost(page: Human, plan: Plan, count: int) -> None:
    open_still = count - min(count, plan.lost_for_sure)
    page.heading(Phrase("{count:,} message lost", "{count:,} messages lost", count=count)
                 if not open_still else
                 Phrase("{count:,} message lost, of these {undecided:,} undecided",
                        "{count:,} messages lost, of these {undecided:,} undecided", count=count,
                        undecided=open_still))
    rows = []
    for message in plan.messages_lost[:None if page.every else _MAX_LOST_SHOWN]:
        time = None if message.time_from is None else time_text(message.time_from)
        rows.append(blank_for_none({**message.as_dict(), "store_timestamp": time}))
    page.table(rows, _LOST_COLUMNS)
    listed, unnamed = len(plan.messages_lost), count - len(plan.messages_lost)
    if listed > len(rows):
        page.text(Phrase("and {some:,} more (--all lists them)", some=listed - len(rows)))
    if unnamed > 0:
        page.text(Phrase("and {some:,} more without further details", some=unnamed))
    if any(action.action == "fill" for action in plan.actions):
        page.text(_FILLED)
