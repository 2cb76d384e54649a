"""Answer pulls from a tier as a broker's message fetcher does (tiered.md §9.2, §9.3).

Statuses, next offsets and limits are the same as in 5.3.3, with two exceptions, which avoid defects
of 5.3.3:

- A message that cannot be split out of a read-ahead does not shift the following messages, and
  never blocks a consumer forever.
- A failed read returns OFFSET_FOUND_NULL even if the cache is enabled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rmqctl.broker.get_message import outside
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.formats import layout
from rmqctl.formats.local import javahash, message
from rmqctl.formats.local import properties as props
from rmqctl.formats.tiered.units import CODA_MAGIC, CODA_SIZE, UNIT, UNIT_SIZE, UnitRecord
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.store.objects import java_text
from rmqctl.store.query.conditions import tags_of

if TYPE_CHECKING:
    from rmqctl.ext.tiered.flat_file import QueueName


FOUND = "FOUND"
NO_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
NO_MESSAGE = "NO_MESSAGE_IN_QUEUE"
TOO_SMALL = "OFFSET_TOO_SMALL"
OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
FOUND_NULL = "OFFSET_FOUND_NULL"
NO_MATCH = "NO_MATCHED_MESSAGE"

_HEAD = layout.reader(message.Message, "total_size", "magic")
_CODE_BITS = 0xFFFFFFFF
ALL = "*"


@dataclass(frozen=True, slots=True)
class GetResult:
    """Answer to a pull.

    ``min`` and ``max``: the queue's bounds. ``next_offset``: the queue offset at which a consumer
    continues. ``trouble``: the reason why the tier could not be read, or None.
    """

    status: str
    next_offset: int
    min: int = 0
    max: int = 0
    messages: tuple[Fetched, ...] = ()
    trouble: str | None = None


class Matching:
    """A consumer's tag expression: ``A || B``, or ``*`` for any.

    A broker compares only hash codes and lets the client compare tags; this class compares both.
    Raises: UsageError for an empty expression.
    """

    def __init__(self, expression: str) -> None:
        self.tags = set(tags_of(expression))
        self._codes = {javahash.tags_code(tag) & _CODE_BITS for tag in self.tags}

    def by_code(self, tags_code: int) -> bool:
        """Return whether a tags code matches. Like a broker, compare only its lower half."""
        return ALL in self.tags or tags_code & _CODE_BITS in self._codes

    def by_message(self, data: bytes) -> bool:
        if ALL in self.tags:
            return True
        try:
            record = message.decode(data)
        except FormatError:
            return False
        return props.parse(java_text(record.properties)).get(props.TAGS) in self.tags


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Settings of a broker.

    ``count`` and ``size``: maximum units and bytes of a read (``readAheadMessageCountThreshold``
    and ``…SizeThreshold``).
    ``transfer``: maximum bytes of an answer (``maxTransferBytesOnMessageInMemory``).
    ``single``: number of units to read ahead if a single message is requested (POP).
    """

    count: int = 4096
    size: int = 16 << 20
    transfer: int = 262_144
    single: int = 32


DEFAULT_LIMITS = PullLimits()


def get(queue: FlatQueue | None, offset: int, count: int, *, matching: Matching | None = None,
        cache: ReadAhead | None = None, limits: PullLimits = DEFAULT_LIMITS) -> GetResult:
    """Answer a pull of up to ``count`` messages. Damage is reported in the answer, not raised."""
    if queue is None:
        return GetResult(NO_QUEUE, offset)
    try:
        least, most = queue.min_offset, queue.commit_offset
    except StoreIOError as error:
        return GetResult(FOUND_NULL, offset, trouble=str(error))
    if most <= 0:
        return GetResult(NO_MESSAGE, offset, least, most)
    beyond = outside(offset, least, most, generation=5)
    if beyond is not None:
        return GetResult(beyond.status, beyond.next_begin, least, most)
    if cache is not None:
        return _cached(queue, offset, count, matching, cache, limits)
    result, _ = _read(queue, offset, count, limits)
    return _filtered(result, matching)


def _filtered(result: GetResult, matching: Matching | None) -> GetResult:
    if result.status != FOUND or matching is None:
        return result
    matched = tuple(fetched for fetched in result.messages
                    if matching.by_code(fetched.tags_code) and matching.by_message(fetched.data))
    return GetResult(FOUND if matched else NO_MATCH, result.next_offset, result.min, result.max,
                     matched)

# -- read-ahead -----------------------------------------------------------------------------------

class Fetched(NamedTuple):
    """A message as stored in the tier; ``offset`` is its offset in the queue's commit log."""

    queue_offset: int
    offset: int
    tags_code: int
    data: bytes


class ReadAhead:
    """The messages of the last read, by queue offset; None for a message that cannot be split out
    of the bytes read.

    A broker keeps the results of many reads for 15 s. This is not needed here: a client that pulls
    each queue from start to end never requests an earlier result.
    """

    def __init__(self) -> None:
        self._queue: QueueName | None = None
        self._first = 0
        self._places: list[Fetched | None] = []

    def look(self, queue: QueueName, offset: int) -> tuple[bool, Fetched | None]:
        """Return whether the queue offset is cached, and its message."""
        number = offset - self._first
        if queue != self._queue or not 0 <= number < len(self._places):
            return False, None
        return True, self._places[number]

    def put(self, queue: QueueName, first: int, places: list[Fetched | None]) -> None:
        """Keep the messages of consecutive queue offsets, which start at ``first``."""
        self._queue, self._first, self._places = queue, first, places


