"""Timer log units against the messages they lead to (timer-and-others-5x.md §1.1, §1.3).

A unit that leads to no whole message is at fault, unless the consumequeue of the timer topic
has the very same row: then the message is damaged or gone, which is the commitlog's trouble.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.common import nowhere
from rmqctl.checks.verify.log.lookup import Window, records_at
from rmqctl.errors import StoreIOError
from rmqctl.formats.local import javahash
from rmqctl.formats.local.properties import NO_TOPIC, REAL_TOPIC, TIMER_TOPIC
from rmqctl.formats.timer import timer_log
from rmqctl.scan import text
from rmqctl.scan.frames import Array, Batch, gather
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store

OUT_TIME = "TIMER_OUT_MS"
_TOPIC = TIMER_TOPIC.encode()
_ANYWHERE = 1 << 62
_SINGLE = 1000
"""Units without a message that are looked at one by one; others are all told alike."""
_AHEAD = 1 << 20
"""Rows of the consumequeue that are read from where the first asked one should be."""

Wrong = tuple[int, str, str]
"""(row, field, what is wrong with it)."""


class Records:
    """Looks up the messages of units, a page at a time."""

    def __init__(self, store: Store, log_end: int,
                 in_damage: Callable[[int], bool] | None = None) -> None:
        self._store = store
        self._in_damage = in_damage or nowhere
        self.log_end = min(log_end, _ANYWHERE) if store.log.files else _ANYWHERE
        self._lost: list[int] = []
        self._lost_count = 0
        self._asked = 0

    def check(self, units: Array, rows: Array, precision: int) -> Iterator[Wrong]:
        """What is wrong with the units of ``rows``; expired messages are passed over."""
        log = self._store.log
        if not log.files:
            return
        rows = rows[units["physical_offset"][rows] >= log.min_offset]
        offsets, of_row = np.unique(units["physical_offset"][rows].astype(np.int64),
                                    return_inverse=True)
        # Several units may lead to one message (a recovery enqueues again): one size will do.
        size: Array = np.zeros(len(offsets), np.int64)
        size[of_row] = units["message_size"][rows]
        order = np.argsort(of_row, kind="stable")
        start = np.searchsorted(of_row[order], np.arange(len(offsets) + 1))
        for window in records_at(log, offsets, size):
            first = int(window.rows[0])
            mine = order[start[first]:start[int(window.rows[-1]) + 1]]
            here = of_row[mine] - first
            found = window.found[here]
            if window.batch is not None and found.any():
                record = (np.cumsum(window.found) - 1)[here[found]]
                yield from self._compare(units, rows[mine[found]], record, window.batch,
                                         precision)
            if not found.all():
                yield from self._missing(units, rows[mine[~found]], window)

    # -- a message is there -------------------------------------------------------------------

    def _compare(self, units: Array, rows: Array, of: Array, batch: Batch,
                 precision: int) -> Iterator[Wrong]:
        """Units ``rows`` against the records number ``of`` of a batch."""
        timer, size = _is_timer(batch)[of], batch.column("total_size")[of]
        fits = timer & (size == units["message_size"][rows])
        if not fits.all():
            odd = np.flatnonzero(~fits)
            queued = self._queued(units, rows[odd])
            self._lose(units, rows[odd[queued]])
            for at in odd[~queued].tolist():
                yield int(rows[at]), *_unfit(bool(timer[at]), int(size[at]))
        found = text.Properties(batch)
        topic_row, topics = found.find(REAL_TOPIC)
        hashes: Array = np.zeros(len(batch), np.int64)
        hashes[topic_row] = text.hashes(topics.data, topics.start, topics.length)[0]
        rows, of = rows[fits], of[fits]
        gone = hashes[of] == javahash.string_hash(NO_TOPIC)
        if gone.any():  # what stands there was put in place of the lost message
            self._lose(units, rows[gone])
            rows, of = rows[~gone], of[~gone]
        other = hashes[of] != units["topic_hash"][rows]
        for at in np.flatnonzero(other).tolist():
            yield int(rows[at]), "topic_hash", (
                f"is not the hash of the message's real topic ({int(hashes[of[at]])})")
        # A unit that was rolled stands in a slot on the way to its time.
        direct = ~other & (units["magic"][rows] & timer_log.MAGIC_ROLL == 0)
        due = _due(found, len(batch))[of]
        slot = units["curr_write_time"][rows].astype(np.int64) + units["delay_time"][rows]
        late = direct & (due >= 0) & (slot // precision != due // precision)
        for at in np.flatnonzero(late).tolist():
            yield int(rows[at]), "delay_time", (
                f"makes the slot {int(slot[at])}, the message is due at {int(due[at])}")

    # -- no message is there --------------------------------------------------------------------

    def _missing(self, units: Array, rows: Array, window: Window) -> Iterator[Wrong]:
        queued = (self._queued(units, rows) if window.batch is not None
                  else np.ones(len(rows), bool))
        self._lose(units, rows[queued])
        for row in rows[~queued].tolist():
            if self._in_damage(int(units[row]["physical_offset"])):
                self._lose(units, np.array([row]))
                continue
            self._asked += 1
            record = self._store.log.record_at(
                int(units[row]["physical_offset"])) if self._asked <= _SINGLE else None
            if record is None:
                yield row, "physical_offset", "leads to where no message is"
            else:
                yield row, *_unfit(record.topic == _TOPIC, record.total_size)

    def _lose(self, units: Array, rows: Array) -> None:
        self._lost_count += len(rows)
        self._lost += units["physical_offset"][rows[:5]].tolist()[:5 - len(self._lost)]

    def _queued(self, units: Array, rows: Array) -> Array:
        """Which of the units the timer topic's consumequeue has too, message and size."""
        queue = self._store.queue(TIMER_TOPIC, 0)
        out: Array = np.zeros(len(rows), bool)
        if queue is None or not len(rows):
            return out
        wanted = units["physical_offset"][rows].astype(np.int64)
        try:
            first = _bisect(queue, int(wanted.min()))
            for _, page in queue.pages(first, min(first + _AHEAD, queue.disk_end)):
                order = np.argsort(page["physical_offset"], kind="stable")
                physical = page["physical_offset"][order].astype(np.int64)
                at = np.minimum(np.searchsorted(physical, wanted), len(physical) - 1)
                out |= (physical[at] == wanted) & (
                    page["size"][order][at] == units["message_size"][rows])
                if int(physical[-1]) >= int(wanted.max()):
                    break
        except StoreIOError:
            pass
        return out

    def left_over(self) -> Iterator[Finding]:
        """Units whose message is damaged or missing in the commitlog: told once, as information."""
        if self._lost_count:
            places = ", ".join(map(str, self._lost)) + (
                ", …" if self._lost_count > len(self._lost) else "")
            yield Finding("timer-log", "timer", "units lead to damaged or missing messages: "
                          f"physical offset {places}", file=self._store.path("timerlog"),
                          count=self._lost_count, severity=INFO)


