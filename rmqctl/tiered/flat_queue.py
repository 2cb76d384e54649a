"""A queue in a tier: its consume queue and its commit log (tiered.md §2 to §4).

Bounds are the broker's: the consume queue says what there is, the commit log's first message what
of it is still there. Everything is read by position; nothing is kept but the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.local import message
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.units import CODA_SIZE, UNIT, UNIT_SIZE, UnitRecord, is_coda
from rmqctl.tiered.flat_file import FlatFile

if TYPE_CHECKING:
    import numpy as np

_QUEUE_OFFSET = layout.field(message.Message, "queue_offset")
BLOCK_UNITS = 1 << 16
"""Units that are read at once by who goes through all of them."""


@dataclass(frozen=True, slots=True)
class QueueName:
    """Which queue of a tier: cluster, broker, topic and number."""

    cluster: str
    broker: str
    topic: str
    queue_id: int

    @property
    def path(self) -> str:
        """What metadata calls the place."""
        return names.metadata_path(self.broker, self.topic, self.queue_id)


class FlatQueue:
    """One queue. ``problems`` are in words what could not be read of its folders."""

    def __init__(self, name: QueueName, commit_log: FlatFile, consume_queue: FlatFile) -> None:
        self.name = name
        self.commit_log = commit_log
        self.consume_queue = consume_queue
        self._first: int | None = None

    @property
    def cq_start(self) -> int:
        """Queue offset of the first unit."""
        return self.consume_queue.start // UNIT_SIZE

    @property
    def commit_offset(self) -> int:
        """The exclusive end of what may be read: whole units of the consume queue."""
        return self.consume_queue.end // UNIT_SIZE

    @property
    def min_offset(self) -> int:
        """A broker's min offset: of the units, or of the first message that is still there."""
        return max(self.cq_start, self.first_message_offset())

    def first_message_offset(self) -> int:
        """Queue offset in the first message of the commit log; -1 where there is none.

        As a broker: bytes 20 to 27 of the first segment, whatever they are.
        """
        if self._first is None:
            raw = self.commit_log.read(self.commit_log.start + _QUEUE_OFFSET.offset,
                                         _QUEUE_OFFSET.size)
            short = len(raw) < _QUEUE_OFFSET.size
            self._first = -1 if short else int.from_bytes(raw, "big", signed=True)
        return self._first

    def unit(self, queue_offset: int) -> UnitRecord | None:
        """The unit of a queue offset; None where there is none."""
        data = self.consume_queue.read(queue_offset * UNIT_SIZE, UNIT_SIZE)
        return UNIT.decode(data) if len(data) == UNIT_SIZE else None

    def units(self, start: int, count: int) -> np.ndarray[Any, Any]:
        """Up to ``count`` units from a queue offset on, as a structured array (field names of
        `rmqctl.formats.tiered.units.Unit`); fewer at a gap or the end.
        """
        import numpy as np

        data = self.consume_queue.read(start * UNIT_SIZE, count * UNIT_SIZE)
        return np.frombuffer(data, UNIT.dtype(), len(data) // UNIT_SIZE)

    def raw(self, unit: UnitRecord) -> bytes:
        """The bytes a unit leads to; FormatError where they are not all there, or are no message
        of that size at that place. A coda record in front is passed over, as a broker does.
        """
        if unit.size < message.MIN_SIZE or unit.commit_log_offset < 0:
            raise FormatError("a unit that leads to no message",
                              file=self.commit_log.folder, offset=unit.commit_log_offset,
                              path="size")
        data = self.commit_log.read(unit.commit_log_offset, unit.size + CODA_SIZE)
        if is_coda(data):
            data = data[CODA_SIZE:]
        if len(data) < unit.size:
            raise FormatError("the message is not there, or not whole",
                              file=self.commit_log.folder, offset=unit.commit_log_offset,
                              path="total_size")
        return data[:unit.size]

    def record(self, queue_offset: int) -> message.Record:
        """The message of a queue offset, proven by its own fields.

        FormatError (with the place) where there is none, or it says another place, size or queue
        offset. Topic and queue id are not compared: see `rmqctl.tiered.verify.verify`.
        """
        unit = self.unit(queue_offset)
        if unit is None:
            raise FormatError(f"no unit for queue offset {queue_offset}",
                              file=self.consume_queue.folder, offset=queue_offset * UNIT_SIZE)
        data = self.raw(unit)
        try:
            record = message.decode(data, 0, unit.commit_log_offset)
        except FormatError as error:
            raise FormatError(error.reason, file=self.commit_log.folder,
                              offset=unit.commit_log_offset, path=error.path) from None
        for field, wanted in (("total_size", unit.size), ("queue_offset", queue_offset)):
            if getattr(record, field) != wanted:
                raise FormatError(f"says {getattr(record, field)}, the unit of queue offset "
                                  f"{queue_offset} makes it {wanted}",
                                  file=self.commit_log.folder, offset=unit.commit_log_offset,
                                  path=field)
        return record
