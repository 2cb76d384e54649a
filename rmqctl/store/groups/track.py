"""The groups that consumed a message, and the fate of the copies that groups sent back. States are
those of mqadmin's messageTrack.

A copy that a group sends back is a separate record. A broker's messageTrackDetail also asks running
consumers for facts that are not in a store: whether a tag filter skipped the message
(CONSUMED_BUT_FILTERED), and whether consumers pull, broadcast or are offline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Literal, NamedTuple

from rmqctl.errors import StoreIOError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import Record, parse_message_id
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.derived import batch_range
from rmqctl.store.config.offsets import DELAY_GROUP
from rmqctl.store.groups.unread import StoredOffsets
from rmqctl.store.objects import text
from rmqctl.store.problems import Report
from rmqctl.store.query.lookup import by_unique_key
from rmqctl.store.queue.rows import topics_on_disk
from rmqctl.store.store import Store

Track = Literal["CONSUMED", "NOT_CONSUME_YET", "NOT_SUBSCRIBED", "UNKNOWN"]
Role = Literal["message", "requeued", "delayed", "retry", "dead letter"]
_DELAYED = (props.SCHEDULE_TOPIC, props.TIMER_TOPIC)
_COPIES = (props.RETRY_PREFIX, props.DLQ_PREFIX)
_INTERNAL = (*_DELAYED, props.HALF_TOPIC, props.OP_HALF_TOPIC)
_NO_GROUPS = (*_COPIES, props.LMQ_PREFIX)
"""Prefixes of topics that most groups do not read. For such a topic, only the groups that read
it are listed."""


class GroupTrack(NamedTuple):
    """The progress of a group in a queue of the message.

    ``position``: the next queue offset that the group reads in this queue; None if unknown.
    ``detail``: an explanation beyond the name of the state.
    """

    group: str
    track: Track
    topic: str
    queue_id: int
    queue_offset: int
    position: int | None
    detail: str | None


class MessageCopy(NamedTuple):
    """A message in a chain: the original, or a copy of it. ``role``: its role in the chain.
    ``group``: the group that sent the message back or gave up on it; None if no group did.
    """

    role: Role
    group: str | None
    record: Record

    def as_dict(self) -> dict[str, Any]:
        record = self.record
        return {"role": self.role, "group": self.group, "topic": text(record.topic),
                "queue_id": record.queue_id, "queue_offset": record.queue_offset,
                "physical_offset": record.physical_offset, "msg_id": record.message_id,
                "reconsume_times": record.reconsume_times,
                "store_timestamp": record.store_timestamp}


@dataclass(slots=True)
class Tracked:
    """The result for one message.

    ``chain``: the message and its copies in the order of the log; empty if copies are not tracked.
    ``notes``: sentences on what is unknown.
    """

    groups: list[GroupTrack] = field(default_factory=list)
    chain: list[MessageCopy] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_fields(self) -> dict[str, Any]:
        return {"track": [group._asdict() for group in self.groups],
                "chain": [copy.as_dict() for copy in self.chain]}


class Tracker:
    """Finds the groups that consumed a message in one store, and the copies that they sent back."""

    def __init__(self, store: Store, groups: StoredOffsets, report: Report) -> None:
        self._store, self._groups, self._report = store, groups, report
        self._copies = [topic for topic in topics_on_disk(store)
                        if topic.startswith(_COPIES) or topic in _DELAYED]

    def track(self, record: Record) -> Tracked:
        """Return the groups and copies of one message.

        Raises: StoreIOError.
        """
        tracked = Tracked()
        tracked.chain = self.chain(record, tracked.notes)
        for topic, queue_id, first, count in self._places(record, tracked.notes):
            tracked.groups += self._at(record, tracked.chain, topic, queue_id, first, count)
        return tracked

    # -- who is past it -----------------------------------------------------------------------

    def _places(self, record: Record, notes: list[str]) -> Iterator[tuple[str, int, int, int]]:
        """Yield (topic, queue id, first queue offset, number of queue offsets) for each queue that
        has the message.
        """
        if not sysflag.has_consume_queue_row(record.sys_flag):
            notes.append(f"a {sysflag.transaction_type(record.sys_flag)} record has no consume "
                         "queue entry, so no group receives it")
            return
        values = props.parse(text(record.properties))
        try:
            first, count = batch_range(record.queue_offset, values.get(props.INNER_BASE),
                                       values.get(props.INNER_NUM))
        except ValueError:
            first, count = record.queue_offset, 1
        yield text(record.topic), record.queue_id, first, count
        light, leads = self._store.queues.light, self._store.queues.leads
        for name, number in props.further_rows(values):
            yield name, light.id_of(name, record.queue_id, number, record.physical_offset,
                                    leads), number, 1

    def _at(self, record: Record, chain: Sequence[MessageCopy], topic: str, queue_id: int,
            first: int, count: int) -> Iterator[GroupTrack]:
        # A delayed message has no consumers yet: only the delay service reads its queue.
        if topic in _DELAYED:
            yield from self._delayed(topic, queue_id, first)
            return
        # Compare the consumer offset of each group that reads this topic.
        groups = self._groups
        readers = [group for group, topics in sorted(groups.positions.items()) if topic in topics]
        for group in readers:
            position = groups.positions[group][topic].get(queue_id)
            track: Track = "NOT_CONSUME_YET"
            details = []
            if position is None:
                details.append("no consumer offset in this queue")
            elif position >= first + count:
                track = "CONSUMED"
            elif position > first:
                details.append(f"{position - first} of {count} messages of the batch")
            details += _sent_back(record, chain, group, groups)
            yield GroupTrack(group, track, topic, queue_id, first, position,
                             "; ".join(details) or None)
        # List the other groups too, unless only one group can read this topic.
        if topic.startswith(_NO_GROUPS):
            return
        for group in sorted((groups.positions.keys() | groups.others) - set(readers)):
            details = list(_sent_back(record, chain, group, groups))
            if groups.positions_known and not details:
                details, track = ["no consumer offset in this topic"], "NOT_SUBSCRIBED"
            else:
                details, track = ["its consumer offset is unknown", *details], "UNKNOWN"
            yield GroupTrack(group, track, topic, queue_id, first, None, "; ".join(details))

    def _delayed(self, topic: str, queue_id: int, first: int) -> Iterator[GroupTrack]:
        position = self._groups.delayed.get(queue_id) if topic == props.SCHEDULE_TOPIC else None
        track: Track = ("UNKNOWN" if position is None else
                        "CONSUMED" if position > first else "NOT_CONSUME_YET")
        detail = {"UNKNOWN": "delivery not checked",
                  "CONSUMED": "delivered to its topic"}.get(track, "not due yet")
        yield GroupTrack(DELAY_GROUP, track, topic, queue_id, first, position, detail)

    # -- the chain ----------------------------------------------------------------------------

    def chain(self, record: Record, notes: list[str]) -> list[MessageCopy]:
        """Return the message and its copies in the order of the log; an empty list if there are no
        copies.

        Copies keep the client's id of the message, so they are found in the index. Without such an
        id, only the properties of a copy name the original message.

        Raises: StoreIOError.
        """
        values = props.parse(text(record.properties))
        origin = values.get(props.ORIGIN_MESSAGE_ID)
        unique = values.get(props.UNIQUE_KEY)
        own = origin_topic(text(record.topic), values)
        records = {record.physical_offset: record}
        if unique is not None and self._store.index.listing.files:
            topics = dict.fromkeys([text(record.topic), *([own] if own else []), *self._copies])
            for copy in by_unique_key(self._store, unique, list(topics), self._report):
                records[copy.physical_offset] = copy
        elif self._copies:
            by = f"unique_key={unique}" if unique is not None else (
                f"property.{props.ORIGIN_MESSAGE_ID}={record.message_id}")
            why = "without an index" if unique is not None else "without a unique key"
            notes.append(f"{why}, copies that groups sent back are not listed; `rmqctl read STORE "
                         f"--where {by}` searches all messages")
        if origin is not None and not any(_is(copy, origin) for copy in records.values()):
            first = record_of(self._store, origin)
            if first is None:
                notes.append(f"the original message, {origin}{f' of topic {own}' if own else ''}, "
                             "is not in this store")
            else:
                records[first.physical_offset] = first
        if len(records) == 1 and _role(record)[0] == "message":
            return []
        return [MessageCopy(*self._named(copy), copy) for _, copy in sorted(records.items())]

    def _named(self, record: Record) -> tuple[Role, str | None]:
        role, of_group = _role(record)
        return role, None if of_group is None else self._group(of_group, record)

    def _group(self, of_group: str, record: Record) -> str:
        """Return the group of a retry topic, without the topic that the name of a POP retry topic
        also contains.
        """
        origin = props.parse(text(record.properties)).get(props.RETRY_TOPIC)
        if of_group not in self._groups.positions and origin is not None:
            for sign in "+_":
                if of_group.endswith(sign + origin):
                    return of_group[:-len(origin) - 1]
        return of_group


def record_of(store: Store, message_id: str) -> Record | None:
    """Return the message with an offset message id; None if the id is invalid or belongs to another
    broker.
    """
    try:
        physical = parse_message_id(message_id)[2]
        record = store.log.record_at(physical) if physical >= 0 else None
    except (ValueError, StoreIOError):
        return None
    return record if record is not None and record.message_id == message_id.upper() else None


def origin_topic(topic: str, values: dict[str, str]) -> str | None:
    """Return the topic that a message was first sent to; None if unknown."""
    for named in (values.get(props.RETRY_TOPIC), values.get(props.DLQ_ORIGIN_TOPIC),
                  values.get(props.REAL_TOPIC), topic):
        if named and not named.startswith((*_COPIES, "rmq_sys_")) and named not in _INTERNAL:
            return named
    return None


def _is(record: Record, message_id: str) -> bool:
    """Return whether an id is the offset message id or the client's id of this message."""
    values = props.parse(text(record.properties))
    return _role(record)[0] in ("message", "delayed") and (
        record.message_id == message_id.upper() or values.get(props.UNIQUE_KEY) == message_id)


