"""Delete the files that old repairs keep. Nothing else deletes kept bytes.

The oldest repairs are pruned, up to the first one younger than the limit. So if a repair remains,
all repairs that must be undone before it also remain. Undoing a repair needs only its own kept
files.

A repair is given up by renaming its journal. Its staged and kept files then count as files of a
repair that was never committed. They are deleted at once or, after a kill, by the next process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.disk_usage import bytes_below
from rmqctl.files.durable import failed, make_folders, move, publish, sync_folder
from rmqctl.files.file_stamp import is_regular
from rmqctl.formats.local import names
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.executor.journal import (
    JOURNAL,
    HistoryEntry,
    backup_folder,
    history,
    load,
    order,
    pending,
    repair_folder,
    state_of,
)
from rmqctl.repair.executor.staging import clear
from rmqctl.repair.executor.staging_dirs import noted_staging_dirs
from rmqctl.scan.source import FileSource
from rmqctl.store.repair_losses import NOTE, PRUNED, pruned_notes

_PRUNED = "pruned.jsonl"


@dataclass(frozen=True, slots=True)
class Prunable:
    """A repair that can be given up.

    ``bytes``: disk space of its kept files; ``log_files``: number of complete log files among them,
    which may be the only copies.
    """

    entry: HistoryEntry
    bytes: int
    log_files: int

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self.entry), "bytes": self.bytes, "log_files": self.log_files,
                "kept": backup_folder(self.entry.id)}


def prunable(root: str, before: int) -> list[Prunable]:
    """Return the repairs made before ``before`` (ms), oldest first, up to the first younger repair.

    Read-only. Raises: RefusedError if there is an unfinished repair, which still needs its files;
    StoreIOError.
    """
    unfinished = pending(root)
    if unfinished is not None:
        raise RefusedError(f"repair {unfinished} was interrupted: complete it or undo it first")
    repairs = []
    for entry in history(root):
        if entry.time is None or entry.time >= before:
            break
        repairs.append(_examined(root, entry))
    return repairs


def _examined(root: str, entry: HistoryEntry) -> Prunable:
    folders = [repair_folder(root, entry.id), *noted_staging_dirs(root, entry.id)]
    journal = load(root, entry.id)
    logs = 0 if entry.state == "undone" else sum(
        record.kind == "move" and _is_log(record.target) for record in journal.records)
    return Prunable(entry, sum(map(bytes_below, folders)), logs)


def _is_log(target: str) -> bool:
    """Return whether a target of a repair is a file of the log, in any of its folders."""
    folder, name = os.path.split(target)
    return names.parse_offset(name) is not None and folder != "timerlog" and (
        os.path.isabs(folder) or os.sep not in folder)


def forget(root: str, repair_id: str, *, note: bool = False) -> None:
    """Give up a repair and delete its files, under the root's lock. Raises: StoreIOError.

    ``note``: whether to also delete the note about its losses.
    """
    folder = repair_folder(root, repair_id)
    if not note:
        _keep_note(root, repair_id)
    move(os.path.join(folder, JOURNAL), os.path.join(folder, _PRUNED))
    clear(root, repair_id)


def _keep_note(root: str, repair_id: str) -> None:
    """Copy the note about a repair's losses to its permanent path."""
    path = os.path.join(repair_folder(root, repair_id), NOTE)
    if not is_regular(path) or state_of(root, repair_id)[0] == "undone":
        return
    kept = os.path.join(root, PRUNED)
    make_folders(kept)
    with FileSource(path) as source:
        data = source.read(0, source.size)
    publish(os.path.join(kept, f"{repair_id}.json"), data, store=root, staging=kept)


def forgettable(root: str, before: int, pruned: Iterable[str] = ()) -> list[str]:
    """Return the ids of repairs whose note of losses can be deleted.

    These are repairs made before ``before`` (ms) that are already pruned, and the repairs
    ``pruned``, which are about to be pruned.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(max(before, 0) / 1000))
    noted = {repair_id for repair_id in pruned_notes(root) if order(repair_id)[0] <= stamp}
    return sorted(noted | {repair_id for repair_id in pruned if is_regular(
        os.path.join(repair_folder(root, repair_id), NOTE))}, key=order)


def forget_note(root: str, repair_id: str) -> None:
    """Delete the note of a pruned repair's losses. Raises: StoreIOError."""
    path = os.path.join(root, PRUNED, f"{repair_id}.json")
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(error, path, "delete") from None
    sync_folder(os.path.dirname(path))


def left_elsewhere(root: str, repair_id: str) -> Iterator[str]:
    """Yield folders that contain files of a repair but may not belong to this store.

    These folders are on other file systems, and were created before the store was moved or copied.
    """
    with suppress(StoreIOError):
        noted = noted_staging_dirs(root, repair_id)
        yield from (folder for folder in load(root, repair_id).staging_dirs
                    if folder not in noted and os.path.isdir(folder))
