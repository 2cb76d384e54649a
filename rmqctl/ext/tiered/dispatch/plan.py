"""Plan a dispatch (tiered.md §7).

The plan states for each local queue the start of its upload, or the reason why the queue is
skipped. The plan also determines which messages are committed together.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from rmqctl.broker.offset_by_time import offset_by_time
from rmqctl.errors import UsageError
from rmqctl.ext.tiered.dispatch.append_file import AppendFile
from rmqctl.ext.tiered.dispatch.blocks import Block
from rmqctl.ext.tiered.dispatch.local import LocalQueue, computed_tags
from rmqctl.ext.tiered.dispatch.resume import TagsOf
from rmqctl.ext.tiered.files.reader import TierReader
from rmqctl.ext.tiered.files.settings import TierSettings
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, QueueName
from rmqctl.ext.tiered.tier import Tier, with_witness
from rmqctl.formats import layout
from rmqctl.formats.local import consume_queue, message
from rmqctl.formats.tiered import names
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array
from rmqctl.store.controller import read_identity
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store

DEFAULT_CLUSTER = "DefaultCluster"
BROKERS_START = 120_000
"""A broker begins the upload of a new queue with messages of this age (ms)."""
_PHYSICAL = layout.field(message.Message, "physical_offset")

UPLOADED, UP_TO_DATE, WAITING = "uploaded", "up to date", "waiting"
STOPPED, REFUSED, SKIPPED = "stopped", "refused", "skipped"


@dataclass(slots=True)
class Outcome:
    """Outcome of a queue.

    ``start`` and ``end``: queue offsets between which messages were uploaded.
    ``messages`` and ``bytes``: number and size of these messages.
    ``completed``: number of units added for messages of an interrupted run.
    """

    topic: str
    queue_id: int
    start: int = 0
    end: int = 0
    messages: int = 0
    bytes: int = 0
    completed: int = 0
    status: str = UP_TO_DATE
    reason: str | None = None

    @property
    def is_fault(self) -> bool:
        return self.status in (STOPPED, REFUSED)

    def as_dict(self) -> dict[str, Any]:
        return {"topic": self.topic, "queue_id": self.queue_id, "from": self.start,
                "to": self.end, "messages": self.messages, "bytes": self.bytes,
                "completed": self.completed, "status": self.status, "reason": self.reason}


@dataclass(slots=True)
class Upload:
    """A queue to upload: its local entries, its commit log and its consume queue in the tier."""

    local: LocalQueue
    flat: FlatQueue
    log: AppendFile
    rows: AppendFile
    groups: CommitGroups
    topic_id: int
    outcome: Outcome
    first_base: int = 0
    """The tiered offset of the first message of this run."""
    next_base: int = 0
    """The tiered offset that the next message gets. Earlier messages may still be waiting to be
    appended.
    """


Blocks = list[tuple[Upload, Block]]
"""The blocks of a window that are uploaded, each with the queue to which it belongs."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start of the upload of a queue that is not yet in the tier. Default: the queue's first local
    message. ``time``: epoch ms.
    """

    time: int | None = None

    def offset(self, view: View, local: LocalQueue) -> int:
        """Return the queue offset at which to start, clipped to the bounds of the local queue."""
        if self.time is None:
            return local.first
        answer = offset_by_time(view, local.topic, local.queue_id, self.time)
        start = local.first if answer is None else answer.queue_offset
        return min(max(start, local.first), local.end)


def broker_of(tier: Tier, store: Store, cluster: str | None, broker: str | None) -> tuple[str, str]:
    """Return the cluster and the broker as given, or as determined from the tier, its metadata or
    the local store.
    Raises: UsageError if the cluster or the broker cannot be determined.
    """
    owners = tier.contents.owners
    clusters = sorted({owner for owner, name in owners if broker in (None, name)})
    if cluster is None:
        if len(clusters) > 1:
            raise UsageError(f"{tier.name} has several clusters ({', '.join(clusters)}): choose "
                             "one with --cluster")
        cluster = clusters[0] if clusters else None
    brokers = {name for owner, name in owners if cluster in (None, owner)}
    brokers |= tier.metadata.brokers
    identity = read_identity(store)
    if broker is None and not brokers and identity is not None:
        brokers = {identity.broker_name}
        cluster = cluster or identity.cluster
    if broker is None:
        if len(brokers) != 1:
            owned = f"several ({', '.join(sorted(brokers))})" if brokers else "none yet"
            raise UsageError(f"pass the broker's brokerName with --broker: {tier.name} has {owned}")
        broker = next(iter(brokers))
    cluster = cluster or DEFAULT_CLUSTER
    for name in (cluster, broker):
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise UsageError(f"{name!r} cannot be the name of a cluster or broker")
    return cluster, broker


def flat_queue(reader: TierReader, name: QueueName) -> FlatQueue:
    """Return a queue of a tier, whether it exists or not."""
    folder = f"{names.cluster_folder(name.cluster)}/{name.path}"
    return with_witness(FlatQueue(name, *(FlatFile.open(reader, f"{folder}/{kind}")
                                          for kind in (names.COMMIT_LOG, names.CONSUME_QUEUE))))


def same_message(local: LocalQueue) -> TagsOf:
    """Return a function that compares a tiered record with the local record at the same queue
    offset. The function returns the tags code if both are the same message, else None.
    """
    place = slice(_PHYSICAL.offset, _PHYSICAL.offset + _PHYSICAL.size)

    def tags(queue_offset: int, raw: bytes) -> int | None:
        record, unit = local.raw(queue_offset), local.row(queue_offset)
        if record is None or unit is None:
            return None
        if raw[:place.start] != record[:place.start] or raw[place.stop:] != record[place.stop:]:
            return None
        codes, lost = local.tags(np.array([tuple(unit)], consume_queue.dtype()))
        return computed_tags(raw) if lost else int(codes[0])

    return tags


@dataclass(slots=True)
class LocalQueues:
    """The local queues to upload as (topic, queue id). ``batch``: queues with a batch consumequeue,
    which are not uploaded.
    """

    queues: list[tuple[str, int]] = field(default_factory=list)
    batch: list[tuple[str, int]] = field(default_factory=list)


def queues_to_upload(store: Store, cluster: str, broker: str, topics: list[str]) -> LocalQueues:
    """Return the local queues of all topics that a broker tiers, or of the given ``topics``.
    Raises: UsageError for a missing topic.
    """
    wanted = set(topics)
    chosen = LocalQueues()
    for keys, into in ((store.queues.by_key, chosen.queues), (store.queues.batch, chosen.batch)):
        for topic, number in keys:
            if wanted and topic not in wanted:
                continue
            if names.is_filtered(topic, cluster, broker):
                if topic in wanted:
                    raise UsageError(f"the topic {topic} is never tiered: it is a system topic of "
                                     "the broker")
                continue
            into.append((topic, number))
    missing = wanted - {topic for topic, _ in (*chosen.queues, *chosen.batch)}
    if missing:
        raise UsageError(f"{store.root} has no topic {', '.join(sorted(missing))}")
    return chosen


def why_not_continued(local: LocalQueue, current: int) -> tuple[str, str] | None:
    """Return (status, reason) if the local queue cannot continue the tiered queue, else None."""
    if current < local.first:
        return REFUSED, (f"the tier ends at queue offset {current}, the local queue begins at "
                         f"{local.first}: the messages between them are gone. A broker would "
                         "delete the tiered queue; --restart-queue moves its files aside and "
                         "starts it again")
    if current > local.end:
        return SKIPPED, (f"the tier ends at queue offset {current}, after the end of the local "
                         f"queue, {local.end}")
    return None


class CommitGroups:
    """Divides a queue's messages, received in pieces, into the groups that a broker commits.

    A group ends when it has the maximum number of messages, or before a message that does not fit
    into the maximum size. A message larger than the maximum size forms its own group; a broker
    would stop there forever (tiered.md §7, 12).
    """

    def __init__(self, settings: TierSettings) -> None:
        self._settings = settings
        self._count = 0
        self._bytes = 0

    def starts(self, sizes: Array) -> list[int]:
        """Return the indexes, in the next piece, of the messages that begin a group. ``sizes``:
        size of each message in bytes (int64).
        """
        most, limit = self._settings.group_commit_count, self._settings.group_commit_size
        until = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
        starts: list[int] = []
        row, count = 0, len(sizes)
        while row < count:
            if self._count:  # the messages that complete an unfinished group
                room = limit - self._bytes + int(until[row])
                fits = int(np.searchsorted(until, room, "left")) - 1
                stop = max(row, min(count, row + most - self._count, fits))
                self._count += stop - row
                self._bytes += int(until[stop] - until[row])
                row = stop
                if row == count:
                    break
            starts.append(row)
            self._count, self._bytes = 1, int(sizes[row])
            row += 1
        return starts


def is_due(settings: TierSettings, oldest: int, waiting: int, now: int) -> bool:
    """Return whether a broker would begin a group. ``oldest``: store time (ms) of the oldest
    pending message. ``waiting``: number of pending messages.
    """
    return (oldest + settings.group_commit_timeout < now
            or waiting > settings.group_commit_count)
