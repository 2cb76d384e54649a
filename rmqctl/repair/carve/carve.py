"""Carve messages out of any bytes (files, disk images, folders) in one pass with bounded memory.

A record is *in place* if it fits a log that was found in its source, or if nothing contradicts its
position. A record whose position is contradicted is *misplaced*. Records in place come first,
source by source. After all sources have been scanned, these records follow:

* records that may be part of a damaged record's body
* misplaced records
* if requested, records inside damaged records, and the damaged records themselves

A record that equals an earlier record is a duplicate. If a record exists both in place and
misplaced, the misplaced one is therefore the duplicate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any, Self

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.message import Record, decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.carve.pieces import MAX_RANGES, Claims
from rmqctl.repair.carve.scan import Scan
from rmqctl.repair.carve.sources import CarveSource, Input
from rmqctl.repair.carve.spool import RecordSet, Spool, hosts_of, identity
from rmqctl.scan import malloc_tuning
from rmqctl.scan.frames import Array, distinct
from rmqctl.store.pages import BatchPage, Page, RecordPage
from rmqctl.store.query.conditions import Condition

IN_PLACE = "in-place"
DOUBTFUL = "doubtful"
MISPLACED = "misplaced"
EMBEDDED = "embedded-in-damage"
DAMAGED = "damaged"
_PAGE_RECORDS = 512
_PAGE_BYTES = 4 << 20
_NEIGHBOURS = 2
"""Minimum number of undecided records with the same shift that make this shift count as a log's
shift. Applies only if no log was found in the source.
"""


@dataclass(frozen=True, slots=True)
class CarveOptions:
    """Selection of the output: messages for which all ``conditions`` hold, and whether to include
    ``embedded`` records, ``damaged`` records and ``duplicates``.
    """

    conditions: tuple[Condition, ...] = ()
    embedded: bool = False
    damaged: bool = False
    duplicates: bool = False


@dataclass(slots=True)
class CarveTally:
    """Counts of all records found, whether selected or not. Sizes in bytes."""

    sources: int = 0
    bytes_read: int = 0
    in_place: int = 0
    doubtful: int = 0
    misplaced: int = 0
    embedded: int = 0
    damaged: int = 0
    duplicates: int = 0
    breaks: int = 0
    bytes_in_messages: int = 0
    unreadable_bytes: int = 0
    unreadable_sources: int = 0
    astray: int = 0
    """Number of misplaced messages in files that are named like log files. Damage has moved these
    messages.
    """
    given: int = 0
    """Number of selected messages."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of selected messages by placement."""

    @property
    def messages(self) -> int:
        """Return the number of distinct intact messages, excluding messages inside damaged
        records.
        """
        return self.in_place + self.doubtful + self.misplaced

    @property
    def is_damaged(self) -> bool:
        return bool(self.doubtful or self.astray or self.embedded or self.damaged or self.breaks)

    def as_dict(self) -> dict[str, Any]:
        return {"sources": self.sources, "bytes_read": self.bytes_read,
                "messages": self.messages, "in_place": self.in_place,
                "doubtful": self.doubtful, "misplaced": self.misplaced,
                "embedded_in_damage": self.embedded, "damaged": self.damaged,
                "duplicates": self.duplicates, "breaks": self.breaks,
                "bytes_in_messages": self.bytes_in_messages,
                "unreadable_bytes": self.unreadable_bytes,
                "unreadable_sources": self.unreadable_sources, "given": self.given}


@dataclass(frozen=True, slots=True)
class CarvedPage:
    """Some messages of one source. ``offset``: the messages' positions in the source (int64).

    Valid only until the next page is requested.
    """

    page: Page
    source: int
    offset: Array
    placement: str
    duplicate: bool = False


_EVERYTHING = CarveOptions()


