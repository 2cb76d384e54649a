"""Where a record might start: magics whose size and length of body could be true."""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from rmqctl.formats import layout
from rmqctl.formats.local.message import HOST_BITS, MAGIC_V1, MAGIC_V2, MIN_SIZE, Message
from rmqctl.repair.carve.window import Window
from rmqctl.scan.frames import Array, gather_int, shape
from rmqctl.scan.resync import MAX_RECORD

_MAGICS = re.compile(b"|".join(re.escape(struct.pack(">I", one)) for one in (MAGIC_V1, MAGIC_V2)))
_MAGIC_AT = layout.field(Message, "magic").offset
_HEAD_SIZE = max(shape(bits, MAGIC_V1).head_size for bits in (0, HOST_BITS))
"""The widest fixed part before the body: so much is looked at."""
_STEP = 64 << 10


class Candidates:
    """Positions in a window's source where the fixed part of a record might stand.

    What was found in a stretch is remembered: going on behind each one costs no second search.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._found: list[int] = []
        self._from = self._to = 0

    def within(self, start: int, end: int) -> Iterator[int]:
        """Candidates from ``start`` to before ``end``, ascending."""
        end = min(end, self._window.size - MIN_SIZE + 1)
        at = start
        while at < end:
            if not self._from <= at < self._to:
                at = self._look(at)
            upto = self._to
            for candidate in self._found[bisect_left(self._found, at):]:
                if candidate >= end:
                    return
                yield candidate
            at = max(at, upto)

    def _look(self, at: int) -> int:
        """Searches the next stretch; the position where it begins, behind a hole perhaps."""
        window = self._window
        # A record's size may begin with the last zeros of a hole.
        at = max(at, window.next_data(at) - _MAGIC_AT)
        self._found, self._from, self._to = [], at, min(at + _STEP, window.size)
        if at >= window.size:
            self._to = at + 1
            return at
        window.hold(at, min(_STEP + _HEAD_SIZE, window.size - at))
        low = at - window.start
        high = min(self._to - window.start + _MAGIC_AT + 3, window.end - window.start)
        hits = [one.start() - _MAGIC_AT for one in _MAGICS.finditer(
            window.buffer, low + _MAGIC_AT, high)]
        if hits:
            self._found = self._plausible(hits)
        return at

    def _plausible(self, hits: list[int]) -> list[int]:
        """Those whose size and length of body could be; positions in the source."""
        window = self._window
        places = np.array(hits, np.int64)
        left = window.end - window.start - places
        # Near to the end of the source the short head has to do; the judge looks again.
        kept = places[left >= MIN_SIZE]
        near = left[left >= MIN_SIZE] < _HEAD_SIZE
        total = _field(window, kept, "total_size")
        good = (total >= MIN_SIZE) & (total <= np.minimum(
            MAX_RECORD, window.size - window.start - kept))
        bits = _field(window, kept, "sys_flag") & HOST_BITS
        for one in np.unique(bits).tolist():
            rows = np.flatnonzero((bits == one) & good & ~near)
            length = _field(window, kept[rows], "body_length", sys_flag=one, magic=MAGIC_V1)
            good[rows] = (length >= 0) & (length <= total[rows] - MIN_SIZE)
        found: list[int] = (kept[good] + window.start).tolist()
        return found


def _field(window: Window, places: Array, name: str, **context: int) -> Array:
    """A field of the fixed part of records that stand at ``places`` of the window's data."""
    where = layout.field(Message, name, **context)
    return gather_int(window.data, places + where.offset, f"i{where.size}")
