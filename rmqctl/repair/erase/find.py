"""The messages to erase, and their copies in the log.

When a broker copies a message (delayed, half, retry or dead letter), the copy has the same client
id, born time and born host. So a message counts as a copy of an erased message in two cases:

* It has the id of the erased message (or names that id as its origin), and also the same body, or
  the same born time and born host.
* It has no id, but the same born time, born host and body.

Clients choose the ids. A message that has only the same id, or only the same body, may be
unrelated. Such a message is counted, and erased only on request.

For a deleted topic, only delayed and returned messages are copies: an application may have
forwarded a message to another topic. For a deleted group, its retry and dead letter topics are
deleted. Their messages are themselves copies, and the originals are kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import field

import numpy as np

from rmqctl.formats import bodies
from rmqctl.formats.internal_topics import meaning
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import CRC_MASK, Record, decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.erase.inner import Inner, inner_messages, is_empty
from rmqctl.repair.erase.record import is_erased
from rmqctl.scan import text
from rmqctl.scan.frames import DAMAGED, Array, Batch
from rmqctl.store.store import Store

MIN_RUN = 16
"""Minimum size in bytes of a body that is searched for by content, and of a run of its bytes that
counts as a match.
"""
_MAX_HELD = 16 << 20
"""Maximum total size in bytes of the bodies that are searched for by content."""
_ORIGINS = (props.ORIGIN_MESSAGE_ID, "DLQ_ORIGIN_MESSAGE_ID")
_OF_TOPIC = (props.REAL_TOPIC, props.RETRY_TOPIC, props.DLQ_ORIGIN_TOPIC)
_MOVED = (props.HALF_TOPIC, props.SCHEDULE_TOPIC, props.TIMER_TOPIC)
_SENT_BACK = (props.RETRY_PREFIX, props.DLQ_PREFIX)


@dataclass(slots=True)
class Traits:
    """Properties by which copies are recognized.

    * ``ids``: ids from clients.
    * ``origins``: ids from brokers.
    * ``bodies``: bodies as the producer sent them.
    * ``topics``: topics to delete, with their delayed and returned messages.
    * ``named``: ids that the user named.
    """

    ids: set[bytes] = field(default_factory=set)
    origins: set[bytes] = field(default_factory=set)
    bodies: set[bytes] = field(default_factory=set)
    topics: frozenset[str] = frozenset()
    named: set[bytes] = field(default_factory=set)
    crcs: set[int] = field(default_factory=set)
    """CRCs of the bodies, as in the log."""
    births: set[tuple[int, tuple[bytes, int]]] = field(default_factory=set)
    """Born times (epoch ms) and born hosts (address, port) of the messages to erase."""
    held: int = 0
    selects: Callable[[Record, Inner], bool] | None = None
    """Function that returns whether the user selected a message of a batch."""
    whole_batches: bool = False
    """True to erase a whole compressed batch if one of its messages is to be erased."""
    unsearched: set[int] = field(default_factory=set)
    """Physical offsets of messages whose bodies are not searched for, because the total size of all
    bodies would exceed `_MAX_HELD`.
    """

    def add(self, record: Record) -> None:
        """Add the traits of a message, so that copies of the message are found."""
        unique = unique_key(record)
        if unique:
            self.ids.add(unique)
        self.origins.add(record.message_id.encode())
        self.births.add((record.born_timestamp, record.born_host))
        for body in {record.body, content(record)}:
            self.add_body(body, record.physical_offset)
        for item in inner_messages(record):
            self.ids.update(filter(None, [item.unique_key]))
            self.add_body(item.body, record.physical_offset)

    def add_body(self, body: bytes, physical: int) -> None:
        """Add a body to the traits, so that messages with this body are found."""
        if len(body) < MIN_RUN or body in self.bodies or not any(body):
            return
        if self.held + len(body) > _MAX_HELD:
            self.unsearched.add(physical)
            return
        self.held += len(body)
        self.bodies.add(body)
        self.crcs.add(zlib.crc32(body) & CRC_MASK)

    def has_inner(self, record: Record, inner: Inner, *, same_body: bool) -> bool | None:
        """Return whether a message of a batch is to be erased.

        A message is erased if the user named or selected it, or if it is a copy of an erased
        message. None if only its body matches and ``same_body`` is False.
        """
        unique = inner.unique_key
        if unique in self.named or (unique in self.ids and inner.body in self.bodies
                                    and not self.topics):
            return True
        if self.selects is not None and self.selects(record, inner):
            return True
        if inner.body in self.bodies:
            return True if same_body else None
        return False

    def is_copy(self, record: Record) -> bool:
        """Return whether the user named the message, or the message is a proven copy of an erased
        message.
        """
        properties = props.parse(record.properties.decode("utf-8", "surrogateescape"))
        unique, *origins = (None if (value := properties.get(name)) is None else value.encode(
            "utf-8", "surrogateescape") for name in (props.UNIQUE_KEY, *_ORIGINS))
        if unique in self.named:
            return True
        if self.topics and not self._is_of_topics(record, properties):
            return False
        is_born = (record.born_timestamp, record.born_host) in self.births
        has_body = record.body in self.bodies or content(record) in self.bodies
        if unique in self.ids or not (self.ids | self.origins).isdisjoint(filter(None, origins)):
            return is_born or has_body
        return unique is None and is_born and has_body

    def _is_of_topics(self, record: Record, properties: dict[str, str]) -> bool:
        """Return whether a message may be a delayed or returned message of one of the topics."""
        topics = {properties[name] for name in _OF_TOPIC if name in properties}
        return _is_moved(record.topic.decode("utf-8", "replace")) and (
            not topics or not topics.isdisjoint(self.topics))

    @property
    def size(self) -> int:
        return len(self.ids) + len(self.origins) + len(self.bodies) + len(self.births)


@dataclass(slots=True)
class Matches:
    """Messages found in the log, by physical offset.

    * ``messages``: messages to erase, each with its role (message, kind of copy).
    * ``doubtful``: messages that have only the id or only the body of an erased message.
    * ``batches``: batches that contain messages to erase.
    * ``closed``: batches that cannot be erased in part, each with the number of its other messages
      (-1: unknown).
    * ``damaged``: number of bytes of the log that cannot be searched.
    """

    messages: dict[int, str] = field(default_factory=dict)
    doubtful: set[int] = field(default_factory=set)
    batches: set[int] = field(default_factory=set)
    closed: dict[int, int] = field(default_factory=dict)
    damaged: int = 0
    shared: set[str] = field(default_factory=set)
    """Topics whose messages are shared with LMQs."""


def _is_moved(topic: str) -> bool:
    return topic in _MOVED or topic.startswith(_SENT_BACK)


def content(record: Record) -> bytes:
    """Return the decompressed body of a message."""
    return bodies.decompressed(sysflag.compression(record.sys_flag), record.body)[0]


def unique_key(record: Record) -> bytes | None:
    """Return the client's id of a message; None if the message has no id."""
    properties = props.parse(record.properties.decode("utf-8", "surrogateescape"))
    value = properties.get(props.UNIQUE_KEY)
    return None if value is None else value.encode("utf-8", "surrogateescape")


