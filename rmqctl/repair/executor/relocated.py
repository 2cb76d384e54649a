"""Find the current paths of a journal in a store that was moved or copied since the repair.

Targets below the root move with the store. Targets outside of it may not have moved: folders of a
multi-path log, a tier's metadata, and folders to which links point. After a copy, they belong to
the original store.

A copied store cannot be distinguished from a moved store: inode numbers may coincide, and the
original may be on a disk that is not mounted. So a folder outside is accepted only if the user
names it, or if it has the same path relative to the root and contains files that the repair
recorded. All other folders are refused, with or without ``--force``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.files.durable import STAGING
from rmqctl.files.file_stamp import is_regular
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.repair.executor.apply_step import ChangedError, StepStates
from rmqctl.repair.executor.journal import (
    FOLDER,
    Journal,
    StepRecord,
    is_committed,
    load,
    pending,
    repair_folder,
    state_of,
)
from rmqctl.repair.executor.staging import head_of
from rmqctl.repair.executor.staging_dirs import structure_of

Folders = Mapping[str, str]
"""Map from the paths of folders outside the store, as in the journal, to their current paths."""


def load_here(root: str, repair_id: str, moved: Sequence[str] = ()) -> tuple[Journal, Folders]:
    """Return (the journal of a repair with its current paths, the folders that the user named).

    ``moved``: texts ``OLD=NEW`` from the user; those given when the undo was begun are added.
    Raises: UsageError for an OLD that the repair does not have; StoreIOError, RefusedError.
    """
    journal = load(root, repair_id)
    now = os.path.realpath(root)
    given = _noted(state_of(root, repair_id)[1], now) | _parsed(journal, moved)
    return as_it_lies(root, journal, given), given


def moved_to(root: str, repair_id: str, moved: Sequence[str]) -> list[str]:
    """Return the folders given as NEW in ``moved``. Raises: UsageError."""
    return list(_parsed(load(root, repair_id), moved).values()) if moved else []


def noted(root: str, given: Folders) -> dict[str, Any]:
    """Return the named folders as a repair's state records them.

    For another copy of the store, the user must name the folders again.
    """
    return {"moved": {"root": os.path.realpath(root), "folders": dict(given)}} if given else {}


def _noted(state: Mapping[str, Any], now: str) -> dict[str, str]:
    raw = state.get("moved")
    if not isinstance(raw, dict) or raw.get("root") != now:
        return {}
    folders = raw.get("folders")
    return {str(old): str(new) for old, new in folders.items()} if isinstance(
        folders, dict) else {}


def _parsed(journal: Journal, moved: Iterable[str]) -> dict[str, str]:
    folders = outside(journal)
    given = {}
    for text in moved:
        parts = text.split("=")
        pairs = [("=".join(parts[:number]), "=".join(parts[number:]))
                 for number in range(1, len(parts))]
        pair = next(((old, new) for old, new in pairs if os.path.normpath(old) in folders), None)
        if pair is None:
            names = ", ".join(folders) if folders else "none"
            raise UsageError(f"--moved {text}: expected OLD=NEW. OLD must be one of these folders "
                             f"outside the store, where repair {journal.id} changed files: {names}")
        if not os.path.isdir(pair[1]):
            raise UsageError(f"--moved {text}: {pair[1] or 'NEW'} is not a folder")
        given[os.path.normpath(pair[0])] = os.path.realpath(pair[1])
    return given


def outside(journal: Journal) -> list[str]:
    """Return the folders outside of the store in which a repair changes files, as its journal names
    them.
    """
    return sorted({os.path.dirname(record.target) for record in journal.records
                   if os.path.isabs(record.target)})


# -- interrupted repairs --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A repair, or its undo, that was committed and is not finished.

    * ``root``: path of the store where the repair was made, according to its journal.
    * ``host``: name of the machine where the repair was made, to show to the user.
    * ``question``: reason why the user must name the repair before it is completed, or empty.
    """

    id: str
    command: str
    time: int
    state: str
    root: str
    host: str
    steps: int
    question: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def refuse_unknown(root: str, wanted: str | None, repair_id: str | None) -> None:
    """Raise UsageError if the repair that the user wants to complete is not the interrupted
    repair.
    """
    if wanted not in (None, repair_id):
        raise UsageError(f"--complete {wanted}: {root} has no interrupted repair with this ID")


