"""Evidence from consume queues and the index for or against adjacent records.

A page that was never written to disk keeps its earlier content. If the log was truncated before
this page and written again, that content is a set of intact records of messages that no longer
exist. Their offsets and CRCs are right. But the entries of the current messages point to other
offsets, or contradict such a record. `rmqctl.scan.damage.stale` decides where to search for such
records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import Record
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.frames import Array
from rmqctl.scan.resync import is_blank
from rmqctl.scan.source import Source, Witness

WINDOW = 64 << 10
"""Number of bytes before and after an offset that cover its page and the surroundings of the
page.
"""

Taken = Callable[[Record], bool]
"""Function that returns whether another intact message has the same queue offset as a record."""


class Leads:
    """Entries that point to consecutive records, and entries that contradict these records.

    ``taken``: function that returns whether another message has a record's queue offset. It is
    called if the entry does not show such a message.
    """

    def __init__(self, witness: Witness, records: Sequence[Record],
                 taken: Taken | None = None) -> None:
        self.witness, self._records, self.taken = witness, records, taken

    @cached_property
    def rows(self) -> set[tuple[int, int]]:
        """Return (physical offset, size) of all consume queue entries that point into the
        records.
        """
        if not self._records:
            return set()
        places, sizes = self.witness.rows(*self._span)
        return {*zip(places.tolist(), sizes.tolist(), strict=True)}

    @cached_property
    def _rows_before(self) -> list[tuple[int, int]]:
        """Return (physical offset, size) of the entries that point to the bytes right before the
        records.
        """
        if not self._records:
            return []
        places, sizes = self.witness.rows(self._span[0] - WINDOW, self._span[0])
        return [*zip(places.tolist(), sizes.tolist(), strict=True)]

    @cached_property
    def keys(self) -> dict[int, set[int]]:
        """Return, by physical offset, the hashes of all index entries that point into the
        records.
        """
        hashes_by_place: dict[int, set[int]] = {}
        if self._records:
            places, hashes = self.witness.keys(*self._span)
            for place, key in zip(places.tolist(), hashes.tolist(), strict=True):
                hashes_by_place.setdefault(place, set()).add(key)
        return hashes_by_place

    @cached_property
    def _span(self) -> tuple[int, int]:
        first, last = self._records[0], self._records[-1]
        return first.physical_offset, last.physical_offset + last.total_size

    @cached_property
    def _places(self) -> set[int]:
        return {*self.keys, *(place for place, _ in self.rows)}

    # -- for a record -----------------------------------------------------------------------------

    def to(self, record: Record) -> bool:
        """Return whether a consume queue entry or an index entry points to a record."""
        return bool(self.witness.confirms(record)) or bool(
            self.keys.get(record.physical_offset, set()) & key_hashes(record))

    def only_to(self, record: Record) -> bool:
        """Return whether an entry points to the record, and the index does not contradict that."""
        return self.to(record) and not self.has_other_keys(record)

    def are_none(self) -> bool:
        """Return whether no entry points to any of the records."""
        return not any(map(self.to, self._records))

    # -- against it -------------------------------------------------------------------------------

    def contradict(self, records: Sequence[Record], *, besides: int = 0) -> bool:
        """Return whether there is enough evidence against records to which no entry points.

        A single damaged entry, or a single record with damaged keys, is not enough. Nor are entries
        that point elsewhere, if nothing else contradicts the records. ``besides``: number of other
        facts against the records.

        Missing index keys of several records count once, because they may have a common cause.
        Missing consume queue entries count once if another entry points to the record's offset with
        another size. Without such an entry, a broker may have skipped the record after damage.
        """
        against = [self.against(record) for record in records]
        lacks = any(lacking for *_, lacking in against)
        here = any(here for _, here, _ in against)
        unlisted = any(self._is_alike(record) is False and self._lacks_entry(record)
                       for record in records)
        return (sum(elsewhere + here for elsewhere, here, _ in against) + lacks + unlisted
                + besides > 1 and (lacks or here)
                and 4 * sum(map(any, against)) >= len(records))

    def against(self, record: Record) -> tuple[int, int, bool]:
        """Return the amount of evidence against a record, in three parts:

        * 1 if the entry for its queue offset points elsewhere, otherwise 0;
        * the number of true statements in the list below;
        * whether the index has none of its keys, but has keys for later records.

        The statements:

        * another record has the record's queue offset;
        * an entry points to the record's offset, with another size;
        * an entry points into the record;
        * an entry points to another record that contains this one;
        * the index has other keys for the record's offset.
        """
        place, size = record.physical_offset, record.total_size
        alike = self._is_alike(record)
        elsewhere = self._is_elsewhere(record)
        twin = not alike and ((elsewhere and self._has_twin(record)) or (
            self.taken is not None and self.taken(record)))
        return int(elsewhere), (
            twin + (alike is False) + any(place < start < place + size for start in self._places)
            + (self.around(record) is not None) + self.has_other_keys(record)), (
                self._lacks_keys(record))

    def besides_offset(self, record: Record) -> bool:
        """Return whether anything contradicts a record, apart from another record with the same
        queue offset.
        """
        place, size = record.physical_offset, record.total_size
        return (self._is_alike(record) is False or self.has_other_keys(record)
                or self._lacks_keys(record) or self.around(record) is not None
                or any(place < start < place + size for start in self._places))

    def has_other_keys(self, record: Record) -> bool:
        """Return whether the index has entries for the record's offset, but none with the record's
        keys.
        """
        here, own = self.keys.get(record.physical_offset), key_hashes(record)
        return bool(here and own and not here & own)

    def by_two(self, records: Sequence[Record]) -> bool:
        """Return whether two independent structures contradict the records: entries of two queues,
        or entries of a queue and of the index.

        One case is sufficient by itself: an entry points into a record, and another record has
        this record's queue offset.
        """
        queues = {(record.topic, record.queue_id) for record in records
                  if self._is_elsewhere(record)}
        return len(queues) > 1 or (any(map(self.has_other_keys, records)) and (
            bool(queues) or any(map(self._is_hit, records)))) or any(
            self._is_hit(record) and self._is_elsewhere(record) and self._has_twin(record)
            for record in records)

    def _is_alike(self, record: Record) -> bool | None:
        """Return whether an entry at the record's offset has the record's size. A difference of one
        bit is allowed. None if no entry points to that offset.
        """
        sizes = [size for start, size in self.rows if start == record.physical_offset]
        return any((size ^ record.total_size).bit_count() <= 1 for size in sizes) if sizes else None

    def _is_elsewhere(self, record: Record) -> bool:
        """Return whether the entry for the record's queue offset points elsewhere. False if an
        entry with the record's size points to the record.
        """
        return not self._is_alike(record) and self.witness.confirms(record) is False

    def _is_hit(self, record: Record) -> bool:
        """Return whether an entry points into the record, or to its offset but with a different
        size.
        """
        start, end = record.physical_offset, record.physical_offset + record.total_size
        return self._is_alike(record) is False or any(start < place < end for place, _ in self.rows)

    def around(self, record: Record) -> tuple[int, int] | None:
        """Return (physical offset, size) of an entry whose message contains the record; None if no
        such entry exists.
        """
        start, end = record.physical_offset, record.physical_offset + record.total_size
        return next(((place, size) for place, size in (*self._rows_before, *self.rows)
                     if place < start and end <= place + size), None)

    def _lacks_keys(self, record: Record) -> bool:
        """Return whether the index has no entry for the record's offset, but has entries shortly
        after it.
        """
        end = record.physical_offset + record.total_size
        return (sysflag.is_indexed(record.sys_flag) and bool(key_hashes(record))
                and record.physical_offset not in self.keys
                and bool(len(self.witness.keys(end, end + WINDOW)[0])))

    def _lacks_entry(self, record: Record) -> bool:
        """Return whether the record's queue has no entry for it, but some queues have entries for
        later records.
        """
        end = record.physical_offset + record.total_size
        return (sysflag.has_consume_queue_row(record.sys_flag)
                and self.witness.entry_of(record) is None
                and bool(len(self.witness.rows(end, end + WINDOW)[0])))

    def _has_twin(self, record: Record) -> bool:
        """Return whether the entry for the record's queue offset points to another intact record
        with the same queue and queue offset.
        """
        entry = self.witness.entry_of(record)
        other = None if entry is None else self.witness.record_at(*entry)
        return other is not None and other.crc_ok and (
            other.topic, other.queue_id, other.queue_offset) == (
            record.topic, record.queue_id, record.queue_offset)

    # -- on both sides ----------------------------------------------------------------------------

    def at_borders(self) -> tuple[Sequence[Record], Sequence[Record]]:
        """Return the records before the first and after the last record to which any entry
        points.
        """
        numbers = range(len(self._records))
        first = next((number for number in numbers if self.to(self._records[number])), None)
        if first is None:
            return self._records, ()
        last = next((number for number in reversed(numbers[first + 1:])
                     if self.to(self._records[number])), first)
        return self._records[:first], self._records[last + 1:]

    def agree_before(self, source: Source, first: Record) -> bool:
        """Return whether a log file begins with this record, and the last entry for the previous
        file matches the log.
        """
        low = source.base - WINDOW
        return first.physical_offset == source.base and self._agree(
            *(column[-1:] for column in self.witness.rows(low, source.base)))

    def agree_behind(self, source: Source, last: Record) -> bool:
        """Return whether a log file ends with this record, and the first entry for the next file
        matches the log.
        """
        position, end = last.physical_offset + last.total_size - source.base, (
            source.base + source.size)
        return (position == source.size or is_blank(source, position)) and self._agree(
            *(column[:1] for column in self.witness.rows(end, end + WINDOW)))

    def are_older(self, source: Source, records: Sequence[Record],
                  before: Sequence[Record]) -> bool:
        """Return whether all records have an earlier store time than the record that precedes them
        in the log: the last record in ``before``, or, if ``before`` is empty, the last record of
        the previous file.
        """
        last = before[-1] if before else self._at(*(
            column[-1:] for column in self.witness.rows(source.base - WINDOW, source.base)))
        return last is not None and all(
            record.store_timestamp < last.store_timestamp for record in records)

    def _agree(self, places: Array, sizes: Array) -> bool:
        """Return whether an entry points to the record at the first offset in the columns; False if
        the columns are empty.
        """
        record = self._at(places, sizes)
        return record is not None and bool(self.witness.confirms(record))

    def _at(self, places: Array, sizes: Array) -> Record | None:
        """Return the record at the first offset in the columns; None if the columns are empty."""
        return next((self.witness.record_at(place, size) for place, size in zip(
            places.tolist(), sizes.tolist(), strict=True)), None)
