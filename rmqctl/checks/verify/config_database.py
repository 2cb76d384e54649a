"""Checks of the configuration in RocksDB: the databases, their entries, and how a startup would
change them (rocksdb.md §4, §7, §10).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rmqctl.checks.findings import INFO, WARNING, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.context import deleted
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.phrases import some_of
from rmqctl.store.config.config import MISSING, ConfigFile, load_shared, out_of_date
from rmqctl.store.store import Store

_MAX_NAMED = 3
_OFFSETS = "consumerOffset.json"
_LEFT = {"topics.json": "topics", "subscriptionGroup.json": "groups",
         _OFFSETS: "consumer offsets"}


def check(store: Store) -> Iterator[Finding]:
    """Yield the findings for databases that replace JSON files, and for JSON files that exist in
    addition to their database.
    """
    details: set[str] = set()
    for name in store.config.parts:
        file = load_shared(store, name)
        for finding in _judge(store, file):
            if finding.detail not in details:  # of a database with several kinds
                details.add(finding.detail)
                yield finding
        yield from _beside(store, file)
    yield from _without_topic(store)


def _judge(store: Store, file: ConfigFile) -> Iterator[Finding]:
    main, folder = file.main, store.path(file.main.path)
    if main.state == MISSING:
        yield Finding("config-database", "config", "missing, unlike the other databases: a broker "
                      f"starts without {_LEFT[file.name]}", file=folder)
    elif main.value is None:
        yield Finding("config-database", "config", f"{main.reason}; a broker does not start",
                      file=folder)
    elif main.reason:
        yield Finding("config-database", "config", main.reason, file=folder)
    if file.faults:
        count = plural(len(file.faults), "entry is", "entries are")
        yield Finding("config-entry", "config", f"{count} not a valid configuration of {file.kind} "
                      f"and skipped: {file.faults[0]}", file=folder, count=len(file.faults))


def _beside(store: Store, file: ConfigFile) -> Iterator[Finding]:
    """Yield findings for an older JSON file that exists in addition to its database.

    The findings say whether a startup imports the entries of the file.
    """
    old = out_of_date(store, file.name)
    if old.value is None:
        return
    path = store.path("config", file.name)
    yield Finding("not-judged", "config", f"{old.path}: a broker reads {file.main.path} instead",
                  file=path)
    if file.main.value is None or store.layout.config == "rocksdb-v2":
        return
    counter, old_counter = (_counter(value) for value in (file.main.value, old.value))
    if old_counter > counter:
        yield Finding("config-import", "config", f"counter {old_counter} is above the "
                      f"database's {counter}: brokers from 5.3.1 on import this file", file=path)
    elif file.name == _OFFSETS:
        have, had = (_groups(value) for value in (file.main.value, old.value))
        lost = sorted(had - have)
        if lost:
            yield Finding(
                "config-import", "config", "brokers ignore the offsets of "
                f"{some_of(lost, _MAX_NAMED)}, which the database lacks", file=path,
                count=len(lost),
                severity=INFO if have else WARNING)


def _counter(value: dict[str, Any]) -> int:
    version = value.get("dataVersion")
    counter = version.get("counter") if isinstance(version, dict) else None
    return counter if isinstance(counter, int) else 0


def _groups(value: dict[str, Any]) -> set[str]:
    table = value.get("offsetTable")
    return {key.partition("@")[2] for key, positions in table.items() if positions} if isinstance(
        table, dict) else set()


def _without_topic(store: Store) -> Iterator[Finding]:
    """Yield a finding for queues of topics that are not configured. From 10 minutes after startup,
    a broker deletes these queues from its consume queue database.
    """
    file, configured, topics = topics_cleaned(store)
    if topics:
        yield Finding(
            "config-topic", "config", f"{plural(len(topics), 'unconfigured topic')} "
            f"({some_of(topics, _MAX_NAMED)}): a broker deletes the queues",
            file=store.path(file.main.path), count=len(topics),
            severity="" if configured or file.main.database else INFO)


def topics_cleaned(store: Store) -> tuple[ConfigFile, frozenset[str], list[str]]:
    """Return the topic configuration file, the configured topics, and the unconfigured topics.

    The unconfigured topics have queues in RocksDB; their list is empty if the configuration cannot
    be read.
    """
    file = load_shared(store, "topics.json")
    table = (file.value or {}).get("topicConfigTable")
    configured = frozenset(table) if isinstance(table, dict) else frozenset()
    if store.layout.consumequeue != "rocksdb" or (
            file.value is None and file.main.state != MISSING):
        return file, configured, []
    return file, configured, sorted({
        topic for topic, _ in store.queues.readable
        if deleted(topic, configured) and not topic.startswith(LMQ_PREFIX)})
