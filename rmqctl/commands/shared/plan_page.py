"""A plan as a document, and as a page for people."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rmqctl.commands.app import typed
from rmqctl.commands.shared.consumers import show_section
from rmqctl.errors import ExitCode
from rmqctl.output.units import time_text
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.checks.advice import Step
    from rmqctl.checks.impact import Impact
    from rmqctl.output import Human, Output
    from rmqctl.repair.plan import Plan

_SHOWN = 40
_LOST_SHOWN = 5
_COLUMNS = ("action", "target", "from", "to", "reason")
_LOST_COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp")
_BROKERS_NAME = re.compile(r"\d{20}|\d{17}|\d{6}\.(sst|log)|CURRENT|IDENTITY|LOCK|LOG(\.old.*)?|"
                           r"(MANIFEST|OPTIONS)-\d{6}")
"""Files of the log, of queues, of the index, of a RocksDB data base."""
_FILLED = Phrase("A filler takes the place of each: a consumer receives a message of NUL bytes "
                 "with the property RMQCTL=lost, without tag and keys.")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan, the further ``fields`` of its JSON document, and what people read above it.

    ``ends_with``: the exit code once it is shown or carried out. ``impact``: what it costs, where
    the plan's list of lost messages does not tell. ``instead``: the words of the command to go on
    with where the plan cannot be carried out. ``refused``: why it is not carried out as it is, and
    ``choice`` the words of which one has to be added to it, ``why_choose`` what they decide.
    ``unfinished``: what people read of a repair that was interrupted. ``moved``: every file that
    is moved aside.
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


def show_plan(out: Output, proposal: Proposal, last: str = "", following: str | None = None,
              done: Mapping[str, Any] | None = None) -> None:
    """The plan: as a document, or as a page for people; with ``done`` also what came of it.
    ``following``: the one command to go on with; of what is done, the one that looks at it.
    """
    plan = proposal.plan
    impact = _impact(proposal)
    steps = (_steps(proposal, following) if not done or following is None
             else steps_after(plan, following))
    document = {**plan.as_dict(), "notes": list(plan.notes), **proposal.fields,
                "impact": None if impact is None else impact.as_dict(),
                "next": steps[0].command if done and steps else following,
                "steps": [step.as_dict() for step in steps],
                "applied": False, "id": None, **(done or {})}
    if out.is_data or not (done and out.quiet):
        out.document(document, lambda page: _page(page, proposal, document, last))
    for text in plan.notes:
        out.warn(text)


def _steps(proposal: Proposal, following: str | None) -> list[Step]:
    """The command to go on with, or each of those among which the user has to choose."""
    from rmqctl.checks.advice import Step

    if following is None:
        return []
    if proposal.plan.empty:
        return [Step(following, Phrase("checks the store again"))]
    lost = proposal.plan.lost_for_sure if proposal.choice else proposal.plan.lost
    loses = {"messages": lost} if lost else {}
    if proposal.instead or not proposal.choice:
        return [Step(following, Phrase("carries the plan out; `undo` reverts it"), "reversible",
                     loses)]
    return [Step(typed.again(*words, without=("--dry-run",)), proposal.why_choose, "reversible",
                 loses)
            for words in proposal.choice]


def steps_after(plan: Plan, look: str) -> list[Step]:
    """What to do once a plan is carried out: consumer offsets that it leaves beyond the end of a
    queue move to that end, then ``look`` checks the store again.
    """
    from rmqctl.checks.advice import Step, to_the_end

    beyond = () if plan.consumers is None else {
        queue.group for queue in plan.consumers.affected if queue.beyond_end}
    return [*(replace(step, command=typed.completed(step.command) or "")
              for step in to_the_end(shlex.quote(plan.root), beyond)),
            Step(look, Phrase("checks the store again"))]


def _page(page: Human, proposal: Proposal, document: Mapping[str, Any], last: str) -> None:
    plan = proposal.plan
    if proposal.unfinished:
        page.pairs(proposal.unfinished)
        page.blank()
    if plan.actions and proposal.summary:
        page.pairs(proposal.summary)
        page.blank()
    if plan.actions:
        rows = [action.in_words() for action in plan.actions[:_SHOWN]]
        page.table(rows, [name for name in _COLUMNS if any(row[name] != "" for row in rows)])
        if len(plan.actions) > _SHOWN:
            page.text(Phrase("and {some} more actions (-o json has all)",
                             some=len(plan.actions) - _SHOWN))
    _moved(page, proposal)
    lost = int(document.get("messages_lost_total", len(plan.messages_lost)))
    if lost:
        _lost(page, plan, lost)
    if plan.kept_damaged:
        page.text(Phrase("kept damaged, and marked RMQCTL=damaged: {some:,} of the messages",
                         some=plan.kept_damaged))
    if "wrong_corrections_expected" in document:
        page.text(Phrase("Wrong corrections to expect: {some} (at most 0.01 per repair).",
                         some=f"{plan.wrong_corrections:.1g}"))
    impact = _impact(proposal)
    if impact is not None:
        page.text(impact.in_words())
    show_section(page, plan.consumers, plan.notes)
    if last:
        if plan.actions or (plan.consumers is not None and plan.consumers.groups_affected):
            page.blank()
        page.text(last)
    what_next(page, document["next"])


def _moved(page: Human, proposal: Proposal) -> None:
    """The files that are moved aside and that no action shown names, by folder: files with a
    broker's names as one row, every other file in a row of its own.
    """
    named = {action.target for action in proposal.plan.actions[:_SHOWN]
             if action.action == "move aside"}
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
        if not others and len(rows) >= _SHOWN:
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


def what_next(page: Human, following: str | None) -> None:
    """The one command to go on with, if there is one."""
    if following is not None:
        page.heading("What next")
        page.text(following)


def blank_for_none(row: Mapping[str, Any]) -> dict[str, Any]:
    """For people: what is not known is an empty cell."""
    return {name: "" if value is None else value for name, value in row.items()}


def _lost(page: Human, plan: Plan, count: int) -> None:
    open_still = count - min(count, plan.lost_for_sure)
    page.heading(Phrase("{count:,} message lost", "{count:,} messages lost", count=count)
                 if not open_still else
                 Phrase("{count:,} message lost, of these {undecided:,} undecided",
                        "{count:,} messages lost, of these {undecided:,} undecided", count=count,
                        undecided=open_still))
    rows = []
    for message in plan.messages_lost[:_LOST_SHOWN]:
        time = None if message.time_from is None else time_text(message.time_from)
        rows.append(blank_for_none({**message.as_dict(), "store_timestamp": time}))
    page.table(rows, _LOST_COLUMNS)
    if count > len(rows):
        page.text(Phrase("and {some:,} more (-o json lists them)", some=count - len(rows)))
    if any(action.action == "fill" for action in plan.actions):
        page.text(_FILLED)