def _role(record: Record) -> tuple[Role, str | None]:
    topic = text(record.topic)
    values = props.parse(text(record.properties))
    if topic in _DELAYED:
        topic = values.get(props.REAL_TOPIC, "")
        return "delayed", topic.removeprefix(props.RETRY_PREFIX) if (
            topic.startswith(props.RETRY_PREFIX)) else None
    if topic.startswith(props.RETRY_PREFIX):
        return "retry", topic.removeprefix(props.RETRY_PREFIX)
    if topic.startswith(props.DLQ_PREFIX):
        return "dead letter", topic.removeprefix(props.DLQ_PREFIX)
    return "requeued" if props.REQUEUED in values else "message", None


def _sent_back(record: Record, chain: Sequence[MessageCopy], group: str,
               groups: StoredOffsets) -> Iterator[str]:
    """Yield texts that describe the fate of the copies of a message that a group sent back."""
    copies = [copy for copy in chain if copy.group == group
              and copy.record.physical_offset > record.physical_offset]
    if not copies:
        return
    role, _, last = copies[-1]
    times = last.reconsume_times
    back = f"sent back {times} time{'' if times == 1 else 's'}"
    if role == "dead letter":
        yield f"{back}, finally to the dead letter at {last.physical_offset}"
    elif role == "delayed":
        waits = groups.delayed.get(last.queue_id, 0) <= last.queue_offset
        yield f"{back}: the copy at {last.physical_offset} " + (
            "is not due yet" if waits else "was due")
    else:
        position = groups.positions.get(group, {}).get(text(last.topic), {}).get(last.queue_id)
        consumed = position is not None and position > last.queue_offset
        yield f"{back}: the copy at {last.physical_offset} is " + (
            "consumed" if consumed else "not consumed yet")
