"""Read all messages of a queue in a tier, across damage and gaps, or a single message.

A single message is read by queue offset or by commit log offset. This module returns all intact
messages, and a `MessageFault` for missing or damaged messages. Pulls by a broker's rules are in
`rmqctl.ext.tiered.as_broker.get_message`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatQueue, Segment
from rmqctl.formats.local import message
from rmqctl.formats.local.message import Record
from rmqctl.formats.tiered.units import CODA_SIZE, UNIT_SIZE, UnitRecord, is_coda
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.store.query.lookup import record_around
from rmqctl.store.queue.search import first_from

UNITS = 4096
"""Number of units read at a time."""
SPAN = 4 << 20
"""Bytes of commit log read at a time, or more if a message is larger."""


@dataclass(frozen=True, slots=True)
class MessageFault:
    """``count`` consecutive queue offsets, from ``queue_offset`` on, whose units do not point to a
    message.

    ``file``: path to show in messages.
    ``offset``: logical offset in the queue's commit log or consume queue.
    ``unreadable``: a read failed, so the content is unknown.
    """

    queue_offset: int
    count: int
    file: str
    offset: int
    field: str | None
    reason: str
    unreadable: bool = False

    def __str__(self) -> str:
        last = self.queue_offset + self.count - 1
        which = (f"queue offset {self.queue_offset}" if self.count == 1 else
                 f"queue offsets {self.queue_offset} to {last}")
        if self.unreadable:
            return f"{which}: {self.reason}"
        field = f" field {self.field}" if self.field else ""
        return f"{which}: {self.file} @{self.offset}{field}: {self.reason}"


def held_from(queue: FlatQueue) -> int:
    """Return the first queue offset whose message is not expired, found by binary search over the
    units.

    Unlike a broker's min offset, this offset does not depend on the content of the first message.
    """
    start = queue.commit_log.start
    return first_from(queue, queue.cq_start, queue.commit_offset, start) if start else (
        queue.cq_start)


def messages(queue: FlatQueue, start: int | None = None, end: int | None = None, *,
             span: int = SPAN) -> Iterator[Record | MessageFault]:
    """Yield the messages of the queue offsets ``[start, end)`` and the faults between them. Damage
    is yielded as a fault, not raised.

    The default of ``start`` is the first message that is not expired. Memory is bounded by `UNITS`
    and ``span``.
    """
    # Expired messages cannot be read, so they are not part of the range.
    stop = queue.commit_offset if end is None else min(end, queue.commit_offset)
    try:
        queue_offset = max(held_from(queue) if start is None else start, queue.cq_start)
    except StoreIOError as error:
        yield _unread(queue, queue.cq_start, stop - queue.cq_start, error)
        return
    reach = None
    while queue_offset < stop:
        # Read the entries in portions; an unreadable portion is one fault.
        wanted = min(UNITS, stop - queue_offset)
        try:
            units = [UnitRecord(*row) for row in queue.units(queue_offset, wanted).tolist()]
        except StoreIOError as error:
            yield _unread(queue, queue_offset, wanted, error)
            queue_offset += wanted
            continue
        yield from _read_units(queue, queue_offset, units, span, reach)
        reach = _end(units[-1]) if units else reach
        queue_offset += len(units)
        # A short portion ends at a gap between segments: continue after the gap.
        if len(units) < wanted:
            beyond = min(_next_unit(queue, queue_offset), stop)
            if beyond == queue_offset and not units:  # the file was deleted meanwhile
                beyond += 1
            if beyond > queue_offset:
                flat = queue.consume_queue
                yield MessageFault(queue_offset, beyond - queue_offset,
                                   flat.reader.where(flat.folder), queue_offset * UNIT_SIZE, None,
                                   "no unit here: there is a gap between the segments")
            queue_offset = beyond


def _next_unit(queue: FlatQueue, queue_offset: int) -> int:
    """Return the first queue offset, from ``queue_offset`` on, that has a complete unit; the
    queue's end if no such unit follows.
    """
    for segment in queue.consume_queue.segments:
        if segment.end > queue_offset * UNIT_SIZE and segment.usable:
            first = max(-(-segment.base // UNIT_SIZE), queue_offset)
            for number in (first, first + 1):
                try:
                    exists = queue.unit(number) is not None
                except StoreIOError:
                    exists = True  # the reader gets the error
                if exists:
                    return number
    return queue.commit_offset


def _read_units(queue: FlatQueue, first: int, units: Sequence[UnitRecord],
                span: int, before: int | None) -> Iterator[Record | MessageFault]:
    """Read the messages of ``units``. Contiguous messages are read together. ``before``: the
    position after the message of the previous unit.
    """
    first_unit = 0
    while first_unit < len(units):
        end, reach = first_unit + 1, _end(units[first_unit])
        most = units[first_unit].commit_log_offset + span
        while end < len(units) and reach <= units[end].commit_log_offset <= _end(
                units[end]) <= most:
            reach = _end(units[end])
            end += 1
        run = units[first_unit:end]
        for number, message_or_fault in enumerate(_run(queue, first + first_unit, run)):
            unit = run[number]
            if isinstance(message_or_fault, Record) and unit.commit_log_offset != before:
                yield _in_a_body(queue, first + first_unit + number, unit) or message_or_fault
            else:
                yield message_or_fault
            before = _end(unit)
        first_unit = end


def _in_a_body(queue: FlatQueue, queue_offset: int, unit: UnitRecord) -> MessageFault | None:
    """Return the fault of a unit that points into another message's body; None for other units."""
    place = unit.commit_log_offset
    try:
        around = inside_of(queue, place, queue_offset)
    except StoreIOError as error:
        return _unread(queue, queue_offset, 1, error)
    if around is None:
        return None
    flat = queue.commit_log
    segment = flat.segment_of(place)
    where = flat.reader.where(segment.path if segment else flat.folder)
    return MessageFault(queue_offset, 1, where, place, "commit_log_offset",
                        f"the unit points into the message at {around.physical_offset}")


