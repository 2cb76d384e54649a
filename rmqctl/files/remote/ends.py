"""Where files end that a broker lays out ahead, from samples of them."""

from __future__ import annotations

from collections.abc import Generator

from rmqctl.scan.frames import used_length

SAMPLES = {"commitlog": 4096, "consumequeue": 320}
"""Bytes of a sample, by the folder of files that are written from their beginning on: whole rows.
"""
SMALL = 1 << 20
"""Files up to this size are read, not sampled."""
AROUND = 13 * 320
"""Bytes before and after the end of a file that are read: whole samples, and a page."""
_FIRST, _NEXT, _BEFORE = 16, 3, 6
"""Samples of the first step of a search, of further ones, and before the end that was found."""
_ROW = 20
"""Bytes of an entry of a consume queue."""


def search(size: int, grain: int, *, has_holes: bool) -> Generator[list[tuple[int, int]],
                                                                   list[bytes], int]:
    """Find where the data of a file end that was laid out ahead: yield the places to look at, get
    their bytes, return the position after the data; ``size`` where samples contradict each other.

    Zeros before the end are a contradiction in files without ``has_holes``, data after it in all.
    """
    # Narrow the gap between the last sample with data, and the next one.
    blocks = -(-size // grain)
    low, high, number = -1, blocks, _FIRST
    while (high - low - 1) * grain > AROUND:
        asked = sorted({low + 1 + (high - low - 2) * step // max(number - 1, 1)
                        for step in range(number)})
        data = yield [(block * grain, min((block + 1) * grain, size)) for block in asked]
        used = [block for block, part in zip(asked, data, strict=True) if used_length(part)]
        whole = [block for block, part in zip(asked, data, strict=True)
                 if has_holes or _all_rows(part)]
        low = max(used, default=low)
        if low == blocks - 1 or any(block < low and block not in whole for block in asked):
            return size
        high = min((block for block in asked if block > low), default=high)
        number = _NEXT
    # Read around the end, then ever larger steps after it, and some places before it.
    start, end = max((low + 1) * grain - AROUND, 0), min(high * grain + AROUND, size)
    places, step = [(start, end)], AROUND
    while (after := end + step) + grain < size:
        places.append((after, after + grain))
        step *= 4
    before = 0 if has_holes else _BEFORE
    places += ((place, place + grain) for place in sorted({
        start * part // _BEFORE // grain * grain for part in range(before)}))
    around, *rest = yield places
    found = start + -(-used_length(around) // grain) * grain
    after_it, before_it = rest[:len(rest) - before], rest[len(rest) - before:]
    contradicted = found >= end or any(map(used_length, after_it)) or not all(
        map(_all_rows, before_it))
    return size if contradicted else found


def _all_rows(data: bytes) -> bool:
    """Return whether no row of a consume queue is zero."""
    return all(any(data[start:start + _ROW]) for start in range(0, len(data), _ROW))
