"""The changes that a broker makes to a message before it is encoded (spec: recovery.md §9,
timer-and-others-5x.md §1.1, consumequeue.md §9-§10, commitlog.md §5.4).

Each change rebuilds the properties string from the parsed map, in the map's order. A message
without changes keeps its string. `Rewriter` applies the changes in a broker's order.

rmqctl has no timer wheel: a disabled wheel and the wheel's flow control are not imitated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from rmqctl.broker.settings import Settings
from rmqctl.engine.put import admission
from rmqctl.engine.put.admission import folder_fault
from rmqctl.engine.put.encoder import Encoder, host_flags, raw_text
from rmqctl.engine.put.message import (
    MESSAGE_ILLEGAL,
    TIMER_ILLEGAL,
    Outgoing,
    OutgoingBatch,
    PutResult,
    refused,
)
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import delay_level_of, delay_table, java_int
from rmqctl.formats.local.sysflag import INNER_BATCH, has_consume_queue_row
from rmqctl.lazy_dataclass import dataclass

WAIT = "WAIT"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
_TIMER_REQUESTS = (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)
_SYSTEM_PREFIX = "rmq_sys_"
_SEPARATOR = props.PROPERTY_SEPARATOR.encode()
_JAVA_BLANK = re.compile(r"[^\S\x85\xa0\u2007\u202f]*")
_I64 = 1 << 63

QueueKey = tuple[str, int]
"""(topic, queue id) as the key of a queue's counter."""
M = TypeVar("M", Outgoing, OutgoingBatch)


@dataclass(slots=True)
class Rewritten:
    """A message in the form in which it is stored.

    * ``message_number``: number of queue offsets that the message uses
    * ``advancing``: other queues whose counters advance by one, once for each occurrence
    * ``multi_dispatch``: whether the properties contain offsets in other queues; their sizes were
      already checked
    """

    message: Outgoing
    message_number: int = 1
    advancing: tuple[QueueKey, ...] = ()
    multi_dispatch: bool = False


def is_blank(text: str | None) -> bool:
    """Return the result of ``isBlank`` in commons-lang: whether a text is None or has only Java
    whitespace.
    """
    return text is None or _JAVA_BLANK.fullmatch(text) is not None


def delete_property(properties: str, name: str) -> str:
    """Return a properties string without the property ``name``; all else is unchanged."""
    return re.sub(f"(?:^|(?<=\x02)){re.escape(name)}\x01[^\x02]*(?:\x02|$)", "", properties,
                  flags=re.DOTALL)


def batch_properties(own: str, shared: str) -> bytes:
    """Return the stored properties of a message in a batch: its own, followed by those of the
    batch.
    """
    first, second = raw_text(own), raw_text(shared)
    if first and second and not first.endswith(_SEPARATOR):
        first += _SEPARATOR
    return first + second


def moved(message: M, properties: JavaMap, topic: str, queue_id: int, settings: Settings) -> M:
    """Move the message to another topic and queue; keep the original topic and queue in
    ``REAL_TOPIC`` and ``REAL_QID``.
    """
    properties.put(props.REAL_TOPIC, message.topic)
    properties.put(props.REAL_QUEUE_ID, str(message.queue_id))
    return _rebuilt(replace(message, topic=topic, queue_id=queue_id), properties, settings)


def _rebuilt(message: M, properties: JavaMap, settings: Settings) -> M:
    text = properties.text(trailing=settings.profile.trailing_separator)
    return replace(message, properties=text)


def delay_rewrite(message: M, properties: JavaMap, level: int, settings: Settings) -> M:
    """Move the message to the schedule topic; a level above the highest level is reduced to the
    highest level.
    """
    highest = delay_table(settings.message_delay_level).max_level
    if level > highest:
        properties.put(props.DELAY, str(level := highest))
    return moved(message, properties, props.SCHEDULE_TOPIC, level - 1, settings)


def _deliver_time(properties: JavaMap, now: int) -> int:
    seconds, milliseconds = properties.get(TIMER_DELAY_SEC), properties.get(TIMER_DELAY_MS)
    if seconds is not None:
        time = now + java_int(seconds, 64) * 1000
    elif milliseconds is not None:
        time = now + java_int(milliseconds, 64)
    else:
        time = java_int(properties.get(TIMER_DELIVER_MS) or "", 64)
    # Java's arithmetic wraps around, so some times in the far future become past times.
    return (time + _I64) % (2 * _I64) - _I64


