"""Put back two swapped pages (512 bytes or 4 KiB) of a log.

A record's own physical offset is not proof: a producer may put a complete record with any offset
into a message body. So two pages are swapped back only if every byte of both pages then belongs to
an intact record. No producer can forge that without knowing the bytes of the other page.

In benchmarks/stage_yields.py, two pages are swapped in each of 60 stores, and 361 of the 442
messages in these pages are restored.
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
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.frames import BLANK, ZERO
from rmqctl.scan.overlay import LogPart, OverlayPiece
from rmqctl.scan.resync import used_windows
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store

_PAGES = (4096, 512)
_MAX_RECORD = 8 << 20
_MAX_TRIES = 8
_LOCATED = layout.reader(Message, "total_size", "magic", "physical_offset")
Swap = tuple[int, int, int]
"""Physical offsets of two swapped pages, and the page size."""
Stretch = tuple[int, int, int]
"""Index of a file, and a physical range ``[start, end)`` in it."""


def swapped_pages(
        parts: Sequence[LogPart], regions: Sequence[Region]
) -> dict[int, list[OverlayPiece]]:
    """Return the pieces that put swapped pages back, by part number; all are in damaged regions.
    Raises: StoreIOError.
    """
    stretches = _joined(regions)
    candidates = _candidates(parts, stretches)
    for _ in range(_MAX_TRIES):
        swaps = _disjoint(candidates)
        pieces = _pieces(parts, swaps)
        fitting = _fitting(parts, stretches, swaps, pieces)
        if len(fitting) == len(swaps):
            return pieces
        refuted = {*swaps} - {*fitting}
        candidates = [swap for swap in candidates if swap not in refuted]
    return {}


def _joined(regions: Sequence[Region]) -> list[Stretch]:
    """Return the regions as stretches, with adjacent regions joined."""
    stretches: list[Stretch] = []
    for region in regions:
        if stretches and stretches[-1][0] == region.file and stretches[-1][2] == region.start:
            stretches[-1] = region.file, stretches[-1][1], region.end
        else:
            stretches.append((region.file, region.start, region.end))
    return stretches


def _candidates(parts: Sequence[LogPart], stretches: Sequence[Stretch]) -> list[Swap]:
    """Return pairs of pages whose records' physical offsets suggest a swap.

    First come the pairs in which each page has a record that belongs into the other: a stale copy
    of a page suggests a swap, too, but only from one side.
    """
    starts = [start for _, start, _ in stretches]

    def is_inside(page: int, size: int) -> bool:
        number = bisect_right(starts, page) - 1
        return number >= 0 and page + size <= stretches[number][2]

    # Each misplaced record shows how far its page was moved.
    named_from: dict[Swap, set[int]] = {}
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
                        named_from.setdefault((min(here, there), max(here, there), size),
                                              set()).add(here)
                        break
    return sorted(named_from, key=lambda swap: -len(named_from[swap]))


def _disjoint(swaps: Sequence[Swap]) -> list[Swap]:
    """Return the swaps without those that share a page with an earlier one."""
    taken: set[int] = set()
    chosen = []
    for low, high, size in swaps:
        pages = {at + part for at in (low, high) for part in range(0, size, _PAGES[-1])}
        if not pages & taken:
            taken |= pages
            chosen.append((low, high, size))
    return chosen


def _pieces(parts: Sequence[LogPart], swaps: Sequence[Swap]) -> dict[int, list[OverlayPiece]]:
    pieces: dict[int, list[OverlayPiece]] = {}
    for low, high, size in swaps:
        for to, came_from in ((low, high), (high, low)):
            number, origin = _part_of(parts, to), _part_of(parts, came_from)
            with parts[origin].open() as source:
                data = source.read(came_from - parts[origin].base, size)
            pieces.setdefault(number, []).append(OverlayPiece.of(to - parts[number].base, data))
    return pieces


def _part_of(parts: Sequence[LogPart], place: int) -> int:
    return next(number for number, part in enumerate(parts) if part.base <= place < part.end)


def _fitting(parts: Sequence[LogPart], stretches: Sequence[Stretch], swaps: Sequence[Swap],
             pieces: dict[int, list[OverlayPiece]]) -> list[Swap]:
    """Return the swaps that fit.

    With all swaps applied, every byte of the swapped pages must belong to an intact record or a
    blank, or be after the end of the log.
    """
    # The log with all swaps applied, and its intact ranges.
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
    # A swap fits if both of its pages are in intact ranges.
    begins = np.array([low for low, _ in sound], np.int64)

    def fits(page: int, size: int) -> bool:
        number = int(np.searchsorted(begins, page, "right")) - 1
        return number >= 0 and page + size <= sound[number][1]

    return [swap for swap in swaps if all(fits(page, swap[2]) for page in swap[:2])]


def _magics(source: Source, start: int, end: int) -> Iterator[int]:
    """Yield the positions in ``[start, end)`` at which a message may start, because a magic is at
    the right distance.
    """
    last = start - 1
    for window_start, data in used_windows(source, start, end):
        for hit in MAGIC_PATTERN.finditer(data):
            position = window_start + hit.start() - MAGIC_OFFSET
            if last < position < end:
                last = position
                yield position


def misplaced(source: Source, start: int, end: int) -> Iterator[tuple[int, Record | int]]:
    """Yield (position, record) for records whose physical offset field names another position.

    For an incomplete record, the value of its physical offset field is yielded in place of the
    record.
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
    """Return whether the index confirms the offset in the record's physical offset field.

    All entries for that offset must match the record's keys and store time. A key alone proves
    nothing: many messages may share it.
    """
    keys = keys_of_places(store, [record.physical_offset]).get(record.physical_offset, [])
    return bool(keys) and {key.key_hash for key in keys} <= key_hashes(record) and all(
        key.agrees(record.store_timestamp) for key in keys)
