"""Collect the lost messages that entries, damaged records and gaps in queue offsets show.

Each message counts once. `Collector` finds the messages that get a filler. `lost_messages` lists
all lost messages for the user, with everything that is known of each.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rmqctl.damage.evidence import (
    ENDLESS,
    MAX_LISTED,
    FoundRow,
    Gatherer,
    Hole,
    HoleEntries,
    holes_with,
)
from rmqctl.damage.index_keys import SECOND, IndexedKey, known_keys, turned_place
from rmqctl.damage.records import is_displaced, is_foreign_place
from rmqctl.damage.survey.survey import Region, Survey
from rmqctl.errors import FormatError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import BLANK_SIZE, MIN_SIZE, Record, decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Dropped, Lost
from rmqctl.repair.salvage.bulk import Bulk, parted
from rmqctl.repair.salvage.filler import Filler, FillerEntry, Style
from rmqctl.repair.salvage.layout import FilledMessage
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.overlay import LogPart
from rmqctl.store.repair_losses import MAX_PLACES, LostRecord
from rmqctl.store.store import Store

_MAX_BATCH = (1 << 15) - 1


@dataclass(slots=True)
class KnownLosses:
    """The lost messages that are known.

    * ``filled``: messages that get a filler.
    * ``without_row``: (physical offset, size, record) of damaged records without a consume queue
      entry.
    * ``bulks``: messages of missing files, which are handled by column. The keys are the physical
      offsets at which the files start.
    * ``notes``: warnings for the user.
    """

    filled: list[FilledMessage] = field(default_factory=list)
    without_row: list[tuple[int, int, Record]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bulks: dict[int, Bulk] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return the number of messages that get a filler if there is enough space."""
        return len(self.filled) + sum(map(len, self.bulks.values()))


