"""Transactions: half messages, and what ends them (spec: remoting.md §3.4, recovery.md §10).

A half message waits in a topic of its own. What ends it is an op message, which names its queue
offset there; a commit puts it into its own queue before. Nothing else says of a half message that
it was ended, so nothing has to be remembered here but what is under way.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from rmqctl.broker.settings import Settings
from rmqctl.engine.config.topics import name_problem
from rmqctl.engine.put.ingest import prepare
from rmqctl.engine.put.message import Outgoing, PutResult
from rmqctl.engine.put.rewrite import moved
from rmqctl.ext.serve.producing.writing import Writer
from rmqctl.ext.serve.remoting.codes import Answer, Status
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import java_int
from rmqctl.formats.local.message import Record, decode
from rmqctl.formats.local.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqctl.parse_values import now_ms
from rmqctl.store.objects import java_text

GROUP = "PGROUP"
"""Of a half message: the group of its producer."""
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
IMMUNITY_MS = 6000
"""So long nobody is asked what became of a half message."""
_ID = "__transactionId__"
_ENDED = "d"
_OP_BYTES, _OP_S = 4096, 3.0
"""A 5.x broker puts so many bytes of queue offsets into one op message, those of so many seconds.
"""
_MOST_OP_BYTES = 1 << 16
"""Of an op message's body, which anybody may have sent, so much is looked at."""
_QUEUE_ID = re.compile(r"[0-9]{1,9}")
Read = Callable[[int], bytes | memoryview | None]
"""The whole record at a physical offset, where there is one."""


def is_half(properties: str) -> bool:
    """Whether a message is sent as the first half of a transaction."""
    return props.PREPARED in properties and (
        props.parse(properties).get(props.PREPARED, "").lower() == "true")


def half(message: Outgoing, settings: Settings, unique_id: Callable[[], str]) -> Outgoing:
    """The message as it waits; its properties are those that the producer sent."""
    text = prepare(message.properties, settings, unique_id, rebuilt=True)
    known = JavaMap.from_properties(text, settings.profile.map_capacity)
    key = known.get(props.UNIQUE_KEY)
    if settings.profile.generation >= 5 and key:
        known.put(_ID, key)
    return replace(moved(message, known, props.HALF_TOPIC, 0, settings),
                   sys_flag=message.sys_flag & ~TRANSACTION_MASK)


def rebuilt(record: Record, settings: Settings, **more: str) -> str:
    """A half message's properties as a broker writes them once more, with others."""
    known = JavaMap.from_properties(java_text(record.properties), settings.profile.map_capacity)
    for name, value in more.items():
        known.put(name, value)
    return known.text(trailing=settings.profile.trailing_separator)


def target(known: Mapping[str, str]) -> tuple[str, int] | None:
    """Topic and queue that a half message is meant for; None where it names none."""
    topic, queue = known.get(props.REAL_TOPIC, ""), known.get(props.REAL_QUEUE_ID, "")
    if name_problem(topic) is not None or not _QUEUE_ID.fullmatch(queue):
        return None
    return topic, int(queue)


def immunity_ms(known: Mapping[str, str]) -> int | None:
    """The milliseconds a producer asks to be left alone; None where it does not say."""
    text = known.get(IMMUNITY)
    if text is None:
        return None
    try:
        seconds = java_int(text, 64)
    except ValueError:
        seconds = -1
    return IMMUNITY_MS if seconds == -1 else seconds * 1000


def _committed(record: Record, known: Mapping[str, str], settings: Settings) -> Outgoing | None:
    place = target(known)
    if place is None:
        return None
    return Outgoing(
        place[0], bytes(record.body), rebuilt(record, settings), place[1], record.flag,
        record.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT, record.born_timestamp,
        record.born_host, None, record.store_host, record.reconsume_times, record.physical_offset)


