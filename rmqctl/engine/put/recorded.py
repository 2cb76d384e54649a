"""Records put back as they were: times, hosts, flags, properties (`append --as-recorded`).

Only what depends on the place is made new: the physical offset, and the queue offset where the
recorded one would not continue its queue. A row whose queue offset leaves a gap, or lies before
the end of its queue, would be misplaced or dropped by every broker (spec: consumequeue.md §4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from rmqctl.engine.put.encoder import assemble, body_crc
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import HOST_BITS, MAGIC_V1, MAGIC_V2, Record, size_of, variant
from rmqctl.formats.local.sysflag import INNER_BATCH, has_consume_queue_row

V1_TOPIC_BYTES = 127
_INNER_BASE = props.INNER_BASE.encode()
_MULTI_OFFSETS = props.MULTI_QUEUE_OFFSET.encode()


@dataclass(slots=True)
class Placed:
    """A record with its queue offset settled: what is left is where in the log it goes."""

    record: Record
    size: int
    moved: bool
    counters: dict[tuple[str, int], int] = field(default_factory=dict)


class Recorder:
    """Places recorded messages behind the ends of their queues."""

    def __init__(self, table: dict[tuple[str, int], int], keep_offsets: bool = False, *,
                 inner_batches: bool = True) -> None:
        self._table, self._keep, self._inner_batches = table, keep_offsets, inner_batches
        self.renumbered = 0
        """Rows that got another queue offset than the recorded one."""
        self.misplaced = 0
        """Rows that kept one at which their queue does not go on."""

    def place(self, record: Record) -> Placed:
        """Settles version, CRC and queue offsets. Takes the record over and changes it."""
        if not record.magic:
            record.magic = MAGIC_V2 if len(record.topic) > V1_TOPIC_BYTES else MAGIC_V1
        if record.body or record.body_crc < 0:
            record.body_crc = body_crc(record.body)
        counters: dict[tuple[str, int], int] = {}
        moved = False
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
        return Placed(record, size, moved, counters)

    def _continue(self, key: tuple[str, int], given: int) -> int:
        """The queue offset for a row: the given one, unless the queue goes on elsewhere."""
        expected = self._table.get(key)
        if given < 0 or (expected is not None and not self._keep):
            return expected or 0
        self.misplaced += expected is not None and given != expected
        return given

    def _inner_batch(self, record: Record, moved: bool) -> int:
        """How many queue offsets an inner batch covers; its base follows the queue offset."""
        found = props.parse(_text(record.properties))
        if moved and props.INNER_BASE in found:
            record.properties = _with_value(record.properties, _INNER_BASE,
                                            str(record.queue_offset))
        text = found.get(props.INNER_NUM, "")
        return max(1, int(text)) if text.isascii() and text.isdigit() else 1

    def _multi_dispatch(self, record: Record, counters: dict[tuple[str, int], int]) -> bool:
        """Settles the rows in the other queues; True when their offsets had to change."""
        found = props.parse(_text(record.properties))
        names = found.get(props.MULTI_DISPATCH, "").split(",")
        given = found.get(props.MULTI_QUEUE_OFFSET, "").split(",")
        if len(names) != len(given):
            return False
        settled = []
        for name, offset in zip(names, given, strict=True):
            if not (offset.isascii() and offset.isdigit()):
                settled.append(offset)
                continue
            key = name, 0 if name.startswith(props.LMQ_PREFIX) else record.queue_id
            number = self._continue(key, int(offset))
            counters[key] = number + 1
            settled.append(str(number))
        if settled == given:
            return False
        self.renumbered += 1
        record.properties = _with_value(record.properties, _MULTI_OFFSETS, ",".join(settled))
        return True

    def encode(self, placed: Placed, physical: int) -> bytes:
        """The bytes at a physical offset. Advances the queues' counters."""
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
    """The properties with another value for one name, everything else as it was."""
    separator = props.PROPERTY_SEPARATOR.encode()
    start = name + props.NAME_VALUE_SEPARATOR.encode()
    return separator.join(start + value.encode() if one.startswith(start) else one
                          for one in raw.split(separator))
