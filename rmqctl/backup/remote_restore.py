"""Restore a store from a backup at a URL."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rmqctl.backup import moment
from rmqctl.backup.entries import has_entries, is_of_queues, lay
from rmqctl.backup.growing import Copies, Pace
from rmqctl.backup.objects import LOG, SMALL, Held, Note, Objects, is_expired
from rmqctl.backup.points import NO_POINT, is_of_log
from rmqctl.backup.restore import (
    IDENTITY,
    Restored,
    complete,
    damage_of,
    end_at,
    end_of,
    notes_of,
    point_at,
    progress_at,
    refuse_other_log,
    refuse_taken,
    removed_unless_done,
    retries_since,
    without_messages,
)
from rmqctl.backup.restore import SMALL as OF_A_POINT
from rmqctl.errors import RefusedError, RmqctlError, UnsupportedError, UsageError
from rmqctl.files.durable import make_folders, new_file, write_all
from rmqctl.repair.truncate.truncate import WRITES, border
from rmqctl.store.store import Store

_OTHER, _SMALL, _PROGRESS = "other", "small", "progress"


def restore(backup: str, target: str, *, until: int | None = None, offset: int | None = None,
            point: str | None = None, seed_slave: bool = False,
            pace: Pace = lambda _bytes: None) -> Restored:
    """Create the store ``target`` from a backup at a URL, as `restore.restore` does. Each
    downloaded object is checked against its SHA-256. Raises: StoreIOError.
    """
    if sum(given is not None for given in (until, offset, point)) > 1:
        raise UsageError("pass only one of a time, an offset and a restore point")
    part = refuse_taken(target)
    with removed_unless_done(part):
        return _restored(backup, target, part, until, offset, point, pace, seed_slave=seed_slave)


def _restored(backup: str, target: str, part: str, until: int | None, offset: int | None,
              point: str | None, pace: Pace, *, seed_slave: bool) -> Restored:
    with Objects(backup) as objects:
        bad: list[RmqctlError] = []
        point_notes = objects.require_notes(bad)
        points = [note.point for note in point_notes]
        # The log is the newest point's; other structures are from a point that includes the end.
        newest = point_notes[-1]
        last, chosen = newest, point_at(points, until)
        if point is not None:
            last = next((note for note in point_notes if note.point.id == point), Note(NO_POINT))
            if not last.point.id:
                raise UsageError(f"{objects.where('')}: no restore point {point}; the backup "
                                 f"has points {points[0].id} to {points[-1].id}")
        elif offset is not None:
            last = next((note for note in point_notes if note.point.log_end >= offset), newest)
        if until is None:
            chosen = last.point
        of_chosen = next(note for note in point_notes if note.point is chosen)
        if seed_slave:
            refuse_other_log(objects.where(""), newest.point, is_dledger=any(
                os.path.dirname(name) not in ("", "commitlog") for name in newest.log))
        make_folders(part)
        copies = Copies(part, pace)
        for name, held in newest.log.items():
            if not is_expired(name, held, points[0]) and _base(name) <= last.point.log_end:
                _fetch(objects, copies, LOG, name, held)
        # The end of the restored log determines the point of the other structures.
        rest = last
        with Store.open(part) as store, store.up_to(newest.point.log_end) as whole:
            end = end_of(whole, last.point, newest.point)
        if until is not None:
            with Store.open(part) as store, store.up_to(end) as whole:
                end = end_at(whole, until, end)
            rest = of_chosen if chosen.log_end >= end else next(
                note for note in point_notes if note.point.log_end >= end)
        progress = chosen if offset is None else progress_at(points, offset)
        of_progress = next(note for note in point_notes if note.point is progress)
        for note, wanted in ((rest, _OTHER), (of_chosen, _SMALL), (of_progress, _PROGRESS)):
            for name, held in note.others.items():
                if _kind(name) == wanted and not (
                        is_of_queues(name) or (seed_slave and name in IDENTITY)):
                    _fetch(objects, copies, SMALL, name, held)
        laid = has_entries(rest) and last.queues != "rocksdb" and not last.settings.get(
            "consumequeue_ext")
        if laid:
            lay(objects, rest, copies, end if offset is None else offset)
    with Store.open(part) as store, store.up_to(last.point.log_end) as whole:
        if offset is not None:
            border(whole, end := offset)
        notes = [*map(str, bad), *notes_of(chosen, progress, until, end),
                 *damage_of((note.point for note in point_notes), end),
                 *without_messages(whole, until, end)]
        is_cut = end < last.point.log_end
        if is_cut:
            _require_cuttable(store, objects.where(""))
        files = [file for file in store.log.files if file.base < end]
        retries = retries_since(whole, end, progress)
        _cut(copies, store, end)
        is_plain, generation = not any(file.head for file in store.log.files), store.generation
    if last.queues == "rocksdb":  # this file marks the folder as a RocksDB database
        copies.whole(os.path.join("consumequeue", "LOCK"), b"")
    elif last.queues == "double":
        notes.append("the consume queues are in files; a broker with rocksdbCQDoubleWriteEnable "
                     "creates a new database beside them")
    copies.sync()
    bare = {**last.settings, "batch_topics": frozenset(last.settings.get("batch_topics", []))}
    lowered = complete(part, target, end, generation, notes, chosen, is_plain=is_plain,
                       is_cut=is_cut, bare=bare,
                       has_entries=laid and _only_entries_tell(point_notes),
                       retries=retries)
    return Restored(chosen, end, len(files), lowered, tuple(notes))


def _kind(name: str) -> str:
    """Return the kind of a file, which determines the point whose version of it is restored."""
    if name.split("/", 1)[0] not in OF_A_POINT:
        return _OTHER
    return _PROGRESS if moment.is_progress(name) else _SMALL


def _only_entries_tell(point_notes: Sequence[Note]) -> bool:
    """Return whether some consume queue entries cannot be determined from the log."""
    return not point_notes[-1].point.own and any(
        note.point.missing or note.point.again or any(is_of_log(hole.file) for hole in note.holes)
        for note in point_notes)


def _base(name: str) -> int:
    """Return the physical offset at which a log file with this name starts; 0 for other names."""
    last = os.path.basename(name)
    return int(last) if last.isdigit() else 0


def _fetch(objects: Objects, copies: Copies, folder: str, name: str, held: Held) -> None:
    """Download a file of a backup. Raises: StoreIOError."""
    path = copies.path(name)
    make_folders(os.path.dirname(path), durable=False)
    fd = new_file(path, held.size)
    try:
        for piece in objects.pieces_of(held):
            write_all(fd, objects.get(folder, name, piece), piece.start, path)
            copies.pace(piece.end - piece.start)
    finally:
        os.close(fd)
    copies.changed[name] = None


def _require_cuttable(store: Store, where: str) -> None:
    """Raise RefusedError if the log must not be truncated: only restore points can then be
    restored.
    """
    try:
        store.layout.require_writable(store.root, WRITES, made_anew=True)
    except UnsupportedError:
        raise RefusedError(f"{where}: a DLedger log can only be restored to a restore point, not "
                           "to a state between restore points") from None


def _cut(copies: Copies, store: Store, end: int) -> None:
    """Truncate the downloaded log at ``end``. A file that starts at ``end`` is kept as an empty
    file.
    """
    for file in store.log.files:
        name = os.path.relpath(file.path, store.root)
        if file.base > end:
            copies.remove(name)
        else:
            copies.wipe_after(name, end - file.base)
