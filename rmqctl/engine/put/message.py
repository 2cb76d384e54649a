"""What is handed to the put path: single messages and batches, before they become records."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqctl.engine.config.settings import Host
from rmqctl.formats.local.message import Record


@dataclass(slots=True)
class Outgoing:
    """One message as it reaches ``putMessage``.

    ``properties`` is the properties string (texts that are no UTF-8 as lone surrogates, the way
    `read` shows them). None for times and hosts means: the engine's clock, the settings' hosts.
    ``filter_bit_map`` goes to the ConsumeQueueExt unit, where that is enabled.
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


@dataclass(slots=True)
class BatchItem:
    """One message of a batch: what it does not share with the others."""

    body: bytes
    properties: str = ""
    flag: int = 0
    filter_bit_map: bytes | None = None


@dataclass(slots=True)
class OutgoingBatch:
    """Messages of one queue which are put together and lie in one file.

    ``properties`` is the batch's own string, which a broker appends to that of each message.
    """

    topic: str
    messages: list[BatchItem] = field(default_factory=list)
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
