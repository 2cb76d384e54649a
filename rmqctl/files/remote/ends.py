"""Finding the end of the data in preallocated files by sampling."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from rmqctl.scan.frames import used_length

SAMPLES = {"commitlog": 4096, "consumequeue": 40}
"""Size in bytes of a sample, keyed by folder; only folders whose files are written from the
beginning. A sample of a consume queue consists of complete entries.
"""
SMALL = 1 << 20
"""Maximum size in bytes of a file that is read completely instead of sampled."""
_GAP, _BEFORE, _AFTER = 1024, 640, 512
"""The end of the data in a sampled file.

* ``_GAP``: size in bytes of the gap around that end at which sampling stops.
* ``_BEFORE``, ``_AFTER``: number of bytes that are read before and after this gap.
"""
_PAGE, _SECTOR, _ROW = 4096, 512, 20
_FIRST, _OF_LOG, _NEXT = 6, 15, 3
"""The samples of a search.

* ``_FIRST``: number of intervals between the samples of the first step.
* ``_OF_LOG``: the same number for a search in a log file.
* ``_NEXT``: number of samples in each further step.
"""


def search(size: int, grain: int, *, has_holes: bool) -> Generator[list[tuple[int, int]],
                                                                   list[bytes], int | None]:
    """Search for the end of the data in a preallocated file.

    Yield the positions to read, receive the bytes there, and return the position after the data.
    None if samples contradict each other: a sample after the end has data, or a sample before the
    end has only zeros although ``has_holes`` is False.
    """
    blocks = -(-size // grain)
    gap = max(_GAP, grain)
    # Sample places in the entire file, and more of them near its start: most queues are short.
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
    # Read around the end, then sample places after it: first at the ends of sectors and pages that
    # may be lost, then at ever larger distances.
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
    """Yield distances that grow from a page to the size of a file."""
    place = _PAGE
    while place < size:
        yield place
        place *= 4


def _all_rows(data: bytes) -> bool:
    """Return whether every entry in a sample of a consume queue is nonzero."""
    return all(any(data[start:start + _ROW]) for start in range(0, len(data), _ROW))
