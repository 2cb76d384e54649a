"""Timed messages of a 5.x store, which are stored in their own queue when they are due.

Until then, a message waits in the timer topic, and has a slot in the timer wheel. `OpenTimerFiles`
writes the files of a broker's timer, and a broker can continue with them. Recalled messages are
detected when their slot is read. Spec: timer-and-others-5x.md §1.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from functools import partial

from rmqctl.engine.config.topics import takes_no_messages
from rmqctl.engine.put.message import Outgoing, OutgoingBatch, PutResult
from rmqctl.engine.put.rewrite import schedule
from rmqctl.engine.put.transactions import target
from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.producing.timer_files import OpenTimerFiles
from rmqctl.ext.serve.producing.writing import Writer
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import java_int
from rmqctl.formats.local.javahash import string_hash
from rmqctl.formats.local.message import Record, decode
from rmqctl.formats.timer.timer_log import MAGIC_DELETE, MAGIC_ROLL, UnitRecord
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms
from rmqctl.store.objects import java_text

_ENQUEUED, _DEQUEUED, _ROLLED = "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"
_NEVER_ENQUEUED = str((1 << 63) - 1)
"""The enqueue time that a broker writes if a message was already due when it got a slot."""
_PAGE = 32
_AT_ONCE = 1024
"""Maximum number of messages that are stored in one turn."""
_TURN_S = 0.02
_MAX_END_S = 5.0
HANDLE_VERSION = "v1"


def timed(message: Outgoing | OutgoingBatch, writer: Writer) -> Outgoing | OutgoingBatch:
    """Return a timed message in the form in which it waits in the timer topic; return any other
    message unchanged.
    """
    if "TIMER_D" not in message.properties or message.topic == props.TIMER_TOPIC:
        return message
    properties = JavaMap.from_properties(message.properties, writer.settings.profile.map_capacity)
    moved: Outgoing | OutgoingBatch | PutResult
    if isinstance(message, Outgoing):
        moved = schedule(message, properties, now_ms(), writer.settings)
    else:
        moved = schedule(message, properties, now_ms(), writer.settings)
    if isinstance(moved, PutResult) or moved.topic != props.TIMER_TOPIC:
        return message  # the put path refuses it, too, or delays it, or it is due
    return moved


def recall_handle(message: Outgoing, broker: str) -> str | None:
    """Return the handle with which a producer can recall a waiting message; None for other
    messages.
    """
    if message.topic != props.TIMER_TOPIC:
        return None
    properties = props.parse(message.properties)
    topic, key = properties.get(props.REAL_TOPIC, ""), properties.get(props.UNIQUE_KEY)
    try:
        due = java_int(properties.get(props.TIMER_OUT_MS, ""), 64) + 1
    except ValueError:
        return None
    if key is None or topic.startswith(props.RETRY_PREFIX):
        return None
    text = " ".join((HANDLE_VERSION, topic, broker, str(due), key))
    return base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


@dataclass(eq=False)
class Timers:
    """The timed messages of a writable store."""

    writer: Writer
    files: OpenTimerFiles | None = None
    _new: bool = False
    """True if the timer topic may contain messages without a slot."""
    _walking: Iterator[tuple[int, UnitRecord]] | None = None
    """The units of the current slot that are still to be read."""
    _wanted: array[int] | None = None
    """Positions of the current slot's units whose messages must be stored, in reverse order."""
    _recalled: set[int] = field(default_factory=set)
    """Hashes of the topics and keys of messages recalled in the current slot."""
    _flying: int = 0
    _soon: asyncio.Handle | None = None
    _ended: bool = False

    def load(self) -> None:
        """Continue the timer of the store, if it has one. Raises: StoreIOError, RefusedError."""
        store = self.writer.source.store
        if (props.TIMER_TOPIC, 0) in store.queues.readable or os.path.exists(
                store.path("timerwheel")):
            self.files = self._open()
            self._new = True

    def _open(self) -> OpenTimerFiles:
        files = OpenTimerFiles(self.writer.source.store, self.writer.settings.timer_precision)
        last = files.last
        record = None if last is None else self._record(last)
        if record is not None and record.topic == props.TIMER_TOPIC.encode():
            files.queue = record.queue_offset + 1
        return files

    def add(self) -> None:
        """Record that a message was stored in the timer topic."""
        self._new = True

    def deliver(self) -> None:
        """Assign slots to new messages, and store messages that are due.
        Raises: StoreIOError, RefusedError.
        """
        if self._ended or self.writer.failure is not None or not (
                self._new or self.files is not None):
            return
        files = self.files = self.files or self._open()
        now, late = files.moment(now_ms()), time.monotonic() + _TURN_S
        if self._new:
            self._new = self._enqueue(files, now, late)
        while files.read < now and not self._flying and time.monotonic() < late:
            if self._wanted is None:
                newest = files.newest(files.read)
                if newest < 0:
                    files.read += files.precision
                    continue
                self._wanted, self._walking = array("q"), files.units(files.read, newest)
            if self._walking is not None and not self._walk(files, self._wanted, late):
                break
            if not self._put_some(files, self._wanted, late) or self._flying:
                break
            self._wanted = None
            self._recalled.clear()
            files.read += files.precision
        files.keep()
        if (self._new or files.read < now) and not self._flying and not self.writer.is_busy:
            self._go_on()

    def _go_on(self) -> None:
        """Continue in the next turn of the event loop."""
        if self._soon is None:
            with suppress(RuntimeError):  # no loop runs any more
                self._soon = asyncio.get_running_loop().call_soon(self._again)

    def _again(self) -> None:
        self._soon = None
        with suppress(RmqctlError):  # the next round says it
            self.deliver()

    def finish(self) -> None:
        """Store all messages of the current slot before the server ends, so that none is delivered
        twice.

        Later messages get their slot when the server starts again.
        """
        self._ended = True
        files, late = self.files, time.monotonic() + _MAX_END_S
        while files is not None and self._wanted is not None and time.monotonic() < late:
            self.writer.put_now()
            if self._flying or (self._walking is not None
                                and not self._walk(files, self._wanted, late)):
                return  # it comes once more
            if self._put_some(files, self._wanted, late) and not self._flying:
                self._wanted = None
                files.read += files.precision

    def close(self) -> None:
        """Close the timer files as a broker does at shutdown. Raises: StoreIOError."""
        if self.files is not None:
            self.files.close()
            self.files = None

    # -- into the wheel -----------------------------------------------------------------------

    def _enqueue(self, files: OpenTimerFiles, now: int, late: float) -> bool:
        """Assign slots to messages of the timer topic. Return whether more messages need a slot."""
        key = props.TIMER_TOPIC, 0
        queue = self.writer.queue(key) or self.writer.source.queue(*key)
        files.queue = min(max(files.queue, queue.first), queue.end)
        while files.queue < queue.end:
            pulled = queue.pull(files.queue, _PAGE, None)
            if pulled.next_begin <= files.queue:
                break
            for record in map(decode, pulled.records):
                properties = props.parse(java_text(record.properties))
                with suppress(ValueError):  # nobody but a broker names a time
                    due = java_int(properties.get(props.TIMER_OUT_MS, ""), 64)
                    files.add(due, now, record.physical_offset, record.total_size,
                              string_hash(properties.get(props.REAL_TOPIC, "")),
                              deletes=props.TIMER_DELETE in properties)
            files.queue = pulled.next_begin
            if time.monotonic() > late:
                return True
        return False

    # -- out of it ----------------------------------------------------------------------------

    def _record(self, unit: UnitRecord) -> Record | None:
        raw = self.writer.source.log.record(unit.physical_offset, unit.message_size)
        return None if raw is None else decode(raw)

    def _walk(self, files: OpenTimerFiles, wanted: array[int], late: float) -> bool:
        """Read units of the current slot. Return whether all units were read.

        Remember which messages to store, and which messages were recalled.
        """
        assert self._walking is not None
        for number, (position, unit) in enumerate(self._walking):
            if unit.magic & MAGIC_DELETE and not unit.magic & MAGIC_ROLL:
                record = self._record(unit)
                properties = {} if record is None else props.parse(java_text(record.properties))
                self._recalled.add(hash(properties.get(props.TIMER_DELETE)))
            else:
                wanted.append(position)
            if not number % _PAGE and time.monotonic() > late:
                return False
        self._walking = None
        return True

    def _put_some(self, files: OpenTimerFiles, wanted: array[int], late: float) -> bool:
        """Store the next messages of the current slot. Return whether all of them are stored."""
        for _ in range(_AT_ONCE):
            if not wanted:
                return True
            if self.writer.is_busy or time.monotonic() > late:
                return False
            position = wanted.pop()
            unit = files.unit(position)
            record = None if unit is None else self._record(unit)
            message = None
            if unit is not None and record is not None:
                message = self._due(unit, record)
            if message is not None:
                self._flying += 1
                self.writer.put(message, partial(self._put, position))
        return not wanted

    def _due(self, unit: UnitRecord, record: Record) -> Outgoing | None:
        """Return the message to store for a unit: in its own queue, or in the timer topic again.

        Return None if the message was recalled, or has no valid original queue.
        """
        profile = self.writer.settings.profile
        text, rolls = java_text(record.properties), bool(unit.magic & MAGIC_ROLL)
        properties = JavaMap.from_properties(text, profile.map_capacity)
        topic = properties.get(props.REAL_TOPIC) or ""
        due = properties.get(props.TIMER_OUT_MS) or ""
        if self._recalled and hash(f"{topic}+{properties.get(props.UNIQUE_KEY)}") in self._recalled:
            return None
        place = target(props.parse(text))
        if place is None or topic in (props.TIMER_TOPIC, props.HALF_TOPIC) or takes_no_messages(
                topic, profile.generation) or (props.TIMER_DELETE in properties and not rolls):
            return None
        with suppress(ValueError):
            was_late = java_int(due, 64) < unit.curr_write_time
            properties.put(_ENQUEUED, _NEVER_ENQUEUED if was_late else str(unit.curr_write_time))
        if rolls:
            place, times = (props.TIMER_TOPIC, 0), properties.get(_ROLLED) or ""
            is_number = times.isdecimal() and len(times) < 9
            properties.put(_ROLLED, str(int(times) + 1 if is_number else 1))
        properties.put(_DEQUEUED, str(now_ms()))
        return Outgoing(place[0], bytes(record.body), properties.text(
            trailing=profile.trailing_separator), place[1], record.flag, record.sys_flag,
            record.born_timestamp, record.born_host, None, record.store_host,
            record.reconsume_times)

    def _put(self, position: int, result: PutResult) -> None:
        self._flying -= 1
        if result.status in ("SERVICE_NOT_AVAILABLE", "UNKNOWN_ERROR"):
            if self._wanted is not None:  # not now: it is the next one again
                self._wanted.append(position)
        elif not self._flying:
            self._go_on()
