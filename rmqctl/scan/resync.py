"""Finding the way again after damage: what lies at a position, and where the next record starts.

A record proves itself by its magic, by lengths that add up, and above all by its physical
offset, which must equal its place. After damage one more proof is asked: it chains to something
provable, or its body matches its CRC. So a copy of a record inside another one's body is not
taken for a record of the log. This is the slow path: it runs once per damaged span.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import merge

from rmqctl.errors import FormatError
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
    VERSIONS,
    Blank,
    Message,
    decode,
    is_magic,
    properties_length_at,
    variant,
)
from rmqctl.scan.frames import BLANK, DAMAGED, ZERO, Span, used_length
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


def extent(source: Source, at: int, magic: int | None = None) -> int | None:
    """The record size which the length fields at ``at`` add up to, read without the body.

    None when they lead out of the file or are negative. ``magic`` overrides the stored one; a
    stored one that is none is taken for the oldest.
    """
    head = source.read(at, START_SIZE)
    if len(head) < START_SIZE:
        return None
    _, stored, _, sys_flag = _LOCATED.unpack_from(head)
    magic = magic or stored
    shape = variant(sys_flag & HOST_BITS, magic if is_magic(magic) else MAGIC_V1)
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


def classify(source: Source, at: int) -> list[Span]:
    """What lies at ``at``, where the walk found no provable record: one to three spans.

    They cover the bytes up to the next provable record, or to the end of the file.
    """
    base, size = source.base, source.size
    head = source.read(at, BLANK_SIZE)
    if len(head) == BLANK_SIZE:
        total, magic = _BLANK.unpack(head)
        if magic == MAGIC_BLANK and total == size - at:
            return [Span(BLANK, base + at, size - at)]
    search = at + 1
    if not any(head):
        first = _first_nonzero(source, at)
        if first is None:
            return [Span(ZERO, base + at, size - at)]
        # A record's own leading zeros are at most those of its size.
        search = max(search, first - BLANK_SIZE)
    reason, field = _diagnose(source, at)
    own = _own_extent(source, at)
    limit = size if own is None else at + own
    found = next_provable(source, search, limit)
    if found is not None:
        return [Span(DAMAGED, base + at, found - at, reason, field)]
    if own is not None and own < size - at:
        return [Span(DAMAGED, base + at, own, reason, field, located=True)]
    return _tail(source, at, reason, field)


def _own_extent(source: Source, at: int) -> int | None:
    """The damaged record's own size where its fields still tell it beyond doubt."""
    head = source.read(at, START_SIZE)
    if len(head) < START_SIZE:
        return None
    total, magic, physical, _ = _LOCATED.unpack_from(head)
    if MIN_SIZE <= total <= min(MAX_RECORD, source.size - at):
        possible = (magic,) if is_magic(magic) else VERSIONS
        if any(extent(source, at, version) == total for version in possible):
            return int(total)
    # Nothing after it: the size that lands on unused space is the record's.
    if is_magic(magic) or (physical == source.base + at and any(head)):
        for length in (total, extent(source, at)):
            if length is None or not MIN_SIZE <= length <= min(MAX_RECORD, source.size - at):
                continue
            if (at + length == source.size or is_blank(source, at + length)
                    or not any(source.read(at + length, START_SIZE))):
                return length
    return None


def _diagnose(source: Source, at: int) -> tuple[str, str]:
    """(reason, field path) of the first thing wrong with the record at ``at``."""
    head = source.read(at, START_SIZE)
    if len(head) < START_SIZE:
        return "fewer bytes are left than a record head needs", "total_size"
    total, magic, physical, _ = _LOCATED.unpack_from(head)
    if magic == MAGIC_BLANK:
        return f"blank record says {total} bytes to the end, there are {source.size - at}", \
            "total_size"
    if not is_magic(magic):
        return ("zeros where a record should start" if not any(head)
                else f"no message magic: {magic:08x}"), "magic"
    if total < MIN_SIZE:
        return f"size {total} is smaller than any record", "total_size"
    if total > source.size - at:
        return f"size {total} runs past the end of the file", "total_size"
    if total > MAX_RECORD:
        return f"size {total} is larger than any record rmqctl believes", "total_size"
    try:
        decode(source.read(at, total))
    except FormatError as error:
        return error.reason, error.path or ""
    if physical != source.base + at:
        return f"says it lies at {physical}", "physical_offset"
    return "no record", ""


def _tail(source: Source, at: int, reason: str, field: str) -> list[Span]:
    """Bytes with no provable record behind them: zeros, what is not zero, and zeros again."""
    base, size = source.base, source.size
    first, last = _nonzero(source, at)
    if first is None or last is None:
        return [Span(ZERO, base + at, size - at)]
    spans = []
    if first < at + BLANK_SIZE:  # the leading zero bytes of a torn record's own size
        first = at
    else:
        spans.append(Span(ZERO, base + at, first - at))
        reason, field = "bytes beyond the end of the log", ""
    spans.append(Span(DAMAGED, base + first, last + 1 - first, reason, field))
    if last + 1 < size:
        spans.append(Span(ZERO, base + last + 1, size - last - 1))
    return spans


def _first_nonzero(source: Source, at: int) -> int | None:
    """The first position from ``at`` on whose byte is not zero; None if the rest is zero."""
    for position, data in used_windows(source, at, source.size):
        return position + len(data) - len(data.lstrip(b"\0"))
    return None


def _nonzero(source: Source, at: int) -> tuple[int | None, int | None]:
    """The first and last position with a non-zero byte from ``at`` on."""
    first: int | None = None
    last: int | None = None
    for position, data in used_windows(source, at, source.size):
        used = used_length(data)
        last = position + used - 1
        if first is None:
            first = position + used - len(data[:used].lstrip(b"\0"))
    return first, last
