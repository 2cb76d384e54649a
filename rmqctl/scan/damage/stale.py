"""Intact records left by an earlier use of their file: stale records.

A page that was never written to disk still has its earlier content. Such a page is a *stale page*,
and its intact records are stale records.

`beside` judges records next to damage, if no consume queue entry and no index entry points to them.
They are stale if evidence contradicts at least a quarter of them. Evidence against a record is:

* the entry for the record's queue offset points elsewhere;
* an entry points into the record;
* the index has another key for the record's offset.

Only a few records right before or after damage, or at the start or end of a file, can belong to one
stale page.

`amid` judges records among undamaged bytes, because a stale page that begins and ends at record
boundaries leaves no damage. It examines a few consecutive records to which no entry points, between
records to which entries point. They count as contradicted in two cases:

* entries of two queues, or of a queue and the index, contradict them;
* an entry points into such a record, and another intact record, confirmed by its own entry, has the
  same queue offset.

If the log were right in such a case, two other structures would have the same damage. Two similar
situations differ from this. A log that was copied from elsewhere disagrees with the entries up to
its end, but its store times continue. If a broker kept index entries from an earlier use of the
file, the consume queue entries still point to the current records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import groupby
from typing import overload

import numpy as np

from rmqctl.errors import FormatError
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import MIN_SIZE, START_SIZE, Record, decode, total_size_at
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.damage.leads import WINDOW, Leads, Taken
from rmqctl.scan.frames import BLANK, DAMAGED, ZERO, Batch, Span, distinct
from rmqctl.scan.source import Source, Witness
from rmqctl.scan.walk import CHUNK, Walk, start_of

MAX_PAGE_RECORDS = 64
"""Largest number of stale records in one page: 4 KiB contain fewer."""
_MAX_READ = 1000
MAX_STALE_PLACES = 200
"""Maximum number of anomalies near which stale records are searched for. If there are more, they
have another cause.
"""
_FAR = 1 << 20
"""Number of bytes next to damage that are read to find a record to which an entry points."""
_MIN_CHUNK = 4 << 10
REASON = "stale records: consume queues and index contain other messages here"


@dataclass(slots=True)
class Stale:
    """Records next to damage: ``found`` are stale, ``unclear`` are undecided."""

    stale_records: list[Record] = field(default_factory=list)
    unclear: list[Record] = field(default_factory=list)

    def add(self, more: Stale) -> None:
        self.stale_records += more.stale_records
        self.unclear += more.unclear

    @property
    def places(self) -> set[int]:
        """The physical offsets of all these records."""
        return {record.physical_offset for record in (*self.stale_records, *self.unclear)}

    def spans(self) -> Iterator[Span]:
        """Yield the records as damaged spans, with adjacent records merged."""
        unclear = {record.physical_offset for record in self.unclear}
        run: list[tuple[int, int]] = []
        for place, size in [*sorted((record.physical_offset, record.total_size)
                                    for record in (*self.stale_records, *self.unclear)), (-1, 0)]:
            if run and place != sum(run[-1]):
                yield Span(DAMAGED, run[0][0], sum(run[-1]) - run[0][0], REASON,
                           doubtful=tuple(frame for frame in run if frame[0] in unclear))
                run.clear()
            run.append((place, size))


def beside(source: Source, start: int, end: int, *, before: int | None = None,
           taken: Taken | None = None) -> Stale:
    """Return the stale records at the start and the end of the undamaged range ``[start, end)``.

    ``before``: store time (ms) of the last message before the damage that ends at ``start``, or
    None. ``taken``: returns whether a record's queue offset is already used.

    Raises: StoreIOError.
    """
    stale = Stale()
    if source.witness is None or source.head or start >= end or _is_led_at_borders(
            source, source.witness, source.base + start, source.base + end):
        return stale
    records = _ends_of(source, start, end)
    leads = Leads(source.witness, records, taken)
    first, last = leads.at_borders()
    if before is None and start == 0 and 0 < len(first) <= MAX_PAGE_RECORDS:
        before, leads.taken = _past_of(source, taken)
    _judge(leads, first, stale, before)
    _judge(leads, last, stale, None)
    return stale


def _past_of(source: Source, taken: Taken | None) -> tuple[int | None, Taken | None]:
    """Return evidence from the previous file about records at the start of a file: the store time
    (ms) of the last message, and a function. The function returns whether a record's queue offset
    is already used. Raises: StoreIOError.
    """
    past = source.witness.offsets_before(source.base) if source.witness is not None else None
    if past is None:
        return None, taken

    def is_taken(record: Record) -> bool:
        ends = past.ends.get((record.topic, record.queue_id))
        return (taken is not None and taken(record)) or (
            ends is not None and sysflag.has_consume_queue_row(record.sys_flag)
            and 0 <= record.queue_offset <= ends[1])
    return past.stored, is_taken


def _judge(leads: Leads, some: Sequence[Record], stale: Stale, before: int | None) -> None:
    """Judge consecutive records to which no entry points, and add them to ``stale``."""
    if not 0 < len(some) <= MAX_PAGE_RECORDS:
        return
    is_older = before is not None and all(record.store_timestamp < before for record in some)
    # Of two messages with one queue offset this may be the right one, unless it is the older one.
    alone = leads if leads.taken is None else Leads(leads.witness, some)
    by_itself = leads if is_older else alone
    if not by_itself.contradict(some, besides=is_older):
        if by_itself is not leads and leads.contradict(some) and (
                before is not None or any(map(alone.besides_offset, some))):
            stale.unclear += some
    elif not any(map(alone.besides_offset, some)):
        # A broker that counts again after a lost queue, or a topic made again, writes the same.
        stale.unclear += some
    else:
        for record in some:
            (stale.stale_records if any(leads.against(record)) else stale.unclear).append(record)


def _ends_of(source: Source, start: int, end: int) -> Sequence[Record]:
    """Return the records of undamaged positions; if there are very many, only those near both
    ends.
    """
    if end - start <= 2 * _FAR:
        places = [*_places(source, start, end)]
        return _Records(source, places if len(places) <= 2 * MAX_PAGE_RECORDS + 2 else (
            places[:MAX_PAGE_RECORDS + 1] + places[-MAX_PAGE_RECORDS - 1:]))
    behind = start_of(source, end - _FAR)
    return _Records(source, [*_places(source, start, start + _FAR)][:MAX_PAGE_RECORDS + 1]
                    + [*_places(source, behind, end)][-MAX_PAGE_RECORDS - 1:])


class Beside:
    """Removes stale records from the batches of one scan. A batch may contain damage only at its
    end.

    Stale records become damage, and unclear records become undecided. Stale records at the start or
    end of a file may leave no damage; they are found by `amid`.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._end = source.base
        """Physical end of the last damage, or start of the file, until a message follows."""
        self._before: int | None = None
        """The store time of the last message before the last damage."""

    def without(self, batch: Batch) -> Batch:
        """Return the batch without stale records. Raises: StoreIOError."""
        begins = len(batch) > 0 and int(batch.offset[0]) == self._end
        damage = next((span for span in batch.spans if span.kind == DAMAGED), None)
        stale = Stale()
        if len(batch) and (damage is not None or (begins and self._before is not None)):
            self._look(batch, stale, begins=begins, ends=damage is not None)
        elif len(batch):
            self._look_at_borders(batch, stale)
        left = batch
        if places := stale.places:
            left = batch.select(np.flatnonzero(~np.isin(batch.offset, [*places])))
            left.spans = sorted([*stale.spans(), *batch.spans], key=lambda span: span.offset)
        if len(left):
            self._before = int(left.column("store_timestamp")[-1])
        last = batch.spans[-1] if batch.spans else None
        if last is not None or len(batch):
            self._end = last.end if last is not None and last.kind != BLANK else -1
        return left

    def _look(self, batch: Batch, stale: Stale, *, begins: bool, ends: bool) -> None:
        """Judge the records at the ends of a batch that are adjacent to damage, or to the start of
        the file.
        """
        witness = self._source.witness
        sound = np.flatnonzero(batch.crc_ok() | (batch.column("body_length") <= 0))
        if witness is None or not len(sound):
            return
        # Only a few records at the ends of the batch can be of one page.
        positions, sizes = batch.offset - self._source.base, batch.column("total_size")
        near = distinct(np.concatenate((
            sound[:MAX_PAGE_RECORDS + 1], sound[-MAX_PAGE_RECORDS - 1:])))
        records = _Records(self._source, [*zip(
            positions[near].tolist(), sizes[near].tolist(), strict=True)])
        # Nearly always entries point to both ends: then there is no page.
        is_led = [bool(witness.confirms(records[number])) for number in (0, -1)]
        leads = Leads(witness, records)
        if all(led or not beside for led, beside in zip(is_led, (begins, ends), strict=True)):
            return
        # The records at both ends to which nothing points.
        every: Sequence[Record] | None = None
        first, last = leads.at_borders()
        if not last and len(first) == len(records) and not (
                batch.spans and batch.spans[-1].kind == ZERO):
            # Nothing points to any: between what is it? Nothing follows after the log's end.
            last = every = first if begins and ends else ()
            first = ()
        # What was before them: in this file, or in the file before.
        before = self._before
        if begins and before is None and 0 < len(first or last) <= MAX_PAGE_RECORDS:
            before, leads.taken = _past_of(self._source, None)
        if begins and before is not None:
            _judge(leads, first, stale, before)
        if ends:
            _judge(leads, last, stale, before if last is every else None)

    def _look_at_borders(self, batch: Batch, stale: Stale) -> None:
        """Find contradicted records at the start and the end of the file. A stale page there leaves
        no damage if its other end is at a record boundary.
        """
        source, witness = self._source, self._source.witness
        if witness is None or source.head:
            return
        places, sizes = batch.offset, batch.column("total_size")
        last = batch.spans[-1].end if batch.spans else int(places[-1] + sizes[-1])
        borders = [0] * (int(places[0]) == source.base) + [-1] * (last == source.base + source.size)
        some = [decode(source.read(place - source.base, size)) for place, size in zip(
            places[borders].tolist(), sizes[borders].tolist(), strict=True)]
        for records in amid(source, [record.physical_offset for record in some
                                     if not witness.confirms(record)
                                     and any(Leads(witness, [record]).against(record))]):
            stale.unclear += records


