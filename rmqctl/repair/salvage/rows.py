"""Which messages are lost: rows, damaged records and gaps put together, one entry a message."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rmqctl.errors import FormatError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import BLANK_SIZE, Record, decode
from rmqctl.repair.salvage.bulk import Bulk, parted
from rmqctl.repair.salvage.evidence import ENDLESS, Evidence, FoundRow, Gatherer, Hole, holes_with
from rmqctl.repair.salvage.fields import strayed
from rmqctl.repair.salvage.filler import LEAST, Filler, Row, Style
from rmqctl.repair.salvage.layout import Carried
from rmqctl.repair.salvage.survey import Region, Survey
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.overlay import LogPart

_MOST_BATCH = (1 << 15) - 1


@dataclass(slots=True)
class Known:
    """``carried``: lost messages that get a filler. ``bare``: damaged records that had no row.

    ``bulks``: those of missing files that are handled by column. ``notes`` are warnings.
    """

    carried: list[Carried] = field(default_factory=list)
    bare: list[tuple[int, int, Record]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bulks: dict[int, Bulk] = field(default_factory=dict)


class Collector:
    """Builds `Known` from what a survey and the consumequeues tell."""

    def __init__(self, parts: Sequence[LogPart], survey: Survey, gatherer: Gatherer,
                 style: Style) -> None:
        self._parts, self._survey, self._style = parts, survey, style
        self._holes = gatherer.holes
        self._from_zero = bool(parts) and parts[0].base == 0
        self._starts = [one.start for one in survey.regions]
        self._taken: dict[QueueKey, list[tuple[int, int, int, int]]] = {}
        self._batches: set[QueueKey] = set()
        self.known = Known()

    def collect(self, evidence: Evidence) -> Known:
        """What the rows that lead into damaged regions tell, and the rest. StoreIOError."""
        rows = list(evidence.rows)
        for region in self._survey.regions:
            columns = evidence.columns.get(region.start)
            if columns is not None:
                bulk, others = parted(region, columns, region.end - BLANK_SIZE, self._style)
                rows += others
                if bulk is not None:
                    self.known.bulks[region.start] = bulk
                    for key, run in bulk.runs():
                        self._taken.setdefault(key, []).append(run)
        placed = self._by_rows(rows)
        self._by_records(placed)
        self._by_gaps()
        return self.known

    # -- rows -------------------------------------------------------------------------------------

    def _by_rows(self, rows: Sequence[FoundRow]) -> list[tuple[int, int]]:
        """Messages which consumequeue rows lead to; returns the bytes they took."""
        by_place: dict[int, list[FoundRow]] = {}
        for row in rows:
            by_place.setdefault(row.physical, []).append(row)
        end = -1
        placed = []
        for physical in sorted(by_place):
            here = by_place[physical]
            size = Counter(row.size for row in here).most_common(1)[0][0]
            here = [row for row in here if row.size == size]
            region = self._region(physical)
            if region is None or size < LEAST or physical < end or physical + size > region.end:
                continue
            record = self._record(physical, size, region)
            here.sort(key=lambda row: rank(row, record))
            batch = here[0].count if here[0].batch else 0
            if batch:
                here = here[:1]
            bounds = [holes_with(self._holes, row.key, row.queue_offset) for row in here]
            filler = Filler(tuple(Row(*row.key, row.queue_offset) for row in here), batch)
            self.known.carried.append(Carried(
                filler, physical, size, "consumequeue",
                max((hole.low for hole in bounds if hole), default=-1),
                min((hole.high for hole in bounds if hole), default=ENDLESS),
                _between(here[0].time, region)))
            for row in here:
                self._take(row.key, row.queue_offset, row.count, physical, physical + size)
            end = physical + size
            placed.append((physical, end))
        return placed

    def _take(self, key: QueueKey, offset: int, count: int, start: int, end: int) -> None:
        self._taken.setdefault(key, []).append((offset, offset + count, start, end))
        if count > 1:
            self._batches.add(key)

    # -- damaged records --------------------------------------------------------------------------

    def _by_records(self, placed: list[tuple[int, int]]) -> None:
        """Damaged records of known extent which no row leads to, but which say what they are."""
        starts = [start for start, _ in placed]
        for region in self._survey.regions:
            for start, size in region.extents:
                at = bisect_right(starts, start + size - 1) - 1
                if at >= 0 and placed[at][1] > start:
                    continue
                record = self._record(start, size, region)
                if record is None:
                    continue
                stray = strayed(record.physical_offset, start, self._parts[region.file].size)
                if stray and record.crc_ok and not self._rows_of(record, start, stray):
                    continue  # a whole record of an earlier life of the file, or from elsewhere
                if not sysflag.has_consume_queue_row(record.sys_flag):
                    self.known.bare.append((start, size, record))
                    continue
                rows = self._rows_of(record, start, stray)
                if not rows:
                    self.known.bare.append((start, size, record))
                else:
                    self.known.carried.append(Carried(Filler(tuple(rows)), start, size,
                                                      "record"))
                    for row in rows:
                        self._take((row.topic, row.queue_id), row.queue_offset, 1, start,
                                   start + size)

    def _rows_of(self, record: Record, physical: int, stray: bool) -> list[Row]:
        """The rows a damaged record claims, as far as the log lacks just these.

        ``stray``: see `strayed`; then only rows between two others of their queue.
        """
        own = Row(os.fsdecode(record.topic), record.queue_id, record.queue_offset)
        found = [own]
        values = props.parse(record.properties.decode("utf-8", "replace"))
        names = values.get(props.MULTI_DISPATCH, "").split(",")
        numbers = values.get(props.MULTI_QUEUE_OFFSET, "").split(",")
        if len(names) == len(numbers):
            found += [Row(name, 0 if name.startswith(props.LMQ_PREFIX) else record.queue_id,
                          int(number)) for name, number in zip(names, numbers, strict=True)
                      if name and number.isascii() and number.isdigit() and len(number) < 19]
        kept = []
        for row in found:
            key = row.topic, row.queue_id
            hole = holes_with(self._holes, key, row.queue_offset)
            taken = any(a <= row.queue_offset < b for a, b, _, _ in self._taken.get(key, ()))
            # An endless hole: only the very next message of a queue that is there.
            near = hole is not None and (hole.inner or (
                not stray and hole.low >= 0 and row.queue_offset - hole.first < 1000))
            if hole is not None and near and not taken and hole.low < physical < hole.high:
                kept.append(row)
        return kept if kept[:1] == [own] else []

    # -- gaps -------------------------------------------------------------------------------------

    def _by_gaps(self) -> None:
        for key, holes in self._holes.items():
            taken = sorted(self._taken.get(key, ()))
            for hole in holes:
                mine = [one for one in taken if hole.first <= one[0] < hole.end]
                self._gaps_of(key, hole, mine, key in self._batches)

    def _gaps_of(self, key: QueueKey, hole: Hole, taken: list[tuple[int, int, int, int]],
                 batch: bool) -> None:
        """The queue offsets of a hole of which nothing but the gap tells."""
        at = hole.first if hole.low >= 0 else taken[0][0] if taken else hole.end
        begin = taken[0][2] if taken else hole.high
        if hole.low < 0 and self._from_zero and at - hole.first <= self._room(-1, begin) // LEAST:
            at = hole.first  # the log is whole from its beginning, so the queue was too
        low = hole.low
        stops = [*taken]
        if hole.high < ENDLESS:
            stops.append((hole.end, hole.end, hole.high, hole.high))
        for first, end, start, behind in stops:
            if at < first:
                self._gap(key, at, first, low, start, batch)
            at, low = max(at, end), behind - 1

    def _gap(self, key: QueueKey, first: int, end: int, low: int, high: int, batch: bool) -> None:
        if batch and end - first <= _MOST_BATCH:
            self.known.carried.append(Carried(
                Filler((Row(*key, first),), end - first), None, None, "gap", low, high))
            return
        room = self._room(low, high)
        if end - first > room // LEAST:
            self.known.notes.append(
                f"{key[0]}/{key[1]}: the log lacks the queue offsets {first} to {end - 1}, and "
                f"there is no damage between physical offsets {low} and {high} that could have "
                "held them: the queue has a gap")
            return
        for offset in range(first, end):
            self.known.carried.append(Carried(Filler((Row(*key, offset),)), None, None, "gap",
                                              low, high))

    def _room(self, low: int, high: int) -> int:
        """Damaged bytes between two places."""
        return sum(max(0, min(region.end, high) - max(region.start, low + 1))
                   for region in self._survey.regions[
                       max(0, bisect_right(self._starts, low) - 1):
                       bisect_right(self._starts, high)])

    # -- what lies there --------------------------------------------------------------------------

    def _region(self, physical: int) -> Region | None:
        at = bisect_right(self._starts, physical) - 1
        region = self._survey.regions[at] if at >= 0 else None
        return region if region is not None and physical < region.end else None

    def _record(self, physical: int, size: int, region: Region) -> Record | None:
        """What the fields of a damaged record say, if they still make a record."""
        part = self._parts[region.file]
        if part.path is None:
            return None
        with part.open() as source:
            try:
                return decode(source.read(physical - part.base, size))
            except FormatError:
                return None


def rank(row: FoundRow, record: Record | None = None) -> tuple[int, str, int]:
    """The record's own queue first, then ordinary queues, light queues last."""
    if record is not None and (os.fsdecode(record.topic), record.queue_id) == row.key:
        return 0, *row.key
    return 2 if row.key[0].startswith(props.LMQ_PREFIX) else 1, *row.key


def _between(time: int | None, region: Region) -> int | None:
    """A row's own store time, if it fits between those of the neighbours."""
    if time is None or time <= 0:
        return None
    if region.before is not None and time < region.before:
        return None
    return None if region.after is not None and time > region.after else time
