"""Bytes of the log that lie at another place of it: swapped pages, records written elsewhere.

A record says where it belongs. One found in damaged bytes that is whole and belongs into damaged
bytes is put back; if it is off by whole sectors or pages, so is what surrounds it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    START_SIZE,
    Message,
    Record,
    decode,
)
from rmqctl.repair.salvage.survey import Region
from rmqctl.scan.overlay import LogPart, Piece
from rmqctl.scan.source import Source

PAGES = (4096, 512)
_WINDOW = 1 << 20
_MOST_RECORD = 8 << 20
_LOCATED = layout.reader(Message, "total_size", "magic", "physical_offset")
_MAGIC_AT = layout.field(Message, "magic").offset
_MAGICS = re.compile(b"|".join(re.escape(one.to_bytes(4, "big")) for one in (MAGIC_V1, MAGIC_V2)))


def moved_bytes(parts: Sequence[LogPart], regions: Sequence[Region]) -> dict[int, list[Piece]]:
    """Pieces by number of the part, all inside of damaged regions. StoreIOError."""
    found: dict[int, list[Piece]] = {}
    done: set[tuple[int, int]] = set()
    moves: dict[tuple[int, int], int] = {}
    starts = [one.start for one in regions]
    for region in regions:
        if not region.dirty:
            continue
        part = parts[region.file]
        with part.open() as source:
            for place, record in _misplaced(source, region.start - part.base,
                                            region.end - part.base):
                _put_back(parts, regions, starts, source, place, record, found, done, moves)
    # What lay at a page's right place belongs, if two were swapped, where the page was found.
    for (start, page), came_from in moves.items():
        if (came_from, page) not in moves:
            _page(parts, regions, starts, came_from, start, page, found, done)
    return found


def _page(parts: Sequence[LogPart], regions: Sequence[Region], starts: Sequence[int], to: int,
          source_at: int, page: int, found: dict[int, list[Piece]],
          done: set[tuple[int, int]]) -> None:
    """Lays the page at ``source_at`` over the damaged bytes of the page at ``to``."""
    number = next((n for n, part in enumerate(parts) if part.base <= source_at < part.end), None)
    if number is None:
        return
    with parts[number].open() as source:
        data = source.read(source_at - parts[number].base, page)
    for region in regions[max(0, bisect_right(starts, to) - 1):bisect_right(starts, to + page)]:
        _clipped(parts, region, to, data, found, done)


def located(source: Source, start: int, end: int) -> Iterator[int]:
    """Physical offsets in ``[start, end)`` (positions) where a record says that it lies there."""
    at = start
    while at < end:
        data = source.read(at, min(_WINDOW, end - at) + START_SIZE)
        for hit in _MAGICS.finditer(data):
            position = at + hit.start() - _MAGIC_AT
            if start <= position < end and hit.start() < _WINDOW:
                head = source.read(position, START_SIZE)
                if len(head) >= _LOCATED.size and (
                        _LOCATED.unpack_from(head)[2] == source.base + position):
                    yield source.base + position
        at += _WINDOW


def _misplaced(source: Source, start: int, end: int) -> Iterator[tuple[int, Record | int]]:
    """(position, the record there) for whole records which say that they belong elsewhere.

    For one that is not whole just the physical offset it says.
    """
    at = start
    while at < end:
        data = source.read(at, min(_WINDOW, end - at) + START_SIZE)
        for hit in _MAGICS.finditer(data):
            position = at + hit.start() - _MAGIC_AT
            if not start <= position < end or hit.start() >= _WINDOW:
                continue
            head = source.read(position, START_SIZE)
            if len(head) < START_SIZE:
                continue
            total, _, physical = _LOCATED.unpack_from(head)
            if physical < 0 or physical == source.base + position or total < MIN_SIZE:
                continue
            if total <= min(_MOST_RECORD, end - position):
                try:
                    record = decode(source.read(position, total))
                except FormatError:
                    record = None
                if record is not None and record.crc_ok and record.body:
                    yield position, record
                    continue
            yield position, physical
        at += _WINDOW


def _put_back(parts: Sequence[LogPart], regions: Sequence[Region], starts: Sequence[int],
              source: Source, position: int, record: Record | int,
              found: dict[int, list[Piece]], done: set[tuple[int, int]],
              moves: dict[tuple[int, int], int]) -> None:
    target = record if isinstance(record, int) else record.physical_offset
    at = bisect_right(starts, target) - 1
    if at < 0 or target >= regions[at].end:
        return
    region = regions[at]  # where it belongs
    delta = target - (source.base + position)
    page = next((one for one in PAGES if delta % one == 0), None)
    if page is not None:
        first = position - position % page
        start = source.base + first + delta
        moves[start, page] = source.base + first
        data = source.read(first, page)
        for one in regions[max(0, bisect_right(starts, start) - 1):
                           bisect_right(starts, start + page)]:
            _clipped(parts, one, start, data, found, done)
    elif not isinstance(record, int) and target + record.total_size <= region.end:
        _clipped(parts, region, target, source.read(position, record.total_size), found, done)


def _clipped(parts: Sequence[LogPart], region: Region, start: int, data: bytes,
             found: dict[int, list[Piece]], done: set[tuple[int, int]]) -> None:
    """Adds the part of the bytes that lies in the region."""
    low, high = max(start, region.start), min(start + len(data), region.end)
    if low >= high or (low, high) in done:
        return
    done.add((low, high))
    found.setdefault(region.file, []).append(
        Piece.of(low - parts[region.file].base, data[low - start:high - start]))
