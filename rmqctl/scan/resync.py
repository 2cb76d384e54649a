"""Single positions of a log: whether a record or a blank may begin there.

A record proves itself by its magic, by lengths that add up, and above all by its physical
offset, which must equal its place; and it chains to something provable, or its body matches its
CRC. Who sends a message can put all that into its body. So behind damage this makes a candidate,
no more: `rmqctl.scan.extents` decides what is a record of the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import merge

from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    BLANK_PATTERN,
    BLANK_SIZE,
    HOST_BITS,
    MAGIC_BLANK,
    MAGIC_OFFSET,
    MAGIC_PATTERN,
    MAGIC_V1,
    MIN_SIZE,
    PROPERTIES_LENGTH_SIZE,
    START_SIZE,
    Blank,
    Message,
    decode,
    is_magic,
    properties_length_at,
    variant,
)
from rmqctl.scan.frames import used_length
from rmqctl.scan.source import Source

MAX_RECORD = 128 << 20
"""Larger records are not believed: it bounds memory on damaged sizes (a broker's default
limit is 4 MiB)."""
_FIRST_WINDOW = 64 << 10
_WINDOW = 4 << 20
_BLANK = layout.reader(Blank)
_LOCATED = layout.reader(Message, "total_size", "magic", "physical_offset", "sys_flag")


def is_blank(source: Source, at: int) -> bool:
    """Whether an END_OF_FILE record stands at ``at`` and names exactly the rest of the file."""
    head = source.read(at, BLANK_SIZE)
    return len(head) == BLANK_SIZE and _BLANK.unpack(head) == (source.size - at, MAGIC_BLANK)


def _self_located(source: Source, at: int) -> bytes | None:
    """The bytes of the record at ``at`` if magic, place and lengths agree."""
    head = source.read(at, START_SIZE)
    if len(head) < _LOCATED.size:
        return None
    total, magic, physical, _ = _LOCATED.unpack_from(head)
    if not is_magic(magic) or physical != source.base + at:
        return None
    if not MIN_SIZE <= total <= min(MAX_RECORD, source.size - at):
        return None
    if extent(source, at) != total:
        return None
    raw = source.read(at, total)
    return raw if len(raw) == total else None


def located_size(source: Source, at: int) -> int | None:
    """The size of the record at ``at`` if magic, place and lengths agree; nothing else is asked."""
    raw = _self_located(source, at)
    return None if raw is None else len(raw)


def is_placed(source: Source, at: int) -> bool:
    """Whether a message's magic stands at ``at``, and a physical offset that is this place."""
    head = source.read(at, START_SIZE)
    if len(head) < _LOCATED.size:
        return False
    _, magic, physical, _ = _LOCATED.unpack_from(head)
    return is_magic(magic) and bool(physical == source.base + at)


def extent(source: Source, at: int, magic: int | None = None,
           host_bits: int | None = None) -> int | None:
    """The record size which the length fields at ``at`` add up to, read without the body.

    None when they lead out of the file or are negative. ``magic`` and ``host_bits`` override what
    is stored; a stored magic that is none is taken for the oldest.
    """
    head = source.read(at, START_SIZE)
    if len(head) < START_SIZE:
        return None
    _, stored, _, sys_flag = _LOCATED.unpack_from(head)
    magic = magic or stored
    bits = sys_flag & HOST_BITS if host_bits is None else host_bits
    shape = variant(bits, magic if is_magic(magic) else MAGIC_V1)
    head = source.read(at, shape.head_size)
    if len(head) < shape.head_size:
        return None
    body = shape.head.unpack(head)[-1]
    if not 0 <= body <= source.size:
        return None
    topic_at = at + shape.head_size + body
    raw = source.read(topic_at, shape.topic_length.size)
    if len(raw) < shape.topic_length.size:
        return None
    topic = shape.topic_length.unpack(raw)[0]
    if topic < 0:
        return None
    raw = source.read(topic_at + shape.topic_length.size + topic, PROPERTIES_LENGTH_SIZE)
    if len(raw) < PROPERTIES_LENGTH_SIZE:
        return None
    properties = properties_length_at(raw)
    if properties < 0:
        return None
    size: int = shape.fixed_size + body + topic + properties
    return size if at + size <= source.size else None


def provable(source: Source, at: int) -> bool:
    """Whether a record or the file's blank certainly starts at ``at``."""
    if is_blank(source, at):
        return True
    raw = _self_located(source, at)
    if raw is None:
        return False
    after = at + len(raw)
    if after == source.size or is_blank(source, after) or _self_located(source, after):
        return True
    record = decode(raw)
    return (bool(record.body) and record.crc_ok) or not any(source.read(after, BLANK_SIZE))


def next_provable(source: Source, start: int, end: int) -> int | None:
    """The first position in ``[start, end)`` where a record or blank provably starts."""
    for at, data in used_windows(source, start, end):
        for match in merge(MAGIC_PATTERN.finditer(data), BLANK_PATTERN.finditer(data),
                           key=re.Match.start):
            candidate = at + match.start() - MAGIC_OFFSET
            if start <= candidate < end and provable(source, candidate):
                return candidate
    return None


def used_windows(source: Source, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(position, bytes) with all of ``[start, end)`` that is not zero; holes cost nothing.

    Each has `BLANK_SIZE` bytes of the next one, and begins early enough, so that the magic of
    whatever starts in ``[start, end)`` is in one of them.
    """
    window, at = _FIRST_WINDOW, start
    while at < end:
        used = source.next_data(at) - MAGIC_OFFSET
        if used > at:
            at, window = used, _FIRST_WINDOW
        if at >= end:
            return
        data = source.read(at, min(window, end - at) + BLANK_SIZE)
        if used_length(data):
            yield at, data
        if len(data) <= BLANK_SIZE:
            return
        at, window = at + len(data) - BLANK_SIZE, min(2 * window, _WINDOW)


