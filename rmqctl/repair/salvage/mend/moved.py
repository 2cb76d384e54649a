"""Pages of 512 bytes or 4 KiB of a log that are at another page's place: two that were swapped.

A record's own place is not proof: who sends a message may put a whole record into its body that
names any place. So two pages are put back together, or not at all: with each at the other's place
every byte of both has to be of an intact record. Nobody can send a message that makes the bytes
of another page right which he does not know.

Yield (benchmarks/stage_yields.py): 361 of the 442 messages in two swapped pages of 60 stores.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from rmqctl.damage.index_keys import keys_of_places
from rmqctl.damage.survey.survey import Region
from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    MAGIC_OFFSET,
    MAGIC_PATTERN,
    MIN_SIZE,
    START_SIZE,
    Message,
    Record,
    decode,
)
from rmqctl.repair.salvage.log_files import laid_over
from rmqctl.scan.damage.known import key_hashes
from rmqctl.scan.frames import BLANK, ZERO
from rmqctl.scan.overlay import LogPart, Piece
from rmqctl.scan.resync import used_windows
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store

_PAGES = (4096, 512)
_MAX_RECORD = 8 << 20
_MAX_TRIES = 8
_LOCATED = layout.reader(Message, "total_size", "magic", "physical_offset")
Swap = tuple[int, int, int]
"""The physical offsets of two pages, and their size."""
Stretch = tuple[int, int, int]
"""The number of a file, and physical ``[start, end)`` in it."""


def swapped_pages(parts: Sequence[LogPart], regions: Sequence[Region]) -> dict[int, list[Piece]]:
    """Pieces by number of the part, all inside of damaged regions. StoreIOError."""
    stretches = _joined(regions)
    swaps = _candidates(parts, stretches)
    for _ in range(_MAX_TRIES):
        pieces = _pieces(parts, swaps)
        fitting = _fitting(parts, stretches, swaps, pieces)
        if len(fitting) == len(swaps):
            return pieces
        swaps = fitting
    return {}


def _joined(regions: Sequence[Region]) -> list[Stretch]:
    """Return the regions, those that touch each other as one."""
    stretches: list[Stretch] = []
    for region in regions:
        if stretches and stretches[-1][0] == region.file and stretches[-1][2] == region.start:
            stretches[-1] = region.file, stretches[-1][1], region.end
        else:
            stretches.append((region.file, region.start, region.end))
    return stretches


def _candidates(parts: Sequence[LogPart], stretches: Sequence[Stretch]) -> list[Swap]:
    """Pages that a record says to belong where another page is, none of them twice."""
    starts = [start for _, start, _ in stretches]

    def is_inside(page: int, size: int) -> bool:
        number = bisect_right(starts, page) - 1
        return number >= 0 and page + size <= stretches[number][2]

    # Each misplaced record says how far its page was moved.
    swaps: dict[Swap, None] = {}
    for file, start, end in stretches:
        part = parts[file]
        with part.open() as source:
            for place, record in misplaced(source, start - part.base, end - part.base):
                target = record if isinstance(record, int) else record.physical_offset
                delta = target - (part.base + place)
                for size in _PAGES:
                    here = part.base + place - place % size
                    there = here + delta
                    if delta % size == 0 and is_inside(here, size) and is_inside(there, size):
                        swaps[min(here, there), max(here, there), size] = None
                        break
    # Pages of one swap cannot be of another.
    taken: set[int] = set()
    chosen = []
    for low, high, size in swaps:
        pages = {at + part for at in (low, high) for part in range(0, size, _PAGES[-1])}
        if not pages & taken:
            taken |= pages
            chosen.append((low, high, size))
    return chosen


def _pieces(parts: Sequence[LogPart], swaps: Sequence[Swap]) -> dict[int, list[Piece]]:
    pieces: dict[int, list[Piece]] = {}
    for low, high, size in swaps:
        for to, came_from in ((low, high), (high, low)):
            number, origin = _part_of(parts, to), _part_of(parts, came_from)
            with parts[origin].open() as source:
                data = source.read(came_from - parts[origin].base, size)
            pieces.setdefault(number, []).append(Piece.of(to - parts[number].base, data))
    return pieces


def _part_of(parts: Sequence[LogPart], place: int) -> int:
    return next(number for number, part in enumerate(parts) if part.base <= place < part.end)


def _fitting(parts: Sequence[LogPart], stretches: Sequence[Stretch], swaps: Sequence[Swap],
             pieces: dict[int, list[Piece]]) -> list[Swap]:
    """Return those of which, all laid over the log, every byte is of an intact record, of a blank,
    or after the log's end.
    """
    # The log as it would be, and what of it is explained.
    changed_parts = laid_over(parts, {number: tuple(sorted(some, key=lambda piece: piece.at))
                             for number, some in pieces.items()})
    sound: list[tuple[int, int]] = []
    touched = {bisect_right([start for _, start, _ in stretches], page) - 1
               for low, high, _ in swaps for page in (low, high)}
    for number in sorted(touched):
        file, start, end = stretches[number]
        base = changed_parts[file].base
        with changed_parts[file].open() as source:
            for batch in Walk(source, start - base, end - base):
                good = batch.crc_ok() | (batch.column("body_length") <= 0)
                first = batch.offset - batch.head
                spans = [(span.offset, span.end) for span in batch.spans if span.kind == BLANK or (
                    span.kind == ZERO and span.end == changed_parts[file].end)]
                for low, high in (*zip(first[good].tolist(), (first + batch.frame_size)[
                        good].tolist(), strict=True), *spans):
                    if sound and sound[-1][1] == low:
                        sound[-1] = sound[-1][0], high
                    else:
                        sound.append((low, high))
    # A swap fits if both of its pages are in that.
    begins = np.array([low for low, _ in sound], np.int64)

    def fits(page: int, size: int) -> bool:
        number = int(np.searchsorted(begins, page, "right")) - 1
        return number >= 0 and page + size <= sound[number][1]

    return [swap for swap in swaps if all(fits(page, swap[2]) for page in swap[:2])]


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
    """Yield (position, the record there) for whole records which say that they belong elsewhere.

    For one that is not whole just the physical offset it says.
    """
    for position in _magics(source, start, end):
        head = source.read(position, START_SIZE)
        if len(head) < START_SIZE:
            continue
        total, _, physical = _LOCATED.unpack_from(head)
        if physical < 0 or physical == source.base + position or total < MIN_SIZE:
            continue
        if total <= min(_MAX_RECORD, end - position):
            try:
                record = decode(source.read(position, total))
            except FormatError:
                record = None
            if record is not None and record.crc_ok and record.body:
                yield position, record
                continue
        yield position, physical


def is_indexed(store: Store, record: Record) -> bool:
    """Return whether the index has keys for the place that a record says, all of them the record's
    and of its store time: one key may be that of many messages.
    """
    keys = keys_of_places(store, [record.physical_offset]).get(record.physical_offset, [])
    return bool(keys) and {key.key_hash for key in keys} <= key_hashes(record) and all(
        key.agrees(record.store_timestamp) for key in keys)
