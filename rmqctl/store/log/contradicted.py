"""Whole records that rows and index contradict: a page of an earlier life of their file.

Where such a page begins and ends just at records, as old and new ones lie there, it leaves no
damage: every record is at its place, every CRC right. But rows and index know the messages that
were written over it. So records count as contradicted that follow each other, few of them, between
others to which rows and index lead, and of which this is true: nothing leads to any of them, and
rows of two queues, or rows and the index, say something else, or the same queue offset is that of
another intact record, to which its row leads, and a row leads into this one's bytes.

That the structures are wrong and the log is right would take the same damage in two of them. A log
that came from elsewhere parts from its rows up to its end; index entries of an earlier life, which
a broker leaves, do not keep rows from leading to what is there now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from itertools import groupby

from rmqctl.errors import FormatError
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import MIN_SIZE, Record, decode
from rmqctl.scan.damage.known import key_hashes
from rmqctl.scan.frames import Array
from rmqctl.scan.resync import is_blank
from rmqctl.scan.source import Source, Witness
from rmqctl.scan.walk import Walk, start_of
from rmqctl.store.log.earlier_life import MOST, Leads
from rmqctl.store.log.witness import Opened

_MOST_BODY = 16 << 20
_WINDOW = 64 << 10
"""Bytes around a place in which the page and what is on both sides of it must lie."""
MOST_PLACES = 200
"""Of a store that are looked at, the first ones: where more is odd, no page explains it."""

Taken = Callable[[Record], bool]
"""Whether the queue offset of a record is another intact message's as well."""


class Known(Leads):
    """What rows and index know of records that follow each other."""

    def __init__(self, store: Opened, witness: Witness, records: Sequence[Record],
                 taken: Taken | None = None) -> None:
        super().__init__(witness, records)
        self._store, self._taken = store, taken

    @cached_property
    def _places(self) -> set[int]:
        return {*self.keys, *(place for place, _ in self.rows)}

    def contradicts(self, records: Sequence[Record], *, besides: int = 0) -> bool:
        """Whether enough speaks against records to which nothing leads: one damaged row does not,
        nor one record whose keys were hit; nor do any number of rows that lead elsewhere, which a
        damaged page of a consumequeue holds, as long as nothing knows of what else is here.
        ``besides``: how much else speaks against them.
        """
        against = [self.against(record) for record in records]
        return (sum(map(sum, against)) + besides > 1 and any(here for _, here in against)
                and 4 * sum(map(any, against)) >= len(records))

    def against(self, record: Record) -> tuple[int, int]:
        """How much: (its queue offset's row leads elsewhere; another record has its queue offset,
        begins here or within it, or the index has none of its keys, though later ones).
        """
        place, size = record.physical_offset, record.total_size
        alike = self._is_alike(record)
        elsewhere = self._is_elsewhere(record)
        twin = not alike and ((elsewhere and self._has_twin(record)) or (
            self._taken is not None and self._taken(record)))
        return int(elsewhere), (
            twin + (alike is False) + any(place < one < place + size for one in self._places)
            + (self.has_other_keys(record) or self._lacks_keys(record)))

    def _is_alike(self, record: Record) -> bool | None:
        """Whether a row leads to its place with its size (or a bit off); None: none leads there."""
        sizes = [size for start, size in self.rows if start == record.physical_offset]
        return any((size ^ record.total_size).bit_count() <= 1 for size in sizes) if sizes else None

    def _is_elsewhere(self, record: Record) -> bool:
        """Whether its queue offset's row leads elsewhere, and none leads to just these bytes."""
        return not self._is_alike(record) and self.witness.confirms(record) is False

    def has_other_keys(self, record: Record) -> bool:
        """Whether the index has entries for its place, and none of its keys is among them."""
        here, own = self.keys.get(record.physical_offset), key_hashes(record)
        return bool(here and own and not here & own)

    def _lacks_keys(self, record: Record) -> bool:
        """Whether the index has no entry for its place, but for one behind it and near."""
        end = record.physical_offset + record.total_size
        return (sysflag.is_indexed(record.sys_flag) and bool(key_hashes(record))
                and record.physical_offset not in self.keys
                and bool(len(self.witness.keys(end, end + _WINDOW)[0])))

    def _has_twin(self, record: Record) -> bool:
        """Whether its queue offset's row leads to a record that says itself to be there."""
        queue = self._store.row_as_evidence(os.fsdecode(record.topic), record.queue_id)
        if queue is None:
            return False
        with closing(queue):
            unit = queue.unit(record.queue_offset)
        there = None if unit is None else self._store.log.locate(unit.physical_offset)
        if unit is None or there is None or unit.size < MIN_SIZE:
            return False
        try:
            other = decode(there[0].read(there[1], min(unit.size, _MOST_BODY)))
        except FormatError:
            return False
        return other.crc_ok and (
            other.topic, other.queue_id, other.queue_offset, other.physical_offset) == (
            record.topic, record.queue_id, record.queue_offset, unit.physical_offset)

    # -- amid undamaged bytes ---------------------------------------------------------------------

    def is_led(self, record: Record) -> bool:
        """Whether a row or an entry leads to it; where they are of two minds, none does."""
        return self._leads(record) and not self.has_other_keys(record)

    def by_two(self, records: Sequence[Record]) -> bool:
        """Whether rows of two queues speak against records, or rows and the index, or a row that
        leads into one and another record that has its queue offset.
        """
        queues = {(record.topic, record.queue_id) for record in records
                  if self._is_elsewhere(record)}
        return len(queues) > 1 or (any(map(self.has_other_keys, records)) and (
            bool(queues) or any(map(self._is_hit, records)))) or any(
            self._is_hit(record) and self._is_elsewhere(record) and self._has_twin(record)
            for record in records)

    def _is_hit(self, record: Record) -> bool:
        """Whether a row leads into it, or to its place with another size."""
        start, end = record.physical_offset, record.physical_offset + record.total_size
        return self._is_alike(record) is False or any(start < place < end for place, _ in self.rows)

    def agrees_before(self, source: Source, first: Record) -> bool:
        """Whether a log file begins with this record, and rows and log agree before the file."""
        low = source.base - _WINDOW
        return first.physical_offset == source.base and self._agrees(
            self.witness.rows(low, source.base)[0][-1:])

    def agrees_behind(self, source: Source, last: Record) -> bool:
        """Whether a log file ends with this record, and rows and log agree behind the file."""
        position, end = last.physical_offset + last.total_size - source.base, (
            source.base + source.size)
        return (position == source.size or is_blank(source, position)) and self._agrees(
            self.witness.rows(end, end + _WINDOW)[0][:1])

    def _agrees(self, places: Array) -> bool:
        """Whether a row leads to the record at a place, of none or one."""
        records = [self._store.log.record_at(place) for place in places.tolist()]
        return any(record is not None and self.witness.confirms(record) for record in records)


