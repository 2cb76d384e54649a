"""Cache of pointers, in log order. A pointer is a physical offset to which a queue entry or index
entry points.

In a store of usual size, all pointers are read once, sorted and kept in memory. For a larger store,
the log is divided into cells: ranges with about the same number of pointers. The pointers of a cell
are read and sorted when it is first used, and the most recently used cells are kept. Look-ups are
mostly in log order, so every page of entries is read about once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import numpy as np

from rmqctl.scan.frames import Array, distinct
from rmqctl.scan.resync import MAX_RECORD

Pair = tuple[Array, Array]
NOTHING: Pair = np.zeros(0, np.int64), np.zeros(0, np.int64)

CELL = 1 << 20
"""Approximate number of pointers in a cell, which take 16 MiB."""
MAX_HELD = 4 << 20
"""Maximum number of pointers in all cached cells together."""
_MAX_CELLS = 3
"""Maximum number of cells that one look-up uses; a larger range is read without the cache."""
_SAMPLED = 256
"""Interval at which the pointers of a page are sampled to find the boundaries of cells."""
_INT64_MIN, _INT64_MAX = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
_KEY_BITS = 63
_LARGE = 1 << 20
_MAX_LARGE = 1000


class CellCache:
    """Cache of the sorted cells of several `Pages`; the least recently used cell is dropped
    first.
    """

    def __init__(self) -> None:
        self._cells: OrderedDict[tuple[int, int], Pair] = OrderedDict()
        self._count = 0

    def get(self, key: tuple[int, int], read: Callable[[], Pair]) -> Pair:
        """Return the cached value of a key; if it is not cached, read it and add it."""
        pair = self._cells.get(key)
        if pair is None:
            pair = self._cells[key] = read()
            self._count += len(pair[0])
            while self._count > MAX_HELD and len(self._cells) > 1:
                _, (places, _) = self._cells.popitem(last=False)
                self._count -= len(places)
        self._cells.move_to_end(key)
        return pair


class Pages:
    """Pages of entries, each with the first and last physical offset to which it points.

    ``large``: the entries with the largest sizes. ``held``: the cache, which several `Pages` share.
    """

    def __init__(self, held: CellCache | None = None) -> None:
        self.large: list[tuple[int, int]] = []
        self._held = CellCache() if held is None else held
        self._low: list[int] = []
        self._high: list[int] = []
        self._read: list[Callable[[], Pair]] = []
        self._fresh: list[Pair] | None = []
        """The pointers of all added pages; None after they have exceeded the size of a cell or have
        been used.
        """
        self._samples: list[Array] = []
        self._count = 0
        self._bounds: Pair | None = None
        self._borders: Array | None = None

    def add(self, read: Callable[[], Pair]) -> None:
        """Add a page. All pages must be added before the first look-up.

        ``read`` returns the page's (physical offset, value) pairs. Their order is arbitrary, but
        must not change between calls.
        """
        places, values = read()
        if not len(places):
            return
        large = np.flatnonzero((values > _LARGE) & (values <= MAX_RECORD))[:_MAX_LARGE]
        if len(self.large) < _MAX_LARGE:
            self.large += zip(places[large].tolist(), values[large].tolist(), strict=True)
        self._low.append(int(places.min()))
        self._high.append(int(places.max()))
        self._read.append(read)
        self._samples.append(places[::_SAMPLED].copy())
        self._count += len(places)
        if self._fresh is not None:
            self._fresh.append((places, values))
            if self._count > CELL:
                self._fresh = None

    def within(self, start: int, end: int) -> Pair:
        """Return the (physical offset, value) pairs of ``[start, end)`` in ascending order; pairs
        with the same offset keep the order in which they were added.
        """
        borders = self._cells()
        start, last = max(start, _INT64_MIN), min(end - 1, _INT64_MAX)
        if start > last:
            return NOTHING
        begin, stop = np.searchsorted(borders, (start, last), "right").tolist()
        if stop - begin >= _MAX_CELLS:
            return self._between(start, last)
        parts = []
        for number in range(begin, stop + 1):
            places, values = self._held.get((id(self), number), partial(self._cell, number))
            inside = slice(int(np.searchsorted(places, start)),
                           int(np.searchsorted(places, last, "right")))
            parts.append((places[inside], values[inside]))
        return joined(parts)

    def _cells(self) -> Array:
        """Return the physical offsets at which the cells after the first one begin."""
        if self._borders is None:
            samples = np.sort(np.concatenate([NOTHING[0], *self._samples]))
            step = max(1, len(samples) * CELL // max(self._count, 1))
            self._borders = (NOTHING[0] if self._count <= CELL
                             else distinct(samples[step:-(step // 2):step]))
            self._bounds = np.array(self._low, np.int64), np.array(self._high, np.int64)
            self._samples, self._low, self._high = [], [], []
        return self._borders

    def _cell(self, number: int) -> Pair:
        """Return the pairs of a cell in ascending order."""
        borders = self._cells()
        if not len(borders):
            fresh, self._fresh = self._fresh, None
            parts = [read() for read in self._read] if fresh is None else fresh
            return _sorted(parts)
        return self._between(int(borders[number - 1]) if number else _INT64_MIN,
                             int(borders[number]) - 1 if number < len(borders) else _INT64_MAX)

    def _between(self, start: int, last: int) -> Pair:
        """Read the pairs with an offset from ``start`` to ``last`` and return them in ascending
        order.
        """
        assert self._bounds is not None
        low, high = self._bounds
        parts = []
        for page in np.flatnonzero((low <= last) & (high >= start)).tolist():
            places, values = self._read[page]()
            inside = (places >= start) & (places <= last)
            parts.append((places[inside], values[inside]))
        return _sorted(parts)


def joined(parts: list[Pair]) -> Pair:
    """Return the concatenation of several results."""
    parts = [part for part in parts if len(part[0])] or parts[:1]
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    places, values = zip(*parts, strict=True)
    return np.concatenate(places), np.concatenate(values)


def merged(parts: list[Pair]) -> Pair:
    """Merge several ascending results into a single ascending result."""
    parts = [part for part in parts if len(part[0])]
    return joined(parts) if len(parts) < 2 else _sorted(parts)


def _sorted(parts: list[Pair]) -> Pair:
    places, values = joined(parts)
    if len(places) < 2 or bool((places[1:] >= places[:-1]).all()):
        return places, values
    low, bits = int(places.min()), len(places).bit_length()
    if (int(places.max()) - low).bit_length() + bits > _KEY_BITS:
        order = np.argsort(places, kind="stable")
        return places[order], values[order]
    # Numbers with their positions, sorted as such: two thirds of the time of a stable sort.
    keys = (places - low) << bits
    keys |= np.arange(len(places))
    keys.sort()
    order = keys & ((1 << bits) - 1)
    keys >>= bits
    keys += low
    return keys, values[order]
