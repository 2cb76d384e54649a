"""Find foreign files that keep a broker from starting, in the folders of a store.

A broker treats every entry of these folders as one of its files (recovery.md §2). A file whose name
is not a number, or whose length is wrong, keeps the broker from starting. A folder keeps a 4.x
broker from starting.

In the index folder, a broker skips names that are not numbers: `IndexService.load` catches the
error. Any number is treated as an index file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import filterfalse

from rmqctl.broker.versions import version_for
from rmqctl.checks.preflight.load import load
from rmqctl.errors import RefusedError
from rmqctl.formats.local import names
from rmqctl.repair.plan import Action, MoveAside, Patch, Planned, Step
from rmqctl.repair.targets import target
from rmqctl.store.files import Listing, listing
from rmqctl.store.store import Store

WHY = "a broker does not start on it"
_TAKEN = "a broker treats it as an index file"
_NO_INDEX = "not an index file"
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
"""Numbers as Long.parseLong accepts them, with two differences: digits of other scripts do not
match, and 19 digits match even if the number is too large.
"""
_QUEUES = ("consumequeue", "consumequeue_ext")
_NAMED = 5


def foreign_log_entries(store: Store, generation: int) -> Planned:
    """Return the steps that move aside foreign entries in the log's folders, and those that give
    the log's files their names. ``generation``: 4 or 5.
    """
    own = {file.path for file in store.log.files}
    steps, actions = _moved_aside(store, (
        path for folder in store.log_folders
        for path in _strange(folder, listing(folder), generation) if path not in own))
    for trouble in store.log_troubles:
        if trouble.stray:
            stray = _moved_aside(store, [trouble.path], trouble.reason)
            steps, actions = [*steps, *stray[0]], [*actions, *stray[1]]
    return steps, actions


def refuse_packed(store: Store) -> None:
    """Refuse to continue if a missing file of the log is there, but compressed: its messages would
    count as lost.

    Raises: RefusedError.
    """
    bases = {file.base for file in store.log.files}
    for trouble in store.log_troubles:
        base = names.parse_offset(os.path.basename(trouble.path)[:names.OFFSET_DIGITS])
        if trouble.packed and base is not None and base not in bases:
            raise RefusedError(
                f"{trouble.path}: compressed with {trouble.packed}; its messages would count as "
                "lost. Uncompress it first, under its name without the suffix, or move it out of "
                "the store")


def foreign_queue_entries(store: Store, generation: int) -> Planned:
    """Return the steps that move aside foreign entries in the folders of queues.

    The queues are plain, extended and, in 5.x, batch queues.
    """
    tops = _QUEUES if generation < 5 else (*_QUEUES, "batchconsumequeue")

    def every() -> Iterator[str]:
        for top in tops:
            for topic in store.queues.listed(store.path(top)).folders:
                for queue in store.queues.listed(store.path(top, topic)).folders:
                    if _NUMBER.fullmatch(queue):  # a broker skips other queue folders
                        folder = store.path(top, topic, queue)
                        yield from _strange(folder, store.queues.listed(folder), generation)

    return _moved_aside(store, every())


def foreign_index_entries(store: Store) -> Planned:
    """Return the steps that move aside everything in the index folder that is not an index file."""
    folder = store.path("index")
    index_listing = listing(folder, names.INDEX_DIGITS)
    folders = [os.path.join(folder, name) for name in index_listing.folders]
    files = list(_others(folder, index_listing))
    steps: list[Step] = []
    actions: list[Action] = []
    for why, paths in ((WHY, filter(_is_number, folders)), (_TAKEN, filter(_is_number, files)),
                       (_NO_INDEX, filterfalse(_is_number, [*folders, *files]))):
        planned = _moved_aside(store, paths, why)
        steps += planned[0]
        actions += planned[1]
    return steps, actions


def joined(steps: Sequence[Step], actions: Sequence[Action], foreign: Planned) -> Planned:
    """Return the steps and actions for derived and for foreign files, moving each target once."""
    done = {step.target for step in steps}
    gone = [step.target for step in foreign[0] if step.target not in done]
    left = [step for step in steps
            if not any(step.target.startswith(above + os.sep) for above in gone)]
    dropped = {os.path.dirname(step.target) for step in steps} - {
        os.path.dirname(step.target) for step in left}
    # Drop the action of a queue whose steps were all inside a folder that is moved.
    own_actions = [action for action in actions if not any(
        folder.startswith(action.target + os.sep) for folder in dropped) or any(
        step.target == action.target or step.target.startswith(action.target + os.sep)
        for step in left)]
    fresh = set(gone)
    return ([*left, *(step for step in foreign[0] if step.target in fresh)],
            [*own_actions, *(action for action in foreign[1] if action.target in fresh)])


def refusals_left(store: Store, generation: int, steps: Iterable[Step]) -> list[str]:
    """Return a list with one note: why a broker would not start even after the steps.

    The list is empty if the broker would start. Only names, sizes and configuration are checked.
    Raises: StoreIOError.
    """
    cured = set(_repaired(store, steps))
    left = [refusal for refusal in load(store, version_for(generation)).refusals
            if refusal.target not in cured]
    if not left:
        return []
    named = "; ".join(f"{refusal.target}: {refusal.reason}" for refusal in left[:_NAMED])
    more = f"; and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return [("a broker would not start on this store, even after this repair: "
             f"{named}{more}")]


def _repaired(store: Store, steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        longer = not isinstance(step, Patch) or (
            step.pieces and step.pieces[-1].end > _size(os.path.join(store.root, step.target)))
        if longer:
            yield step.target


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _strange(folder: str, files: Listing, generation: int) -> Iterator[str]:
    if not version_for(generation).skips_folders:
        for name in files.folders:
            yield os.path.join(folder, name)
    yield from _others(folder, files)


def _others(folder: str, files: Listing) -> Iterator[str]:
    for trouble in files.troubles:
        if trouble.path != folder and os.path.lexists(trouble.path):
            yield trouble.path


def _is_number(path: str) -> bool:
    return _NUMBER.fullmatch(os.path.basename(path)) is not None


def _moved_aside(store: Store, paths: Iterable[str], why: str = WHY) -> Planned:
    steps: list[Step] = []
    actions: list[Action] = []
    for path in sorted(paths):
        where = target(store, path)
        steps.append(MoveAside(where))
        actions.append(Action("move aside", where, _bytes_of(path), None, why, "byte"))
    return steps, actions


def _bytes_of(path: str) -> int | None:
    """Return the length of a file; None for a folder, a link or anything else."""
    return _size(path) if os.path.isfile(path) and not os.path.islink(path) else None

