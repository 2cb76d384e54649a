"""The tables of ``config/`` as a broker loads them at startup, and the copy that it does not load.

`ConfigManager.load` loads the main file. If the main file is missing, empty or undecodable, the
broker loads the ``.bak`` file. If the ``.bak`` file is also missing or empty, the broker starts
with an empty table. The first write copies the main file over ``.bak``
(checkpoint-and-small-files.md §4.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.properties import (
    DLQ_PREFIX,
    LMQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from rmqctl.store.config.config import (
    EMPTY,
    FOLDER,
    MAX_SIZE,
    MISSING,
    ODDITY,
    UNREADABLE,
    ConfigCopy,
    ConfigFile,
    load_shared,
)
from rmqctl.store.config.readable import readable_part
from rmqctl.store.config.rows import number
from rmqctl.store.store import Store

TOPICS, GROUPS, OFFSETS = "topics.json", "subscriptionGroup.json", "consumerOffset.json"
LMQ_OFFSETS, DELAYS = "lmqConsumerOffset.json", "delayOffset.json"
TABLES = {TOPICS: "topicConfigTable", GROUPS: "subscriptionGroupTable", OFFSETS: "offsetTable",
          LMQ_OFFSETS: "offsetTable", DELAYS: "offsetTable"}
Entries = Mapping[str, Any]

_SYSTEM_TOPICS = frozenset({
    SCHEDULE_TOPIC, "TBW102", "AUTO_CREATE_TOPIC_KEY", "SELF_TEST_TOPIC", "BenchmarkTest",
    "OFFSET_MOVED_EVENT", "DefaultHeartBeatSyncerTopic", "TRANS_CHECK_MAX_TIME_TOPIC"})
_SYSTEM_TOPIC_PREFIXES = ("rmq_sys_", "RMQ_SYS_")
_SYSTEM_GROUPS = frozenset({
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_SYS_RMQ_TRANS",
    "DEFAULT_CONSUMER"})
_SYSTEM_GROUP_PREFIXES = ("CID_RMQ_SYS_", "CID_SYS_")


def is_user_topic(name: str) -> bool:
    """Return whether a topic is not one of the topics that brokers create by themselves."""
    return name not in _SYSTEM_TOPICS and not name.startswith(
        (*_SYSTEM_TOPIC_PREFIXES, LMQ_PREFIX))


def is_user_group(name: str) -> bool:
    """Return whether a group belongs to a user, not to a broker itself."""
    return name not in _SYSTEM_GROUPS and not name.startswith(
        (*_SYSTEM_GROUP_PREFIXES, LMQ_PREFIX))


def group_of(topic: str) -> str | None:
    """Return the group that a retry or dead letter topic belongs to."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None


class Table(NamedTuple):
    """The entries of one configuration file and its backup.

    ``loaded``: the entries that a broker loads; None if the broker does not start with this file.
    ``other``: readable entries of the copy that the broker does not load.
    ``loaded_counter``, ``other_counter``: the counters in the data versions of the two copies; None
    if unknown.
    """

    file: ConfigFile
    loaded: Entries | None
    other: Entries
    loaded_counter: int | None
    other_counter: int | None

    @property
    def path(self) -> str:
        return self.file.main.path

    @property
    def is_missing(self) -> bool:
        """Return whether the main file and its backup are both missing."""
        return self.file.main.state == MISSING and self.file.backup.state == MISSING

    @property
    def loads_main(self) -> bool:
        return _loads(self.file.main)

    @property
    def loads_nothing(self) -> bool:
        """Return whether a broker finds nothing to load and starts with an empty table."""
        return not self.loads_main and self.file.backup.state in (MISSING, EMPTY)

    @property
    def is_older(self) -> bool:
        """Return whether the data versions show that ``loaded`` is older than ``other``."""
        return (self.loaded_counter is not None and self.other_counter is not None
                and self.loaded_counter < self.other_counter)


def table(store: Store, name: str) -> Table:
    """Return the table of one file; if a database replaces the file, the table has only the loaded
    entries.
    """
    file = load_shared(store, name)
    main, backup = file.main, file.backup
    if _loads(main):
        used: ConfigCopy | None = main
        unused: ConfigCopy | None = backup
    elif _loads(backup):
        used, unused = backup, main
    else:
        used, unused = None, main
    refuses = used is None and backup.state not in (MISSING, EMPTY)
    rest = None if unused is None else _readable(store, name, unused)
    loaded = None if refuses else {} if used is None else entries(name, used.value)
    return Table(file, loaded, {} if rest is None else entries(name, rest),
                 None if used is None else _counter(used.value), _counter(rest))


def entries(name: str, value: Any) -> Entries:
    """Return the entries of the table in a configuration file. ``value``: the parsed file."""
    json_table = value.get(TABLES[name]) if isinstance(value, dict) else None
    loaded = dict(json_table) if isinstance(json_table, dict) else {}
    flat = value.get("lmqOffsetTable") if isinstance(value, dict) else None
    if name == LMQ_OFFSETS and isinstance(flat, dict):
        loaded |= {key: {"0": offset} for key, offset in flat.items()}
    return loaded


def positions(loaded: Entries) -> dict[tuple[str, str, int], int]:
    """Return committed offsets by group, topic and queue id. The keys of ``loaded`` have the form
    ``TOPIC@GROUP``.
    """
    offsets: dict[tuple[str, str, int], int] = {}
    for key, queues in loaded.items():
        topic, separator, group = key.partition("@")
        if not separator or "@" in group or not isinstance(queues, dict):
            continue
        for queue, offset in queues.items():
            queue_id, position = number(queue, "", []), number(offset, "", [])
            if queue_id is not None and position is not None and position >= 0:
                offsets[group, topic, queue_id] = position
    return offsets


def user_groups(names: Iterable[str]) -> set[str]:
    """Return the groups, except those that brokers create themselves."""
    return {name for name in names if is_user_group(name)}


def user_topics(names: Iterable[str]) -> set[str]:
    """Return the topics that brokers do not create by themselves."""
    return {name for name in names if is_user_topic(name)}


def _loads(copy: ConfigCopy) -> bool:
    return copy.usable and not (copy.damaged and not copy.database)


def _readable(store: Store, name: str, copy: ConfigCopy) -> Any:
    """Return the parsed value of a copy. If the copy is damaged, return its readable part; None if
    no part is readable.
    """
    if copy.database or copy.state not in (UNREADABLE, ODDITY):
        return copy.value
    if copy.value is not None:
        return copy.value
    if copy.offset is None or copy.size > MAX_SIZE:
        return None
    try:
        data = store.read_small(FOLDER, copy.path.removeprefix(f"{FOLDER}/"), most=MAX_SIZE)
    except StoreIOError:
        return None
    readable = readable_part(name, data)
    return None if readable is None else readable.value


def _counter(value: Any) -> int | None:
    version = value.get("dataVersion") if isinstance(value, dict) else None
    counter = version.get("counter") if isinstance(version, dict) else None
    return counter if type(counter) is int else None
