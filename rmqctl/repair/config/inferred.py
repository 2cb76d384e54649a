"""Topics and groups inferred from the store: from the names of queues and from consumer offsets."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rmqctl.broker.release import judged
from rmqctl.broker.versions import is_from
from rmqctl.engine.config.topics import (
    BATCH_QUEUE,
    CLIENT_QUEUES,
    MESSAGE_TYPE,
    QUEUE_TYPE,
    READ_WRITE,
    is_system,
)
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.properties import (
    DLQ_PREFIX,
    HALF_TOPIC,
    LMQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from rmqctl.scan import text
from rmqctl.store.config.progress import ConsumerProgress
from rmqctl.store.queue.compaction import COMPACTION, POLICY, compacted_queues
from rmqctl.store.store import Store

Table = dict[str, dict[str, Any]]
CLUSTER = "DefaultCluster"
_MESSAGE_TYPES = {
    "TRANSACTION": (props.PREPARED,),
    "DELAY": (props.DELAY, "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"),
    "FIFO": ("__SHARDINGKEY",)}
"""For each message type, the properties that identify it. The first type that matches counts
(`TopicMessageType`); without a match, the type is NORMAL.
"""
_MIXED_SINCE = "5.1.4"
_WAIT = (SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC)
"""System topics whose messages wait for delivery to their REAL_TOPIC."""
_MAX_QUEUES = 1 << 10
"""Queue ids from this number on are implausible: such an id counts only if the queue exists."""
_ID_DIGITS, _SINCE = 11, 5


def topics(store: Store, generation: int, table: Iterable[str]) -> tuple[Table, dict[str, int]]:
    """Return (the entries of the store's topics by name, the number of queues found for each
    topic).

    Topics and queues are found in consume queues, in ``table`` (queues in the log, for example
    ``TopicTest-3``) and in consumer offsets. System topics, which a broker creates itself, are
    skipped.

    Other values of an entry are those of a topic that a broker creates when a message is sent: 4
    queues (retry and dead letter topics: 1 queue), perm 6.
    """
    seen: dict[str, int] = {}
    batch = {topic for topic, _ in store.queues.batch}

    def see(topic: str, queue_id: int) -> None:
        if not topic.startswith(LMQ_PREFIX) and not is_system(topic, generation, CLUSTER):
            seen[topic] = max(seen.get(topic, 0), queue_id + 1)

    # The queues that consume queues, log and committed offsets show.
    for topic, queue_id in {**store.queues.by_key, **store.queues.batch}:
        see(topic, queue_id)
    for name in table:
        topic, _, number = name.rpartition("-")
        see(topic, int(number))
    for commit in ConsumerProgress.of(store).commits:
        if commit.topic in seen and 0 <= commit.queue_id < _MAX_QUEUES:
            see(commit.topic, commit.queue_id)
    # The entries that a broker creates for such topics.
    entries: Table = {}
    for topic, count in sorted(seen.items()):
        least = 1 if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else CLIENT_QUEUES
        queues = max(count, least)
        entry: dict[str, Any] = {} if generation < 5 else {
            "attributes": {QUEUE_TYPE: BATCH_QUEUE} if topic in batch else
            {POLICY: COMPACTION} if compacted_queues(store, topic) else {}}
        entries[topic] = entry | {
            "order": False, "perm": READ_WRITE, "readQueueNums": queues,
            "topicFilterType": "SINGLE_TAG", "topicName": topic, "topicSysFlag": 0,
            "writeQueueNums": queues}
    return entries, seen


class InferredTopic(NamedTuple):
    """An inferred entry, notes on its values that are unknown, and evidence for its other
    values.
    """

    entry: dict[str, Any]
    notes: list[str]
    proof: dict[str, Any]


def topic(store: Store, name: str) -> InferredTopic | None:
    """Return the entry of one topic, inferred as in `topics`; None if neither the log nor the
    queues contain the topic.

    The result includes the number of queues found and the type of the messages. Reads the log once.
    Raises: StoreIOError.
    """
    # Evidence in its messages, delivered or waiting.
    queues: set[int] = set()
    types: Counter[str] = Counter()
    raw = os.fsencode(name)
    for batch in store.log.walk():
        topics_of = text.topics(batch)
        own = np.flatnonzero(topics_of.equal(raw))
        queues.update(batch.column("queue_id")[own].tolist())
        waits = np.logical_or.reduce([topics_of.equal(system.encode()) for system in _WAIT])
        if waits.any():
            properties = text.PropertySegments(batch)
            rows, real = properties.find(props.REAL_TOPIC)
            waiting = rows[real.equal(raw) & waits[rows]]
            rows, ids = properties.find(props.REAL_QUEUE_ID)
            queues.update(int(digits) for digits in ids.take(np.isin(rows, waiting)).tolist()
                          if digits.isdigit() and len(digits) < _ID_DIGITS)
            own = np.concatenate([own, waiting])
        if len(own):
            properties = text.PropertySegments(text.properties(batch).take(own))
            left = np.ones(len(own), bool)
            for kind, names in _MESSAGE_TYPES.items():
                shows = np.concatenate([properties.places(key)[0] for key in names])
                is_kind = left & np.isin(np.arange(len(own)), shows)
                types[kind] += int(is_kind.sum())
                left &= ~is_kind
            types["NORMAL"] += int(left.sum())
    # The entry, as for a missing file.
    generation = store.generation
    odd = {queue_id for queue_id in queues if not 0 <= queue_id < _MAX_QUEUES}
    table, seen = topics(store, generation, [f"{name}-{queue_id}" for queue_id in queues - odd])
    entry = table.get(name)
    if entry is None:
        return None
    shown = sorted(kind for kind, count in types.items() if count)
    kind = shown[0] if len(shown) == 1 else "MIXED" if shown else ""
    entry |= {"readQueueNums": seen[name], "writeQueueNums": seen[name]}
    notes = [(f"{name}: messages, queues or offsets show {seen[name]} queues; further queues are "
              "unknown. The perm, order, filter type and other attributes are also unknown: a "
              "broker's defaults are used (perm 6)")]
    if odd:
        notes.append(f"{name}: the queue ids {text_of(dict.fromkeys(map(str, odd)))} in messages "
                     "are not counted as queues")
    if generation >= _SINCE and not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if kind == "MIXED" and not is_from(judged(store, None).release, _MIXED_SINCE):
            notes.append(f"{name}: has messages of several types ({', '.join(shown)}); a broker "
                         f"before {_MIXED_SINCE} has no {MESSAGE_TYPE} for such a topic")
        elif kind not in ("", "NORMAL"):
            entry["attributes"][MESSAGE_TYPE] = kind
    return InferredTopic(entry, notes, {"queues_seen": seen[name], "message_types": {
        kind: types[kind] for kind in shown}})


def groups(store: Store, generation: int, table: Iterable[str],
           more: Iterable[str] = ()) -> tuple[Table, dict[str, str]]:
    """Return (the entries of the store's groups by name, the evidence for each group). The entries
    have a broker's defaults.

    ``more``: further groups that have consumer offsets.
    """
    evidence: dict[str, str] = {}
    for group in [*(commit.group for commit in ConsumerProgress.of(store).commits), *more]:
        if not group.startswith(LMQ_PREFIX):
            evidence.setdefault(group, "its offsets")
    names = {topic for topic, _ in store.queues.by_key} | {
        name.rpartition("-")[0] for name in table}
    for prefix, words in ((RETRY_PREFIX, "its retry topic"), (DLQ_PREFIX,
                                                              "its dead letter topic")):
        for topic in sorted(names):
            if topic.startswith(prefix) and len(topic) > len(prefix):
                evidence.setdefault(topic.removeprefix(prefix), words)
    entries: Table = {}
    for group in sorted(evidence):
        entry: dict[str, Any] = {
            "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
            "consumeFromMinEnable": True, "groupName": group,
            "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1}
        if generation >= 5:
            entry |= {"attributes": {}, "consumeMessageOrderly": False,
                      "consumeTimeoutMinute": 15, "groupSysFlag": 0}
        entries[group] = dict(sorted(entry.items()))
    return entries, evidence


def text_of(counts: Mapping[str, object], most: int = 5) -> str:
    """Return as text the first ``most`` names, and the number of other names."""
    names = list(counts)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
