"""Create an empty store, in the state after a broker's first startup.

Everything is checked before anything is created. An interrupted run leaves a mark
(``.rmqctl/init``), and the next run completes the store. Any other folder that is not empty is
rejected.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from rmqctl.broker.settings import Settings, checked
from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.files.durable import STAGING, make_folders, publish, sync_folder
from rmqctl.files.lock import StoreLock
from rmqctl.formats.local import checkpoint as checkpoint_format
from rmqctl.formats.local import lock as lock_format
from rmqctl.formats.local.checkpoint import CheckpointRecord
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.store_settings import CURRENT_FORMAT, FORMAT, KEYS, LOG_FOLDERS, NAME, path_of

LOG = "commitlog"
FOLDERS = ("consumequeue", "index", "config")
CHECKPOINT, LOCK = "checkpoint", "lock"
MARK = "init"
_TAKEN = (*FOLDERS, CHECKPOINT, LOCK, STAGING, "abort", "abort.bak", "consumequeue_ext",
          "batchconsumequeue", "compaction", "timerlog", "timerwheel", "tieredstore")
_MOUNT_POINT = "lost+found"
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class NewStore:
    """The plan or the result of creating a store.

    * ``settings``: with sizes rounded up, as a broker uses them
    * ``commitlog_dirs``: folders of the log, relative to the root or absolute
    * ``notes``: remarks on sizes that were rounded up
    """

    root: str
    settings: Settings
    commitlog_dirs: tuple[str, ...] = (LOG,)
    notes: list[str] = field(default_factory=list)

    @property
    def log_folders(self) -> list[str]:
        return [os.path.join(self.root, folder) for folder in self.commitlog_dirs]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document of `init`: the store and the settings that it records."""
        values = {name: getattr(self.settings, name) for name in KEYS if name != LOG_FOLDERS}
        return {"store": self.root, **values, LOG_FOLDERS: list(self.commitlog_dirs)}


def plan_store(root: str | os.PathLike[str], settings: Settings,
               commitlog_dirs: Iterable[str] = ()) -> NewStore:
    """Return what `create_store` would create, with the same checks, and write nothing."""
    path = os.fspath(root)
    if not path or "\0" in path:
        raise UsageError(f"{path!r} is not a folder name")
    settings, notes = checked(settings)
    plan = NewStore(path, settings, _log_names(path, commitlog_dirs), notes)
    _refuse_content(plan)
    return plan


def create_store(root: str | os.PathLike[str], settings: Settings,
                 commitlog_dirs: Iterable[str] = ()) -> NewStore:
    """Create an empty store in a folder that is empty or does not exist.

    ``commitlog_dirs``: folders of a multi-path log, relative to the root or absolute. By default
    the log is in ``commitlog/``.

    Raises:
    * UsageError for impossible sizes
    * RefusedError for a folder that is not empty
    * StoreHeldError while another process creates the store
    * StoreIOError
    """
    plan = plan_store(root, settings, commitlog_dirs)
    make_folders(plan.root)
    with StoreLock(plan.root):
        _refuse_content(plan)  # again, now that other processes are locked out
        publish(os.path.join(plan.root, STAGING, MARK), b"", store=plan.root)
        for folder in (*plan.log_folders, *(os.path.join(plan.root, name) for name in FOLDERS)):
            make_folders(folder)
        page = checkpoint_format.build(CheckpointRecord(0, 0, 0))
        publish(os.path.join(plan.root, CHECKPOINT), page, store=plan.root)
        named = () if plan.commitlog_dirs == (LOG,) else plan.commitlog_dirs
        write_store_json(plan.root, plan.settings, named)
        _unmark(plan.root)
    return plan


def write_store_json(root: str, settings: Settings, commitlog_dirs: Iterable[str] = ()) -> None:
    """Write ``.rmqctl/store.json``, the configuration of a new store. Raises: StoreIOError."""
    publish(path_of(root), store_json(settings, commitlog_dirs), store=root)


def store_json(settings: Settings, commitlog_dirs: Iterable[str] = ()) -> bytes:
    """Return the content of ``store.json``, which `rmqctl.store.store_settings` reads."""
    values: dict[str, object] = {FORMAT: CURRENT_FORMAT}
    values |= {name: getattr(settings, name) for name in KEYS if name != LOG_FOLDERS}
    if folders := list(commitlog_dirs):
        values[LOG_FOLDERS] = folders
    return (json.dumps(values, indent=2) + "\n").encode()