def find(store: Store, traits: Traits, chosen: Iterable[Record], *, same_body: bool,
         advance: Callable[[int], None] = lambda _bytes: None) -> Matches:
    """Return the ``chosen`` messages and all messages that the traits identify. Raises:
    StoreIOError.

    Messages that are found add traits, so the log is read again until a reading adds none.
    """
    matches = Matches()
    for record in chosen:
        matches.messages[record.physical_offset] = "message"
        traits.add(record)
    while traits.size or traits.topics or traits.selects:
        before, matches.damaged = traits.size, 0
        for batch in store.log.walk(whole=True):
            matches.damaged += sum(span.length for span in batch.spans if span.kind == DAMAGED)
            if len(batch):
                _look(batch, traits, matches, same_body=same_body)
                advance(int(batch.column("total_size").sum()))
        if traits.size == before:
            break
    matches.doubtful -= matches.messages.keys()
    matches.batches -= matches.messages.keys()
    matches.closed = {physical: others for physical, others in matches.closed.items()
                      if physical not in matches.messages}
    return matches


def _look(batch: Batch, traits: Traits, matches: Matches, *, same_body: bool) -> None:
    """Add the messages to erase in a batch of records to ``matches``."""
    properties = text.PropertySegments(batch)
    rows: set[int] = set()
    # By ids: in properties, by column.
    for names, wanted in (((props.UNIQUE_KEY, *_ORIGINS), traits.ids), (_ORIGINS, traits.origins)):
        for name in names if wanted else ():
            rows.update(_having(properties, name, wanted))
    # By topic: its own messages, and delayed or returned ones.
    topics = text.topics(batch)
    of_topics: set[int] = set()
    copies: set[int] = set()
    for rows_of, are_copies in ((of_topics, False), (copies, True)):
        wanted = {topic.encode() for topic in traits.topics
                  if topic.startswith(_SENT_BACK) == are_copies}
        for topic in wanted:
            rows_of.update(np.flatnonzero(topics.equal(topic)).tolist())
        for name in _OF_TOPIC if wanted else ():
            rows_of.update(row for row in _having(properties, name, wanted) if _is_moved(
                topics.take([row]).tolist()[0].decode("utf-8", "replace")))
    of_topics |= copies
    rows |= of_topics
    for row in rows:
        record = decode(batch.bytes_at(row))
        own = record.topic.decode("utf-8", "replace")
        if own in traits.topics and _SHARED in record.properties:
            matches.shared.add(own)
        if is_erased(record):
            continue
        if row not in of_topics and record.physical_offset not in matches.messages and not (
                same_body or traits.is_copy(record)):
            matches.doubtful.add(record.physical_offset)
            continue
        matches.messages.setdefault(record.physical_offset, _role(record, traits))
        if row not in copies:
            traits.add(record)
    # By content: bodies of the same length and CRC, and compressed, batched or trace messages.
    for row in _suspects(batch, topics, traits).tolist():
        if row not in rows:
            _by_content(decode(batch.bytes_at(row)), traits, matches, same_body=same_body)


