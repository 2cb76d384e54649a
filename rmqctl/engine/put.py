"""The put path: messages become records at the end of the log (spec: recovery.md §7-§10).

One group of messages is encoded into one stretch of bytes per commitlog file and written at
once. The order of the steps for each message is a broker's: admission, rewriting, queue offset,
encoding, room in the file or the END_OF_FILE blank, append, the queue's counter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from isal.isal_zlib import crc32

from rmqctl.engine import admission, rewrite
from rmqctl.engine.encoder import Encoder, body_crc, host_flags
from rmqctl.engine.faults import INT, LONG, MAX_PROPERTIES
from rmqctl.engine.message import Outgoing, OutgoingBatch
from rmqctl.engine.recorded import Recorder
from rmqctl.engine.result import MESSAGE_ILLEGAL, PUT_OK, PutResult, refused
from rmqctl.engine.settings import Host, Settings
from rmqctl.formats import append_crc
from rmqctl.formats.message import BLANK_SIZE, CRC_MASK, HOST_BITS, Record, variant
from rmqctl.formats.sysflag import has_consume_queue_row
from rmqctl.scan.frames import PROPERTIES_LENGTH_SIZE

Message = Outgoing | OutgoingBatch | Record
TopicQueueTable = dict[tuple[str, int], int]
"""The next queue offset of each (topic, queue id)."""



class AppendLog(Protocol):
    """The log as the put path sees it; offsets are physical, sizes in bytes."""

    @property
    def current(self) -> object | None:
        """The file that is appended to; None before the first."""

    @property
    def files(self) -> Sequence[object]:
        """All files, oldest first."""

    @property
    def position(self) -> int:
        """Where the next byte goes."""

    def room(self) -> int:
        """Bytes left in the current file; a whole file's where there is none yet."""

    def append(self, parts: Sequence[bytes]) -> None:
        """Writes at ``position``; makes the first file of an empty log."""

    def close_with_blank(self) -> None:
        """Ends the current file with the END_OF_FILE record."""

    def roll(self) -> None:
        """Goes on in the next file."""

    def start_at(self, physical: int) -> None:
        """Where the first file of an empty log is to begin."""


_KNOWN = 8192
"""Kinds of records that are remembered."""


@dataclass(slots=True)
class Stretch:
    """Whole records that lie behind each other in one file, from physical offset ``base`` on."""

    base: int
    data: bytes
    starts: list[int] = field(default_factory=list)
    """Where in ``data`` each record starts."""
    bit_maps: dict[int, bytes | None] = field(default_factory=dict)


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


