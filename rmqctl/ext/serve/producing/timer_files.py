"""The files of the timer (wheel, log and progress), written as a 5.x broker writes them.

A broker can continue with these files. Each waiting message has a unit (an entry) in the timer log.
Each slot of the wheel points to the slot's newest unit.

The process may be killed at any time. A unit is written before the slot that points to it. Slots
that were not written are restored from the log. Spec: timer-and-others-5x.md §1.2 to §1.5.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.durable import make_folders
from rmqctl.formats.timer import timer_check, timer_log, timer_wheel
from rmqctl.formats.timer.timer_check import TimerCheckRecord
from rmqctl.formats.timer.timer_log import (
    MAGIC_BITS,
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    TAIL,
    UNIT,
    UNIT_SIZE,
    TailRecord,
    UnitRecord,
)
from rmqctl.formats.timer.timer_wheel import SLOT, SLOT_SIZE, SLOTS, SlotRecord
from rmqctl.parse_values import now_ms
from rmqctl.store.config.config import TIMERCHECK, load_one
from rmqctl.store.files import listing
from rmqctl.store.store import Store

_LOG_FILE = 104_857_600
_WINDOW = 172_800
"""Maximum number of slots for which a message waits before it is stored in the timer topic again: a
broker's timerRollWindowSlot.
"""
_LAP = SLOTS // 2
_BLANK_SLOTS = 60
_PAGE, _CHUNK = 1 << 14, 1 << 20


class OpenTimerFiles:
    """The open files of a timer, until `close`.

    ``read``: the time (ms) of the next slot to process. ``queue``: the queue offset of the first
    message in the timer topic that has no unit yet. ``end``: the end of the timer log.
    """

    def __init__(self, store: Store, precision: int) -> None:
        """Open the files.
        Raises: StoreIOError; RefusedError if a broker would not start with these files, or would
        truncate them.
        """
        self._root, self.precision = store.root, precision
        self._files: dict[int, int] = {}
        try:
            self._open(store)
        except OSError as error:
            raise StoreIOError.from_oserror(error, store.path("timerlog"), "open") from None

    def _open(self, store: Store) -> None:
        # Open the wheel, or create it.
        path = store.path("timerwheel")
        wheel = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            size = os.fstat(wheel).st_size
            if size not in (0, timer_wheel.FILE_SIZE):
                raise RefusedError(f"{path} has {size:,} bytes instead of "
                                   f"{timer_wheel.FILE_SIZE:,}: a broker does not start with it")
            os.ftruncate(wheel, timer_wheel.FILE_SIZE)  # if it is new
            self._wheel = mmap.mmap(wheel, timer_wheel.FILE_SIZE)
        finally:
            os.close(wheel)
        # Open the log files, all of one size.
        make_folders(store.path("timerlog"))
        make_folders(store.path("config"))
        files = listing(store.path("timerlog")).files
        self._size = files[0].size if files else _LOG_FILE
        for file in files:
            if file.size != self._size or self._size < UNIT_SIZE + TAIL.size:
                raise RefusedError(f"{file.path} has {file.size:,} bytes, an invalid size: run "
                                   "`rmqctl verify`")
            self._files[file.base] = os.open(file.path, os.O_RDWR)
        # Load the progress; slots older than one lap of the wheel are not read again.
        self._check_file = os.open(store.path("config", TIMERCHECK), os.O_RDWR | os.O_CREAT, 0o644)
        checkpoint = load_one(store, TIMERCHECK).main.value
        self._check = checkpoint if isinstance(checkpoint, TimerCheckRecord) else (
            TimerCheckRecord(0, 0, 0, 0))
        now = self.moment(now_ms())
        oldest = now - (_LAP - _BLANK_SLOTS) * self.precision
        self.read = max(self._check.last_read_time_ms, oldest) if size else now
        self.queue = self._check.last_timer_queue_offset
        self._recover()

    def moment(self, time: int) -> int:
        """Return the start (ms) of the slot that contains a time (ms)."""
        return time // self.precision * self.precision

    # -- after an end of any kind -------------------------------------------------------------

    def _recover(self) -> None:
        begin = max(self._check.last_timer_log_flush_pos - self._size, 0)
        self.end = self._walk(begin)
        slots = SLOT.array(memoryview(self._wheel))
        stale = np.flatnonzero((slots["last_pos"] > self._last) & (slots["time"] != 0))
        del slots  # or the wheel could not be closed
        for number in stale.tolist():  # the log was cut by a crash of the machine
            self._wheel[number * SLOT_SIZE:(number + 1) * SLOT_SIZE] = bytes(SLOT_SIZE)
        if len(stale):
            self._walk(0)

    def _walk(self, begin: int) -> int:
        """Point the slots of the wheel to the units in the log files. Return the end of the log.

        The first file read is the one that contains ``begin``. If a crash left bytes after the end
        of the log, they are kept, and the log continues in the next file.
        """
        self._last = -1
        bases = sorted(self._files)
        end = bases[0] if bases else 0
        bases = [base for number, base in enumerate(bases)
                 if number + 1 == len(bases) or bases[number + 1] > begin]
        for number, base in enumerate(bases):
            end, closed = self._walk_file(base)
            if not closed and number + 1 < len(bases):
                raise RefusedError(f"{self._path(base)} is damaged at byte {end - base:,}; a "
                                   "broker would truncate the timer log there: run `rmqctl verify`")
            if not closed and self._is_used(base, end - base):
                self._write(base, TAIL.build(TailRecord(base + self._size - end)), end - base)
                end = base + self._size
        return end

    def _is_used(self, base: int, place: int) -> bool:
        """Return whether a file contains nonzero bytes at or after a position."""
        return any(os.pread(self._files[base], min(_CHUNK, self._size - at), at).strip(b"\0")
                   for at in range(place, self._size, _CHUNK))

    def _walk_file(self, base: int) -> tuple[int, bool]:
        """Point slots to the units of one file. Return the end of these units, and whether the file
        is full.
        """
        places = self._places
        for first in range(0, places, _PAGE):
            units = UNIT.array(os.pread(self._files[base], min(_PAGE, places - first) * UNIT_SIZE,
                                        first * UNIT_SIZE))
            bad = np.flatnonzero((units["size"] != UNIT_SIZE) | (units["magic"] & ~MAGIC_BITS != 0))
            good = units[:int(bad[0])] if len(bad) else units
            self._lead(good, base + first * UNIT_SIZE)
            if len(good):
                self._last = base + (first + len(good) - 1) * UNIT_SIZE
            if len(bad):
                places = first + int(bad[0])
                break
        if timer_log.is_tail(os.pread(self._files[base], TAIL.size, places * UNIT_SIZE)):
            return base + self._size, True
        return base + places * UNIT_SIZE, False

    def _lead(self, units: np.ndarray[tuple[int], np.dtype[np.void]], start: int) -> None:
        """Make slots point to these units, except units that the wheel already contains."""
        times = (units["curr_write_time"].astype(np.int64) + units["delay_time"]) // self.precision
        slots = np.frombuffer(self._wheel, SLOT.dtype())[times % SLOTS]
        position = start + np.arange(len(units), dtype=np.int64) * UNIT_SIZE
        new = (position > slots["last_pos"]) | (slots["time"] == 0)
        for number in np.flatnonzero(new).tolist():
            self._point(int(times[number]), int(position[number]), int(units["magic"][number]))

    # -- slots --------------------------------------------------------------------------------

    def newest(self, moment: int) -> int:
        """Return the position of a slot's newest unit; -1 if the slot is empty."""
        at = timer_wheel.slot_of(moment, self.precision) * SLOT_SIZE
        slot = SLOT.decode(self._wheel[at:at + SLOT_SIZE])
        return slot.last_pos if slot.time == moment // self.precision else -1

    def _point(self, time: int, position: int, magic: int) -> None:
        at = time % SLOTS * SLOT_SIZE
        slot = SLOT.decode(self._wheel[at:at + SLOT_SIZE])
        if slot.time != time:
            slot = SlotRecord(time, position, position, 0, 0)
        self._wheel[at:at + SLOT_SIZE] = SLOT.build(slot._replace(
            last_pos=position, num=slot.num + (-1 if magic & MAGIC_DELETE else 1)))

    # -- units --------------------------------------------------------------------------------

    @property
    def last(self) -> UnitRecord | None:
        """The newest unit in the log, if any."""
        return self.unit(self._last)

    @property
    def _places(self) -> int:
        """Maximum number of units in a log file."""
        return (self._size - UNIT_SIZE - TAIL.size) // UNIT_SIZE + 1

    def unit(self, position: int) -> UnitRecord | None:
        """Return the unit at a position in the log; None if the position has no valid unit."""
        base = position // self._size * self._size
        if not 0 <= position < self.end or base not in self._files:
            return None
        data = os.pread(self._files[base], UNIT_SIZE, position - base)
        unit = UNIT.decode(data) if len(data) == UNIT_SIZE else None
        return unit if unit is not None and unit.is_valid else None

    def units(self, moment: int, position: int) -> Iterator[tuple[int, UnitRecord]]:
        """Yield a slot's units and their positions, starting with the unit at ``position``, the
        newest.
        """
        while position >= 0:
            unit = self.unit(position)
            if unit is None or self.moment(unit.slot_time) != moment:
                return
            yield position, unit
            if unit.prev_pos >= position:
                return
            position = unit.prev_pos

    def add(self, due: int, now: int, physical: int, size: int, topic_hash: int, *, deletes: bool
            ) -> None:
        """Add a unit for a message in the timer topic. Raises: StoreIOError.

        ``size``: bytes of the message's record. ``due``: when the message is due (ms). ``now``: the
        current slot, which also gets messages that are already due.
        """
        window = _WINDOW * self.precision
        magic, wait = MAGIC_DEFAULT | (MAGIC_DELETE if deletes else 0), max(due - now, 0)
        if wait >= window:
            magic |= MAGIC_ROLL
            wait = window // 2 if wait - window < window // 3 else window
        moment = self.moment(now + wait)
        base = self._room()
        at = self.end
        unit = UnitRecord(UNIT_SIZE, self.newest(moment), magic, now, wait, physical, size,
                          topic_hash)
        self._write(base, UNIT.build(unit), at - base)
        self._last, self.end = at, at + UNIT_SIZE
        self._point(moment // self.precision, at, magic)

    def _room(self) -> int:
        """Return the start of the file that has space for the next unit; create the file if it does
        not exist.
        """
        base = self.end // self._size * self._size
        room = base + self._size - self.end
        if base in self._files and room < UNIT_SIZE + TAIL.size:
            self._write(base, TAIL.build(TailRecord(room)), self.end - base)
            base = self.end = base + self._size
        if base not in self._files:
            try:
                file = os.open(self._path(base), os.O_RDWR | os.O_CREAT, 0o644)
                os.ftruncate(file, self._size)
            except OSError as error:
                raise StoreIOError.from_oserror(error, self._path(base), "make") from None
            self._files[base] = file
        return base

    def _write(self, base: int, data: bytes, place: int) -> None:
        try:
            os.pwrite(self._files[base], data, place)
        except OSError as error:
            raise StoreIOError.from_oserror(error, self._path(base), "write") from None

    def _path(self, base: int) -> str:
        return os.path.join(self._root, "timerlog", f"{base:020}")

    # -- progress -----------------------------------------------------------------------------

    def keep(self) -> None:
        """Write the progress to its file if it has changed. Raises: StoreIOError."""
        check = self._check._replace(
            last_read_time_ms=self.read, last_timer_log_flush_pos=self.end,
            last_timer_queue_offset=self.queue, master_timer_queue_offset=self.queue)
        if check != self._check:
            self._check = check._replace(timestamp=now_ms(), counter=check.counter + 1)
            try:
                os.pwrite(self._check_file, timer_check.build(self._check), 0)
            except OSError as error:
                raise StoreIOError.from_oserror(error, TIMERCHECK, "write") from None

    def close(self) -> None:
        """Flush all files to disk, and close them. Raises: StoreIOError."""
        try:
            for file in self._files.values():
                os.fsync(file)
            self._wheel.flush()
            self.keep()
            os.fsync(self._check_file)
        except OSError as error:
            raise StoreIOError.from_oserror(error, self._root, "write the timer of") from None
        finally:
            for file in (*self._files.values(), self._check_file):
                os.close(file)
            self._wheel.close()
