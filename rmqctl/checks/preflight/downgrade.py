"""Losses when an older broker starts on a newer broker's store: data that the older broker ignores.

spec: timer-and-others-5x.md §2-§6, rocksdb.md §7, tiered.md §1, versions.md.

`rmqctl.checks.preflight.timers` covers pending timed messages, and `rmqctl.broker.recovery` the
record formats in the log.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rmqctl import vfs
from rmqctl.broker.conf.effective import DERIVES_SINCE
from rmqctl.broker.versions import is_from, version_of
from rmqctl.checks.losses import GROUPS, MESSAGES, OFFSETS, TIMERS, TOPICS, Loss
from rmqctl.checks.preflight.types import Prediction
from rmqctl.errors import FormatError, RmqctlError, StoreIOError
from rmqctl.formats.local.properties import (
    HALF_TOPIC,
    REAL_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    parse,
)
from rmqctl.formats.rocksdb.small_stores import POP_STATE
from rmqctl.formats.tiered import metadata
from rmqctl.formats.tiered.names import CONSUME_QUEUE
from rmqctl.formats.tiered.units import UNIT_SIZE
from rmqctl.parse_values import now_ms
from rmqctl.phrases import Joined, Phrase
from rmqctl.scan.source import FileSource
from rmqctl.store.broker_conf import TIER_METADATA
from rmqctl.store.config.config import load_shared, out_of_date
from rmqctl.store.config.progress import ConsumerProgress
from rmqctl.store.features import (
    COMPACTION,
    FEATURES,
    LONG_TOPICS,
    LONG_TRANSACTIONS,
    MAX_V1_TOPIC,
    POP,
    POP_RECORDS,
    STATIC_TOPICS,
    TIER,
)
from rmqctl.store.files import listing
from rmqctl.store.layout import CONFIG_DATABASES
from rmqctl.store.queue.compaction import (
    CompactionQueue,
    compacted_queues,
    first_in_log,
    is_served,
)
from rmqctl.store.rocksdb.database import Database
from rmqctl.store.store import Store

_TABLES = {"topics.json": (TOPICS, "topicConfigTable"),
           "subscriptionGroup.json": (GROUPS, "subscriptionGroupTable"),
           "consumerOffset.json": (OFFSETS, "offsetTable")}
_MAPPINGS = "topicQueueMapping.json"
_COMPACTION_LOG = "compaction/compactionLog"


def judge_downgrade(predicted: Prediction, store: Store) -> None:
    """Add to a prediction's losses the data that the predicted broker's release does not read."""
    version = version_of(predicted.broker_version)
    without_timer = not version.timer and any(
        loss.what == TIMERS for loss in predicted.other_losses)
    unread = "v2 record" in predicted.log.stop_reason or bool(
        predicted.queues.unreachable and store.queues.batch and not version.batch_queues)
    for feature, loss in downgrade_losses(store, predicted.broker_version):
        unread = True
        by_hand = None if feature in CONFIG_DATABASES else Phrase(
            "keep using brokers of release {release} or later, which read these messages, or "
            "export the messages first",
            release=FEATURES[feature].since) if loss.exportable is not None else Phrase(
            "start a broker of release {release} or later, which reads them",
            release=FEATURES[feature].since)
        predicted.other_losses.append(replace(loss, by_hand=by_hand))
        predicted.incurable += 1
    if unread:
        predicted.notes.append(Phrase(
            "`rmqctl convert STORE --for {release}` shows what such a broker can keep",
            release=predicted.broker_version))
    notes = log_path(predicted.broker_version) if unread or without_timer else []
    if notes:
        predicted.metadata.facts["broker.conf"] = Joined("; ", notes)
    unserved = _unserved(store)
    if unserved:
        predicted.metadata.facts["not delivered"] = Joined("; ", unserved)


def log_path(release: str) -> list[Phrase]:
    """Return a note if a broker of the release needs the path of the log in its configuration."""
    return [] if is_from(release, DERIVES_SINCE) else [Phrase(
        "a {release} broker does not look for the log below storePathRootDir: set "
        "storePathCommitLog in its configuration (`rmqctl config check` checks it)",
        release=release)]


def downgrade_losses(store: Store, release: str) -> Iterator[tuple[str, Loss]]:
    """Yield (feature, loss) for each feature whose data a broker of the release does not read. Data
    that also exists elsewhere is not lost.
    """
    for feature, judge in ((store.layout.config, _config), (STATIC_TOPICS, _static),
                           (LONG_TOPICS, _delayed), (LONG_TRANSACTIONS, _open_transactions),
                           (COMPACTION, _compaction),
                           (TIER, _tier), (POP, _pop), (POP_RECORDS, _pop_states)):
        if feature in FEATURES and not is_from(release, FEATURES[feature].since):
            for loss in judge(store, release):
                yield feature, loss


# -- configuration in RocksDB -----------------------------------------------------------------


def _config(store: Store, release: str) -> Iterator[Loss]:
    """Yield losses of configuration entries that only RocksDB contains: this release reads the JSON
    files instead.
    """
    if not store.layout.reads("config"):
        yield Loss(TOPICS, None, _config_cause(release), "config")
        return
    for name, (kind, table) in _TABLES.items():
        part = store.config.parts.get(name)
        if part is None:
            continue
        kept, left = _entries(load_shared(store, name).value, table), _entries(
            out_of_date(store, name).value, table)
        count = sum(left.get(key) != value for key, value in kept.items()) if kind == OFFSETS else (
            len(kept.keys() - left.keys()))
        if count:
            yield Loss(kind, count, _config_cause(release), part.folder)


def _config_cause(release: str) -> Phrase:
    return Phrase("a {version} broker does not read the configuration in RocksDB",
                  version=release)


def _entries(value: Any, table: str) -> dict[Any, Any]:
    """Return the entries of a configuration table by name, and offsets by name and queue id."""
    entries = value.get(table) if isinstance(value, dict) else None
    if not isinstance(entries, dict):
        return {}
    if table != _TABLES["consumerOffset.json"][1]:
        return entries
    return {(name, str(queue)): offset for name, queues in entries.items()
            if isinstance(queues, dict) for queue, offset in queues.items()}


def _static(store: Store, release: str) -> Iterator[Loss]:
    """Yield the loss of static topics: their queue ids and offsets are defined in a mapping file,
    which the release does not read.
    """
    if not store.layout.reads("config"):
        return
    topics = {row["topic"] for row in load_shared(store, _MAPPINGS).rows()}
    if topics:
        yield Loss(TOPICS, len(topics), Phrase(
            "a {version} broker does not read {file}: clients get other queue ids and offsets",
            version=release, file=_MAPPINGS), f"config/{_MAPPINGS}")


# -- messages that are not in the commitlog ---------------------------------------------------


def _compaction(store: Store, release: str) -> Iterator[Loss]:
    """Yield losses of messages of compaction topics that have expired in the commitlog."""
    for topic, count, until in _alone(store, is_read=True):
        if count != 0:
            yield Loss(MESSAGES, count, Phrase(
                "a {version} broker does not read the compaction log of {topic}",
                version=release, topic=topic), f"{_COMPACTION_LOG}/{topic}",
                exportable=f"--topic {shlex.quote(topic)} --until {until}")


def _unserved(store: Store) -> list[Phrase]:
    """Return a text for each topic with messages that only a compaction log has, which no broker
    reads.
    """
    return [Phrase(
        "{count:,} message is only in the compaction log of {topic}, which brokers do not read: "
        "its cleanup.policy is not COMPACTION", "{count:,} messages are only in the compaction log "
        "of {topic}, which brokers do not read: its cleanup.policy is not COMPACTION",
        count=count, topic=topic) for topic, count, _ in _alone(store, is_read=False) if count]


def _alone(store: Store, *, is_read: bool) -> Iterator[tuple[str, int | None, int]]:
    """Yield topics with a compaction log that brokers read, or do not read; the number of messages
    that only this log has (None if unknown), and the latest store time of these (ms).
    """
    for topic in listing(store.path(*_COMPACTION_LOG.split("/"))).folders:
        count: int | None = 0
        until = 0
        for queue_id in compacted_queues(store, topic):
            if is_served(store, topic, queue_id) != is_read:
                continue
            try:
                compacted = CompactionQueue.open(store, topic, queue_id)
                if compacted is None:
                    continue
                with compacted:
                    alone = compacted.alone(first_in_log(store, topic, queue_id))
                    until = max([until, *(record.store_timestamp for record in map(
                        compacted.record, alone) if record is not None)])
                count = None if count is None else count + len(alone)
            except (StoreIOError, FormatError):
                count = None
        yield topic, count, until


def _tier(store: Store, release: str) -> Iterator[Loss]:
    """Yield the loss of messages that only tiered storage contains."""
    path = store.path(TIER_METADATA)
    if not vfs.isfile(path):
        return
    count: int | None = 0
    try:
        with FileSource(path) as source:
            tier = metadata.read(source.read(0, source.size))
        for topic, queues in tier.queues.items():
            for queue_id in queues:
                first = _first_in_tier(tier, topic, queue_id)
                local = min(first_in_log(store, topic, queue_id), _end_in_tier(
                    tier, topic, queue_id))
                count = None if count is None or first is None else count + max(local - first, 0)
    except (StoreIOError, FormatError):
        count = None
    if count != 0:
        yield Loss(MESSAGES, count, Phrase(
            "a {version} broker does not read tiered storage", version=release), TIER_METADATA)


def _segments(tier: metadata.Metadata, topic: str, queue_id: int) -> list[metadata.SegmentEntry]:
    """Return the consume queue segments of a queue in the tier, sorted by base offset."""
    ending = f"/{topic}/{queue_id}"
    return sorted((entry for path, entries in tier.segments[CONSUME_QUEUE].items()
                   if path.endswith(ending) for entry in entries.values()),
                  key=lambda entry: entry.base_offset)


def _first_in_tier(tier: metadata.Metadata, topic: str, queue_id: int) -> int | None:
    segments = _segments(tier, topic, queue_id)
    return segments[0].base_offset // UNIT_SIZE if segments else None


def _end_in_tier(tier: metadata.Metadata, topic: str, queue_id: int) -> int:
    segments = _segments(tier, topic, queue_id)
    return (segments[-1].base_offset + segments[-1].size) // UNIT_SIZE if segments else 0


# -- delayed messages --------------------------------------------------------------------------


def _delayed(store: Store, release: str) -> Iterator[Loss]:
    """Yield a loss for delayed messages that would never be delivered.

    A broker that refuses a long topic name retries the message forever. All later messages of the
    same delay level wait.
    """
    names = {row["group"] for row in load_shared(store, "subscriptionGroup.json").rows()} | {
        topic for topic, _ in store.queues.readable}
    longest = MAX_V1_TOPIC - len(RETRY_PREFIX)
    if not any(len(os.fsencode(name)) > longest for name in names):
        return
    progress, count = ConsumerProgress.of(store).delayed, 0
    for (topic, queue_id), queue in store.queues.readable.items():
        if topic != SCHEDULE_TOPIC:
            continue
        for row in range(max(progress.get(queue_id, 0), queue.first_index), queue.disk_end):
            unit = queue.unit(row)
            record = None if unit is None else store.log.record_at(unit.physical_offset, unit.size)
            properties = {} if record is None else parse(
                record.properties.decode("utf-8", "replace"))
            if len(properties.get(REAL_TOPIC, "").encode()) > MAX_V1_TOPIC:
                count += queue.disk_end - row
                break
    if count:
        yield Loss(MESSAGES, count, Phrase(
            "a {version} broker never delivers a delayed message for a topic whose name is longer "
            "than 127 bytes, nor later messages of the same delay level", version=release),
            f"consumequeue/{SCHEDULE_TOPIC}")


def _open_transactions(store: Store, release: str) -> Iterator[Loss]:
    """Yield the loss of half messages that the broker cannot commit because their topic's name is
    too long.
    """
    from rmqctl.checks.transactions import OPEN, transactions

    topics = {row["topic"] for row in load_shared(store, "topics.json").rows()}
    if not any(topic == HALF_TOPIC for topic, _ in store.queues.readable) or not any(
            len(os.fsencode(topic)) > MAX_V1_TOPIC for topic in topics):
        return
    count = 0
    with suppress(RmqctlError):  # unreadable parts are reported elsewhere
        count = sum(half.state in OPEN and len(os.fsencode(half.properties.get(
            REAL_TOPIC, ""))) > MAX_V1_TOPIC for half in transactions(
                store, now_ms(), lambda _problem: None))
    if count:
        yield Loss(MESSAGES, count, Phrase(
            "a {version} broker cannot commit transactions of topics whose names are longer than "
            "127 bytes",
            version=release), f"consumequeue/{HALF_TOPIC}")


# -- POP ---------------------------------------------------------------------------------------


def _pop(store: Store, release: str) -> Iterator[Loss]:
    """Yield losses of messages that were delivered by POP, are not acknowledged, and would be
    delivered again by a newer broker.
    """
    from rmqctl.checks.popped import DUE, INVISIBLE, RECORDS, popped

    unacknowledged = 0
    with suppress(RmqctlError):  # unreadable parts are reported elsewhere
        unacknowledged = sum(message.state in (INVISIBLE, DUE)
                             and message.delivery.kept_in != RECORDS
                             for message in popped(store, now_ms()).messages)
    if unacknowledged:
        yield Loss(MESSAGES, unacknowledged, _pop_cause(release), "consumequeue")
    unread = _unread_retries(store)
    if unread:
        yield Loss(MESSAGES, unread, Phrase(
            "consumers of a {version} broker do not read the retry topics of POP",
            version=release), "consumequeue")


def _unread_retries(store: Store) -> int:
    """Return the number of unread messages in the POP retry topics of all groups."""
    if not store.layout.reads("consumequeue"):
        return 0
    progress = ConsumerProgress.of(store).by_group()
    groups = progress.keys() | {row["group"] for row in load_shared(
        store, "subscriptionGroup.json").rows()}
    topics = {topic for topic, _ in store.queues.readable}
    count = 0
    for (topic, queue_id), queue in store.queues.readable.items():
        name = topic.removeprefix(RETRY_PREFIX)
        if name == topic or name in groups:
            continue
        group = next((name[:at] for at, sign in enumerate(name) if sign in "_+"
                      and name[:at] in groups and name[at + 1:] in topics), None)
        if group is not None:
            read = progress.get(group, {}).get(topic, {}).get(queue_id, queue.first_index)
            count += max(queue.disk_end - max(read, queue.first_index), 0)
    return count


def _pop_cause(release: str) -> Phrase:
    return Phrase("a {version} broker never delivers unacknowledged messages of POP again",
                  version=release)


def _pop_states(store: Store, release: str) -> Iterator[Loss]:
    """Yield the loss of unacknowledged messages if POP keeps its records in RocksDB."""
    folder = store.path("kvStore")
    if not vfs.isdir(folder):
        return
    count: int | None = None
    try:
        with Database.open(folder) as database:
            count = sum(1 for _ in database.items(POP_STATE))
    except RmqctlError:
        pass
    if count != 0:
        yield Loss(MESSAGES, count, _pop_cause(release), "kvStore")