def interrupted(root: str, named: Iterable[str] = ()) -> Interrupted | None:
    """Return the unfinished repair of a store. Read-only. Raises: StoreIOError.

    None if all repairs are finished or abandoned, or if the journal is damaged. ``named``: folders
    outside the store that the user named.
    """
    repair_id = pending(root)
    if repair_id is None or (state := state_of(root, repair_id)[0]) == "damaged":
        return None
    try:
        journal = load(root, repair_id)
    except StoreIOError:
        return None
    return Interrupted(journal.id, journal.command, journal.time, state, journal.root,
                       journal.host, len(journal.records), _question(root, journal, named))


def _question(root: str, journal: Journal, named: Iterable[str]) -> str:
    if not _is_where_made(root, os.path.realpath(root), journal):
        if journal.host:
            return Phrase("it was made in {root} on host {host}", root=journal.root,
                          host=journal.host)
        return Phrase("it was made in {root}", root=journal.root or "?")
    try:
        states = StepStates(root, journal, named)
        for _ in states.phases():
            pass
    except RefusedError:
        return ""  # completing it reports the reason
    if states.by_content:
        return Phrase("the stamp of {target} does not match its journal",
                      target=states.by_content[0])
    return ""


# -- the paths ------------------------------------------------------------------------------------


def as_it_lies(root: str, journal: Journal, given: Folders) -> Journal:
    """Return the journal with the paths that its targets have in the store at ``root``. Raises:
    RefusedError.
    """
    now = os.path.realpath(root)
    if _is_where_made(root, now, journal):
        # Given all the same: a copy at the same path, with its further folders elsewhere.
        return _renamed(journal, now, given) if given else journal
    other = journal.root if journal.root and is_committed(journal.root, journal.id) else ""
    if other:
        _refuse_shared(root, now, journal)
    folders = {folder: _folder_here(root, now, journal, folder, given, other)
               for folder in outside(journal)}
    return _renamed(journal, now, folders)


def _is_where_made(root: str, now: str, journal: Journal) -> bool:
    if journal.root == now:
        return True
    try:
        if journal.root:
            return os.path.samefile(journal.root, now)  # the same store, by another path
        return os.stat(repair_folder(root, journal.id)).st_ino == journal.inode
    except OSError:
        return False


def _refuse_shared(root: str, now: str, journal: Journal) -> None:
    """Raise RefusedError if this store and the store in which the repair was made share a target.

    The stores may share a folder through links, or a file to be patched (a hard link).
    """
    @cache
    def shared(folder: str) -> str:
        own, other = (os.path.realpath(os.path.join(store, folder))
                      for store in (now, journal.root))
        return own if _is_same(own, other) else ""

    for record in journal.records:
        if os.path.isabs(record.target):
            continue
        both = [os.path.join(store, record.target) for store in (now, journal.root)]
        if record.kind == "patch" and _is_same(*both):
            raise RefusedError(
                f"repair {journal.id} was made in {journal.root}, which still contains it: "
                f"{record.target} in {root} and in that store is the same file (a hard link); "
                "replace it with a copy")
        folder = os.path.dirname(record.target)
        if where := shared(folder):
            raise RefusedError(
                f"repair {journal.id} was made in {journal.root}, which still contains it: "
                f"{folder or os.curdir} in {root} and in that store points to {where}; give "
                "the copy a folder of its own")


