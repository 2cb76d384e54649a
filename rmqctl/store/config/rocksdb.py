"""Configuration in RocksDB, converted to the values of the JSON files (rocksdb.md §7).

Code that reads the JSON files can use these values unchanged. A table is read up to the first
damage. An entry that cannot be parsed is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.rocksdb import config as layout
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.config.rows import MAX_FAULTS
from rmqctl.store.layout import CONFIG_DATABASES, ConfigLayout
from rmqctl.store.rocksdb.database import Database

MAX_SIZE = 64 << 20
"""Maximum total size in bytes of the keys and values read from a configuration database."""
TABLES = {"topics.json": (layout.TOPICS, "topicConfigTable"),
          "subscriptionGroup.json": (layout.GROUPS, "subscriptionGroupTable"),
          "consumerOffset.json": (layout.OFFSETS, "offsetTable")}
"""For each JSON file: the name of its table in a v2 database, and in the file itself."""
PULL_TABLE = "pullOffsetTable"
"""Table that exists only in v2, with pull offsets that no JSON file contains."""
_SHOWN = 60


@dataclass(slots=True)
class ConfigPart:
    """The part of a database that replaces one file.

    ``folder`` is relative to the store's root. ``value`` is None if nothing can be read; the cause
    is then ``missing`` or ``reason``. If only a part can be read, ``reason`` describes the damage.
    ``faults`` describes the omitted entries.
    """

    folder: str
    size: int = 0
    value: dict[str, Any] | None = None
    reason: str = ""
    missing: bool = False
    faults: list[str] = field(default_factory=list)
    _taken: int = 0

    def damage(self, problem: object) -> None:
        """Add a sentence that describes damage; the folder's name is removed, because the caller
        shows it.
        """
        reason = str(problem).rpartition(f"{self.folder}: ")[2]
        self.reason = f"{self.reason}; {reason}" if self.reason else reason

    def fault(self, key: bytes, error: FormatError) -> None:
        """Record an entry that is not a valid configuration entry."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(f"entry {repr(key[:_SHOWN])[1:]}: {error}")

    def entries(self, database: Database, family: str, start: bytes = b"",
                end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries up to the first one that cannot be read or exceeds the size limit."""
        try:
            for key, value in database.items(family, start, end):
                self._taken += len(key) + len(value)
                if self._taken > MAX_SIZE:
                    self.damage(f"larger than {MAX_SIZE >> 20} MiB, the limit for such a database")
                    return
                yield key, value
        except (FormatError, StoreIOError) as error:
            self.damage(error)


def read_config(root: str, form: ConfigLayout) -> dict[str, ConfigPart]:
    """Return the configuration in the databases of the store at ``root``.

    The dictionary maps each JSON file that a database replaces to the part of the database that
    replaces it. Raises: only MissingExtraError.
    """
    parts = {name: ConfigPart(folder, _size(os.path.join(root, folder)))
             for name, folder in CONFIG_DATABASES[form].items()}
    for folder in {part.folder: None for part in parts.values()}:
        inside = {name: part for name, part in parts.items() if part.folder == folder}
        path = os.path.join(root, folder)
        if not vfs.isdir(path):
            for part in inside.values():
                part.missing = True
            continue
        try:
            with Database.open(path) as database:
                for name, part in inside.items():
                    part.value = {}
                    for problem in database.damage:
                        part.damage(problem)
                    (_first if form == "rocksdb-v1" else _second)(database, name, part)
        except (FormatError, StoreIOError) as error:
            for part in inside.values():
                part.value, part.reason = None, ""
                part.damage(error)
    return parts


def _size(folder: str) -> int:
    try:
        with vfs.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return 0


def _first(database: Database, name: str, part: ConfigPart) -> None:
    """Read the database that replaces one file (v1)."""
    assert part.value is not None
    table = part.value[TABLES[name][1]] = {}
    for key, raw in part.entries(database, layout.DEFAULT):
        try:
            value = layout.object_of(raw)
            table[layout.name_of(key)] = (
                value.get("offsetTable") if name == "consumerOffset.json" else value)
        except FormatError as error:
            part.fault(key, error)
    for key, raw in part.entries(database, layout.VERSIONS):
        try:
            if key != layout.VERSION_KEY:
                raise FormatError("not the key of a data version")
            part.value["dataVersion"] = layout.object_of(raw)
        except FormatError as error:
            part.fault(key, error)
    if name != "subscriptionGroup.json":
        return
    forbidden = part.value["forbiddenTable"] = {}
    for key, raw in part.entries(database, layout.FORBIDDEN):
        try:
            forbidden[layout.name_of(key)] = layout.object_of(raw)
        except FormatError as error:
            part.fault(key, error)


def _second(database: Database, name: str, part: ConfigPart) -> None:
    """Read the table that replaces one file (v2)."""
    assert part.value is not None
    number, title = TABLES[name]
    _table(database, part, number, title)
    if number == layout.OFFSETS:
        _table(database, part, layout.PULL_OFFSETS, PULL_TABLE)


def _table(database: Database, part: ConfigPart, number: int, title: str) -> None:
    assert part.value is not None
    table: dict[str, Any] = {}
    part.value[title] = table
    for raw_key, raw in part.entries(database, layout.DEFAULT, layout.table_start(number),
                                     layout.table_start(number + 1)):
        try:
            key = layout.parse_key(raw_key)
            value = layout.parse_value(key, raw)
        except FormatError as error:
            part.fault(raw_key, error)
            continue
        if isinstance(value, layout.VersionRecord):
            if number != layout.PULL_OFFSETS:
                part.value["dataVersion"] = value.as_json()
        elif isinstance(value, int):
            table.setdefault(f"{key.topic}@{key.group}", {})[str(key.queue_id)] = value
        else:
            table[str(key.name)] = value