# -- amid undamaged bytes -------------------------------------------------------------------------


def amid(source: Source, places: Iterable[int]) -> Iterator[list[Record]]:
    """Yield the records of a log file that other data contradicts, near the anomalies at physical
    ``places`` (ascending).

    An anomaly is an entry that points elsewhere, or a jump in the queue offsets. DLedger files
    yield none, because their entries are chained. Raises: StoreIOError.
    """
    witness, reach, last_yielded = source.witness, -1, -1
    if witness is None or source.head:
        return
    for place, chain in _around(source, places):
        if place <= reach:
            continue
        reach = chain[-1].physical_offset if chain else -1
        leads = Leads(witness, chain)
        groups = [(is_led, list(some)) for is_led, some in groupby(chain, leads.only_to)]
        for number, (is_led, some) in enumerate(groups):
            if is_led or len(some) > MAX_PAGE_RECORDS or some[0].physical_offset <= last_yielded:
                continue
            if leads.contradict(some) and leads.by_two(some) and (
                    number > 0 or leads.agree_before(source, some[0])) and (
                    number < len(groups) - 1 or leads.agree_behind(source, some[-1])
                    or leads.are_older(source, some, groups[number - 1][1] if number else ())):
                last_yielded = some[-1].physical_offset
                yield some


def _around(source: Source, places: Iterable[int]) -> Iterator[tuple[int, Sequence[Record]]]:
    """Yield each physical offset (ascending) with the consecutive intact records around it, at most
    `WINDOW` away. Bytes near several offsets are scanned once.
    """
    for near in _near(places):
        runs: list[list[tuple[int, int]]] = []
        for at, size in _intact(source, start_of(source, max(0, near[0] - source.base - WINDOW)),
                                near[-1] - source.base + WINDOW):
            if not runs or sum(runs[-1][-1]) != at:
                runs.append([])
            runs[-1].append((at, size))
        begins = [run[0][0] for run in runs]
        for place in near:
            position = place - source.base
            run = runs[max(0, bisect_right(begins, position) - 1)] if runs else ()
            yield place, _Records(source, [
                frame for frame in run if abs(frame[0] - position) <= WINDOW])


