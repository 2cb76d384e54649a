"""Checks of the timer of 5.x: timer log, wheel, timercheck and commitlog, against each other.

A broker flushes log, wheel and timercheck in this order, and the checks read them in the reverse
order. So no file is read before a file that refers to it, even while a broker is running.

A unit that points to no intact message is wrong, unless the consume queue of the timer topic has
the same entry. In that case, the message is damaged or missing.

spec: timer-and-others-5x.md §1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rmqctl import vfs
from rmqctl.checks.delays import timer_ahead
from rmqctl.checks.findings import INFO, WARNING, Finding
from rmqctl.checks.verify.common import LOOK, bounded, nowhere, plural, read_start, unreadable
from rmqctl.checks.verify.files import Votes
from rmqctl.checks.verify.timer.units import TimerLog, UnitPage, slot_time
from rmqctl.checks.verify.timer.wheel import Wheel, WheelChains
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import javahash
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.formats.local.properties import NO_TOPIC, REAL_TOPIC, TIMER_OUT_MS, TIMER_TOPIC
from rmqctl.formats.timer import timer_check, timer_log
from rmqctl.formats.timer.timer_check import TIMER_CHECK, TimerCheckRecord
from rmqctl.scan import text
from rmqctl.scan.frames import Array, Batch, gather
from rmqctl.store.files import listing
from rmqctl.store.log.commit_log import ProofWindow, records_at
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store

_MAGICS = timer_log.MAGIC_DEFAULT | timer_log.MAGIC_ROLL | timer_log.MAGIC_DELETE
BEYOND_END, FLUSHED_BEYOND_END = "beyond-end", "flushed-beyond-end"
LATER_THAN_LOG = "later-than-log"
"""Causes of findings. ``BEYOND_END``: a position is beyond the end of the structure that it refers
to. ``FLUSHED_BEYOND_END``: the flush position of the timer log is beyond the end of the timer log.
``LATER_THAN_LOG``: messages count as delivered that were due after the end of the log.
"""
_FLUSHED = "last_timer_log_flush_pos"
_YEAR_3000 = 32_503_680_000_000
_NEVER = -1
_LONG_MAX = (1 << 63) - 1
_TOPIC = TIMER_TOPIC.encode()
_ANYWHERE = 1 << 62
_MAX_SINGLE = 1000
"""Maximum number of units without a matching message for which the record in the log is examined.