class Carving:
    """A carve run over all inputs. Iterate over `pages` once; use as a context manager.

    ``report``: called with each note for the user, such as on unreadable ranges.
    ``advance``: called with the number of bytes scanned.
    """

    def __init__(self, inputs: Sequence[Input], wanted: CarveOptions = _EVERYTHING, *,
                 report: Callable[[str], None] = lambda _text: None,
                 advance: Callable[[int], None] = lambda _bytes: None) -> None:
        self.inputs, self._wanted = inputs, wanted
        self._report, self._advance = report, advance
        self.tally = CarveTally()
        self._seen, self._claims = RecordSet(), Claims()
        self.file_ends: set[int] = set()
        """Physical offsets at which files of the logs end."""
        self._misplaced, self._embedded, self._damaged = Spool(), Spool(), Spool()
        self._doubtful, self._undecided = Spool(), Spool()
        self._unsure, self._inside = Spool(), Spool()
        """Doubtful and embedded records of one source, kept until the source's fragments are
        known.
        """
        self._unreadable: list[tuple[int, int]] = []
        malloc_tuning.keep_freed_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for spool in (self._doubtful, self._misplaced, self._embedded, self._damaged,
                      self._undecided, self._unsure, self._inside):
            spool.close()

    def pages(self) -> Iterator[CarvedPage]:
        """Yield the selected messages, page by page. Raises: StoreIOError if no source can be read
        at all.
        """
        last: StoreIOError | None = None
        for number, source_input in enumerate(self.inputs):
            try:
                yield from self._source(number, source_input)
                self.tally.sources += 1
            except StoreIOError as error:
                last = error
                self.tally.unreadable_sources += 1
                self._report(f"{error}; the other messages of this source are skipped")
        if last is not None and not self.tally.sources:
            raise last
        yield from self._spooled(self._doubtful, DOUBTFUL, contradicted=True)
        yield from self._spooled(self._misplaced, MISPLACED)
        yield from self._spooled(self._embedded, EMBEDDED, shown=self._wanted.embedded)
        self.tally.damaged = len(self._damaged)
        if self._wanted.damaged:
            for damaged in self._pages(self._damaged):
                yield from self._chosen(damaged.page, damaged.source, damaged.offset, DAMAGED)

    # -- the sources --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open(self, source_input: Input) -> Iterator[CarveSource]:
        self._unreadable = []
        with CarveSource(source_input.path, self._cannot_read) as source:
            yield source
            self._report_unreadable(source_input)

    def _cannot_read(self, position: int, length: int) -> None:
        ranges = self._unreadable
        if any(start <= position < end for start, end in ranges[-64:]):
            return
        if ranges and ranges[-1][1] == position:
            ranges[-1] = ranges[-1][0], position + length
        elif len(ranges) < 1 << 16:
            ranges.append((position, position + length))
        self.tally.unreadable_bytes += length

    def _report_unreadable(self, source_input: Input) -> None:
        for start, end in self._unreadable[:5]:
            self._report(f"{source_input.path}: {end - start} bytes at {start} cannot be read; "
                         "the rest was read")
        if len(self._unreadable) > 5:
            self._report(f"{source_input.path}: {len(self._unreadable) - 5} more unreadable ranges")

    def _source(self, number: int, source_input: Input) -> Iterator[CarvedPage]:
        with self._open(source_input) as source:
            scan = Scan(source, number, source_input.base, witness=source_input.witness,
                        undecided=self._undecided, embedded=self._inside,
                        damaged=self._damaged, doubtful=self._unsure, advance=self._advance)
            try:
                for batch, shift in scan.batches():
                    carved = self._uncontradicted(
                        CarvedPage(BatchPage(batch), number, batch.offset - shift, IN_PLACE),
                        believed=source_input.base is not None)
                    if len(carved.page):
                        yield from self._once(carved.page, number, carved.offset, IN_PLACE)
            finally:
                self.tally.bytes_read += min(source.size, scan.size)
                self.tally.breaks += scan.breaks
            yield from self._decide(scan, is_named=source_input.base is not None)
            if len(self.file_ends) < MAX_RANGES:
                self.file_ends |= scan.pieces.file_ends

    def _decide(self, scan: Scan, *, is_named: bool) -> Iterator[CarvedPage]:
        """Classify the undecided records of a source. A record is in place in either of these
        cases:

        * The record fits a log found in the source.
        * Neither other records nor the source's file name contradict the record.

        If no log was found, the most frequent shift of the records counts as the shift of a log.
        """
        log_shifts = set(scan.log_shifts)
        if not scan.in_place:
            most = scan.shifts.most(_NEIGHBOURS)
            log_shifts |= set() if most is None else {most}
        own: Array = np.array(sorted(log_shifts), np.int64)
        log_shift = Spool()
        try:
            if not is_named:
                scan.doubts.cut = scan.pieces.chains.cut
            self._settle(scan, log_shift, is_named=is_named)
            for rows in self._undecided.chunks():
                shifts = rows["physical"] - rows["position"]
                is_own = np.isin(shifts, own)
                if is_named and scan.in_place:
                    astray, doubt = ~is_own, np.zeros(len(rows), bool)
                else:
                    astray, doubt = (those & ~is_own for those in scan.pieces.judge(
                        rows["position"]))
                free = ~(astray | doubt)
                for shift in distinct(shifts[free]).tolist():
                    of_log = rows[free & (shifts == shift)]
                    for part, is_doubtful in scan.doubts.sort(of_log, shift):
                        (self._doubtful if is_doubtful else log_shift).append(part)
                for spool, those in ((self._misplaced, astray), (self._doubtful, doubt)):
                    if those.any():
                        spool.append(rows[those])
            self._undecided.close()
            yield from self._spooled(log_shift, IN_PLACE, contradicted=True)
        finally:
            log_shift.close()

    def _settle(self, scan: Scan, log_shift: Spool, *, is_named: bool) -> None:
        """Classify the doubtful and embedded records of a source. Such a record is in place if a
        fragment of the log ends in the damaged record, at or before the position of the doubtful or
        embedded record.
        """
        for spool, others in ((self._unsure, self._doubtful), (self._inside, self._embedded)):
            for rows in spool.chunks():
                free: Array = np.zeros(len(rows), bool)
                for row in [] if is_named else range(len(rows)):
                    place, damaged = rows[row], int(rows["late"][row])
                    shift = scan.broken.get(damaged, int(place["physical"] - place["position"]))
                    cut = scan.pieces.chains.cut(shift, damaged)
                    free[row] = cut is not None and place["position"] >= cut
                for target, those in ((log_shift, free), (others, ~free)):
                    if those.any():
                        target.append(rows[those])
            spool.close()

    # -- what was kept for later --------------------------------------------------------------

    def _spooled(self, spool: Spool, placement: str, *, shown: bool = True,
                 contradicted: bool = False) -> Iterator[CarvedPage]:
        """Yield the records of a spool. With ``contradicted``, records that overlap in-place
        messages of the same broker become misplaced.
        """
        for every in self._pages(spool):
            carved = self._uncontradicted(every, only_look=placement != IN_PLACE) if (
                contradicted) else every
            if len(carved.page):
                yield from self._once(carved.page, carved.source, carved.offset, placement,
                                      shown=shown)

    def _uncontradicted(self, carved: CarvedPage, *, believed: bool = False,
                        only_look: bool = False) -> CarvedPage:
        """Mark those records of a page that overlap in-place messages as misplaced, and return the
        others.

        ``believed``: whether to return all records and mark none.
        ``only_look``: whether to forget the returned records. Otherwise, records of later pages
        that overlap them are marked as misplaced, too.
        """
        page, offset = carved.page, carved.offset
        physical, sizes = map(page.numbers, ("physical_offset", "total_size"))
        taken = self._claims.take(hosts_of(page), physical, sizes, only_look=only_look)
        if believed or not taken.any():
            return carved
        self._misplaced.add(carved.source, offset[taken], physical[taken], sizes[taken])
        return replace(carved, page=page.select(np.flatnonzero(~taken)), offset=offset[~taken])

    def _pages(self, spool: Spool) -> Iterator[CarvedPage]:
        """Read the records of a spool from their sources again and yield them."""
        for rows in spool.chunks(_PAGE_RECORDS):
            edges = np.flatnonzero(np.diff(rows["source"])) + 1
            for part in np.split(rows, edges):
                number = int(part["source"][0])
                try:
                    yield from self._read(number, part)
                except StoreIOError as error:
                    self._report(str(error))

    def _read(self, number: int, rows: Array) -> Iterator[CarvedPage]:
        records: list[Record] = []
        places: list[int] = []
        size = 0
        with CarveSource(self.inputs[number].path, lambda _at, _length: None) as source:
            for position, length in zip(rows["position"].tolist(), rows["size"].tolist(),
                                        strict=True):
                # A file that changes meanwhile has no such record any more.
                with contextlib.suppress(FormatError):
                    records.append(decode(source.read(position, length)))
                    places.append(position)
                    size += length
                if size >= _PAGE_BYTES:
                    yield CarvedPage(RecordPage(records), number, np.array(places, np.int64), "")
                    records, places, size = [], [], 0
            if records:
                yield CarvedPage(RecordPage(records), number, np.array(places, np.int64), "")

    # -- what is given ------------------------------------------------------------------------

    def _once(self, page: Page, number: int, offset: Array, placement: str, *,
              shown: bool = True) -> Iterator[CarvedPage]:
        """Count the records of a page and yield the new ones; then, if selected, the duplicates."""
        is_repeated = self._seen.take(page.numbers("physical_offset"), identity(page))
        again = int(is_repeated.sum())
        # The counts, by placement.
        tally = self.tally
        tally.duplicates += again
        new = len(page) - again
        if placement == IN_PLACE:
            tally.in_place += new
        elif placement == DOUBTFUL:
            tally.doubtful += new
        elif placement == MISPLACED:
            tally.misplaced += new
            tally.astray += new if self.inputs[number].base is not None else 0
        else:
            tally.embedded += new
        # New records; then the duplicates, if selected.
        sizes = page.numbers("total_size")
        if not again:
            tally.bytes_in_messages += int(sizes.sum())
            if shown:
                yield from self._chosen(page, number, offset, placement)
            return
        rows = np.flatnonzero(~is_repeated)
        tally.bytes_in_messages += int(sizes[rows].sum())
        if shown and len(rows):
            yield from self._chosen(page.select(rows), number, offset[rows], placement)
        if self._wanted.duplicates:
            rows = np.flatnonzero(is_repeated)
            yield from self._chosen(page.select(rows), number, offset[rows], placement,
                                    duplicate=True)

    def _chosen(self, page: Page, number: int, offset: Array, placement: str, *,
                duplicate: bool = False) -> Iterator[CarvedPage]:
        """Yield the records of a page that match the conditions."""
        for condition in self._wanted.conditions:
            if not len(page):
                return
            holds = condition.holds(page)
            if not holds.all():
                rows = np.flatnonzero(holds)
                page, offset = page.select(rows), offset[rows]
        if len(page):
            self.tally.given += len(page)
            name = "duplicate" if duplicate else placement
            self.tally.counts[name] = self.tally.counts.get(name, 0) + len(page)
            yield CarvedPage(page, number, offset, placement, duplicate)