def _unmark(root: str) -> None:
    mark = os.path.join(root, STAGING, MARK)
    try:
        os.unlink(mark)
    except OSError as error:
        raise StoreIOError.from_oserror(error, mark, "remove") from None
    sync_folder(os.path.dirname(mark))


# -- the folders of the log ------------------------------------------------------------------


def _log_names(root: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return folder names in the form in which they are stored: relative to the root if they are
    below it.
    """
    top = os.path.abspath(root)
    folders: list[str] = []
    for name in given:
        if not name or "\0" in name:
            raise UsageError(f"{name!r} is not a folder name")
        folder = os.path.normpath(os.path.join(top, name))
        if "," in folder:
            raise UsageError(f"commitlog folder {folder!r} contains a comma, which separates "
                             "folders in a broker's configuration")
        if _inside(top, folder):
            raise UsageError(f"commitlog folder {name!r} would contain the store itself")
        folder_name = os.path.relpath(folder, top) if _inside(folder, top) else folder
        if folder_name.split(os.sep)[0] in _TAKEN:
            raise UsageError(f"commitlog folder {name!r} is reserved for other files of the store")
        for other in folders:
            other_path = os.path.join(top, other)
            if _inside(folder, other_path) or _inside(other_path, folder):
                raise UsageError(f"commitlog folders {other!r} and {name!r} are the same, or one "
                                 "contains the other")
        folders.append(folder_name)
    return tuple(folders) or (LOG,)


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


# -- what may be there already ---------------------------------------------------------------


def _refuse_content(plan: NewStore) -> None:
    """Raise RefusedError if a folder contains anything that an interrupted run did not create."""
    for folder in plan.log_folders:
        names = _names(folder)
        if names:
            raise RefusedError(f"{folder}: not empty ({_few(names)}); no log is created here")
    names = [name for name in _names(plan.root) if name != _MOUNT_POINT]
    strange = list(_strange(plan, names))
    if strange:
        raise RefusedError(f"{plan.root}: not empty ({_few(strange)}); no store is created here")


def _strange(plan: NewStore, names: list[str]) -> Iterator[str]:
    """Yield the names that an interrupted run would not have created."""
    root = plan.root
    staged = _names(os.path.join(root, STAGING))
    marked = MARK in staged
    for name in names:
        path = os.path.join(root, name)
        if name == LOCK:
            ours = _size(path) in (0, len(lock_format.CONTENT))
        elif name == STAGING:
            ours = all(name == MARK or name.endswith(".new") or (marked and name == NAME)
                       for name in staged)
        elif name == CHECKPOINT:
            ours = marked and _is_zero(path)
        elif name in FOLDERS:
            ours = marked and not _names(path)
        else:
            ours = marked and _leads_to(plan, name)
        if not ours:
            yield name


def _leads_to(plan: NewStore, name: str) -> bool:
    """Return whether ``name`` is a folder of the log, or contains only such folders and their
    parents.
    """
    logs = [folder for folder in plan.commitlog_dirs if not os.path.isabs(folder)]

    def only(path: str) -> bool:
        return path in logs or (
            any(_inside(folder, path) for folder in logs)
            and all(only(os.path.join(path, inner))
                    for inner in _names(os.path.join(plan.root, path))))

    return only(name)


def _names(folder: str) -> list[str]:
    """Return the names in a folder; empty if the folder does not exist. Raises: RefusedError if it
    is not a folder.
    """
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        if os.path.islink(folder):
            raise RefusedError(f"{folder}: a broken link") from None
        return []
    except NotADirectoryError:
        raise RefusedError(f"{folder}: not a folder; no store is created here") from None
    except OSError as error:
        raise StoreIOError.from_oserror(error, folder, "list") from None


def _size(path: str) -> int | None:
    # Do not open the lock file: closing it would release the lock of this process.
    try:
        info = os.lstat(path)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "look at") from None
    return info.st_size if stat.S_ISREG(info.st_mode) else None


def _is_zero(path: str) -> bool:
    if _size(path) != checkpoint_format.PAGE_SIZE:
        return False
    with FileSource(path) as source:
        return not source.read(0, source.size).strip(b"\0")


def _few(names: list[str]) -> str:
    rest = len(names) - _MAX_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(names[:_MAX_NAMED]) + more
