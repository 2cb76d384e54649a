"""Taking a repair back: bytes, lengths, names and times become what they were.

What the repair had made goes to ``undone`` beside what it kept. Like the repair itself, it is
journaled: once begun, the next run completes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.repair.executor.apply_step import Carrier, ChangedError
from rmqctl.repair.executor.journal import (
    Entry,
    Journal,
    entry,
    ids,
    is_committed,
    kept_folder,
    load,
    note_actions,
    order,
    overlapping,
    set_state,
    state_of,
)

Progress = Callable[[int], object]
"""Called with 1 after every step."""


@dataclass(frozen=True, slots=True)
class Undone:
    """A repair that was taken back: its id, the number of its steps, the folder (relative to
    the store root) with what it had made. ``already``: it had been taken back before.
    """

    id: str
    steps: int
    kept: str
    already: bool = False


@dataclass(frozen=True, slots=True)
class Preview:
    """What `undo` of a repair would find. ``changed`` says in words which targets are not as the
    repair left them.
    """

    entry: Entry
    actions: tuple[Mapping[str, Any], ...]
    changed: tuple[str, ...]


def choose(root: str, id: str | None) -> str:  # noqa: A002
    """The repair that is meant: the newest that is not undone or given up, unless named.

    UsageError for an id there is not, RefusedError if there is nothing to undo.
    """
    known = [one for one in ids(root) if is_committed(root, one)]
    if id is not None:
        if id not in known:
            raise UsageError(f"{root} has no repair {id!r}; `rmqctl undo {root} --list` shows "
                             "which there are")
        return id
    for one in reversed(known):
        if state_of(root, one)[0] not in ("undone", "abandoned"):
            return one
    raise RefusedError(f"{root}: no repair to undo")


def preview(root: str, id: str | None = None) -> Preview:  # noqa: A002
    """Looks only. UsageError, RefusedError, StoreIOError."""
    id = choose(root, id)  # noqa: A001
    state, _ = state_of(root, id)
    changed: list[str] = []
    try:
        journal = load(root, id)
    except StoreIOError as problem:
        return Preview(entry(root, id), (), (str(problem),))
    if state in ("applied", "abandoned", "interrupted"):
        changed = _examine(root, journal, applied=state == "applied")[0]
    return Preview(entry(root, id), journal.actions, tuple(changed))


def _examine(root: str, journal: Journal, *, applied: bool) -> tuple[list[str], dict[str, int]]:
    """(what was changed since, modification times that are to stay by number of the step)."""
    carrier = Carrier(root, journal)
    changed, times = [], {}
    for number, (one, phase) in enumerate(carrier.phases()):
        try:
            if isinstance(phase, ChangedError):
                raise phase
            mtime = carrier.check_undo(one, phase, applied=applied)
        except ChangedError as problem:
            changed.append(str(problem))
        else:
            if mtime is not None:
                times[str(number)] = mtime
    return changed, times


def begin(root: str, id: str, now: int, *, force: bool) -> None:  # noqa: A002
    """Decides that a repair is taken back; nothing but its state changes yet. RefusedError."""
    journal = load(root, id)
    state, _ = state_of(root, id)
    later = [one for one in ids(root) if order(one) > order(id) and is_committed(root, one)]
    other = overlapping(root, journal, later)
    if other is not None:
        raise RefusedError(f"repair {other} changed some of the same files later: undo that first")
    changed, times = _examine(root, journal, applied=state == "applied")
    if changed and not force:
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise RefusedError(f"{changed[0]}{more}; with --force it is taken back all the same, and "
                           "what is there now is kept")
    set_state(root, id, "undoing", now, force=force, times=times)


def carry_on(root: str, id: str, clock: Callable[[], int], progress: Progress, *,  # noqa: A002
             maybe: bool) -> Undone:
    """Takes back the rest of a repair in the state ``undoing``. ``maybe``: a run before this one
    may have done some of it. ChangedError, StoreIOError.
    """
    journal = load(root, id)
    _, more = state_of(root, id)
    force, times = bool(more.get("force")), more.get("times", {})
    carrier = Carrier(root, journal)
    under = carrier.under_moves()
    for number in range(len(journal.records) - 1, -1, -1):
        if number in under:
            continue
        carrier.backward(journal.records[number], force=force, mtime_ns=times.get(str(number)))
        progress(1)
    carrier.restore_times()
    note_actions(root, journal, "undone", clock(), maybe=maybe)
    set_state(root, id, "undone", clock())
    return undone(journal)


def undone(journal: Journal, *, already: bool = False) -> Undone:
    """The result for a repair that has been taken back."""
    return Undone(journal.id, len(journal.records), kept_folder(journal.id), already)