def _folder_here(root: str, now: str, journal: Journal, folder: str, given: Folders,
                 other: str) -> str:
    """Return the current path of ``folder``, which is outside of the store. Raises:
    RefusedError.
    """
    if folder in given:
        if other and _is_same(folder, given[folder]):
            raise RefusedError(f"{folder}: belongs to the store {other}, in which repair "
                               f"{journal.id} was made; a command on {root} must not change it")
        return given[folder]
    if journal.root:
        candidate = os.path.normpath(os.path.join(now, os.path.relpath(folder, journal.root)))
        if os.path.isdir(candidate) and not _is_same(candidate, folder) and _is_known(
                now, journal, folder, candidate):
            return candidate
    command = f"rmqctl undo {root} {journal.id} --moved {folder}="
    if other:
        raise RefusedError(
            f"repair {journal.id} was made in {other}, which still contains it, and also changed "
            f"{folder}, which belongs to that store. If {root} has its own copy of that folder: "
            f"`{command}FOLDER`")
    was = journal.root or "another place"
    raise RefusedError(
        f"repair {journal.id} was made in {was} and also changed {folder}; it is unknown whether "
        f"that folder belongs to {root} or to another copy. If it belongs to {root}: "
        f"`{command}{folder}`; if {root} has its own copy of it: `{command}FOLDER`")


def _is_same(first: str, other: str) -> bool:
    try:
        return os.path.realpath(first) == os.path.realpath(other) or os.path.samefile(first, other)
    except OSError:
        return False


def _is_known(now: str, journal: Journal, folder: str, candidate: str) -> bool:
    """Return whether the folder ``candidate`` has a file that the repair recorded in ``folder``.

    The file is one that the repair did not change, or a target of the repair in its old or new
    state.
    """
    for name, (size, digest) in journal.neighbours.get(folder, {}).items():
        path = os.path.join(candidate, name)
        if is_regular(path) and os.path.getsize(path) == size and head_of(path) == digest:
            return True
    states = StepStates(now, _renamed(journal, now, {folder: candidate}), [candidate])
    for before, record in zip(journal.records, states.journal.records, strict=True):
        if os.path.dirname(before.target) != folder or not is_regular(states.path(record)):
            continue
        try:
            states.phase(record)
        except ChangedError:
            continue
        return True
    return False


# -- renaming -------------------------------------------------------------------------------------


def _renamed(journal: Journal, now: str, folders: Folders) -> Journal:
    """Return the journal with ``folders`` outside of the store renamed.

    Staging folders on other file systems are renamed as well, because they are next to the targets.
    """
    records = tuple(_record(record, folders) for record in journal.records)
    return replace(journal, records=records,
                   staging_dirs=tuple(_staging_dir(now, records, number, folder) for number, folder
                                      in enumerate(journal.staging_dirs, 1)),
                   times={folders.get(name, name): mtime for name, mtime in journal.times.items()})


def _record(record: StepRecord, folders: Folders) -> StepRecord:
    folder, name = os.path.split(record.target)
    if folder not in folders:
        return record
    created = [path for path in (_above(path, folders) for path in record.folders) if path]
    return replace(record, target=os.path.join(folders[folder], name), folders=tuple(created))


def _above(path: str, folders: Folders) -> str:
    """Return the new path of a folder that was renamed or contains a renamed folder; empty if
    unknown.
    """
    for old, new in folders.items():
        suffix = old.removeprefix(path)
        if suffix == "" or (suffix != old and suffix.startswith(os.sep) and new.endswith(suffix)):
            return new.removesuffix(suffix)
    return "" if os.path.isabs(path) else path


def _staging_dir(now: str, records: Sequence[StepRecord], number: int, folder: str) -> str:
    """Return the current path of an additional staging folder. ``number``: its number; ``folder``:
    the path under which it was created.
    """
    target = next((record.target for record in records if record.staging_dir == number), None)
    if target is None:
        return folder
    return os.path.join(os.path.dirname(structure_of(now, target)), STAGING, FOLDER,
                        os.path.basename(folder))

