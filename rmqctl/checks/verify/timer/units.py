"""Reading of the timer log by column: the position and time of each unit, and whether it is used.

spec: timer-and-others-5x.md §1.3. Units are at multiples of 52 bytes in each file. Once the
remaining space is too small for another unit and the end mark, the end mark follows the last unit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import field

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import LOOK, pages, runs, used_units
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.timer import timer_log as layout
from rmqctl.formats.timer.timer_log import MAGIC_BITS, TAIL, UNIT, UNIT_SIZE, UnitRecord
from rmqctl.formats.timer.timer_wheel import DEFAULT_PRECISION
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile

_PAGE = 1 << 14
_LOW = 0xFFFFFFFF
_USED, _SOUND = 1, 2
_CACHE = 96 << 20
"""Maximum bytes of unit times in memory, for following chains: 8 MB for a file of default size."""


@dataclass(slots=True)
class UnitPage:
    """Adjacent units of a file, with their positions in the timer log.

    ``used``: whether each position was ever written.
    """

    file: StoreFile
    position: Array
    units: Array
    used: Array


@dataclass(slots=True)
class TimerLog:
    """The files of the timer log, in order. ``end`` and `times` are valid after `pages` has been
    iterated.
    """

    files: list[StoreFile]
    file_size: int
    precision: int = DEFAULT_PRECISION
    end: int = 0
    _times: OrderedDict[int, Array] = field(default_factory=OrderedDict)

    @property
    def start(self) -> int:
        return self.files[0].base if self.files else 0

    @property
    def units_per_file(self) -> int:
        """Return the number of unit positions in a file; the end mark must fit after them."""
        room = self.file_size - UNIT_SIZE - TAIL.size
        return room // UNIT_SIZE + 1 if room >= 0 else 0

    def is_place(self, position: Array) -> Array:
        """Return a boolean array: whether a unit can start at each position of the timer log (in
        any file, expired or not).
        """
        inside = position % self.file_size
        mask: Array = ((position >= 0) & (inside % UNIT_SIZE == 0)
                       & (inside // UNIT_SIZE < self.units_per_file))
        return mask

    # -- reading ------------------------------------------------------------------------------

    def pages(self) -> Iterator[UnitPage | Finding]:
        """Yield the pages of the timer log in order, and findings for unreadable files and for
        unused positions between used positions.
        """
        self.end = self.start
        last_used = self._last_used()
        for number, file in enumerate(self.files):
            try:
                with FileSource(file.path) as source:
                    count = min(self.units_per_file, source.size // UNIT_SIZE)
                    used: Array = np.zeros(count, np.uint8)
                    yield from self._file(source, file, number, used)
                    yield from self._gaps(file, used, number < last_used)
                    yield from self._tail(source, file, number < last_used)
            except StoreIOError as error:
                yield Finding("file-unreadable", "timer", str(error), file=file.path)

    def _last_used(self) -> int:
        """Return the index of the last file with data; -1 if no file has data."""
        for number in range(len(self.files) - 1, -1, -1):
            try:
                with FileSource(self.files[number].path) as source:
                    if any(source.read(0, UNIT_SIZE)):
                        return number
            except StoreIOError:
                continue
        return -1

    def _file(self, source: FileSource, file: StoreFile, number: int, used: Array) -> Iterator[
            UnitPage]:
        """Yield the pages of one file; record the times of units, and the state of each position in
        ``used``.
        """
        count = len(used)
        times: Array = np.zeros(count, np.uint32)
        self._times[number] = times
        while sum(times.nbytes for times in self._times.values()) > _CACHE and len(self._times) > 1:
            self._times.popitem(last=False)
        for first_unit, data in pages(source, UNIT_SIZE, _PAGE, count):
            units = layout.UNIT.array(data)
            part = slice(first_unit, first_unit + len(units))
            filled = used_units(data, UNIT_SIZE)
            sound = (units["size"] == UNIT_SIZE) & (units["magic"] & ~MAGIC_BITS == 0)
            used[part] = filled * _USED + sound * _SOUND
            times[part] = self.time_of(units)
            position = file.base + np.arange(first_unit, first_unit + len(units),
                                             dtype=np.int64) * UNIT_SIZE
            if filled.any():
                yield UnitPage(file, position, units, filled)

    def _gaps(self, file: StoreFile, used: Array, followed: bool) -> Iterator[Finding]:
        """Yield findings for positions that were never written although units follow them.

        The units follow in this file or, if ``followed``, in a later file. Garbage after zeros does
        not extend the log; a damaged unit after other units does.
        """
        sound = np.flatnonzero(used & _SOUND)
        behind = int(sound[-1]) + 1 if len(sound) else 0
        unused = np.flatnonzero(used == 0)
        later = unused[np.searchsorted(unused, behind):]
        end = int(later[0]) if len(later) else len(used)
        if end:
            self.end = file.base + end * UNIT_SIZE
        for first, count in runs(unused[unused < (len(used) if followed else behind)].tolist()):
            yield Finding("timer-log", "timer", "zeros instead of units, followed by more units",
                          file=file.path, offset=first * UNIT_SIZE, length=count * UNIT_SIZE,
                          count=count, next=LOOK)

    def _tail(self, source: FileSource, file: StoreFile, followed: bool) -> Iterator[Finding]:
        """Check the end mark of a file, which is required if another file follows."""
        places = self.units_per_file * UNIT_SIZE
        raw = source.read(places, TAIL.size)
        if len(raw) < TAIL.size or not (any(raw) or followed):
            return
        try:
            tail = layout.parse_tail(raw)
            rest = source.size - places
            if (tail.size, tail.prev_pos) != (rest, 0):
                raise FormatError(f"the end mark has size {tail.size}, but {rest} bytes are left",
                                  offset=0, path="size")
        except FormatError as error:
            yield Finding("timer-log", "timer", f"{error.path}: {error.reason}", file=file.path,
                          offset=places, length=TAIL.size, next=LOOK)
        self.end = file.base + self.file_size

    # -- looking back -------------------------------------------------------------------------

    def time_of(self, units: Array) -> Array:
        """Return the wheel slot time of each unit.

        This is the low 32 bits of the unit's time divided by the precision of the wheel.
        """
        times: Array = (slot_time(units) // self.precision & _LOW).astype(np.uint32)
        return times

    def times(self, position: Array) -> tuple[Array, Array]:
        """Return two arrays for positions of the timer log: which units are known, and their times.

        A time is the result of `time_of`. The units of the files read last are known, except units
        passed to `forget`.
        """
        is_known: Array = np.zeros(len(position), bool)
        out: Array = np.zeros(len(position), np.uint32)
        for number, times in self._times.items():
            index = (position - self.files[number].base) // UNIT_SIZE
            inside = (index >= 0) & (index < len(times)) & (
                position < self.files[number].base + self.file_size)
            out[inside] = times[index[inside]]
            is_known |= inside
        return is_known & (out != 0), out

    def forget(self, position: Array) -> None:
        """Forget the times of damaged units, which are all in one file."""
        if len(position):
            number = self._number(int(position[0]))
            self._times[number][(position - self.files[number].base) // UNIT_SIZE] = 0

    def _number(self, position: int) -> int:
        return bisect_right([file.base for file in self.files], position) - 1

    def file_of(self, position: int) -> StoreFile:
        """Return the file that contains the unit at ``position``; the unit must exist."""
        return self.files[self._number(position)]

    def unit(self, position: int) -> UnitRecord | None:
        """Read a single unit of the timer log; None if no valid unit is at ``position``."""
        number = self._number(position)
        if number < 0:
            return None
        file = self.files[number]
        try:
            with FileSource(file.path) as source:
                raw = source.read(position - file.base, UNIT_SIZE)
        except StoreIOError:
            return None
        unit = UNIT.decode(raw) if len(raw) == UNIT_SIZE else None
        return unit if unit is not None and unit.is_valid else None


def slot_time(units: Array) -> Array:
    """Return the time (ms) of each unit's wheel slot (int64, with overflow as in Java)."""
    times: Array = (units["curr_write_time"].astype(np.int64)
                    + units["delay_time"].astype(np.int64))
    return times
