"""Classify bytes without a record: damage, zeros, or the blank that closes a file.

This is the slow path: it runs once per damaged span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqctl.errors import FormatError
from rmqctl.formats import dledger, layout
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    MAGIC_BLANK,
    MIN_SIZE,
    START_SIZE,
    Message,
    decode,
    is_magic,
)
from rmqctl.scan.damage import entries
from rmqctl.scan.frames import BLANK, DAMAGED, ZERO, Doubtful, Span, used_length
from rmqctl.scan.resync import MAX_RECORD, is_blank, used_windows
from rmqctl.scan.source import Source

if TYPE_CHECKING:
    from rmqctl.scan.damage.slots import EarlierMessages

_LOCATED = layout.reader(Message, "total_size", "magic", "physical_offset", "sys_flag")


def classify(source: Source, position: int, passed: EarlierMessages) -> list[Span]:
    """Return the one to three spans at ``position``, where the scan found no provable record.

    The spans end at the next provable record, or at the end of the file. ``passed``: the messages
    before ``position``.
    """
    base, size = source.base, source.size
    head = source.read(position, BLANK_SIZE)
    if is_blank(source, position):
        from rmqctl.scan.damage.extents import closes

        if closes(source, position, passed):
            return [Span(BLANK, base + position, size - position)]
    entry = entries.whole_entry(source, position) if source.head else None
    if entry is not None and entry.magic in dledger.CONTROL:
        return [Span(BLANK, base + position, entry.size)]
    search = position + 1
    if not any(head):
        first = _first_nonzero(source, position)
        if first is None:
            return [Span(ZERO, base + position, size - position)]
        # A record's own leading zeros are at most those of its size.
        search = max(search, first - BLANK_SIZE)
    reason, field = (entries.diagnose if source.head else diagnose)(source, position)
    from rmqctl.scan.damage.extents import judge

    verdict = judge(source, position, search, passed)
    passed.is_damaged = True
    if field == "physical_offset" and verdict.resume is not None:
        passed.moved_end = verdict.resume
    if verdict.resume is None:
        return _tail(source, position, reason, field, verdict.doubtful)
    return [Span(DAMAGED, base + position, verdict.resume - position, reason, field,
                 located=verdict.located,
                 doubtful=verdict.doubtful)]


def diagnose(source: Source, position: int) -> tuple[str, str]:
    """Return (reason, field path) of the first error in the record at ``position``."""
    head = source.read(position, START_SIZE)
    if len(head) < START_SIZE:
        return "too few bytes left for a record header", "total_size"
    total, magic, physical, _ = _LOCATED.unpack_from(head)
    if magic == MAGIC_BLANK and total == source.size - position:
        return "end-of-file record, but the log continues after it", "magic"
    if magic == MAGIC_BLANK:
        return (f"end-of-file record of {total} bytes, but {source.size - position} bytes left",
                "total_size")
    if not is_magic(magic):
        return ("zeros where a record should start" if not any(head)
                else f"invalid magic {magic:08x}"), "magic"
    if total < MIN_SIZE:
        return f"size {total} is smaller than any record", "total_size"
    if total > source.size - position:
        return f"size {total} extends past the end of the file", "total_size"
    if total > MAX_RECORD:
        return f"size {total} exceeds the maximum record size", "total_size"
    try:
        decode(source.read(position, total))
    except FormatError as error:
        return error.reason, error.path or ""
    if physical != source.base + position:
        return f"wrong physicalOffset {physical}", "physical_offset"
    return "not a valid record", ""


def _tail(source: Source, position: int, reason: str, field: str,
          doubtful: Doubtful) -> list[Span]:
    """Return the spans of the bytes after the last provable record, at most three: leading zeros,
    other bytes, trailing zeros.
    """
    base, size = source.base, source.size
    first, last = _nonzero(source, position)
    if first is None or last is None:
        return [Span(ZERO, base + position, size - position)]
    spans = []
    if first < position + BLANK_SIZE:  # the leading zero bytes of a torn record's own size
        first = position
    else:
        spans.append(Span(ZERO, base + position, first - position))
        reason, field = "bytes after the end of the log", ""
    spans.append(Span(DAMAGED, base + first, last + 1 - first, reason, field,
                      doubtful=doubtful))
    if last + 1 < size:
        spans.append(Span(ZERO, base + last + 1, size - last - 1))
    return spans


def _first_nonzero(source: Source, start: int) -> int | None:
    """Return the first position from ``start`` on whose byte is not zero; None if all are zero."""
    for position, data in used_windows(source, start, source.size):
        return position + len(data) - len(data.lstrip(b"\0"))
    return None


def _nonzero(source: Source, start: int) -> tuple[int | None, int | None]:
    """Return the first and the last position with a non-zero byte from ``start`` on."""
    first: int | None = None
    last: int | None = None
    for position, data in used_windows(source, start, source.size):
        used = used_length(data)
        last = position + used - 1
        if first is None:
            first = position + used - len(data[:used].lstrip(b"\0"))
    return first, last