class Collector:
    """Builder of `KnownLosses` from a survey and the consume queues."""

    def __init__(self, store: Store, parts: Sequence[LogPart], survey: Survey,
                 gatherer: Gatherer, style: Style) -> None:
        self._store = store
        self._parts, self._survey, self._style = parts, survey, style
        self._holes = gatherer.holes
        self._from_zero = bool(parts) and parts[0].base == 0
        self._starts = [region.start for region in survey.regions]
        self._taken: dict[QueueKey, list[tuple[int, int, int, int]]] = {}
        self._batches: set[QueueKey] = set()
        self.losses = KnownLosses()

    def collect(self, evidence: HoleEntries) -> KnownLosses:
        """Return the lost messages known from entries, damaged records and gaps.

        Raises: StoreIOError.
        """
        rows = list(evidence.rows)
        for region in self._survey.regions:
            columns = evidence.columns.get(region.start)
            if columns is not None:
                bulk, others = parted(region, columns, region.end - BLANK_SIZE, self._style)
                rows += others
                if bulk is not None:
                    self.losses.bulks[region.start] = bulk
                    for key, run in bulk.runs():
                        self._taken.setdefault(key, []).append(run)
        # Further entries that point to a message with damaged properties belong to that message,
        # although the properties no longer name them.
        unsound = set(self._survey.unsound)
        for row in evidence.astray:
            if row.physical in unsound:
                self._take(row.key, row.queue_offset, row.count, row.physical,
                           row.physical + row.size)
        placed = self._by_rows(rows)
        self._by_records(placed)
        self._by_gaps()
        return self.losses

    # -- consume queue entries ---------------------------------------------------------------------

    def _by_rows(self, rows: Sequence[FoundRow]) -> list[tuple[int, int]]:
        """Add messages that consume queue entries point to; return the ranges they cover."""
        # Entries by physical offset. Of different sizes, the most frequent one counts.
        by_place: dict[int, list[FoundRow]] = {}
        for row in rows:
            by_place.setdefault(row.physical, []).append(row)
        end = -1
        placed = []
        places = sorted(by_place)
        for physical, following in pairwise([*places, -1]):
            rows_here = by_place[physical]
            size = Counter(row.size for row in rows_here).most_common(1)[0][0]
            rows_here = [row for row in rows_here if row.size == size]
            region = self._region(physical)
            if region is not None:
                size = _turned_size(physical, size, region, following)
            if region is None or size < MIN_SIZE or physical < end or physical + size > region.end:
                continue
            # The filler is a message of the queue that the record itself names; other queues get
            # further entries.
            record = self._record(physical, size, region)
            rows_here = self._of_one_topic(rows_here, record)
            rows_here.sort(key=lambda row: rank(row, record))
            batch = rows_here[0].count if rows_here[0].batch else 0
            if batch:
                rows_here = rows_here[:1]
            bounds = [holes_with(self._holes, row.key, row.queue_offset) for row in rows_here]
            filler = Filler(tuple(FillerEntry(*row.key, row.queue_offset) for row in rows_here),
                            batch)
            # The message is between the nearest known messages of all its queues.
            self.losses.filled.append(FilledMessage(
                filler, physical, size, "consumequeue",
                max((hole.low for hole in bounds if hole), default=-1),
                min((hole.high for hole in bounds if hole), default=ENDLESS),
                _between(rows_here[0].time, region)))
            for row in rows_here:
                self._take(row.key, row.queue_offset, row.count, physical, physical + size)
            end = physical + size
            placed.append((physical, end))
        return placed

    def _of_one_topic(self, rows: list[FoundRow], record: Record | None) -> list[FoundRow]:
        """Return the entries of one place without those of a queue that has no message in the log,
        if the record itself or another queue is known: a copied topic folder has the same entries.
        """
        plain = [row for row in rows if not row.key[0].startswith(props.LMQ_PREFIX)]
        if len({row.key for row in plain}) < 2:
            return rows
        own = [row for row in plain if rank(row, record)[0] == 0] or [
            row for row in plain if any(hole.low >= 0 or hole.high < ENDLESS
                                        for hole in self._holes.get(row.key, ()))]
        return [row for row in rows if row not in plain or row in own] if own else rows

    def _take(self, key: QueueKey, offset: int, count: int, start: int, end: int) -> None:
        self._taken.setdefault(key, []).append((offset, offset + count, start, end))
        if count > 1:
            self._batches.add(key)

    # -- damaged records --------------------------------------------------------------------------

    def _by_records(self, placed: list[tuple[int, int]]) -> None:
        """Add damaged records of known size to which no entry points."""
        # Skip records to which an entry points: they were already added.
        starts = [start for start, _ in placed]
        for region in self._survey.regions:
            for start, size in region.extents:
                number = bisect_right(starts, start + size - 1) - 1
                if number >= 0 and placed[number][1] > start:
                    continue
                record = self._record(start, size, region)
                if record is None:
                    continue
                # The physicalOffset may show that the record belongs elsewhere.
                stored_at = record.physical_offset
                foreign = is_foreign_place(stored_at, start, self._parts[region.file].size) or (
                    stored_at != start and is_displaced(self._parts, start, stored_at, size))
                if foreign and record.crc_ok and not self._rows_of(record, start, foreign):
                    continue  # intact: from an earlier use of the file, or another position
                if not sysflag.has_consume_queue_row(record.sys_flag):
                    self.losses.without_row.append((start, size, record))
                    continue
                # The record itself names its queues.
                rows = self._rows_of(record, start, foreign)
                if not rows:
                    self.losses.without_row.append((start, size, record))
                else:
                    self.losses.filled.append(FilledMessage(Filler(tuple(rows)), start, size,
                                                      "record"))
                    for row in rows:
                        self._take((row.topic, row.queue_id), row.queue_offset, 1, start,
                                   start + size)

    def _rows_of(self, record: Record, physical: int, foreign: bool) -> list[FillerEntry]:
        """Return the missing consume queue entries that a damaged record names.

        Return no entries if the entry in the record's own queue is not missing. ``foreign``:
        whether the record's physicalOffset differs from its position. If it does, return only
        entries that are missing between two messages of their queue.
        """
        own = FillerEntry(os.fsdecode(record.topic), record.queue_id, record.queue_offset)
        rows = [own]
        values = props.parse(record.properties.decode("utf-8", "replace"))
        light, leads = self._store.queues.light, self._store.queues.leads
        rows += [FillerEntry(name, light.id_of(name, record.queue_id, number, physical, leads),
                             number)
                 for name, number in props.further_rows(values)]
        sound = []
        for row in rows:
            key = row.topic, row.queue_id
            hole = holes_with(self._holes, key, row.queue_offset)
            taken = any(a <= row.queue_offset < b for a, b, _, _ in self._taken.get(key, ()))
            # After the last message of a queue, only the next 1,000 queue offsets are plausible.
            near = hole is not None and (hole.inner or (
                not foreign and hole.low >= 0 and row.queue_offset - hole.first < 1000))
            if hole is not None and near and not taken and hole.low < physical < hole.high:
                sound.append(row)
        return sound if sound[:1] == [own] else []

    # -- gaps -------------------------------------------------------------------------------------

    def _by_gaps(self) -> None:
        for key, holes in self._holes.items():
            taken = sorted(self._taken.get(key, ()))
            for hole in holes:
                of_hole = [message for message in taken if hole.first <= message[0] < hole.end]
                self._gaps_of(key, hole, of_hole, key in self._batches)

    def _gaps_of(self, key: QueueKey, hole: Hole, taken: list[tuple[int, int, int, int]],
                 batch: bool) -> None:
        """Add messages for those queue offsets of a gap that no entry and no damaged record
        explains.
        """
        offset = hole.first if hole.low >= 0 else taken[0][0] if taken else hole.end
        begin = taken[0][2] if taken else hole.high
        if hole.low < 0 and self._from_zero and (
                offset - hole.first <= self._room(-1, begin) // MIN_SIZE):
            offset = hole.first  # the log begins at 0, so the queue was complete
        low = hole.low
        stops = [*taken]
        if hole.high < ENDLESS:
            stops.append((hole.end, hole.end, hole.high, hole.high))
        for first, end, start, behind in stops:
            if offset < first:
                self._gap(key, offset, first, low, start, batch)
            offset, low = max(offset, end), behind - 1

    def _gap(self, key: QueueKey, first: int, end: int, low: int, high: int, batch: bool) -> None:
        if batch and end - first <= _MAX_BATCH:
            self.losses.filled.append(FilledMessage(
                Filler((FillerEntry(*key, first),), end - first), None, None, "gap", low, high))
            return
        room = self._room(low, high)
        if end - first > room // MIN_SIZE:
            self.losses.notes.append(
                f"{key[0]}/{key[1]}: the log lacks queue offsets {first} to {end - 1}, and the "
                f"damage between physical offsets {low} and {high}, if any, is too small to have "
                "contained them: the queue has a gap")
            return
        for offset in range(first, end):
            self.losses.filled.append(FilledMessage(Filler((FillerEntry(*key, offset),)), None,
                                                    None, "gap",
                                              low, high))

    def _room(self, low: int, high: int) -> int:
        """Return the number of damaged bytes between two physical offsets."""
        return sum(max(0, min(region.end, high) - max(region.start, low + 1))
                   for region in self._survey.regions[
                       max(0, bisect_right(self._starts, low) - 1):
                       bisect_right(self._starts, high)])

    # -- damaged bytes -----------------------------------------------------------------------------

    def _region(self, physical: int) -> Region | None:
        number = bisect_right(self._starts, physical) - 1
        region = self._survey.regions[number] if number >= 0 else None
        return region if region is not None and physical < region.end else None

    def _record(self, physical: int, size: int, region: Region) -> Record | None:
        """Return the decoded fields of a damaged record; None if it cannot be decoded."""
        part = self._parts[region.file]
        if part.path is None:
            return None
        with part.open() as source:
            try:
                return decode(source.read(physical - part.base, size))
            except FormatError:
                return None



def _turned_size(physical: int, size: int, region: Region, following: int) -> int:
    """Return the size in an entry, corrected if it is certainly wrong.

    A size that reaches beyond the region is wrong. If flipping exactly one of its bits makes the
    message end where the next message or intact bytes begin, that bit is flipped. Otherwise the
    size is returned unchanged.
    """
    if physical + size <= region.end:
        return size
    ends = {region.end, following, *(start + length for start, length in region.extents
                                     if start == physical)}
    fits = [end - physical for end in ends
            if end > physical and ((end - physical) ^ size).bit_count() == 1]
    return fits[0] if len(fits) == 1 else size


def rank(row: FoundRow, record: Record | None = None) -> tuple[int, str, int]:
    """Return a sort key for entries: the record's own queue first, then ordinary queues, then light
    queues.
    """
    if record is not None and (os.fsdecode(record.topic), record.queue_id) == row.key:
        return 0, *row.key
    return 2 if row.key[0].startswith(props.LMQ_PREFIX) else 1, *row.key


def _between(time: int | None, region: Region) -> int | None:
    """Return the store time in an entry, or None.

    The time counts only if it is between the store times of the messages before and after the
    region.
    """
    if time is None or time <= 0:
        return None
    if region.before is not None and time < region.before:
        return None
    return None if region.after is not None and time > region.after else time


# -- the list of lost messages ---------------------------------------------------------------------


class LostMessages(NamedTuple):
    """The lost messages for the user.

    * ``listed``: the first `MAX_LISTED` messages.
    * ``total``: number of all messages.
    * ``once``: number of messages known only from the index that may be the same as messages known
      only from gaps. In ``total``, each counts once.
    """

    listed: tuple[Lost, ...]
    total: int
    once: int


def lost_messages(store: Store, survey: Survey, losses: KnownLosses, evidence: HoleEntries,
                  end: int) -> LostMessages:
    """Return the lost messages in order of physical offset, with messages of unknown offset last.

    ``end`` is the end of the log's last file. Messages after it are included if consume queue
    entries point to them. A message that is known only from the index is listed with its keys only.
    """
    regions = list(survey.regions)
    if evidence.beyond:
        regions.append(Region(-1, end, max(row.physical + row.size for row in evidence.beyond),
                              before=survey.last_time))
    starts = [region.start for region in regions]
    lost: list[Lost] = []
    for message in losses.filled:
        own = message.own
        physical, size = (None, None) if message.physical is None else message.lost_extent
        from_, to = _times(regions, starts, physical, message.low, message.high)
        lost.append(Lost(own.topic, own.queue_id, own.queue_offset, physical, size, from_, to,
                         by=message.by))
    for physical, size, record in losses.without_row:
        from_, to = _times(regions, starts, physical, -1, 1 << 62)
        lost.append(Lost(record.topic.decode("utf-8", "replace"), record.queue_id,
                         record.queue_offset, physical, size, from_, to, by="record"))
    beyond = {row.physical: row for row in sorted(evidence.beyond, key=rank, reverse=True)}
    for row in beyond.values():
        from_, to = _times(regions, starts, row.physical, -1, 1 << 62)
        lost.append(Lost(*row.key, row.queue_offset, row.physical, row.size, from_, to,
                         by="consumequeue"))
    # Messages of missing files that are handled by column are all counted, but only the first are
    # listed.
    total = len(lost) + evidence.ahead - len(evidence.beyond)
    places = np.array([message.physical_offset for message in lost
                       if message.physical_offset is not None], np.int64)
    for bulk in losses.bulks.values():
        total += len(bulk)
        places = np.concatenate([places, bulk.physical])
        lost += [Lost(*row.key, row.queue_offset, row.physical, row.size, bulk.region.before,
                      bulk.region.after, by="consumequeue") for row in bulk.rows(MAX_LISTED)]
    places.sort()
    lost.sort(key=_order)
    del lost[MAX_LISTED:]
    # Index keys of the listed messages, and of messages that are known only from the index.
    wanted = {message.physical_offset for message in lost if message.physical_offset is not None}
    keys, others = known_keys(store, regions, wanted, places, end)
    tail = survey.regions[-1] if survey.regions else None
    if tail is not None and tail.end == end:
        turned = turned_place(places, np.array(sorted(keys), np.int64), tail.start, end)
        if turned is not None:
            others -= 1
            lost = [replace(message, physical_offset=turned[1])
                    if message.physical_offset == turned[0] else message for message in lost]
    lost = [_with_keys(message, keys) for message in lost]
    if evidence.beyond:
        regions.pop()
    once = _within([(message.low, message.high) for message in losses.filled
                    if message.lost_extent[0] is None or message.physical is None], sorted(keys))
    for physical in sorted(keys.keys() - once):
        from_, to = _times(regions, starts, physical, -1, 1 << 62)
        lost.append(_with_keys(Lost(None, None, None, physical, None, from_, to, by="index"),
                               keys))
    lost.sort(key=_order)
    return LostMessages(tuple(lost[:MAX_LISTED]), total + others - len(once), len(once))


def dropped(store: Store, left_out: Sequence[tuple[int, int | None]], losses: KnownLosses,
            lost: int, homeless: int, unnamed: int) -> Dropped:
    """Return the lost messages and skipped records that no filler represents.

    * ``left_out``: (physical offset, size) of skipped records.
    * ``lost``: number of lost messages.
    * ``homeless``: number of messages without space for a filler.
    * ``unnamed``: number of fillers that represent no known message. Each of them counts as the
      replacement of one of the other losses.
    """
    filled = losses.count - homeless
    rows = {(row.topic, row.queue_id, row.queue_offset) for message in losses.filled
            for row in message.filler.rows}
    count, places = 0, list[LostRecord]()
    for place, size in left_out:
        raw = store.log.raw_at(place, size)
        if raw and _own_row(raw) in rows:
            continue  # a filler represents this record
        count += 1
        if raw and len(places) < MAX_PLACES:
            places.append(LostRecord.of(place, raw))
    messages = max(0, lost - filled)
    return Dropped(max(0, messages - unnamed), max(0, count - max(0, unnamed - messages)),
                   tuple(places))


def _own_row(raw: bytes) -> tuple[str, int, int] | None:
    try:
        record = decode(raw)
    except FormatError:
        return None
    return os.fsdecode(record.topic), record.queue_id, record.queue_offset


def _within(bounds: list[tuple[int, int]], places: Sequence[int]) -> set[int]:
    """Match each offset (``places``, ascending) with a range ``(low, high)`` that contains it, and
    use each range only once. Return the matched offsets.
    """
    bounds.sort(reverse=True)
    matched: set[int] = set()
    around: list[int] = []
    for place in places:
        while bounds and bounds[-1][0] < place:
            heapq.heappush(around, bounds.pop()[1])
        while around and around[0] <= place:
            heapq.heappop(around)
        if around:
            heapq.heappop(around)
            matched.add(place)
    return matched


def _order(lost: Lost) -> tuple[bool, int, str, int, int]:
    return (lost.physical_offset is None, lost.physical_offset or 0, lost.topic or "",
            lost.queue_id or 0, lost.queue_offset or 0)


def _with_keys(lost: Lost, keys: dict[int, list[IndexedKey]]) -> Lost:
    own_keys = keys.pop(lost.physical_offset, None) if lost.physical_offset is not None else None
    if not own_keys:
        return lost
    low = [time for time in (lost.time_from, min(key.time for key in own_keys)) if time is not None]
    high = [time for time in (lost.time_to, max(key.time for key in own_keys) + SECOND - 1)
            if time is not None]
    from_, to = max(low), min(high)
    if from_ > to:  # the index's header is from another time: ignore it
        from_, to = lost.time_from or from_, lost.time_to or to
    return replace(lost, key_hashes=tuple(key.key_hash for key in own_keys), time_from=from_,
                   time_to=to)


def _times(regions: Sequence[Region], starts: Sequence[int], physical: int | None, low: int,
           high: int) -> tuple[int | None, int | None]:
    """Return the store times (ms) of the intact messages before and after a lost message.

    ``physical``: the physical offset of the lost message. If it is None, the lost message was in
    the range ``(low, high)``.
    """
    if physical is not None:
        number = bisect_right(starts, physical) - 1
        if number >= 0 and physical < regions[number].end:
            return regions[number].before, regions[number].after
        return None, None
    first, last = bisect_right(starts, low), bisect_right(starts, high) - 1
    if first > last:
        return None, None
    return regions[first].before, regions[last].after
