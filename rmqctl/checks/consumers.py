"""Effect of damage, a broker startup or a repair on consumers: one record per group and queue.

The caller supplies the losses by queue (`rmqctl.checks.preflight`, a plan). The consumer offsets
are read from ``config/``, and queues only where an offset requires it.

After an unclean shutdown, some messages after an offset may already have been consumed, because a
broker writes offsets only every 5 s (``flushConsumerOffsetInterval``). Broadcast consumers keep
their offsets themselves. With POP, an offset covers delivered messages, acknowledged or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import field
from typing import Any, NamedTuple

from rmqctl.broker.get_message import outside
from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.checks.verify.context import deleted, known_topics
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.properties import (
    LMQ_PREFIX,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Joined, Phrase, some_of
from rmqctl.store.config.config import load_shared
from rmqctl.store.config.offsets import DELAY_GROUP
from rmqctl.store.config.progress import Commit, ConsumerProgress
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store

QueueKey = tuple[str, int]
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class QueueLosses:
    """The outcome for one queue, in queue offsets.

    * ``end``: the offset after the last message, once the broker has started or the repair is done
    * ``lost``: messages already missing from the log
    * ``cut``: intact messages that the start truncates
    * ``without_row``: messages in the log that no consumer receives
    * ``undecodable``: messages that clients cannot decode
    * ``made_from``: the first queue offset after the padding entries, if the start rebuilds the
      queue and begins it with padding entries
    * ``least``: the min offset that the broker then assumes for the queue; None if the size of the
      queue's files is unknown
    """

    end: int
    lost: OffsetRuns = field(default_factory=OffsetRuns)
    cut: OffsetRuns = field(default_factory=OffsetRuns)
    without_row: OffsetRuns = field(default_factory=OffsetRuns)
    undecodable: OffsetRuns = field(default_factory=OffsetRuns)
    made_from: int = 0
    least: int | None = 0

    @property
    def complete(self) -> bool:
        """Return whether all lost messages are listed, not only the first ones."""
        return all(runs.complete for runs in (self.lost, self.cut, self.without_row,
                                              self.undecodable))


class QueueImpact(NamedTuple):
    """The effect on one group in one queue, as message counts and queue offsets.

    * ``position``: queue offset that the group reads next; None if it has not committed an offset
      (the whole queue then counts as unread)
    * ``max_offset``: queue offset of the end of the queue after the start or repair
    * ``beyond_end``: number of queue offsets from ``max_offset`` to the position; None while a
      broker is running, as the position on disk is then out of date
    * ``lost_before``, ``lost_after``: lost messages before and after the position
    * ``at_risk``: intact unread messages that consumers cannot get after the start
    * ``would_be_cut``, ``without_row``, ``undecodable``: the reasons for ``at_risk``
    * ``goes_on_at``: queue offset that a consumer reads next
    * ``twice``: messages certainly delivered again
    * ``twice_at_most``: ``twice``, plus messages that may be delivered again because the position
      on disk may be out of date
    * ``skipped``: intact unread messages of a group that loses its position at startup and
      continues at the end of the queue (by default)
    """

    group: str
    topic: str
    queue_id: int
    position: int | None
    max_offset: int
    beyond_end: int | None
    lost_before: int
    lost_after: int
    at_risk: int
    would_be_cut: int
    without_row: int
    undecodable: int
    goes_on_at: int | None
    twice: int
    twice_at_most: int
    skipped: int = 0

    @property
    def affected(self) -> bool:
        """Return whether the group is affected.

        An affected group misses a message, receives a message twice, or has an offset beyond the
        end of the queue. Two cases do not count:

        * messages lost before the offset: the group has already received them
        * an offset of the delay service beyond the end of the queue: the broker moves it back
        """
        set_back = self.group == DELAY_GROUP and self.goes_on_at is not None
        return bool((self.beyond_end and not set_back) or self.lost_after or self.at_risk
                    or self.twice or self.skipped)


COLUMNS = QueueImpact._fields


@dataclass(frozen=True, slots=True)
class Consumers:
    """The effect on all groups of a store.

    * ``queues``: sorted by group, topic and queue id
    * ``without_position``: configured groups without a committed offset in this store
    * ``complete``: whether the numbers include all losses; if not, they are lower bounds
    * ``notes``: sentences about what is unknown
    """

    queues: tuple[QueueImpact, ...]
    without_position: tuple[str, ...] = ()
    complete: bool = True
    notes: tuple[str, ...] = ()
    positions_known: bool = True

    @property
    def affected(self) -> list[QueueImpact]:
        return [queue for queue in self.queues if queue.affected]

    @property
    def groups_affected(self) -> int:
        return len({queue.group for queue in self.affected})

    def of(self, group: str) -> Consumers:
        """Return the results of one group only."""
        return Consumers(tuple(queue for queue in self.queues if queue.group == group),
                         tuple(name for name in self.without_position if name == group),
                         self.complete, self.notes, self.positions_known)

    def as_fields(self) -> dict[str, Any]:
        """Return the records of affected groups and queues, for the JSON documents of other
        commands.
        """
        return {"groups_affected": self.groups_affected,
                "consumers": [queue._asdict() for queue in self.affected],
                "consumers_complete": self.complete}

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``impact``: a record for each group and queue."""
        return {"groups": len({queue.group for queue in self.queues}),
                "groups_affected": self.groups_affected,
                "queues": [queue._asdict() for queue in self.queues],
                "groups_without_position": list(self.without_position),
                "complete": self.complete, "positions_known": self.positions_known,
                "notes": list(self.notes)}

    def in_words(self) -> Phrase:
        """Return ``consumers: 2 of 3 groups affected (audit, billing): 14 messages lost unread,
        …``.
        """
        return Phrase("consumers: {what}", what=self.affects)

    @property
    def affects(self) -> Phrase:
        """Return the summary line without the leading ``consumers:``."""
        # Groups with offsets here, and affected groups.
        groups = len({queue.group for queue in self.queues})
        names = list(dict.fromkeys(queue.group for queue in self.affected))
        if not groups:
            return Phrase("no consumer offsets in this store")
        if not names:
            return Phrase("no consumer group affected ({count} checked)",
                          "no consumer group affected ({count} checked)",
                          count=groups) if self.complete else Phrase(
                "no consumer group known to be affected ({count} checked)",
                "no consumer group known to be affected ({count} checked)", count=groups)
        # The effects on these, the worst first.
        parts = []
        lost = sum(queue.lost_after for queue in self.affected)
        if lost:
            parts.append(Phrase("{some:,} lost unread", some=lost))
        at_risk = sum(queue.at_risk for queue in self.affected)
        if at_risk:
            parts.append(Phrase("{some:,} unread and at risk", some=at_risk))
        twice = sum(queue.twice for queue in self.affected)
        if twice:
            parts.append(Phrase("{some:,} delivered twice", some=twice))
        skipped = sum(queue.skipped for queue in self.affected)
        if skipped:
            parts.append(Phrase("{some:,} skipped", some=skipped))
        beyond = sum(bool(queue.beyond_end) for queue in self.affected)
        if beyond:
            parts.append(Phrase("{count:,} offset beyond the end",
                                "{count:,} offsets beyond the end", count=beyond))
        return Phrase("{some:,} of {count:,} group affected ({names}): {what}",
                      "{some:,} of {count:,} groups affected ({names}): {what}", some=len(names),
                      count=groups, names=some_of(names, _MAX_NAMED), what=Joined(", ", parts))


