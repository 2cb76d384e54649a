"""What dispatch does with each local queue: where it begins, or why it is left alone (§7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rmqctl.errors import FormatError, StoreIOError, UsageError
from rmqctl.formats import layout
from rmqctl.formats.config import broker_identity
from rmqctl.formats.local import consume_queue, message
from rmqctl.formats.tiered import names
from rmqctl.store.log.bounds import View
from rmqctl.store.query.time_lookup import offset_by_time
from rmqctl.store.store import Store
from rmqctl.tiered.dispatch.append_file import Growing
from rmqctl.tiered.dispatch.group_commit import Rounds
from rmqctl.tiered.dispatch.local import LocalQueue, computed_tags
from rmqctl.tiered.dispatch.resume import TagsOf
from rmqctl.tiered.files.reader import Reader
from rmqctl.tiered.flat_file import FlatFile
from rmqctl.tiered.flat_queue import FlatQueue, QueueName
from rmqctl.tiered.tier import Tier

DEFAULT_CLUSTER = "DefaultCluster"
_IDENTITY = "brokerIdentity"
BROKERS_START = 120_000
"""So many ms before now a broker begins a queue it has not tiered yet."""
_PHYSICAL = layout.field(message.Message, "physical_offset")

UPLOADED, UP_TO_DATE, WAITING = "uploaded", "up to date", "waiting"
STOPPED, REFUSED, SKIPPED = "stopped", "refused", "skipped"


@dataclass(slots=True)
class Outcome:
    """What became of a queue. ``start`` and ``end`` are queue offsets, ``messages`` what was
    uploaded between them and ``bytes`` their size; ``completed`` units of an earlier run.
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
    """A queue that is uploaded: its local rows and the two flat files that grow."""

    local: LocalQueue
    flat: FlatQueue
    log: Growing
    rows: Growing
    rounds: Rounds
    topic_id: int
    outcome: Outcome
    first_base: int = 0
    """The tiered offset of the first message of this run."""
    next_base: int = 0
    """The tiered offset of the next message, appended or not yet."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a queue begins that was never tiered: at the first local message, or at a time."""

    time: int | None = None

    def offset(self, view: View, local: LocalQueue) -> int:
        """The queue offset, inside of the local queue."""
        if self.time is None:
            return local.first
        answer = offset_by_time(view, local.topic, local.queue_id, self.time)
        found = local.first if answer is None else answer.queue_offset
        return min(max(found, local.first), local.end)


def owner(tier: Tier, store: Store, cluster: str | None, broker: str | None) -> tuple[str, str]:
    """(cluster, broker): what was given, else the only ones in the tier or its metadata.

    UsageError where the broker is not to be told.
    """
    there = {(name.cluster, name.broker) for name in tier.found.queues}
    there |= set(tier.found.indexes)
    clusters = sorted({one for one, name in there if broker in (None, name)})
    if cluster is None:
        if len(clusters) > 1:
            raise UsageError(f"{tier.name} has several clusters ({', '.join(clusters)}): name one "
                             "with --cluster")
        cluster = clusters[0] if clusters else None
    brokers = {name for one, name in there if cluster in (None, one)}
    brokers |= {one.broker_name for table in tier.metadata.queues.values()
                for one in table.values()}
    identity = _identity(store)
    if broker is None and not brokers and identity is not None:
        brokers = {identity.broker_name}
        cluster = cluster or identity.cluster
    if broker is None:
        if len(brokers) != 1:
            found = f"several ({', '.join(sorted(brokers))})" if brokers else "none yet"
            raise UsageError(f"name the broker with --broker (its brokerName): {tier.name} has "
                             f"{found}")
        broker = next(iter(brokers))
    cluster = cluster or DEFAULT_CLUSTER
    for name in (cluster, broker):
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise UsageError(f"{name!r} cannot be the name of a cluster or broker")
    return cluster, broker


def _identity(store: Store) -> broker_identity.BrokerIdentity | None:
    """What the controller's file in the store says; None where there is none."""
    try:
        return broker_identity.parse(store.read_small(_IDENTITY, most=1 << 16))
    except (StoreIOError, FormatError):
        return None


def flat_queue(reader: Reader, name: QueueName) -> FlatQueue:
    """A queue of a tier, there or not."""
    folder = f"{names.cluster_folder(name.cluster)}/{name.path}"
    return FlatQueue(name, *(FlatFile.open(reader, f"{folder}/{kind}")
                             for kind in (names.COMMIT_LOG, names.CONSUME_QUEUE)))


def same_message(local: LocalQueue) -> TagsOf:
    """Gives the tags code of a tiered record that is the local one of that queue offset."""
    at = slice(_PHYSICAL.offset, _PHYSICAL.offset + _PHYSICAL.size)

    def tags(queue_offset: int, raw: bytes) -> int | None:
        known, unit = local.raw(queue_offset), local.row(queue_offset)
        if known is None or unit is None:
            return None
        if raw[:at.start] != known[:at.start] or raw[at.stop:] != known[at.stop:]:
            return None
        codes, lost = local.tags(np.array([tuple(unit)], consume_queue.dtype()))
        return computed_tags(raw) if lost else int(codes[0])

    return tags


@dataclass(slots=True)
class Places:
    """Which local queues there are to upload; ``batch``: those with a batch
    consumequeue, which are not.
    """

    queues: list[tuple[str, int]] = field(default_factory=list)
    batch: list[tuple[str, int]] = field(default_factory=list)


def places(store: Store, cluster: str, broker: str, topics: list[str]) -> Places:
    """The local queues whose topics a broker tiers. UsageError for a topic that is not there."""
    wanted = set(topics)
    found = Places()
    for keys, into in ((store.queues, found.queues), (store.batch_queues, found.batch)):
        for topic, number in keys:
            if wanted and topic not in wanted:
                continue
            if names.is_filtered(topic, cluster, broker):
                if topic in wanted:
                    raise UsageError(f"the topic {topic} is never tiered: it is the broker's own")
                continue
            into.append((topic, number))
    missing = wanted - {topic for topic, _ in (*found.queues, *found.batch)}
    if missing:
        raise UsageError(f"{store.root} has no topic {', '.join(sorted(missing))}")
    return found


def judged(local: LocalQueue, current: int) -> tuple[str, str] | None:
    """(status, reason) of a tiered queue that the local one cannot continue; None: it can."""
    if current < local.first:
        return REFUSED, (f"the tier ends at queue offset {current}, the local queue begins at "
                         f"{local.first}: what was between is gone. A broker would delete the "
                         "tiered queue here; --restart-queue moves its files aside and begins "
                         "anew")
    if current > local.end:
        return SKIPPED, (f"the tier ends at queue offset {current}, the local queue already at "
                         f"{local.end}")
    return None
