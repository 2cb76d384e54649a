"""Convert topics, groups and consumer offsets between JSON files and the two RocksDB forms.

spec: rocksdb.md §7. All values that a broker uses are converted. The old form is moved aside, with
all files that a broker would prefer to the new form or import into it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from rmqctl.errors import RefusedError
from rmqctl.files.rocksdb_writer import write_database
from rmqctl.formats.config import fastjson
from rmqctl.formats.rocksdb import config as layout
from rmqctl.repair.plan import (
    Changes,
    Create,
    FileContent,
    MakeFolder,
    MoveAside,
    Plan,
    Step,
)
from rmqctl.repair.scratch import Scratch
from rmqctl.store.config.config import BACKUP, FOLDER, MISSING, ConfigFile, load_one
from rmqctl.store.config.rocksdb import PULL_TABLE, TABLES
from rmqctl.store.layout import CONFIG_DATABASES, ConfigLayout
from rmqctl.store.store import Store

COMMAND = "config-convert"
_SETTINGS = {
    "json": "storeType=default and without configManagerVersion=v2",
    "rocksdb-v1": "storeType=defaultRocksDB and without configManagerVersion=v2",
    "rocksdb-v2": "configManagerVersion=v2 (5.3.2 or later)"}
_BROADCAST = "@broadcast"
"""Suffix of a group name under which a 5.x broker stores the smallest offset of broadcast
consumers.
"""
_LMQ = "lmqConsumerOffset.json"
Entries = Iterator[tuple[bytes, bytes]]


def plan_convert(store: Store, to: ConfigLayout, scratch: Scratch, *, alone: bool = True) -> Plan:
    """Return the plan that converts the configuration of ``store`` to the form ``to``.

    ``scratch``: new databases are built here.
    ``alone``: whether only the configuration is converted. If so, notes name the settings that a
    broker needs.
    Raises: RefusedError if the configuration cannot be read completely; MissingExtraError,
    StoreIOError.
    """
    store.layout.require(store.root, "config")
    if store.layout.config == to:
        return Plan(COMMAND, store.root)
    files = {name: load_one(store, name) for name in TABLES}
    for file in files.values():
        _refuse_damage(store, file)
    if all(file.used is None for file in files.values()):
        raise RefusedError(f"{store.root}: no configuration of topics, groups or consumer "
                           "offsets found")
    if to != "json" and load_one(store, _LMQ).main.state != MISSING:
        raise RefusedError(f"{store.root}: {FOLDER}/{_LMQ} exists (enableLmq), and its form in "
                           "RocksDB is unknown")
    groups = files["subscriptionGroup.json"].value or {}
    if to == "rocksdb-v2" and groups.get("forbiddenTable"):
        raise RefusedError(f"{store.root}: forbiddenTable keeps some groups from reading topics, "
                           "and how config/rdb stores this is unknown")
    changes = Changes()
    _move_aside(store, changes)
    if to == "json":
        _to_files(files, changes)
    else:
        _to_database(files, to, changes, scratch)
    if alone:
        changes.notes += _needs(store, to)
    return Plan(COMMAND, store.root, tuple(changes.actions), tuple(changes.steps),
                notes=tuple(changes.notes))


def _needs(store: Store, to: ConfigLayout) -> Iterator[str]:
    """Yield notes on the settings that a broker needs to use the form ``to``."""
    if to == "json" and store.layout.consumequeue == "rocksdb":
        yield ("the consume queues are in RocksDB: a broker with storeType=default does not read "
               "them")
    yield f"a broker reads this form with {_SETTINGS[to]}"


def _refuse_damage(store: Store, file: ConfigFile) -> None:
    if file.damaged or file.faults:
        reason = file.faults[0] if file.faults else file.main.reason
        raise RefusedError(f"{store.root}: {file.main.path}: {reason}; the unreadable part would "
                           "be lost")


def _move_aside(store: Store, changes: Changes) -> None:
    """Move aside the present configuration, and all files that a broker would prefer to the new
    form.
    """
    why = "the configuration moves to another form"
    folders = dict.fromkeys((*CONFIG_DATABASES["rocksdb-v2"].values(),
                             *CONFIG_DATABASES["rocksdb-v1"].values()))
    for folder in folders:
        if os.path.isdir(store.path(folder)):
            size = sum(entry.stat().st_size for entry in os.scandir(store.path(folder)))
            changes.move_aside(folder, size, why)
    for name in TABLES:
        for copy in (name, name + BACKUP):
            path = store.path(FOLDER, copy)
            if os.path.lexists(path):
                changes.move_aside(f"{FOLDER}/{copy}", os.path.getsize(path), why)


def _to_files(files: Mapping[str, ConfigFile], changes: Changes) -> None:
    for name, file in files.items():
        value = dict(file.value or {})
        if value.pop(PULL_TABLE, None):
            changes.notes.append("pull offsets, which JSON files do not store, are left out "
                                 f"({file.main.path}, table {layout.PULL_OFFSETS})")
        if name == "consumerOffset.json":  # bare queue ids, as a broker writes them
            value["offsetTable"] = {key: {int(queue): offset for queue, offset in entry.items()}
                                    for key, entry in value.get("offsetTable", {}).items()}
        if file.used is None:
            continue
        changes.act(Create(f"{FOLDER}/{name}", fastjson.build(dict(sorted(value.items())))),
                    "restore", None, file.entries, f"from {file.used.path}", "entry")


def _to_database(files: Mapping[str, ConfigFile], to: ConfigLayout, changes: Changes,
                 scratch: Scratch) -> None:
    for folder, names in _databases(to).items():
        entries = sum(files[name].entries or 0 for name in names)
        source = ", ".join(files[name].main.path for name in names)
        values = {name: files[name].value or {} for name in names}
        creates = new_database(to, folder, values, scratch)
        changes.steps += creates[:-1]
        # The last file, which makes it a database, has the action.
        changes.act(creates[-1], "restore", None, entries,
                    f"a database with the entries of {source}", "entry")


def _databases(form: ConfigLayout) -> dict[str, list[str]]:
    """Return, for each database of a form, the JSON files that it replaces."""
    inside: dict[str, list[str]] = {}
    for name, folder in CONFIG_DATABASES[form].items():
        inside.setdefault(folder, []).append(name)
    return inside


def new_database(form: ConfigLayout, folder: str, values: Mapping[str, dict[str, Any]],
                 scratch: Scratch) -> list[Create]:
    """Build a database with ``values`` (by JSON file name) in ``scratch``.

    Return the steps that create the database's files in ``folder`` (relative to the root). RocksDB
    opens the folder as a database only when the last file exists. Raises: MissingExtraError,
    StoreIOError.
    """
    os.makedirs(scratch.path(FOLDER), exist_ok=True)
    families = _second(values) if form == "rocksdb-v2" else _first(*values.items())
    return [Create(f"{folder}/{name}", FileContent(scratch.path(folder, name)))
            for name in write_database(scratch.path(folder), families)]


def replaced(store: Store, changed: Mapping[str, dict[str, Any]],
             scratch: Scratch) -> list[Step]:
    """Return the steps that replace each database with changed values.

    The new database contains the ``changed`` values (by JSON file name) and all other values of the
    old database. The old database is moved aside. Raises: RefusedError if a value cannot be read;
    MissingExtraError, StoreIOError.
    """
    form = store.layout.config
    steps: list[Step] = []
    for folder in dict.fromkeys(CONFIG_DATABASES[form][name] for name in changed):
        files = {other: load_one(store, other) for other in _databases(form)[folder]}
        for file in files.values():
            _refuse_damage(store, file)
        values = {other: changed.get(other, file.value or {}) for other, file in files.items()}
        steps += [MoveAside(folder), MakeFolder(folder),
                  *new_database(form, folder, values, scratch)]
    return steps


def _topic_and_group(key: str) -> tuple[str, str]:
    """Split a key of the offset table into topic and group. Raises: RefusedError.

    As in 5.3.3, the group of ``topic@group@broadcast`` is ``group@broadcast``
    (`BroadcastOffsetManager`).
    """
    topic, separator, group = key.partition("@")
    if not separator or "@" in group.removesuffix(_BROADCAST):
        raise RefusedError(f"{key!r} is not of the form topic@group and cannot be converted")
    return topic, group


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _first(file: tuple[str, dict[str, Any]]) -> dict[str, Entries]:
    name, value = file
    table = value.get(TABLES[name][1]) or {}
    version = value.get("dataVersion")

    def named(entries: Mapping[str, Any]) -> Entries:
        for key in sorted(entries, key=str.encode):
            yield key.encode(), _json(entries[key])

    if name == "consumerOffset.json":
        table = {key: {"offsetTable": {str(queue): offset for queue, offset in entry.items()}}
                 for key, entry in table.items()}
    return {layout.DEFAULT: named(table),
            layout.VERSIONS: named({layout.VERSION_KEY.decode(): version} if version else {}),
            layout.FORBIDDEN: named(value.get("forbiddenTable") or {})}


def _second(values: Mapping[str, dict[str, Any]]) -> dict[str, Entries]:
    entries: dict[bytes, bytes] = {}

    def add(key: layout.Key, value: bytes | layout.VersionRecord | int) -> None:
        entries[layout.build_key(key)] = layout.build_value(value)

    for name, value in values.items():
        number, title = TABLES[name]
        tables = {number: title} | ({layout.PULL_OFFSETS: PULL_TABLE}
                                    if number == layout.OFFSETS else {})
        for table, title in tables.items():
            rows = value.get(title) or {}
            version = value.get("dataVersion")
            if isinstance(version, dict) and (rows or table == number):
                add(layout.Key(table, layout.DATA_VERSION), layout.VersionRecord(
                    *(version.get(part, 0) for part in ("stateVersion", "timestamp", "counter"))))
            for key, entry in rows.items():
                if number != layout.OFFSETS:
                    add(layout.Key(table, layout.DATA, key), _json(entry))
                    continue
                topic, group = _topic_and_group(key)
                for queue, offset in entry.items():
                    add(layout.Key(table, layout.DATA, None, group, topic, int(queue)), offset)
    return {layout.DEFAULT: iter(sorted(entries.items()))}
