"""Checks of the configuration files, consume queue extensions and batch consume queues.

spec: checkpoint-and-small-files.md §4, consumequeue.md §8, §9.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping

from rmqctl import vfs
from rmqctl.checks.findings import INFO, WARNING, Finding
from rmqctl.checks.metadata.judge import judge as judge_metadata
from rmqctl.checks.metadata.queues import ReadableQueues, offsets_beyond
from rmqctl.checks.verify.common import bounded, plural
from rmqctl.checks.verify.queue import batch_rows, ext_units
from rmqctl.checks.verify.queue.rows import QueueKey
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
    ConfigCopy,
    ConfigFile,
    load_shared,
)
from rmqctl.store.store import Store

_FIX = "rmqctl config STORE"
_STRUCTURE = {"log-start": "commitlog", "compaction": "compaction"}
_TRIES, _PAUSE = 4, 0.05
"""Number of attempts to read a file, and seconds between two attempts. A running 5.1-5.3 broker
overwrites its files in place, so an attempt may find a partly written file.
"""


def check(store: Store, *, live: bool | None = None,
          logged: Mapping[QueueKey, int] | None = None,
          release: str | None = None) -> Iterator[Finding]:
    """Yield the findings for all JSON files of ``config/``.

    * ``live``: whether a broker is running on the store
    * ``logged``: for each queue with messages in the log, the queue offset after its last message
      (None: the log was not read)
    * ``release``: the requested broker release, if any
    """
    # The files, those of RocksDB first; a running broker may be writing one.
    held = store.lock.held if live is None else live
    try:
        names = _names(store)
    except StoreIOError as error:
        yield Finding("file-unreadable", "config", str(error), file=store.path(FOLDER))
        return
    if store.config.parts or store.layout.consumequeue == "rocksdb":
        from rmqctl.checks.verify import config_database

        yield from config_database.check(store)
    for name in names:
        if name in store.config.parts:
            continue
        file = load_shared(store, name)
        for _ in range(_TRIES if held else 0):
            if file.main.usable and not file.main.damaged:
                break
            time.sleep(_PAUSE)
            file = load_shared(store, name)
        yield from judge(store, file, names_known=name in KINDS)
    # What the files record about topics, groups and offsets.
    topics = {topic for topic, _ in logged or ()}
    for defect in judge_metadata(store, live=held, logged=topics, release=release).defects:
        if defect.category is not None:
            yield Finding(defect.category, _STRUCTURE.get(defect.category, "config"), defect.detail,
                          file=store.path(defect.loss.file or FOLDER), topic=defect.topic,
                          count=defect.loss.count or 1, next=defect.command or _FIX)
    if held or logged is None or not all(map(store.layout.reads, ("config", "consumequeue"))):
        return
    # Offsets beyond the end of a queue, if log and queues are known.
    queues = ReadableQueues(store)

    def end_of(topic: str, queue_id: int) -> int | None:
        end = queues.end(topic, queue_id)
        return None if end is None else max(end, logged.get((topic, queue_id), 0))

    for beyond in offsets_beyond(store, end_of):
        yield Finding("config-offset", "config", f"offset {beyond.offset} of {beyond.group} is "
                      f"beyond the end of the queue, {beyond.max_offset}",
                      file=store.path(FOLDER, "consumerOffset.json"), topic=beyond.topic,
                      queue_id=beyond.queue_id, next="rmqctl offsets reset STORE --group "
                      f"{shlex.quote(beyond.group)} --beyond-end")


def _names(store: Store) -> list[str]:
    """Return the names of the main files in ``config/``, including missing ones that have a
    backup.
    """
    folder = store.path(FOLDER)
    try:
        names = {name.removesuffix(BACKUP) for name in vfs.listdir(folder)}
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreIOError.from_oserror(error, folder, "list") from None
    return sorted(name for name in names if name != TIMERCHECK
                  and (name in KINDS or name.endswith(".json")))


def judge(store: Store, file: ConfigFile, *, names_known: bool = True,
          structure: str = "config") -> Iterator[Finding]:
    """Yield the findings for a file and its backup."""
    main, backup = file.main, file.backup

    def tell(category: str, copy: ConfigCopy, detail: str, severity: str = "") -> Finding:
        position = 0 if copy.state == EMPTY else copy.offset
        return Finding(category, structure, detail, file=store.path(copy.path), offset=position,
                       length=None if position is None else max(copy.size - position, 0),
                       severity=severity if names_known else INFO, next=_FIX)

    # The state of the main file, then the use of a backup.
    if main.size > MAX_SIZE:
        yield tell("config-oddity", main, f"{main.size} bytes: too large to be read, so its "
                   "content is unknown", WARNING)
    elif main.state == UNREADABLE and main.offset is None:
        yield tell("file-unreadable", main, f"{main.reason}; {_of_backup(backup)}")
    elif main.state in (EMPTY, UNREADABLE):
        reason = (main.reason or "") + (f" at {main.field}" if main.field else "")
        if backup.usable:
            yield tell("config-backup", main, f"{reason}; {_of_backup(backup)}")
        else:
            yield tell("config-unreadable", main, f"{reason}; {_of_backup(backup)}: " + (
                "a broker does not start with it" if file.stops_broker
                else "a broker starts without its content"))
    elif main.state == MISSING:
        if backup.usable:
            yield tell("config-backup", main, f"missing; {_of_backup(backup)}")
        elif backup.state == UNREADABLE:
            yield tell("config-unreadable", backup, f"{backup.reason}; the main file is missing")
    else:
        yield from _readable(file, tell)


def _readable(file: ConfigFile, tell: Callable[..., Finding]) -> Iterator[Finding]:
    main, backup = file.main, file.backup
    if main.damaged:
        yield tell("config-oddity", main, f"{main.reason}: some brokers do not read such a file; "
                   f"{_of_backup(backup)}", WARNING)
    elif main.reason:
        yield tell("config-oddity", main, main.reason)
    if file.faults:
        yield tell("config-oddity", main, f"{plural(len(file.faults), 'entry', 'entries')} with "
                   f"the wrong format: {file.faults[0]}", WARNING)
    if backup.state == UNREADABLE and backup.size <= MAX_SIZE:
        yield tell("config-oddity", backup, f"the backup is unreadable: {backup.reason}", INFO)


def _of_backup(backup: ConfigCopy) -> str:
    name = os.path.basename(backup.path)
    if backup.usable:
        return f"{name} is intact"
    if backup.state in (EMPTY, MISSING):
        return f"{name} is {backup.state}"
    position = "" if backup.offset is None else f" at {backup.offset}"
    return f"{name} is damaged too ({backup.reason}{position})"


def check_queues(store: Store, log_end: int | None = None, *, live: bool | None = None,
                 in_damage: Callable[[int], bool] | None = None) -> Iterator[Finding]:
    """Yield the findings for consume queue extensions and batch consume queues.

    ``log_end``: the physical offset after the commitlog's last record.
    ``in_damage``: whether a physical offset is in a damaged part of the log.
    """
    held = store.lock.held if live is None else live
    end = store.log.end if log_end is None else log_end
    yield from bounded(ext_units.check(store))
    yield from bounded(batch_rows.check(store, end, live=held, in_damage=in_damage))
