"""``config/tieredStoreMetadata.json``: a broker's metadata about its tier (tiered.md §6, §16).

`read` accepts the forms of 5.1.0 to 5.3.3 and, tolerantly, of later releases. The segment tables of
5.1.0 and 5.1.1 have objects as keys, so those files are not JSON. A fault in a field is reported,
and only the entry with that field is dropped. The file is written in the form of 5.3.3, in the
order of the broker's maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from rmqctl.errors import FormatError
from rmqctl.formats.config import config_json, fastjson, java_concurrent_map, object_keys
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.names import KINDS
from rmqctl.lazy_dataclass import dataclass

K = TypeVar("K", str, int)
V = TypeVar("V")

SEGMENT_TABLES = ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable",
                  "indexFileSegmentTable")
"""The name of each kind's segment table, in the order of `tiered_names.KINDS`."""
NEW, SEALED, DELETED = 0, 1, 2
"""The status of a segment; from 5.3.0 on a broker only writes NEW and never reads the status."""

_TABLE = java_concurrent_map.sized(1024)
"""Number of buckets in a broker's tables, which are created for 1024 keys."""
_ENTRY = 3
"""Nesting depth of the entries for segments and queues in the file."""
_CACHED = 1 << 14
"""Maximum number of cached entry texts, about 6 MiB in total."""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """The metadata of a segment. Times in ms; `tiered_units.NEVER` if nothing was appended."""

    path: str
    type: int
    base_offset: int
    status: int = NEW
    size: int = 0
    create_timestamp: int = 0
    begin_timestamp: int = (1 << 63) - 1
    end_timestamp: int = (1 << 63) - 1
    seal_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A queue's entry. No version updates ``min_offset`` and ``max_offset``."""

    topic: str
    broker_name: str
    queue_id: int
    min_offset: int = -1
    max_offset: int = -1
    update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic's entry; index items contain its ``topic_id``. ``reserve_time`` in hours; -1:
    default.
    """

    topic_id: int
    topic: str
    status: int = 0
    reserve_time: int = -1
    update_timestamp: int = 0


class MetadataFault(NamedTuple):
    """An unreadable entry; ``path`` names it with the keys of the file."""

    path: str
    reason: str


@dataclass(slots=True)
class Metadata:
    """The content of the file.

    ``segments[kind]``: {filePath: {base: entry}}.
    ``serial``: the last assigned topic id.
    ``old``: whether the file is from 5.1.0 or 5.1.1.
    """

    segments: dict[str, dict[str, dict[int, SegmentEntry]]] = field(
        default_factory=lambda: {kind: {} for kind in KINDS})
    queues: dict[str, dict[int, QueueEntry]] = field(default_factory=dict)
    topics: dict[str, TopicEntry] = field(default_factory=dict)
    serial: int = -1
    old: bool = False
    faults: list[MetadataFault] = field(default_factory=list)

    def put_segment(self, entry: SegmentEntry) -> None:
        """Add or replace an entry."""
        self.segments[KINDS[entry.type]].setdefault(entry.path, {})[entry.base_offset] = entry

    @property
    def brokers(self) -> set[str]:
        """The names of the brokers in the queues' entries."""
        return {queue.broker_name for table in self.queues.values() for queue in table.values()}

    def topic_of(self, topic_id: int) -> str | None:
        """Return the topic that currently has an id; None if unknown (the topic was removed, or
        never existed).
        """
        return next((topic.topic for topic in self.topics.values() if topic.topic_id == topic_id),
                    None)

    def copy(self) -> Metadata:
        """Return an equal copy that may be changed."""
        return replace(
            self, segments={kind: {path: dict(entries) for path, entries in table.items()}
                            for kind, table in self.segments.items()},
            queues={topic: dict(entries) for topic, entries in self.queues.items()},
            topics=dict(self.topics), faults=list(self.faults))


# -- reading --------------------------------------------------------------------------------------

_SEGMENT = {"status": ("status", NEW), "size": ("size", 0),
            "create_timestamp": ("createTimestamp", 0),
            "begin_timestamp": ("beginTimestamp", (1 << 63) - 1),
            "end_timestamp": ("endTimestamp", (1 << 63) - 1),
            "seal_timestamp": ("sealTimestamp", 0)}


def parse(data: bytes) -> Metadata:
    """Return the content of a metadata file.

    Raises: FormatError if it is not a JSON object at all.
    """
    return of_value(config_json.parse(data).value)


def of_value(value: Any) -> Metadata:
    """Return metadata from the value that `config_json` read from the file."""
    if not isinstance(value, dict):
        raise FormatError("not a JSON object", offset=0, path="metadata")
    metadata = Metadata(old="maxTopicId" in value and "topicSerialNumber" not in value)
    faults = metadata.faults
    for number, name in enumerate(SEGMENT_TABLES):
        for path, table in _items(value, name, faults):
            for base, entry in _items({path: table}, path, faults):
                with _telling(f"{name}.{path}.{base}", faults):
                    metadata.put_segment(_segment(entry, number, path, base))
    for topic, table in _items(value, "queueMetadataTable", faults):
        metadata.queues[topic] = {}
        for text, entry in _items({topic: table}, topic, faults):
            with _telling(f"queueMetadataTable.{topic}.{text}", faults):
                metadata.queues[topic][_key(text)] = _queue(entry, topic, text)
    for topic, entry in _items(value, "topicMetadataTable", faults):
        with _telling(f"topicMetadataTable.{topic}", faults):
            metadata.topics[topic] = _topic(entry, topic)
    serial = value.get("maxTopicId" if metadata.old else "topicSerialNumber")
    if isinstance(serial, int) and not isinstance(serial, bool) and abs(serial) < 1 << 63:
        metadata.serial = serial - 1 if metadata.old else serial
    elif serial is not None or value:
        metadata.serial = max((topic.topic_id for topic in metadata.topics.values()), default=-1)
        faults.append(MetadataFault("topicSerialNumber", "not a number"))
    return metadata


