"""Messages of a tier, back at the places that they had in our log.

Such a record is the one of our log but for its physical offset, and a row of our consumequeue says
that one: the row of its queue offset, where size and tags are its own. What proves that it is ours
comes after, as for every source. (A store that `carve --out` made is none of these: where messages
are missing it numbers those behind them anew, so that their rows would be others'.)
"""

from __future__ import annotations

from dataclasses import replace

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.consume_queue import tags_code
from rmqctl.formats.local.consume_queue_ext import is_address
from rmqctl.formats.local.message import Record, decode
from rmqctl.repair.sources.encode import encoded
from rmqctl.store.objects import text
from rmqctl.store.store import Store

_NO_ROW = "no consumequeue row of ours fits it, and only that tells where it lay"


class Relocator:
    """Gives records the places that the rows of a store say."""

    def __init__(self, ours: Store) -> None:
        self._ours = ours

    def moved(self, raw: bytes) -> bytes | str:
        """The record as it was in our log; why not, in words. StoreIOError."""
        try:
            record = decode(raw)
        except FormatError as error:
            return f"no whole record: {error.path}: {error.reason}"
        place = self.place(record)
        if place is None:
            return _NO_ROW
        made = encoded(replace(record, physical_offset=place))
        return append_crc.seal(made) if append_crc.stored(record.properties) is not None else made

    def place(self, record: Record) -> int | None:
        """The physical offset that the row of its queue offset says, if it fits the record."""
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
