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
from itertools import groupby, pairwise
from typing import NamedTuple

from rmqctl.formats.local.message import Record, decode
from rmqctl.scan.damage.known import key_hashes
from rmqctl.scan.source import Source, Witness
from rmqctl.scan.walk import Walk, start_of
from rmqctl.store.log.commit_log import CommitLog

MOST = 64
"""Records of a page: 4 KiB hold fewer."""
_MOST_READ = 1000
_FARTHEST = 64 << 10
"""Bytes between two damaged places that pages of an earlier life may have left."""
_MOST_LOOKS = 1000
_WINDOW = 64 << 10


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
    records = records_between(source, start, end)
    unled = len(records) <= MOST and source.witness is not None and (
        Leads(source.witness, records).at_borders()[0] == records)
    return records if unled else []


def records_between(source: Source, start: int, end: int) -> list[Record]:
    """The records of a stretch without damage, of more than twice `MOST` only those near its two
    ends; none where there are very many.
    """
    places: list[tuple[int, int]] = []
    for batch in Walk(source, start - source.base, end - source.base, growing=True):
        places += zip((batch.offset - source.base).tolist(), batch.column("total_size").tolist(),
                      strict=True)
        if len(places) > _MOST_READ:
            return []
    near = MOST + 1  # so many are no page's, whatever lies between
    if len(places) > 2 * near:
        places[near:-near] = []
    return [decode(source.read(*place)) for place in places]


class Leads:
    """Which of records that follow each other have a row or an index entry of their own."""

    def __init__(self, witness: Witness, records: Sequence[Record]) -> None:
        self.witness, self._records = witness, records
        self.rows: set[tuple[int, int]] = set()
        self.keys: dict[int, set[int]] = {}
        if records:
            span = records[0].physical_offset, records[-1].physical_offset + records[-1].total_size
            places, sizes = witness.rows(*span)
            self.rows = {*zip(places.tolist(), sizes.tolist(), strict=True)}
            places, hashes = witness.keys(*span)
            for place, key in zip(places.tolist(), hashes.tolist(), strict=True):
                self.keys.setdefault(place, set()).add(key)

    def at_borders(self) -> tuple[Sequence[Record], Sequence[Record]]:
        """The records before the first and behind the last to which anything leads."""
        led = [number for number, record in enumerate(self._records) if self._leads(record)]
        if not led:
            return self._records, ()
        return self._records[:led[0]], self._records[led[-1] + 1:]

    def _leads(self, record: Record) -> bool:
        return bool(self.witness.confirms(record)) or bool(
            self.keys.get(record.physical_offset, set()) & key_hashes(record))