def _unfit(is_timer: bool, size: int) -> tuple[str, str]:
    if not is_timer:
        return "physical_offset", f"leads to a message that is none of {TIMER_TOPIC}"
    return "message_size", f"is not the message's size ({size})"


def _is_timer(batch: Batch) -> Array:
    """Which records are of the timer topic."""
    out: Array = np.zeros(len(batch), bool)
    same = np.flatnonzero(batch.column("topic_length") == len(_TOPIC))
    start = batch.column("topic_start")[same]
    out[same] = gather(batch.data, start, len(_TOPIC)) == np.void(_TOPIC)
    return out


def _due(found: text.Properties, count: int) -> Array:
    """When each message is to be delivered (ms), -1 where it does not say."""
    out: Array = np.full(count, -1, np.int64)
    rows, times = found.find(OUT_TIME)
    for row, raw in zip(rows.tolist(), times.tolist(), strict=True):
        if raw.isdigit() and len(raw) < 18:
            out[row] = int(raw)
    return out


def _bisect(queue: ConsumeQueue, physical: int) -> int:
    """The first row at or behind ``physical`` in a queue in order; somewhere in a damaged one."""
    low, high = queue.first_index, queue.disk_end
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is not None and unit.physical_offset >= physical:
            high = middle
        else:
            low = middle + 1
    return low