def _near(places: Iterable[int]) -> Iterator[list[int]]:
    """Yield the offsets (ascending) in groups. Consecutive offsets of a group differ by at most
    `WINDOW`.
    """
    group: list[int] = []
    for place in places:
        if group and place - group[-1] > WINDOW:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _places(source: Source, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (position, size) of the records up to the first damage."""
    for batch in Walk(source, start, end, growing=True):
        yield from zip((batch.offset - source.base).tolist(),
                       batch.column("total_size").tolist(), strict=True)


def _intact(source: Source, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (position, size) of intact records of at most `WINDOW` bytes."""
    for batch in Walk(source, start, end):
        size = batch.column("total_size")
        good = (batch.crc_ok() | (batch.column("body_length") <= 0)) & (size <= WINDOW)
        yield from zip((batch.offset - source.base)[good].tolist(), size[good].tolist(),
                       strict=True)


# -- records as they are asked for ---------------------------------------------------------------


def is_led(source: Source, witness: Witness, start: int, end: int) -> bool:
    """Return whether a consume queue entry points to the first record of ``[start, end)``. This is
    nearly always true, and then saves reading the following records.
    """
    raw = source.read(start - source.base, min(_MIN_CHUNK, end - start)) if start < end else b""
    size = total_size_at(raw) if len(raw) >= START_SIZE else 0
    if not MIN_SIZE <= size <= len(raw):
        return False
    try:
        record = decode(raw[:size])
    except FormatError:
        return False
    return record.physical_offset == start and bool(witness.confirms(record))


def _is_led_at_borders(source: Source, witness: Witness, start: int, end: int) -> bool:
    """Return whether consume queue entries point to the first and the last record of the physical
    range ``[start, end)``. This is true for nearly every range. Raises: StoreIOError.
    """
    if not is_led(source, witness, start, end):
        return False
    places, sizes = witness.rows(max(start, end - _MIN_CHUNK), end)
    return any(is_led(source, witness, place, end)
               for place in places[places + sizes == end].tolist())


class _Records(Sequence[Record]):
    """Records of a source by (position, size), read on demand."""

    def __init__(self, source: Source, places: Sequence[tuple[int, int]]) -> None:
        self._source, self._places = source, places
        self._decoded: dict[int, Record] = {}

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, wanted: int) -> Record: ...
    @overload
    def __getitem__(self, wanted: slice) -> Sequence[Record]: ...
    def __getitem__(self, wanted: int | slice) -> Record | Sequence[Record]:
        if isinstance(wanted, slice):
            return [self[number] for number in range(*wanted.indices(len(self)))]
        number = range(len(self))[wanted]
        record = self._decoded.get(number)
        if record is None:
            record = self._decoded[number] = decode(self._source.read(*self._places[number]))
        return record


def records_between(source: Source, start: int, end: int) -> Sequence[Record]:
    """Return the records of an undamaged range. If there are more than twice `MAX_PAGE_RECORDS`,
    return only those near the two ends; if there are more than `_MAX_READ`, return none.

    The records are read when they are accessed. Raises: StoreIOError, then too.
    """
    places: list[tuple[int, int]] = []
    for batch in Walk(source, start - source.base, end - source.base, growing=True,
                      chunk=min(CHUNK, max(end - start, _MIN_CHUNK))):
        places += zip((batch.offset - source.base).tolist(), batch.column("total_size").tolist(),
                      strict=True)
        if len(places) > _MAX_READ:
            return []
    near = MAX_PAGE_RECORDS + 1  # that many are no page's, whatever is between
    if len(places) > 2 * near:
        places[near:-near] = []
    return _Records(source, places)