class Situation(NamedTuple):
    """Inputs besides the losses.

    * ``generation``: the broker's generation, 4 or 5
    * ``unclean``: whether the last shutdown was unclean
    * ``running``: whether a broker is running on the store
    * ``clamps``: whether a starting broker clamps the delay service's offsets to the bounds of
      their queues (since 4.9.2)
    """

    generation: int
    unclean: bool
    running: bool = False
    clamps: bool = True


def consumers(store: Store, losses: Mapping[QueueKey, QueueLosses], situation: Situation,
              unplaced: int = 0,
              offsets_lost: Mapping[tuple[str, str, int], int] | None = None) -> Consumers:
    """Return the effect of ``losses`` on every group of the store.

    The delay service counts as the group ``(delay)``. Queues of deleted topics are skipped.

    * ``unplaced``: number of lost messages whose queue is unknown
    * ``offsets_lost``: committed offsets that a broker loses or does not load, by group, topic and
      queue id
    """
    # The offset of each group by topic and queue, then offsets that a broker does not load.
    progress = ConsumerProgress.of(store)
    topics_known = known_topics(store)
    commits: dict[str, dict[str, dict[int, int]]] = {}
    for commit in _everybody(progress):
        if (commit.topic, commit.queue_id) in losses or not deleted(commit.topic, topics_known):
            by_topic = commits.setdefault(commit.group, {})
            by_topic.setdefault(commit.topic, {})[commit.queue_id] = commit.offset
    positions_lost = offsets_lost or {}
    for (group, topic, queue_id), offset in positions_lost.items():
        commits.setdefault(group, {}).setdefault(topic, {}).setdefault(queue_id, offset)
    # The queues in which messages are lost, or would be.
    queues: dict[str, list[int]] = {}
    for topic, queue_id in losses:
        queues.setdefault(topic, []).append(queue_id)
    if SCHEDULE_TOPIC in queues:  # without a file it starts at the first message
        commits.setdefault(DELAY_GROUP, {}).setdefault(SCHEDULE_TOPIC, {})
    view = View(store, generation=situation.generation)
    # The effect of the losses on each group in each queue.
    impacts = tuple(
        _impact(view, situation, group, (topic, queue_id), positions.get(queue_id),
                losses.get((topic, queue_id)) or QueueLosses(0),
                position_lost=(group, topic, queue_id) in positions_lost)
        for group, topics in sorted(commits.items()) for topic, positions in sorted(topics.items())
        for queue_id in sorted({*positions, *queues.get(topic, ())}))
    # Losses that the figures do not cover.
    groups = {row["group"] for row in load_shared(store, "subscriptionGroup.json").rows()}
    unread = [file.main.path for name in ("consumerOffset.json", "delayOffset.json")
              if (file := load_shared(store, name)).damaged and file.used is None]
    notes = [*_notes(store, situation, losses, unread), *_waiting(impacts)]
    if unplaced:
        notes.insert(0, Phrase(
            "{count:,} lost message belongs to an unknown queue and is not counted per group",
            "{count:,} lost messages belong to unknown queues and are not counted per group",
            count=unplaced))
    return Consumers(impacts, tuple(sorted(groups - commits.keys())),
                     not unplaced and all(losses[key].complete for key in losses), tuple(notes),
                     not unread)


