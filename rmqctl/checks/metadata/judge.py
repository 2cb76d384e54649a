"""Search for topics, groups and committed offsets that a startup loses or that are already lost.

Used by `verify` (findings), `preflight` (losses), `impact` (groups that begin without an offset)
and `recover` (entries that its config step restores).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

from rmqctl import vfs
from rmqctl.broker.versions import is_from
from rmqctl.checks import losses
from rmqctl.checks.delays import ahead
from rmqctl.checks.losses import Loss
from rmqctl.checks.metadata.queues import ReadableQueues
from rmqctl.checks.metadata.tables import (
    DELAYS,
    GROUPS,
    LMQ_OFFSETS,
    OFFSETS,
    TOPICS,
    Table,
    group_of,
    positions,
    table,
    user_groups,
    user_topics,
)
from rmqctl.checks.verify.config_database import topics_cleaned
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase, some_of
from rmqctl.store.config.config import EMPTY, FOLDER, MISSING, UNREADABLE, load_shared
from rmqctl.store.features import COMPACTION, FEATURES
from rmqctl.store.repair_losses import config_repairs
from rmqctl.store.store import Store

Position = tuple[str, str, int]
"""Identity of a committed offset: (group, topic, queue id)."""
_MAX_NAMED = 3
_READ = 4
"""The bit of ``perm`` that allows consumers to read a topic."""
_CLIENT_QUEUES = 4
_COMPACTION = "compaction/compactionLog"
_LOST = {TOPICS: losses.TOPICS, GROUPS: losses.GROUPS, OFFSETS: losses.OFFSETS,
         LMQ_OFFSETS: losses.OFFSETS, DELAYS: losses.OFFSETS}


REPORTED = frozenset({"config-emptied", "config-older", "config-delays"})
"""Categories of findings about losses in a file that a broker can load."""


class Defect(NamedTuple):
    """A loss, and the finding that `verify` reports for it.

    ``category``: category of the finding; None if the check of the file already reports the loss.
    ``command``: the command that repairs the loss, with STORE for the root.
    """

    loss: Loss
    category: str | None
    detail: str = ""
    topic: str | None = None
    command: str | None = None


@dataclass(slots=True)
class MetadataLosses:
    """Losses of topics, groups and offsets.

    ``offsets``: lost committed offsets with known values.
    ``unknown``: whether offsets with unknown values are also lost.
    ``facts``: texts about something other than losses, by their caption.
    ``restored``: by file, lost entries that `recover` can restore from the copy that the broker
    does not load.
    """

    defects: list[Defect] = field(default_factory=list)
    offsets: dict[Position, int] = field(default_factory=dict)
    unknown: bool = False
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Phrase] = field(default_factory=dict)
    restored: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def losses(self) -> list[Loss]:
        return [defect.loss for defect in self.defects]


def judge(store: Store, *, live: bool = False, logged: Collection[str] = (),
          release: str | None = None) -> MetadataLosses:
    """Return all losses and defects.

    ``live``: whether a broker uses the store, so that files and backups may change while they are
    read.
    ``logged``: topics with messages in the log, if known.
    ``release``: release of the broker that starts; None: the release that wrote the store.
    """
    return (_MetadataJudge(store, live, logged, release).run() if store.layout.reads("config")
            else MetadataLosses())


class _MetadataJudge:
    def __init__(self, store: Store, live: bool, logged: Collection[str],
                 release: str | None) -> None:
        self.store, self.live, self.logged, self.release = store, live, logged, release
        self.queues = ReadableQueues(store)
        self.metadata = MetadataLosses()

    def run(self) -> MetadataLosses:
        # 1. Files from which a broker loads nothing, or less than the other copy has.
        for name in (TOPICS, GROUPS, OFFSETS, LMQ_OFFSETS, DELAYS):
            self._file(self._table(name))
        # 2. The loaded tables, compared with the queues and with each other.
        if self.topics:
            for topic in sorted(self.queues.with_messages):
                self._topic(topic)
            self._unconfigured()
            self._compacted()
        self._cleaned()
        self._retried()
        if not self.live:
            self._front()
            self._delayed()
        self._notes()
        return self.metadata

    def _table(self, name: str) -> Table:
        cached = {TOPICS: self._topics, GROUPS: self._groups, OFFSETS: self._offsets}
        return cached[name] if name in cached else table(self.store, name)

    @cached_property
    def _topics(self) -> Table:
        return table(self.store, TOPICS)

    @cached_property
    def _groups(self) -> Table:
        return table(self.store, GROUPS)

    @cached_property
    def _offsets(self) -> Table:
        return table(self.store, OFFSETS)

    @cached_property
    def topics(self) -> Mapping[str, object]:
        """Return the configured topics; an empty table if they are unknown."""
        if self.store.layout.config == "rocksdb-v2":  # does not store topics created by sending
            return {}
        return self._topics.loaded or {}

    @cached_property
    def groups(self) -> set[str] | None:
        """Return the configured groups; None if they are unknown. An empty table counts as unknown,
        because no broker writes an empty table.
        """
        return set(self._groups.loaded) if self._groups.loaded else None

    # -- a file by itself -----------------------------------------------------------------------

    def _file(self, entries: Table) -> None:
        name = entries.file.name
        if entries.loaded is None:
            return  # the broker does not start; `load` reports it
        if entries.file.main.database and not entries.is_missing:
            return
        if entries.loads_nothing and not entries.is_missing and entries.file.main.state != MISSING:
            self._unloaded(name, entries)
        elif entries.loads_nothing:
            self._missing(name, entries)
        elif not self.live:
            self._compared(name, entries)

    def _unloaded(self, name: str, entries: Table) -> None:
        """Judge a file that has no loadable copy: the broker starts with an empty table and
        overwrites the file.
        """
        state = (Phrase("is empty") if entries.file.main.state == EMPTY else Phrase("is damaged"))
        cause = Phrase("{file} {state} and has no usable .bak: a broker starts with an empty table",
                       file=name, state=state)
        count, restorable = self._gone(name, entries)
        if count != 0:
            self.metadata.unknown |= _LOST[name] == losses.OFFSETS and name != DELAYS
            self._lose(name, entries, count, restorable, cause, None)

    def _missing(self, name: str, entries: Table) -> None:
        """Judge a main file that is missing and has no usable backup."""
        database = entries.file.main.database
        # Groups are recreated by themselves, with default settings. A folder without their file may
        # contain only saved offsets.
        if not database and (name not in (TOPICS, OFFSETS) or self._groups.is_missing):
            return
        if name == OFFSETS and (not user_groups(self.groups or ()) or (
                table(self.store, LMQ_OFFSETS).loaded)):
            return
        count, restorable = self._gone(name, entries)
        if count != 0:
            self._lose(name, entries, count, restorable, Phrase("{file} is missing", file=name),
                       None if database else "config-emptied", already=True)

    def _compared(self, name: str, entries: Table) -> None:
        """Compare the entries that a broker loads with those in the other copy, which the broker
        overwrites the next time it writes the file.
        """
        loaded, other = entries.loaded or {}, entries.other
        if name in (TOPICS, GROUPS):
            select = user_topics if name == TOPICS else user_groups
            emptied = not loaded
            if not emptied and not entries.is_older:
                return
            lost = select(other) - set(loaded)
            if lost:
                restorable = {key: other[key] for key in other if key in lost}
                self._lose(name, entries, len(lost), restorable,
                           self._words(name, entries, emptied=emptied),
                           "config-emptied" if emptied else "config-older")
            elif emptied:
                count, restorable = self._gone(name, entries)
                if count != 0:
                    self._lose(name, entries, count, restorable, Phrase(
                        "{file} has no entries, although the store has {what}", file=name,
                        what=losses.counted(_LOST[name], count)), "config-emptied", already=True)
        elif name in (OFFSETS, LMQ_OFFSETS):
            self._compare_offsets(name, entries)

    def _compare_offsets(self, name: str, entries: Table) -> None:
        loaded, other = positions(entries.loaded or {}), positions(entries.other)
        gone = {key: position for key, position in other.items()
                if key not in loaded and self._is_kept(key, position)}
        behind = {key: position for key, position in other.items()
                  if loaded.get(key, position) < position} if entries.loads_main else {}
        ahead = entries.loads_main and any(
            position > other.get(key, position) for key, position in loaded.items())
        if gone:
            category = "config-older" if loaded else "config-emptied"
            self.metadata.offsets |= gone
            self._lose(name, entries, len(gone), _table_of(gone),
                       self._words(name, entries, emptied=not loaded),
                       category)
        if behind and (entries.is_older or not ahead):
            self._lose(name, entries, len(behind), _table_of(behind), Phrase(
                "{file} is older than its .bak: groups get {messages:,} message again",
                "{file} is older than its .bak: groups get {messages:,} messages again",
                file=name, messages=(total := sum(
                    position - loaded[key] for key, position in behind.items())), count=total),
                "config-older")

    def _words(self, name: str, entries: Table, *, emptied: bool) -> Phrase:
        if not entries.loads_main:
            return Phrase("{file} is damaged, and some of its entries are missing from its .bak",
                          file=name)
        if emptied:
            return Phrase("{file} has no entries; the next write replaces its good .bak", file=name)
        return Phrase("{file}: entries of its .bak are missing; the next write replaces the .bak",
                      file=name)

    def _is_kept(self, key: Position, position: int) -> bool:
        """Return whether brokers keep an offset. Brokers keep an offset if its group is configured,
        its topic exists, and the queue has messages that the group may still read.
        """
        group, topic, queue_id = key
        if self.groups is not None and group not in self.groups:
            return False
        if self.topics and topic not in self.topics and topic not in self.queues.with_messages:
            return False
        bounds = self.queues.bounds(topic, queue_id)
        return bounds is None or position > bounds.first or not bounds.first

    def _gone(self, name: str, entries: Table) -> tuple[int | None, dict[str, object]]:
        """Return the minimum number of entries that a file had, and the entries that can be
        restored. The number is None if unknown, and 0 if no evidence of entries exists.
        """
        readable = entries.other
        if name == TOPICS:
            restorable = {key: readable[key] for key in user_topics(readable)}
            return len(restorable.keys() | user_topics(self.queues.with_messages)), restorable
        if name == GROUPS:
            restorable = {key: readable[key] for key in user_groups(readable)}
            return len(restorable.keys() | self._proven_groups), restorable
        offsets = positions(readable) if name != DELAYS else {}
        self.metadata.offsets |= offsets
        if name == DELAYS:
            return (len(readable) or None) if self.queues.delayed else 0, dict(readable)
        if offsets:
            return len(offsets), dict(readable)
        self.metadata.unknown |= bool(self.queues.user)
        return None if self.queues.user else 0, {}

    @cached_property
    def _proven_groups(self) -> set[str]:
        """Return the user groups whose existence is proven by offsets, retry topics or dead letter
        topics.
        """
        groups = {group for group, topic, _ in self._committed
                  if topic in self.topics or topic in self.queues.with_messages}
        groups |= {group for topic in self.queues.with_messages
                   if (group := group_of(topic)) is not None}
        return user_groups(groups)

    def _lose(self, name: str, entries: Table, count: int | None, restorable: dict[str, object],
              cause: Phrase, category: str | None, *, already: bool = False) -> None:
        if restorable and name in _LOST:
            self.metadata.restored.setdefault(name, {}).update(restorable)
        rebuilt = name in (TOPICS, GROUPS)  # every repair rebuilds a damaged one
        command = "rmqctl recover STORE" if restorable or (rebuilt and entries.file.main.state in (
            EMPTY, UNREADABLE)) else "rmqctl recover STORE --only config" if rebuilt else None
        self.metadata.defects.append(Defect(Loss(
            _LOST[name], count, cause, entries.path, already), category, cause, command=command))

    # -- topics ---------------------------------------------------------------------------------

    def _topic(self, topic: str) -> None:
        """Judge whether the configuration of a topic keeps consumers from reading its queues."""
        entry = self.topics.get(topic)
        if not isinstance(entry, dict) or not self.queues.is_user(topic) or (
                topic in self._static or group_of(topic) is not None):
            return
        perm, read = entry.get("perm"), entry.get("readQueueNums")
        name = shlex.quote(topic)
        if type(perm) is int and not perm & _READ:
            unread = self._unread(topic, self.queues.with_messages[topic])
            if unread:
                self._unreadable(topic, unread, Phrase(
                    "perm of {topic} is {perm}: the read bit (4) is not set", topic=topic,
                    perm=perm),
                    self._topic_command(f"{name} --perm {perm & 2 | _READ}"))
        elif type(read) is int:
            queues = [queue_id for queue_id in self.queues.with_messages[topic]
                      if queue_id >= read]
            unread = self._unread(topic, queues, entry.get("writeQueueNums"))
            if unread:
                self._unreadable(topic, unread, Phrase(
                    "readQueueNums of {topic} is {read}: queue {queue} is not read",
                    "readQueueNums of {topic} is {read}: queues {queue} to {last} are not read",
                    topic=topic, read=read, count=len(queues), queue=queues[0], last=queues[-1]),
                    self._topic_command(f"{name} --read-queues {queues[-1] + 1}"))

    def _unread(self, topic: str, queues: Collection[int], written: object = None) -> int:
        """Return the number of messages in these queues that at least one group of the topic has
        not consumed; 0 if no group reads the topic.

        ``written``: the topic's writeQueueNums. A queue counts only if a group has read it before,
        or if producers still write to the queue: its id is less than ``written``.
        """
        committed: dict[str, dict[int, int]] = {}
        for (group, other_topic, queue_id), position in self._committed.items():
            if other_topic == topic:
                committed.setdefault(group, {})[queue_id] = position
        unread = 0
        for queue_id in queues if committed else ():
            offsets = [by_id[queue_id] for by_id in committed.values() if queue_id in by_id]
            if not offsets and not (type(written) is int and queue_id < written):
                continue
            bounds = self.queues.bounds(topic, queue_id)
            if bounds is not None:
                least = min(offsets) if len(offsets) == len(committed) else 0
                unread += max(0, bounds.end - max(bounds.first, least))
        return unread

    @cached_property
    def _committed(self) -> dict[Position, int]:
        return positions(self._offsets.loaded or {})

    @cached_property
    def _static(self) -> set[str]:
        """Return the static topics: their queue ids are defined by a queue mapping, not by the
        topic configuration.
        """
        return {row["topic"] for row in load_shared(self.store, "topicQueueMapping.json").rows()}

    def _unreadable(self, topic: str, unread: int, cause: Phrase,
                    command: str | None) -> None:
        self.metadata.defects.append(Defect(
            Loss(losses.MESSAGES, unread, cause, self._topics.path, already=True),
            "config-read-queues", cause, topic, command))

    def _unconfigured(self) -> None:
        """Judge topics with messages and committed offsets that are missing from the configuration.

        Such a topic was not deleted. A broker deletes a topic together with its queues and, since
        5.0, its offsets.
        """
        if self.store.layout.consumequeue == "rocksdb":
            return  # see `_cleaned`
        read = {topic for _, topic, _ in self._committed}
        candidates = user_topics((self.queues.with_messages.keys() | (
            set(self.logged) if self._drops_offsets else set())) - self.topics.keys())
        for topic in sorted(candidates & read):
            committed = (queue_id for _, other_topic, queue_id in self._committed
                         if other_topic == topic)
            count = max((*self.queues.with_messages.get(topic, ()), *committed), default=0) + 1
            count = count if group_of(topic) is not None else max(count, _CLIENT_QUEUES)
            self.metadata.defects.append(Defect(
                Loss(losses.TOPICS, 1, Phrase(
                    "{topic} has messages but is not in {file}", topic=topic, file=TOPICS),
                    self._topics.path, already=True), "config-topic", Phrase(
                    "{topic} has messages and offsets: clients get TOPIC_NOT_EXIST", topic=topic),
                topic, self._topic_command(f"{shlex.quote(topic)} --read-queues {count} "
                                           f"--write-queues {count}")))

    def _topic_command(self, words: str) -> str | None:
        """Return the command that configures a topic; None if rmqctl cannot write the configuration
        of this store.
        """
        return (f"rmqctl topic create STORE {words}"
                if "config" not in self.store.layout.unwritten else None)

    @cached_property
    def _drops_offsets(self) -> bool:
        """Return whether brokers delete a topic's offsets together with the topic (5.x)."""
        value = self._offsets.file.value
        version = value.get("dataVersion") if isinstance(value, dict) else None
        return isinstance(version, dict) and "stateVersion" in version

    def _cleaned(self) -> None:
        """Judge topics whose queues a broker deletes from RocksDB 10 minutes after startup."""
        file, configured, topics = topics_cleaned(self.store)
        if topics and (configured or file.main.database):
            self.metadata.defects.append(Defect(Loss(
                losses.MESSAGES, sum(self.queues.count(topic) for topic in topics), Phrase(
                    "{topics} not in {file}: the broker deletes their consume queues",
                    topics=some_of(topics, _MAX_NAMED), file=file.main.path), file.main.path),
                                                None))

    def _compacted(self) -> None:
        """Judge topics whose compaction log is missing: brokers read these topics from that log and
        never rebuild it.
        """
        if self.release is not None and not is_from(self.release,
                                                    FEATURES[COMPACTION].since):
            return  # reads the messages from the commit log
        for topic, ids in sorted(self.queues.with_messages.items()):
            entry = self.topics.get(topic)
            attributes = entry.get("attributes") if isinstance(entry, dict) else None
            if not isinstance(attributes, dict) or attributes.get("cleanup.policy") != "COMPACTION":
                continue
            gone = [queue_id for queue_id in ids if not vfs.isdir(
                self.store.path(_COMPACTION, topic, str(queue_id)))]
            missing = [self.queues.bounds(topic, queue_id) for queue_id in gone]
            count = sum(bounds.end - bounds.first for bounds in missing if bounds is not None)
            if count:
                cause = Phrase("consumers get no message of {topic}: its compaction log is missing",
                               topic=topic)
                self.metadata.defects.append(Defect(Loss(
                    losses.MESSAGES, count, cause, f"{_COMPACTION}/{topic}", already=True),
                    "compaction", cause, topic))

    # -- the log's start ------------------------------------------------------------------------

    def _front(self) -> None:
        """Judge whether log files are missing before the first existing file.

        A broker's cleaner deletes log files together with the consume queue files of their
        messages. If one of these consume queue files still exists, the cleaner did not delete the
        log files.
        """
        layout = self.store.layout
        if not (layout.reads("commitlog") and layout.reads("consumequeue")):
            return
        try:
            lost = self.queues.before_log
        except (StoreIOError, FormatError):
            return
        if lost:
            count = sum(lost.values())
            cause = Phrase(
                "{count:,} message before the start of the log ({start}) was lost: {topics}",
                "{count:,} messages before the start of the log ({start}) were lost: {topics}",
                start=self.store.log.min_offset, count=count, topics=some_of([*lost], _MAX_NAMED))
            self.metadata.defects.append(Defect(Loss(
                losses.MESSAGES, count, cause, "commitlog", already=True),
                "log-start", cause))

    # -- delayed messages -----------------------------------------------------------------------

    def _delayed(self) -> None:
        """Judge whether delayOffset.json counts messages as delivered whose delivered copies are
        not in the log.
        """
        try:
            levels = ahead(self.store)
        except StoreIOError:
            return
        if levels:
            count = sum(level.messages for level in levels)
            self.metadata.restored[DELAYS] = {str(level.level): level.first for level in levels}
            cause = Phrase(
                "{file} is later than the log: {count:,} message counts as delivered, but the log "
                "has no delivered copy",
                "{file} is later than the log: {count:,} messages count as delivered, but the log "
                "has no delivered copies", file=DELAYS, count=count)
            self.metadata.defects.append(Defect(Loss(
                losses.DELAYED, count, cause, f"{FOLDER}/{DELAYS}"), "config-delays", cause,
                command="rmqctl recover STORE"))

    # -- groups ---------------------------------------------------------------------------------

    def _retried(self) -> None:
        """Judge groups that have retry messages but no committed offset. Such a group has consumed
        messages, which proves that it had an offset.
        """
        offsets = self._offsets
        if offsets.loaded is None or offsets.loads_nothing or not offsets.loads_main:
            return
        with_offset = {group for group, _, _ in {**self._committed, **self.metadata.offsets}}
        groups = sorted({group for topic in self.queues.with_messages
                         if (group := group_of(topic)) is not None
                         and group not in with_offset and group in (self.groups or ())})
        if groups:
            self.metadata.unknown = True
            self.metadata.defects.append(Defect(Loss(losses.OFFSETS, None, Phrase(
                "{names} has retry messages but no committed offset",
                "{names} have retry messages but no committed offsets",
                names=some_of(groups, _MAX_NAMED), count=len(groups)), offsets.path, already=True),
                "config-emptied", Phrase("retry messages, but no committed offset: {names}",
                                         names=some_of(groups, _MAX_NAMED))))

    # -- what follows ---------------------------------------------------------------------------

    def _notes(self) -> None:
        rebuilt, aside = config_repairs(self.store.root)
        if self._offsets.path in aside:
            self.metadata.facts["offsets"] = Phrase(
                "a repair moved the old {path} aside: groups have only the offsets that were set "
                "since", path=self._offsets.path)
        if rebuilt:
            self.metadata.facts["rebuilt"] = Phrase(
                "{paths} by a repair: what the damaged file and the messages do not show is "
                "missing or a broker's default. Compare with a copy of the file", paths=some_of(
                    [*rebuilt], _MAX_NAMED))
        kinds = {loss.what for loss in self.metadata.losses}
        if losses.OFFSETS in kinds and (self.metadata.offsets or self.metadata.unknown):
            self.metadata.notes.append(self._skipped())
        if losses.TOPICS in kinds:
            self.metadata.notes.append(Phrase(
                "A topic that is not configured has no route: clients get TOPIC_NOT_EXIST until "
                "it is created again (autoCreateTopicEnable: by the next message, with default "
                "settings)."))
        if losses.GROUPS in kinds:
            self.metadata.notes.append(Phrase(
                "A group that is not configured is created again with default settings when a "
                "consumer connects; without autoCreateSubscriptionGroup, its consumers are "
                "rejected."))

    def _skipped(self) -> Phrase:
        """Return a note on the messages that groups without an offset would skip."""
        if self.metadata.unknown:
            return Phrase(
                "A group without a committed offset starts where its consumeFromWhere specifies: "
                "by default at the last offset, so it skips its backlog (up to {count:,} "
                "message).",
                "A group without a committed offset starts where its consumeFromWhere specifies: "
                "by default at the last offset, so it skips its backlog (up to {count:,} "
                "messages).",
                count=sum(self.queues.count(topic) for topic in self.queues.user))
        unread = 0
        for (_, topic, queue_id), position in self.metadata.offsets.items():
            bounds = self.queues.bounds(topic, queue_id)
            unread += 0 if bounds is None else max(0, bounds.end - max(bounds.first, position))
        names = some_of(sorted({group for group, _, _ in self.metadata.offsets}), _MAX_NAMED)
        return Phrase(
            "Without its committed offset, a group starts where its consumeFromWhere specifies: by "
            "default at the last offset, so {names} would skip {count:,} unread message.",
            "Without its committed offset, a group starts where its consumeFromWhere specifies: by "
            "default at the last offset, so {names} would skip {count:,} unread messages.",
            names=names, count=unread)


def _table_of(offsets: Mapping[Position, int]) -> dict[str, object]:
    json_table: dict[str, dict[str, int]] = {}
    for (group, topic, queue_id), position in offsets.items():
        json_table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = position
    return dict(json_table)


def commands(defects: Collection[Defect]) -> Iterator[str]:
    """Yield the commands that repair the defects, without duplicates."""
    yield from dict.fromkeys(defect.command for defect in defects if defect.command is not None)
