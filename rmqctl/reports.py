"""Reports on a store for Python programs. A report has the JSON document of a command and a
verdict. The report of a repair is a plan that can be applied.
"""

from __future__ import annotations

import html
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from rmqctl.errors import RefusedError, StoreIOError, noting_refusals
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase, counted

if TYPE_CHECKING:
    from rmqctl.actions import Action
    from rmqctl.checks.advice import NextStep
    from rmqctl.checks.findings import Finding
    from rmqctl.repair.executor.room import Room
    from rmqctl.repair.plan import Plan
    from rmqctl.repair.recover import RecoverOptions
    from rmqctl.repair.scratch import Scratch
    from rmqctl.store.log.bounds import View
    from rmqctl.store.store import Store

_MAX_SHOWN = 20
_CELL = "padding:0 1em 0 0;text-align:left"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Document(Mapping[str, Any]):
    """The JSON document of a command, as a mapping. The main fields are also attributes."""

    document: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document."""
        return dict(self.document)

    def __getitem__(self, name: str) -> Any:
        return self.document[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)


class Row(Mapping[str, Any]):
    """Base class of dataclasses that are also mappings of their fields."""

    __slots__ = ()
    __match_args__: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return {name: [row.as_dict() for row in value] if isinstance(value, list) else value
                for name, value in self.items()}

    def __getitem__(self, name: str) -> Any:
        if name not in self.__match_args__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__match_args__)

    def __len__(self) -> int:
        return len(self.__match_args__)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Report(Document):
    """The result of a command on a store.

    ``ok``: whether there are no problems (exit code 0), None if unknown. ``verdict``: the result in
    a sentence. ``findings``: the first findings, if the command lists findings.
    """

    command: str
    store: str
    ok: bool | None
    verdict: str
    findings: Sequence[Finding] = ()

    @classmethod
    def of(cls, command: str, store: str, ok: bool | None, verdict: str,
           document: Mapping[str, Any], findings: Sequence[Finding] = ()) -> Self:
        """Return a report. The additional fields of a subclass are taken from the document."""
        own = {field.name: document[field.name] for field in fields(cls)
               if field.name not in Report.__dataclass_fields__}
        return cls(command=command, store=store, ok=ok, verdict=verdict, document=document,
                   findings=findings, **own)

    def __repr__(self) -> str:
        return f"<rmqctl {self.command} {self.store}: {self.verdict}>"

    def _repr_html_(self) -> str:
        return page(f"{self.command} {self.store}", self.verdict, [
            {"severity": finding.severity, "finding": finding.category, "where": finding.file or "",
             "detail": finding.detail} for finding in self.findings])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StoreInfo(Report):
    """The result of `Store.info`. Offsets are physical offsets, times epoch milliseconds."""

    messages: int | None
    min_phy_offset: int | None
    max_phy_offset: int | None
    first_store_timestamp: int | None
    last_store_timestamp: int | None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class VerifyReport(Report):
    """The result of `Store.verify`. ``coverage``: number of bytes, messages and entries that were
    read.
    """

    findings_total: int
    coverage: Mapping[str, int]
    next: Sequence[str]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PreflightReport(Report):
    """The prediction of a broker startup. ``truncate_to``: physical offset at which the broker
    would truncate the log.
    """

    broker_version: str
    starts: bool
    truncate_to: int | None
    messages_lost: int
    messages_already_lost: int
    messages_undecided: int
    refuses_writes: bool
    next: Sequence[str]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DoctorReport(Report):
    """The diagnosis of a store.

    ``already_lost``: number of messages that are already lost.
    ``would_lose``: number of messages that a broker startup would lose.
    """

    sound: bool
    starts: bool
    broker_version: str
    already_lost: int
    would_lose: int
    messages_undecided: int
    groups_affected: int
    next: Sequence[str]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DiffReport(Report):
    """The result of `Store.diff`: the differences between two stores."""

    equal: bool
    summary: Mapping[str, Any]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RepairPlan(Document):
    """The plan of `rmqctl recover`. `apply` carries it out.

    ``lost``: number of messages that the plan cannot restore.
    ``undecided``: number of records that may be messages. If it is not 0, the plan can be applied
        only with ``ambiguous``.
    ``next``: shell commands to continue with.
    ``room``: the numbers of bytes needed and free on each affected file system.
    """

    store: str
    actions: Sequence[Action]
    lost: int
    undecided: int
    notes: Sequence[str]
    moved_aside: Sequence[str]
    room: Sequence[Room]
    next: Sequence[str]
    carry_out: Callable[[], Mapping[str, Any]]

    def __bool__(self) -> bool:
        """Return whether the plan contains actions."""
        return bool(self.actions)

    def apply(self) -> dict[str, Any]:
        """Plan again under the store's lock, and carry out the plan. Return the document of the
        repair. Its ``id`` is None if there was nothing to do.

        Replaced files are moved to the folder ``kept``; `rmqctl undo` restores them.

        Raises: StoreHeldError if a broker runs; RefusedError if a decision is missing or the store
        cannot be written; StoreIOError.
        """
        return dict(self.carry_out())

    def __repr__(self) -> str:
        return f"<rmqctl recover {self.store}: {self._in_words}>"

    @property
    def _in_words(self) -> str:
        return (f"{counted(len(self.actions), 'action')}, {counted(self.lost, 'message')} lost, "
                f"{counted(self.undecided, 'record')} undecided"
                if self.actions or self.undecided else "nothing to do")

    def _repr_html_(self) -> str:
        return page(f"recover {self.store}", self._in_words, [
            {"action": action.action, "target": action.target, "offset": action.offset,
             "reason": action.reason} for action in self.actions[:_MAX_SHOWN]])


def recover_plan(root: str, options: RecoverOptions, *, decided: bool) -> RepairPlan:
    """Return the plan for repairing the store at ``root``. ``decided``: whether the user chose
    what to do with undecided records.

    Raises: the errors of `rmqctl.repair.recover.plan_recover`.
    """
    from rmqctl.repair.executor.check_plan import check, moved_aside
    from rmqctl.repair.executor.relocated import interrupted
    from rmqctl.repair.executor.room import rooms
    from rmqctl.repair.recover import plan_recover
    from rmqctl.repair.scratch import Scratch

    def propose(scratch: Scratch) -> Plan:
        return plan_recover(root, scratch, options, silent)

    # A plan reads from the scratch files that it made, so use it while they exist.
    named = [os.path.join(root, folder) for folder in options.commitlog_dirs]
    with Scratch() as scratch, noting_refusals() as refused:
        plan = propose(scratch)
        room = rooms(root, check(root, plan.steps, named))
    if refused:
        raise StoreIOError(f"{refused[0]}; a plan that was made without it cannot be applied")

    def carry_out() -> Mapping[str, Any]:
        _refuse(root, plan, decided=decided)
        return _carried_out(root, options, propose, decided=decided)

    # The rest of the document, as the command prints it.
    impact, unfinished = plan.impact, interrupted(root, named)
    moved, notes = moved_aside(root, plan.steps), list(map(str, plan.notes))
    steps = _steps_to(plan, options, decided=decided)
    following = [step.command for step in steps]
    return RepairPlan(
        store=root, actions=plan.actions, lost=plan.lost, undecided=plan.ambiguous, notes=notes,
        moved_aside=moved, room=room, next=following, carry_out=carry_out,
        document={**plan.as_dict(), "notes": notes,
                  "interrupted": None if unfinished is None else unfinished.as_dict(),
                  "moved_aside": moved, "impact": None if impact is None else impact.as_dict(),
                  "next": following, "steps": [step.as_dict() for step in steps],
                  "room": [file_system.as_dict() for file_system in room], "applied": False,
                  "id": None})


def _steps_to(plan: Plan, options: RecoverOptions, *, decided: bool) -> list[NextStep]:
    """Return a shell command that applies a plan, or one command for each choice that is still
    open.
    """
    from rmqctl.checks.advice import NextStep

    if plan.empty:
        return []
    words = ["rmqctl", "recover", plan.root]
    for name, value in (("commitlog-dir", options.commitlog_dirs),
                        ("broker-conf", options.sizes.conf.path or None),
                        ("from", options.sources),
                        ("prefer", options.prefer), ("consumequeue", options.form),
                        ("ambiguous", options.ambiguous if decided else None),
                        ("max-message-size", options.sizes.largest_record),
                        ("correct", None if options.correct == "byte" else options.correct)):
        for argument in [value] if isinstance(value, str | int) else value or ():
            words += [f"--{name}", str(argument)]
    if options.keep_damaged:
        words.append("--keep-damaged")
    lost = plan.lost if decided else plan.lost_for_sure
    choices: list[tuple[str, ...]] = [
        ("--ambiguous", way) for way in ("keep", "leave-out") if plan.ambiguous and not decided]
    forms: list[tuple[str, ...]] = [
        ("--consumequeue", form) for form in ("file", "rocksdb") if plan.form_unproven]
    why = Phrase("carries the plan out; `undo` reverts it")
    loses = {"messages": lost} if lost else {}
    return [NextStep(shlex.join((*words, *form, *choice, "--apply")), why, "reversible", loses)
            for form in forms or [()] for choice in choices or [()]]


def _steps_after(plan: Plan) -> list[NextStep]:
    """Return the recommended steps after a plan was applied."""
    from rmqctl.checks.advice import NextStep, to_the_end

    beyond = () if plan.consumers is None else {
        queue.group for queue in plan.consumers.affected if queue.beyond_end}
    root = shlex.quote(plan.root)
    return [*to_the_end(root, beyond),
            NextStep(f"rmqctl doctor {root}", Phrase("checks the store again"))]


def _refuse(root: str, plan: Plan, *, decided: bool) -> None:
    """Raise RefusedError if the user has not made a decision that the plan needs."""
    if plan.ambiguous and not decided:
        raise RefusedError(f"{root}: {plan.ambiguous:,} records are undecided. Nothing was "
                           "changed. Pass ambiguous='keep' or ambiguous='leave-out'")
    if plan.form_unproven:
        raise RefusedError(f"{root}: nothing proves whether the broker keeps its consume queues "
                           "in files or in RocksDB. Nothing was changed. Pass "
                           "consumequeue='file' or consumequeue='rocksdb'")


def _carried_out(root: str, options: RecoverOptions, propose: Callable[[Scratch], Plan], *,
                 decided: bool) -> Mapping[str, Any]:
    """Plan and apply a repair while holding the store's lock, as ``rmqctl recover --apply`` does;
    return the document of the repair.
    """
    from rmqctl.repair.executor.executor import Repair
    from rmqctl.repair.executor.planned import planned
    from rmqctl.store import Store

    with Store.open(root, options.commitlog_dirs, options.sizes) as store:
        store.layout.require_writable(root, options.writes, made_anew=True, mends=True)
    named = [os.path.join(root, folder) for folder in options.commitlog_dirs]
    with (Repair(root, "recover", named=named) as repair,
          planned(repair, propose, resume=True) as plan):
        _refuse(root, plan, decided=decided)
        done = None if plan.empty else repair.apply(plan)
    is_done = done is not None and not done.already
    steps = _steps_after(plan)
    return {**plan.as_dict(), "notes": list(map(str, plan.notes)),
            "next": [step.command for step in steps], "steps": [step.as_dict() for step in steps],
            "applied": is_done, "id": done.id if done and is_done else None,
            "kept": done.backup if done and is_done else None}


def store_facts(store: Store, view: View) -> dict[str, Any]:
    """Return the JSON document of `rmqctl info`. Values that need a scan of the whole log are
    None.
    """
    from rmqctl.broker.view import cut_by_broker
    from rmqctl.repair.fillers import fillers_left
    from rmqctl.store.info import collect

    readable = store.layout.reads("commitlog")
    return {**collect(store, view), "cut": cut_by_broker(view) is not None,
            "fillers": fillers_left(store) if readable else None,
            **dict.fromkeys(("messages_undecided", "messages_replaced", "messages_already_lost")),
            "lost_in_repairs": store.repair_losses.as_list() if readable else []}


@contextmanager
def silent(_label: str, _total: int) -> Iterator[Callable[[int], None]]:
    """Accept progress like `Output.watch`, but do not show it."""
    yield lambda _bytes: None


def page(title: str, verdict: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a heading, a sentence and a table as HTML for notebooks."""
    parts = [f"<b>rmqctl {html.escape(title)}</b><br>{html.escape(verdict)}"]
    if rows:
        heads = "".join(f'<th style="{_CELL}">{html.escape(name)}</th>' for name in rows[0])
        lines = "".join("<tr>" + "".join(
            f'<td style="{_CELL}">{html.escape("" if value is None else str(value))}</td>'
            for value in row.values()) + "</tr>" for row in rows[:_MAX_SHOWN])
        parts.append(f"<table><tr>{heads}</tr>{lines}</table>")
    return "".join(parts)
