"""``config merge`` and ``topic restore``: single entries of the tables in ``config/``.

Everything else in a file is kept in its order; new entries are added at the end. These are not
merged:

* Progress (consumer offsets, ordered POP). This is not configuration.
* SQL92 filters. A broker drops all filters if one has a bloom filter of another size
  (`ConsumerFilterManager.decode`). Consumers register their filters again.
* Queue mappings of static topics. A mapping contains the name of its broker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rmqctl.checks.metadata.tables import GROUPS, TOPICS, is_user_group, is_user_topic
from rmqctl.checks.verify.common import plural
from rmqctl.engine.config.table import next_version
from rmqctl.engine.config.topics import is_system, name_problem
from rmqctl.errors import RefusedError
from rmqctl.formats.config import fastjson
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.config import inferred
from rmqctl.repair.config.convert import replaced
from rmqctl.repair.config.exported import Exported, fitting, read_export
from rmqctl.repair.plan import Action, Create, Plan, Replace, Step
from rmqctl.repair.scratch import Scratch
from rmqctl.store.config.config import (
    EMPTY,
    FOLDER,
    MISSING,
    ConfigFile,
    load_beside,
    load_one,
)
from rmqctl.store.store import Sizes, Store

MERGE, RESTORE = "config-merge", "topic-restore"
_TOPICS, _GROUPS, _FORBIDDEN = "topicConfigTable", "subscriptionGroupTable", "forbiddenTable"
_TABLES = {TOPICS: (_TOPICS,), GROUPS: (_GROUPS, _FORBIDDEN),
           "messageRequestMode.json": ("messageRequestModeMap",)}
"""For each configuration file, the tables whose entries are merged by name."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    _TOPICS: {"attributes": {}, "order": False, "topicFilterType": "SINGLE_TAG",
              "topicSysFlag": 0},
    _GROUPS: {"attributes": {}, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15,
              "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0}}
"""For each table, the values that a broker assumes for fields that an entry does not have."""
_NAMED = 5
Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EntryDifference:
    """An entry with different values in the store and in the source.

    ``fields``: for each field that differs (value in this store, value in the source).
    """

    file: str
    name: str
    fields: Mapping[str, tuple[Any, Any]]

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file, "name": self.name, "fields": {
            field: {"store": ours, "source": theirs}
            for field, (ours, theirs) in self.fields.items()}}

    def in_words(self) -> str:
        return ", ".join(f"{field} {_shown(ours)}, in the source {_shown(theirs)}"
                         for field, (ours, theirs) in self.fields.items())


@dataclass(frozen=True, slots=True)
class Merge:
    """A plan, and the entries whose values differ between store and source."""

    plan: Plan
    differ: tuple[EntryDifference, ...]


# -- the source -----------------------------------------------------------------------------------


def read_source(path: str) -> tuple[Exported, list[str]]:
    """Read the tables of a source; return (the tables, notes).

    ``path``: a store, a folder with configuration files, one of these files, or an export of
    mqadmin.
    Raises: RefusedError if no table exists or a table cannot be read; UsageError for an incomplete
    file; StoreIOError.
    """
    if not os.path.isdir(path):
        single = read_export(path)
        if single is None:
            raise RefusedError(f"{path}: no topics or groups found; expected a store, "
                               "topics.json, subscriptionGroup.json, or the output of mqadmin "
                               "exportMetadata")
        return single, []
    # A store, its config/, or a folder that only contains such files.
    folder = os.path.abspath(path)
    above, name = os.path.split(folder)
    if os.path.isdir(os.path.join(folder, FOLDER)) or name == FOLDER:
        store = Store(above if name == FOLDER else folder, [], Sizes())
        store.layout.require(path, "config")
        files = [load_one(store, file) for file in _TABLES]
    else:
        files = [load_beside(Store(above, [], Sizes()), name, file) for file in _TABLES]
    # The copy of each file that a broker loads.
    source, notes = Exported(path), []
    for file in files:
        copies = [copy for copy in (file.main, file.backup)
                  if copy.usable and (copy.database or not copy.damaged)]
        if copies:
            source.take(copies[0].value)
        elif not {file.main.state, file.backup.state} <= {MISSING, EMPTY}:
            raise RefusedError(f"{path}: {file.main.fault()}; its backup cannot be read either")
        if copies[:1] == [file.backup]:
            notes.append(f"{path}: {file.main.fault()}; reading {file.backup.path} instead, as a "
                         "broker does")
        notes += [f"{path}: {file.main.path} {fault}" for fault in file.faults]
    if not source.tables:
        raise RefusedError(f"{path}: no topics or groups found")
    return source, notes


