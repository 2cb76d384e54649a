"""Dead letters (messages that a group gave up on), and the message objects for sending them again.

A broker puts a message that failed too often into ``%DLQ%group``. It keeps the original topic in
``RETRY_TOPIC`` and the id of the first copy in ``ORIGIN_MESSAGE_ID``. No broker and no mqadmin
command sends a dead letter again.

The message built here is what a producer would send: the stored body, the client's flag, properties
and unique key, the born host and time. It contains nothing that brokers and consumers added. The
property ``RMQCTL_REQUEUED`` names the dead letter, so the log shows what was requeued.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from rmqctl.formats.bodies import encode
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import HOST_BITS, Record, host_text
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.config.config import load_one
from rmqctl.store.groups.track import origin_topic, record_of
from rmqctl.store.log.bounds import View
from rmqctl.store.log.once import cached_property
from rmqctl.store.objects import text
from rmqctl.store.problems import Report
from rmqctl.store.query.conditions import Condition
from rmqctl.store.query.lookup import by_unique_key
from rmqctl.store.query.select import Selection, Selector
from rmqctl.store.queue.rows import queue_ids, topics_on_disk
from rmqctl.store.store import Store

Into = Literal["original", "retry"]
COLUMNS = ("group", "queue_id", "queue_offset", "physical_offset", "msg_id", "origin_topic",
           "origin_msg_id", "reconsume_times", "born_timestamp", "store_timestamp", "keys",
           "unique_key", "requeued")
_ADDED = frozenset((
    props.RETRY_TOPIC, props.DELAY, props.REAL_TOPIC, props.REAL_QUEUE_ID, props.CRC32,
    "TRAN_MSG", "PGROUP", "__transactionId__", "TRAN_PREPARED_QUEUE_OFFSET",
    "TRANSACTION_CHECK_TIMES", "MIN_OFFSET", "MAX_OFFSET", "RECONSUME_TIME", "MAX_RECONSUME_TIMES",
    "CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "CLUSTER"))
_ADDED_BY = (props.INNER, "TIMER_")
"""Names and name prefixes of the properties that brokers and consumers add."""


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter of a group."""

    group: str
    record: Record

    @cached_property
    def properties(self) -> dict[str, str]:
        return props.parse(text(self.record.properties))

    @property
    def origin_topic(self) -> str | None:
        """The topic to which the message was first sent; None if unknown."""
        return origin_topic("", self.properties)

    def as_dict(self) -> dict[str, Any]:
        record, values = self.record, self.properties
        return {
            "group": self.group, "queue_id": record.queue_id, "queue_offset": record.queue_offset,
            "physical_offset": record.physical_offset, "msg_id": record.message_id,
            "origin_topic": self.origin_topic,
            "origin_msg_id": values.get(props.ORIGIN_MESSAGE_ID),
            "reconsume_times": record.reconsume_times, "born_timestamp": record.born_timestamp,
            "store_timestamp": record.store_timestamp,
            "keys": props.split_keys(values.get(props.KEYS)),
            "unique_key": values.get(props.UNIQUE_KEY)}


def groups_with(store: Store) -> list[str]:
    """Return the groups that have a dead letter topic, sorted."""
    return [topic.removeprefix(props.DLQ_PREFIX) for topic in topics_on_disk(store)
            if topic.startswith(props.DLQ_PREFIX)]


def dead_letters(view: View, group: str, selection: Selection,
                 report: Report) -> Iterator[DeadLetter]:
    """Yield the dead letters of a group that match ``selection``, in log order."""
    wanted = replace(selection, topic=props.DLQ_PREFIX + group)
    for record in Selector(view.store, wanted, view, report).records():
        yield DeadLetter(group, record)


class Requeued:
    """The messages that were already requeued into a store.

    Each such message has a property with the id of its dead letter. The message is looked up by its
    unique key. If it has no unique key, or the store has no index, the target topic is read once.
    """

    def __init__(self, view: View, report: Report) -> None:
        self._view, self._report = view, report
        self._read: dict[str, dict[str, str]] = {}

    def find(self, letter: DeadLetter) -> str | None:
        """Return the id of the requeued message for a dead letter; None if the dead letter was not
        requeued.
        """
        topics = [target(letter, into) for into in ("original", "retry")]
        named = [topic for topic in topics if topic is not None]
        unique = letter.properties.get(props.UNIQUE_KEY)
        marked = letter.record.message_id
        if unique is not None and self._view.store.index.listing.files:
            for record in by_unique_key(self._view.store, unique, named, self._report):
                if props.parse(text(record.properties)).get(props.REQUEUED) == marked and (
                        text(record.topic) in named):
                    return record.message_id
            return None
        return next((message_id for topic in named
                     if (message_id := self._of(topic).get(marked)) is not None), None)

    def _of(self, topic: str) -> dict[str, str]:
        if topic not in self._read:
            marked = Condition.of(f"property.{props.REQUEUED}", "~", ".")
            wanted = Selection(topic=topic, where=(marked,))
            self._read[topic] = {
                props.parse(text(record.properties))[props.REQUEUED]: record.message_id
                for record in Selector(self._view.store, wanted, self._view,
                                       self._report).records()}
        return self._read[topic]


def target(letter: DeadLetter, into: Into) -> str | None:
    """Return the target topic of a dead letter; None if its original topic is unknown."""
    return letter.origin_topic if into == "original" else props.RETRY_PREFIX + letter.group


class Resending:
    """Builds message objects from dead letters of ``source``, for `append` to ``store``.

    If ``store`` is ``source``, messages keep the store host of their dead letters. None: the store
    is unknown, and the topics are those of ``source``.
    """

    def __init__(self, source: Store, store: Store | None, into: Into) -> None:
        self._source, self._store, self._into = source, store or source, into
        self._here = store is source
        self._counts: dict[str, int] = {
            row["topic"]: row["write_queue_nums"]
            for row in load_one(self._store, "topics.json").rows()
            if isinstance(row["write_queue_nums"], int)}
        self._next: dict[str, int] = {}

    def object(self, letter: DeadLetter) -> dict[str, Any] | None:
        """Return the message object for a dead letter; None if its topic is unknown."""
        topic = target(letter, self._into)
        if topic is None or letter.origin_topic is None:
            return None
        record = letter.record
        properties = {name: value for name, value in letter.properties.items()
                      if name not in _ADDED and not name.startswith(_ADDED_BY)}
        if self._into == "retry":  # consumers pass it to the listeners of that topic
            properties[props.RETRY_TOPIC] = letter.origin_topic
        properties[props.REQUEUED] = record.message_id
        body, encoding = encode(record.body, "auto")
        here = {"store_host": host_text(*record.store_host)} if self._here else {}
        return {"topic": topic, "queue_id": self._queue(letter, topic), "flag": record.flag,
                "sys_flag": record.sys_flag & ~(sysflag.TRANSACTION_MASK | HOST_BITS),
                "born_timestamp": record.born_timestamp,
                "born_host": host_text(*record.born_host), **here, "properties": properties,
                "body": body, "body_encoding": encoding}

    def _queue(self, letter: DeadLetter, topic: str) -> int:
        """Return the message's original queue if it still exists; otherwise choose a queue by round
        robin.
        """
        count = self._counts.get(topic) or len(queue_ids(self._store, "consumequeue", topic)) or 1
        first = record_of(self._source, letter.properties.get(props.ORIGIN_MESSAGE_ID, ""))
        if first is not None and text(first.topic) == topic and first.queue_id < count:
            return first.queue_id
        number = self._next.get(topic, 0)
        self._next[topic] = number + 1
        return number % count
