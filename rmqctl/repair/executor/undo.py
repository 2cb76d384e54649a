"""Undo a repair: restore bytes, lengths, names and times.

Files from the repair are moved to the folder ``undone`` next to the kept files. The repair's state
records that an undo was begun, so the next run completes an interrupted undo.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.files.durable import STAGING
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.executor.apply_step import ChangedError, StepApplier
from rmqctl.repair.executor.journal import (
    HistoryEntry,
    Journal,
    backup_folder,
    entry,
    ids,
    is_committed,
    load,
    note_actions,
    order,
    overlapping,
    put_aside,
    set_state,
    state_of,
)
from rmqctl.repair.executor.relocated import load_here, moved_to, noted

Progress = Callable[[int], object]
"""Function that is called with 1 after every step."""


@dataclass(frozen=True, slots=True)
class Undone:
    """A repair that was undone.

    * ``steps``: number of its steps.
    * ``backup``: folder (relative to the store root) with the files that it had created.
    * ``already``: whether it had been undone before.
    """

    id: str
    steps: int
    backup: str
    already: bool = False


@dataclass(frozen=True, slots=True)
class Preview:
    """Preview of the undo of a repair.

    * ``actions``: the actions of the repair.
    * ``changed``: descriptions of changes to its targets since the repair.
    * ``root``, ``host``: path of the store and name of the machine where the repair was made,
      according to its journal.
    """

    entry: HistoryEntry
    actions: tuple[Mapping[str, Any], ...]
    changed: tuple[str, ...]
    root: str = ""
    host: str = ""


def choose(root: str, repair_id: str | None) -> str:
    """Return the named repair, by default the newest that is not undone or given up.
    Raises: UsageError for an unknown id; RefusedError if there is nothing to undo.
    """
    committed = [name for name in ids(root) if is_committed(root, name)]
    if repair_id is not None:
        if any(repair_id == aside.id for aside in put_aside(root)):
            raise RefusedError(f"{repair_id} is not a repair: its files were replaced when the "
                               "store was opened, or by a dispatch. This cannot be undone; the "
                               f"old files are in {os.path.join(root, STAGING, repair_id)}")
        if repair_id not in committed:
            raise UsageError(f"{root} has no repair {repair_id!r}; `rmqctl undo {root} --list` "
                             "lists its repairs")
        return repair_id
    for candidate in reversed(committed):
        if state_of(root, candidate)[0] not in ("undone", "abandoned"):
            return candidate
    raise RefusedError(f"{root}: no repair to undo")


def preview(root: str, repair_id: str | None = None, moved: Sequence[str] = (),
            named: Sequence[str] = ()) -> Preview:
    """Preview an undo; ``moved`` and ``named`` as for `begin`.
    Raises: UsageError, RefusedError, StoreIOError.
    """
    repair_id = choose(root, repair_id)
    state, _ = state_of(root, repair_id)
    changed: list[str] = []
    try:
        journal, _ = load_here(root, repair_id, moved)
        if state in ("applied", "abandoned", "interrupted"):
            changed = _examine(root, journal, [*named, *moved_to(root, repair_id, moved)],
                               applied=state == "applied")[0]
    except (StoreIOError, RefusedError) as problem:
        return Preview(entry(root, repair_id), (), (str(problem),))
    return Preview(entry(root, repair_id), journal.actions, tuple(changed), journal.root,
                   journal.host)


def _examine(root: str, journal: Journal, named: Sequence[str], *,
             applied: bool) -> tuple[list[str], dict[str, int]]:
    """Return (descriptions of changes since the repair, the modification times to restore by step
    number).
    """
    applier = StepApplier(root, journal, named)
    changed, times = [], {}
    for number, (record, phase) in enumerate(applier.phases()):
        try:
            if isinstance(phase, ChangedError):
                if not phase.begun:
                    continue
                raise phase
            mtime = applier.check_undo(record, phase, applied=applied)
        except ChangedError as problem:
            changed.append(str(problem))
        else:
            if mtime is not None:
                times[str(number)] = mtime
    return changed, times


def begin(root: str, repair_id: str, now: int, *, force: bool, moved: Sequence[str] = (),
          named: Sequence[str] = ()) -> None:
    """Begin the undo of a repair: record it in the repair's state. Nothing else is changed.

    * ``moved`` (texts ``OLD=NEW``): new paths of folders outside of a store that was moved or
      copied.
    * ``named``: folders outside of the store that may be written to.

    Raises: UsageError, RefusedError.
    """
    journal, given = load_here(root, repair_id, moved)
    state, more = state_of(root, repair_id)
    if state == "undoing":  # begun already; add further folders only
        set_state(root, repair_id, "undoing", now, force=bool(more.get("force")),
                  times=more.get("times", {}), **noted(root, given))
        return
    later = overlapping(journal, _later(root, repair_id))
    if later is not None:
        raise RefusedError(f"repair {later} changed some of the same files later; undo it first")
    changed, times = _examine(root, journal, named, applied=state == "applied")
    if changed and not force:
        others = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise RefusedError(f"{changed[0]}{others}; --force undoes the repair anyway and moves "
                           "the current files aside")
    set_state(root, repair_id, "undoing", now, force=force, times=times,
              **noted(root, given))


def _later(root: str, repair_id: str) -> Iterator[Journal]:
    """Yield the later repairs that have not been undone, newest first."""
    for other in reversed(ids(root)):
        if (order(other) > order(repair_id) and is_committed(root, other)
                and state_of(root, other)[0] != "undone"):
            try:
                yield load_here(root, other)[0]
            except RefusedError:  # paths of another store: its targets still count
                yield load(root, other)


def carry_on(root: str, repair_id: str, clock: Callable[[], int], progress: Progress, *,
             maybe: bool, named: Sequence[str] = ()) -> Undone:
    """Undo the rest of a repair in the state ``undoing``. Raises: ChangedError, StoreIOError.

    ``maybe``: whether an earlier run may have undone some of its steps.
    """
    journal, _ = load_here(root, repair_id)
    _, more = state_of(root, repair_id)
    force, times = bool(more.get("force")), more.get("times", {})
    applier = StepApplier(root, journal, named)
    under = applier.under_moves()
    for number in range(len(journal.records) - 1, -1, -1):
        if number in under:
            continue
        applier.backward(journal.records[number], force=force, mtime_ns=times.get(str(number)))
        progress(1)
    applier.restore_times()
    note_actions(root, journal, "undone", clock(), maybe=maybe)
    set_state(root, repair_id, "undone", clock())
    return undone(journal)


def undone(journal: Journal, *, already: bool = False) -> Undone:
    """Return the result for a repair that has been undone."""
    return Undone(journal.id, len(journal.records), backup_folder(journal.id), already)
