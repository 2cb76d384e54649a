"""Examine DLedger data that contains no provable message (spec: dledger.md §2).

The header of an entry contains the entry's position, and its length twice. So no other entry begins
inside an entry with an intact header, whatever the body contains. The size can often be determined
even if the header is damaged: header and record contain it up to four times, and DLedger's index
and a consume queue entry contain it, too.
"""

from __future__ import annotations

from collections import Counter

from rmqctl.errors import FormatError
from rmqctl.formats import dledger
from rmqctl.formats.local.message import (
    MIN_SIZE,
    START_SIZE,
    VERSIONS,
    decode,
    is_magic,
    magic_at,
    total_size_at,
)
from rmqctl.scan.resync import MAX_RECORD, extent, is_placed, provable
from rmqctl.scan.source import Source


def whole_entry(source: Source, at: int) -> dledger.EntryHeadRecord | None:
    """Return the entry header at a position if its stored position is right and its size fits the
    file.
    """
    head = dledger.head_at(source.read(at, source.head), source.base + at)
    return head if head is not None and head.size <= source.size - at else None


def claimed_sizes(source: Source, at: int) -> Counter[int]:
    """Return the frame sizes stored in the entry at a position and in its record, each with its
    number of occurrences. Raises: StoreIOError.
    """
    raw = source.read(at, source.head + START_SIZE)
    if len(raw) < source.head + START_SIZE:
        return Counter()
    head, record = dledger.ENTRY_HEAD.decode(raw), raw[source.head:]
    magic = magic_at(record)
    sums = {extent(source, at + source.head, version)
            for version in ((magic,) if is_magic(magic) else VERSIONS)}
    claims = [head.size, head.body_length + source.head, total_size_at(record) + source.head,
              *(size + source.head for size in sums if size is not None)]
    most = min(MAX_RECORD, source.size - at)
    return Counter(size for size in claims if MIN_SIZE + source.head <= size <= most)


def leads_on(source: Source, at: int) -> bool:
    """Return whether an entry, the end mark, or unused space begins at a position."""
    return at == source.size or provable(source, at) or whole_entry(source, at) is not None or (
        not any(source.read(at, source.head)))


def is_proven(source: Source, at: int, size: int) -> bool:
    """Return whether the entry or its record stores this position as its own, and an entry or
    unused space follows after ``size`` bytes.
    """
    raw = source.read(at, source.head)
    return len(raw) == source.head and (
        dledger.ENTRY_HEAD.decode(raw).pos == source.base + at or is_placed(source, at)) and (
        leads_on(source, at + size))


def diagnose(source: Source, at: int) -> tuple[str, str]:
    """Return (reason, field path) of the first error in the entry at a position."""
    raw = source.read(at, source.head)
    if len(raw) < source.head:
        return "too few bytes left for an entry header", "entry.size"
    head = dledger.ENTRY_HEAD.decode(raw)
    if head.magic == dledger.MAGIC_END:
        return f"the end mark shows {head.size} bytes left, but there are {source.size - at}", \
            "entry.size"
    error = dledger.judge(head, at)
    if error is not None:
        return ("zeros where an entry should start" if not any(raw) else error.reason), \
            f"entry.{error.path}"
    if head.pos != source.base + at:
        return f"wrong position {head.pos} in the entry", "entry.pos"
    if head.size > source.size - at:
        return f"size {head.size} extends past the end of the file", "entry.size"
    what = f"entry {head.entry_index} is intact, but the message in it is not: "
    try:
        record = decode(source.read(at + source.head, head.body_length))
    except FormatError as failed:
        return f"{what}{failed.reason}", failed.path or ""
    if record.physical_offset != source.base + at + source.head:
        return f"{what}wrong physicalOffset {record.physical_offset}", "physical_offset"
    return f"{what}size {record.total_size}, expected {head.body_length}", "total_size"
