"""Delayed and timed messages, and how far a broker has delivered them.

`config/delayOffset.json` contains, for each delay level, the queue offset of the first message in
the level's queue that was not delivered. The broker delivers a message by storing a copy of it in
its real topic (spec: recovery.md §9). If the file is later than the log, it counts messages as
delivered whose copies are not in the log, and no broker delivers them again. This happens if the
file was copied after the log, or if the log lost its end. The same is true of timed messages (5.x)
and ``config/timercheck``.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import numpy as np

from rmqctl.broker.timer import TimerFiles
from rmqctl.formats.local import delay
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.consume_queue import UNIT
from rmqctl.formats.local.properties import HALF_TOPIC, REAL_TOPIC, SCHEDULE_TOPIC
from rmqctl.scan.frames import Array, Batch
from rmqctl.store.config.config import load_shared
from rmqctl.store.log.end import find_end
from rmqctl.store.queue.consume_queue import valid
from rmqctl.store.store import Store

FILE = "delayOffset.json"
_SLAVE = "SLAVE"
_YEAR_3000 = 32_503_680_000_000
"""Times (ms) from then on are damage, which `verify` reports."""
_PAGE = 1000
"""Number of entries that are read at once, from the end of a queue to its start."""


class DelayLevel(NamedTuple):
    """The delayed messages of one level in the log, in queue offsets.

    * ``first``: the first message without a delivered copy in the log
    * ``before``: number of messages before ``first``
    * ``messages``: number of messages
    * ``delivered_end``: the offset after the last message with a delivered copy; if no message has
      one, the offset of the first message
    """

    first: int
    before: int
    messages: int
    delivered_end: int


class DelayAhead(NamedTuple):
    """A delay level whose offset is later than the log.

    * ``level``: the key in the file
    * ``offset``: the level's offset
    * ``first``: the first message that is not delivered, though it is before ``offset``
    * ``messages``: number of such messages
    """

    level: int
    offset: int
    first: int
    messages: int


def delays(store: Store, progress: Callable[[int], None] = lambda _bytes: None,
           start: int = 0) -> dict[int, DelayLevel]:
    """Return the delayed messages by delay level.

    A message and its delivered copy both have a ``REAL_TOPIC``, and have the same ``UNIQ_KEY``,
    body, born time and number of retries. A damaged copy does not count: a message is better
    delivered twice than lost.

    ``start``: a physical offset; messages before it are ignored.
    ``progress``: receives the number of bytes read since the last call.

    Reads the log once and keeps 32 bytes for each delayed message. Raises: StoreIOError.
    """
    return _levels(*_delayed(store, start, progress)[:2])


def ahead(store: Store) -> list[DelayAhead]:
    """Return the delay levels whose offset is certainly later than the log. Raises: StoreIOError.

    A message is certainly not delivered if it is due after the last message of the log was stored,
    and the log has no delivered copy of it. (There is one if the delays of the levels were
    shortened.) The log is read only if a message is due that late, or if entries are missing.

    A slave delivers no delayed messages, so its file does not count.
    """
    offsets = {row["queue_id"]: row["offset"] for row in load_shared(store, FILE).rows()
               if row["offset"] > 0 and row["queue_id"] >= 0} if not is_slave(store) else {}
    last = find_end(store).last if offsets else None
    if last is None:
        return []
    # The entries of messages that are due that late; without an entry, the level's delay counts.
    due: dict[int, int] = {}
    lacking: set[int] = set()
    for queue_id, offset in offsets.items():
        units, is_whole = _due_after(store, queue_id, offset, last.store_timestamp)
        due.update(zip(units["physical_offset"].tolist(), units["tags_code"].tolist(),
                       strict=True))
        lacking |= set() if is_whole else {queue_id}
    if not due and not lacking:
        return []
    conf = store.sizes.conf.values.get("message_delay_level")
    times = delay.parse_levels(conf) if conf else delay.DEFAULT_LEVELS
    waiting, delivered, newest = _delayed(store, 0 if lacking else min(due))
    levels = []
    for queue_id, offset in sorted(offsets.items()):
        later = times.get(queue_id + 1, delay.UNKNOWN_LEVEL)
        rows = [(place, name in delivered) for place, name, physical, stored in zip(
            *waiting.get(queue_id, _none()), strict=True) if place < offset and due.get(
                physical, stored + later if queue_id in lacking else 0) > newest]
        first = max((place + 1 for place, is_delivered in rows if is_delivered), default=0)
        places = [place for place, _ in rows if place >= first]
        if places:
            levels.append(DelayAhead(queue_id + 1, offset, min(places), len(places)))
    return levels


def _due_after(store: Store, queue_id: int, offset: int, when: int) -> tuple[Array, bool]:
    """Return (the entries of a level's queue, from the last one before ``offset`` back to the first
    one in a row that is due after the time ``when``; whether none of them is missing).
    """
    queue = store.queues.find(SCHEDULE_TOPIC, queue_id)
    if queue is None:  # a database removes all entries of expired messages
        return np.zeros(0, UNIT.dtype()), store.layout.consumequeue == "rocksdb"
    parts: list[Array] = [np.zeros(0, UNIT.dtype())]
    with closing(queue):
        end = min(offset, queue.valid_end)
        is_whole = end == offset
        while end > queue.first_index:
            first = max(queue.first_index, end - _PAGE)
            units = queue.units(first, end - first)
            good = valid(units)
            early = np.flatnonzero(good & (units["tags_code"] <= when))
            start = int(early[-1]) + 1 if len(early) else 0
            is_whole &= bool(good[start:].all())
            parts.append(units[start:][good[start:]])
            if len(early):
                break
            end = first
    return np.concatenate(parts[::-1]), is_whole


_Waiting = tuple["array[int]", "array[int]", "array[int]", "array[int]"]
"""Of the messages of one level: queue offsets, names, physical offsets and store times."""


def _none() -> _Waiting:
    return array("q"), array("q"), array("q"), array("q")


def _delayed(store: Store, start: int = 0, progress: Callable[[int], None] = lambda _bytes: None
             ) -> tuple[dict[int, _Waiting], set[int], int]:
    """Return (the delayed messages by queue id, the names of the delivered ones, the greatest store
    time), for the part of the log from ``start`` on.
    """
    waiting: dict[int, _Waiting] = {}
    delivered: set[int] = set()
    newest = 0
    for batch in store.log.walk(start):
        if len(batch):
            _take(batch, waiting, delivered)
            newest = max(newest, int(batch.column("store_timestamp").max()))
            progress(int(batch.column("total_size").sum()))
    return waiting, delivered, newest


def _levels(waiting: dict[int, _Waiting], delivered: set[int]) -> dict[int, DelayLevel]:
    levels = {}
    for queue_id, (offsets, names, *_) in sorted(waiting.items()):
        rows = sorted(zip(offsets, names, strict=True))
        first = next((offset for offset, name in rows if name not in delivered), rows[-1][0] + 1)
        end = next((offset + 1 for offset, name in reversed(rows) if name in delivered),
                   rows[0][0])
        levels[queue_id + 1] = DelayLevel(first, sum(offset < first for offset, _ in rows),
                                          len(rows), end)
    return levels


def _take(batch: Batch, waiting: dict[int, _Waiting], delivered: set[int]) -> None:
    from rmqctl.scan import text

    properties = text.PropertySegments(batch)
    waits = properties.find(REAL_TOPIC)[0].tolist()
    if not waits:
        return
    rows, keys = properties.find(props.UNIQUE_KEY)
    key = dict(zip(rows.tolist(), keys.tolist(), strict=True))
    good: Array = batch.crc_ok() | (batch.column("body_length") <= 0)
    topics = text.topics(batch).tolist()
    born, crc = batch.column("born_timestamp"), batch.column("body_crc")
    times, when = batch.column("reconsume_times"), batch.column("store_timestamp")
    for row in waits:
        if not good[row]:
            continue
        name = hash((key.get(row), int(times[row]), int(born[row]), int(crc[row])))
        topic = os.fsdecode(topics[row])
        if topic == SCHEDULE_TOPIC:
            offsets, names, places, stored = waiting.setdefault(
                int(batch.column("queue_id")[row]), _none())
            offsets.append(int(batch.column("queue_offset")[row]))
            names.append(name)
            places.append(int(batch.offset[row]))
            stored.append(int(when[row]))
        elif topic != HALF_TOPIC:  # a half message may be delayed once it is committed
            delivered.add(name)


# -- timed messages (5.x) -------------------------------------------------------------------------


class TimerAhead(NamedTuple):
    """Timed messages that ``config/timercheck`` counts as delivered but that were not delivered.

    ``messages``: number of these messages.
    ``first``: due time (ms) of the first one.
    """

    messages: int
    first: int


def timer_ahead(store: Store, log_end: int) -> TimerAhead:
    """Return the timed messages that were certainly not delivered though timercheck counts them as
    delivered: they were due after the last message of the log was stored. Raises: StoreIOError.

    The broker delivers a message by storing it again when it is due. Messages that were deleted
    before they were due do not count.
    """
    files = TimerFiles.of(store)
    counts_any = files.in_use and files.checked.last_read_time_ms < _YEAR_3000
    last = find_end(store).last if counts_any and not is_slave(store) else None
    if last is None:
        return TimerAhead(0, 0)
    precision = files.precision
    units = files.units(last.store_timestamp // precision + 1)
    units = units.only((units.slot < files.checked.last_read_time_ms // precision)
                       & (units.physical >= store.log.min_offset)
                       & (units.physical + units.size <= log_end))
    slots, of_unit = np.unique(units.slot, return_inverse=True)
    counts = np.bincount(of_unit, units.step, len(slots)).astype(np.int64)
    left = slots[counts > 0]
    return TimerAhead(int(counts[counts > 0].sum()), int(left[0]) * precision if len(left) else 0)


def is_slave(store: Store) -> bool:
    """Return whether broker.conf makes the broker a slave: it delivers no delayed or timed messages
    and gets their progress from its master.
    """
    return store.sizes.conf.values.get("role") == _SLAVE
