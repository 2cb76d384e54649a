"""Flush a complete store to disk, then update its checkpoint (``rmqctl flush``; spec: recovery.md
§11).

Only the operating system knows which files are dirty, so every file and folder is flushed; flushing
a clean one costs nothing. The checkpoint is advanced only up to data that is on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any

from rmqctl.broker.settings import Settings
from rmqctl.engine.opening import examine, recorded_runs, refuse_held, sizes_of
from rmqctl.engine.small_files import CheckpointFile
from rmqctl.errors import FormatError, RefusedError, StoreIOError
from rmqctl.files.durable import sync_file, sync_folder
from rmqctl.files.lock import StoreLock
from rmqctl.formats.local.checkpoint import CheckpointRecord
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.store import Store

STRUCTURES = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")


@dataclass(slots=True)
class Flushed:
    """The result of a flush: number of files of each structure, end of the log, checkpoint before
    and after the flush.
    """

    files: dict[str, int] = field(default_factory=dict)
    flushed_to: int | None = None
    before: CheckpointRecord | None = None
    checkpoint: CheckpointRecord | None = None
    dry_run: bool = False
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        named = None if self.checkpoint is None else self.checkpoint._asdict()
        return {"files": self.files, "flushed_to": self.flushed_to, "checkpoint": named,
                "checkpoint_moved": self.before != self.checkpoint, "dry_run": self.dry_run}


def flush_store(root: str, settings: Settings, commitlog_dirs: Iterable[str] = (), *,
                dry_run: bool = False,
                progress: Callable[[int], None] = lambda _: None) -> Flushed:
    """Flush everything, then advance the checkpoint, under the store's lock.

    After an unclean shutdown, or with damage at the end of the log, the checkpoint stays, because
    recovery relies on it. ``progress`` is called with 1 for each file.

    Raises: StoreHeldError, StoreIOError.
    """
    dirs = list(commitlog_dirs)
    store = Store.open(root, dirs)
    store.layout.require_writable(root)
    if dry_run:
        refuse_held(store, root)
        return _flush(store, settings, dirs, progress, dry_run=True)
    with StoreLock(root):
        return _flush(store, settings, dirs, progress, dry_run=False)


def _flush(store: Store, settings: Settings, dirs: list[str], progress: Callable[[int], None],
           *, dry_run: bool) -> Flushed:
    done = Flushed(dry_run=dry_run)
    for structure, folders in (("commitlog", store.log_folders),
                               *((structure, [store.path(structure)]) for structure in STRUCTURES)):
        for folder in folders:
            for path, is_folder in _below(folder):
                if not is_folder:
                    done.files[structure] = done.files.get(structure, 0) + 1
                    progress(1)
                if dry_run:
                    continue
                if is_folder:
                    sync_folder(path)
                else:
                    sync_file(path)
    checkpoint = CheckpointFile(store.root, settings.profile.generation)
    done.before = checkpoint.record
    with Store.open(store.root, dirs, sizes_of(settings)) as opened:
        _advance(opened, settings, checkpoint, done)
    if not dry_run and done.before != checkpoint.record:
        checkpoint.flush()
    done.checkpoint = checkpoint.record
    return done


def _below(folder: str) -> Iterator[tuple[str, bool]]:
    """Yield (path, whether it is a folder) for everything below a folder; a folder follows its
    contents.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreIOError.from_oserror(error, folder, "list") from None
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)
        elif entry.is_file():
            yield entry.path, False
    yield folder, True


def _advance(store: Store, settings: Settings, checkpoint: CheckpointFile,
             done: Flushed) -> None:
    """Advance the checkpoint's times to those of the data that is on disk."""
    try:
        state = examine(store, settings.profile)
    except RefusedError as error:
        done.notes.append(f"the checkpoint was not updated: {error}")
        return
    done.flushed_to = state.end
    if not state.clean:
        done.notes.append("the last shutdown was not clean: the checkpoint was not updated, "
                          "because recovery relies on it")
        return
    physic = logics = 0
    for run in recorded_runs(store, state.start, state.end):
        physic = run.last_timestamp
        logics = run.last_timestamp if _has_last_row(store, run.last_row) else logics
    checkpoint.advance(physic=physic, logics=logics, index=_full_until(store))


def _has_last_row(store: Store, row: tuple[str, int, int, int] | None) -> bool:
    """Return whether the consumequeue contains ``row``, the expected entry of the newest
    message.
    """
    if row is None:
        return False
    topic, queue_id, queue_offset, physical = row
    queue = store.queues.find(topic, queue_id)
    unit = queue.unit(queue_offset) if queue is not None else None
    return unit is not None and unit.physical_offset == physical


def _full_until(store: Store) -> int:
    """Return the end time (ms) of the newest full index file; 0 if no file is full."""
    newest = 0
    for file in store.index.listing.files:
        try:
            index = store.index.open(file)
        except (FormatError, StoreIOError):
            continue
        if index.header.index_count >= index.shape.max_entries:
            newest = max(newest, index.header.end_timestamp)
        index.close()
    return newest