def _having(properties: text.PropertySegments, name: str, wanted: set[bytes]) -> list[int]:
    marked, values = properties.find(name)
    if not len(marked):
        return []
    place = text.FixedTexts(sorted(wanted)).encode(values, -1)
    rows: list[int] = np.asarray(marked)[place >= 0].tolist()
    return rows


def _suspects(batch: Batch, topics: text.Texts, traits: Traits) -> Array:
    """Return the indexes of the records whose body may match.

    The body may be, or may contain, a body or an id that is searched for.
    """
    crcs = np.array(sorted(traits.crcs), np.int64)
    flags = batch.column("sys_flag")
    mask: Array = (flags & sysflag.COMPRESSED != 0) & bool(traits.bodies)
    mask |= (flags & sysflag.INNER_BATCH != 0) & bool(
        traits.bodies or traits.named or traits.selects)
    mask |= np.isin(batch.column("body_crc"), crcs)
    traced = (topics.length >= len(_TRACE_PREFIX)) if traits.ids else np.zeros(len(batch), bool)
    for row in np.flatnonzero(traced & ~mask).tolist():
        mask[row] = topics.take([row]).tolist()[0].lower().startswith(_TRACE_PREFIX)
    return np.flatnonzero(mask)


_TRACE_PREFIX = b"rmq_sys_trace_"
_SHARED = props.MULTI_DISPATCH.encode()


def _by_content(record: Record, traits: Traits, matches: Matches, *, same_body: bool) -> None:
    physical, plain = record.physical_offset, content(record)
    own = meaning(record.topic.decode("utf-8", "replace"), {})
    # A trace names ids, and has the keys of their messages.
    if own is not None and own["kind"] == "trace":
        fields = {part for line in plain.split(b"\2") for part in line.split(b"\1")}
        if any(field in traits.ids or field in traits.origins for field in fields):
            matches.messages.setdefault(physical, "trace")
        return
    if record.body in traits.bodies or plain in traits.bodies:
        if same_body or traits.is_copy(record):
            matches.messages.setdefault(physical, _role(record, traits))
            traits.add(record)
        else:
            matches.doubtful.add(physical)
    elif record.sys_flag & sysflag.INNER_BATCH:
        _inside(record, plain, traits, matches, same_body=same_body)


def _inside(record: Record, plain: bytes, traits: Traits, matches: Matches, *,
            same_body: bool) -> None:
    """Add a batch record to ``matches`` if it contains messages to erase."""
    physical = record.physical_offset
    items = inner_messages(record, plain)
    judged = [(item, traits.has_inner(record, item, same_body=same_body)) for item in items]
    if any(is_copy is None for _, is_copy in judged):
        matches.doubtful.add(physical)
    gone = [item for item, is_copy in judged if is_copy and not is_empty(item)]
    for item in gone:
        traits.ids.update(filter(None, [item.unique_key]))
        traits.add_body(item.body, physical)
    if not record.sys_flag & sysflag.COMPRESSED:
        matches.batches.update([physical] if gone else ())
    elif gone and traits.whole_batches:
        matches.messages.setdefault(physical, "batch")
    elif gone:
        matches.closed[physical] = len(items) - len(gone)
    if not items and any(body in plain for body in traits.bodies):
        matches.closed[physical] = -1


def _role(record: Record, traits: Traits) -> str:
    """Return the role of a message: "message" in a deleted topic, otherwise the kind of copy."""
    topic = record.topic.decode("utf-8", "replace")
    if topic in traits.topics:
        return "message"
    own = meaning(topic, props.parse(record.properties.decode("utf-8", "replace")))
    return "copy" if own is None else str(own["kind"])
