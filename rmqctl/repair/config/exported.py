"""Output of ``mqadmin`` with a broker's topics and groups: a source of lost configuration.

* ``exportMetadata`` writes one object with ``topicConfigTable``, ``subscriptionGroupTable`` or
  both, in the form of ``config/topics.json`` and ``config/subscriptionGroup.json``. The object
  covers one broker (``-b``) or a whole cluster (``-c``). For a cluster, the object has an
  ``exportTime``, and the number of queues of a topic is the sum over several masters.
* ``exportMetadataInRocksDB`` prints one of the tables.
* ``exportConfigs`` writes broker settings, which no store contains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any, NamedTuple

from rmqctl.engine.config.topics import BATCH_QUEUE, QUEUE_TYPE
from rmqctl.errors import FormatError, RefusedError, UsageError
from rmqctl.formats.config import config_json
from rmqctl.formats.local.properties import DLQ_PREFIX, RETRY_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.config.inferred import text_of
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import MAX_SIZE
from rmqctl.store.store import Store


class _Table(NamedTuple):
    """A table of an export.

    ``key``: the field of an entry that repeats its name.
    ``fields``: known fields and their types.
    ``needed``: if one of these fields is missing, an inferred entry is preferred.
    ``value_type``: the type of all values of an entry.
    """

    key: str
    fields: dict[str, type]
    needed: tuple[str, ...] = ()
    value_type: type = object


_TABLES = {
    "topicConfigTable": _Table("topicName", {
        "topicName": str, "readQueueNums": int, "writeQueueNums": int, "perm": int,
        "topicFilterType": str, "topicSysFlag": int, "order": bool, "attributes": dict},
        ("readQueueNums", "writeQueueNums", "perm")),
    "subscriptionGroupTable": _Table("groupName", {
        "groupName": str, "consumeEnable": bool, "consumeFromMinEnable": bool,
        "consumeBroadcastEnable": bool, "consumeMessageOrderly": bool, "retryQueueNums": int,
        "retryMaxTimes": int, "brokerId": int, "whichBrokerWhenConsumeSlowly": int,
        "notifyConsumerIdsChangedEnable": bool, "groupSysFlag": int, "consumeTimeoutMinute": int,
        "attributes": dict}),
    "forbiddenTable": _Table("", {}, value_type=int),
    "messageRequestModeMap": _Table("", {}, value_type=dict),
}
_CONFIGS = "brokerConfigs"
_FILTERS = (None, "SINGLE_TAG", "MULTI_TAG")
_MAX_INT = (1 << 31) - 1
_MAX_NAME_LENGTH = 255


@dataclass(slots=True)
class Exported:
    """An export.

    ``tables``: for each table, its entries by name.
    ``refused``: number of entries that are skipped because no broker writes such entries.
    ``time``: epoch ms, only in the export of a cluster.
    """

    name: str
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: int = 0
    time: int | None = None

    def take(self, value: dict[str, Any]) -> None:
        """Add the tables that a JSON object contains."""
        for name, table in _TABLES.items():
            given = value.get(name)
            if isinstance(given, dict):
                good = {key: {**entry, table.key: key} if table.key else entry
                        for key, entry in given.items() if _is_sound(table, key, entry)}
                self.tables[name] = good
                self.refused += len(given) - len(good)


def read_export(name: str) -> Exported | None:
    """Read an export; return None if the file is not an export.

    Raises: UsageError for an incomplete file or for the output of ``exportConfigs``; StoreIOError.
    """
    with FileSource(name) as source:
        if source.size > MAX_SIZE or not source.read(0, 100).lstrip().startswith(b"{"):
            return None
        data = source.read(0, source.size)
    if not any(b'"%s"' % word.encode() in data for word in (*_TABLES, _CONFIGS)):
        return None
    try:
        value = config_json.parse(data).value
    except FormatError as error:
        raise UsageError(f"--from {name}: @{error.offset}: {error.reason}; it may be "
                         "incomplete") from None
    if not isinstance(value, dict):
        return None
    when = value.get("exportTime")
    export = Exported(name, time=when if isinstance(when, int) and 0 < when < 1 << 62 else None)
    export.take(value)
    if not export.tables and _CONFIGS in value:
        raise UsageError(f"--from {name}: this is the output of exportConfigs, which has broker "
                         "settings; topics and groups are in the output of exportMetadata")
    return export if export.tables else None


def refuse_foreign(export: Exported, topics: Iterable[str]) -> None:
    """Raise RefusedError if the export has topics but none of ``topics``, the topics of
    the store.
    """
    theirs = export.tables.get("topicConfigTable")
    mine = {topic: 0 for topic in sorted(topics)
            if not topic.startswith((DLQ_PREFIX, RETRY_PREFIX))}
    if theirs and mine and theirs.keys().isdisjoint(mine):
        raise RefusedError(f"--from {export.name}: has none of the store's topics "
                           f"({text_of(mine)}): it belongs to another broker")


def fitting(store: Store, export: Exported, table: str) -> tuple[dict[str, Any], list[str]]:
    """Return (the entries of a table that match the kinds of the store's queues, notes)."""
    theirs = export.tables[table]
    if table != "topicConfigTable":
        return theirs, []
    notes = []
    if export.time is not None:
        notes.append(
            f"{export.name}: covers a whole cluster, so readQueueNums and writeQueueNums are sums "
            "over all masters; correct both if there are several masters")
    kinds = {topic: False for topic, _ in store.queues.by_key} | {
        topic: True for topic, _ in store.queues.batch}
    good = {name: entry for name, entry in theirs.items()
            if kinds.get(name, is_batch(entry)) == is_batch(entry)}
    if len(good) < len(theirs):
        notes.append(f"{export.name}: {text_of(dict.fromkeys(theirs.keys() - good.keys()))}: "
                     "skipped; its queues are of another kind in the store")
    return good, notes


def is_batch(entry: dict[str, Any]) -> bool:
    """Return whether a topic with this configuration has batch queues."""
    return (entry.get("attributes") or {}).get(QUEUE_TYPE) == BATCH_QUEUE


def _is_sound(table: _Table, key: str, entry: Any) -> bool:
    """Return whether a broker would accept this value as the entry named ``key``."""
    if not isinstance(entry, dict) or not key or entry.get(table.key, key) != key:
        return False
    if entry.get("topicFilterType") not in _FILTERS or "\ufffd" in key:
        return False
    if len(key) > _MAX_NAME_LENGTH or "/" in key or not key.isprintable() or key in (".", ".."):
        return False
    return (all(isinstance(value, table.value_type) for value in entry.values())
            and all(entry.get(name) is None or _is(entry[name], kind)
                    for name, kind in table.fields.items())
            and all(entry.get(name) is not None for name in table.needed))


def _is(value: Any, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= _MAX_INT
    return isinstance(value, kind)