def timer_rewrite(message: M, properties: JavaMap, now: int, settings: Settings) -> M | PutResult:
    """Move the message to the timer topic, unless it is already due. Its due time is reduced to the
    previous multiple of the precision.

    ``now``: the broker's clock in ms. The result is WHEEL_TIMER_MSG_ILLEGAL if the time is invalid
    or too far in the future, or if a delete request is too late.
    """
    try:
        time = _deliver_time(properties, now)
    except ValueError as error:
        return refused(TIMER_ILLEGAL, f"the deliver time: {error}")
    if time <= now:
        if props.TIMER_DELETE in properties:
            return refused(TIMER_ILLEGAL, "the timed message to delete was already due")
        return message
    if time - now > settings.timer_max_delay:
        return refused(TIMER_ILLEGAL, f"due in {time - now} ms; at most "
                       f"{settings.timer_max_delay} ms are allowed")
    precision = settings.timer_precision
    time -= time % precision or precision
    properties.put(props.TIMER_OUT_MS, str(time))
    return moved(message, properties, props.TIMER_TOPIC, 0, settings)


def schedule(message: M, properties: JavaMap, now: int, settings: Settings) -> M | PutResult:
    """Move the message to the schedule topic or the timer topic if its properties request a delay.

    A broker never receives a message whose topic is already the schedule topic. Such a message is
    not moved.
    """
    if not has_consume_queue_row(message.sys_flag) or message.topic == props.SCHEDULE_TOPIC:
        return message
    try:
        level = delay_level_of(properties)
    except ValueError as error:
        return refused(MESSAGE_ILLEGAL, str(error))
    if settings.profile.timer and message.topic != props.TIMER_TOPIC:
        if level > 0:
            for name in _TIMER_REQUESTS:
                properties.remove(name)
        elif props.TIMER_OUT_MS not in properties and any(
                name in properties for name in _TIMER_REQUESTS):
            return timer_rewrite(message, properties, now, settings)
    return delay_rewrite(message, properties, level, settings) if level > 0 else message


def inner_batch(message: Outgoing, properties: JavaMap, settings: Settings,
                offset: int) -> tuple[Outgoing, int]:
    """Return (inner batch with its first queue offset, number of queue offsets that it uses).
    Raises: ValueError for an invalid number.
    """
    text = properties.get(props.INNER_NUM)
    number = 1 if text is None else max(1, java_int(text, 16))
    if has_consume_queue_row(message.sys_flag):
        properties.put(props.INNER_BASE, str(offset))
        message = _rebuilt(message, properties, settings)
    return message, number


def wants_multi_dispatch(message: Outgoing, properties: JavaMap, settings: Settings) -> bool:
    """Return whether the message gets queue offsets in other queues."""
    if is_blank(properties.get(props.MULTI_DISPATCH)):
        return False
    if settings.profile.multi_dispatch_any_queue:
        return settings.multi_dispatch
    return settings.lmq and message.topic != props.SCHEDULE_TOPIC and not message.topic.startswith(
        (props.RETRY_PREFIX, _SYSTEM_PREFIX))


def _names(properties: JavaMap) -> list[str]:
    """Return the names of the queues, without empty names at the end (as Java's ``split`` does)."""
    names = (properties.get(props.MULTI_DISPATCH) or "").split(",")
    while names and not names[-1]:
        names.pop()
    return names


def multi_dispatch(message: Outgoing, properties: JavaMap, settings: Settings,
                   table: Mapping[QueueKey, int]) -> Rewritten | PutResult:
    """Return the message with its queue offsets in the queues that its properties name.

    4.9.3:

    * The message gets an offset in every named queue. The queue id is 0 for LMQs (with ``lmq``),
      and the message's queue id for other queues.
    * A queue that is named twice advances by one.
    * ``WAIT`` is not stored.

    5.3.3:

    * The message gets an offset only in LMQs, and an empty item for other queues.
    * A queue that is named twice advances by two.
    * The counters advance for all transaction types.

    Unlike a broker, rmqctl rejects (MESSAGE_ILLEGAL) a queue that cannot be a folder, and empty
    items that would stop a broker's dispatch forever.
    """
    any_queue = settings.profile.multi_dispatch_any_queue
    names, keys, offsets = _names(properties), [], []
    for name in names:
        is_lmq = settings.lmq and name.startswith(props.LMQ_PREFIX)
        if not (is_lmq or any_queue):
            offsets.append("")
            continue
        # A 5.3.3 broker writes no row for a name with a slash.
        fault = folder_fault(name if any_queue else name.replace("/", ""))
        if fault is not None:
            return refused(MESSAGE_ILLEGAL, f"{props.MULTI_DISPATCH}: {fault}")
        key = name, 0 if is_lmq else message.queue_id
        keys.append(key)
        offsets.append(str(table.get(key, 0)))
    if settings.multi_dispatch and "" in offsets and offsets[-1]:
        return refused(MESSAGE_ILLEGAL, f"{props.MULTI_DISPATCH} names other queues before an "
                       "LMQ: a broker could never dispatch the message")
    properties.put(props.MULTI_QUEUE_OFFSET, ",".join(offsets))
    # Removed and put again, as by a broker, so it is now the last in its bucket.
    wait = properties.remove(WAIT)
    if wait is not None and settings.profile.stores_wait:
        properties.put(WAIT, wait)
    if any_queue:
        own = message.topic, message.queue_id
        counted = has_consume_queue_row(message.sys_flag)
        keys = [key for key in dict.fromkeys(keys) if key != own] if counted else []
    return Rewritten(_rebuilt(message, properties, settings), 1, tuple(keys), multi_dispatch=True)