def _everybody(progress: ConsumerProgress) -> Iterable[Commit]:
    yield from progress.commits
    for queue_id, offset in sorted(progress.delayed.items()):
        yield Commit(DELAY_GROUP, SCHEDULE_TOPIC, queue_id, offset)


def _impact(view: View, situation: Situation, group: str, key: QueueKey, position: int | None,
            losses: QueueLosses, *, position_lost: bool = False) -> QueueImpact:
    behind = 0 if position is None else position
    beyond: int | None = max(0, behind - losses.end)
    goes_on_at = position
    twice = untold = 0
    if beyond:
        goes_on_at = _moved_to(view, situation, group, key, behind, losses)
        if goes_on_at is None:
            untold = losses.end - losses.made_from if losses.least is None else 0
        else:
            twice = max(0, losses.end - max(goes_on_at, losses.made_from))
        if situation.running:  # its files and the offsets were not read at the same moment
            beyond, goes_on_at, twice, untold = None, position, 0, 0
    # A message counts once, for the first reason that applies.
    gone = [losses.lost, losses.cut, losses.without_row, losses.undecodable]
    unread = [runs.count(behind) for runs in gone]
    if sum(map(bool, unread)) > 1:
        seen, unread = OffsetRuns(), []
        for runs in gone:
            unread.append(runs.without(seen).count(behind))
            seen = seen.join(runs)
    lost_after, cut, rowless, odd = unread
    left = max(0, losses.end - behind - losses.lost.count(behind, losses.end))
    skipped = left if position_lost and not key[0].startswith(RETRY_PREFIX) else 0
    if position_lost and position is not None and not beyond:
        goes_on_at = losses.end if skipped else position
    return QueueImpact(
        group, *key, position, losses.end, beyond, losses.lost.count(0, behind), lost_after,
        cut + rowless + odd, cut, rowless, odd, goes_on_at, twice,
        twice + untold + (
            left if situation.unclean or (position is None and group == DELAY_GROUP) else 0),
        skipped)


