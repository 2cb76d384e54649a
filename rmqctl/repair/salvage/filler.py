"""Fillers: well-formed records that replace lost messages and fill damaged bytes.

A *row filler* has the topic, queue and queue offset of a lost message, so that dispatch creates the
consume queue entry of that message again. Its body is one or more zero bytes and matches its CRC.
Without KEYS and UNIQ_KEY, a row filler has no index entries.

Every other filler has the transaction type ROLLBACK, so no broker creates a consume queue entry or
index entry for it (recovery.md §6, consumequeue.md §4, index.md §5).

How brokers treat a row filler (from the sources of 4.9.3 and 5.3.3):

* Ordinary, ``%RETRY%`` and light queues: consumers get a message of zeros whose property ``RMQCTL``
  is ``lost``. The mark is written whenever it fits, because 4.9.3 with enableMultiDispatch cannot
  process a message without properties (checkMultiDispatchQueue tests ``prop == null &&
  prop.isEmpty()``).
* ``SCHEDULE_TOPIC_XXXX``: a message without REAL_QID stops the delay level forever in 4.9.3
  (parseInt throws, and the task is repeated at the same offset). A message whose REAL_TOPIC is the
  half topic is discarded with an error in the broker's log, and delivery continues. The tags code 0
  means that the message is due.
* ``RMQ_SYS_TRANS_HALF_TOPIC``: a born time of 0 is older than any fileReservedTime, so the check
  service treats the message as expired (needSkip) and moves it to TRANS_CHECK_MAX_TIME_TOPIC.
* ``RMQ_SYS_TRANS_OP_HALF_TOPIC``: the filler has the tag ``d`` and a body that is not a number. For
  this body, getLong returns -1, which is smaller than any offset, so the op counts as done.
* ``rmq_sys_wheel_timer`` (5.x): a message without TIMER_OUT_MS stops enqueueing forever. A message
  whose time is 0 is delivered immediately, and TIMER_DEL_UNIQKEY makes doPut drop it.
* Batch queues: the filler has INNER_NUM, INNER_BASE and the flag INNER_BATCH. The flag NEED_UNWRAP
  is not set, so clients do not unwrap the body.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

import numpy as np

from rmqctl.formats import layout
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import LOST, MARK, NOWHERE, TOPIC
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    CRC_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MIN_SIZE,
    Blank,
    Record,
    build,
    magic_for,
    size_of,
    variant,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, shape
from rmqctl.scan.overlay import Parts

MAX_FILLER = 4 << 20
"""Maximum size of a filler in bytes: a broker's default maximum message size."""
_ZEROS = 1 << 16
_PAGE = bytes(_ZEROS)
_BLANK = layout.reader(Blank)
_MIN_BODY = 1
"""Minimum length of a filler's body in bytes. A push consumer of 4.9 requests a message with an
empty body again and again, and mqadmin's printMsg stops at such a message.
"""
REQUIRED: dict[str, dict[str, str]] = {
    props.SCHEDULE_TOPIC: {props.REAL_TOPIC: props.HALF_TOPIC, props.REAL_QUEUE_ID: "0"},
    props.OP_HALF_TOPIC: {props.TAGS: "d"},
    props.TIMER_TOPIC: {props.TIMER_OUT_MS: "0", "TIMER_DEL_UNIQKEY": "-",
                        props.REAL_TOPIC: props.NO_TOPIC, props.REAL_QUEUE_ID: "0"},
}


@dataclass(frozen=True, slots=True)
class FillerEntry:
    """A consume queue entry that a filler restores."""

    topic: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Style:
    """The common style of a store's fillers.

    ``sealed``: whether they end with a ``__CRC32#`` property, as every message of the store does. A
    broker with forceVerifyPropCRC truncates its log at a message without it. ``host``: store host
    (address, port).
    """

    sealed: bool = False
    host: tuple[bytes, int] = NOWHERE


