"""The files of ``config/`` and their backups, or the RocksDB databases that replace them.

Spec: checkpoint-and-small-files.md §4, rocksdb.md §7. If the main file is missing, empty or not
decodable, a broker reads the ``.bak``. This module makes the same choice, and records the state of
each copy.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.config import config_json
from rmqctl.formats.timer import timer_check
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.config.rows import SECTIONS, Row, rows_of
from rmqctl.store.files import Trouble
from rmqctl.store.layout import SUPERSEDED
from rmqctl.store.store import Store

MAX_SIZE = 64 << 20
"""Maximum size in bytes of a configuration file that is read."""
_SHARED = 16 << 20
"""Maximum size in bytes of a file whose content is cached."""
FOLDER = "config"
BACKUP = ".bak"
TIMERCHECK = "timercheck"

OK, ODDITY, EMPTY, UNREADABLE, MISSING = "ok", "oddity", "empty", "unreadable", "missing"
OUT_OF_DATE = "out of date"
"""State of a file that a broker with its configuration in RocksDB no longer updates."""
NOT_LOADED = (config_json.TRAILING_GARBAGE, config_json.INVALID_UTF8)
"""Deviations from standard JSON that keep a broker from loading the file."""


@dataclass(slots=True)
class ConfigCopy:
    """One copy of a file.

    * ``state``: ok, oddity, empty, unreadable or missing; "out of date" for a JSON file that
      RocksDB replaces (`rmqctl.store.layout`)
    * ``path``: path relative to the store root
    * ``database``: whether this copy is the database that replaces the file; ``path`` is then the
      path of the database
    * ``reason``, ``offset`` (bytes from the start), ``field`` (JSON path): description of the fault
    * ``value``: the content, also in the state oddity; None if it is "out of date"
    """

    path: str
    size: int = 0
    state: str = OK
    reason: str | None = None
    offset: int | None = None
    field: str | None = None
    value: Any = None
    damaged: bool = False
    database: bool = False

    @property
    def usable(self) -> bool:
        return self.state in (OK, ODDITY)

    def fault(self) -> str:
        """Return a text that describes the fault, for example ``config/topics.json @17
        $.topicConfigTable: expected a comma or }``.
        """
        where = "" if self.offset is None else f" @{self.offset}"
        path = "" if self.field in (None, "$") else f" {self.field}"
        return f"{self.path}{where}{path}: {self.reason}"


@dataclass(slots=True)
class ConfigFile:
    """A configuration file with its backup; ``name`` is the name without ``.bak``."""

    name: str
    kind: str
    main: ConfigCopy
    backup: ConfigCopy
    entries: int | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def used(self) -> ConfigCopy | None:
        """The copy that a broker loads; None if neither can be read."""
        return next((copy for copy in (self.main, self.backup) if copy.usable), None)

    @property
    def fell_back(self) -> bool:
        return self.used is self.backup

    @property
    def stops_broker(self) -> bool:
        """Return whether a broker can load neither copy, and so does not start.

        With a missing or empty backup, a broker starts with an empty table.
        """
        return not self.main.usable and self.backup.state == UNREADABLE

    @property
    def damaged(self) -> bool:
        """Return whether a broker cannot use the main file.

        A file with two empty copies (never written) is not damaged.
        """
        if self.main.state == MISSING and not self.main.database:
            return self.backup.state not in (MISSING, EMPTY)
        return self.main.damaged or bool(self.faults)

    @property
    def value(self) -> Any:
        return self.used.value if self.used else None

    def rows(self) -> Iterable[Row]:
        """Return the entries as rows of the file's section, each with its ``source``."""
        used = self.used
        if used is None:
            return
        for row in rows_of(self.kind, used.value, []):
            yield {**row, "source": used.path}

    @property
    def data_version(self) -> dict[str, int] | None:
        """The file's data version: ``counter``, ``timestamp`` (ms) and ``state_version``; None if
        the file has no data version.
        """
        value = self.value
        if isinstance(value, timer_check.TimerCheckRecord):
            return {"counter": value.counter, "timestamp": value.timestamp,
                    "state_version": value.state_version}
        version = value.get("dataVersion") if isinstance(value, dict) else None
        if not isinstance(version, dict):
            return None
        names = {"counter": "counter", "timestamp": "timestamp", "stateVersion": "state_version"}
        return {ours: version[theirs] for theirs, ours in names.items()
                if isinstance(version.get(theirs), int)} or None

    def problems(self) -> list[str]:
        """Return messages that describe the problems in the file, one sentence each."""
        problems: list[str] = []
        main, backup = self.main, self.backup
        if main.database:
            problems += [main.fault()] if main.reason else []
        elif main.state == MISSING:
            if backup.usable:
                problems.append(f"{main.path} is missing; showing {backup.path} instead, as a "
                                "broker would")
            elif backup.state == UNREADABLE:
                problems.append(f"{main.path} is missing and its backup is unreadable: "
                                f"{backup.fault()}")
        elif not main.usable:
            problems.append(main.fault())
            if backup.usable:
                problems.append(f"showing {backup.path} instead, as a broker would")
            elif backup.state == UNREADABLE:
                problems.append(f"and the backup is unreadable, too: {backup.fault()}; a broker "
                                "does not start with these files")
        elif main.damaged:
            instead = "loads its backup" if backup.usable else "has no good backup of it"
            problems.append(f"{main.fault()}; a broker does not read this file and {instead}")
        used = self.used
        problems += [f"{used.path} {fault}" for fault in self.faults] if used else []
        return problems


