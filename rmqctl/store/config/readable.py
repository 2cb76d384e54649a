"""The readable part of a damaged configuration file."""

from __future__ import annotations

from typing import Any, NamedTuple

from rmqctl.formats.config.one_byte import DamagedEntry, sound_members
from rmqctl.formats.config.torn_json import whole_entries

_OFFSETS = ("offsetTable",)
_TABLES: dict[str, tuple[str, ...]] = {
    "topics.json": ("topicConfigTable",),
    "subscriptionGroup.json": ("subscriptionGroupTable", "forbiddenTable"),
    "consumerOffset.json": _OFFSETS,
    "lmqConsumerOffset.json": (*_OFFSETS, "lmqOffsetTable"),
    "delayOffset.json": _OFFSETS,
    "consumerFilter.json": ("filterDataByTopic",),
    "consumerOrderInfo.json": ("table",),
    "topicQueueMapping.json": ("topicQueueMappingInfoMap",),
    "messageRequestMode.json": ("messageRequestModeMap",),
}
"""The tables of each file; the entries of the first table show by themselves that they are its
entries.
"""
NAME_FIELDS = {"topics.json": "topicName", "subscriptionGroup.json": "groupName"}
"""The field in which an entry of a file repeats its own name."""


class Readable(NamedTuple):
    """The readable part of a file.

    ``value``: the JSON object with all readable entries, also those that are partly readable.
    ``lost``: damaged entries; None if everything after byte ``length`` is unknown.
    """

    value: dict[str, Any]
    lost: tuple[DamagedEntry, ...] | None
    length: int


def readable_part(name: str, data: bytes) -> Readable | None:
    """Return the readable part of the configuration file ``name``; None if no entry is readable."""
    tables = _TABLES.get(name, ())

    def belongs(key: str, value: Any) -> str | None:
        """Return the table that an entry shows by itself."""
        field = NAME_FIELDS.get(name)
        fits = isinstance(value, dict) and (
            value.get(field) == key if field else tables == _OFFSETS and "@" in key)
        return tables[0] if fits else None

    partial = sound_members(data, tables, belongs)
    if partial is None:
        whole = whole_entries(data)
        return None if whole is None else Readable(whole[0], None, whole[1])
    return _named(name, partial.value, partial.lost, len(data))


def _named(name: str, value: dict[str, Any], lost: tuple[DamagedEntry, ...], size: int) -> Readable:
    """Restore names of entries: an entry of a topic or group contains its name twice."""
    field = NAME_FIELDS.get(name)
    if field is None:
        return Readable(value, lost, size)
    table = value.setdefault(_TABLES[name][0], {})
    left = []
    for entry in lost:
        key = entry.key
        if key is None and isinstance(entry.value, dict):
            key = entry.value.get(field)
            if isinstance(key, str) and key not in table:
                table[key] = entry.value
                continue
        elif isinstance(table.get(key), dict) and isinstance(entry.value, dict) and (
                field not in entry.value):
            table[key] = {**entry.value, field: key}
            if entry.fields <= {field}:
                continue
        left.append(entry)
    return Readable(value, tuple(left), size)