def inside_of(queue: FlatQueue, place: int, queue_offset: int | None = None) -> Record | None:
    """Return the message that contains a position of the commit log. Return None if a message
    starts there, or if the message is unknown.

    ``queue_offset``: queue offset of the unit that points to the position.
    Raises: StoreIOError.
    """
    segment = queue.commit_log.segment_of(place)
    if segment is None or segment.base == place:
        return None
    # If the message of the unit before ends here, a message begins here.
    before = None if queue_offset is None else queue.unit(queue_offset - 1)
    if before is not None and _end(before) == place:
        return None
    around = _around(queue, segment, place)
    return around if isinstance(around, Record) and around.physical_offset != place else None


def _end(unit: UnitRecord) -> int:
    return unit.commit_log_offset + max(unit.size, 0)


def _run(queue: FlatQueue, first: int,
         units: Sequence[UnitRecord]) -> Iterator[Record | MessageFault]:
    base = units[0].commit_log_offset
    length = _end(units[-1]) - base
    data = b""
    if base >= 0 and 0 < length <= MAX_RECORD:
        try:
            data = queue.commit_log.read(base, length + CODA_SIZE)
        except StoreIOError as error:
            yield _unread(queue, first, len(units), error)
            return
    for number, unit in enumerate(units):
        yield (_quick(data, unit.commit_log_offset - base, unit, first + number)
               or proven(queue, first + number, unit))


def _quick(data: bytes, position: int, unit: UnitRecord, queue_offset: int) -> Record | None:
    """Return the message at a position of ``data`` if it is intact, else None."""
    if is_coda(data, position):
        position += CODA_SIZE
    if unit.size < message.MIN_SIZE or position + unit.size > len(data):
        return None
    try:
        record = message.decode(data, position)
    except FormatError:
        return None
    fits = (record.total_size == unit.size and record.queue_offset == queue_offset)
    return record if fits else None


def proven(queue: FlatQueue, queue_offset: int, unit: UnitRecord) -> Record | MessageFault:
    """Return the message at a queue offset, or a fault if it is missing or damaged."""
    flat = queue.commit_log
    offset = unit.commit_log_offset
    segment = flat.segment_of(offset) if offset >= 0 else None
    where = flat.reader.where(segment.path if segment is not None else flat.folder)
    try:
        if unit.size > MAX_RECORD:
            raise FormatError(f"the unit has an invalid size: {unit.size} bytes", path="size")
        if segment is None and offset >= 0:
            gone = "expired: before the first segment" if offset < flat.start else "in no segment"
            raise FormatError(f"the message is missing ({gone})", path="commit_log_offset")
        return queue.record(queue_offset)
    except FormatError as error:
        return MessageFault(queue_offset, 1, where, offset, error.path, error.reason)
    except StoreIOError as error:
        return _unread(queue, queue_offset, 1, error)


def _unread(queue: FlatQueue, first: int, count: int, error: StoreIOError) -> MessageFault:
    where = queue.commit_log.reader.where(queue.commit_log.folder)
    return MessageFault(first, count, where, 0, None, str(error), unreadable=True)


# -- single messages ------------------------------------------------------------------------------

def at_offset(queue: FlatQueue, offset: int) -> Record | str:
    """Return the message at a queue offset, or the reason why it cannot be read.
    Raises: StoreIOError.
    """
    unit = queue.unit(offset)
    if unit is None:
        span = (f"the tier has {queue.cq_start} to {queue.commit_offset - 1}"
                if queue.commit_offset > queue.cq_start else "the queue is empty")
        return f"no queue offset {offset}: {span}"
    record = proven(queue, offset, unit)
    if not isinstance(record, MessageFault):
        record = _in_a_body(queue, offset, unit) or record
    if not isinstance(record, MessageFault):
        return record
    first = held_from(queue)
    if offset < first:
        return f"expired: the first remaining queue offset is {first}"
    return str(record)


def at_place(queue: FlatQueue, place: int, around: bool = False) -> Record | str:
    """Return the message at an offset of the commit log, or the reason as a text if no message
    starts there. With ``around``, return the message that contains the offset.
    Raises: StoreIOError.
    """
    flat = queue.commit_log
    segment = flat.segment_of(place)
    if segment is None:
        if place < flat.start:
            return f"expired: the commit log begins at {flat.start}"
        return f"no data at {place}: the commit log ends at {flat.end}"
    if around:
        return _around(queue, segment, place)
    if is_coda(flat.read(place, CODA_SIZE)):
        return f"a coda record ({CODA_SIZE} bytes, written by 5.1 and 5.2) is at {place}"
    record = flat.record_at(place)
    if record is not None and record.physical_offset == place:
        # A sender can put a record into a message body, but such a record has no unit.
        unit = queue.unit(record.queue_offset)
        if unit is not None and (unit.commit_log_offset, unit.size) == (
                place, record.total_size) and inside_of(queue, place, record.queue_offset) is None:
            return record
    around_it = _around(queue, segment, place)
    if isinstance(around_it, Record) and around_it.physical_offset == place:
        return around_it
    if isinstance(around_it, str):
        return f"no message starts at {place}: {around_it}"
    return (f"no message starts at {place}. It is inside the message at "
            f"{around_it.physical_offset} ({around_it.total_size} bytes); add --containing to show "
            "that message")


def _around(queue: FlatQueue, segment: Segment, place: int) -> Record | str:
    with queue.commit_log.source(segment) as source:
        return (record_around(source, place - segment.base)
                or f"{place} is in a damaged or unused range")
