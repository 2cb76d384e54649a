"""Pending timed messages, and the effect of a broker startup on each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from rmqctl.broker.timer import TimerFiles
from rmqctl.broker.timer_messages import DELETED_KEY, timed_messages
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record
from rmqctl.formats.local.properties import TIMER_TOPIC
from rmqctl.store.store import Store

COLUMNS = ("due", "state", "topic", "queue_id", "physical_offset", "size", "store_timestamp",
           "unique_key", "keys", "deletes")
PENDING, WAITING = "pending", "not in the timer log yet"
SKIPPED, UNREACHABLE, GONE = "overdue", "unreachable", "gone"
MISSING = "missing in the timer log"
NEVER = frozenset({SKIPPED, UNREACHABLE, GONE, MISSING})
"""States of messages that a broker will never deliver, not even after a restart."""


def pending_timers(store: Store, now: int) -> Iterator[dict[str, Any]]:
    """Yield a record for each timed message, in the order in which the timer wheel reaches them.

    Then come messages that are missing from a damaged timer log, and messages that are not in the
    timer log yet.

    * ``now``: startup time of the broker (epoch ms)
    * ``due``: due time (ms) in the message; the wheel may contain an earlier time for a message
      that is due later than the wheel covers
    * ``deletes``: key of the message that a recall message deletes

    Raises: StoreIOError.
    """
    files = TimerFiles.of(store)
    if not files.in_use and store.queues.find_readable(TIMER_TOPIC, 0) is None:
        return
    seen = files.outlook(now, store.log.min_offset, store.log.end)
    states = np.select([seen.skipped, seen.unreachable, seen.gone], [1, 2, 3], 0)
    names, empty = (PENDING, SKIPPED, UNREACHABLE, GONE), dict.fromkeys(COLUMNS)
    for number in np.lexsort((seen.units.position, seen.units.slot)).tolist():
        physical, size = int(seen.units.physical[number]), int(seen.units.size[number])
        state = names[int(states[number])]
        record = None if state == GONE else store.log.record_at(physical, size)
        yield {**empty, "due": int(seen.units.slot[number]) * files.precision,
               **_row(record, physical, size), "state": state}
    # Messages that a damaged timer log should have.
    if files.damaged:
        in_timer_log = set(seen.units.physical.tolist())
        for message in timed_messages(files, seen.row, store.log.end):
            if message.physical not in in_timer_log and (
                    message.due >= files.checked.last_read_time_ms):
                record = store.log.record_at(message.physical)
                yield {**empty, "due": message.due, **_row(record, message.physical, 0 if (
                    record is None) else record.total_size), "state": MISSING}
    # Messages stored right before the broker ended.
    queue = store.queues.find_readable(TIMER_TOPIC, 0)
    for row in range(seen.row, seen.row + seen.waiting) if queue is not None else ():
        unit = None if queue is None else queue.unit(row)
        if unit is not None and unit.is_valid and not unit.is_filler:
            record = store.log.record_at(unit.physical_offset, unit.size)
            yield {**empty, **_row(record, unit.physical_offset, unit.size),
                   "state": WAITING if record is not None else GONE}


def _row(record: Record | None, physical: int, size: int) -> dict[str, Any]:
    row: dict[str, Any] = {"physical_offset": physical, "size": size}
    if record is None:
        return row
    properties = props.parse(record.properties.decode("utf-8", "replace"))
    due = properties.get(props.TIMER_OUT_MS, "")
    queue = properties.get(props.REAL_QUEUE_ID, "")
    if due.isascii() and due.isdigit() and len(due) < 18:
        row["due"] = int(due)
    return row | {
        "topic": properties.get(props.REAL_TOPIC) or os.fsdecode(record.topic),
        "queue_id": int(queue) if queue.isascii() and queue.isdigit() else None,
        "store_timestamp": record.store_timestamp,
        "unique_key": properties.get(props.UNIQUE_KEY), "keys": properties.get(props.KEYS),
        "deletes": properties.get(DELETED_KEY)}
