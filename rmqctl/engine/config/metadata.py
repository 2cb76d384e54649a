"""A broker's topics and groups in the format of ``mqadmin exportMetadata``.

Like that command, this module omits system topics and topics with permission 0. By default, the
retry and dead letter topics of groups are also omitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rmqctl.engine.config.topics import MAX_PERM, TABLE, is_system
from rmqctl.formats.local.properties import DLQ_PREFIX, RETRY_PREFIX
from rmqctl.store.config.config import ConfigFile, load_one
from rmqctl.store.store import Store

GROUPS_TABLE = "subscriptionGroupTable"
PARTS = {"topics": ("topics.json", TABLE), "groups": ("subscriptionGroup.json", GROUPS_TABLE)}
"""For each part of the export: (file that contains it, name of the table in that file)."""
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
_SYSTEM_GROUPS = frozenset({
    "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "TOOLS_CONSUMER", "SCHEDULE_CONSUMER",
    "FILTERSRV_CONSUMER", "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP",
    "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PULL"})
_NEWEST = 5


def metadata(store: Store, parts: tuple[str, ...], *, special: bool, cluster: str,
             now: int) -> tuple[dict[str, Any], list[ConfigFile]]:
    """Return (document, the file of each part).

    * ``parts``: "topics" and "groups"
    * ``special``: whether to include retry and dead letter topics
    * ``now``: time of the export (epoch ms)
    """
    files = [load_one(store, PARTS[part][0]) for part in parts]
    document: dict[str, Any] = {"exportTime": now}
    for part, file in zip(parts, files, strict=True):
        name = PARTS[part][1]
        value = file.value.get(name) if isinstance(file.value, dict) else None
        entries = _entries(value if isinstance(value, dict) else {})
        document[name] = {key: entry for key, entry in entries if (
            _is_users_group(key) if part == "groups"
            else _is_users_topic(key, entry, special=special, cluster=cluster))}
    return document, files


def _entries(table: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((key, entry) for key, entry in sorted(table.items()) if isinstance(entry, dict))


def _is_users_topic(name: str, entry: dict[str, Any], *, special: bool, cluster: str) -> bool:
    perm = entry.get("perm")
    return (not is_system(name, _NEWEST, cluster)
            and (special or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)))
            and isinstance(perm, int) and 0 <= perm <= MAX_PERM)


def _is_users_group(name: str) -> bool:
    return name not in _SYSTEM_GROUPS and not name.startswith(_SYSTEM_GROUP_PREFIX)