def contradicted(source: Source, store: Opened, places: Iterable[int]) -> Iterator[list[Record]]:
    """The contradicted records of a log file near physical ``places`` (ascending), where something
    is odd: a row that leads elsewhere, queue offsets that do not go on. None of DLedger's data,
    whose entries are chained. StoreIOError.
    """
    reach = -1
    for place in places:
        if place <= reach or source.witness is None or source.head:
            continue
        chain = _chain(source, place)
        reach = chain[-1].physical_offset if chain else -1
        known = Known(store, source.witness, chain)
        groups = [(led, list(some)) for led, some in groupby(chain, known.is_led)]
        for number, (led, some) in enumerate(groups):
            if led or len(some) > MOST:
                continue
            if known.contradicts(some) and known.by_two(some) and (
                    number > 0 or known.agrees_before(source, some[0])) and (
                    number < len(groups) - 1 or known.agrees_behind(source, some[-1])):
                yield some


def _chain(source: Source, place: int) -> list[Record]:
    """Intact records that follow each other without a gap, around a physical place and not far."""
    position = place - source.base
    chain: list[tuple[int, int]] = []
    for at, size in _intact(source, start_of(source, max(0, position - _WINDOW)),
                            position + _WINDOW):
        if chain and sum(chain[-1]) != at:
            if at > position:
                break
            chain.clear()
        chain.append((at, size))
    return [decode(source.read(*one)) for one in chain]


def _intact(source: Source, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(position, size) of intact records, but for large ones."""
    for batch in Walk(source, start, end):
        size = batch.column("total_size")
        good = (batch.crc_ok() | (batch.column("body_length") <= 0)) & (size <= _WINDOW)
        yield from zip((batch.offset - source.base)[good].tolist(), size[good].tolist(),
                       strict=True)
