"""Preview `recover` for advice: compute its plan and discard it."""

from __future__ import annotations

from collections.abc import Container

from rmqctl.checks.advice import DamagedTail, RepairOutlook
from rmqctl.checks.doctor import Diagnosis
from rmqctl.errors import RmqctlError
from rmqctl.repair.plan import MoveAside, Plan, Watch
from rmqctl.repair.recover import RecoverOptions, plan_recover
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.truncate.truncate import truncate
from rmqctl.store.log.end import find_end
from rmqctl.store.store import Store

MAX_LOG_SIZE = 4 << 30
"""Maximum size in bytes of a log for which advice computes a plan. A plan has to read the log, and
to write queues and index into a temporary folder.
"""
_MAX_FILLS = 8
"""Maximum number of fillers at which a truncation is tried, starting with the last filler in the
log.
"""
_BEYOND = frozenset({"timer-log", "timer-check", "timer-wheel", "epoch-start"})
"""Findings that `truncate` may resolve by truncating at the current end of the log."""


def advised(store: Store, diagnosis: Diagnosis, options: RecoverOptions,
            watch: Watch) -> RepairOutlook | None:
    """Return what `recover` with these options would do to a diagnosed store; None if the store
    needs no repair or cannot be repaired.
    """
    start = diagnosis.start
    judged = not start.not_judged or start.broker.unopened
    if start.misled and diagnosis.findings.ok:
        return None  # the files are intact, the configuration is wrong
    if diagnosis.sound or diagnosis.lock.held or not judged or not start.mendable or (
            diagnosis.findings.ok and not start.recovers):
        return None
    return outlook(store, options, watch, {row.category for row in diagnosis.damaged},
                   starts_well=start.start_is_harmless)


def outlook(store: Store, options: RecoverOptions, watch: Watch, categories: Container[str], *,
            starts_well: bool) -> RepairOutlook | None:
    """Plan a repair of an opened store in a temporary folder. Return None if the log is larger than
    `MAX_LOG_SIZE`, or if planning fails for a reason outside the store.

    ``categories``: categories of the store's findings. ``starts_well``: whether a broker starts on
    the store without loss. If so, a plan that only moves the abort file aside changes nothing.
    """
    if store.log.size > MAX_LOG_SIZE:
        return None
    is_member = store.layout.commitlog == "dledger"
    with Scratch() as scratch:
        try:
            plan = plan_recover(store.root, scratch, options, watch)
        except RmqctlError as error:
            return RepairOutlook(refused=str(error), is_member=is_member)
        except OSError:
            return None
    end = None
    if plan.empty and any(category in categories for category in _BEYOND):
        end = _truncates(store)
    changes = not plan.empty and not (starts_well and plan.steps == (MoveAside("abort"),))
    return RepairOutlook(changes, plan.lost_for_sure, plan.ambiguous, plan.undo_first,
                         is_member=is_member, truncate_to=end, form_unproven=plan.form_unproven,
                         tail=damaged_tail(store, plan),
                         groups_beyond=None if plan.consumers is None else frozenset(
                       queue.group for queue in plan.consumers.affected if queue.beyond_end))


def damaged_tail(store: Store, plan: Plan) -> DamagedTail | None:
    """Return the earliest filler of a ``plan`` at which the log could be truncated without losing
    an intact record. The truncated log would need fewer fillers.

    None if no such filler exists, or records are undecided.
    """
    fills = sorted((action.offset for action in plan.actions
                    if action.action == "fill" and action.offset is not None), reverse=True)
    if not fills or plan.ambiguous or plan.undo_first:
        return None
    tail = None
    try:
        last = find_end(store).last
        if last is not None and last.crc_ok and last.physical_offset > fills[0]:
            return None
        for place in fills[:_MAX_FILLS]:
            with Scratch() as scratch:
                cut = truncate(store, place, store.generation, lambda _done: None, scratch)
            if cut.lost or cut.plan.dropped.undecided:
                break
            tail = DamagedTail(place, cut.plan.dropped.messages)
    except RmqctlError:
        return None
    return tail


def _truncates(store: Store) -> int | None:
    """Return the end of the log if truncating at this end changes other files but removes no
    message; otherwise None.
    """
    try:
        end = find_end(store).offset
        with Scratch() as scratch:
            cut = truncate(store, end, store.generation, lambda _done: None, scratch)
    except RmqctlError:
        return None
    return None if cut.lost or cut.plan.empty else end
