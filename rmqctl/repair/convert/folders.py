"""Copy a store and change the folders of its log: one instead of several, or the reverse (spec:
commitlog.md §1).

The names of log files are physical offsets, so everything that points into the log remains valid.
All files are copied; the old store is not changed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import groupby
from operator import attrgetter
from typing import Any

from rmqctl.broker.settings import Settings
from rmqctl.engine.config.create import LOCK, LOG, plan_store
from rmqctl.engine.log.log_files import place
from rmqctl.engine.opening import refuse_held
from rmqctl.errors import RefusedError, UsageError
from rmqctl.files.durable import STAGING
from rmqctl.files.sparse import same_content
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.convert.new_store import (
    copy_file,
    files_below,
    refuse_overlap,
    remember,
)
from rmqctl.store.files import StoreFile
from rmqctl.store.store import Store
from rmqctl.store.store_settings import LOG_FOLDERS

SETTING, READ_ONLY = "storePathCommitLog", "readOnlyCommitLogStorePaths"


@dataclass(slots=True)
class CopiedLog:
    """Result of a conversion. ``folders``: number of log files in each folder of the new log."""

    store: str
    bytes_copied: int = 0
    folders: Counter[str] = field(default_factory=Counter)

    @property
    def setting(self) -> str:
        """Return the value of `SETTING` with which a broker finds the log of the new store."""
        return ",".join(self.folders)

    def as_dict(self) -> dict[str, Any]:
        return {"store": self.store, "bytes_copied": self.bytes_copied,
                "folders": dict(self.folders), "broker_conf": {SETTING: self.setting}}


class InFolders:
    """Conversion into a new store with other log folders.

    ``into``: the folders, absolute or relative to the new root; default: ``commitlog``.

    Raises: UsageError for folders that cannot be used; UnsupportedError; RefusedError if the target
    is in use, or if two files of the log have the same name but different bytes; StoreHeldError
    while a broker writes to the store; StoreIOError.
    """

    def __init__(self, store: Store, root: str, into: Sequence[str] = ()) -> None:
        store.layout.require(store.root, "commitlog")
        if store.layout.is_dledger:
            raise UsageError(f"{store.root}: the log is a DLedger log; convert it first with "
                             "`--commitlog plain`")
        refuse_held(store, store.root)
        planned = plan_store(root, Settings(), into)
        for old in (store.root, *store.log_folders):
            for new in (root, *planned.log_folders):
                refuse_overlap(old, new)
        self._store, self._root = store, root
        self._names = planned.commitlog_dirs
        self._files = [_only_one(store, list(same)) for _, same in groupby(
            store.log.files, attrgetter("name"))]
        self.done = CopiedLog(root, folders=Counter(dict.fromkeys(map(
            os.path.abspath, planned.log_folders), 0)))

    @property
    def size(self) -> int:
        """Return the number of bytes of the log that will be copied."""
        return sum(file.size for file in self._files)

    def run(self, advance: Callable[[int], None] = lambda _bytes: None,
            check: Callable[[], None] = lambda: None) -> CopiedLog:
        """Create the new store; the log is copied last. Raises: StoreIOError."""
        store, done = self._store, self.done
        inside = [os.path.join(os.path.realpath(folder), "") for folder in store.log_folders]
        for path in files_below(store.root):
            source = os.path.join(store.root, path)
            if path == LOCK or path.startswith(STAGING + os.sep) or any(
                    os.path.realpath(source).startswith(folder) for folder in inside):
                continue
            check()
            copy_file(source, os.path.join(self._root, path))
        self._remember()
        for file in self._files:
            check()
            folder = place(list(done.folders), file.base, store.log.file_size)
            copy_file(file.path, os.path.join(folder, file.name))
            done.folders[folder] += 1
            done.bytes_copied += file.size
            advance(file.size)
        return done

    def _remember(self) -> None:
        """Write the settings that `init` recorded for the old store, but with the log folders of
        the new store.
        """
        values = {name: value for name, value in self._store.config.remembered.items()
                  if name != LOG_FOLDERS}
        if self._names != (LOG,):
            values[LOG_FOLDERS] = list(self._names)
        if values:
            remember(self._root, values)


def _only_one(store: Store, same: Sequence[StoreFile]) -> StoreFile:
    """Return one of several log files that have the same name.

    Raises: RefusedError if their contents differ.
    """
    first, *others = same
    for other in others:
        if not same_content(first.path, other.path):
            raise RefusedError(f"{store.root}: {first.path} and {other.path} have the same name "
                               "but different bytes; it is unknown which belongs to the log")
    return first