class Rewriter:
    """Applies all changes that a configuration requires."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._encoder = Encoder(settings)
        self._crc = settings.append_properties_crc
        self._timer = settings.profile.timer
        delay_table(settings.message_delay_level)

    def concerns(self, message: Outgoing) -> bool:
        """Return whether the message may need a change; if not, it is stored unchanged."""
        text = message.properties
        return ("DELAY" in text or "INNER_" in text or (self._timer and "TIMER_D" in text)
                or bool(message.sys_flag & INNER_BATCH) or (self._crc and props.CRC32 in text))

    def apply(self, message: Outgoing, now: int, table: Mapping[QueueKey, int],
              is_batch_topic: Callable[[str], bool]) -> Rewritten | PutResult:
        """Return the changed message, or the result of a message that is rejected.

        ``now``: store time in ms. ``table``: the next offset of each queue; it is not changed.
        """
        # Check inner batches before and after scheduling, which can change topic and properties.
        settings = self._settings
        properties = JavaMap.from_properties(message.properties, settings.profile.map_capacity)
        wrong = admission.check_inner_batch(message, properties, settings, is_batch_topic)
        if wrong is not None:
            return wrong
        changed = schedule(message, properties, now, settings)
        if isinstance(changed, PutResult):
            return changed
        wrong = admission.check_inner_batch(changed, properties, settings, is_batch_topic)
        if wrong is not None:
            return wrong
        # The broker appends its own CRC property, so remove the sender's.
        if self._crc and props.CRC32 in changed.properties:
            properties.remove(props.CRC32)
            changed = replace(changed, properties=delete_property(changed.properties, props.CRC32))
        # An inner batch uses a queue offset for each of its messages.
        number = 1
        if settings.profile.batch_queues and changed.sys_flag & INNER_BATCH:
            try:
                changed, number = inner_batch(changed, properties, settings,
                                              table.get((changed.topic, changed.queue_id), 0))
            except ValueError as error:
                return refused(MESSAGE_ILLEGAL, f"{props.INNER_NUM}: {error}")
        # Refuse a message at which a broker would later truncate the log.
        fault = admission.unreadable(changed.topic, properties, settings)
        if fault is not None:
            return refused(MESSAGE_ILLEGAL, fault)
        if wants_multi_dispatch(changed, properties, settings):
            return self._multi_dispatch(changed, properties, number, table)
        return Rewritten(changed, number)

    def _multi_dispatch(self, message: Outgoing, properties: JavaMap, number: int,
                        table: Mapping[QueueKey, int]) -> Rewritten | PutResult:
        if self._settings.profile.multi_dispatch_any_queue:
            # 4.9.3 encodes before it takes the lock, and again with the offsets.
            wrong = self._too_large(message, multi_dispatch=False)
            if wrong is not None:
                return wrong
        result = multi_dispatch(message, properties, self._settings, table)
        if isinstance(result, PutResult):
            return result
        result.message_number = number
        return self._too_large(result.message, multi_dispatch=True) or result

    def _too_large(self, message: Outgoing, *, multi_dispatch: bool) -> PutResult | None:
        settings, encoder = self._settings, self._encoder
        raw, body = len(encoder.properties_part(message.properties)), len(message.body)
        sys_flag = host_flags(message.sys_flag, message.born_host or settings.born_host,
                              message.store_host or settings.store_host)
        size = encoder.size(sys_flag, encoder.topic_part(message.topic), body, raw)
        return admission.check_sizes(settings, body, raw + encoder.reserved, size,
                                     multi_dispatch=multi_dispatch)

    def apply_batch(self, batch: OutgoingBatch, now: int) -> OutgoingBatch | PutResult:
        """Return a batch with its own properties string rebuilt; a batch of timer messages is moved
        to the timer topic.
        """
        settings = self._settings
        properties = JavaMap.from_properties(batch.properties, settings.profile.map_capacity)
        changed = schedule(batch, properties, now, settings)
        return changed if isinstance(changed, PutResult) else _rebuilt(changed, properties,
                                                                       settings)
