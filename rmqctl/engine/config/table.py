"""Read, change and write a table in a file of ``config/`` (checkpoint-and-small-files.md §4).

All other entries of the file keep their content and order; a new entry is appended. A broker writes
its table in the order of a ConcurrentHashMap; readers do not depend on this order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rmqctl.broker.settings import Settings
from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.aside import save_file
from rmqctl.files.durable import publish
from rmqctl.formats.config import fastjson
from rmqctl.store.config.config import (
    BACKUP,
    EMPTY,
    FOLDER,
    MAX_SIZE,
    MISSING,
    UNREADABLE,
    ConfigCopy,
    ConfigFile,
    load_one,
)
from rmqctl.store.store import Sizes, Store

VERSION = "dataVersion"
_SINCE = 5

Config = dict[str, Any]


def next_version(version: object, generation: int, now: int) -> dict[str, Any]:
    """Return the data version that follows ``version`` (`DataVersion.nextVersion`). If ``version``
    is invalid or None, return the first version.
    """
    before = version if isinstance(version, dict) else {}
    counter = before.get("counter")
    state = {"stateVersion": before.get("stateVersion", 0)} if generation >= _SINCE else {}
    return {**before, "counter": counter + 1 if isinstance(counter, int) else 1, **state,
            "timestamp": now}


class ConfigTable:
    """The entries of a table by name. To change them, the caller must hold the store's lock.

    ``store``: the opened store at ``root``, if the caller has one.
    """

    file: ClassVar[str]
    table_name: ClassVar[str]

    def __init__(self, root: str, settings: Settings, clock: Callable[[], int],
                 store: Store | None = None) -> None:
        self.root, self.settings, self._clock = root, settings, clock
        self._store = store or Store(root, [], Sizes())
        self.notes: list[str] = []
        """Notes for the user, for example that the backup was read instead of the file."""
        self._read: tuple[int, int, int] | None = None
        self._texts: dict[str, tuple[Any, fastjson.Ready]] = {}
        """Cache of the JSON text of entries, which makes many changes in a row faster."""
        self.load()

    # -- reading ------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file again if it has changed since this object last read or wrote it."""
        stamp = self._stamp()
        if stamp is not None and stamp == self._read:
            return
        config = load_one(self._store, self.file)
        self._refuse_damage(config)
        self._from_main = config.main.usable
        self._main_is_there = config.main.state not in (MISSING, EMPTY)
        self.notes = []
        if config.fell_back:
            self.notes.append(f"{config.main.fault()}; reading {config.backup.path} instead, as a "
                              "broker does")
        self.exists = config.used is not None
        self._value: dict[str, Any] = dict(config.value or {})
        for key in (self.table_name, VERSION):
            if not isinstance(self._value.get(key, {}), dict):
                raise RefusedError(f"{self.path()}: {key} is not a JSON object; see "
                                   "`rmqctl config`")
        self._read = stamp

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.path())
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _refuse_damage(self, config: ConfigFile) -> None:
        main, backup = config.main, config.backup
        for copy in (main, backup) if not main.usable else (main,):
            if copy.state == UNREADABLE and copy.size > MAX_SIZE:
                raise RefusedError(f"{self._store.path(copy.path)}: {copy.reason}")
            if copy.state == UNREADABLE and copy.offset is None:
                # This is not damage: the next attempt may succeed, so do not use the backup.
                raise StoreIOError(f"cannot read {self._store.path(copy.path)}: {copy.reason}")
        used = config.used
        if used is None and UNREADABLE in (main.state, backup.state):
            raise RefusedError(self._reason(main if main.state == UNREADABLE else backup)
                               + "; a broker does not start on it")
        if used is not None and used.damaged:
            raise RefusedError(self._reason(used) + "; not every broker reads such a file, and "
                               "rewriting it would lose the invalid parts: repair it first")

    def _reason(self, copy: ConfigCopy) -> str:
        return f"{self.root}: {copy.fault()}"

    def path(self, suffix: str = "") -> str:
        """Return the path of the file."""
        return self._store.path(FOLDER, self.file + suffix)

    @property
    def table(self) -> dict[str, Any]:
        """The entries of the table, of any type."""
        table: dict[str, Any] = self._value.get(self.table_name, {})
        return table

    @property
    def data_version(self) -> dict[str, Any]:
        """The file's data version: ``counter``, ``timestamp`` and (5.x) ``stateVersion``."""
        return dict(self._value.get(VERSION, {}))

    def get(self, name: str) -> Config | None:
        """Return an entry of the table; None if it does not exist."""
        config = self.table.get(name)
        return dict(config) if isinstance(config, dict) else None

    # -- publishing ---------------------------------------------------------------------------

    def put(self, entries: Mapping[str, Config]) -> None:
        """Add or replace entries, and write the file."""
        self._replace({**self.table, **entries})

    def remove(self, name: str) -> None:
        """Remove an entry, and write the file."""
        self._replace({key: entry for key, entry in self.table.items() if key != name})

    def _replace(self, table: dict[str, Any]) -> None:
        value = self.changed(table)
        self._publish(fastjson.build({**value, self.table_name: {
            name: self._text(name, entry) for name, entry in table.items()}}))
        self._read = self._stamp()
        self._value, self.exists = value, True
        self._from_main = self._main_is_there = True

    def changed(self, table: dict[str, Any]) -> dict[str, Any]:
        """Return the content of the file with the given table and the next data version."""
        value = {**self._value, VERSION: self._next_version(), self.table_name: table}
        # A bean's properties are in alphabetical order.
        return value if self._value else dict(sorted(value.items()))

    def _text(self, name: str, entry: Any) -> fastjson.Ready:
        cached = self._texts.get(name)
        if cached is None or cached[0] is not entry:
            cached = self._texts[name] = entry, fastjson.ready(entry, 2)
        return cached[1]

    def _next_version(self) -> dict[str, Any]:
        version = self.data_version
        counter = version.get("counter", 0)
        if not isinstance(counter, int) or isinstance(counter, bool):
            raise RefusedError(f"{self.path()}: the counter of {VERSION} is not an integer")
        return next_version(version, self.settings.profile.generation, self._clock())

    def _publish(self, data: bytes) -> None:
        """Save the old content as the backup, then replace the file.

        Unreadable old content does not replace the backup; it is kept in ``.rmqctl/kept``.
        """
        main, backup = self.path(), self.path(BACKUP)
        if self._from_main:
            old = self._store.read_small(FOLDER, self.file, most=MAX_SIZE)
            publish(backup, old, store=self.root)
        elif self._main_is_there:
            save_file(main, self.root)
        publish(main, data, store=self.root)
