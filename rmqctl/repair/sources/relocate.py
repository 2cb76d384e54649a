"""Move messages of a tier back to their physical offsets in this store's log.

A message's records in tier and log differ only in the physical offset. This offset is in the
consume queue entry of the message, if size and tags of the entry match. Without such an entry, the
index is searched by all keys and the store time of the message; exactly one physical offset must
match. Whether the record belongs to the log is proved later, as for all sources.

A store from `carve --out` is not a tier, because its messages may be renumbered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.consume_queue import tags_code
from rmqctl.formats.local.consume_queue_ext import is_address
from rmqctl.formats.local.message import Record, decode
from rmqctl.repair.sources.encode import encoded
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.source import Closing
from rmqctl.store.index.files import IndexFile, select, time_matched
from rmqctl.store.objects import text
from rmqctl.store.store import Store

_NOT_TOLD = ("its physical offset is unknown: no consume queue entry of this store matches it, and "
             "the index entries for it do not point to a single place")
_MAX_OPEN = 256
"""Maximum number of index files, newest first, that are kept open for lookups."""
_SLACK = 2000
"""Tolerance for times in ms: an index entry stores seconds since its file's first entry."""
_MAX_ENTRIES = 64


class Relocator(Closing):
    """Lookup of the physical offsets of records in the consume queues and the index of a store."""

    def __init__(self, ours: Store) -> None:
        self._ours = ours
        self._indexes: list[IndexFile] | None = None

    def close(self) -> None:
        for index in self._indexes or ():
            index.close()
        self._indexes = None

    def moved(self, raw: bytes) -> bytes | str:
        """Return the record with its physical offset in this store's log, or the reason why this
        offset is unknown. Raises: StoreIOError.
        """
        try:
            record = decode(raw)
        except FormatError as error:
            return f"not a complete record: {error.path}: {error.reason}"
        place = self.place(record)
        if place is None:
            place = self._by_index(record)
        if place is None:
            return _NOT_TOLD
        relocated = encoded(replace(record, physical_offset=place))
        is_sealed = append_crc.stored(record.properties) is not None
        return append_crc.seal(relocated) if is_sealed else relocated

    def place(self, record: Record) -> int | None:
        """Return the physical offset in the consume queue entry at the record's queue offset; None
        if this entry does not match the record, or is out of order with most entries beside it.
        """
        queue = self._ours.queues.readable.get((text(record.topic), record.queue_id))
        if queue is None:
            return None
        number = record.queue_offset
        try:
            unit = queue.unit(number)
            beside = [(step, queue.unit(number + step)) for step in (-2, -1, 1, 2)
                      if number + step >= 0]
        except StoreIOError:
            return None
        if unit is None or not unit.is_valid or unit.is_filler or unit.size != record.total_size:
            return None
        if not is_address(unit.tags_code):
            try:
                code = tags_code(text(record.topic), props.parse(text(record.properties)),
                                 record.store_timestamp)
            except ValueError:
                return None
            if code != unit.tags_code:
                return None
        # Size and tags of the entries of a queue are often equal, so they alone prove no place. One
        # damaged entry does not discredit those beside it.
        place = unit.physical_offset
        agree = [(other.physical_offset - place) * step > 0 for step, other in beside
                 if other is not None and any(other) and not other.is_filler]
        return place if all(agree) or 2 * sum(agree) > len(agree) else None

    def _by_index(self, record: Record) -> int | None:
        """Return the physical offset that has index entries for all keys of the record; None unless
        exactly one offset has them. Raises: StoreIOError.
        """
        if self._indexes is None:
            self._indexes = [*islice(self._opened(), _MAX_OPEN)]
        common: set[int] | None = None
        for key in key_hashes(record):
            places = self._places(key, record.store_timestamp)
            common = places if common is None else common & places
            if not common:
                return None
        return common.pop() if common and len(common) == 1 else None

    def _opened(self) -> Iterator[IndexFile]:
        for file in reversed(self._ours.index.listing.files):
            with suppress(FormatError, StoreIOError):  # `verify` names them
                yield self._ours.index.open(file)

    def _places(self, key: int, time: int) -> set[int]:
        offsets: list[int] = []
        begin, end = time - _SLACK, time + _SLACK
        for index in self._indexes or ():
            if time_matched(index.header, begin, end):
                select(index, key, _MAX_ENTRIES, begin, end, offsets)
        return {*offsets}
