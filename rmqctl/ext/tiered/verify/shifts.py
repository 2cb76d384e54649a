"""Messages displaced from their units' targets because a broker repeated a torn write (tiered.md
§8.4).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import plural
from rmqctl.ext.tiered.displaced import find_shifted
from rmqctl.ext.tiered.verify.queue import Loose, QueueCheck
from rmqctl.formats.tiered.units import GUESSED
from rmqctl.scan.frames import Array

_SEARCHED = 8 << 20
_MAX_TRIED = 10_000


class Unit(NamedTuple):
    """A unit without a message."""

    queue_offset: int
    offset: int
    size: int


class Shifts:
    """Distances by which messages of a segment are displaced, with the number of messages for each.

    Messages are displaced if a broker's write was interrupted and the broker then wrote the
    complete block after the partial one. Units and physical offsets of this block contain the
    offsets that its messages should have. Up to the segment's end, later messages have correct
    physical offsets but wrong units.

    A damaged unit looks like such a wrong unit. Therefore a distance is only accepted if a message
    of the repeated block, displaced by this distance, matches its unit.
    """

    def __init__(self, check: QueueCheck) -> None:
        self._check, self._log = check, check.queue.commit_log
        self._segments = [segment for segment in self._log.segments if segment.usable]
        self._shifts: dict[int, Counter[int]] = {}
        """Number of messages for each distance, keyed by the base of the segment."""
        self._span_starts = [span.offset for span in check.spans]
        self._first: tuple[int, int] | None = None
        self._searched: set[int] = set()

    def has(self, offset: int) -> bool:
        """Return whether messages are displaced in the segment that contains a logical offset."""
        segment = self._log.segment_of(offset)
        return segment is not None and any(self._shifts.get(segment.base, {}).values())

    def span_of(self, offset: int) -> int | None:
        """Return the index of the span that contains a logical offset; None if no span contains
        it.
        """
        number = bisect_right(self._span_starts, offset) - 1
        return number if number >= 0 and offset < self._check.spans[number].end else None

    def frames(self, loose: Loose, claimed: Array) -> None:
        """Set ``claimed`` for each message whose distance from its unit's target is proven."""
        bases = np.array([segment.base for segment in self._segments], np.int64)
        distance = loose.offset - loose.unit_offset
        base = bases[np.searchsorted(bases, loose.offset, "right") - 1]
        rows = np.flatnonzero(loose.has_unit & (loose.unit_size == loose.size) & (distance > 0)
                              & (loose.unit_offset >= base))
        groups: dict[tuple[int, int], list[int]] = {}
        for row in rows.tolist():
            groups.setdefault((int(base[row]), int(distance[row])), []).append(row)
        for (start, by), group in groups.items():
            # The unit of the first message after the block points into the block.
            self._search(int(loose.queue_offset[group[0]]), int(loose.unit_offset[group[0]]))
            for row in group if by in self._shifts.get(start, ()) else ():
                queue_offset = int(loose.queue_offset[row])
                if not self._check.seen.has(queue_offset, 1)[0]:
                    claimed[row] = True
                    self._note(start, by, queue_offset, int(loose.offset[row]))
                    self._check.seen.add(loose.queue_offset[row:row + 1])

    def explains(self, unit: Unit) -> bool:
        """Return whether the message of a unit is at a proven distance from the unit's target.

        The message may belong to a repeated block, or it may be a later message that the scan could
        not distinguish from the body of a damaged record.
        """
        self._search(unit.queue_offset, unit.offset)
        segment = self._log.segment_of(unit.offset)
        if segment is None:
            return False
        for distance in self._shifts.get(segment.base, ()):
            place = unit.offset + distance
            record = None if self.span_of(place) is None else self._log.record_at(place, unit.size)
            if record is not None and record.queue_offset == unit.queue_offset and (
                    record.physical_offset in (unit.offset, place)):
                self._note(segment.base, distance, unit.queue_offset, place)
                return True
        return False

    def findings(self) -> Iterator[Finding]:
        if self._first is None:
            return
        queue_offset, offset = self._first
        counts: Counter[int] = Counter()
        for shifts in self._shifts.values():
            counts.update(shifts)
        count, distance = counts.total(), counts.most_common(1)[0][0]
        where = "its unit points" if count == 1 else "their units point"
        yield self._check.place.log("tiered-shifted", f"{plural(count, 'message')} {distance} "
                                    f"bytes after where {where}: an interrupted write was repeated",
                                    offset, queue_offset=queue_offset, count=count)

    def _note(self, base: int, distance: int, queue_offset: int, offset: int) -> None:
        self._shifts.setdefault(base, Counter())[distance] += 1
        if self._first is None or queue_offset < self._first[0]:
            self._first = queue_offset, offset

    def _search(self, queue_offset: int, offset: int) -> None:
        """Search the damage around ``offset``, to which a unit points, for displaced messages.

        A displaced message matches its unit, but its physical offset field is smaller than its real
        position. The search covers the span that contains ``offset``, and adjacent spans. Each span
        is searched once.
        """
        number, segment = self.span_of(offset), self._log.segment_of(offset)
        if number is None or number in self._searched or segment is None:
            return
        spans, first, behind = self._check.spans, number, number + 1
        while first and segment.base < spans[first].offset == spans[first - 1].end:
            first -= 1
        while behind < len(spans) and spans[behind - 1].end == spans[behind].offset < segment.end:
            behind += 1
        self._searched.update(range(first, behind))
        start = spans[first].offset
        length = min(spans[behind - 1].end, start + _SEARCHED, segment.end) - start
        with self._log.source(segment) as source:
            messages = find_shifted(source, start - segment.base, length, self._check.queue.name,
                                    queue_offset - 1, most=_MAX_TRIED)
        units = self._check.units.at(np.array([shifted.queue_offset for shifted in messages],
                                              np.int64))
        for row, shifted in enumerate(messages):
            says = int(units.offset[row]), int(units.size[row])
            if shifted.says < shifted.position and says == (shifted.says, shifted.size) and (
                    units.tags_code[row] != GUESSED) and not (
                    self._check.seen.has(shifted.queue_offset, 1)[0]):
                shifts = self._shifts.setdefault(segment.base, Counter())
                shifts[shifted.position - shifted.says] += 0
