"""Find the ends of files that a broker lays out ahead, from samples of them."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from rmqctl.scan.frames import used_length

SAMPLES = {"commitlog": 4096, "consumequeue": 40}
"""Bytes of a sample, by the folder of files that are written from their beginning on: whole rows.
"""
SMALL = 1 << 20
"""Files up to this size are read, not sampled."""
_GAP, _BEFORE, _AFTER = 1024, 640, 512
"""Bytes in which the end of a queue is looked for by reading them, and around these."""
_PAGE, _SECTOR, _ROW = 4096, 512, 20
_FIRST, _OF_LOG, _NEXT = 6, 15, 3
"""Equal distances between samples in the first step of a search (in a file of the log), and samples
of further steps."""


def search(size: int, grain: int, *, has_holes: bool) -> Generator[list[tuple[int, int]],
                                                                   list[bytes], int | None]:
    """Find where the data of a file end that was laid out ahead: yield the places to look at, get
    their bytes, return the position after the data; None where samples contradict each other.

    Zeros before the end are a contradiction in files without ``has_holes``, data after it in all.
    """
    blocks = -(-size // grain)
    gap = max(_GAP, grain)
    # Look at places all over the file, and more of them near its beginning: most queues are short.
    low, high, steps = -1, blocks, _OF_LOG if has_holes else _FIRST
    asked = {(blocks - 1) * step // steps for step in range(steps + 1)}
    asked |= {place // grain for place in _growing(size)}
    # Narrow the gap between the last sample with data, and the next one.
    while (high - low - 1) * grain > gap:
        places = [(block * grain, min((block + 1) * grain, size)) for block in sorted(asked)]
        parts = dict(zip(sorted(asked), (yield places), strict=True))
        low = max((block for block, part in parts.items() if used_length(part)), default=low)
        if not has_holes and not all(map(_all_rows, (
                part for block, part in parts.items() if block < low))):
            return None
        if low == blocks - 1:
            return None if has_holes else size
        high = min((block for block in asked if block > low), default=high)
        asked = {low + (high - low) * step // (_NEXT + 1) for step in range(1, _NEXT + 1)} - {low}
    # Read around the end, then look at places after it: first where sectors and a page would end
    # that were lost, then in ever larger steps.
    start = max((low + 1) * grain - max(_BEFORE, grain), 0)
    end = min(high * grain + max(_AFTER, grain), size)
    [around] = yield [(start, end)]
    data_end = start + -(-used_length(around) // _ROW) * _ROW
    if data_end >= end:
        return None
    wide = max(grain, 3 * _ROW)
    distances = [*range(_SECTOR, _PAGE, _SECTOR), *_growing(SMALL)]
    data = yield [(data_end + step - _ROW, min(data_end + step - _ROW + wide, size))
                  for step in distances if data_end + step < size]
    return None if any(map(used_length, data)) else data_end


def _growing(size: int) -> Iterator[int]:
    """Yield a page, and ever larger distances up to the size of a file."""
    place = _PAGE
    while place < size:
        yield place
        place *= 4


def _all_rows(data: bytes) -> bool:
    """Return whether no row of a consume queue is zero."""
    return all(any(data[start:start + _ROW]) for start in range(0, len(data), _ROW))
