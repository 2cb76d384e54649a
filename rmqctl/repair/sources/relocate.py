"""Messages of a tier, back at the places that they had in our log.

Such a record is the one of our log but for its physical offset, and a row of our consumequeue says
that one: the row of its queue offset, where size and tags are its own. Without such a row, our
index does: the one place that has entries of all its keys, stored when it was. What proves that it
is ours comes after, as for every source. (A store that `carve --out` made is none of these: where
messages are missing it renumbers those after them, so that their rows would be others'.)
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
from rmqctl.scan.damage.known import key_hashes
from rmqctl.scan.source import Closing
from rmqctl.store.index.files import IndexFile, select, time_matched
from rmqctl.store.objects import text
from rmqctl.store.store import Store

_NOT_TOLD = ("its physical offset is unknown: no consume queue entry of this store matches it, and "
             "the index entries for it do not point to a single place")
_MAX_OPEN = 256
"""Index files that are asked, the newest ones: each stays open."""
_SLACK = 2000
"""Milliseconds; an entry has the second, counted from its file's first entry on."""
_MAX_ENTRIES = 64


class Relocator(Closing):
    """Gives records the places that rows and index of a store say."""

    def __init__(self, ours: Store) -> None:
        self._ours = ours
        self._indexes: list[IndexFile] | None = None

    def close(self) -> None:
        for index in self._indexes or ():
            index.close()
        self._indexes = None

    def moved(self, raw: bytes) -> bytes | str:
        """Return the record as it was in our log; why not, in words. StoreIOError."""
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
        """Return the physical offset that the row of its queue offset says, if it fits the
        record.
        """
        queue = self._ours.known_queues.get((text(record.topic), record.queue_id))
        try:
            unit = None if queue is None else queue.unit(record.queue_offset)
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
        return unit.physical_offset

    def _by_index(self, record: Record) -> int | None:
        """Return the one physical offset to which entries of all its keys lead. StoreIOError."""
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
        for file in reversed(self._ours.index_listing.files):
            with suppress(FormatError, StoreIOError):  # `verify` names them
                yield self._ours.open_index(file)

    def _places(self, key: int, time: int) -> set[int]:
        offsets: list[int] = []
        begin, end = time - _SLACK, time + _SLACK
        for index in self._indexes or ():
            if time_matched(index.header, begin, end):
                select(index, key, _MAX_ENTRIES, begin, end, offsets)
        return {*offsets}
