"""Transactions: half messages, commit and rollback (spec: remoting.md §3.4, recovery.md §10).

A half message waits in the half topic. An op message with the half message's queue offset ends the
transaction. A commit first stores the message in its own queue, then the op message.

Ended transactions are kept in memory only until their op message is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import field

from msgspec.structs import replace

from rmqctl.broker.settings import Settings
from rmqctl.broker.transactions import (
    GROUP,
    IMMUNITY_MS,
    OP_BYTES,
    TRANSACTION_ID,
    immunity_ms,
)
from rmqctl.engine.put.ingest import prepare
from rmqctl.engine.put.message import Outgoing, PutResult
from rmqctl.engine.put.rewrite import moved
from rmqctl.engine.put.transactions import committed, op_message
from rmqctl.ext.serve.producing.writing import Writer
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record, decode
from rmqctl.formats.local.sysflag import TRANSACTION_MASK
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms
from rmqctl.store.objects import java_text

_OP_S = 3.0
"""Seconds for which a 5.x broker collects ended transactions for one op message."""
Read = Callable[[int], bytes | memoryview | None]
"""Function that returns the complete record at a physical offset; None if it does not exist."""


def is_half(properties: str) -> bool:
    """Return whether a message's properties mark it as a half message of a transaction."""
    return props.PREPARED in properties and (
        props.parse(properties).get(props.PREPARED, "").lower() == "true")


def half(message: Outgoing, settings: Settings, unique_id: Callable[[], str]) -> Outgoing:
    """Return a half message as it waits in the half topic.

    The message must have the properties that the producer sent.
    """
    text = prepare(message.properties, settings, unique_id, rebuilt=True)
    properties = JavaMap.from_properties(text, settings.profile.map_capacity)
    key = properties.get(props.UNIQUE_KEY)
    if settings.profile.generation >= 5 and key:
        properties.put(TRANSACTION_ID, key)
    return replace(moved(message, properties, props.HALF_TOPIC, 0, settings),
                   sys_flag=message.sys_flag & ~TRANSACTION_MASK)


@dataclass(eq=False)
class Transactions:
    """The transactions of a writable store. ``raw_at`` reads records from the store's log."""

    writer: Writer
    raw_at: Read
    ending: set[int] = field(default_factory=set)
    """Queue offsets of half messages whose transaction has ended, but whose op message is not
    stored yet.
    """
    _unwritten: list[int] = field(default_factory=list)
    _size: int = 0
    _timer: asyncio.TimerHandle | None = None

    def half(self, message: Outgoing) -> Outgoing:
        """Return a half message in the form in which it is stored."""
        properties = self.writer.properties
        return half(replace(message, properties=properties.sent(message.properties)),
                    self.writer.settings, properties.unique_id)

    def end(self, group: str, physical: int, queue_offset: int, *, commit: bool, asked: bool,
            then: Callable[[PutResult | None], None]) -> None:
        """Commit or roll back the half message at a physical offset and queue offset. Raises:
        Failed.

        ``asked``: whether the producer was asked for the outcome. ``then`` is called with the
        result of storing the committed message, or with None if nothing is stored.
        """
        # Refuse what a broker refuses.
        record = self._record(physical)
        properties = props.parse(java_text(record.properties))
        settings = self.writer.settings
        given = immunity_ms(properties)
        if settings.profile.generation >= 5 and not asked and given is not None and (
                now_ms() - record.born_timestamp > max(given, IMMUNITY_MS)):
            raise Failed(Status.ILLEGAL_OPERATION, "too late to end this transaction: its "
                         "producer is checked instead")
        if properties.get(GROUP) != group:
            raise Failed(Status.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != queue_offset:
            raise Failed(Status.SYSTEM_ERROR, "The transaction state table offset wrong")
        if record.physical_offset != physical:
            raise Failed(Status.SYSTEM_ERROR, "The commit log offset wrong")
        # A rollback stores nothing; a commit stores the message in its own queue.
        if not commit:
            self._ended(queue_offset)
            then(None)
            return
        message = committed(record, properties, settings)
        if message is None:
            raise Failed(Status.MESSAGE_ILLEGAL, "the message has no valid topic and queue")

        def put(result: PutResult) -> None:
            if result.stored:
                self._ended(queue_offset)
            then(result)

        self.writer.put(message, put)

    def _record(self, physical: int) -> Record:
        raw = self.raw_at(physical)
        record = None if raw is None else decode(raw)
        # A broker accepts any message of the group; here it must be a half message.
        if record is None or record.topic != props.HALF_TOPIC.encode():
            raise Failed(Status.SYSTEM_ERROR, "Find prepared transaction message failed")
        return record

    # -- op messages --------------------------------------------------------------------------

    def _ended(self, queue_offset: int) -> None:
        self.ending.add(queue_offset)
        if self.writer.settings.profile.generation < 5:
            self._put_op(str(queue_offset), [queue_offset])
            return
        self._unwritten.append(queue_offset)
        self._size += len(f"{queue_offset},")
        if self._size > OP_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_OP_S, self.flush)

    def flush(self) -> None:
        """Store the op message for all ended transactions that do not have one yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended, self._unwritten, self._size = self._unwritten, [], 0
        if ended:
            self._put_op("".join(f"{offset}," for offset in ended), ended)

    def _put_op(self, body: str, ended: list[int]) -> None:
        settings = self.writer.settings
        self.writer.put(op_message(body, settings, now_ms(), settings.store_host),
                        lambda _result: self.ending.difference_update(ended))
