"""Classify many damaged records at once by the consume queue entries that point into one buffer.

The entry alone is enough evidence if it has the damaged record's size, and another record follows.
The result is then the same as that of `rmqctl.scan.damage.classify`, which handles all other
damage.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from rmqctl.formats.local.message import (
    MAGIC_BLANK,
    MIN_SIZE,
    VERSIONS,
    is_magic,
    magic_at,
    total_size_at,
)
from rmqctl.scan.damage.classify import diagnose
from rmqctl.scan.damage.slots import EarlierMessages
from rmqctl.scan.frames import DAMAGED, Batch, Span, examine
from rmqctl.scan.resync import extent, provable
from rmqctl.scan.source import AtHand


class Led:
    """The frames in a buffer that entries point to. ``data``: the bytes from ``position`` on."""

    def __init__(self, source: AtHand, data: memoryview, position: int) -> None:
        assert source.witness is not None
        self._source, self._data, self._position = source, data, position
        start = source.base + position
        place, size = source.witness.rows(start, start + len(data))
        # One size for each place, and all of it in the buffer.
        kept = (size >= MIN_SIZE) & (place + size <= start + len(data))
        kept[1:] &= (place[1:] != place[:-1]) | (size[1:] != size[:-1])
        place, size = place[kept], size[kept]
        alone = np.ones(len(place), bool)
        alone[1:] &= place[1:] != place[:-1]
        alone[:-1] &= place[1:] != place[:-1]
        at = place[alone] - start
        self._batch, proven = examine(np.frombuffer(data, np.uint8), start, at)
        size = size[alone]
        sound = proven & (self._batch.column("total_size") == size)
        # Where a run of sound frames that follow each other ends: an index after it.
        last = ~sound
        last[:-1] |= at[1:] != at[:-1] + size[:-1]
        last[-1:] = True
        ends = np.flatnonzero(last)
        self._stop: list[int] = (ends + sound[ends])[
            np.searchsorted(ends, np.arange(len(at)))].tolist()
        self._at, self._sound = at.tolist(), sound.tolist()
        self._size: list[int] = size.tolist()

    def _number(self, at: int) -> int | None:
        """Return the index of the frame at a position in the buffer; None if no entry points to
        it.
        """
        number = bisect_left(self._at, at)
        return number if number < len(self._at) and self._at[number] == at else None

    def span(self, position: int) -> Span | None:
        """Return the damaged record at a position of the file; None if other evidence is needed."""
        number = self._number(position - self._position)
        if number is None or self._sound[number]:
            return None
        at, size = self._at[number], self._size[number]
        magic = magic_at(self._data, at)
        if magic == MAGIC_BLANK or not (
                total_size_at(self._data, at) == size or any(
                    extent(self._source, position, version) == size
                    for version in ((magic,) if is_magic(magic) else VERSIONS))):
            return None
        if not (self._is_proven(at + size) or provable(self._source, position + size)):
            return None
        return Span(DAMAGED, self._source.base + position, size,
                    *diagnose(self._source, position), located=True)

    def _is_proven(self, at: int) -> bool:
        """Return whether an intact frame begins at a position in the buffer, followed by another
        one.
        """
        number = self._number(at)
        if number is None or not self._sound[number]:
            return False
        behind = self._number(at + self._size[number])
        return behind is not None and self._sound[behind]

    def frames(self, position: int, end: int, passed: EarlierMessages,
               sound_from: int) -> tuple[Batch, int, int]:
        """Return (the frames in ``[position, end)``, the position after them, the start of the
        intact frames after the last damage).

        The frames end early at damage that needs other evidence. The intact frames from
        ``sound_from`` up to the last damage are added to ``passed``.
        """
        rows, spans = [np.zeros(0, np.int64)], []
        while position < end:
            number = self._number(position - self._position)
            if number is not None and self._sound[number]:
                stop = min(self._stop[number], bisect_left(self._at, end - self._position))
                rows.append(np.arange(number, stop))
                position = self._position + self._at[stop - 1] + self._size[stop - 1]
                continue
            span = self.span(position)
            if span is None:
                break
            passed.add(sound_from, position)
            passed.is_damaged = True
            spans.append(span)
            sound_from = position = position + span.length
        batch = self._batch.select(np.concatenate(rows))
        batch.spans = spans
        return batch, position, sound_from
