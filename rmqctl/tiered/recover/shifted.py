"""Whole messages that lie at another place than they say: a block written again behind a part of
itself (tiered.md §8.4).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.local import message, properties
from rmqctl.formats.local.javahash import tags_code
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import Source
from rmqctl.tiered.flat_queue import QueueName

PLACE = layout.field(message.Message, "physical_offset")
"""The field that a shifted message has wrong."""
_MAGICS = re.compile(b"|".join(re.escape(struct.pack(">I", one)) for one in message.VERSIONS))
_MAGIC_AT = layout.field(message.Message, "magic").offset
_HEAD = layout.reader(message.Message, "total_size", "magic")
_WINDOW = 4 << 20


@dataclass(frozen=True, slots=True)
class Shifted:
    """A message: ``position`` is where it lies, ``says`` what its own field has (both logical
    offsets).
    """

    position: int
    says: int
    size: int
    queue_offset: int
    tags_code: int
    store_time: int


def find_shifted(source: Source, start: int, length: int, name: QueueName,
                 last: int) -> list[Shifted]:
    """The messages of a queue in a damaged range (positions in ``source``), in their order.

    They prove themselves by lengths, body CRC, topic and queue, and by their queue offsets: the
    first continues after ``last`` or repeats what was there (or begins the file: then what was
    before may be hidden by it), each further one continues.
    """
    found: list[Shifted] = []
    done, end = start, start + length
    for place in _magics(source, start, end):
        if place < done:
            continue
        one = _at(source, place, end, name)
        expected = found[-1].queue_offset + 1 if found else None
        if one is None or (one.queue_offset > last + 1 and place if expected is None
                           else one.queue_offset != expected):
            continue
        found.append(one)
        done = place + one.size
    return found


def _magics(source: Source, at: int, end: int) -> Iterator[int]:
    """Where things that look like the head of a message begin."""
    overlap = _HEAD.size - 1
    while at < end:
        data = source.read(at, min(_WINDOW, end - at))
        for hit in _MAGICS.finditer(data, _MAGIC_AT):
            yield at + hit.start() - _MAGIC_AT
        if len(data) < _WINDOW:
            return
        at += len(data) - overlap


def _at(source: Source, at: int, end: int, name: QueueName) -> Shifted | None:
    head = source.read(at, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    total: int = _HEAD.unpack(head)[0]
    if not message.MIN_SIZE <= total <= min(MAX_RECORD, end - at):
        return None
    try:
        record = message.decode(source.read(at, total))
    except FormatError:
        return None
    if (not record.crc_ok or record.queue_id != name.queue_id or record.queue_offset < 0
            or record.topic != name.topic.encode("utf-8", "surrogateescape")):
        return None
    tags = properties.parse(record.properties.decode("utf-8", "replace")).get(properties.TAGS)
    return Shifted(source.base + at, record.physical_offset, total, record.queue_offset,
                   tags_code(tags), record.store_timestamp)
