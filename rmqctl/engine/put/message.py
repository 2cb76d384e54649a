"""Arguments and results of the put path: messages, batches, statuses of a broker, and offsets of
stored messages (spec: recovery.md §8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, overload

import msgspec
import numpy as np

from rmqctl.broker.settings import Host
from rmqctl.formats.local.message import Record, message_id
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array

PUT_OK = "PUT_OK"
FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
TIMER_ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL"
FIELDS = ("status", "physical_offset", "wrote_bytes", "msg_id", "queue_offset", "msg_num",
          "store_timestamp", "reason")


class Outgoing(msgspec.Struct, gc=False):
    """A message as it reaches ``putMessage``.

    * ``properties``: the properties string; lone surrogates represent bytes that are not UTF-8, as
      in `read`
    * times: None means the time of the engine's clock
    * hosts: None means the hosts in the settings
    * ``filter_bit_map``: for the ConsumeQueueExt unit, if that is enabled
    """

    topic: str
    body: bytes
    properties: str = ""
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int | None = None
    born_host: Host | None = None
    store_timestamp: int | None = None
    store_host: Host | None = None
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    filter_bit_map: bytes | None = None


class OutgoingList(Sequence[Outgoing]):
    """A list of messages that is stored by column: a list for each field of `Outgoing`. An item is
    created when it is read.
    """

    def __init__(self, columns: Sequence[list[Any]]) -> None:
        self.columns = columns

    @classmethod
    def of(cls, messages: Sequence[Outgoing]) -> OutgoingList:
        """Return a list of messages that is stored by column."""
        if isinstance(messages, cls):
            return messages
        return cls([
            [message.topic for message in messages], [message.body for message in messages],
            [message.properties for message in messages],
            [message.queue_id for message in messages], [message.flag for message in messages],
            [message.sys_flag for message in messages],
            [message.born_timestamp for message in messages],
            [message.born_host for message in messages],
            [message.store_timestamp for message in messages],
            [message.store_host for message in messages],
            [message.reconsume_times for message in messages],
            [message.prepared_transaction_offset for message in messages],
            [message.filter_bit_map for message in messages]])

    @classmethod
    def by_column(cls, topic: list[str], body: list[bytes], **more: list[Any]) -> OutgoingList:
        """Return messages from one list for each named field of `Outgoing`. All other fields have
        their defaults.
        Raises: TypeError for an unknown field, ValueError for lists of different lengths.
        """
        names = Outgoing.__struct_fields__[2:]
        columns = [more.pop(name, [default] * len(topic)) for name, default in zip(
            names, Outgoing.__struct_defaults__, strict=True)]
        if more:
            raise TypeError(f"unknown field: {', '.join(more)}")
        if {*map(len, (body, *columns))} - {len(topic)}:
            raise ValueError("the lists have different lengths")
        return cls([topic, body, *columns])

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Outgoing]:
        return map(Outgoing, *self.columns)

    @overload
    def __getitem__(self, place: int) -> Outgoing: ...

    @overload
    def __getitem__(self, place: slice) -> OutgoingList: ...

    def __getitem__(self, place: int | slice) -> Outgoing | OutgoingList:
        if isinstance(place, slice):
            return OutgoingList([column[place] for column in self.columns])
        return Outgoing(*[column[place] for column in self.columns])

    def extend(self, more: OutgoingList) -> None:
        """Append messages."""
        for column, others in zip(self.columns, more.columns, strict=True):
            column.extend(others)


class BatchItem(msgspec.Struct, gc=False):
    """A message in a batch, with the fields that may differ from message to message."""

    body: bytes
    properties: str = ""
    flag: int = 0
    filter_bit_map: bytes | None = None


class OutgoingBatch(msgspec.Struct, gc=False):
    """Messages of one queue that are put as a batch, into the same file.

    ``properties``: the properties string of the batch itself. A broker appends it to the string of
    each message.
    """

    topic: str
    messages: list[BatchItem] = []  # copied for each batch
    properties: str = ""
    queue_id: int = 0
    sys_flag: int = 0
    born_timestamp: int | None = None
    born_host: Host | None = None
    store_timestamp: int | None = None
    store_host: Host | None = None
    reconsume_times: int = 0


@dataclass(slots=True)
class MappedRecord(Record):
    """A recorded message with the filter bit map of its ConsumeQueueExt unit."""

    filter_bit_map: bytes | None = None


class PutResult(msgspec.Struct, gc=False):
    """The result of putting a message or a batch. If nothing was written, the offsets are None, and
    ``reason`` is given.

    ``physical_offsets``: the offsets of all messages of a batch. ``wrote_bytes``: their total size.
    """

    status: str
    physical_offset: int | None = None
    wrote_bytes: int | None = None
    queue_offset: int | None = None
    msg_num: int = 1
    store_timestamp: int | None = None
    store_host: Host | None = None
    reason: str | None = None
    physical_offsets: tuple[int, ...] = ()

    @property
    def stored(self) -> bool:
        """True if the message is in the log, even if flush or replication timed out."""
        return self.physical_offset is not None

    @property
    def msg_id(self) -> str | None:
        """The offset message id; for a batch, the ids of all messages, joined by commas."""
        if self.physical_offset is None or self.store_host is None:
            return None
        if not self.physical_offsets:
            return message_id(*self.store_host, self.physical_offset)
        return ",".join([message_id(*self.store_host, place) for place in self.physical_offsets])

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {name: getattr(self, name) for name in FIELDS}


class PutColumns:
    """The results of a group of messages, by column.

    * ``alone``: the results of the messages that were put one by one, by number; all rejected
      messages are among them
    * ``status``: the status of all other messages
    """

    NAMES = ("physical_offset", "wrote_bytes", "queue_offset", "store_timestamp")

    def __init__(self) -> None:
        self.alone: dict[int, PutResult] = {}
        self.status = PUT_OK
        self._count = 0
        self._parts: list[Sequence[Array]] = []

    def __len__(self) -> int:
        return self._count

    def column(self, name: str) -> Array:
        """Return a column of `NAMES` (int64); -1 for each message that was not stored."""
        number = self.NAMES.index(name)
        column: Array = np.concatenate([np.zeros(0, np.int64), *(
            part[number] for part in self._parts)])
        return column

    def append(self, result: PutResult) -> None:
        """Add the result of a message that was put alone."""
        self.alone[self._count] = result
        values = [getattr(result, name) for name in self.NAMES]
        self.add([np.array([-1 if value is None else value]) for value in values], ())

    def add(self, columns: Sequence[Array], _hosts: Iterable[Host]) -> None:
        """Add the results of messages that were put by column, in the order of `NAMES`."""
        self._parts.append(columns)
        self._count += len(columns[0])

    def time_out(self) -> None:
        """Note that the messages were not flushed in time."""
        self.status = FLUSH_DISK_TIMEOUT
        for result in self.alone.values():
            if result.stored:
                result.status = FLUSH_DISK_TIMEOUT


class PutResults(list[PutResult]):
    """The results of putting messages, as a list."""

    def add(self, columns: Sequence[Array], hosts: Iterable[Host]) -> None:
        """Add the results of messages that were put by column."""
        places, sizes, offsets, times = (column.tolist() for column in columns)
        self += map(PutResult, repeat(PUT_OK), places, sizes, offsets, repeat(1), times, hosts)

    def time_out(self) -> None:
        """Note that the messages were not flushed in time."""
        for result in self:
            if result.stored:
                result.status = FLUSH_DISK_TIMEOUT


Results = PutResults | PutColumns


def refused(status: str, reason: str) -> PutResult:
    """Return the result of a message that is rejected."""
    return PutResult(status, msg_num=0, reason=reason)
