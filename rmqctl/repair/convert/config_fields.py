"""Files in ``config/`` for an older release: JSON without the fields that the release does not
know.

The content is what the release itself would write after reading the file: fastjson ignores unknown
fields.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any

from rmqctl.broker.versions import is_from, version_of
from rmqctl.errors import RefusedError
from rmqctl.formats.config import config_json, fastjson
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.config.convert import plan_convert
from rmqctl.repair.plan import Changes, Create, Replace
from rmqctl.repair.scratch import Scratch
from rmqctl.store.config.config import FOLDER, ConfigCopy, load_one
from rmqctl.store.config.rocksdb import PULL_TABLE, TABLES
from rmqctl.store.features import CONFIG_FIELDS, FEATURES, MAX_V1_TOPIC, ConfigField
from rmqctl.store.store import Store

_FILES = tuple(dict.fromkeys(field.file for field in CONFIG_FIELDS))
_TOPICS, _OFFSETS, _LIGHT = "topicConfigTable", "offsetTable", "lmqOffsetTable"
_BY_QUEUE = ("consumerOffset.json", "lmqConsumerOffset.json")
_BY_LEVEL = "delayOffset.json"


@dataclass(frozen=True, slots=True)
class DroppedSetting:
    """A setting that the release does not know: ``field`` of the entry ``name`` in a file, and its
    value.
    """

    file: str
    name: str
    field: str
    value: Any

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file, "name": self.name, "field": self.field, "value": self.value}


def fit_config(changes: Changes, store: Store, release: str, gone: Collection[str],
               scratch: Scratch) -> list[DroppedSetting]:
    """Add the configuration files for a release to ``changes``; return the dropped settings.

    ``gone``: topics whose messages are removed. Consumer offsets in these topics are dropped. The
    topics themselves are dropped only if the release refuses their names.

    Raises: RefusedError if a file cannot be read; StoreIOError.
    """
    dropped: list[DroppedSetting] = []
    form = store.layout.config
    is_read = form == "json" or is_from(release, FEATURES[form].since)
    # Out of a form of RocksDB that the release does not read; with queues in RocksDB it reads the
    # first one.
    if not is_read:
        version = version_of(release)
        plan = plan_convert(store, "rocksdb-v1" if version.rocksdb_queues and (
            store.layout.consumequeue == "rocksdb") else "json", scratch, alone=False)
        for step in plan.steps:
            name = os.path.basename(step.target)
            if isinstance(step, Create) and isinstance(step.content, bytes) and name in TABLES:
                value = config_json.parse(step.content).value
                changes.steps.append(Create(step.target, _text(name, _fitted(
                    name, value, release, gone, dropped))))
            else:
                changes.steps.append(step)
        changes.actions += plan.actions
    # Files: both copies, because a broker may read either.
    for name in _FILES:
        if form != "json" and name in TABLES:
            continue
        file = load_one(store, name)
        dropped_here: list[DroppedSetting] = []
        for copy in (file.main, file.backup):
            if copy.usable and isinstance(copy.value, dict):
                _fit(changes, name, copy, release, gone, dropped_here)
            elif copy is file.used or copy.damaged:
                raise RefusedError(f"{store.root}: {copy.fault()}; repair it first "
                                   "(`rmqctl recover`)")
            if copy is file.used:
                dropped += dropped_here
    return dropped


def pull_offsets(store: Store, release: str) -> int:
    """Return the number of pull offsets that groups lose.

    Only the RocksDB form ``rocksdb-v2`` stores pull offsets, and the release does not read this
    form.
    """
    form = store.layout.config
    if form == "json" or is_from(release, FEATURES[form].since):
        return 0
    value = load_one(store, "consumerOffset.json").value or {}
    return sum(len(entry) for entry in (value.get(PULL_TABLE) or {}).values())


def _fit(changes: Changes, name: str, copy: ConfigCopy, release: str, gone: Collection[str],
         dropped: list[DroppedSetting]) -> None:
    dropped.clear()
    value = _fitted(name, copy.value, release, gone, dropped)
    if value != copy.value:
        changes.act(Replace(copy.path, _text(name, value)), "rewrite", None, None,
                    f"for a {release} broker", "")


def _fitted(name: str, value: dict[str, Any], release: str, gone: Collection[str],
            dropped: list[DroppedSetting]) -> dict[str, Any]:
    """Return a copy of the content of a file with only the fields and entries that the release
    accepts.
    """
    for field in CONFIG_FIELDS:
        if field.file == name and not is_from(release, field.since):
            value = _without(value, field, field.path, dropped, "")
    for table in (_TOPICS, _OFFSETS) if gone else ():
        entries = value.get(table)
        if isinstance(entries, dict) and name != _BY_LEVEL:
            value = {**value, table: {
                key: entry for key, entry in entries.items()
                if (topic := str(key).partition("@")[0]) not in gone
                or (table == _TOPICS and len(os.fsencode(topic)) <= MAX_V1_TOPIC)}}
    return value


def _without(value: dict[str, Any], field: ConfigField, path: tuple[str, ...],
             dropped: list[DroppedSetting], name: str) -> dict[str, Any]:
    """Return ``value`` without a field. If the field has an unusual value, add it to
    ``dropped``.
    """
    key, *keys = path
    if key == "*":
        return {entry: _without(inner, field, path[1:], dropped, str(entry))
                if isinstance(inner, dict) else inner for entry, inner in value.items()}
    if key not in value:
        return value
    if keys:
        inner = value[key]
        return {**value, key: _without(inner, field, tuple(keys), dropped, name)} if isinstance(
            inner, dict) else value
    if field.usual and not any(value[key] == usual for usual in field.usual):
        dropped.append(DroppedSetting(f"{FOLDER}/{field.file}", name, key, value[key]))
    return {inner: field_value for inner, field_value in value.items() if inner != key}


def _text(name: str, value: dict[str, Any]) -> bytes:
    """Return the text as fastjson writes it: queue ids and levels are keys without quotes."""
    return fastjson.build(dict(_bare(name, value)))


def _bare(name: str, value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for table, entries in value.items():
        if table == _OFFSETS and isinstance(entries, dict) and name == _BY_LEVEL:
            yield table, _numbered(entries)
        elif table == _OFFSETS and isinstance(entries, dict) and name in _BY_QUEUE:
            yield table, {key: _numbered(entry) if isinstance(entry, dict) else entry
                          for key, entry in entries.items()}
        else:
            yield table, entries


def _numbered(entries: dict[Any, Any]) -> dict[Any, Any]:
    return {int(key) if str(key).isascii() and str(key).isdigit() else key: entry
            for key, entry in entries.items()}
