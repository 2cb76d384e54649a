"""Transaction checks: ask producers for the outcome of pending half messages.

Each round reads the half and op topics from where the last round ended, a few messages at a time. A
pending half message is appended to the half queue again; its producer gets the new offset. As in a
broker, the progress of a round is stored as consumer offsets of a group.

Spec: remoting.md §3.4.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import field
from itertools import islice

from rmqctl.broker.transactions import (
    EVERY_S,
    GIVEN_UP_TOPIC,
    GROUP,
    IMMUNITY_MS,
    MAX_CHECKS,
    PREPARED_OFFSET,
    READER,
    TIMES,
    ended_by,
    immunity_ms,
)
from rmqctl.engine.put.message import Outgoing, PutResult
from rmqctl.engine.put.transactions import rebuilt, target
from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.broker import Broker
from rmqctl.ext.serve.producing.transactions import Transactions
from rmqctl.ext.serve.remoting.codes import CHECK_TRANSACTION_STATE, Failed
from rmqctl.ext.serve.remoting.command import ONE_WAY, Command
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import java_int
from rmqctl.formats.local.message import Record, build, decode, magic_for, size_of
from rmqctl.formats.local.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms
from rmqctl.store.objects import java_text

_TOO_OLD_MS = 72 * 3_600_000
"""Age (ms) above which half messages are given up: the default of a broker's fileReservedTime."""
_WINDOW = 50_000
"""Maximum number of half messages per step of a round; their outcomes are kept in memory."""
_PAGE, _PAGE_BYTES = 32, 1 << 16
_TRIED = 3
"""Maximum number of group members to try, if some do not read their responses."""
_LATER = ("SERVICE_NOT_AVAILABLE", "UNKNOWN_ERROR")


@dataclass(slots=True)
class _Renewed:
    """A pending half message, and the message to store for it. ``ask``: whether to ask the producer
    afterwards.
    """

    record: Record
    message: Outgoing
    ask: bool = False


