"""Find contradictions to pieces of a log in a disk image or another source without a reliable
order.

A *piece* is a chain of records, as in `rmqctl.repair.carve.fragments`. A file system may store the
files of a log, and their fragments, in any order. The position of a piece therefore proves nothing.

Either of these facts contradicts a piece:

* The piece interrupts a log, and the missing bytes of that log are not found elsewhere.
* Another message has the same physical offset.

A piece after an incomplete record may be part of the record's body, unless a fragment is proven to
end in the record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from rmqctl.formats import dledger
from rmqctl.formats.local.message import START_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.carve.fragments import NEXT, REACH, SECTOR, Chains, RecordChain
from rmqctl.repair.carve.window import AsLog, Window
from rmqctl.scan.damage.extents import claimed_end
from rmqctl.scan.frames import Array

MAX_RANGES = 1 << 16
_MAX_OPEN = 8
_PAGE, _UNUSED = 4096, 64 << 10


class GrowingRanges:
    """A growing set of half-open ranges. Once it has `MAX_RANGES` ranges, the last range is
    extended to include further ranges.
    """

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        if len(self._ranges) < MAX_RANGES:
            self._ranges.append((start, end))
        else:
            low, high = self._ranges[-1]
            self._ranges[-1] = min(low, start), max(high, end)

    def contain(self, places: Array) -> Array:
        """Return a boolean array: whether each place is in one of the ranges."""
        if not self._ranges:
            return np.zeros(len(places), bool)
        starts, ends = np.array(sorted(self._ranges), np.int64).T
        last = np.searchsorted(starts, places, "right") - 1
        inside: Array = (last >= 0) & (places < np.maximum.accumulate(ends)[last])
        return inside


@dataclass(slots=True)
class _Break:
    """A break of a log at ``at``, in a record that ends at ``end`` or earlier.

    ``is_settled``: the end of the doubtful range after the break is already known.
    """

    at: int
    end: int
    is_settled: bool = False
    is_end: bool = False
    """True if the log ends at the break: the rest of the page is unused."""


class Pieces:
    """The chains of records in a source, in scan order, and the places that contradict them."""

    def __init__(self, window: Window, file_end: Callable[[int], int]) -> None:
        self._window, self._file_end = window, file_end
        self.chains = Chains(window)
        self._breaks: dict[int, _Break] = {}
        """Breaks, keyed by the shift of the log, in order of position."""
        self._owned, self._doubt = GrowingRanges(), GrowingRanges()
        self._is_judged = False
        self._cut = 0
        """End of the last fragment that ends inside a record."""
        self.file_ends: set[int] = set()
        """Physical offsets at which a blank ends a file of a log."""

    def ended(self, shift: int, at: int) -> None:
        """Record that a chain of records ends at ``at``. Raises: StoreIOError."""
        size = self._file_end(at)
        self.chains.end(shift, at, size)
        if size and len(self.file_ends) < MAX_RANGES:
            self.file_ends.add(at + shift + size)

    def _starts(self, chain: RecordChain) -> None:
        shift, at = chain.shift, chain.start
        if at < self._cut:
            self._doubt.add(at, self._cut)
        for other, broken in list(self._breaks.items()):
            if other == shift:
                # The bytes between are of another log, or the log continues elsewhere.
                if (apart := self.chains.apart(shift, broken.at, at)) is None:
                    self._owned.add(broken.at, at)
                else:
                    self._settle(broken, min(broken.end, apart))
                del self._breaks[other]
            elif at >= broken.end:
                self._settle(broken, broken.end)
                if at >= broken.at + REACH:
                    del self._breaks[other]
            elif at == broken.at or self._is_file(shift, at, broken.at) or (
                    broken.is_end and not (shift - other) % SECTOR):
                self._settle(broken, at)

    def _ends(self, chain: RecordChain) -> None:
        shift, start, at, file_end = chain
        # No body contains a record that reaches beyond its end, nor its chain.
        for broken in self._breaks.values():
            if start < broken.end < at:
                self._settle(broken, start)
        # The end of a file is no break, and that of a fragment is known.
        if file_end or at >= self._window.size or shift in self._breaks:
            return
        if (cut := self.chains.cut(shift, at)) is not None:
            self._cut = max(cut, self._cut)
            return
        if len(self._breaks) >= _MAX_OPEN:
            oldest = self._breaks.pop(next(iter(self._breaks)))
            self._settle(oldest, oldest.end)
        claimed = claimed_end(AsLog(self._window, shift, None), at, strict=True)
        goes_on = self.chains.goes_on(shift, at)
        apart = self.chains.apart(shift, at, at + REACH if goes_on is None else goes_on)
        ends = [claimed, at + REACH, at + REACH if apart is None else apart]
        unused = self._window.read(at, _PAGE - at % _PAGE)
        self._breaks[shift] = _Break(
            at, min(end for end in ends if end > at),
            is_end=goes_on is None and len(unused) >= START_SIZE and not any(unused))

    def _settle(self, broken: _Break, end: int) -> None:
        if not broken.is_settled:
            self._doubt.add(broken.at, end)
            broken.is_settled = True

    def _is_file(self, shift: int, at: int, broken: int) -> bool:
        """Return whether a file of a log starts at ``at``, after the unused end of another file. In
        a DLedger log, an entry header precedes the first record.
        """
        head = max(at - dledger.HEAD_SIZE, 0)
        if dledger.head_at(self._window.read(head, dledger.HEAD_SIZE), head + shift) is not None:
            at = head
        return not (at + shift) % _PAGE and not at % SECTOR and not any(
            self._window.read(broken, min(at - broken, _UNUSED)))

    def judge(self, places: Array) -> tuple[Array, Array]:
        """Return two boolean arrays: whether each place interrupts another log, and whether each of
        the remaining places may be in a body.
        """
        if not self._is_judged:
            for chain in self.chains:
                self._starts(chain)
                self._ends(chain)
            for broken in self._breaks.values():
                self._settle(broken, broken.end)
            if self.chains.unknown_from is not None:
                self._doubt.add(self.chains.unknown_from, self._window.size)
            self._is_judged = True
        owned = self._owned.contain(places)
        return owned, self._doubt.contain(places) & ~owned


class Claims:
    """The physical offsets that messages in place occupy, by store host."""

    def __init__(self) -> None:
        self._of: dict[int, list[tuple[int, int]]] = {}
        self._count = 0

    def take(self, hosts: Array, physical: Array, sizes: Array, *,
             only_look: bool = False) -> Array:
        """Return a boolean array: whether each message overlaps an earlier message.

        Consecutive messages form chains, and the longest chain is processed first. Unless
        ``only_look`` is true, chains without an overlap are added to the occupied offsets.
        """
        ends = physical + sizes
        edges = ~np.isin(physical[1:] - ends[:-1], NEXT) | (hosts[1:] != hosts[:-1])
        rows = [0, *(np.flatnonzero(edges) + 1).tolist(), len(physical)]
        taken: Array = np.zeros(len(physical), bool)
        for first, after in sorted(pairwise(rows), key=lambda pair: pair[0] - pair[1]):
            host, part = int(hosts[first]), slice(first, after)
            taken[part] = self._overlap(host, physical[part], ends[part])
            if not only_look and not taken[part].any():
                self._add(host, int(physical[first]), int(ends[after - 1]))
        return taken

    def _add(self, host: int, start: int, end: int) -> None:
        ranges = self._of.setdefault(host, [])
        if ranges and start - ranges[-1][1] in NEXT:
            ranges[-1] = ranges[-1][0], end
        elif self._count < MAX_RANGES:
            insort(ranges, (start, end))
            self._count += 1

    def _overlap(self, host: int, starts: Array, ends: Array) -> Array:
        ranges = self._of.get(host, [])
        first = max(bisect_right(ranges, (int(starts[0]), 0)) - 1, 0)
        others = ranges[first:bisect_left(ranges, (int(ends[-1]), 0))]
        if not others:
            return np.zeros(len(starts), bool)
        # They do not overlap each other, so the last that starts before an end ends last, too.
        low, high = np.array(others, np.int64).T
        last = np.searchsorted(low, ends) - 1
        overlap: Array = (last >= 0) & (high[last] > starts)
        return overlap
