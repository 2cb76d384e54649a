"""The groups of a store, their progress, and the first message that each group has not consumed.

Consumer offsets are read from ``config/`` (spec: checkpoint-and-small-files.md). In a queue without
a consumer offset, a group starts according to the setting ``consumeFromWhere`` of its consumers.
This setting is not in the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rmqctl.formats.local.properties import DLQ_PREFIX, RETRY_PREFIX, REVIVE_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.config.config import load_one
from rmqctl.store.config.offsets import DELAY_GROUP
from rmqctl.store.config.progress import ConsumerProgress, named
from rmqctl.store.explain import near_names
from rmqctl.store.log.bounds import View
from rmqctl.store.problems import Report
from rmqctl.store.queue.rows import queue_ids, topic_rows, topics_on_disk
from rmqctl.store.store import Store

QueueKey = tuple[str, int]
_FILES = ("consumerOffset.json", "lmqConsumerOffset.json")


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """The consumer offsets of all groups of a store.

    ``positions``: the next queue offset to read, by group, topic and queue id.
    ``others``: groups without consumer offsets that are configured, or have retry or dead letter
        topics.
    ``delayed``: the delay service's offsets by queue id.
    ``notes``: reasons why offsets are uncertain.
    ``positions_known``: whether the offsets or a copy of them can be read, or were never written.
    """

    positions: Mapping[str, Mapping[str, Mapping[int, int]]]
    others: frozenset[str]
    delayed: Mapping[int, int]
    notes: tuple[str, ...] = ()
    positions_known: bool = True

    @classmethod
    def of(cls, store: Store) -> StoredOffsets:
        """Return the groups that ``config/`` and the queue folders name.

        Raises: UnsupportedError.
        """
        store.layout.require(store.root, "config")
        progress = ConsumerProgress.of(store)
        positions = progress.by_group()
        topics = topics_on_disk(store)
        names = {row["group"] for row in load_one(store, "subscriptionGroup.json").rows()}
        names |= {topic.removeprefix(prefix) for prefix in (RETRY_PREFIX, DLQ_PREFIX)
                  for topic in topics if topic.startswith(prefix)}
        notes, unread = [], []
        for file in (load_one(store, name) for name in _FILES):
            notes += file.problems()
            if file.damaged and file.used is None:
                unread.append(file.name)
        if store.snapshot is not None:
            notes.append("a broker is running: consumer offsets are written every 5 s, so these "
                         "may be up to 5 s old")
        elif store.has_abort:
            notes.append("the last shutdown was unclean: consumer offsets are written every 5 s, "
                         "so groups may have consumed more than these offsets show")
        if any(topic.startswith(REVIVE_PREFIX) for topic in topics):
            notes.append("the store was used with POP: consumer offsets show which messages "
                         "were delivered; some of these may not be acknowledged")
        return cls(positions, frozenset(names - positions.keys()), progress.delayed, tuple(notes),
                   not unread)

    def nothing(self, group: str) -> str | None:
        """Return the reason why a group's progress is unknown; None if the group has offsets."""
        if group in self.positions:
            return None
        if not self.positions_known:
            return (f"the progress of group {group} is unknown: no copy of config/{_FILES[0]} can "
                    "be read (`rmqctl config` shows why)")
        if group == DELAY_GROUP:
            return ("the delay service is not a consumer group; `rmqctl offsets STORE --group "
                    f"'{DELAY_GROUP}'` shows its progress")
        if group in self.others:
            return (f"group {group} has no consumer offsets in this store: it has not consumed "
                    "yet, or it broadcasts and its consumers keep their own offsets")
        return ("this store has no trace of group "
                f"{group}{near_names(group, {*self.positions, *self.others})}")


@dataclass(frozen=True, slots=True)
class UnreadCounts:
    """The queues in which a group has unconsumed messages.

    ``starts``: the first unconsumed queue offset of each of these queues.
    ``without``: the queues in which the group has no consumer offset.
    ``notes``: remarks for the user.
    """

    starts: Mapping[QueueKey, int]
    without: tuple[QueueKey, ...] = ()
    notes: tuple[str, ...] = ()


def unread(view: View, groups: StoredOffsets, group: str, report: Report, topic: str | None = None,
           queue_id: int | None = None) -> UnreadCounts:
    """Return the messages that a group has not consumed, in its retry topic and in all topics with
    offsets of the group. ``topic`` and ``queue_id`` restrict the result to this topic and queue id.
    """
    store = view.store
    retry = RETRY_PREFIX + group
    topics = groups.positions[group]
    starts: dict[QueueKey, int] = {}
    without: list[QueueKey] = []
    notes: list[str] = []
    # The retry topic counts even if the group has no offset in it.
    for name in sorted({*topics, *([retry] if queue_ids(store, "consumequeue", retry) else [])}):
        if topic is not None and name != topic:
            continue
        positions = topics.get(name, {})
        queues = topic_rows(store, name, queue_id, view, report)
        if not queues:
            notes.append(f"{name}: group {group} has consumer offsets in this topic, which has no "
                         "queues in this store")
        for rows in queues:
            key = name, rows.queue_id
            # Read from the consumer offset, and report offsets outside of the queue.
            position = positions.get(rows.queue_id)
            starts[key] = position or 0
            if position is None:
                if rows.end > rows.first:
                    without.append(key)
            elif position > rows.end:
                notes.append(f"{name}/{rows.queue_id}: the consumer offset {position} is beyond "
                             f"the end of the queue, {rows.end}")
            elif position < rows.first:
                gone = rows.first - position
                notes.append(f"{name}/{rows.queue_id}: {gone} unconsumed "
                             f"message{' is' if gone == 1 else 's are'} no longer in the log, "
                             f"from queue offset {position} on")
    # Explain a topic filter that matches no topic of the group.
    if topic is not None and topic not in topics and not starts:
        notes.append(f"group {group} has no consumer offset in topic "
                     f"{topic}{near_names(topic, topics)}: it does not subscribe to this topic, "
                     "has not consumed from it yet, or broadcasts")
    notes += _beginnings(group, retry, without)
    return UnreadCounts(starts, tuple(without), tuple(notes))


def _beginnings(group: str, retry: str, without: list[QueueKey]) -> Iterator[str]:
    """Yield notes on the queues in which the group has no offset. A group reads its retry topic
    from the start.
    """
    queues = [f"{topic}/{queue_id}" for topic, queue_id in without if topic != retry]
    if queues:
        yield (f"group {group} has no consumer offset in {named(queues)}: all messages of "
               f"{'it' if len(queues) == 1 else 'them'} are shown; where consumers start there "
               "depends on their setting consumeFromWhere")
    sent_back = [f"{topic}/{queue_id}" for topic, queue_id in without if topic == retry]
    if sent_back:
        yield (f"group {group} has no consumer offset in {named(sent_back)}: consumers read a "
               "retry topic from its start")
