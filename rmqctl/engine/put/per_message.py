"""Single messages become records: admission, rewriting, encoding, the queue's counter.

`SingleMessages.run` takes the ordinary ones in a loop of their own: what has been seen to be right
before, with numbers and texts that can only be right, needs no further look. `SingleMessages.put`
is the whole way, for everything else. A message that the one takes leads to the same bytes as by
the other; a test holds this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from isal.isal_zlib import crc32

from rmqctl.broker.settings import Host, Settings
from rmqctl.engine.put import admission
from rmqctl.engine.put.admission import INT, LONG, MAX_PROPERTIES
from rmqctl.engine.put.cursor import Cursor
from rmqctl.engine.put.encoder import Encoder, host_flags
from rmqctl.engine.put.message import (
    MESSAGE_ILLEGAL,
    PUT_OK,
    Outgoing,
    OutgoingBatch,
    PutResult,
    refused,
)
from rmqctl.engine.put.rewrite import Rewriter
from rmqctl.formats.local import append_crc
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    CRC_MASK,
    HOST_BITS,
    PROPERTIES_LENGTH_SIZE,
    Record,
    variant,
)
from rmqctl.formats.local.sysflag import INNER_BATCH, has_consume_queue_row

TopicQueueTable = dict[tuple[str, int], int]
"""The next queue offset of each (topic, queue id)."""

_KNOWN = 8192
"""Kinds of records that are remembered."""
_LENGTHS = [number.to_bytes(PROPERTIES_LENGTH_SIZE, "big") for number in range(MAX_PROPERTIES + 1)]


class Kind(NamedTuple):
    """What all records of one topic, set of flags and pair of hosts share."""

    magic: int
    topic: bytes
    """Behind its length, as stored."""
    fixed: int
    """Bytes of everything but body and properties."""
    pack: Callable[..., bytes]
    sys_flag: int
    has_row: bool
    born_address: bytes
    born_port: int
    store_address: bytes
    store_port: int
    store_host: Host


KindKey = tuple[str, int, Host | None, Host | None]


class SingleMessages:
    """Puts single messages of one configuration. Not thread-safe."""

    def __init__(self, settings: Settings, encoder: Encoder, cursor: Cursor,
                 table: TopicQueueTable, is_batch_topic: Callable[[str], bool],
                 clock: Callable[[], int], rules: Rewriter) -> None:
        self._settings, self._encoder, self._cursor = settings, encoder, cursor
        self._table, self._clock, self._rules = table, clock, rules
        self._is_batch_topic = is_batch_topic
        self._kinds: dict[KindKey, Kind] = {}
        self._ordinary: dict[KindKey, Kind] = {}
        self._reserved = encoder.reserved
        self._with_maps = settings.consumequeue_ext
        self._body_limit = settings.max_message_size
        self._record_limit = min(settings.max_message_size + settings.profile.body_room,
                                 settings.commitlog_file_size - BLANK_SIZE)

    def run(self, messages: Sequence[Outgoing | OutgoingBatch | Record], number: int,
            results: list[PutResult]) -> int:
        """Puts ordinary messages from ``number`` on; the number of the first that is not one.

        It stops before the end of a file as well, and before whatever needs a closer look.
        """
        cursor, table, ordinary, clock = self._cursor, self._table, self._ordinary, self._clock
        body_limit, record_limit = self._body_limit, self._record_limit
        parts, starts, base = cursor.parts, cursor.starts, cursor.base
        position, last = cursor.position, cursor.end - BLANK_SIZE
        timestamp = cursor.last_timestamp
        for message in islice(messages, number, None):
            if type(message) is not Outgoing:
                break
            properties, body = message.properties, message.body
            kind = ordinary.get((message.topic, message.sys_flag, message.born_host,
                                 message.store_host))
            # "DEL" is in all requests for a delay: DELAY, TIMER_DELAY_*, TIMER_DELIVER_MS.
            if (kind is None or "DEL" in properties or "INNER_" in properties
                    or not properties.isascii()):
                break
            queue_id, flag, now = message.queue_id, message.flag, message.store_timestamp
            born, again = message.born_timestamp, message.reconsume_times
            prepared = message.prepared_transaction_offset
            if now is None:
                now = clock()
            if born is None:
                born = now
            raw = properties.encode()
            body_size, properties_size = len(body), len(raw)
            (magic, topic, fixed, pack, sys_flag, _, born_address, born_port, store_address,
             store_port, store_host) = kind
            size = fixed + body_size + properties_size
            if (properties_size > MAX_PROPERTIES or body_size > body_limit
                    or size > record_limit or position + size > last
                    or (queue_id | flag | again) >> INT or (prepared | born | now) >> LONG):
                break
            key = message.topic, queue_id
            offset = table.get(key, 0)
            starts.append(position - base)
            parts.append(b"".join((
                pack(size, magic, crc32(body) & CRC_MASK, queue_id, flag, offset, position,
                     sys_flag, born, born_address, born_port, now, store_address, store_port,
                     again, prepared, body_size),
                body, topic, _LENGTHS[properties_size], raw)))
            results.append(PutResult(PUT_OK, position, size, offset, 1, now, store_host))
            table[key] = offset + 1
            position += size
            timestamp = now
            number += 1
        cursor.position, cursor.last_timestamp = position, timestamp
        return number

    def put(self, message: Outgoing) -> PutResult:
        """Puts any message, or says why not."""
        settings, cursor, table = self._settings, self._cursor, self._table
        # Admission.
        wrong = admission.check_message(message, settings, hooks=settings.broker_checks)
        if wrong is not None:
            return wrong
        now = message.store_timestamp
        if now is None:
            now = self._clock()
        # Rewriting.
        inner = 1
        advancing: Sequence[tuple[str, int]] = ()
        checked = False
        if self._rules.concerns(message):
            rewritten = self._rules.apply(message, now, table, self._is_batch_topic)
            if isinstance(rewritten, PutResult):
                return rewritten
            message, inner = rewritten.message, rewritten.message_number
            advancing, checked = rewritten.advancing, rewritten.multi_dispatch
        # Sizes.
        kind = self._kind_of(message)
        raw, body = self._encoder.properties_part(message.properties), message.body
        properties_size = len(raw) + self._reserved
        size = kind.fixed + len(body) + properties_size
        if (properties_size > MAX_PROPERTIES or len(body) > self._body_limit
                or size > self._record_limit):
            wrong = None if checked else admission.check_sizes(settings, len(body),
                                                               properties_size, size)
            wrong = wrong or does_not_fit(size, settings)
            if wrong is not None:
                return wrong
        # Queue offset, room in the file, encoding.
        key = message.topic, message.queue_id
        queue_offset = table.get(key, 0) if kind.has_row else 0
        cursor.make_room(size)
        physical = cursor.position
        born = message.born_timestamp
        store_host = kind.store_host
        record = b"".join((
            kind.pack(size, kind.magic, crc32(body) & CRC_MASK, message.queue_id, message.flag,
                      queue_offset, physical, kind.sys_flag, now if born is None else born,
                      kind.born_address, kind.born_port, now, *store_host,
                      message.reconsume_times, message.prepared_transaction_offset, len(body)),
            body, kind.topic, _LENGTHS[properties_size], raw))
        if self._with_maps:
            cursor.bit_maps[physical] = message.filter_bit_map
        cursor.add(append_crc.seal(record + bytes(self._reserved)) if self._reserved else record)
        # The counters of its queues.
        if kind.has_row:
            table[key] = queue_offset + inner
        for other in advancing:
            table[other] = table.get(other, 0) + 1
        cursor.last_timestamp = now
        return PutResult(PUT_OK, physical, size, queue_offset, inner, now, store_host)

    def _kind_of(self, message: Outgoing) -> Kind:
        """What the records of this topic, these flags and hosts share; they were checked."""
        key = message.topic, message.sys_flag, message.born_host, message.store_host
        known = self._kinds.get(key)
        if known is not None:
            return known
        if len(self._kinds) >= _KNOWN:
            self._kinds.clear()
            self._ordinary.clear()
        born = message.born_host or self._settings.born_host
        store = message.store_host or self._settings.store_host
        topic = self._encoder.topic_part(message.topic)
        sys_flag = host_flags(message.sys_flag, born, store)
        shape = variant(sys_flag & HOST_BITS, topic.magic)
        kind = Kind(topic.magic, topic.prefixed, shape.fixed_size + topic.length,
                    shape.head.pack, sys_flag, has_consume_queue_row(sys_flag), *born, *store,
                    store)
        self._kinds[key] = kind
        if kind.has_row and not (sys_flag & INNER_BATCH or self._reserved or self._with_maps):
            self._ordinary[key] = kind
        return kind


def does_not_fit(size: int, settings: Settings) -> PutResult | None:
    """Why a record of ``size`` bytes can lie in no commitlog file."""
    if size + BLANK_SIZE > settings.commitlog_file_size:
        return refused(MESSAGE_ILLEGAL, f"a record of {size} bytes does not fit into a "
                       f"commitlog file of {settings.commitlog_file_size}")
    return None