@contextmanager
def _telling(path: str, faults: list[MetadataFault]) -> Iterator[None]:
    """Convert exceptions inside the block to a `MetadataFault` with this path."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        faults.append(MetadataFault(path, str(error) or type(error).__name__))


def _items(value: Mapping[str, Any], name: str,
           faults: list[MetadataFault]) -> Iterable[tuple[str, Any]]:
    table = value.get(name)
    if table is None:
        return ()
    if not isinstance(table, dict):
        faults.append(MetadataFault(name, "not a JSON object"))
        return ()
    return table.items()


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _int(value: Any, name: str, default: int) -> int:
    number = value.get(name, default)
    if not _is_int(number) or not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{name} is not a 64-bit number")
    return int(number)


def _key(text: str) -> int:
    """Return the value of a key that must be a base offset or a queue id: digits, with or without
    quotes in the file.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 1 << 63):
        raise ValueError("the key is not a number >= 0")
    return int(text)


def _segment(fields: Any, number: int, path: str, base: str) -> SegmentEntry:
    values = {name: _int(fields, key, default) for name, (key, default) in _SEGMENT.items()}
    offset = _key(base)
    if _int(fields, "baseOffset", offset) != offset:
        raise ValueError("baseOffset differs from the entry's key")
    if _int(fields, "type", number) != number:
        raise ValueError("type differs from the table's")
    return SegmentEntry(path.replace("\\", "/"), number, offset, **values)


def _queue(fields: Any, topic: str, number: str) -> QueueEntry:
    named = fields["queue"]
    if named["topic"] != topic or _int(named, "queueId", -1) != _key(number):
        raise ValueError("the queue differs from the entry's key")
    broker = named["brokerName"]
    if not isinstance(broker, str):
        raise TypeError("brokerName is not a string")
    return QueueEntry(topic, broker, _key(number), _int(fields, "minOffset", -1),
                      _int(fields, "maxOffset", -1), _int(fields, "updateTimestamp", 0))


def _topic(fields: Any, topic: str) -> TopicEntry:
    if fields.get("topic", topic) != topic:
        raise ValueError("the topic differs from the entry's key")
    return TopicEntry(_int(fields, "topicId", -1), topic, _int(fields, "status", 0),
                      _int(fields, "reserveTime", -1), _int(fields, "updateTimestamp", 0))


# -- writing --------------------------------------------------------------------------------------

def build(metadata: Metadata) -> bytes:
    """Return the file as 5.3.3 writes it. Its maps are in the order of a broker that added all
    entries since its start.
    """
    document: dict[str, Any] = {}
    for kind, name in zip(KINDS, SEGMENT_TABLES, strict=True):
        document[name] = {path: {base: _segment_text(entry) for base, entry in _numbered(table)}
                          for path, table in _copied(metadata.segments[kind])}
    document["queueMetadataTable"] = {
        topic: {number: _queue_text(entry) for number, entry in _numbered(table)}
        for topic, table in _copied(metadata.queues)}
    document["topicMetadataTable"] = {
        topic: _topic_value(entry)
        for topic, entry in java_concurrent_map.ordered(metadata.topics, _TABLE)}
    document["topicSerialNumber"] = metadata.serial
    return fastjson.build(dict(sorted(document.items())))


# Dispatch writes the file for each window, and most entries are unchanged.
@lru_cache(_CACHED)
def _segment_text(entry: SegmentEntry) -> fastjson.Ready:
    return fastjson.ready({"path": entry.path, "type": entry.type, "baseOffset": entry.base_offset,
            "status": entry.status, "size": entry.size, "createTimestamp": entry.create_timestamp,
            "beginTimestamp": entry.begin_timestamp, "endTimestamp": entry.end_timestamp,
            "sealTimestamp": entry.seal_timestamp}, _ENTRY)


@lru_cache(_CACHED)
def _queue_text(entry: QueueEntry) -> fastjson.Ready:
    return fastjson.ready({
            "queue": {"brokerName": entry.broker_name, "queueId": entry.queue_id,
                      "topic": entry.topic},
            "minOffset": entry.min_offset, "maxOffset": entry.max_offset,
            "updateTimestamp": entry.update_timestamp}, _ENTRY)


def _topic_value(entry: TopicEntry) -> dict[str, Any]:
    return {"topicId": entry.topic_id, "topic": entry.topic, "status": entry.status,
            "reserveTime": entry.reserve_time, "updateTimestamp": entry.update_timestamp}


def java_order(table: Mapping[K, V]) -> list[tuple[K, V]]:
    """Return the items of a map in the order of a Java ``ConcurrentHashMap`` to which they were
    added.
    """
    return java_concurrent_map.ordered(table)


def _copied(table: Mapping[K, V]) -> list[tuple[K, V]]:
    """Return the items in the order of a broker's outer tables (by path, by topic). A broker
    creates these tables as copies of large maps.
    """
    source = dict(java_concurrent_map.ordered(table, _TABLE))
    return java_concurrent_map.ordered(source, java_concurrent_map.copied(len(source)))


def _numbered(table: Mapping[int, V]) -> list[tuple[int, V]]:
    """Return the segments or queues of one table in the broker's order, if they were added in
    ascending order.
    """
    return java_concurrent_map.ordered(dict(sorted(table.items())))


def read(data: bytes) -> Metadata:
    """Return the content of a metadata file of any version.

    Raises: FormatError if it is not a metadata file.
    """
    return of_value(config_json.parse(data, _place).value)


def _place(value: Any) -> str:
    return names.metadata_path(*object_keys.queue_of(value))
