"""What old repairs keep, given up for good: the one place where kept bytes are deleted.

The oldest repairs go, up to the first that is younger: so a repair that stays never lacks a later
one that would have to be taken back before it, and taking one back needs only what it kept itself.
A repair is given up by the renaming of its journal; what it staged and kept is then that of a
repair which was never committed, and is taken away at once, or by whoever enters next.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.disk_usage import bytes_below
from rmqctl.files.durable import move
from rmqctl.formats.local import names
from rmqctl.repair.executor.journal import (
    JOURNAL,
    Entry,
    backup_folder,
    history,
    load,
    pending,
    repair_folder,
)
from rmqctl.repair.executor.staging import clear
from rmqctl.repair.executor.staging_dirs import noted_staging_dirs

_PRUNED = "pruned.jsonl"


@dataclass(frozen=True, slots=True)
class Prunable:
    """A repair that can be given up. ``bytes`` on disk that it keeps; ``log_files``: how many whole
    files of the log are among what it moved away, which nothing else may hold.
    """

    entry: Entry
    bytes: int
    log_files: int

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self.entry), "bytes": self.bytes, "log_files": self.log_files,
                "kept": backup_folder(self.entry.id)}


def prunable(root: str, before: int) -> list[Prunable]:
    """The repairs made before ``before`` (ms), oldest first, up to the first that is younger.

    Looks only. RefusedError where one is not finished: it needs what it keeps. StoreIOError.
    """
    unfinished = pending(root)
    if unfinished is not None:
        raise RefusedError(f"repair {unfinished} was interrupted: it has to be completed or taken "
                           "back first")
    found = []
    for entry in history(root):
        if entry.time is None or entry.time >= before:
            break
        found.append(_examined(root, entry))
    return found


def _examined(root: str, entry: Entry) -> Prunable:
    folders = [repair_folder(root, entry.id), *noted_staging_dirs(root, entry.id)]
    journal = load(root, entry.id)
    logs = 0 if entry.state == "undone" else sum(
        record.kind == "move" and _is_log(record.target) for record in journal.records)
    return Prunable(entry, sum(map(bytes_below, folders)), logs)


def _is_log(target: str) -> bool:
    """Whether a target of a repair is a file of the log, in any of its folders."""
    folder, name = os.path.split(target)
    return names.parse_offset(name) is not None and folder != "timerlog" and (
        os.path.isabs(folder) or os.sep not in folder)


def forget(root: str, repair_id: str) -> None:
    """Gives one up, under the root's lock. StoreIOError."""
    folder = repair_folder(root, repair_id)
    move(os.path.join(folder, JOURNAL), os.path.join(folder, _PRUNED))
    clear(root, repair_id)


def left_elsewhere(root: str, repair_id: str) -> Iterator[str]:
    """Folders on other file systems that a repair keeps things in, made where the store lay before:
    whether they are this store's cannot be told.
    """
    with suppress(StoreIOError):
        known = noted_staging_dirs(root, repair_id)
        yield from (folder for folder in load(root, repair_id).staging_dirs
                    if folder not in known and os.path.isdir(folder))
