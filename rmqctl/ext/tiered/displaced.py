"""Messages of a tiered queue whose physicalOffset does not match their offset in the log (tiered.md
§8.4).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rmqctl.errors import FormatError
from rmqctl.ext.tiered.flat_file import QueueName
from rmqctl.formats import layout
from rmqctl.formats.local import message, properties
from rmqctl.formats.local.javahash import tags_code
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import Source

_HEAD = layout.reader(message.Message, "total_size", "magic")
_WINDOW = 4 << 20


@dataclass(frozen=True, slots=True)
class Shifted:
    """A message at ``position`` whose physicalOffset is ``says`` (both are logical offsets)."""

    position: int
    says: int
    size: int
    queue_offset: int
    tags_code: int
    store_time: int


def find_shifted(source: Source, start: int, length: int, name: QueueName,
                 last: int, *, most: int | None = None) -> list[Shifted]:
    """Return the messages of a queue in a damaged range (positions in ``source``), in order.

    A message must have valid lengths and the right body CRC, topic and queue. The first message's
    queue offset must follow ``last`` or repeat an earlier offset, unless the message begins the
    file. Each further message must have the next queue offset.

    A sender can put a record with these properties into a message body. Therefore a message must
    also be in one of three positions:

    - at the start of the range
    - at the end of the previous message
    - at the start of the second copy of repeated bytes, if the first copy begins no later than one
      of the other positions

    ``most``: maximum number of candidates to try.
    """
    shifted: list[Shifted] = []
    done, end = start, start + length
    for position in islice(_candidates(source, start, end), most):
        if position < done:
            continue
        candidate = _shifted_at(source, position, end, name)
        expected = shifted[-1].queue_offset + 1 if shifted else None
        if candidate is None or (candidate.queue_offset > last + 1 and position if expected is None
                                 else candidate.queue_offset != expected):
            continue
        origins = {candidate.says - source.base}
        if shifted:
            origins.add(candidate.says - source.base + shifted[-1].position - shifted[-1].says)
        if position == done or any(origin <= done and _repeats(source, origin, position)
                                   for origin in origins):
            shifted.append(candidate)
            done = position + candidate.size
    return shifted


def _candidates(source: Source, start: int, end: int) -> Iterator[int]:
    """Yield the positions of bytes that look like the header of a message."""
    overlap = _HEAD.size - 1
    while start < end:
        data = source.read(start, min(_WINDOW, end - start))
        for hit in message.MAGIC_PATTERN.finditer(data, message.MAGIC_OFFSET):
            yield start + hit.start() - message.MAGIC_OFFSET
        if len(data) < _WINDOW:
            return
        start += len(data) - overlap


def _repeats(source: Source, start: int, position: int) -> bool:
    """Return whether the bytes ``[start, position)`` are repeated at ``position``. A broker may
    write a part of a block, and then the complete block.
    """
    length = position - start
    return 0 <= start < position and all(
        source.read(start + at, min(_WINDOW, length - at))
        == source.read(position + at, min(_WINDOW, length - at))
        for at in range(0, length, _WINDOW))


def _shifted_at(source: Source, position: int, end: int, name: QueueName) -> Shifted | None:
    """Return the queue's message at a position, even if its physicalOffset is wrong. Return None if
    the position has no intact message of the queue.
    """
    head = source.read(position, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    total: int = _HEAD.unpack(head)[0]
    if not message.MIN_SIZE <= total <= min(MAX_RECORD, end - position):
        return None
    try:
        record = message.decode(source.read(position, total))
    except FormatError:
        return None
    if (not record.crc_ok or record.queue_id != name.queue_id or record.queue_offset < 0
            or record.topic != name.topic.encode("utf-8", "surrogateescape")):
        return None
    tags = properties.parse(record.properties.decode("utf-8", "replace")).get(properties.TAGS)
    return Shifted(source.base + position, record.physical_offset, total, record.queue_offset,
                   tags_code(tags), record.store_timestamp)
