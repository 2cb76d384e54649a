"""Whole records beside damage that may be of an earlier life of their file.

A page that never reached the disk shows what was there before: where the log was cut off once and
written anew, whole records at their own places, every CRC right, of messages that are gone. Rows
and index lead elsewhere, or to other messages at the same place (`rmqctl.repair.salvage.stale`).

Where no row and no entry is left to tell, their times are: what an earlier life left was stored
before what is around it. A clock that was set back for a while gives the same, so that is
ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple, overload

from rmqctl.errors import FormatError
from rmqctl.formats.local.message import MIN_SIZE, START_SIZE, Record, decode, total_size_at
from rmqctl.scan.damage.known import key_hashes
from rmqctl.scan.source import Source, Witness
from rmqctl.scan.walk import CHUNK, Walk, start_of
from rmqctl.store.log.commit_log import CommitLog

MOST = 64
"""Records of a page: 4 KiB hold fewer."""
_MOST_READ = 1000
_FARTHEST = 64 << 10
"""Bytes between two damaged places that pages of an earlier life may have left."""
_MOST_LOOKS = 1000
_WINDOW = 64 << 10
_LEAST_CHUNK = 4 << 10


class Damaged(NamedTuple):
    """A damaged place, physical ``[start, end)``; store times (ms) of the messages around it."""

    start: int
    end: int
    before: int | None
    after: int | None


def of_unclear_age(source: Source, damage: Iterable[Damaged]) -> Iterator[list[Record]]:
    """Records of a log file, few between damage, to which nothing leads, and which were stored
    before what is on both sides of them. StoreIOError.
    """
    before: int | None = None
    for number, (here, behind) in enumerate(pairwise(damage)):
        before = before if number else here.before
        last, after = behind.before, behind.after
        if before is not None and after is not None and last is not None and (
                last < before <= after):
            records = _without_proof(source, here.end, behind.start)
            if records and all(one.store_timestamp < before for one in records):
                yield records
                continue
        before = last


def unclear_in_log(log: CommitLog,
                   damage: Iterable[tuple[int, int]]) -> Iterator[list[Record]]:
    """The same in a log, for damaged places ``[start, end)`` in ascending order, of which the
    first `_MOST_LOOKS` that lie close together are looked at. StoreIOError.
    """
    looks = 0
    for file, places in groupby(damage, lambda place: log.file_of(place[0])):
        located = None if file is None else log.locate(file.base)
        if located is None:
            continue
        source, chain = located[0], list[tuple[int, int]]()
        for here, behind in pairwise((*_joined(places), None)):
            assert here is not None
            chain.append(here)
            if behind is not None and looks < _MOST_LOOKS and (
                    behind[0] <= here[1] + _FARTHEST):
                looks += 1
                if _without_proof(source, here[1], behind[0]):
                    continue
            if len(chain) > 1:
                yield from of_unclear_age(source, [Damaged(
                    start, end, _time(source, max(0, start - source.base - _WINDOW), start),
                    _time(source, end - source.base, None)) for start, end in chain])
            chain.clear()


def _joined(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The places, those that touch as one."""
    last: tuple[int, int] | None = None
    for start, end in places:
        if last is not None and start <= last[1]:
            last = last[0], max(last[1], end)
            continue
        if last is not None:
            yield last
        last = start, end
    if last is not None:
        yield last


def _time(source: Source, position: int, until: int | None) -> int | None:
    """The store time of the last intact message that ends before physical ``until``; without it
    that of the first one behind ``position``. None where there is none near.
    """
    time: int | None = None
    start = start_of(source, position) if until is not None else position
    for batch in Walk(source, start, None if until is None else until - source.base):
        good = batch.crc_ok() | (batch.column("body_length") <= 0)
        if good.any():
            times = batch.column("store_timestamp")[good]
            if until is None:
                return int(times[0])
            time = int(times[-1])
    return time


def _without_proof(source: Source, start: int, end: int) -> list[Record]:
    """The records of ``[start, end)`` where they are few and nothing leads to any of them."""
    if source.witness is None or _is_led(source, source.witness, start, end):
        return []
    records = records_between(source, start, end)
    unled = len(records) <= MOST and Leads(source.witness, records).are_none()
    return list(records) if unled else []


def _is_led(source: Source, witness: Witness, start: int, end: int) -> bool:
    """Whether the first record of ``[start, end)`` has a row of its own, as nearly all have: then
    what follows it need not be read.
    """
    raw = source.read(start - source.base, min(_LEAST_CHUNK, end - start)) if start < end else b""
    size = total_size_at(raw) if len(raw) >= START_SIZE else 0
    if not MIN_SIZE <= size <= len(raw):
        return False
    try:
        record = decode(raw[:size])
    except FormatError:
        return False
    return record.physical_offset == start and bool(witness.confirms(record))


class _Records(Sequence[Record]):
    """Records at places (position, size) of a source, read when they are asked for."""

    def __init__(self, source: Source, places: Sequence[tuple[int, int]]) -> None:
        self._source, self._places = source, places
        self._known: dict[int, Record] = {}

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
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = decode(self._source.read(*self._places[number]))
        return found


def records_between(source: Source, start: int, end: int) -> Sequence[Record]:
    """The records of a stretch without damage, of more than twice `MOST` only those near its two
    ends; none where there are very many. StoreIOError, also when one is asked for.
    """
    places: list[tuple[int, int]] = []
    for batch in Walk(source, start - source.base, end - source.base, growing=True,
                      chunk=min(CHUNK, max(end - start, _LEAST_CHUNK))):
        places += zip((batch.offset - source.base).tolist(), batch.column("total_size").tolist(),
                      strict=True)
        if len(places) > _MOST_READ:
            return []
    near = MOST + 1  # so many are no page's, whatever lies between
    if len(places) > 2 * near:
        places[near:-near] = []
    return _Records(source, places)


class Leads:
    """Which of records that follow each other have a row or an index entry of their own."""

    def __init__(self, witness: Witness, records: Sequence[Record]) -> None:
        self.witness, self._records = witness, records

    @cached_property
    def _span(self) -> tuple[int, int]:
        first, last = self._records[0], self._records[-1]
        return first.physical_offset, last.physical_offset + last.total_size

    @cached_property
    def rows(self) -> set[tuple[int, int]]:
        """(place, size) of all rows that lead into them."""
        if not self._records:
            return set()
        places, sizes = self.witness.rows(*self._span)
        return {*zip(places.tolist(), sizes.tolist(), strict=True)}

    @cached_property
    def keys(self) -> dict[int, set[int]]:
        """By place the hashes of all index entries that lead into them."""
        known: dict[int, set[int]] = {}
        if self._records:
            places, hashes = self.witness.keys(*self._span)
            for place, key in zip(places.tolist(), hashes.tolist(), strict=True):
                known.setdefault(place, set()).add(key)
        return known

    def are_none(self) -> bool:
        """Whether nothing leads to any of the records."""
        return not any(map(self._leads, self._records))

    def at_borders(self) -> tuple[Sequence[Record], Sequence[Record]]:
        """The records before the first and behind the last to which anything leads."""
        numbers = range(len(self._records))
        first = next((number for number in numbers if self._leads(self._records[number])), None)
        if first is None:
            return self._records, ()
        last = next(number for number in reversed(numbers) if self._leads(self._records[number]))
        return self._records[:first], self._records[last + 1:]

    def _leads(self, record: Record) -> bool:
        return bool(self.witness.confirms(record)) or bool(
            self.keys.get(record.physical_offset, set()) & key_hashes(record))