def load(store: Store, section: str | None = None) -> tuple[list[ConfigFile], list[Trouble]]:
    """Return (configuration files, other entries of ``config/``).

    With ``section``, return only the files of this section. Databases that replace JSON files come
    before the JSON files. If ``config/`` does not exist, only the databases are returned.

    Raises: StoreIOError if the folder cannot be listed.
    """
    names, troubles = _names(store)
    files = [load_one(store, name) for name in store.config.parts]
    files += [_load_json(store, name) for name in names]
    return [file for file in files
            if section is None or file.kind in SECTIONS[section]], troubles


def load_one(store: Store, name: str) -> ConfigFile:
    """Return one configuration file, for example "topics.json", even if the file does not exist.

    If RocksDB replaces the file, return the replacement. Never raises.
    """
    part = store.config.parts.get(name)
    if part is None:
        return _load_json(store, name)
    # MISSING means no entries; beside other databases it is damage.
    main = ConfigCopy(part.folder, part.size, OK, part.reason or None, value=part.value,
                      damaged=bool(part.reason) or part.missing, database=True)
    if part.missing:
        main.state, main.reason = MISSING, "the database is missing"
    elif part.value is None:
        main.state = UNREADABLE
    elif part.reason:
        main.state = ODDITY
    none = ConfigCopy(part.folder, state=MISSING, reason="a database has no backup")
    return _counted(ConfigFile(name, _kind(name), main, none, faults=list(part.faults)))


def load_shared(store: Store, name: str) -> ConfigFile:
    """Return the same as `load_one`, cached for the opened store until the files change. The caller
    must not change the result.
    """
    stamp = tuple(_stamp(store.path(FOLDER, name + suffix)) for suffix in ("", BACKUP))
    stamped: tuple[Any, ConfigFile] | None = store.config.loaded.get(name)
    if stamped is not None and stamped[0] == stamp:
        return stamped[1]
    file = load_one(store, name)
    if file.main.size + file.backup.size <= _SHARED:
        store.config.loaded[name] = stamp, file
    return file


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        info = vfs.stat(path)
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


def topic_table(store: Store) -> Mapping[str, Any] | None:
    """Return the topics of config/topics.json; None if they cannot be read."""
    value = load_shared(store, "topics.json").value
    table = value.get("topicConfigTable") if isinstance(value, dict) else None
    return table if isinstance(table, dict) else None


def out_of_date(store: Store, name: str) -> ConfigCopy:
    """Return a JSON file that is no longer updated because RocksDB replaced it; its backup if the
    file is unusable.
    """
    main = _read_json(store, name)
    return main if main.usable else _read_json(store, name + BACKUP)


def _load_json(store: Store, name: str) -> ConfigFile:
    read = _read_timercheck if name == TIMERCHECK else _read_json
    config_file = ConfigFile(name, _kind(name), read(store, name), read(store, name + BACKUP))
    if name in SUPERSEDED and store.layout.config != "json":
        for copy in (config_file.main, config_file.backup):
            _supersede(copy)
    return _counted(config_file)


def _counted(config_file: ConfigFile) -> ConfigFile:
    if config_file.used is not None:
        config_file.entries = sum(1 for _ in rows_of(config_file.kind, config_file.used.value,
                                                     config_file.faults))
    return config_file


def _supersede(copy: ConfigCopy) -> None:
    if copy.state != MISSING:
        copy.state, copy.value, copy.damaged = OUT_OF_DATE, None, False
        copy.offset = copy.field = None
        copy.reason = "a broker reads its RocksDB configuration instead"


def _kind(name: str) -> str:
    return KINDS.get(name, "other")


KINDS = {
    "topics.json": "topics",
    "subscriptionGroup.json": "groups",
    "consumerOffset.json": "offsets",
    "lmqConsumerOffset.json": "lmq-offsets",
    "delayOffset.json": "delay",
    "consumerFilter.json": "filters",
    "consumerOrderInfo.json": "orders",
    "topicQueueMapping.json": "mappings",
    "messageRequestMode.json": "modes",
    "timermetrics": "timer-metrics",
    "transactionMetrics": "transaction-metrics",
    "tieredStoreMetadata.json": "tiered",
    TIMERCHECK: "timer",
}
"""For each file name: the kind of the file; any other ``*.json`` is of the kind ``other``."""