# -- config merge ---------------------------------------------------------------------------------


def plan_merge(store: Store, source: str, clock: Callable[[], int], scratch: Scratch, *,
               replace: bool = False) -> Merge:
    """Return the plan that copies missing entries to the store; with ``replace`` also the entries
    that differ.

    ``clock``: returns the time in epoch ms.
    ``scratch``: databases are built here.
    Raises: RefusedError if a file cannot be read, or cannot be changed without loss; UsageError,
    MissingExtraError, StoreIOError.
    """
    # The source's tables, and doubts about them.
    store.layout.require(store.root, "config")
    theirs, notes = read_source(source)
    if theirs.refused:
        skipped = plural(theirs.refused, "invalid entry", "invalid entries")
        notes.append(f"{source}: {skipped} skipped (no broker writes such entries)")
    mine = {topic for topic, _ in store.queues.by_key if is_user_topic(topic)}
    if mine and theirs.tables.get(_TOPICS) and mine.isdisjoint(theirs.tables[_TOPICS]):
        notes.append(f"{source} has none of the topics that have messages in {store.root}: it may "
                     "belong to another broker")
    # Each table of each file: entries that are missing, and those that differ.
    actions: list[Action] = []
    differ: list[EntryDifference] = []
    files: dict[str, tuple[ConfigFile, dict[str, Table]]] = {}
    for name, tables in _TABLES.items():
        changed: dict[str, Table] = {}
        file = load_one(store, name)
        files[name] = file, changed
        for table in tables:
            if table not in theirs.tables:
                continue
            entries, table_notes = fitting(store, theirs, table)
            notes += table_notes
            # config/rdb (v2) has no known place for this table.
            if table == _FORBIDDEN and store.layout.config == "rocksdb-v2":
                if entries:
                    notes.append(f"{source}: forbiddenTable is left out: config/rdb has no known "
                                 "place for it")
                continue
            _refuse_damage(store, file)
            ours = _table(file, table)
            taken: Table = {}
            for key, entry in entries.items():
                if not _is_users(store, table, key):
                    continue
                if key not in ours:
                    taken[key] = entry
                    actions.append(Action("add", _target(file), None, key, f"copied from {source}",
                                          proof=entry))
                elif fields := _differing(table, ours[key], entry):
                    difference = EntryDifference(name, key, fields)
                    differ.append(difference)
                    if replace:
                        taken[key] = entry
                        actions.append(Action("replace entry", _target(file), key, key,
                                              difference.in_words(), proof=entry))
            if taken:
                changed[table] = {**ours, **taken}
            if table == _TOPICS:
                notes += _unreachable(store, taken)
    # The files, and notes for the user.
    steps = _changed(store, files.values(), clock, scratch)
    if differ and not replace:
        kept = plural(len(differ), "different entry keeps", "different entries keep")
        notes.append(f"{kept} the values of this store (--replace copies the source's values)")
        notes += [f"{FOLDER}/{difference.file}: {difference.name}: {difference.in_words()}"
                  for difference in differ[:_NAMED]]
    if steps:
        notes.append("entries that were deleted from this store are added again if the source has "
                     "them")
    return Merge(Plan(MERGE, store.root, tuple(actions), tuple(steps), notes=tuple(notes)),
                 tuple(differ))


def _is_users(store: Store, table: str, name: str) -> bool:
    """Return whether an entry is created by users; all other entries are created by brokers
    themselves.
    """
    if table == _TOPICS:
        cluster = store.sizes.conf.values.get("cluster") or inferred.CLUSTER
        return is_user_topic(name) and not is_system(name, store.generation, cluster)
    return table not in (_GROUPS, _FORBIDDEN) or is_user_group(name)


def _differing(table: str, ours: Any, theirs: Any) -> dict[str, tuple[Any, Any]]:
    if not isinstance(ours, dict):
        return {"entry": (ours, theirs)}
    defaults = _DEFAULTS.get(table, {})
    both = {field: (_value(ours, field, defaults), _value(theirs, field, defaults))
            for field in sorted({*ours, *theirs} - {"topicName", "groupName"})}
    return {field: values for field, values in both.items() if values[0] != values[1]}


def _value(entry: Table, field: str, defaults: Table) -> Any:
    value = entry.get(field)
    return defaults.get(field) if value is None else value


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def _unreachable(store: Store, taken: Table) -> list[str]:
    """Return a note on each topic that has more queues in the store than consumers read."""
    notes = []
    for topic in sorted(taken):
        seen = max((queue_id for name, queue_id in {**store.queues.by_key, **store.queues.batch}
                    if name == topic), default=-1) + 1
        if seen > taken[topic]["readQueueNums"]:
            notes.append(f"{topic}: readQueueNums is {taken[topic]['readQueueNums']}, but the "
                         f"store has {seen} queues. `rmqctl topic create {store.root} {topic} "
                         f"--read-queues {seen}` lets consumers read all of them")
    return notes


