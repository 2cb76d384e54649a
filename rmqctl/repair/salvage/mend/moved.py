"""Whole records, and pages of 512 bytes or 4 KiB, that lie at another record's place in a log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    MAGIC_OFFSET,
    MAGIC_PATTERN,
    MIN_SIZE,
    START_SIZE,
    Message,
    Record,
    decode,
    total_size_at,
)
from rmqctl.repair.salvage.survey.survey import Region
from rmqctl.scan.damage.known import key_hashes
from rmqctl.scan.overlay import LogPart, Piece
from rmqctl.scan.resync import used_windows
from rmqctl.scan.source import Source

_PAGES = (4096, 512)
_MOST_RECORD = 8 << 20
_LOCATED = layout.reader(Message, "total_size", "magic", "physical_offset")


def moved_bytes(parts: Sequence[LogPart], regions: Sequence[Region]) -> dict[int, list[Piece]]:
    """Pieces by number of the part, all inside of damaged regions. StoreIOError."""
    pieces: dict[int, list[Piece]] = {}
    done: set[tuple[int, int]] = set()
    moves: dict[tuple[int, int], int] = {}
    starts = [region.start for region in regions]
    for region in regions:
        if not region.dirty:
            continue
        part = parts[region.file]
        with part.open() as source:
            chained = 0
            for place, record in misplaced(source, region.start - part.base,
                                            region.end - part.base):
                if place == chained and not isinstance(record, int):
                    chained += record.total_size
                _put_back(parts, regions, starts, source, place, record, pieces, done, moves,
                          known=place < chained)
    # What lay at a page's right place belongs, if two were swapped, where the page was found.
    for (start, page), came_from in moves.items():
        if (came_from, page) not in moves:
            _page(parts, regions, starts, came_from, start, page, pieces, done)
    return pieces


def _page(parts: Sequence[LogPart], regions: Sequence[Region], starts: Sequence[int], to: int,
          source_at: int, page: int, pieces: dict[int, list[Piece]],
          done: set[tuple[int, int]]) -> None:
    """Lays the page at ``source_at`` over the damaged bytes of the page at ``to``."""
    number = next((n for n, part in enumerate(parts) if part.base <= source_at < part.end), None)
    if number is None:
        return
    with parts[number].open() as source:
        data = source.read(source_at - parts[number].base, page)
    for region in regions[max(0, bisect_right(starts, to) - 1):bisect_right(starts, to + page)]:
        _clipped(parts, region, to, data, pieces, done)


def _magics(source: Source, start: int, end: int) -> Iterator[int]:
    """Positions in ``[start, end)`` where by its magic a message may start."""
    last = start - 1
    for window_start, data in used_windows(source, start, end):
        for hit in MAGIC_PATTERN.finditer(data):
            position = window_start + hit.start() - MAGIC_OFFSET
            if last < position < end:
                last = position
                yield position


def misplaced(source: Source, start: int, end: int) -> Iterator[tuple[int, Record | int]]:
    """(position, the record there) for whole records which say that they belong elsewhere.

    For one that is not whole just the physical offset it says.
    """
    for position in _magics(source, start, end):
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


def _put_back(parts: Sequence[LogPart], regions: Sequence[Region], starts: Sequence[int],
              source: Source, position: int, record: Record | int,
              pieces: dict[int, list[Piece]], done: set[tuple[int, int]],
              moves: dict[tuple[int, int], int], *, known: bool) -> None:
    """``known``: from the start of its file on records follow each other up to this one, so it lies
    in nobody's body.
    """
    target = record if isinstance(record, int) else record.physical_offset
    number = bisect_right(starts, target) - 1
    if number < 0 or target >= regions[number].end or not (
            known or _is_known(parts, source, position, record)):
        return
    region = regions[number]  # where it belongs
    delta = target - (source.base + position)
    page = next((size for size in _PAGES if delta % size == 0), None)
    if page is not None:
        first = position - position % page
        start = source.base + first + delta
        moves[start, page] = source.base + first
        data = source.read(first, page)
        for source_region in regions[max(0, bisect_right(starts, start) - 1):
                                     bisect_right(starts, start + page)]:
            _clipped(parts, source_region, start, data, pieces, done)
    elif not isinstance(record, int) and target + record.total_size <= min(
            region.end, parts[region.file].end - BLANK_SIZE):
        _clipped(parts, region, target, source.read(position, record.total_size), pieces, done)


def _is_known(parts: Sequence[LogPart], source: Source, position: int,
              record: Record | int) -> bool:
    """Whether a row or an index entry leads where a frame says that it belongs.

    Who sends a message may put frames into it that say any place.
    """
    if not isinstance(record, int) and is_indexed(parts, record):
        return True
    target = record if isinstance(record, int) else record.physical_offset
    size = total_size_at(source.read(position, START_SIZE))
    witness = parts[0].witness
    if witness is None:
        return False
    places, sizes = witness.rows(target, target + 1)
    return bool((sizes[places == target] == size).any())


def is_indexed(parts: Sequence[LogPart], record: Record) -> bool:
    """Whether the index has one of the record's keys for the place it says."""
    witness = parts[0].witness
    return witness is not None and bool(
        key_hashes(record) & set(witness.keys(record.physical_offset,
                                              record.physical_offset + 1)[1].tolist()))


def _clipped(parts: Sequence[LogPart], region: Region, start: int, data: bytes,
             pieces: dict[int, list[Piece]], done: set[tuple[int, int]]) -> None:
    """Adds the part of the bytes that lies in the region."""
    low, high = max(start, region.start), min(start + len(data), region.end)
    if low >= high or (low, high) in done:
        return
    done.add((low, high))
    pieces.setdefault(region.file, []).append(
        Piece.of(low - parts[region.file].base, data[low - start:high - start]))