def _moved_to(view: View, situation: Situation, group: str, key: QueueKey, position: int,
              losses: QueueLosses) -> int | None:
    """Return the offset at which a consumer continues if its offset is beyond the end of the queue;
    None if unknown.
    """
    end = losses.end
    if group == DELAY_GROUP:
        return end if situation.clamps else None
    least = 0
    queue = view.store.queues.by_key.get(key)
    try:
        if losses.made_from:
            if losses.least is None:
                return None
            least = losses.least
        elif queue is not None and end:
            with closing(queue):
                least = min(view.bounds(queue).first, end)
    except (StoreIOError, FormatError):
        return None
    answer = outside(position, least, end, situation.generation)
    return position if answer is None else answer.next_begin


def _waiting(queues: Iterable[QueueImpact]) -> Iterable[str]:
    """Yield a note on messages in retry topics.

    A group receives these messages from the retry topic. If the group's consumer offset in the
    original topic is not after them, the group receives them from the original topic, too.
    """
    waiting = sorted({queue.group for queue in queues
                      if queue.topic == RETRY_PREFIX + queue.group and queue.twice_at_most})
    if waiting:
        yield Phrase("messages wait in the retry topics of {names}: they are delivered twice if "
                     "they are also after the consumer offset of their original topic; "
                     "rmqctl does not check this",
                     names=some_of(waiting, _MAX_NAMED))


def _notes(store: Store, situation: Situation, losses: Mapping[QueueKey, QueueLosses],
           unread: list[str]) -> Iterable[str]:
    if unread:
        yield Phrase("{names}: no copy can be read, so consumer offsets are unknown (`rmqctl "
                     "config` shows why)",
                     names=Joined(" and ", unread))
    offsets = load_shared(store, "consumerOffset.json")
    if offsets.fell_back:
        yield Phrase("consumer offsets are from config/consumerOffset.json.bak, which is at least "
                     "5 s older than the file itself")
    if situation.running:
        yield Phrase("a broker is running: consumer offsets may be up to 5 s old, so offsets "
                     "beyond the end cannot be checked")
    elif situation.unclean and store.has_abort:
        yield Phrase("the last shutdown was unclean: consumer offsets are written every 5 s, so "
                     "messages after them may have been consumed already, and would then be "
                     "delivered twice (`twice_at_most`); which ones is unknown")
    if any(topic.startswith(REVIVE_PREFIX) for topic, _ in losses):
        yield Phrase("the store was used with POP: a consumer offset includes invisible messages "
                     "(delivered, not yet acknowledged), so messages lost before it may not have "
                     "been acknowledged")
    if any(topic.startswith(LMQ_PREFIX) for topic, _ in losses) and (
            load_shared(store, "lmqConsumerOffset.json").used is None and situation.generation < 5):
        yield Phrase("light queues: their consumer offsets are in config/lmqConsumerOffset.json, "
                     "which is missing, so it is unknown how far they were read")