@dataclass(eq=False)
class Checks:
    """Periodic checks of the half messages in a store, in rounds. ``immunity_ms``: minimum age (ms)
    of messages to check.
    """

    broker: Broker
    transactions: Transactions
    every_s: float = 0.0
    immunity_ms: int = IMMUNITY_MS
    _next: float = 0.0
    _task: asyncio.Task[None] | None = None
    _at: dict[str, int] = field(default_factory=dict)
    _turn: int = 0

    def __post_init__(self) -> None:
        self.settings = self.transactions.writer.settings
        self.every_s = self.every_s or EVERY_S[self.settings.profile.generation]

    def begin(self) -> None:
        """Start a round if it is due."""
        now = time.monotonic()
        if not self._next:
            self._next = now + self.every_s
            with contextlib.suppress(Failed):  # it is said when the round begins
                self._position(props.HALF_TOPIC)
                self._position(props.OP_HALF_TOPIC)
        if self._task is None and now >= self._next:
            self._task = asyncio.get_running_loop().create_task(self._round())

    def stop(self) -> None:
        """Cancel a running round."""
        if self._task is not None:
            self._task.cancel()

    async def _round(self) -> None:
        try:
            begun = now_ms()
            while await self._window(begun):
                pass
        except (Failed, RmqctlError) as error:
            self.broker.on_event(event="unchecked", broker=self.broker.name, problem=str(error))
        except Exception as error:  # noqa: BLE001 - the next round begins all the same
            self.broker.failed("CHECK_TRANSACTION_STATE", error)
        finally:
            self._task, self._next = None, time.monotonic() + self.every_s

    # -- its progress -------------------------------------------------------------------------

    def _position(self, topic: str) -> int:
        """Return the queue offset from which a round continues in a topic.

        This is the stored offset, or the nearest offset that the queue has.
        """
        at = self._at.get(topic)
        if at is None:
            at = self.broker.positions.get(READER, topic, 0)
        if at is None:
            at = self.broker.source.offsets.get((READER, topic), {}).get(0, 0)
        self._at[topic] = at
        queue = self.broker.queue(topic, 0)
        self._came_to(topic, min(max(at, queue.first), queue.end))
        return self._at[topic]

    def _came_to(self, topic: str, offset: int) -> None:
        if self._at[topic] != offset:
            self._at[topic] = offset
            self.broker.positions.commit(READER, topic, 0, offset)

    async def _records(self, topic: str, start: int) -> AsyncIterator[tuple[list[Record], int]]:
        """Yield (messages, the queue offset after them) from ``start`` to the end of the queue.

        Messages may be appended meanwhile.
        """
        at = start
        while at < (queue := self.broker.queue(topic, 0)).end:
            pulled = queue.pull(at, _PAGE, None, _PAGE_BYTES)
            if pulled.next_begin <= at:
                return
            at = pulled.next_begin
            yield [decode(raw) for raw in pulled.records], at
            if at < queue.end:
                await asyncio.sleep(0)

    # -- a round ------------------------------------------------------------------------------

    async def _window(self, begun: int) -> bool:
        """Process the next `_WINDOW` half messages. Return whether more half messages follow."""
        # The half messages of this window, and the ended ones among them.
        at = begin = self._position(props.HALF_TOPIC)
        end = min(self.broker.queue(props.HALF_TOPIC, 0).end, at + _WINDOW)
        op = read = self._position(props.OP_HALF_TOPIC)
        ended: set[int] = set()
        going = True
        while going and at < end:
            async for ops, behind in self._records(props.OP_HALF_TOPIC, read):
                read = behind
                for message in ops:
                    ended.update(offset for offset in ended_by(message) if offset < end
                                 and (offset >= begin or len(ended) < 2 * _WINDOW))
            while at < end and self._is_ended(at, ended):
                at += 1
            pulled = self.broker.queue(props.HALF_TOPIC, 0).pull(at, _PAGE, None)
            if at >= end or pulled.next_begin <= at:
                break
            # Page by page: those that are not ended are checked, or put again to be checked later.
            renewed: list[_Renewed] = []
            behind = min(pulled.next_begin, end)
            for record in map(decode, pulled.records):
                if record.queue_offset >= end:
                    break
                if self._is_ended(record.queue_offset, ended):
                    continue
                renewal = self._judged(record, begun, ended)
                if renewal is None:
                    behind, going = record.queue_offset, False
                    break
                renewed.append(renewal)
            stuck = await self._put(renewed)
            at, going = (behind, going) if stuck is None else (stuck, False)
            self._came_to(props.HALF_TOPIC, at)
        # Record the progress in both queues.
        self._came_to(props.HALF_TOPIC, at)
        await self._pass_ops(op, at)
        return going and at < self.broker.queue(props.HALF_TOPIC, 0).end

    def _is_ended(self, offset: int, ended: set[int]) -> bool:
        return offset in ended or offset in self.transactions.ending

    async def _pass_ops(self, op: int, half: int) -> None:
        """Mark op messages as processed, up to the first that refers to a half message at or after
        ``half``.

        ``half`` is a queue offset. References to offsets after the end of the half queue are
        ignored, because no broker writes them.
        """
        at, end = op, self.broker.queue(props.HALF_TOPIC, 0).end
        async for ops, behind in self._records(props.OP_HALF_TOPIC, op):
            left = next((message.queue_offset for message in ops
                         if any(half <= offset < end for offset in ended_by(message))), None)
            at = behind if left is None else left
            if left is not None:
                break
        self._came_to(props.OP_HALF_TOPIC, at)

    def _judged(self, record: Record, begun: int, ended: set[int]) -> _Renewed | None:
        """Return how to renew a pending half message; None if this message and all later messages
        must wait.
        """
        properties = props.parse(java_text(record.properties))
        times = max(_number(properties.get(TIMES, "0")), 0)
        age = now_ms() - record.born_timestamp
        if times >= MAX_CHECKS:
            return self._given_up(record)
        more = {TIMES: str(times + 1)}
        if age > _TOO_OLD_MS:
            return self._given_up(record, **more)
        if record.store_timestamp >= begun:
            return None
        immune = immunity_ms(properties)
        if immune is None:
            if 0 <= age <= self.immunity_ms:
                return None
        elif age < immune:
            first = properties.get(PREPARED_OFFSET)
            if first is not None and self._is_ended(_number(first), ended):
                return _Renewed(record, _NOTHING)
            more[PREPARED_OFFSET] = first or str(record.queue_offset)
            return _Renewed(record, self._again(record, **more))
        return _Renewed(record, self._again(record, **more), ask=True)

    def _again(self, record: Record, **more: str) -> Outgoing:
        return Outgoing(
            props.HALF_TOPIC, bytes(record.body), rebuilt(record, self.settings, **more),
            record.queue_id, 0, record.sys_flag, record.born_timestamp, record.born_host, None,
            record.store_host)

    def _given_up(self, record: Record, **more: str) -> _Renewed:
        return _Renewed(record, Outgoing(
            GIVEN_UP_TOPIC, bytes(record.body), rebuilt(record, self.settings, **more), 0,
            record.flag, record.sys_flag, record.born_timestamp, record.born_host, None,
            record.store_host, record.reconsume_times))

    async def _put(self, renewed: list[_Renewed]) -> int | None:
        """Store the renewed messages, and ask their producers. Skip messages that can never be
        stored.

        Return the queue offset of the first message that must be stored later, or None.
        """
        loop = asyncio.get_running_loop()
        waiting: list[tuple[_Renewed, asyncio.Future[PutResult]]] = []
        for renewal in renewed:
            if renewal.message is not _NOTHING:
                future: asyncio.Future[PutResult] = loop.create_future()
                waiting.append((renewal, future))
                self.transactions.writer.put(renewal.message, _setter(future))
        stuck = None
        for renewal, future in waiting:
            result = await future
            if result.stored and renewal.ask:
                self._ask(renewal, result)
            elif result.status in _LATER and stuck is None:
                stuck = renewal.record.queue_offset
            elif not result.stored:
                self.broker.on_event(event="unchecked", broker=self.broker.name,
                                 problem=f"half message {renewal.record.queue_offset}: "
                                 f"{result.reason or result.status}")
        return stuck

    # -- asking -------------------------------------------------------------------------------

    def _ask(self, renewed: _Renewed, result: PutResult) -> None:
        """Ask a connected member of the producer's group for the outcome, each time a different
        member.

        Do nothing if no member is connected.
        """
        # Choose a member of the producer group, starting with another one each time.
        text = renewed.message.properties
        properties = props.parse(text)
        members = self.broker.groups.producers.get(properties.get(GROUP, ""))
        place = target(properties)
        if not members or place is None:
            return
        self._turn += 1
        start = self._turn % len(members)
        others = [*islice(members.values(), start, start + _TRIED),
                  *islice(members.values(), min(start, _TRIED))]
        peer = next((member.peer for member in others if not member.peer.is_full), None)
        if peer is None:
            return
        # Build the message as sent, with the offsets of the new half message.
        topic, raw = place[0].encode(), text.encode("utf-8", "replace")
        record = renewed.record
        magic = magic_for(topic)
        assert result.queue_offset is not None
        assert result.physical_offset is not None
        record.topic, record.queue_id, record.properties, record.magic = topic, place[1], raw, magic
        record.queue_offset, record.physical_offset = result.queue_offset, result.physical_offset
        record.total_size = size_of(record.sys_flag & (BORN_HOST_V6 | STORE_HOST_V6), magic,
                                    len(record.body), len(topic), len(raw))
        # Add the fields by which the producer finds its transaction.
        ext = {"commitLogOffset": str(result.physical_offset),
               "tranStateTableOffset": str(result.queue_offset),
               "offsetMsgId": result.msg_id or ""}
        key = properties.get(props.UNIQUE_KEY)
        if key is not None:
            ext |= {"msgId": key, "transactionId": key}
        if self.settings.profile.generation >= 5:
            ext |= {"bname": self.broker.name, "topic": props.HALF_TOPIC}
        peer.send(Command(CHECK_TRANSACTION_STATE, ext=ext, flag=ONE_WAY, body=build(record)))


_NOTHING = Outgoing("", b"")
"""Placeholder for a half message that is not stored again, because an earlier copy of it was
already committed or rolled back.
"""


def _setter(future: asyncio.Future[PutResult]) -> Callable[[PutResult], None]:
    def then(result: PutResult) -> None:
        if not future.done():
            future.set_result(result)
    return then


def _number(text: str) -> int:
    try:
        return java_int(text, 64)
    except ValueError:
        return -1