# -- topic restore --------------------------------------------------------------------------------


def plan_restore(store: Store, topic: str, clock: Callable[[], int], scratch: Scratch) -> Plan:
    """Return the plan that adds a missing topic. The entry of the topic is a copy from
    topics.json.bak, or is derived from messages and queues (`inferred.topic`).

    Raises: RefusedError if nothing is known about the topic, or the file cannot be changed without
    loss; MissingExtraError, StoreIOError.
    """
    store.layout.require(store.root, "config")
    problem = name_problem(topic)
    if problem is not None:
        raise RefusedError(problem)
    if not _is_users(store, _TOPICS, topic):
        raise RefusedError(f"{topic} is a system topic: a broker creates it automatically")
    file = load_one(store, TOPICS)
    _refuse_damage(store, file)
    ours = _table(file, _TOPICS)
    if topic in ours:
        note = f"{_target(file)} contains {topic}: nothing to restore"
        return Plan(RESTORE, store.root, notes=(note,))
    # A deleted entry is in the backup until the next change of the file.
    saved = Exported(file.backup.path)
    if file.backup.usable and not file.backup.damaged:
        saved.take(file.backup.value)
    entry = saved.tables.get(_TOPICS, {}).get(topic)
    reason = f"copied from {file.backup.path}"
    shown = inferred.topic(store, topic)
    messages = {} if shown is None else shown.proof["message_types"]
    notes = []
    if entry is not None:
        notes += _unreachable(store, {topic: entry})
    elif shown is not None:
        entry, notes = shown.entry, shown.notes
        reason = "derived from messages and queues: " + ", ".join([
            f"{entry['readQueueNums']} queues", *(
                f"{name}={value}" for name, value in entry.get("attributes", {}).items())])
    else:
        raise RefusedError(f"{store.root}: cannot restore topic {topic}: it has no messages, no "
                           f"queues and no entry in {file.backup.path}")
    if messages and not any(name == topic for name, _ in {
            **store.queues.by_key, **store.queues.batch}):
        notes.append(f"{topic} has messages, but no consume queues, so consumers do not get these "
                     f"messages. `rmqctl recover {store.root}` rebuilds the queues")
    action = Action("add", _target(file), None, topic, reason,
                    proof=None if shown is None else shown.proof)
    steps = _changed(store, [(file, {_TOPICS: {**ours, topic: entry}})], clock, scratch)
    return Plan(RESTORE, store.root, (action,), tuple(steps), notes=tuple(notes))


# -- a file ---------------------------------------------------------------------------------------


def _table(file: ConfigFile, table: str) -> Table:
    entries = (file.value or {}).get(table)
    return dict(entries) if isinstance(entries, dict) else {}


def _target(file: ConfigFile) -> str:
    return file.main.path if file.main.database else f"{FOLDER}/{file.name}"


def _refuse_damage(store: Store, file: ConfigFile) -> None:
    """Raise RefusedError if writing the configuration file would lose unreadable entries."""
    used = file.used
    if used is None and not {file.main.state, file.backup.state} <= {MISSING, EMPTY}:
        raise RefusedError(f"{store.root}: {file.main.fault()}; its backup cannot be read either: "
                           "repair it first (`rmqctl recover`)")
    if used is not None and (used.damaged or file.faults):
        raise RefusedError(f"{store.root}: {used.path}: {used.reason or file.faults[0]}: repair it "
                           "first (`rmqctl recover`)")


def _changed(store: Store, files: Iterable[tuple[ConfigFile, Mapping[str, Table]]],
             clock: Callable[[], int], scratch: Scratch) -> list[Step]:
    """Return the steps that write the changed tables to their files, with the next data version."""
    steps: list[Step] = []
    databases: dict[str, dict[str, Any]] = {}
    for file, tables in files:
        if not tables:
            continue
        value = {**(file.value or {}), **tables}
        if file.name in (TOPICS, GROUPS):
            value["dataVersion"] = next_version(value.get("dataVersion"), store.generation,
                                                clock())
        if file.main.database:
            databases[file.name] = value
            continue
        data = fastjson.build(value if file.value else dict(sorted(value.items())))
        steps.append((Create if file.main.state == MISSING else Replace)(_target(file), data))
    return steps + (replaced(store, databases, scratch) if databases else [])
