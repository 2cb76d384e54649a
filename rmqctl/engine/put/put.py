"""The put path: write messages as records to the end of the log (spec: recovery.md §7-§10).

The messages of a group are encoded into one contiguous range of bytes for each commitlog file; each
range is written with one call. The steps for each message are in a broker's order:

1. Check the message, rewrite it, and assign its queue offset.
2. Encode it. If it does not fit into the file, close the file with an END_OF_FILE record.
3. Append it, and advance the counter of the queue.

Stored records can be put with their times, hosts, flags and properties (`append --as-recorded`).
Only two values may change: the physical offset, and a queue offset that does not continue its
queue. Brokers misplace or drop an entry whose queue offset leaves a gap or is before the end of its
queue (spec: consumequeue.md §4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import groupby

from rmqctl.broker.settings import Settings
from rmqctl.engine.put import admission, rewrite
from rmqctl.engine.put.cursor import AppendCursor, AppendLog, RecordRun
from rmqctl.engine.put.encoder import Encoder, assemble, body_crc, host_flags
from rmqctl.engine.put.message import (
    MESSAGE_ILLEGAL,
    PUT_OK,
    MappedRecord,
    Outgoing,
    OutgoingBatch,
    OutgoingList,
    PutResult,
    Results,
    refused,
)
from rmqctl.engine.put.per_message import SingleMessages, TopicQueueTable, does_not_fit
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    HOST_BITS,
    Record,
    magic_for,
    size_of,
    variant,
)
from rmqctl.formats.local.sysflag import INNER_BATCH, has_consume_queue_row
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import Closing

Message = Outgoing | OutgoingBatch | Record
_INNER_BASE = props.INNER_BASE.encode()
_MULTI_OFFSETS = props.MULTI_QUEUE_OFFSET.encode()


# -- recorded messages ----------------------------------------------------------------------------


@dataclass(slots=True)
class PlacedRecord:
    """A record that has its final queue offset, but no physical offset yet."""

    record: Record
    size: int
    moved: bool
    counters: dict[tuple[str, int], int] = field(default_factory=dict)


class Recorder:
    """Assigns to recorded messages the queue offsets that follow the ends of the queues."""

    def __init__(self, table: dict[tuple[str, int], int], keep_offsets: bool = False, *,
                 inner_batches: bool = True, lmq: bool = True) -> None:
        self._table, self._keep, self._inner_batches = table, keep_offsets, inner_batches
        self._lmq = lmq
        self.renumbered = 0
        """Number of entries whose queue offset differs from the recorded one."""
        self.misplaced = 0
        """Number of entries whose kept queue offset does not continue the queue."""

    def place(self, record: Record) -> PlacedRecord:
        """Set the version, the CRC and the queue offsets in a record; ``record`` itself is
        changed.
        """
        # Missing version and CRC.
        if not record.magic:
            record.magic = magic_for(record.topic)
        if record.body or record.body_crc < 0:
            record.body_crc = body_crc(record.body)
        counters: dict[tuple[str, int], int] = {}
        moved = False
        # The queue offsets in its own queue and in further queues.
        if has_consume_queue_row(record.sys_flag):
            key = _text(record.topic), record.queue_id
            offset = self._continue(key, record.queue_offset)
            moved = offset != record.queue_offset
            self.renumbered += moved and record.queue_offset >= 0
            record.queue_offset = offset
            number = 1
            if self._inner_batches and record.sys_flag & INNER_BATCH:
                number = self._inner_batch(record, moved)
            counters[key] = offset + number
            if _MULTI_OFFSETS in record.properties:
                moved |= self._multi_dispatch(record, counters)
        elif record.queue_offset < 0:
            record.queue_offset = 0
        size = size_of(record.sys_flag, record.magic, len(record.body), len(record.topic),
                       len(record.properties))
        return PlacedRecord(record, size, moved, counters)

    def _continue(self, key: tuple[str, int], given: int) -> int:
        """Return the queue offset of an entry. This is the given offset if it continues the queue
        or must be kept, else the next offset of the queue.
        """
        expected = self._table.get(key)
        if given < 0 or (expected is not None and not self._keep):
            return expected or 0
        self.misplaced += expected is not None and given != expected
        return given

    def _inner_batch(self, record: Record, moved: bool) -> int:
        """Return the number of queue offsets that an inner batch needs; update its first queue
        offset if the batch has moved.
        """
        properties = props.parse(_text(record.properties))
        if moved and props.INNER_BASE in properties:
            record.properties = _with_value(record.properties, _INNER_BASE,
                                            str(record.queue_offset))
        text = properties.get(props.INNER_NUM, "")
        return max(1, int(text)) if text.isascii() and text.isdigit() else 1

    def _multi_dispatch(self, record: Record, counters: dict[tuple[str, int], int]) -> bool:
        """Set the queue offsets of a message in further queues; return whether any of them
        changed.
        """
        properties = props.parse(_text(record.properties))
        names = properties.get(props.MULTI_DISPATCH, "").split(",")
        given = properties.get(props.MULTI_QUEUE_OFFSET, "").split(",")
        if len(names) != len(given):
            return False
        settled = []
        for name, offset in zip(names, given, strict=True):
            if not (offset.isascii() and offset.isdigit()):
                settled.append(offset)
                continue
            is_light = self._lmq and name.startswith(props.LMQ_PREFIX)
            key = name, 0 if is_light else record.queue_id
            number = self._continue(key, int(offset))
            counters[key] = number + 1
            settled.append(str(number))
        if settled == given:
            return False
        self.renumbered += 1
        record.properties = _with_value(record.properties, _MULTI_OFFSETS, ",".join(settled))
        return True

    def encode(self, placed: PlacedRecord, physical: int) -> bytes:
        """Return the bytes of the record at a physical offset, and advance the counters of its
        queues.
        """
        record = placed.record
        moved = placed.moved or physical != record.physical_offset
        record.total_size, record.physical_offset = placed.size, physical
        raw = assemble(record, _prefixed(record.topic, record.magic), record.properties)
        if moved and append_crc.stored(raw) is not None:
            raw = append_crc.seal(raw)
        self._table.update(placed.counters)
        return raw


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=8192)
def _prefixed(topic: bytes, magic: int) -> bytes:
    return variant(HOST_BITS & 0, magic).topic_length.pack(len(topic)) + topic


def _with_value(raw: bytes, name: bytes, value: str) -> bytes:
    """Return the properties with the value of ``name`` replaced."""
    separator = props.PROPERTY_SEPARATOR.encode()
    start = name + props.NAME_VALUE_SEPARATOR.encode()
    return separator.join(start + value.encode() if part.startswith(start) else part
                          for part in raw.split(separator))


# -- the put path ---------------------------------------------------------------------------------


def stretches(messages: Sequence[Message]) -> Iterable[tuple[type, Sequence[Message]]]:
    """Return the messages in order; adjacent messages of the same type are grouped."""
    if isinstance(messages, OutgoingList) or set(map(type, messages)) == {Outgoing}:
        return [(Outgoing, messages)]
    return ((kind, list(stretch)) for kind, stretch in groupby(messages, type))


class PutPath:
    """Encodes messages and appends them to the log. Not thread-safe: the engine's put lock guards
    it.

    ``begin`` is called before the first byte is written. ``keep_queue_offsets``: whether recorded
    messages keep queue offsets that do not continue their queue.
    """

    def __init__(self, settings: Settings, log: AppendLog, table: TopicQueueTable,
                 is_batch_topic: Callable[[str], bool], clock: Callable[[], int],
                 begin: Callable[[], None], keep_queue_offsets: bool = False) -> None:
        self.settings, self.table = settings, table
        self._clock, self._is_batch_topic = clock, is_batch_topic
        self._encoder = Encoder(settings)
        self._rules = rewrite.Rewriter(settings)
        self._cursor = AppendCursor(log, begin)
        self._single = SingleMessages(settings, self._encoder, self._cursor, table, is_batch_topic,
                                clock, self._rules)
        self.recorder = Recorder(table, keep_queue_offsets,
                                 inner_batches=settings.profile.batch_queues, lmq=settings.lmq)
        self._with_maps = settings.consumequeue_ext

    @property
    def last_timestamp(self) -> int:
        """Store time (ms) of the last record; 0 if there is none."""
        return self._cursor.last_timestamp

    @last_timestamp.setter
    def last_timestamp(self, timestamp: int) -> None:
        self._cursor.last_timestamp = timestamp

    def put(self, messages: Sequence[Message], results: Results, *,
            stop: bool = False) -> list[RecordRun]:
        """Append a group in order, and add a result for each message to ``results``. Return the
        sequences of written records.

        A rejected message is not written, and later messages are still put. With ``stop``, later
        messages are not put, and the last result is that of the rejected message. After a
        StoreIOError, no message is acknowledged.
        """
        self._cursor.start()
        for kind, stretch in stretches(messages):
            put = self._single.put_all if kind is Outgoing else self._put_others
            if not put(stretch, results, stop=stop):  # type: ignore[arg-type]
                break
        self._cursor.write()
        return self._cursor.runs

    def _put_others(self, messages: Iterable[Message], results: Results, *, stop: bool) -> bool:
        """Put batches and recorded messages like `SingleMessages.put_all`."""
        for message in messages:
            result = (self._put_batch(message) if isinstance(message, OutgoingBatch) else
                      self._put_recorded(message))  # type: ignore[arg-type]
            results.append(result)
            if stop and result.physical_offset is None:
                return False
        return True

    def _put_batch(self, batch: OutgoingBatch) -> PutResult:
        """Put a batch as records in the same file, and return its result."""
        settings, encoder, cursor = self.settings, self._encoder, self._cursor
        # Admission, and a broker's changes to the batch.
        wrong = admission.check_batch(batch, settings, hooks=settings.broker_checks)
        if wrong is not None:
            return wrong
        now = self._clock() if batch.store_timestamp is None else batch.store_timestamp
        changed = self._rules.apply_batch(batch, now)
        if isinstance(changed, PutResult):
            return changed
        batch = changed
        # The common parts of the records, then their sizes and the checks of the sizes.
        born = now if batch.born_timestamp is None else batch.born_timestamp
        born_host = batch.born_host or settings.born_host
        store_host = batch.store_host or settings.store_host
        sys_flag = host_flags(batch.sys_flag, born_host, store_host)
        topic = encoder.topic_part(batch.topic)
        tails = [rewrite.batch_properties(item.properties, batch.properties)
                 for item in batch.messages]
        sizes = [encoder.size(sys_flag, topic, len(item.body), len(tail))
                 for item, tail in zip(batch.messages, tails, strict=True)]
        wrong = admission.check_batch_sizes(settings, batch, [len(item) for item in tails], sizes)
        wrong = wrong or does_not_fit(sum(sizes), settings)
        if wrong is not None:
            return wrong
        # The records, all in the same file, and the queue's counter.
        cursor.make_room(sum(sizes))
        key = batch.topic, batch.queue_id
        first = self.table.get(key, 0)
        positions = []
        for number, (item, tail, size) in enumerate(zip(batch.messages, tails, sizes,
                                                       strict=True)):
            positions.append(cursor.position)
            if self._with_maps:
                cursor.bit_maps[cursor.position] = item.filter_bit_map
            cursor.add(encoder.record(Record(
                size, topic.magic, body_crc(item.body), batch.queue_id, item.flag, first + number,
                cursor.position, sys_flag, born, born_host, now, store_host,
                batch.reconsume_times, 0, item.body, b"", tail), topic))
        self.table[key] = first + len(sizes)
        cursor.last_timestamp = now
        return PutResult(PUT_OK, positions[0], sum(sizes), first, len(sizes), now, store_host,
                         physical_offsets=tuple(positions))

    def _put_recorded(self, record: Record) -> PutResult:
        """Put a recorded message; only values that depend on its position change."""
        # Admission: refuse a record that could not be read back.
        wrong = admission.check_record(record, self.settings)
        if (wrong is None and record.sys_flag & INNER_BATCH
                and self.settings.profile.batch_queues and not self._is_batch_topic(
                    record.topic.decode("utf-8", "surrogateescape"))):
            wrong = refused(MESSAGE_ILLEGAL, "it is an inner batch, but its topic is not a BatchCQ "
                            "topic: its entries would go to the wrong kind of queue")
        if wrong is not None:
            return wrong
        # The queue offset, then the place in the log: files end where they did.
        cursor, recorded_at = self._cursor, record.physical_offset
        placed = self.recorder.place(record)
        wrong = does_not_fit(placed.size, self.settings)
        if wrong is not None:
            return wrong
        if cursor.is_new and recorded_at > 0 and (
                recorded_at % self.settings.commitlog_file_size == 0):
            # An empty log begins at the start of the recorded one.
            cursor.start_at(recorded_at)
        if recorded_at == cursor.end and 0 < cursor.position <= cursor.end - BLANK_SIZE:
            # The recorded offset shows that the broker closed the file early, as it does if a
            # batch does not fit.
            cursor.roll()
        cursor.make_room(placed.size)
        # The record and its queues' counters.
        physical = cursor.position
        if self._with_maps:
            cursor.bit_maps[physical] = (record.filter_bit_map
                                         if isinstance(record, MappedRecord) else None)
        cursor.add(self.recorder.encode(placed, physical))
        cursor.last_timestamp = record.store_timestamp
        return PutResult(PUT_OK, physical, placed.size, record.queue_offset, 1,
                         record.store_timestamp, record.store_host)


class Putting(Closing):
    """The interface that an engine and its dry run share."""

    _path: PutPath

    def put_many(self, messages: Sequence[Message], *, stop: bool = False) -> list[PutResult]:
        """Put a group of messages; return a result for each."""
        raise NotImplementedError

    def put(self, message: Message) -> PutResult:
        """Put a message, a batch or a recorded message. With ``flush=sync``, the data is on disk
        when this method returns.
        """
        return self.put_many([message])[0]

    @property
    def renumbered(self) -> int:
        """Number of messages whose queue offset differs from the recorded one."""
        return self._path.recorder.renumbered

    @property
    def misplaced(self) -> int:
        """Number of messages whose kept queue offset does not continue the
        queue.
        """
        return self._path.recorder.misplaced
