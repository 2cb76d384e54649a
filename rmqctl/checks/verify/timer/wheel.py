"""Checks of the timer wheel: each slot by itself, then compared with the units of the timer log.

Slots are only overwritten in a later round of the wheel, so a past slot whose units have expired is
legal. The slot of a time points to its newest unit, and each unit to the previous unit. If a slot
or a unit points to a unit with another time, only the one that nothing else confirms is reported.

spec: timer-and-others-5x.md §1.2, §1.3, §1.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import LOOK, pages, runs, used_units
from rmqctl.checks.verify.timer.units import TimerLog, UnitPage, slot_time
from rmqctl.formats.timer import timer_wheel as layout
from rmqctl.formats.timer.timer_log import UNIT
from rmqctl.formats.timer.timer_wheel import DEFAULT_PRECISION, FILE_SIZE, SLOT, SLOT_SIZE, SLOTS
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, distinct
from rmqctl.scan.source import FileSource

_PAGE = 1 << 15
_MAX_SAMPLED = 500
"""Maximum number of slots whose units are used to determine the precision of the wheel."""
_NONE = -1
_MAX_KEPT = 1 << 17
"""Maximum number of contradictions kept for the final check, as random bytes may cause many."""


@dataclass(slots=True)
class Wheel:
    """The slots by column.

    ``sound``: whether a slot is used and valid in itself.
    ``bad``: whether a fault of the slot was reported.
    """

    path: str
    time: Array = field(default_factory=lambda: np.zeros(SLOTS, np.int64))
    first: Array = field(default_factory=lambda: np.zeros(SLOTS, np.int64))
    last: Array = field(default_factory=lambda: np.zeros(SLOTS, np.int64))
    sound: Array = field(default_factory=lambda: np.zeros(SLOTS, bool))
    bad: Array = field(default_factory=lambda: np.zeros(SLOTS, bool))

    def read(self, log: TimerLog) -> Iterator[Finding]:
        """Read the file, and yield findings for slots that are invalid in themselves. Raises:
        StoreIOError.
        """
        with FileSource(self.path) as source:
            if source.size == 0:
                yield self._finding("file-empty", "empty file: a broker starts with an empty wheel",
                                    0, FILE_SIZE)
            elif source.size != FILE_SIZE:
                yield self._finding(
                    "file-size", f"has {source.size} bytes, expected {FILE_SIZE}: a broker does "
                    "not start with it", min(source.size, FILE_SIZE),
                    abs(source.size - FILE_SIZE))
            for first_slot, data in pages(source, SLOT_SIZE, _PAGE, SLOTS):
                yield from self._page(data, first_slot, log)

    def _page(self, data: bytes, first_slot: int, log: TimerLog) -> Iterator[Finding]:
        used = used_units(data, SLOT_SIZE)
        if not used.any():
            return
        slots = layout.SLOT.array(data)
        number = np.arange(first_slot, first_slot + len(slots), dtype=np.int64)
        time, first, last = (slots[name].astype(np.int64) for name in (
            "time", "first_pos", "last_pos"))
        places = (log.is_place(first) & log.is_place(last)) if log.file_size else used
        wrong = (
            ("magic", "the magic is not 0", slots["magic"] != 0),
            ("time", "the time belongs to another slot", (time <= 0) | (time % SLOTS != number)),
            ("first_pos", "the first unit is after the last", first > last),
            ("first_pos", "points to a position where no unit can start", ~places),
        )
        part = slice(first_slot, first_slot + len(slots))
        self.time[part], self.first[part], self.last[part] = time, first, last
        good = used.copy()
        for name, words, mask in wrong:
            bad_slots = mask & good
            good &= ~mask
            yield from self._slots(number[bad_slots], name, words)
        self.sound[part] = good
        self.bad[part] = used & ~good

    def _slots(self, numbers: Array, name: str, words: str) -> Iterator[Finding]:
        """Yield a finding for each run of adjacent slots."""
        place = SLOT.field(name)
        for first, count in runs(numbers.tolist()):
            yield self._finding(
                "timer-wheel", f"{name} of slot {first}" + (
                    f" to {first + count - 1}" if count > 1 else "")
                + f" (time {int(self.time[first])}): {words}",
                first * SLOT_SIZE + place.offset,
                place.size if count == 1 else count * SLOT_SIZE - place.offset, count)

    def _finding(self, category: str, detail: str, offset: int, length: int,
                 count: int = 1) -> Finding:
        return Finding(category, "timer", detail, file=self.path, offset=offset, length=length,
                       count=count, next=LOOK)

    @property
    def used(self) -> int:
        """Return the number of slots that were ever used."""
        return int(self.sound.sum() + self.bad.sum())

    def precision(self, log: TimerLog) -> int:
        """Return the duration of a slot in ms, as shown by the units that slots point to."""
        votes: Counter[int] = Counter()
        for number in np.flatnonzero(self.sound)[:_MAX_SAMPLED].tolist():
            unit = log.unit(int(self.last[number]))
            time = int(self.time[number])
            if unit is not None and unit.slot_time > 0 and unit.slot_time % time == 0:
                votes[unit.slot_time // time] += 1
        return votes.most_common(1)[0][0] if votes else DEFAULT_PRECISION

    # -- against the log ------------------------------------------------------------------------

    def ahead(self, log: TimerLog) -> Iterator[Finding]:
        """Yield findings for slots that point beyond the end of the timer log, which is known after
        `TimerLog.pages`.
        """
        used = np.flatnonzero(self.sound)
        ahead = used[self.last[used] >= log.end]
        yield from self.tell(ahead, "last_pos",
                             f"points beyond the end of the timer log ({log.end})")

    def mismatches(self, log: TimerLog) -> Iterator[tuple[str, Array, Array]]:
        """Yield three items for each of the fields last_pos and first_pos.

        The items are the field's name, the slots in which it points to a unit with another time,
        and the positions of these units. Units whose time is unknown are skipped
        (`TimerLog.times`).
        """
        for name, column in (("last_pos", self.last), ("first_pos", self.first)):
            sound_slots = np.flatnonzero(self.sound & ~self.bad)
            is_known, time = log.times(column[sound_slots])
            other = is_known & (time != self.time[sound_slots] & 0xFFFFFFFF)
            yield name, sound_slots[other], column[sound_slots[other]]

    def unconfirmed(self, position: Array, time: Array) -> Array:
        """Return a boolean array: True for each unit that the slot of its time does not confirm.

        The slot has a different time, or the unit is before the slot's first unit or after its last
        unit. ``time``: the units' times, counted in slots.
        """
        number = time % SLOTS
        mask: Array = ((self.time[number] != time) | (self.last[number] < position)
                       | (self.first[number] > position))
        return mask

    def lost(self, position: Array, time: Array) -> Array:
        """Return the slots that do not point to the newest of these units.

        A slot with a later time is legal: a later round of the wheel uses it. A slot whose first
        unit is not the oldest is legal, too: a recovery may have started the slot again (§1.5).
        """
        number = time % SLOTS
        bad = (self.time[number] < time) | (
            (self.time[number] == time) & (self.last[number] < position))
        slots: Array = number[bad]
        return slots

    def tell(self, numbers: Array, name: str, words: str) -> Iterator[Finding]:
        """Yield findings for slots that have not been reported yet."""
        numbers = distinct(numbers)
        numbers = numbers[~self.bad[numbers]]
        self.bad[numbers] = True
        yield from self._slots(numbers, name, words)


class WheelChains:
    """Comparison of units with the wheel's slots and with their previous units. Units are added
    page by page, and judged at the end.
    """

    def __init__(self, log: TimerLog, wheel: Wheel | None, flushed: int) -> None:
        self._log, self._wheel, self._flushed = log, wheel, flushed
        self._suspects: dict[int, int] = {}
        self._broken: list[tuple[int, int]] = []

    def take(self, page: UnitPage, rows: Array) -> None:
        """Add those units of a page whose indices are in ``rows``. They have no other fault."""
        units, position = page.units[rows], page.position[rows]
        previous = units["prev_pos"].astype(np.int64)
        is_known, time = self._log.times(previous)
        broken = (previous != _NONE) & is_known & (time != self._log.time_of(units))
        room = max(_MAX_KEPT - len(self._broken), 0)
        self._broken += zip(position[broken].tolist()[:room], previous[broken].tolist()[:room],
                            strict=True)
        if self._wheel is not None:
            # After the flushed position the wheel may be older than the log (§1.5).
            slot = slot_time(units) // self._log.precision
            unconfirmed = (position < self._flushed) & self._wheel.unconfirmed(position, slot)
            room = max(_MAX_KEPT - len(self._suspects), 0)
            self._suspects.update(zip(position[unconfirmed].tolist()[:room],
                                      slot[unconfirmed].tolist()[:room],
                                      strict=True))

    def judge(self) -> Iterator[Finding]:
        """Yield the findings for slots and chains of units, after the last page."""
        wheel, suspects = self._wheel, self._suspects
        if wheel is not None:
            yield from wheel.ahead(self._log)
        # A unit is at fault if a chain or a slot points to it, and its own time differs.
        wrong_slots = list(self._wrong_slots(wheel)) if wheel is not None else []
        asked = {before for _, before in self._broken}
        asked.update(unit_position for name, _, places in wrong_slots if name != "time"
                     for unit_position in places[:_MAX_KEPT].tolist())
        guilty = asked & suspects.keys()
        guilty |= {unit_position for unit_position, before in self._broken if before not in guilty
                   and unit_position in suspects}
        for unit_position in sorted(guilty):
            yield self._tell(unit_position, "delay_time",
                             f"its slot {suspects[unit_position] * self._log.precision} is not the "
                             "slot that points to this unit")
        # Other breaks are faults of the chain.
        for unit_position, before in self._broken:
            if unit_position not in guilty and before not in guilty:
                yield self._tell(unit_position, "prev_pos",
                                 f"the unit at {before} has a different time")
        if wheel is None:
            return
        # Slots of other units, and units that no slot points to.
        for name, slots, places in wrong_slots:
            free = ~np.isin(places, list(guilty))
            yield from wheel.tell(slots[free], name, "does not match the units of the slot"
                                  if name == "time" else "points to a unit with another time")
        left = [suspect for suspect in suspects.items() if suspect[0] not in guilty]
        position, time = (np.array(column, np.int64) for column in (zip(*left, strict=True)
                                                                    if left else ((), ())))
        yield from wheel.tell(wheel.lost(position, time), "last_pos",
                              "does not point to the newest unit of the slot: its message is never "
                              "delivered")

    def _wrong_slots(self, wheel: Wheel) -> Iterator[tuple[str, Array, Array]]:
        """Find the slots that point to a unit with another time.

        For each field that may be wrong, yield its name, the slots in which it is wrong, and the
        positions of their units. If the unit's own time belongs to the slot, the slot's time is
        wrong. Otherwise the field that points to the unit is wrong.
        """
        for name, slots, places in wheel.mismatches(self._log):
            own = np.array([self._suspects.get(unit_position, slot + 1) % SLOTS == slot
                            for unit_position, slot in
                            zip(places.tolist(), slots.tolist(), strict=True)], bool)
            yield "time", slots[own], places[own]
            yield name, slots[~own], places[~own]

    def _tell(self, position: int, name: str, words: str) -> Finding:
        file, place = self._log.file_of(position), UNIT.field(name)
        return Finding("timer-log", "timer", f"{name} of the unit at {position}: {words}",
                       file=file.path, offset=position - file.base + place.offset,
                       length=place.size, next=LOOK)
