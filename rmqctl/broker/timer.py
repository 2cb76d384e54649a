"""Predict which pending timed messages a 5.x broker finds at startup, and build timer wheels.

spec: timer-and-others-5x.md §1.2, §1.3, §1.5. A broker reads the wheel slot by slot, from the time
at which the broker stopped. From each slot, the broker follows the units in the timer log to
messages in the commitlog. A message whose unit is not reached is never delivered.

At startup, the broker also enqueues messages of the timer topic again, from the queue offset at
which the broker continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rmqctl import vfs
from rmqctl.errors import StoreIOError
from rmqctl.formats.local.message import MAGIC_BLANK
from rmqctl.formats.local.properties import TIMER_TOPIC
from rmqctl.formats.timer.timer_check import TimerCheckRecord
from rmqctl.formats.timer.timer_log import MAGIC_BITS, MAGIC_DELETE, UNIT, UNIT_SIZE
from rmqctl.formats.timer.timer_wheel import (
    DAYS,
    DEFAULT_PRECISION,
    FILE_SIZE,
    SLOT,
    SLOT_SIZE,
    SLOTS,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, distinct
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import TIMERCHECK, load_one
from rmqctl.store.files import StoreFile, common_size, listing
from rmqctl.store.log.commit_log import records_at
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store

WHEEL, LOG = "timerwheel", "timerlog"
KEPT_SLOTS = DAYS * 86_400 - 60
"""Number of slots of the wheel that a broker reads before the slot of its startup time; messages in
earlier slots are skipped.
"""
_NONE = -1
_PAGE = 1 << 14
_PAGE_SLOTS = 1 << 15
_ANYWHERE = 1 << 62
_SINGLE = 1000
"""Maximum number of messages that are read one by one from the log."""
_LONG_MAX = (1 << 63) - 1
_COLUMNS = ("position", "slot", "previous", "physical", "size", "step")


class TimerUnits(NamedTuple):
    """Units of the timer log by column.

    ``position``: position in the timer log.
    ``slot``: slot (time / precision).
    ``previous``: position of the slot's previous unit.
    ``physical``, ``size``: physical offset and size of the message.
    ``step``: change of the slot's message count.
    """

    position: Array
    slot: Array
    previous: Array
    physical: Array
    size: Array
    step: Array

    def __len__(self) -> int:
        return len(self.position)

    def only(self, mask: Array) -> TimerUnits:
        return TimerUnits(*(column[mask] for column in self))


@dataclass(slots=True)
class Slots:
    """The slots of the wheel by column. The message counts of the slots are not included, because a
    broker does not rebuild them.
    """

    time: Array = field(default_factory=lambda: np.zeros(SLOTS, np.int64))
    first: Array = field(default_factory=lambda: np.zeros(SLOTS, np.int64))
    last: Array = field(default_factory=lambda: np.zeros(SLOTS, np.int64))

    def revise(self, units: TimerUnits) -> None:
        """Make the slots point to these units, in order, as ``TimerWheel.reviseSlot`` does."""
        if not len(units):
            return
        first, last = _runs(units)
        number, slot = units.slot[last] % SLOTS, units.slot[last]
        goes_on = (self.time[number] == slot) & ~_laps(units, first)
        self.first[number] = np.where(goes_on, self.first[number], units.position[first])
        self.time[number], self.last[number] = slot, units.position[last]


@dataclass(frozen=True, slots=True)
class TimerStart:
    """The effect of a startup on the pending timed messages, as numbers of messages.

    These messages are never delivered:

    ``skipped``: overdue by more than 7 days.
    ``unreachable``: the broker finds them in no slot.
    ``gone``: not in the commitlog.

    Other fields:

    ``waiting``: messages that are not in the timer log yet. The broker enqueues these after the
    startup.
    ``next_row``: queue offset of the first of these messages.
    ``read_from``: time (ms) of the first slot of the wheel that the broker reads.
    """

    pending: int
    skipped: int
    unreachable: int
    gone: int
    waiting: int
    next_row: int
    read_from: int
    checked: TimerCheckRecord
    wheel_missing: bool


class Outlook(NamedTuple):
    """The effect of a startup on each pending unit.

    ``skipped``, ``unreachable``, ``gone``: boolean arrays parallel to ``units``. At most one is
    true for a unit.
    ``row``: ``next_row`` of `TimerStart`.
    ``waiting``, ``read_from``, ``wheel_missing``: as in `TimerStart`.
    """

    units: TimerUnits
    skipped: Array
    unreachable: Array
    gone: Array
    row: int
    waiting: int
    read_from: int
    wheel_missing: bool


@dataclass(slots=True)
class TimerFiles:
    """The timer files of a store, as a broker loads them."""

    store: Store
    files: list[StoreFile]
    file_size: int
    precision: int
    checked: TimerCheckRecord
    odd: list[str] = field(default_factory=list)
    """Paths of files in the timer log's folder whose names are not positions in the log."""

    @classmethod
    def of(cls, store: Store) -> TimerFiles:
        conf = store.sizes.conf
        folder = listing(store.path(LOG))
        files = [file for file in folder.files if file.end <= _LONG_MAX]
        check = load_one(store, TIMERCHECK).main.value
        size = conf.runtime.get("mappedFileSizeTimerLog") or common_size(files) or 0
        files = [file for file in files if size and file.base % size == 0]
        return cls(store, files, size, conf.values.get("timer_precision") or DEFAULT_PRECISION,
                   check if isinstance(check, TimerCheckRecord) else TimerCheckRecord(0, 0, 0, 0),
                   [*(file.path for file in folder.files if file not in files),
                    *(trouble.path for trouble in folder.troubles if vfs.isfile(trouble.path))])

    @property
    def in_use(self) -> bool:
        """Return whether any timed message was ever enqueued."""
        return any(file.size for file in self.files) or self.checked.last_timer_queue_offset > 0

    @property
    def damaged(self) -> bool:
        """Return whether units of the timer log are missing: a file is missing or has the wrong
        size.
        """
        wheel = self.store.path(WHEEL)
        short = any(path != wheel for path, _, _ in self.wrong_sizes(empty_last=True))
        gap = any(file.base + self.file_size != after.base for file, after in pairwise(self.files))
        if self.odd or short or gap:
            return True
        return self.checked.last_timer_queue_offset > 0 and next(self.pages(), None) is None

    def wrong_sizes(self, *, empty_last: bool) -> Iterator[tuple[str, int, int]]:
        """Yield the path, size and expected size of each file whose size keeps a broker from
        starting.

        ``empty_last``: whether the broker deletes an empty last file and starts.
        """
        wheel = self.store.path(WHEEL)
        if vfs.isfile(wheel) and (size := vfs.getsize(wheel)) not in (0, FILE_SIZE):
            yield wheel, size, FILE_SIZE
        for file in self.files:
            if file.size != self.file_size and not (
                    empty_last and not file.size and file is self.files[-1]):
                yield file.path, file.size, self.file_size

    # -- reading ------------------------------------------------------------------------------

    def wheel(self) -> Slots | None:
        """Return the wheel; None if its file is missing or has the wrong size."""
        path = self.store.path(WHEEL)
        try:
            with FileSource(path) as source:
                if source.size != FILE_SIZE:
                    return None
                slots, place = Slots(), 0
                while place < SLOTS:
                    place = min(source.next_data(place * SLOT_SIZE) // SLOT_SIZE, SLOTS)
                    if place >= SLOTS:
                        break
                    count = min(_PAGE_SLOTS, SLOTS - place)
                    page = SLOT.array(source.read(place * SLOT_SIZE, count * SLOT_SIZE))
                    part = slice(place, place + len(page))
                    slots.time[part], slots.first[part] = page["time"], page["first_pos"]
                    slots.last[part] = page["last_pos"]
                    place += len(page)
                return slots
        except StoreIOError:
            return None

    def pages(self, first_file: int = 0) -> Iterator[tuple[int, TimerUnits]]:
        """Yield all units that a broker accepts, in pages, as (index of the file, units)."""
        for number, file in enumerate(self.files[first_file:], first_file):
            with FileSource(file.path) as source:
                place = 0
                while (data_at := source.next_data(place)) < source.size:
                    place = max(place, data_at - data_at % UNIT_SIZE)  # a hole contains no units
                    data = source.read(place, min(_PAGE * UNIT_SIZE, source.size - place))
                    units, ended = self._units(data, file.base + place)
                    place += _PAGE * UNIT_SIZE
                    if len(units):
                        yield number, units
                    if ended:
                        break

    def _units(self, data: bytes, base: int) -> tuple[TimerUnits, bool]:
        raw = UNIT.array(data[:len(data) - len(data) % UNIT_SIZE])
        ends = np.flatnonzero(raw["magic"].astype(np.uint32) == MAGIC_BLANK)
        raw = raw[:int(ends[0])] if len(ends) else raw
        magic = raw["magic"]
        position = base + np.arange(len(raw), dtype=np.int64) * UNIT_SIZE
        time = raw["curr_write_time"].astype(np.int64) + raw["delay_time"]
        units = TimerUnits(
            position, time // self.precision, raw["prev_pos"].astype(np.int64),
            raw["physical_offset"].astype(np.int64), raw["message_size"].astype(np.int64),
            np.where(magic & MAGIC_DELETE, -1, 1))
        sound = (raw["size"] == UNIT_SIZE) & (magic & ~MAGIC_BITS == 0)
        return units.only(sound), bool(len(ends))

    def units(self, since: int) -> TimerUnits:
        """Return the units of slots from ``since`` on."""
        parts = [units.only(units.slot >= since) for _, units in self.pages()]
        if not parts:
            return TimerUnits(*(np.zeros(0, np.int64) for _ in _COLUMNS))
        return TimerUnits(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    # -- what a start does --------------------------------------------------------------------

    @property
    def first_revised(self) -> int:
        """Return the index of the first timer log file that a startup reads to revise the wheel."""
        if not self.files:
            return 0
        begin = max(self.checked.last_timer_log_flush_pos - self.file_size, 0)
        return max((number for number, file in enumerate(self.files) if file.base <= begin),
                   default=0)

    def start(self, now: int, log_min: int, log_end: int) -> TimerStart:
        """Return the pending messages that a broker finds if it starts at ``now`` (ms) with a
        commitlog from ``log_min`` to ``log_end``.

        Raises: StoreIOError.
        """
        seen = self.outlook(now, log_min, log_end)
        return TimerStart(len(seen.units), int(seen.skipped.sum()), int(seen.unreachable.sum()),
                          int(seen.gone.sum()), seen.waiting, seen.row, seen.read_from,
                          self.checked, seen.wheel_missing)

    def outlook(self, now: int, log_min: int, log_end: int) -> Outlook:
        """Like `start`, but return the effect of a startup on each unit.

        Raises: StoreIOError.
        """
        last_read = self.checked.last_read_time_ms
        since = min(last_read // self.precision, now // self.precision - KEPT_SLOTS)
        units = self.units(since)
        wheel = self.wheel()
        read_from = max(last_read // self.precision, now // self.precision - KEPT_SLOTS)
        slots = wheel or Slots()
        end = self._recover(slots, units, read_from)
        row, again, waiting = self._enqueued_again(end, log_end)
        pending = units.only((units.slot >= last_read // self.precision)
                             & (units.physical < again))
        led_to = _reached(units, slots, last_read // self.precision, end)[np.searchsorted(
            units.position, pending.position)]
        gone = (pending.physical < log_min) | (pending.physical + pending.size > log_end)
        gone[~gone] = ~self._intact(pending.only(~gone))
        return Outlook(pending, ~gone & led_to & (pending.slot < read_from), ~gone & ~led_to, gone,
                       row, waiting, read_from * self.precision, wheel is None)

    def _intact(self, units: TimerUnits) -> Array:
        """Return, for each unit, whether its record in the commitlog is intact."""
        offset, of_unit = np.unique(units.physical, return_inverse=True)
        size: Array = np.zeros(len(offset), np.int64)
        np.maximum.at(size, of_unit, np.maximum(units.size, 0))
        is_intact: Array = np.zeros(len(offset), bool)
        for window in records_at(self.store.log, offset, size):
            is_intact[window.rows] = window.is_proved
        read = self.store.log.record_at
        # Larger records are not found that way.
        for place in np.flatnonzero(~is_intact)[:_SINGLE].tolist():
            is_intact[place] = read(int(offset[place]), int(size[place])) is not None
        intact: Array = is_intact[of_unit]
        return intact

    def _recover(self, slots: Slots, units: TimerUnits, read_from: int) -> int:
        """Revise the wheel as a startup does; return the position after the last accepted unit."""
        if not self.files:
            return 0
        file = self.first_revised
        end = self.files[file].base
        for number, page in self.pages(file):
            if number == file + 1:
                file, end = number, self.files[number].base
            # An invalid unit ends the timer log, and so does a missing file.
            sound = page.position == end + np.arange(len(page)) * UNIT_SIZE
            count = len(page) if sound.all() else int(np.argmin(sound))
            slots.revise(page.only(np.arange(len(page)) < count))
            end += count * UNIT_SIZE
            if count < len(page):
                break
        beyond = (slots.time >= read_from) & (slots.last > end)
        if beyond.any() and int(slots.first[beyond].min()) < end:
            slots.revise(units.only((units.position >= int(slots.first[beyond].min()))
                                    & (units.position < end)))
        return end

    def _enqueued_again(self, end: int, log_end: int) -> tuple[int, int, int]:
        """Return what the broker enqueues again:

        * queue offset at which the broker continues
        * physical offset of the message at that queue offset
        * number of messages from there
        """
        queue = self.store.queues.find_readable(TIMER_TOPIC, 0)
        if queue is None:
            return 0, _ANYWHERE, 0
        at = min(self._next_row(end, log_end, queue), self.checked.master_timer_queue_offset)
        at = max(at, queue.first_index)
        unit = queue.unit(at) if at < queue.disk_end else None
        return (at, _ANYWHERE, 0) if unit is None else (
            at, unit.physical_offset, queue.disk_end - at)

    def next_row(self, end: int, log_end: int) -> int:
        """Return the queue offset at which a broker continues if the timer log ends at ``end``."""
        queue = self.store.queues.find_readable(TIMER_TOPIC, 0)
        return 0 if queue is None else self._next_row(end, log_end, queue)

    def _next_row(self, end: int, log_end: int, queue: ConsumeQueue) -> int:
        """Return the queue offset after the message of the last unit. If the unit or its message is
        missing, return the queue offset in timercheck.
        """
        last = None
        for _, page in self.pages(max(len(self.files) - 2, 0)):
            kept = page.only(page.position < end)
            last = kept if len(kept) else last
        if last is None or int(last.position[-1]) + UNIT_SIZE != end:
            return self.checked.last_timer_queue_offset
        physical, size = int(last.physical[-1]), int(last.size[-1])
        if physical + size > log_end:
            return self.checked.last_timer_queue_offset
        record = self.store.log.record_at(physical, size)
        if record is None:
            return self.checked.last_timer_queue_offset
        row = min(record.queue_offset, queue.disk_end)
        for place in range(row, max(row - 20_000, -1), -1):
            unit = queue.unit(place)
            if unit is not None and unit.physical_offset == physical:
                return place + 1
        return record.queue_offset + 1


def _runs(units: TimerUnits) -> tuple[Array, Array]:
    """Return, for each slot of the wheel, the first and the last unit of its last run. A run
    consists of adjacent units of the slot with the same time.
    """
    number = units.slot % SLOTS
    order = np.lexsort((units.position, number))
    number, slot = number[order], units.slot[order]
    new = np.concatenate(([True], (number[1:] != number[:-1]) | (slot[1:] != slot[:-1])))
    start = np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
    last = np.flatnonzero(np.concatenate((number[1:] != number[:-1], [True])))
    return order[start[last]], order[last]


def _laps(units: TimerUnits, first: Array) -> Array:
    """Return, for each run, whether its slot has an earlier unit, which means that the slot was
    reused.

    ``first``: the first unit of each run.
    """
    number = units.slot % SLOTS
    earliest = np.full(SLOTS, _ANYWHERE, np.int64)
    np.minimum.at(earliest, number, units.position)
    laps: Array = earliest[number[first]] != units.position[first]
    return laps


def _reached(units: TimerUnits, slots: Slots, read_from: int, end: int) -> Array:
    """Return, for each unit, whether a broker reaches this unit if it starts reading the wheel at
    the time ``read_from``.
    """
    reached: Array = np.zeros(len(units), bool)
    if not len(units):
        return reached
    heads = slots.last[(slots.time >= read_from) & (slots.time < read_from + SLOTS)]
    while len(heads):
        heads = heads[(heads >= 0) & (heads < end)]
        place = np.minimum(np.searchsorted(units.position, heads), len(units) - 1)
        place = distinct(place[units.position[place] == heads])
        place = place[~reached[place]]
        reached[place] = True
        heads = units.previous[place]
    return reached


# -- the wheel, built from the timer log ----------------------------------------------------------


def rebuilt_wheel(files: TimerFiles, log_end: int | None = None) -> dict[int, bytes]:
    """Return the pages of a wheel (see `wheel_of`) for all units of the timer log.

    ``log_end``: omit the units after the last unit that points before this physical offset.

    Raises: StoreIOError.
    """
    units = files.units(0)
    if log_end is not None:
        inside = np.flatnonzero(units.physical < log_end)
        units = units.only(np.arange(len(units)) <= (inside[-1] if len(inside) else -1))
    return wheel_of(units)


def wheel_of(units: TimerUnits) -> dict[int, bytes]:
    """Return the non-empty pages of a wheel that points to all units: bytes by position in the
    file.
    """
    if not len(units):
        return {}
    first, last = _runs(units)
    number, time = units.slot[last] % SLOTS, units.slot[last]
    raw: Array = np.zeros(len(last), SLOT.array(b"").dtype)
    count: Array = np.zeros(SLOTS, np.int64)
    newest: Array = np.zeros(SLOTS, np.int64)
    newest[number] = time
    latest = newest[units.slot % SLOTS] == units.slot
    np.add.at(count, units.slot[latest] % SLOTS, units.step[latest])
    raw["time"], raw["first_pos"] = time, units.position[first]
    raw["last_pos"], raw["num"] = units.position[last], count[number]
    pieces: dict[int, bytearray] = {}
    order = np.argsort(number)
    for place, slot in zip(number[order].tolist(), raw[order], strict=True):
        page = place * SLOT_SIZE // 4096 * 4096
        data = pieces.setdefault(page, bytearray(4096))
        at = place * SLOT_SIZE - page
        data[at:at + SLOT_SIZE] = slot.tobytes()
    return {place: bytes(data) for place, data in pieces.items()}