All further units are reported as pointing to no message.
"""
_MAX_AHEAD = 1 << 20
"""Maximum number of consume queue entries that are searched for the messages of a page of units."""


def check(store: Store, log_end: int | None = None, *, live: bool | None = None,
          in_damage: Callable[[int], bool] | None = None) -> Iterator[Finding]:
    """Yield the findings for the timer.

    ``log_end``: the physical offset after the commitlog's last record.
    ``in_damage``: whether a physical offset is in a damaged part of the log.
    """
    held = store.lock.held if live is None else live
    records = TimerRecords(store, store.log.end if log_end is None else log_end, in_damage)
    yield from bounded(_check(store, records, held))


def _check(store: Store, records: TimerRecords, held: bool) -> Iterator[Finding]:
    # The progress of the timer, its wheel, and its log.
    progress: list[TimerCheckRecord] = []
    yield from _timercheck(store, progress)
    wheel: Wheel | None = Wheel(store.path("timerwheel"))
    files = listing(store.path("timerlog")).files
    votes = Votes()
    votes.add(files)
    size = votes.size() or 0
    # The check of files reports names that no broker uses; no place follows from them.
    log = TimerLog([file for file in files if size and file.base % size == 0
                    and file.base + size <= _LONG_MAX], size)
    assert wheel is not None
    # Compare the wheel with the log, then the units with the messages.
    if vfs.lexists(wheel.path):
        try:
            yield from wheel.read(log)
        except StoreIOError as error:
            yield unreadable("timer", wheel.path, error)
            wheel = None
    if log.file_size:
        if wheel is not None:
            log.precision = wheel.precision(log)
        flushed = progress[0].last_timer_log_flush_pos if progress else 0
        yield from _units(log, records, wheel, flushed, held)
    elif wheel is not None and wheel.used:
        yield Finding("timer-log", "timer", "the timer log is missing, but "
                      f"{plural(wheel.used, 'slot')} of the wheel point to it",
                      file=store.path("timerlog"))
    yield from _progress(store, log, progress)
    if progress and not held:
        yield from _delivered(store, records.log_end)


# -- timercheck ------------------------------------------------------------------------------


def _timercheck(store: Store, records: list[TimerCheckRecord]) -> Iterator[Finding]:
    """Check the content of timercheck, and add its record to ``records``."""
    # The file, in its full length.
    path = store.path("config", "timercheck")
    if not vfs.lexists(path):
        return
    try:
        data, size = read_start(path, timer_check.PAGE_SIZE << 4)
    except StoreIOError as error:
        yield unreadable("timer", path, error)
        return

    def tell(detail: str, offset: int, length: int) -> Finding:
        return Finding("timer-check", "timer", detail, file=path, offset=offset, length=length,
                       next=LOOK)

    # Its fields, each by itself.
    try:
        record = timer_check.parse(data)
    except FormatError as error:
        yield tell(f"has {size} bytes: {error.path} {error.reason}", size,
                   timer_check.PROGRESS_SIZE - size)
        return
    if size not in (timer_check.PAGE_SIZE, TIMER_CHECK.size):  # other implementations: no page
        yield tell(f"has {size} bytes, but a broker writes {timer_check.PAGE_SIZE}",
                   min(size, timer_check.PAGE_SIZE), abs(size - timer_check.PAGE_SIZE))
    if not timer_check.rest_is_zero(data):
        rest = data[TIMER_CHECK.size:].rstrip(b"\0")
        first = len(rest) - len(rest.lstrip(b"\0"))
        yield tell("non-zero bytes after the fields, where a broker writes zeros",
                   TIMER_CHECK.size + first, len(rest) - first)
    for name, value in record._asdict().items():
        most = _YEAR_3000 if name in ("last_read_time_ms", "timestamp") else 1 << 62
        if not _NEVER <= value < most:
            place = TIMER_CHECK.field(name)
            yield tell(f"{name}: {value} is invalid", place.offset, place.size)
    records.append(record)


def _progress(store: Store, log: TimerLog, records: list[TimerCheckRecord]) -> Iterator[Finding]:
    """Compare timercheck with the store (after the log has been read)."""
    path = store.path("config", "timercheck")
    if not records:
        if log.end > log.start and not vfs.lexists(path):
            yield Finding("timer-check", "timer", "missing, but the timer log has units: a "
                          "broker reads all of it again", file=path, severity=WARNING)
        return
    limits = {_FLUSHED: (log.end, "the timer log ends")}
    queue = store.queues.find_readable(TIMER_TOPIC, 0)
    if queue is not None:
        try:
            limits["last_timer_queue_offset"] = queue.disk_end, f"the queue of {TIMER_TOPIC} ends"
        except StoreIOError as error:
            yield unreadable("consumequeue", queue.folder, error)
    for name, (end, words) in limits.items():
        value: int = getattr(records[0], name)
        if end < value < 1 << 62:
            place = TIMER_CHECK.field(name)
            yield Finding("timer-check", "timer", f"{name} {value}: {words} at {end}", file=path,
                          offset=place.offset, length=place.size, next=LOOK,
                          cause=FLUSHED_BEYOND_END if name == _FLUSHED else BEYOND_END)


def _delivered(store: Store, log_end: int) -> Iterator[Finding]:
    """Compare the time up to which messages count as delivered with the log."""
    ahead = timer_ahead(store, log_end)
    if ahead.messages:
        place = TIMER_CHECK.field("last_read_time_ms")
        yield Finding("timer-check", "timer", "last_read_time_ms is later than the log: "
                      f"{plural(ahead.messages, 'message')} due since then were not delivered",
                      file=store.path("config", "timercheck"), offset=place.offset,
                      length=place.size, next="rmqctl recover STORE",
                      cause=LATER_THAN_LOG, count=ahead.messages)


# -- units -----------------------------------------------------------------------------------


def _units(log: TimerLog, records: TimerRecords, wheel: Wheel | None, flushed: int,
           held: bool) -> Iterator[Finding]:
    has_wheel = wheel is not None and vfs.lexists(wheel.path)
    chains = WheelChains(log, wheel if has_wheel else None, flushed)
    for page in log.pages():
        if isinstance(page, Finding):
            yield page
            continue
        good = page.used.copy()
        if held:  # the units after it are being written
            good &= page.position < flushed
        asked = good.copy()
        for name, words, mask in _wrong(log, page):
            wrong = np.flatnonzero(mask & good)
            good[wrong] = False
            yield from _tell(page, wrong, name, words)
        size = page.units["message_size"].astype(np.int64)
        beyond = np.flatnonzero(good & (page.units["physical_offset"].astype(np.int64)
                                        > records.log_end - size))
        good[beyond] = False
        yield from _tell(page, beyond, "physical_offset", "points beyond the end of the commitlog "
                         f"({records.log_end})", BEYOND_END)
        for row, name, words in records.check(page.units, np.flatnonzero(good), log.precision):
            good[row] = False
            yield from _tell(page, np.array([row]), name, words)
        log.forget(page.position[asked & ~good])
        chains.take(page, np.flatnonzero(good))
    yield from records.left_over()
    if wheel is not None and not has_wheel and log.end > log.start:
        # Some backups skip this sparse file on purpose: a broker can rebuild it.
        yield Finding("timer-wheel", "timer", "missing, but the timer log has units: a broker "
                      "rebuilds it", file=wheel.path, severity=INFO)
    yield from chains.judge()


def _wrong(log: TimerLog, page: UnitPage) -> list[tuple[str, str, Array]]:
    """Return the possible faults of units in the order in which they are reported.

    A fault is a field, a description, and a boolean array: whether each unit has the fault.
    """
    units = page.units
    previous, magic = units["prev_pos"].astype(np.int64), units["magic"]
    physical = units["physical_offset"].astype(np.int64)
    back = (previous >= 0) & (previous < page.position) & log.is_place(previous)
    size = units["message_size"].astype(np.int64)
    return [
        ("size", "is not the size of a unit", units["size"] != timer_log.UNIT_SIZE),
        ("magic", "is not a timer magic", (magic & ~_MAGICS != 0)
         | (magic & timer_log.MAGIC_DEFAULT == 0)),
        ("prev_pos", "does not point to an earlier unit", (previous != _NEVER) & ~back),
        ("curr_write_time", "is not a valid time", (units["curr_write_time"] <= 0)
         | (units["curr_write_time"] >= _YEAR_3000)),
        ("delay_time", "results in an invalid time", slot_time(units) <= 0),
        ("message_size", "is not a valid message size", size < MIN_SIZE),
        ("physical_offset", "is not a valid physical offset", physical < 0),
    ]


def _tell(page: UnitPage, rows: Array, name: str, words: str,
          cause: str = "") -> Iterator[Finding]:
    place = timer_log.UNIT.field(name)
    for row in rows.tolist():
        position = int(page.position[row]) - page.file.base
        yield Finding("timer-log", "timer", f"{name} of the unit at {int(page.position[row])}: "
                      f"{int(page.units[row][name])} {words}", file=page.file.path,
                      offset=position + place.offset, length=place.size, next=LOOK,
                      cause=cause or name)


Wrong = tuple[int, str, str]
"""A fault of a unit: index of the unit, field, description."""


class TimerRecords:
    """Lookup of the messages that units point to, one page of units at a time."""

    def __init__(self, store: Store, log_end: int,
                 in_damage: Callable[[int], bool] | None = None) -> None:
        self._store = store
        self._in_damage = in_damage or nowhere
        self.log_end = min(log_end, _ANYWHERE) if store.log.files else _ANYWHERE
        self._lost: list[int] = []
        self._lost_count = 0
        self._asked = 0

    def check(self, units: Array, rows: Array, precision: int) -> Iterator[Wrong]:
        """Yield the faults of the units with the indices ``rows``. Units of expired messages are
        skipped.
        """
        log = self._store.log
        if not log.files:
            return
        rows = rows[units["physical_offset"][rows] >= log.min_offset]
        offsets, of_row = np.unique(units["physical_offset"][rows].astype(np.int64),
                                    return_inverse=True)
        # Several units may point to one message (a recovery enqueues again): one size is enough.
        size: Array = np.zeros(len(offsets), np.int64)
        size[of_row] = units["message_size"][rows]
        order = np.argsort(of_row, kind="stable")
        start = np.searchsorted(of_row[order], np.arange(len(offsets) + 1))
        for window in records_at(log, offsets, size):
            first = int(window.rows[0])
            units_here = order[start[first]:start[int(window.rows[-1]) + 1]]
            window_row = of_row[units_here] - first
            resolved = window.is_proved[window_row]
            if window.batch is not None and resolved.any():
                record = (np.cumsum(window.is_proved) - 1)[window_row[resolved]]
                yield from self._compare(units, rows[units_here[resolved]], record, window.batch,
                                         precision)
            if not resolved.all():
                yield from self._missing(units, rows[units_here[~resolved]], window)

    # -- a message is there -------------------------------------------------------------------

    def _compare(self, units: Array, rows: Array, number: Array, batch: Batch,
                 precision: int) -> Iterator[Wrong]:
        """Compare units with records in a batch. ``rows``: indices of the units. ``number``:
        indices of their records.
        """
        timer, size = _is_timer(batch)[number], batch.column("total_size")[number]
        fits = timer & (size == units["message_size"][rows])
        if not fits.all():
            odd = np.flatnonzero(~fits)
            queued = self._queued(units, rows[odd])
            self._lose(units, rows[odd[queued]])
            for row in odd[~queued].tolist():
                yield int(rows[row]), *_unfit(bool(timer[row]), int(size[row]))
        properties = text.PropertySegments(batch)
        topic_row, topics = properties.find(REAL_TOPIC)
        hashes: Array = np.zeros(len(batch), np.int64)
        hashes[topic_row] = text.hashes(topics.data, topics.start, topics.length)[0]
        rows, number = rows[fits], number[fits]
        gone = hashes[number] == javahash.string_hash(NO_TOPIC)
        if gone.any():  # a filler for the lost message
            self._lose(units, rows[gone])
            rows, number = rows[~gone], number[~gone]
        other = hashes[number] != units["topic_hash"][rows]
        for row in np.flatnonzero(other).tolist():
            yield int(rows[row]), "topic_hash", (
                f"is not the hash of the message's real topic ({int(hashes[number[row]])})")
        # A unit that was rolled is in an earlier slot than that of its time.
        direct = ~other & (units["magic"][rows] & timer_log.MAGIC_ROLL == 0)
        due = _due(properties, len(batch))[number]
        slot = units["curr_write_time"][rows].astype(np.int64) + units["delay_time"][rows]
        late = direct & (due >= 0) & (slot // precision != due // precision)
        for row in np.flatnonzero(late).tolist():
            yield int(rows[row]), "delay_time", (
                f"results in slot {int(slot[row])}, but the message is due at {int(due[row])}")

    # -- no message is there --------------------------------------------------------------------

    def _missing(self, units: Array, rows: Array, window: ProofWindow) -> Iterator[Wrong]:
        queued = (self._queued(units, rows) if window.batch is not None
                  else np.ones(len(rows), bool))
        self._lose(units, rows[queued])
        for row in rows[~queued].tolist():
            if self._in_damage(int(units[row]["physical_offset"])):
                self._lose(units, np.array([row]))
                continue
            self._asked += 1
            record = self._store.log.record_at(
                int(units[row]["physical_offset"])) if self._asked <= _MAX_SINGLE else None
            if record is None:
                yield row, "physical_offset", "does not point to a message"
            else:
                yield row, *_unfit(record.topic == _TOPIC, record.total_size)

    def _lose(self, units: Array, rows: Array) -> None:
        self._lost_count += len(rows)
        self._lost += units["physical_offset"][rows[:5]].tolist()[:5 - len(self._lost)]

    def _queued(self, units: Array, rows: Array) -> Array:
        """Return a boolean array: whether the timer topic's consume queue confirms each unit.

        The queue must have an entry with the unit's message offset and size.
        """
        queue = self._store.queues.find_readable(TIMER_TOPIC, 0)
        out: Array = np.zeros(len(rows), bool)
        if queue is None or not len(rows):
            return out
        wanted = units["physical_offset"][rows].astype(np.int64)
        try:
            first = _bisect(queue, int(wanted.min()))
            for _, page in queue.pages(first, min(first + _MAX_AHEAD, queue.disk_end)):
                order = np.argsort(page["physical_offset"], kind="stable")
                physical = page["physical_offset"][order].astype(np.int64)
                row = np.minimum(np.searchsorted(physical, wanted), len(physical) - 1)
                out |= (physical[row] == wanted) & (
                    page["size"][order][row] == units["message_size"][rows])
                if int(physical[-1]) >= int(wanted.max()):
                    break
        except StoreIOError:
            pass
        return out

    def left_over(self) -> Iterator[Finding]:
        """Yield one informational finding on units whose message is damaged or missing in the
        commitlog.
        """
        if self._lost_count:
            places = ", ".join(map(str, self._lost)) + (
                ", …" if self._lost_count > len(self._lost) else "")
            yield Finding("timer-log", "timer", "units point to damaged or missing messages: "
                          f"physical offset {places}", file=self._store.path("timerlog"),
                          count=self._lost_count, severity=INFO)


def _unfit(is_timer: bool, size: int) -> tuple[str, str]:
    if not is_timer:
        return "physical_offset", f"points to a message of another topic than {TIMER_TOPIC}"
    return "message_size", f"is not the message's size ({size})"


def _is_timer(batch: Batch) -> Array:
    """Return a boolean array: whether each record belongs to the timer topic."""
    out: Array = np.zeros(len(batch), bool)
    same = np.flatnonzero(batch.column("topic_length") == len(_TOPIC))
    start = batch.column("topic_start")[same]
    out[same] = gather(batch.data, start, len(_TOPIC)) == np.void(_TOPIC)
    return out


def _due(properties: text.PropertySegments, count: int) -> Array:
    """Return the delivery time of each message (ms); -1 if the message has none."""
    out: Array = np.full(count, -1, np.int64)
    rows, times = properties.find(TIMER_OUT_MS)
    for row, raw in zip(rows.tolist(), times.tolist(), strict=True):
        if raw.isdigit() and len(raw) < 18:
            out[row] = int(raw)
    return out


def _bisect(queue: ConsumeQueue, physical: int) -> int:
    """Return the queue offset of the first entry that points to ``physical`` or later.

    If the entries are not sorted, the result may be any queue offset.
    """
    low, high = queue.first_index, queue.disk_end
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is not None and unit.physical_offset >= physical:
            high = middle
        else:
            low = middle + 1
    return low
