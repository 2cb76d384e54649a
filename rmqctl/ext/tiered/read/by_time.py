"""Find queue offsets by time in a tier: the correct answer, and a broker's answer (tiered.md §10).

A broker always reads bytes 56 to 63 of a message as its store time, even if an IPv6 born host moves
the field. `as_broker` does the same. `at_time` reads the correct store time, searches all messages
that are not expired, and skips damage.
"""

from __future__ import annotations

from typing import Literal

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatQueue, Segment
from rmqctl.ext.tiered.read.messages import MessageFault, held_from, proven
from rmqctl.formats import layout
from rmqctl.formats.local import message
from rmqctl.formats.local.message import Record
from rmqctl.formats.tiered.metadata import Metadata
from rmqctl.formats.tiered.names import CONSUME_QUEUE
from rmqctl.formats.tiered.units import NEVER, UNIT_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.queue.search import first_stored

Rule = Literal["5.3.3", "5.2.0"]
"""Rule for the upper boundary if no message was stored at the given time. 5.3.3: take the next
later message. 5.2.0 (and the local store): take the previous message.
"""

_STORED = layout.field(message.Message, "store_timestamp", sys_flag=0)
_MAX_SKIPPED = 1024
"""Maximum number of unreadable messages skipped at one step of the search."""


@dataclass(frozen=True, slots=True)
class TieredTime:
    """The queue offset found for a time. ``record``: the message at this offset, None if it is not
    readable.
    """

    queue_offset: int
    min_offset: int
    max_offset: int
    record: Record | None = None


def at_time(queue: FlatQueue, when: int, *, upper: bool = False,
            rule: Rule = "5.3.3") -> TieredTime:
    """Return the first message stored at ``when`` (ms) or later, or the queue's end if all messages
    are older.

    ``upper``: return the last message stored at ``when``. If no message was stored at that time,
    ``rule`` decides. Unreadable messages are skipped.
    Raises: StoreIOError.
    """
    low, end = min(held_from(queue), queue.commit_offset), queue.commit_offset

    def store_time(offset: int) -> int | None:
        record = _record(queue, offset)
        return None if record is None else record.store_timestamp

    first = first_stored(store_time, low, end, when, patience=_MAX_SKIPPED)
    queue_offset, record = _readable(queue, first, end)
    if upper:
        beyond = first_stored(store_time, first, end, when + 1, patience=_MAX_SKIPPED)
        last, before = _readable(queue, beyond - 1, low - 1)
        if before is not None and (before.store_timestamp == when or rule == "5.2.0"):
            queue_offset, record = last, before
    return TieredTime(queue_offset, low, end, record)


def _readable(queue: FlatQueue, start: int, end: int) -> tuple[int, Record | None]:
    """Return the first queue offset, from ``start`` towards ``end``, whose message is readable, and
    this message. Return (``start``, None) if the next `_MAX_SKIPPED` messages are unreadable.
    """
    step = 1 if end > start else -1
    for offset in range(start, max(min(end, start + _MAX_SKIPPED), start - _MAX_SKIPPED), step):
        record = _record(queue, offset)
        if record is not None:
            return offset, record
    return start, None


def at_offset(queue: FlatQueue, offset: int) -> TieredTime:
    """Return the message at a queue offset, and the queue's bounds as a broker computes them.
    Raises: StoreIOError.
    """
    low, end = queue.min_offset, queue.commit_offset
    return TieredTime(offset, low, end, _record(queue, offset) if low <= offset < end else None)


def _record(queue: FlatQueue, offset: int) -> Record | None:
    unit = queue.unit(offset)
    record = None if unit is None else proven(queue, offset, unit)
    if isinstance(record, MessageFault):
        if record.unreadable:
            raise StoreIOError(record.reason)
        return None
    return record


# -- as a broker ----------------------------------------------------------------------------------

def as_broker(queue: FlatQueue, metadata: Metadata, when: int, *, upper: bool = False) -> int:
    """Return the queue offset that a 5.3.3 broker's tier returns for a store time.

    Segment times are those in the metadata. A segment without a metadata entry has the times of its
    first and last message.
    Raises: FormatError if the broker fails: a message no longer exists, or the time is after all
    segments.
    """
    low, high = queue.min_offset, queue.commit_offset - 1
    if high == -1 or high < low:
        return low
    if broker_time(queue, high) < when:
        return high + 1
    if broker_time(queue, low) > when:
        return low
    offset = _in_segment(queue, _segment_at(queue, metadata, when), when)
    while upper and offset < high and broker_time(queue, offset + 1) == when:
        offset += 1
    return offset


def _segment_at(queue: FlatQueue, metadata: Metadata, when: int) -> Segment:
    segments = queue.consume_queue.segments
    low, high = 0, len(segments) - 1
    middle = high // 2
    while low <= high:
        begin, end = segment_times(queue, metadata, segments[middle])
        if begin <= when <= end:
            break
        if when < begin:
            high = middle - 1
        else:
            low = middle + 1
        # Java's division rounds towards zero, so an empty range stays at its lower end.
        middle = low + (high - low) // 2 if low <= high else low
    if middle >= len(segments):
        raise FormatError("a broker fails here: the time is after the end of every segment",
                          file=queue.consume_queue.reader.where(queue.consume_queue.folder))
    return segments[middle]


def _in_segment(queue: FlatQueue, segment: Segment, when: int) -> int:
    low, high = segment.base // UNIT_SIZE, segment.end // UNIT_SIZE - 1
    while low < high:
        middle = low + (high - low) // 2
        if broker_time(queue, middle) < when:
            low = middle + 1
        else:
            high = middle
    return low


def broker_time(queue: FlatQueue, offset: int) -> int:
    """Return the store time of the message at a queue offset as a broker reads it.
    Raises: FormatError if a broker cannot read it.
    """
    unit = queue.unit(offset)
    flat = queue.commit_log
    if unit is None:
        raise FormatError(f"no unit for queue offset {offset}", file=flat.reader.where(
            queue.consume_queue.folder), offset=offset * UNIT_SIZE)
    end = _STORED.offset + _STORED.size
    data = flat.read_as_broker(unit.commit_log_offset, min(unit.size, end))
    if len(data) < end:
        raise FormatError(f"queue offset {offset} does not point to a message",
                          file=flat.reader.where(flat.folder), offset=unit.commit_log_offset,
                          path="store_timestamp")
    return int.from_bytes(data[_STORED.offset:end], "big", signed=True)


def segment_times(queue: FlatQueue, metadata: Metadata, segment: Segment) -> tuple[int, int]:
    """Return the begin and end time of a consume queue segment as a broker knows them. See
    `as_broker`.
    """
    entry = metadata.segments[CONSUME_QUEUE].get(queue.name.path, {}).get(segment.base)
    if entry is not None:
        return entry.begin_timestamp, entry.end_timestamp
    first, end = segment.base // UNIT_SIZE, segment.end // UNIT_SIZE
    if first >= end:
        return NEVER, NEVER
    return broker_time(queue, first), broker_time(queue, end - 1)