# -- with read-ahead ------------------------------------------------------------------------------

def _cached(queue: FlatQueue, offset: int, count: int, matching: Matching | None,
            cache: ReadAhead, limits: PullLimits) -> GetResult:
    result = _walk(queue, offset, count, matching, cache, limits)
    if result.status == FOUND or result.next_offset > offset:
        return result
    ahead = limits.single if count == 1 else limits.count
    read, places = _read(queue, offset, ahead, limits)
    if read.status not in (FOUND, NO_MATCH):
        return read
    cache.put(queue.name, offset, places)
    return _walk(queue, offset, count, matching, cache, limits)


def _walk(queue: FlatQueue, offset: int, count: int, matching: Matching | None,
          cache: ReadAhead, limits: PullLimits) -> GetResult:
    """Return the cached messages from ``offset`` on, up to the first queue offset that is not
    cached.
    """
    messages: list[Fetched] = []
    size, after = 0, offset
    for queue_offset in range(offset, offset + limits.count):
        is_cached, fetched = cache.look(queue.name, queue_offset)
        if not is_cached:
            break
        after = queue_offset + 1
        if fetched is None or (matching is not None and not (
                matching.by_code(fetched.tags_code) and matching.by_message(fetched.data))):
            continue
        messages.append(fetched)
        size += len(fetched.data)
        if len(messages) == count or size >= limits.transfer:
            break
    return GetResult(FOUND if messages else NO_MATCH, after, queue.min_offset, queue.commit_offset,
                     tuple(messages))


# -- reading --------------------------------------------------------------------------------------

def _read(queue: FlatQueue, offset: int, count: int,
          limits: PullLimits) -> tuple[GetResult, list[Fetched | None]]:
    """Read units, then the range of the commit log that they cover. Return the answer, and the
    message of each queue offset from ``offset`` on (None if unreadable).
    """
    least, most = queue.min_offset, queue.commit_offset
    try:
        units = _units(queue, offset, min(count, most - offset, limits.count))
        places = list(_split(queue, offset, units, limits))
    except (FormatError, StoreIOError) as error:
        return GetResult(FOUND_NULL, offset, least, most, trouble=str(error)), []
    messages = tuple(place for place in places if place is not None)
    return GetResult(FOUND if messages else NO_MATCH, offset + len(places), least, most,
                     messages), places


def _units(queue: FlatQueue, offset: int, count: int) -> list[UnitRecord]:
    flat = queue.consume_queue
    data = flat.read_as_broker(offset * UNIT_SIZE, count * UNIT_SIZE)
    units = list(UNIT.decode_all(data[:len(data) - len(data) % UNIT_SIZE]))
    if not units:
        raise FormatError("no complete unit here", file=flat.reader.where(flat.folder),
                          offset=offset * UNIT_SIZE)
    return units


def _split(queue: FlatQueue, offset: int, units: Sequence[UnitRecord],
           limits: PullLimits) -> Iterator[Fetched | None]:
    """Read the messages of as many ``units`` as one read may cover. Yield the message of each of
    these units, or None if the message cannot be split out of the bytes read.
    """
    flat = queue.commit_log
    first = units[0].commit_log_offset
    if units[-1].commit_log_offset < first:
        yield from (None for _ in units)
        return
    # As many units as fit into one read, at least one.
    covered = len(units)
    while covered > 1 and _end(units[covered - 1]) - first > limits.size:
        covered -= 1
    length = _end(units[covered - 1]) - first
    if length > max(limits.size, MAX_RECORD):
        raise FormatError(f"the unit at queue offset {offset} has an invalid size: {length} bytes",
                          file=flat.reader.where(flat.folder), offset=first, path="size")
    # A coda before the last message shifts it beyond the range: read that much more.
    data = flat.read_as_broker(first, length, CODA_SIZE)
    limit = min(length, len(data))
    # Split the messages by their places in the data.
    for number, unit in enumerate(units[:covered]):
        start = unit.commit_log_offset - first
        if start + unit.size > limit:  # here a broker stops splitting, and continues after the read
            yield from (None for _ in units[number:covered])
            return
        record = None
        if start >= 0 and unit.size >= message.MIN_SIZE:
            record = _message(data, start, unit.size)
        yield None if record is None else Fetched(offset + number, unit.commit_log_offset,
                                                  unit.tags_code, record)


def _end(unit: UnitRecord) -> int:
    return unit.commit_log_offset + unit.size


def _message(data: bytes, position: int, size: int) -> bytes | None:
    """Return the message to which a unit points; None if its magic or size is invalid. A broker
    tests only magic and size.
    """
    total, magic = _HEAD.unpack_from(data, position)
    if magic == CODA_MAGIC:
        position += CODA_SIZE
        if position + size > len(data):
            return None
        total, magic = _HEAD.unpack_from(data, position)
    return data[position:position + size] if magic in message.VERSIONS and total == size else None
