"""What `rmqctl.open` answers of a whole store: a report, which is the JSON document of the command
of that name with a verdict, and the plan of a repair, which can be carried out.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rmqctl.errors import RefusedError, StoreIOError, noting_refusals
from rmqctl.phrases import counted

if TYPE_CHECKING:
    from rmqctl.checks.findings import Finding
    from rmqctl.repair.plan import Plan
    from rmqctl.repair.recover import RecoverOptions
    from rmqctl.repair.scratch import Scratch
    from rmqctl.store.log.bounds import View
    from rmqctl.store.store import Store

_SHOWN = 20
_CELL = "padding:0 1em 0 0;text-align:left"


class Report(dict[str, Any]):
    """What a command found of a store: its JSON document.

    ``ok``: nothing is wrong (exit code 0), None where that cannot be judged. ``verdict``: the same
    in a sentence. ``findings``: the first ones, where the command lists any.
    """

    def __init__(self, command: str, store: str, ok: bool | None, verdict: str,
                 document: Mapping[str, Any], findings: Sequence[Finding] = ()) -> None:
        super().__init__(document)
        self.command, self.store = command, store
        self.ok, self.verdict, self.findings = ok, verdict, findings

    def as_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return dict(self)

    def __repr__(self) -> str:
        return f"<rmqctl {self.command} {self.store}: {self.verdict}>"

    def _repr_html_(self) -> str:
        return page(f"{self.command} {self.store}", self.verdict, [
            {"severity": found.severity, "finding": found.category, "where": found.file or "",
             "detail": found.detail} for found in self.findings])


class RepairPlan(dict[str, Any]):
    """What `rmqctl recover` would do: its JSON document. `apply` does it.

    ``lost``: messages that only fillers, or nothing, will stand for. ``undecided``: records that
    may be messages; a plan with such is only applied once ``ambiguous`` says what they are.
    """

    def __init__(self, store: str, plan: Plan, carry_out: Callable[[], Mapping[str, Any]]) -> None:
        impact = plan.impact
        super().__init__({**plan.as_dict(), "notes": list(map(str, plan.notes)),
                          "impact": None if impact is None else impact.as_dict(),
                          "applied": False, "id": None})
        self.store, self.actions = store, plan.actions
        self.lost, self.undecided = plan.lost, plan.ambiguous
        self.notes: Sequence[str] = self["notes"]
        self._carry_out = carry_out

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.actions)

    def as_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return dict(self)

    def apply(self) -> dict[str, Any]:
        """Plan once more under the store's lock, and carry that out: what is replaced is moved
        aside, and `rmqctl undo` restores it.

        Returns the document of what was done, with ``id`` of the repair (None: there was nothing
        to do) and ``kept``, the folder with what was replaced. StoreHeldError where a broker runs,
        RefusedError where a decision is missing or the store cannot be written, StoreIOError.
        """
        return dict(self._carry_out())

    def __repr__(self) -> str:
        return f"<rmqctl recover {self.store}: {self._in_words}>"

    @property
    def _in_words(self) -> str:
        return (f"{counted(len(self.actions), 'action')}, {counted(self.lost, 'message')} lost, "
                f"{counted(self.undecided, 'record')} undecided"
                if self.actions or self.undecided else "there is nothing to do")

    def _repr_html_(self) -> str:
        return page(f"recover {self.store}", self._in_words, [
            {"action": action.action, "target": action.target, "offset": action.offset,
             "reason": action.reason} for action in self.actions[:_SHOWN]])


def recover_plan(root: str, options: RecoverOptions, *, decided: bool) -> RepairPlan:
    """The plan of a repair of the store at ``root``. ``decided``: somebody said what undecided
    records are. Raises as `rmqctl.repair.recover.plan_recover`.
    """
    from rmqctl.repair.recover import plan_recover
    from rmqctl.repair.scratch import Scratch

    def propose(scratch: Scratch) -> Plan:
        return plan_recover(root, scratch, options, silent)

    with Scratch() as scratch, noting_refusals() as refused:
        plan = propose(scratch)
    if refused:
        raise StoreIOError(f"{refused[0]}; a plan made without it is not carried out")

    def carry_out() -> Mapping[str, Any]:
        _refuse(root, plan, decided=decided)
        return _carried_out(root, options, propose, decided=decided)

    return RepairPlan(root, plan, carry_out)


def _refuse(root: str, plan: Plan, *, decided: bool) -> None:
    """RefusedError for a plan that lacks a decision of its user."""
    if plan.ambiguous and not decided:
        raise RefusedError(f"{root}: {plan.ambiguous:,} records are undecided. Nothing was "
                           "changed. Pass ambiguous='keep' or ambiguous='leave-out'")
    if plan.form_unproven:
        raise RefusedError(f"{root}: nothing proves whether the broker keeps its consume queues "
                           "in files or in RocksDB. Nothing was changed. Pass "
                           "consumequeue='file' or consumequeue='rocksdb'")


def _carried_out(root: str, options: RecoverOptions, propose: Callable[[Scratch], Plan], *,
                 decided: bool) -> Mapping[str, Any]:
    """Plans and applies under the lock, as ``rmqctl recover --apply`` does."""
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
    return {**plan.as_dict(), "applied": is_done, "id": done.id if done and is_done else None,
            "kept": done.backup if done and is_done else None}


def store_facts(store: Store, view: View) -> dict[str, Any]:
    """The JSON document of `rmqctl info`. What only a walk of the whole log tells is None."""
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
    """Watch a repair's plan without showing anything."""
    yield lambda _bytes: None


def page(title: str, verdict: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A heading, a sentence and a table, as notebooks show it."""
    parts = [f"<b>rmqctl {html.escape(title)}</b><br>{html.escape(verdict)}"]
    if rows:
        heads = "".join(f'<th style="{_CELL}">{html.escape(name)}</th>' for name in rows[0])
        lines = "".join("<tr>" + "".join(
            f'<td style="{_CELL}">{html.escape("" if value is None else str(value))}</td>'
            for value in row.values()) + "</tr>" for row in rows[:_SHOWN])
        parts.append(f"<table><tr>{heads}</tr>{lines}</table>")
    return "".join(parts)
