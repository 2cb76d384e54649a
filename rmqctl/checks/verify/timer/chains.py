"""Timer log and wheel against each other: one damage, one finding, at the side that is wrong.

spec: timer-and-others-5x.md §1.2, §1.3. Every unit belongs to the slot of its time: the slot
leads to its newest unit, and each unit to the one before it. Where two of them disagree about
the time, the one that nothing else confirms is at fault.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import LOOK
from rmqctl.checks.verify.timer.units import Page, TimerLog, slot_time
from rmqctl.checks.verify.timer.wheel import Wheel
from rmqctl.formats.timer.timer_log import UNIT
from rmqctl.formats.timer.timer_wheel import SLOTS
from rmqctl.scan.frames import Array

_NONE = -1
_MOST = 1 << 17
"""Disagreements that are kept to be judged; random bytes may give any number of them."""


class Chains:
    """Collects what units say of their slots, page by page, and judges at the end."""

    def __init__(self, log: TimerLog, wheel: Wheel | None, flushed: int) -> None:
        self._log, self._wheel, self._flushed = log, wheel, flushed
        self._suspects: dict[int, int] = {}
        self._broken: list[tuple[int, int]] = []

    def take(self, page: Page, rows: Array) -> None:
        """The units ``rows`` of a page, with which nothing else is wrong."""
        units, position = page.units[rows], page.position[rows]
        previous = units["prev_pos"].astype(np.int64)
        known, time = self._log.times(previous)
        broken = (previous != _NONE) & known & (time != self._log.time_of(units))
        room = max(_MOST - len(self._broken), 0)
        self._broken += zip(position[broken].tolist()[:room], previous[broken].tolist()[:room],
                            strict=True)
        if self._wheel is not None:
            # Behind the flushed position the wheel may be older than the log (§1.5).
            slot = slot_time(units) // self._log.precision
            here = (position < self._flushed) & self._wheel.unconfirmed(position, slot)
            room = max(_MOST - len(self._suspects), 0)
            self._suspects.update(zip(position[here].tolist()[:room], slot[here].tolist()[:room],
                                      strict=True))

    def judge(self) -> Iterator[Finding]:
        """After the last page."""
        wheel, suspects = self._wheel, self._suspects
        if wheel is not None:
            yield from wheel.ahead(self._log)
        wrong_slots = list(self._wrong_slots(wheel)) if wheel is not None else []
        asked = {before for _, before in self._broken}
        asked.update(at for name, _, places in wrong_slots if name != "time"
                     for at in places[:_MOST].tolist())
        guilty = asked & suspects.keys()
        guilty |= {at for at, before in self._broken if before not in guilty and at in suspects}
        for at in sorted(guilty):
            yield self._tell(at, "delay_time", f"the slot {suspects[at] * self._log.precision} "
                             "which it makes is not the one that leads to this unit")
        for at, before in self._broken:
            if at not in guilty and before not in guilty:
                yield self._tell(at, "prev_pos", f"{before} is a unit of another time")
        if wheel is None:
            return
        for name, slots, places in wrong_slots:
            free = ~np.isin(places, list(guilty))
            yield from wheel.tell(slots[free], name, "is not the time of the slot's units"
                                  if name == "time" else "leads to a unit of another time")
        left = [one for one in suspects.items() if one[0] not in guilty]
        position, time = (np.array(column, np.int64) for column in (zip(*left, strict=True)
                                                                    if left else ((), ())))
        yield from wheel.tell(wheel.lost(position, time), "last_pos", "does not lead to the "
                              "newest unit of the slot: its message is never delivered")

    def _wrong_slots(self, wheel: Wheel) -> Iterator[tuple[str, Array, Array]]:
        """(field, slots, positions of their units) of slots that disagree with their units.

        Where the unit's own time belongs to this very slot, the slot's time is what is wrong.
        """
        for name, slots, places in wheel.mismatches(self._log):
            own = np.array([self._suspects.get(at, slot + 1) % SLOTS == slot for at, slot in
                            zip(places.tolist(), slots.tolist(), strict=True)], bool)
            yield "time", slots[own], places[own]
            yield name, slots[~own], places[~own]

    def _tell(self, position: int, name: str, words: str) -> Finding:
        file, place = self._log.file_of(position), UNIT.field(name)
        return Finding("timer-log", "timer", f"{name} of the unit at {position}: {words}",
                       file=file.path, offset=position - file.base + place.offset,
                       length=place.size, next=LOOK)
