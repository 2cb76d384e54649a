"""A new timer log, built from the messages of the timer topic to replace a damaged or missing timer
log.

spec: timer-and-others-5x.md §1.1, §1.3. A unit of the timer log needs only the due time and the
target topic; each message of the timer topic contains both. Only messages that are not yet due need
a unit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rmqctl.broker.timer import KEPT_SLOTS, TimerFiles, TimerUnits
from rmqctl.formats.local import javahash
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.properties import TIMER_TOPIC
from rmqctl.formats.timer import timer_log
from rmqctl.formats.timer.timer_check import TimerCheckRecord
from rmqctl.formats.timer.timer_log import TAIL, UNIT, UNIT_SIZE, TailRecord, UnitRecord
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.frames import Array
from rmqctl.store.store import Store

DELETED_KEY = "TIMER_DEL_UNIQKEY"
_DEQUEUED = "TIMER_DEQUEUE_MS"
_ANYWHERE = 1 << 62
DEFAULT_FILE_SIZE = 100 << 20
_ROLL_SLOTS = 172_800
"""timerRollWindowSlot: number of slots ahead at which a message is enqueued if its due time is
after the end of the wheel.
"""


class Timed(NamedTuple):
    """A message of the timer topic.

    ``row``: its queue offset.
    ``due``: its due time (ms).
    ``topic``: its target topic.
    ``deletes``: whether the message recalls another message.
    """

    row: int
    physical: int
    size: int
    due: int
    topic: str
    deletes: bool
    key: str


def timed_messages(files: TimerFiles, before: int, log_end: int) -> list[Timed]:
    """Return the enqueued messages that are not yet due, and the last enqueued message.

    Enqueued messages have queue offsets below ``before``. If a message was enqueued several times,
    only its newest record is returned.

    Raises: StoreIOError.
    """
    queue = files.store.queues.find_readable(TIMER_TOPIC, 0)
    by_key: dict[str, Timed] = {}
    last: Timed | None = None
    if queue is None:
        return []
    end = min(before, queue.disk_end)
    # Ignore entries that point past the end of the log or to something else than a timer message.
    for row in range(queue.first_index, end):
        unit = queue.unit(row)
        if unit is None or unit.physical_offset + unit.size > log_end:
            continue
        record = files.store.log.record_at(unit.physical_offset, unit.size)
        if record is None or record.topic != TIMER_TOPIC.encode():
            continue
        # Without a valid due time the broker has no slot for the message.
        properties = props.parse(record.properties.decode("utf-8", "replace"))
        due = properties.get(props.TIMER_OUT_MS, "")
        if not (due.isascii() and due.isdigit() and len(due) < 18):
            continue
        message = Timed(row, unit.physical_offset, unit.size, int(due),
                        properties.get(props.REAL_TOPIC, ""), DELETED_KEY in properties,
                        properties.get(props.UNIQUE_KEY, str(unit.physical_offset)))
        # A later record with the same key replaces the earlier one, even if it is already due.
        last = message
        by_key.pop(message.key, None)
        if message.due // files.precision >= files.checked.last_read_time_ms // files.precision:
            by_key[message.key] = message
    # A broker continues after the last unit, so the last message enqueued always gets one.
    messages = sorted(by_key.values())
    return messages if last is None or last in messages else [*messages, last]


def restored_progress(files: TimerFiles, log_end: int) -> TimerCheckRecord:
    """Return new content for a damaged or missing ``config/timercheck``, from the timer log and the
    timed message that was delivered last.

    Raises: StoreIOError.
    """
    units = files.units(-_ANYWHERE)
    end = int(units.position[-1]) + UNIT_SIZE if len(units) else 0
    read = last_delivered(files.store, log_end)
    files.checked = TimerCheckRecord(read, end, 0, _ANYWHERE)
    row = files.next_row(end, log_end)
    return TimerCheckRecord(read, end, row, row)


def last_delivered(store: Store, log_end: int) -> int:
    """Return the due time (ms) of the timed message that was delivered last; 0 if none was
    delivered.

    Slots are read in order, so all messages that were due earlier have been delivered, too.

    Raises: StoreIOError.
    """
    for file in reversed(store.log.files):
        newest = 0
        for batch in store.log.walk(file.base, min(file.end, log_end)):
            if not len(batch):
                continue
            properties = text.PropertySegments(batch)
            delivered = properties.find(_DEQUEUED)[0]
            due: Array = np.zeros(len(batch), np.int64)
            rows, times = properties.find(props.TIMER_OUT_MS)
            for row, raw in zip(rows.tolist(), times.tolist(), strict=True):
                due[row] = int(raw) if raw.isdigit() and len(raw) < 18 else 0
            # A rolled message is in the timer topic again.
            own = delivered[~text.topics(batch).equal(TIMER_TOPIC.encode())[delivered]]
            newest = int(due[own[-1]]) if len(own) else newest
        if newest:
            return newest
    return 0


def progress_of_log(files: TimerFiles, log_end: int) -> int:
    """Return the time (ms) up to which the timer delivered messages according to the log. If the
    log has no delivered message, return the time at which the first one is due.
    """
    read = last_delivered(files.store, log_end)
    if read:
        return read
    units = files.units(0)
    due = units.slot[units.physical >= files.store.log.min_offset]
    return int(due.min()) * files.precision if len(due) else files.checked.last_read_time_ms


@dataclass(frozen=True, slots=True)
class BuiltLog:
    """A built timer log. ``files``: the used bytes of each file, by base offset. ``end``: the end
    of the timer log.
    """

    units: TimerUnits
    files: dict[int, bytes]
    file_size: int
    end: int


def built_log(files: TimerFiles, messages: list[Timed]) -> BuiltLog:
    """Return a timer log with a unit for each message, in the order of their queue offsets."""
    precision, written = files.precision, files.checked.last_read_time_ms
    size = files.file_size or DEFAULT_FILE_SIZE
    parts: dict[int, bytearray] = {0: bytearray()}
    newest: dict[int, int] = {}
    rows: list[tuple[int, ...]] = []
    base = 0
    # Start a new file where neither the unit nor the end mark after it would fit.
    for message in sorted(messages):
        data = parts[base]
        if UNIT_SIZE + TAIL.size > size - len(data):
            data += TAIL.build(TailRecord(size - len(data)))
            base += size
            data = parts[base] = bytearray()
        # The wheel has no slot for a distant time: such a message waits in a roll slot first.
        slot, magic = message.due // precision, timer_log.MAGIC_DEFAULT
        if slot - written // precision >= KEPT_SLOTS:
            slot, magic = written // precision + _ROLL_SLOTS, magic | timer_log.MAGIC_ROLL
        magic |= timer_log.MAGIC_DELETE if message.deletes else 0
        # Link each unit to the previous unit of the same slot.
        position, previous = base + len(data), newest.get(slot, -1)
        time = min(written, slot * precision)
        data += UNIT.build(UnitRecord(
            UNIT_SIZE, previous, magic, time, slot * precision - time, message.physical,
            message.size, javahash.string_hash(message.topic)))
        newest[slot] = position
        rows.append((position, slot, previous, message.physical, message.size,
                     -1 if message.deletes else 1))
    columns = np.array(rows, np.int64).reshape(-1, len(TimerUnits._fields)).T
    return BuiltLog(TimerUnits(*columns), {at: bytes(data) for at, data in parts.items()}, size,
                    base + len(parts[base]))
