"""The configuration files and their backups (spec: checkpoint-and-small-files.md §4).

A broker that cannot read a main file takes its ``.bak``, silently and older; one that can read
neither does not start. A file that is not there is legal: it is written when first needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from rmqctl.checks.findings import INFO, WARNING, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.errors import StoreIOError
from rmqctl.store.config.config import (
    BACKUP,
    EMPTY,
    FOLDER,
    KINDS,
    MAX_SIZE,
    MISSING,
    TIMERCHECK,
    UNREADABLE,
    ConfigFile,
    Copy,
    load_one,
)
from rmqctl.store.store import Store

_FIX = "rmqctl config STORE"
_TRIES, _PAUSE = 4, 0.05
"""A running broker of 5.1-5.3 overwrites its files in place: a torn one is read again."""


def check(store: Store, *, live: bool | None = None) -> Iterator[Finding]:
    """All JSON files of ``config/``. ``live``: whether a broker holds the store."""
    held = store.lock.held if live is None else live
    try:
        names = _names(store)
    except StoreIOError as error:
        yield Finding("file-unreadable", "config", str(error), file=store.path(FOLDER))
        return
    for name in names:
        found = load_one(store, name)
        for _ in range(_TRIES if held else 0):
            if found.main.usable and not found.main.damaged:
                break
            time.sleep(_PAUSE)
            found = load_one(store, name)
        yield from judge(store, found, known=name in KINDS)


def _names(store: Store) -> list[str]:
    """Main names of what lies in the folder, backups of missing files included."""
    folder = store.path(FOLDER)
    try:
        names = {name.removesuffix(BACKUP) for name in os.listdir(folder)}
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreIOError.from_oserror(error, folder, "list") from None
    return sorted(name for name in names if name != TIMERCHECK
                  and (name in KINDS or name.endswith(".json")))


def judge(store: Store, found: ConfigFile, *, known: bool = True,
          structure: str = "config") -> Iterator[Finding]:
    """What there is to say of one file and its backup."""
    main, backup = found.main, found.backup

    def tell(category: str, copy: Copy, detail: str, severity: str = "") -> Finding:
        at = 0 if copy.state == EMPTY else copy.offset
        return Finding(category, structure, detail, file=store.path(copy.path), offset=at,
                       length=None if at is None else max(copy.size - at, 0),
                       severity=severity if known else INFO, next=_FIX)

    if main.size > MAX_SIZE:
        yield tell("config-oddity", main, f"{main.size} bytes: larger than what is read of such a "
                   "file, not checked", INFO)
    elif main.state == UNREADABLE and main.offset is None:
        yield tell("file-unreadable", main, f"{main.reason}; {_of_backup(backup)}")
    elif main.state in (EMPTY, UNREADABLE):
        reason = (main.reason or "") + (f" at {main.field}" if main.field else "")
        if backup.usable:
            yield tell("config-backup", main, f"{reason}; {_of_backup(backup)}")
        else:
            yield tell("config-unreadable", main, f"{reason}; {_of_backup(backup)}: " + (
                "a broker starts without what was in it" if main.state == EMPTY
                and backup.state in (EMPTY, MISSING) else "a broker does not start with it"))
    elif main.state == MISSING:
        if backup.usable:
            yield tell("config-backup", main, f"missing; {_of_backup(backup)}")
        elif backup.state == UNREADABLE:
            yield tell("config-unreadable", backup, f"{backup.reason}; the main file is missing")
    else:
        yield from _readable(found, tell)


def _readable(found: ConfigFile, tell: Callable[..., Finding]) -> Iterator[Finding]:
    main, backup = found.main, found.backup
    if main.damaged:
        yield tell("config-oddity", main, f"{main.reason}: not every broker reads such a file; "
                   f"{_of_backup(backup)}", WARNING)
    elif main.reason:
        yield tell("config-oddity", main, main.reason)
    if found.faults:
        yield tell("config-oddity", main, f"{plural(len(found.faults), 'entry', 'entries')} of the "
                   f"wrong shape: {found.faults[0]}", WARNING)
    if backup.state == UNREADABLE and backup.size <= MAX_SIZE:
        yield tell("config-oddity", backup, f"the backup is unreadable: {backup.reason}", INFO)


def _of_backup(backup: Copy) -> str:
    name = os.path.basename(backup.path)
    if backup.usable:
        return f"{name} is good"
    if backup.state in (EMPTY, MISSING):
        return f"{name} is {backup.state}"
    at = "" if backup.offset is None else f" at {backup.offset}"
    return f"{name} is no better ({backup.reason}{at})"