def _names(store: Store) -> tuple[list[str], list[Trouble]]:
    """Return the main names of all configuration files (files that brokers write come first), and
    the other entries of the folder.
    """
    folder = store.path(FOLDER)
    try:
        entries = sorted(vfs.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise StoreIOError.from_oserror(error, folder, "list") from None
    names: set[str] = set()
    troubles = []
    # Databases are read as such, so their folders are not listed as unknown.
    databases = {part.folder for part in store.config.parts.values()}
    for entry in entries:
        main = entry.name.removesuffix(BACKUP)
        if main in KINDS or main.endswith(".json"):
            names.add(main)
            continue
        # Explain all other entries of the folder, so that nothing is skipped silently.
        reason = "not a file that a broker keeps here; not read"
        try:
            if stat.S_ISDIR(entry.stat().st_mode):
                if f"{FOLDER}/{entry.name}" in databases:
                    continue
                reason = "a folder (a RocksDB configuration, or not from a broker); not read"
            elif entry.name.endswith(".tmp"):
                reason = "left over from an interrupted write; not read"
        except OSError as error:
            reason = str(StoreIOError.from_oserror(error, ""))
        troubles.append(Trouble(f"{FOLDER}/{entry.name}", reason))
    # Files of a broker come first, in their fixed order.
    broker_files = [name for name in KINDS if name in names]
    return broker_files + sorted(names.difference(broker_files)), troubles


def load_beside(store: Store, folder: str, name: str) -> ConfigFile:
    """Return a JSON file and its backup from a folder other than ``config``. Never raises."""
    return ConfigFile(name, "other", _read_json(store, name, folder),
                      _read_json(store, name + BACKUP, folder))


def _whole(store: Store, name: str, most: int = MAX_SIZE, folder: str = FOLDER) -> tuple[
        ConfigCopy, bytes]:
    """Return a copy and its bytes; the state of the copy says whether the file is missing, empty or
    unreadable.
    """
    copy = ConfigCopy(f"{folder}/{name}")
    path = store.path(folder, name)
    if not vfs.lexists(path):
        copy.state, copy.reason = MISSING, "missing"
        return copy, b""
    try:
        with FileSource(path) as source:
            copy.size = source.size
            data = source.read(0, min(source.size, most + 1))
    except StoreIOError as error:
        copy.reason = str(error).removeprefix("cannot open ").removeprefix(f"{path}: ")
        copy.state, copy.damaged = UNREADABLE, True
        return copy, b""
    if len(data) > most:
        copy.state, copy.damaged, copy.offset = UNREADABLE, True, most
        copy.reason = f"larger than {most >> 20} MiB, the limit for such a file"
    elif not data:
        copy.state, copy.damaged, copy.reason = EMPTY, True, "empty"
    return copy, data


def _refuse(copy: ConfigCopy, error: FormatError) -> ConfigCopy:
    copy.state, copy.damaged = UNREADABLE, True
    copy.reason, copy.offset, copy.field = error.reason, error.offset, error.path
    return copy


def _read_json(store: Store, name: str, folder: str = FOLDER) -> ConfigCopy:
    copy, data = _whole(store, name, folder=folder)
    if copy.state != OK:
        return copy
    try:
        parsed = config_json.parse(data)
        if not isinstance(parsed.value, dict | None):
            raise FormatError("not a JSON object", offset=0, path="$")
    except FormatError as error:
        return _refuse(copy, error)
    copy.value = parsed.value or {}
    if parsed.oddities:
        # Report the oddity that keeps a broker from loading the file.
        worst = next((oddity for oddity in parsed.oddities if oddity.kind in NOT_LOADED),
                     parsed.oddities[0])
        copy.state, copy.reason, copy.offset = ODDITY, worst.detail, worst.offset
        copy.damaged = worst.kind in NOT_LOADED
    elif parsed.value is None:
        copy.state, copy.reason, copy.offset = ODDITY, "null instead of an object", 0
    return copy


def _read_timercheck(store: Store, name: str) -> ConfigCopy:
    copy, data = _whole(store, name, timer_check.PAGE_SIZE << 4)
    if copy.state != OK:
        return copy
    try:
        copy.value = timer_check.parse(data)
    except FormatError as error:
        return _refuse(copy, error)
    if not timer_check.rest_is_zero(data):
        rest = data[timer_check.TIMER_CHECK.size:]
        copy.state, copy.reason = ODDITY, "bytes other than zeros follow the fields"
        copy.offset = len(data) - len(rest.lstrip(b"\0"))
    return copy
