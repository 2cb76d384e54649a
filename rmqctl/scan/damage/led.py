"""Classify many damaged records at once by the consume queue entries that point into one buffer.

The entry alone is enough evidence if it has the damaged record's size, and another record follows.
The result is then the same as that of `rmqctl.scan.damage.classify`, which handles all other
damage.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property

import numpy as np

from rmqctl.formats.local.message import (
    MAGIC_BLANK,
    MAGIC_OFFSET,
    MIN_SIZE,
    VERSIONS,
    fixed_field,
)
from rmqctl.scan.damage.classify import diagnose
from rmqctl.scan.damage.slots import EarlierMessages
from rmqctl.scan.frames import DAMAGED, Array, Batch, Span, examine, gather_int, proved
from rmqctl.scan.resync import provable
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
        size, raw = size[alone], np.frombuffer(data, np.uint8)
        sound = proved(raw, start, at) & (gather_int(raw, at, "i4") == size)
        self._columns: tuple[Array, Array, Array] = at, size, sound
        # Damaged records with the size that their entry has, and those that are followed by two
        # intact frames.
        hit = np.flatnonzero(~sound)
        hit = hit[self._add_up(at[hit], size[hit])]
        first, is_first = self._next_sound(hit)
        proven = hit[is_first & self._next_sound(first)[1]]
        self._adds_up = dict.fromkeys(hit.tolist(), False)
        self._adds_up.update(dict.fromkeys(proven.tolist(), True))
        self.lost: Array = np.column_stack([at[proven], size[proven], np.zeros_like(proven)])
        """Damaged records of which the evidence is in the buffer, as rows: position, length,
        whether a scan has skipped it.
        """

    def _next_sound(self, numbers: Array) -> tuple[Array, Array]:
        """Return for the frames with these indices the index of the one after each, and a boolean
        array: whether that one begins where the frame ends and is sound.
        """
        at, size, sound = self._columns
        ends = at[numbers] + size[numbers]
        after = np.minimum(np.searchsorted(at, ends), len(at) - 1)
        return after, sound[after] & (at[after] == ends)

    def _examined(self, at: Array) -> Batch:
        start = self._source.base + self._position
        return examine(np.frombuffer(self._data, np.uint8), start, at)[0]

    @cached_property
    def _batch(self) -> Batch:
        return self._examined(self._columns[0])

    @cached_property
    def _at(self) -> list[int]:
        values: list[int] = self._columns[0].tolist()
        return values

    @cached_property
    def _size(self) -> list[int]:
        values: list[int] = self._columns[1].tolist()
        return values

    @cached_property
    def _sound(self) -> list[bool]:
        values: list[bool] = self._columns[2].tolist()
        return values

    @cached_property
    def _stop(self) -> list[int]:
        """Return for each frame where the run of sound frames that follow each other ends: an index
        after it.
        """
        at, size, sound = self._columns
        last = ~sound
        last[:-1] |= at[1:] != at[:-1] + size[:-1]
        last[-1:] = True
        ends = np.flatnonzero(last)
        stop: list[int] = (ends + sound[ends])[np.searchsorted(ends, np.arange(len(at)))].tolist()
        return stop

    def _add_up(self, at: Array, size: Array) -> Array:
        """Return a boolean array: whether the records at positions of the buffer have the sizes
        ``size``, by their own sizes or their other lengths.
        """
        data = np.frombuffer(self._data, np.uint8)
        stored, magic = gather_int(data, at, "i4"), gather_int(data, at + MAGIC_OFFSET, "u4")
        sound = np.logical_or.reduce([magic == version for version in VERSIONS])
        whole: Array = (stored == size) & (magic != MAGIC_BLANK)
        for version in VERSIONS:
            rows = np.flatnonzero(~whole & ((magic == version) | ~sound) & (magic != MAGIC_BLANK))
            whole[rows] = self._add_up_as(version, at[rows], size[rows])
        return whole

    def _add_up_as(self, version: int, at: Array, size: Array) -> Array:
        """Return the same for one version, by the lengths: whether copies with the right header are
        intact frames. Records do not overlap, so after twice the buffer's bytes all are False.
        """
        sums: Array = np.zeros(len(at), bool)
        at = at[:int(np.searchsorted(np.cumsum(size), 2 * len(self._data), "right"))]
        size = size[:len(at)]
        if not len(at):
            return sums
        copies = np.frombuffer(bytearray().join(
            self._data[start:start + length]
            for start, length in zip(at.tolist(), size.tolist(), strict=True)), np.uint8)
        start = np.cumsum(size) - size
        for name, values in (("total_size", size), ("magic", np.full(len(size), version)),
                             ("physical_offset", start)):
            field = fixed_field(name)
            raw = values.astype(f">i{field.size}" if name != "magic" else ">u4")
            copies[start[:, None] + field.offset + np.arange(field.size)] = raw.view(
                np.uint8).reshape(-1, field.size)
        sums[:len(at)] = proved(copies, 0, start)
        return sums

    def _number(self, at: int) -> int | None:
        """Return the index of the frame at a position in the buffer; None if no entry points to
        it.
        """
        number = bisect_left(self._at, at)
        return number if number < len(self._at) and self._at[number] == at else None

    def span(self, position: int) -> Span | None:
        """Return the damaged record at a position of the file; None if other evidence is needed."""
        number = self._number(position - self._position)
        proven = None if number is None else self._adds_up.get(number)
        if number is None or proven is None or not (
                proven or provable(self._source, position + self._size[number])):
            return None
        return Span(DAMAGED, self._source.base + position, self._size[number],
                    *diagnose(self._source, position), located=True)

    def skipped(self, position: int, passed: EarlierMessages,
                sound_from: int) -> tuple[Batch, int]:
        """Return (the records of `lost` that a scan has skipped from a position on, the end of the
        last one). The intact frames from ``sound_from`` up to that one are added to ``passed``.
        """
        batch = self._examined(np.zeros(0, np.int64))
        rows = self.lost[(self.lost[:, 0] >= position - self._position) & (self.lost[:, 2] > 0)]
        for at, size, _ in rows.tolist():
            position = self._position + at
            batch.spans.append(Span(DAMAGED, self._source.base + position, size,
                                    *diagnose(self._source, position), located=True))
            passed.add(sound_from, position)
            sound_from = position + size
        passed.is_damaged |= len(rows) > 0
        return batch, sound_from

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