@dataclass(frozen=True, slots=True)
class Filler:
    """Content of a row filler.

    * ``rows``: first the entry of its own queue, then entries of further queues.
    * ``batch``: number of queue offsets that the filler covers in a batch queue; 0 for a plain
      queue.
    """

    rows: tuple[FillerEntry, ...]
    batch: int = 0

    @property
    def topic(self) -> bytes:
        return _raw(self.rows[0].topic)

    @property
    def required(self) -> dict[str, str]:
        """Return the properties that the filler needs to be harmless to a broker and to get all its
        entries.
        """
        own = self.rows[0]
        properties = dict(REQUIRED.get(own.topic, {}))
        if self.batch:
            properties[props.INNER_NUM] = str(self.batch)
            properties[props.INNER_BASE] = str(own.queue_offset)
        if len(self.rows) > 1:
            properties[props.MULTI_DISPATCH] = ",".join(row.topic for row in self.rows[1:])
            properties[props.MULTI_QUEUE_OFFSET] = ",".join(
                str(row.queue_offset) for row in self.rows[1:])
        return properties

    def least(self, style: Style) -> int:
        """Return the size of the smallest record with this content."""
        return self.tight(style) + _MIN_BODY

    def tight(self, style: Style) -> int:
        """Return the size of the record with an empty body.

        This size is for a lost message without body and properties, if no neighbour can give up a
        byte.
        """
        return size_of(0, self._magic, 0, len(self.topic), len(_text(self.required, style)))

    def wanted(self, style: Style) -> int:
        """Return the size of the smallest record with this content and the mark RMQCTL=lost."""
        text = _text(self.required | {MARK: LOST}, style)
        return size_of(0, self._magic, _MIN_BODY, len(self.topic), len(text))

    @property
    def _magic(self) -> int:
        return magic_for(self.topic)

    def parts(self, physical: int, size: int, time: int, style: Style) -> Parts:
        """Return the record of ``size`` bytes, as parts at positions relative to its start.

        ``physical``: its physical offset; ``time``: its store time (ms). Raises: ValueError if
        ``size`` is less than `tight`.
        """
        if size < self.tight(style):
            raise ValueError(f"{size} bytes are too few for a filler of {self.rows[0].topic}")
        values = self.required
        if size >= self.wanted(style):
            values[MARK] = LOST
        own = self.rows[0]
        template = _template(self._magic, self.topic, _text(values, style),
                             sysflag.INNER_BATCH if self.batch else 0, style.host)
        return _record(template, self._magic, physical, size, style, queue_id=own.queue_id,
                       queue_offset=own.queue_offset, store_timestamp=time,
                       born_timestamp=0 if own.topic == props.HALF_TOPIC else time)


    def columns(self, queue_id: Array, queue_offset: Array, physical: Array, size: Array,
                time: Array, style: Style) -> tuple[Array, Array]:
        """Return (headers, ends) of many records of this topic: uint8 arrays with one record per
        row.

        Between header and end, a record has only zeros. The filler must have a single entry, in a
        plain queue. The arguments have one value per record. All sizes must be at least `least`,
        and either all or none must be at least `wanted`.
        """
        values = self.required
        if int(size.min()) >= self.wanted(style):
            values[MARK] = LOST
        head, end = _template(self._magic, self.topic, _text(values, style), 0, style.host)
        heads: Any = np.frombuffer(head * len(size), shape(0, self._magic).dtype).copy()
        ends: Any = np.frombuffer(end * len(size), np.uint8).reshape(len(size), -1).copy()
        rest = size - len(head) - len(end)
        lengths, which = np.unique(rest, return_inverse=True)
        heads["body_crc"] = np.array([_crc_of_zeros(length) for length in lengths.tolist()])[which]
        for name, value in (
                ("total_size", size), ("body_length", rest), ("physical_offset", physical),
                ("queue_id", queue_id), ("queue_offset", queue_offset), ("store_timestamp", time),
                ("born_timestamp", 0 if self.rows[0].topic == props.HALF_TOPIC else time)):
            heads[name] = value
        if style.sealed:
            middle = end[:-append_crc.SIZE]
            raw = heads.tobytes()
            for row, count in enumerate(rest.tolist()):
                start = zlib.crc32(memoryview(raw)[row * len(head):(row + 1) * len(head)])
                crc = zlib.crc32(middle, _zeros(count, start)) & CRC_MASK
                ends[row, len(middle):] = np.frombuffer(append_crc.build(crc), np.uint8)
        return heads.view(np.uint8).reshape(len(size), -1), ends