@dataclass(eq=False)
class Transactions:
    """The transactions of a store that is written to. ``raw_at`` reads what lies in its log."""

    writer: Writer
    raw_at: Read
    ending: set[int] = field(default_factory=set)
    """Queue offsets of half messages that were ended, and whose op message is not written yet."""
    _unwritten: list[int] = field(default_factory=list)
    _size: int = 0
    _timer: asyncio.TimerHandle | None = None

    def half(self, message: Outgoing) -> Outgoing:
        """A message of a transaction as it is put."""
        properties = self.writer.properties
        return half(replace(message, properties=properties.sent(message.properties)),
                    self.writer.settings, properties.unique_id)

    def end(self, group: str, physical: int, queue_offset: int, *, commit: bool, asked: bool,
            then: Callable[[PutResult | None], None]) -> None:
        """Commits or rolls back the half message at a physical offset, of that queue offset.
        ``asked``: the producer was asked for it. ``then`` gets the result of the put, None where
        nothing is put. Answer.
        """
        # What a broker refuses.
        record = self._record(physical)
        known = props.parse(java_text(record.properties))
        settings = self.writer.settings
        given = immunity_ms(known)
        if settings.profile.generation >= 5 and not asked and given is not None and (
                now_ms() - record.born_timestamp > max(given, IMMUNITY_MS)):
            raise Answer(Status.ILLEGAL_OPERATION, "the producer is asked for this message")
        if known.get(GROUP) != group:
            raise Answer(Status.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != queue_offset:
            raise Answer(Status.SYSTEM_ERROR, "The transaction state table offset wrong")
        if record.physical_offset != physical:
            raise Answer(Status.SYSTEM_ERROR, "The commit log offset wrong")
        # A rollback puts nothing; a commit puts the message where it belongs.
        if not commit:
            self._ended(queue_offset)
            then(None)
            return
        message = _committed(record, known, settings)
        if message is None:
            raise Answer(Status.MESSAGE_ILLEGAL, "the message names no topic and queue")

        def put(result: PutResult) -> None:
            if result.stored:
                self._ended(queue_offset)
            then(result)

        self.writer.put(message, put)

    def _record(self, physical: int) -> Record:
        raw = self.raw_at(physical)
        record = None if raw is None else decode(raw)
        # A broker takes any message of the group for one; here it must be a half message.
        if record is None or record.topic != props.HALF_TOPIC.encode():
            raise Answer(Status.SYSTEM_ERROR, "Find prepared transaction message failed")
        return record

    # -- op messages --------------------------------------------------------------------------

    def _ended(self, queue_offset: int) -> None:
        self.ending.add(queue_offset)
        if self.writer.settings.profile.generation < 5:
            self._put_op(str(queue_offset), [queue_offset])
            return
        self._unwritten.append(queue_offset)
        self._size += len(f"{queue_offset},")
        if self._size > _OP_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_OP_S, self.flush)

    def flush(self) -> None:
        """Puts the op message of what was ended, where one is to be written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended, self._unwritten, self._size = self._unwritten, [], 0
        if ended:
            self._put_op("".join(f"{offset}," for offset in ended), ended)

    def _put_op(self, body: str, ended: list[int]) -> None:
        settings = self.writer.settings
        known = JavaMap()  # as a client's message has them
        known.put(props.TAGS, _ENDED)
        known.put("WAIT", "true")
        self.writer.put(Outgoing(
            props.OP_HALF_TOPIC, body.encode(),
            known.text(trailing=settings.profile.trailing_separator), born_timestamp=now_ms(),
            born_host=settings.store_host), lambda _result: self.ending.difference_update(ended))


def ended_by(record: Record) -> list[int]:
    """The queue offsets of half messages that an op message names."""
    if props.parse(java_text(record.properties)).get(props.TAGS) != _ENDED:
        return []
    return [int(text) for text in bytes(record.body[:_MOST_OP_BYTES]).split(b",")
            if text.isdigit() and len(text) < 19]
