"""Fill a damaged region completely: fillers of known messages, and other fillers between them.

The mode of a region says how it must end:

* ``exact``: with a record that ends where the next record begins.
* ``blank``: with an end-of-file record.
* ``tail``: with any record, at the end of the log.
* ``zero``: a region after the last used file becomes zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Literal

from rmqctl.formats.local.message import BLANK_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.salvage import filler
from rmqctl.repair.salvage.filler import Filler, FillerEntry, Style
from rmqctl.scan.overlay import OverlayPiece, Parts

Mode = Literal["exact", "blank", "tail", "zero"]
_SHARE = 64 << 10
"""Maximum size in bytes of a filler for a message of unknown size."""


@dataclass(slots=True)
class FilledMessage:
    """A lost message that a filler represents.

    * ``physical``, ``size``: physical offset and size of the filler, or None while unknown.
    * ``low``, ``high``: range ``(low, high)`` that contains a message of unknown offset.
    * ``by``: kind of evidence for the message.
    * ``time``: its store time (ms).
    * ``lost_extent``: (physical offset, size) of the message itself; its filler may be a byte
      larger.
    """

    filler: Filler
    physical: int | None
    size: int | None
    by: str
    low: int = -1
    high: int = 1 << 62
    time: int | None = None
    lost_extent: tuple[int | None, int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.lost_extent = self.physical, self.size

    @property
    def own(self) -> FillerEntry:
        return self.filler.rows[0]


@dataclass(slots=True)
class FillSpan:
    """A region ``[start, end)`` to fill, and the messages it must contain."""

    start: int
    end: int
    mode: Mode
    time: int
    items: list[FilledMessage] = field(default_factory=list)

    @property
    def limit(self) -> int:
        """Return the greatest physical offset at which the last record may end: a file keeps space
        for its end-of-file record.
        """
        return self.end if self.mode == "exact" else self.end - BLANK_SIZE


class Filling:
    """The fillers of one span.

    * ``left``: messages that do not fit.
    * ``short``: see `fill`.
    * ``unnamed``: number of fillers that represent no known message.
    """

    def __init__(self, span: FillSpan, style: Style) -> None:
        self.span, self.style = span, style
        self.left: list[FilledMessage] = []
        self.short = self.unnamed = 0
        self._least = filler.least_filler(style)
        self.end = span.start
        """Physical offset after the last filler, at which the log continues (mode ``tail``)."""
        self.time = span.time
        """Store time of the last filler (ms)."""

    def settle(self) -> None:
        """Move to ``left`` the items that overlap, extend beyond the span, or are too small for
        their filler. They become messages with an unknown physical offset.
        """
        placed: list[FilledMessage] = []
        position = self.span.start
        for item in sorted(self.span.items, key=lambda message: message.physical or 0):
            assert item.physical is not None
            assert item.size is not None
            fits = (item.physical >= position and item.physical + item.size <= self.span.limit
                    and item.size >= item.filler.tight(self.style))
            if fits:
                placed.append(item)
                position = item.physical + item.size
            else:
                item.physical = item.size = None
                self.left.append(item)
        self.span.items = placed
        for number, item in enumerate(placed):
            if item.size is not None and item.size < item.filler.least(self.style):
                self._widen(number, item)

    def _widen(self, number: int, item: FilledMessage) -> None:
        """Enlarge an item by one byte for its body. An item between two intact messages cannot be
        enlarged.

        The byte is taken from free space next to the item, or from a neighbouring item.
        """
        items, span = self.span.items, self.span
        before = items[number - 1] if number else None
        behind = items[number + 1] if number + 1 < len(items) else None
        start, end = item.physical or 0, (item.physical or 0) + (item.size or 0)
        free_from = span.start if before is None else (before.physical or 0) + (before.size or 0)
        free_to = span.limit if behind is None else behind.physical or 0
        if end < free_to:
            item.size = end - start + 1
        elif behind is not None and (behind.size or 0) > behind.filler.least(self.style):
            item.size, behind.physical = end - start + 1, end + 1
            behind.size = (behind.size or 0) - 1
        elif free_from < start:
            item.physical, item.size = start - 1, end - start + 1
        elif before is not None and (before.size or 0) > before.filler.least(self.style):
            item.physical, item.size = start - 1, end - start + 1
            before.size = (before.size or 0) - 1

    def gaps(self) -> Iterator[tuple[int, int, int]]:
        """Yield (index of the item after the gap, start, end) for each gap in the span.

        The gaps before the first item and after the last item are included.
        """
        position = self.span.start
        for number, item in enumerate(self.span.items):
            assert item.physical is not None
            assert item.size is not None
            if position < item.physical:
                yield number, position, item.physical
            position = item.physical + item.size
        if position < self.span.limit:
            yield len(self.span.items), position, self.span.limit

    def place(self, waiting: list[FilledMessage]) -> list[FilledMessage]:
        """Place messages whose physical offset is unknown in the gaps; return the messages that do
        not fit.

        ``waiting``: the messages, in the order in which they must be placed. Messages of one queue
        keep their order.
        """
        placed: list[FilledMessage] = []
        done = 0
        # Fill gap by gap; items that are already placed keep their position.
        for number, start, end in list(self.gaps()):
            placed += self.span.items[done:number]
            done = number
            group: list[FilledMessage] = []
            left: list[FilledMessage] = []
            stuck: set[tuple[str, int]] = set()
            position = start
            # Place the messages that fit, at minimum size if necessary. If a message does not fit,
            # later messages of its queues wait, too.
            for item in waiting:
                need = item.filler.wanted(self.style)
                if end - position < need:
                    need = item.filler.least(self.style)
                queues = {(row.topic, row.queue_id) for row in item.filler.rows}
                if (item.low < position and position + need <= min(end, item.high)
                        and not queues & stuck):
                    item.physical, item.size = position, need
                    position += need
                    group.append(item)
                else:
                    left.append(item)
                    stuck |= queues
            waiting = left
            self._stretch(group, end)
            placed += group
        self.span.items = placed + self.span.items[done:]
        return waiting

    def _stretch(self, group: list[FilledMessage], end: int) -> None:
        """Divide the space of a gap that ends at ``end`` among its messages of unknown size.

        No space that is too small for a record may remain.
        """
        if not group:
            return
        position = group[0].physical
        assert position is not None
        for number, item in enumerate(group):
            assert item.size is not None
            later = sum(message.size or 0 for message in group[number + 1:])
            share = min((end - position) // (len(group) - number), _SHARE)
            size = min(max(item.size, share), end - position - later)
            rest = end - position - size
            if number == len(group) - 1 and 0 < rest < self._least:
                size += rest
            size = min(size, max(item.size, item.high - position))
            item.physical, item.size = position, size
            position += size

    def fill(self) -> Iterator[tuple[int, int, Parts]]:
        """Yield, in order, (physical offset, size, parts) of the records that together cover the
        span.

        If the span is too small for a record, ``short`` is set to its length in bytes.
        """
        span, style = self.span, self.style
        position = span.start
        self.time = span.time
        for number, item in enumerate(span.items):
            assert item.physical is not None
            assert item.size is not None
            # Fillers before the item, or it begins earlier.
            gap = item.physical - position
            if 0 < gap < self._least:  # too small for a filler: the item begins earlier
                item.physical, item.size = position, item.size + gap
            elif gap:
                yield from self._fillers(position, gap)
            # Store times must not decrease: the next recovery would take that for damage.
            self.time = max(self.time, item.time or self.time)
            # The item absorbs space after it that is too small for a record.
            end = item.physical + item.size
            follows = (span.items[number + 1].physical or 0) if number + 1 < len(
                span.items) else span.end
            if 0 < follows - end < self._least and (
                    number + 1 < len(span.items) or span.mode == "exact"):
                item.size += follows - end
            yield (item.physical, item.size,
                   item.filler.parts(item.physical, item.size, self.time, style))
            position = item.physical + item.size
        # The end of the span.
        self.end = position
        rest = span.end - position
        if span.mode == "blank":
            yield position, rest, filler.blank(rest)
        elif span.mode == "exact" and rest:
            if rest < self._least:
                self.short = rest
            else:
                yield from self._fillers(position, rest)
            self.end = span.end

    def _fillers(self, position: int, size: int) -> Iterator[tuple[int, int, Parts]]:
        for record in fillers(position, size, self.time, self.style):
            self.unnamed += 1
            yield record

    def piece(self, base: int) -> OverlayPiece:
        """Return all records as one piece of the file that begins at ``base``."""
        start = self.span.start
        parts: list[tuple[int, bytes]] = []
        for offset, _, some in self.fill():
            parts += [(offset - start + position, data) for position, data in some]
        return OverlayPiece(start - base, self.span.end - start, tuple(parts))


def fillers(position: int, size: int, time: int, style: Style) -> Iterator[tuple[int, int, Parts]]:
    """Yield fillers of ``size`` bytes in total, none larger than a broker's default maximum message
    size.
    """
    least = filler.least_filler(style)
    while size:
        step = min(size, filler.MAX_FILLER)
        if 0 < size - step < least:
            step -= least
        yield position, step, filler.filler(position, step, time, style)
        position, size = position + step, size - step
