"""Repair the RocksDB copy of consume queues, for brokers that write them to files and to RocksDB.

The broker reads the files (spec: rocksdb.md §5). The copy has no write-ahead log. It contains only
entries written since it was switched on; missing entries are therefore not damage. The copy is
replaced if it has wrong entries or cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.errors import FormatError, MissingExtraError, RmqctlError, StoreIOError
from rmqctl.repair.plan import (
    Action,
    Create,
    FileContent,
    MoveAside,
    Planned,
    Replace,
    Step,
)
from rmqctl.repair.rebuild.rocksdb import FOLDER, BuiltDatabase, make
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.overlay import LogPart
from rmqctl.store.layout import DATABASE_FILE
from rmqctl.store.rocksdb.queues import RocksQueues
from rmqctl.store.store import Store


def copy_steps(store: Store, parts: Sequence[LogPart], settings: Settings, scratch: Scratch, *,
               log_end: int | None, jobs: int,
               progress: Callable[[int], None] | None = None) -> Planned:
    """Return (steps, actions) that replace a wrong copy with a copy rebuilt from the log ``parts``.

    ``steps`` and ``actions`` are empty if the copy matches the log. Raises: StoreIOError,
    MissingExtraError.
    """
    why, present = "", None
    try:
        present = store.queues.rocksdb
    except MissingExtraError:
        raise
    except RmqctlError:
        why = "the copy in RocksDB cannot be read"
    if present is not None and present.damage:
        why = "a part of the copy in RocksDB cannot be read"
    database = make(parts, store.root, settings, scratch, store.queues.by_key, log_end=log_end,
                    jobs=jobs, progress=progress)
    if not why and present is not None and not _agrees(present, database, store.log.min_offset):
        why = "the copy in RocksDB has wrong entries"
    if not why:
        return [], []
    return _replaced(store, database), [Action("rebuild", FOLDER, None, database.rows, why, "row")]


def _agrees(present: RocksQueues, database: BuiltDatabase, log_min: int) -> bool:
    """Return whether each entry of the copy is also in the rebuilt database."""
    with RocksQueues(database.folder) as fresh:
        for key, queue in present.queues.items():
            other = fresh.queues.get(key)
            try:
                for first, rows in queue.pages(queue.first_index, queue.disk_end):
                    held = np.zeros(len(rows), rows.dtype)
                    if other is not None:
                        right = other.units(first, len(rows))
                        held[:len(right)] = right
                    used = (rows["size"] > 0) & (rows["physical_offset"] >= log_min)
                    if (used & (held != rows)).any():
                        return False
            except (FormatError, StoreIOError):
                return False
    return True


def _replaced(store: Store, database: BuiltDatabase) -> list[Step]:
    """Return the steps that replace the database's files, but not the consume queue files in the
    same folder.
    """
    present = {name for name in os.listdir(store.path(FOLDER)) if DATABASE_FILE.fullmatch(name)}
    steps: list[Step] = [MoveAside(f"{FOLDER}/{name}")
                         for name in sorted(present - {*database.files})]
    for name in database.files:
        content = FileContent(os.path.join(database.folder, name))
        steps.append((Replace if name in present else Create)(f"{FOLDER}/{name}", content))
    return steps
