"""Put single messages: admission, rewriting, encoding, and the counter of the queue.

An ordinary message has checked topic, flags and hosts, and no value that could be invalid. With the
kernel extension, `SingleMessages.put_all` puts such messages by column (`columns`).
`SingleMessages.put` handles all other messages. A test ensures that both methods write the same
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from types import ModuleType

import numpy as np
from isal.isal_zlib import crc32

from rmqctl.broker.settings import Host, Settings
from rmqctl.engine.put import admission
from rmqctl.engine.put.admission import MAX_PROPERTIES
from rmqctl.engine.put.columns import Columns, Kind, LaneKey, Lanes
from rmqctl.engine.put.cursor import AppendCursor
from rmqctl.engine.put.encoder import Encoder, host_flags
from rmqctl.engine.put.message import (
    MESSAGE_ILLEGAL,
    PUT_OK,
    Outgoing,
    PutResult,
    Results,
    refused,
)
from rmqctl.engine.put.rewrite import Rewriter
from rmqctl.formats.local import append_crc
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    CRC_MASK,
    HOST_BITS,
    PROPERTIES_LENGTH_SIZE,
    variant,
)
from rmqctl.formats.local.sysflag import INNER_BATCH, has_consume_queue_row
from rmqctl.kernel import active

TopicQueueTable = dict[tuple[str, int], int]
"""For each (topic, queue id): the next queue offset."""

_MAX_KINDS = 8192
"""Maximum number of cached `Kind` objects."""
_FEW = 16
"""Minimum number of messages that are put by column; fewer messages are put faster one by one."""
_STRANGE = (TypeError, ValueError, OverflowError, AttributeError)
_LENGTHS = [number.to_bytes(PROPERTIES_LENGTH_SIZE, "big") for number in range(MAX_PROPERTIES + 1)]
"""The stored bytes of each possible length of a properties string."""

KindKey = tuple[str, int, Host | None, Host | None]


class SingleMessages:
    """The put path of single messages for one configuration. Not thread-safe."""

    def __init__(self, settings: Settings, encoder: Encoder, cursor: AppendCursor,
                 table: TopicQueueTable, is_batch_topic: Callable[[str], bool],
                 clock: Callable[[], int], rules: Rewriter) -> None:
        self._settings, self._encoder, self._cursor = settings, encoder, cursor
        self._table, self._clock, self._rules = table, clock, rules
        self._is_batch_topic = is_batch_topic
        self._kinds: dict[KindKey, Kind] = {}
        self._lanes = Lanes(self._ordinary_kind)
        self._reserved = encoder.reserved
        self._with_maps = settings.consumequeue_ext
        self._body_limit = settings.max_message_size
        self._record_limit = min(settings.max_message_size + settings.profile.body_room,
                                 settings.commitlog_file_size - BLANK_SIZE)

    def put_all(self, messages: Sequence[Outgoing], results: Results, *, stop: bool) -> bool:
        """Put messages in order, and add a result for each.

        With ``stop``, the first rejected message ends the group, and its result is the last one;
        the function then returns False.
        """
        kernel = active()
        columns = None if kernel is None or len(messages) < _FEW else (
            self._columns(messages, kernel))
        number = 0
        while number < len(messages):
            if columns is not None:
                number = self._put_ordinary(columns, number, results)
                if number == len(messages):
                    break
            result = self.put(messages[number])
            results.append(result)
            number += 1
            if stop and result.physical_offset is None:
                return False
        return True

    def _columns(self, messages: Sequence[Outgoing], kernel: ModuleType) -> Columns | None:
        """Return the messages by column; None if a message has a value that does not fit its
        field.
        """
        try:
            return Columns(messages, kernel, self._lanes, self._rules.concerns, self._body_limit,
                           self._record_limit)
        except _STRANGE:
            return None

    def _put_ordinary(self, columns: Columns, number: int, results: Results) -> int:
        """Put ordinary messages from ``number`` on; return the number of the first message that was
        not put.

        Stops at the end of a file, and before a message that must be put alone.
        """
        cursor, stop = self._cursor, columns.ordinary_until(number)
        if stop - number < _FEW:
            return number
        # Find how many fit into the file.
        ends = np.cumsum(columns.size[number:stop])
        room = cursor.end - BLANK_SIZE - cursor.position
        count = int(np.searchsorted(ends, room, "right"))
        if not count:
            return number
        part = slice(number, number + count)
        stored = columns.stored_at(part, self._clock)
        if int(stored.min()) < 0:
            return number
        # The records and the results.
        data, offsets = columns.records(part, cursor.position, self._table)
        sizes = columns.size[part]
        places = ends[:count] - sizes + cursor.position
        cursor.add(data)
        cursor.last_timestamp = int(stored[-1])
        results.add((places, sizes, offsets, stored), columns.store_hosts(part))
        return part.stop

    def put(self, message: Outgoing) -> PutResult:
        """Put a message of any kind, and return its result."""
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
        has_row = has_consume_queue_row(kind.sys_flag)
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
        # Queue offset, space in the file, encoding.
        key = message.topic, message.queue_id
        queue_offset = table.get(key, 0) if has_row else 0
        cursor.make_room(size)
        physical = cursor.position
        born = message.born_timestamp
        store_host = kind.store_host
        record = b"".join((
            kind.pack(size, kind.magic, crc32(body) & CRC_MASK, message.queue_id, message.flag,
                      queue_offset, physical, kind.sys_flag, now if born is None else born,
                      *kind.born_host, now, *store_host,
                      message.reconsume_times, message.prepared_transaction_offset, len(body)),
            body, kind.topic, _LENGTHS[properties_size], raw))
        if self._with_maps:
            cursor.bit_maps[physical] = message.filter_bit_map
        cursor.add(append_crc.seal(record + bytes(self._reserved)) if self._reserved else record)
        # The counters of its queues.
        if has_row:
            table[key] = queue_offset + inner
        for other in advancing:
            table[other] = table.get(other, 0) + 1
        cursor.last_timestamp = now
        return PutResult(PUT_OK, physical, size, queue_offset, inner, now, store_host)

    def _kind_of(self, message: Outgoing) -> Kind:
        """Return the values that records with this topic, flags and hosts have in common. The
        arguments must be valid.
        """
        key = message.topic, message.sys_flag, message.born_host, message.store_host
        cached = self._kinds.get(key)
        if cached is not None:
            return cached
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        born = message.born_host or self._settings.born_host
        store = message.store_host or self._settings.store_host
        topic = self._encoder.topic_part(message.topic)
        sys_flag = host_flags(message.sys_flag, born, store)
        shape = variant(sys_flag & HOST_BITS, topic.magic)
        kind = Kind(topic.magic, topic.prefixed, shape.fixed_size + topic.length,
                    shape.head.pack, sys_flag, born, store)
        self._kinds[key] = kind
        return kind

    def _ordinary_kind(self, lane: LaneKey) -> Kind | None:
        """Return the common values of a lane's ordinary messages; None if the lane's messages must
        be put one by one.
        Raises: TypeError for a value that is not a number.
        """
        topic, queue_id, sys_flag, born_host, store_host = lane
        probe = Outgoing(topic, b"", "", index(queue_id), 0, index(sys_flag),
                         born_host=born_host, store_host=store_host)
        if (self._reserved or self._with_maps or sys_flag & INNER_BATCH
                or not has_consume_queue_row(sys_flag)
                or admission.check_message(probe, self._settings,
                                           hooks=self._settings.broker_checks) is not None):
            return None
        return self._kind_of(probe)


def does_not_fit(size: int, settings: Settings) -> PutResult | None:
    """Return the result for a record of ``size`` bytes that is too large for a commitlog file; None
    if the record fits.
    """
    if size + BLANK_SIZE > settings.commitlog_file_size:
        return refused(MESSAGE_ILLEGAL, f"a record of {size} bytes does not fit into a "
                       f"commitlog file of {settings.commitlog_file_size}")
    return None