def filler(physical: int, size: int, time: int, style: Style) -> Parts:
    """Return a record of ``size`` bytes that gets no consume queue or index entry.

    Raises: ValueError if ``size`` is less than `least_filler`.
    """
    if size < least_filler(style):
        raise ValueError(f"{size} bytes are too few for a record")
    topic, text = _raw(TOPIC), _text({MARK: LOST}, style)
    if size < size_of(0, MAGIC_V1, _MIN_BODY, len(topic), len(text)):
        text = _text({}, style)
    if size < size_of(0, MAGIC_V1, _MIN_BODY, len(topic), len(text)):
        topic = b""
    template = _template(MAGIC_V1, topic, text, sysflag.TRANSACTION_ROLLBACK, style.host)
    return _record(template, MAGIC_V1, physical, size, style, born_timestamp=time,
                   store_timestamp=time)


def least_filler(style: Style) -> int:
    """Return the size of the smallest filler in bytes."""
    return MIN_SIZE + _MIN_BODY + (append_crc.SIZE if style.sealed else 0)


def blank(size: int) -> Parts:
    """Return the end-of-file record that covers the last ``size`` bytes of a file (at least 8)."""
    if size < BLANK_SIZE:
        raise ValueError(f"{size} bytes are too few for an end-of-file record")
    return ((0, _BLANK.pack(size, MAGIC_BLANK)),)


def _raw(topic: str) -> bytes:
    return topic.encode("utf-8", "surrogateescape")


def _text(values: dict[str, str], style: Style) -> bytes:
    """Return the properties string. For a sealed record, it ends with zeros in place of the
    appended CRC.
    """
    text = props.build(values, trailing=style.sealed).encode("utf-8", "surrogateescape")
    return text + bytes(append_crc.SIZE) if style.sealed else text


@lru_cache(maxsize=4096)
def _template(magic: int, topic: bytes, properties: bytes, sys_flag: int,
              host: tuple[bytes, int]) -> tuple[bytes, bytes]:
    """Return (header, bytes after the body) of a filler with lengths, offsets and times set
    to 0.
    """
    raw = build(Record(
        total_size=0, magic=magic, body_crc=0, queue_id=0, flag=0, queue_offset=0,
        physical_offset=0, sys_flag=sys_flag, born_timestamp=0, born_host=NOWHERE,
        store_timestamp=0, store_host=host, reconsume_times=0,
        prepared_transaction_offset=0, body=b"", topic=topic, properties=properties))
    head = variant(0, magic).head_size
    return raw[:head], raw[head:]


def _record(template: tuple[bytes, bytes], magic: int, physical: int, size: int, style: Style,
            **values: int) -> Parts:
    """Return the sparse parts of a record of ``size`` bytes, with a body of zeros."""
    head, end = bytearray(template[0]), template[1]
    rest = size - len(head) - len(end)
    values.update(total_size=size, physical_offset=physical, body_crc=_crc_of_zeros(rest),
                  body_length=rest)
    fields = shape(0, magic).dtype.fields
    assert fields is not None
    for name, value in values.items():
        kind, place = fields[name][:2]
        head[place:place + kind.itemsize] = value.to_bytes(kind.itemsize, "big", signed=True)
    start = bytes(head)
    if style.sealed:
        crc = zlib.crc32(end[:-append_crc.SIZE], _zeros(rest, zlib.crc32(start))) & CRC_MASK
        end = end[:-append_crc.SIZE] + append_crc.build(crc)
    if rest <= BLANK_SIZE:
        return ((0, start + bytes(rest) + end),)
    return (0, start), (len(start) + rest, end)


def _zeros(count: int, crc: int = 0) -> int:
    """Return the CRC-32 of bytes with the CRC ``crc`` followed by ``count`` zero bytes."""
    while count > 0:
        crc = zlib.crc32(memoryview(_PAGE)[:min(count, _ZEROS)], crc)
        count -= _ZEROS
    return crc


@lru_cache(maxsize=1024)
def _crc_of_zeros(count: int) -> int:
    """Return the body CRC of ``count`` zero bytes; 0 for an empty body."""
    return _zeros(count) & CRC_MASK