class PutPath:
    """Encodes and appends. Not thread-safe: the engine's put lock guards it."""

    def __init__(self, settings: Settings, log: AppendLog, table: TopicQueueTable,
                 is_batch_topic: Callable[[str], bool], clock: Callable[[], int],
                 begin: Callable[[], None], keep_queue_offsets: bool = False) -> None:
        self.settings, self.log, self.table = settings, log, table
        self.encoder = Encoder(settings)
        self.clock = clock
        self.last_timestamp = 0
        self._is_batch_topic = is_batch_topic
        self._begin = begin
        self._profile = settings.profile
        self._parts: list[bytes] = []
        self._starts: list[int] = []
        self._base = self._position = 0
        self._end = 0
        self._bit_maps: dict[int, bytes | None] = {}
        self._stretches: list[Stretch] = []
        self._kinds: dict[tuple[str, int, Host | None, Host | None], Kind] = {}
        self._reserved = self.encoder.reserved
        self._rules = rewrite.Rewriter(settings)
        self._recorder = Recorder(table, keep_queue_offsets)
        self._body_limit = settings.max_message_size
        self._record_limit = min(settings.max_message_size + self._profile.body_room,
                                 settings.commitlog_file_size - BLANK_SIZE)
        self._with_maps = settings.consumequeue_ext

    def put(self, messages: Sequence[Message], *,
            stop: bool = False) -> tuple[list[PutResult], list[Stretch]]:
        """Appends a group in order: (a result for each message, what was written).

        A refused message writes nothing and does not stop the others, unless ``stop``: then its
        result is the last. StoreIOError when the system fails; nothing is acknowledged then.
        """
        self._position = self._base = self.log.position
        self._end = self._position + self.log.room()
        self._parts, self._starts, self._stretches, self._bit_maps = [], [], [], {}
        results: list[PutResult] = []
        for message in messages:
            if isinstance(message, Outgoing):
                result = self._put_one(message)
            elif isinstance(message, OutgoingBatch):
                result = self._put_batch(message)
            else:
                result = self._put_recorded(message)
            results.append(result)
            if stop and result.physical_offset is None:
                break
        self._write()
        return results, self._stretches

    # -- one message --------------------------------------------------------------------------

    def _put_one(self, message: Outgoing) -> PutResult:
        properties, body = message.properties, message.body
        queue_id, flag, now = message.queue_id, message.flag, message.store_timestamp
        born, again = message.born_timestamp, message.reconsume_times
        prepared = message.prepared_transaction_offset
        kind = self._kinds.get((message.topic, message.sys_flag, message.born_host,
                                message.store_host))
        # What has been seen to be right before, and numbers and texts that can only be right,
        # need no further look.
        if (kind is None or not properties.isascii() or len(properties) > MAX_PROPERTIES
                or (queue_id | flag | again) >> INT
                or (prepared | (born or 0) | (now or 0)) >> LONG):
            wrong = admission.check_message(message, self.settings,
                                            hooks=self.settings.broker_checks)
            if wrong is not None:
                return wrong
        if now is None:
            now = self.clock()
        inner = 1
        advancing: Sequence[tuple[str, int]] = ()
        checked = False
        if self._rules.concerns(message):
            found = self._rules.apply(message, now, self.table, self._is_batch_topic)
            if isinstance(found, PutResult):
                return found
            message, inner, advancing = found.message, found.message_number, found.advancing
            checked = found.multi_dispatch
            properties, queue_id = message.properties, message.queue_id
            kind = self._kinds.get((message.topic, message.sys_flag, message.born_host,
                                    message.store_host))
        (magic, topic, fixed, pack, sys_flag, has_row, born_address, born_port, store_address,
         store_port) = kind or self._know(message)
        raw = (properties.encode() if not self._reserved and properties.isascii()
               else self.encoder.properties_part(properties))
        body_size, properties_size = len(body), len(raw) + self._reserved
        size = fixed + body_size + properties_size
        if (properties_size > MAX_PROPERTIES or body_size > self._body_limit
                or size > self._record_limit):
            wrong = None if checked else admission.check_sizes(self.settings, body_size,
                                                               properties_size, size)
            wrong = wrong or self._does_not_fit(size)
            if wrong is not None:
                return wrong
        key = message.topic, queue_id
        queue_offset = self.table.get(key, 0) if has_row else 0
        if size + BLANK_SIZE > self._end - self._position:
            self._roll()
        physical = self._position
        record = b"".join((
            pack(size, magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, physical,
                 sys_flag, now if born is None else born, born_address, born_port, now,
                 store_address, store_port, again, prepared, body_size),
            body, topic, properties_size.to_bytes(PROPERTIES_LENGTH_SIZE, "big"), raw))
        self._starts.append(physical - self._base)
        self._parts.append(append_crc.seal(record + bytes(self._reserved)) if self._reserved
                           else record)
        self._position = physical + size
        if self._with_maps:
            self._bit_maps[physical] = message.filter_bit_map
        if has_row:
            self.table[key] = queue_offset + inner
        for one in advancing:
            self.table[one] = self.table.get(one, 0) + 1
        self.last_timestamp = now
        return PutResult(PUT_OK, physical, size, queue_offset, inner, now,
                         (store_address, store_port))

    def _know(self, message: Outgoing) -> Kind:
        """What the records of this topic, these flags and hosts share; they were checked."""
        if len(self._kinds) >= _KNOWN:
            self._kinds.clear()
        born = message.born_host or self.settings.born_host
        store = message.store_host or self.settings.store_host
        topic = self.encoder.topic_part(message.topic)
        sys_flag = host_flags(message.sys_flag, born, store)
        shape = variant(sys_flag & HOST_BITS, topic.magic)
        made = Kind(topic.magic, topic.prefixed, shape.fixed_size + topic.length,
                    shape.head.pack, sys_flag, has_consume_queue_row(sys_flag), *born, *store)
        self._kinds[message.topic, message.sys_flag, message.born_host,
                    message.store_host] = made
        return made

    def _does_not_fit(self, size: int) -> PutResult | None:
        if size + BLANK_SIZE > self.settings.commitlog_file_size:
            return refused(MESSAGE_ILLEGAL, f"a record of {size} bytes does not fit into a "
                           f"commitlog file of {self.settings.commitlog_file_size}")
        return None

    # -- a batch ------------------------------------------------------------------------------

    def _put_batch(self, batch: OutgoingBatch) -> PutResult:
        wrong = admission.check_batch(batch, self.settings, hooks=self.settings.broker_checks)
        if wrong is not None:
            return wrong
        settings, encoder = self.settings, self.encoder
        now = self.clock() if batch.store_timestamp is None else batch.store_timestamp
        changed = self._rules.apply_batch(batch, now)
        if isinstance(changed, PutResult):
            return changed
        batch = changed
        born = now if batch.born_timestamp is None else batch.born_timestamp
        born_host = batch.born_host or settings.born_host
        store_host = batch.store_host or settings.store_host
        sys_flag = host_flags(batch.sys_flag, born_host, store_host)
        topic = encoder.topic_part(batch.topic)
        tails = [rewrite.batch_properties(one.properties, batch.properties)
                 for one in batch.messages]
        sizes = [encoder.size(sys_flag, topic, len(one.body), len(tail))
                 for one, tail in zip(batch.messages, tails, strict=True)]
        wrong = admission.check_batch_sizes(settings, batch, [len(one) for one in tails], sizes)
        if wrong is None:
            wrong = self._does_not_fit(sum(sizes))
        if wrong is not None:
            return wrong
        if sum(sizes) + BLANK_SIZE > self._end - self._position:
            self._roll()
        key = batch.topic, batch.queue_id
        first = self.table.get(key, 0)
        places = []
        for number, (one, tail, size) in enumerate(zip(batch.messages, tails, sizes,
                                                       strict=True)):
            places.append(self._position)
            self._starts.append(self._position - self._base)
            self._parts.append(encoder.record(Record(
                size, topic.magic, body_crc(one.body), batch.queue_id, one.flag, first + number,
                self._position, sys_flag, born, born_host, now, store_host,
                batch.reconsume_times, 0, one.body, b"", tail), topic))
            if self._with_maps:
                self._bit_maps[self._position] = one.filter_bit_map
            self._position += size
        self.table[key] = first + len(sizes)
        self.last_timestamp = now
        return PutResult(PUT_OK, places[0], sum(sizes), first, len(sizes), now, store_host,
                         physical_offsets=tuple(places))

    # -- a record as it was ---------------------------------------------------------------------

    def _put_recorded(self, record: Record) -> PutResult:
        wrong = admission.check_record(record, self.settings)
        if wrong is not None:
            return wrong
        recorded_at = record.physical_offset
        placed = self._recorder.place(record)
        size = placed.size
        wrong = self._does_not_fit(size)
        if wrong is not None:
            return wrong
        if self._is_empty() and recorded_at > 0:
            self._start_at(recorded_at)
        # The recorded place tells where the broker closed the file early, as it does when a
        # whole batch no longer fits.
        closed_early = (recorded_at == self._end > self._position
                        and self._end - self._position >= BLANK_SIZE)
        if size + BLANK_SIZE > self._end - self._position or closed_early:
            self._roll()
        physical = self._position
        self._starts.append(physical - self._base)
        self._parts.append(self._recorder.encode(placed, physical))
        self._position = physical + size
        if self._with_maps:
            self._bit_maps[physical] = None
        self.last_timestamp = record.store_timestamp
        return PutResult(PUT_OK, physical, size, record.queue_offset, 1, record.store_timestamp,
                         record.store_host)

    @property
    def renumbered(self) -> int:
        """Recorded messages whose queue offset had to be another than the recorded one."""
        return self._recorder.renumbered

    @property
    def misplaced(self) -> int:
        """Recorded messages that kept a queue offset at which their queue does not go on."""
        return self._recorder.misplaced

    def _is_empty(self) -> bool:
        return self.log.current is None and not self.log.files and not self._parts

    def _start_at(self, physical: int) -> None:
        """An empty log begins where the recorded one began, if that is the start of a file."""
        if physical % self.settings.commitlog_file_size == 0:
            self.log.start_at(physical)
            self._position = self._base = physical
            self._end = physical + self.log.room()

    # -- the file -----------------------------------------------------------------------------

    def _roll(self) -> None:
        """Closes the current file, if there is one, and goes on in the next."""
        self._write()
        self._begin()
        if self.log.current is not None:
            if self._end > self._position:
                self.log.close_with_blank()
            self._position = self._end
        self.log.roll()
        self._base = self._position
        self._end = self._position + self.log.room()

    def _write(self) -> None:
        if not self._parts:
            return
        self._begin()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self.log.append([data])
        self._stretches.append(Stretch(self._base, data, self._starts, self._bit_maps))
        self._parts, self._starts, self._bit_maps = [], [], {}
        self._base = self._position
