"""Truncate the timer of 5.x together with the log: timer log, timer wheel and progress (spec:
timer-and-others-5x.md §1).

A slot of the wheel may point to a removed unit. Such a slot would hide the earlier units in its
chain, so it is changed to point to the last kept unit.
"""

from __future__ import annotations

import os

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.formats.timer import timer_check, timer_log, timer_wheel
from rmqctl.formats.timer.timer_check import TimerCheckRecord
from rmqctl.formats.timer.timer_log import UNIT_SIZE
from rmqctl.formats.timer.timer_wheel import SLOT_SIZE
from rmqctl.parse_values import time_text
from rmqctl.repair.plan import Action, Changes, Patch
from rmqctl.repair.targets import cut_files, target
from rmqctl.repair.truncate.queues import backwards
from rmqctl.scan.frames import Array, distinct
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import TIMERCHECK, load_one
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.store import Store

_PAGE_SLOTS = 128


def cut_timer(store: Store, to: int, next_row: int | None, read: int | None = None) -> Changes:
    """Remove the units of timer messages at or after physical offset ``to``.

    ``next_row``: the next queue offset of the timer topic after the truncation; None if it has no
    queue.
    ``read``: the maximum time (ms) up to which messages count as delivered; None: no maximum.
    Raises: StoreIOError.
    """
    cut = Changes()
    files = listing(store.path("timerlog")).files
    end = _end_before(files, to)
    if end is not None:
        _cut_log(cut, store, files, end)
        _cut_wheel(cut, store, files, end)
    _cut_progress(cut, store, end, next_row, read)
    return cut


def _sound(units: Array) -> Array:
    """Return a boolean array: whether a broker's recovery accepts each unit. It rejects the end
    mark of a file.
    """
    sound: Array = (units["size"] == UNIT_SIZE) & ((units["magic"] & ~timer_log.MAGIC_BITS) == 0)
    return sound


def _end_before(files: list[StoreFile], to: int) -> int | None:
    """Return the position after the last kept unit; None if no unit is removed."""
    gone = 0
    for base, units in backwards(files, timer_log.UNIT):
        sound = _sound(units)
        before = np.flatnonzero(sound & (units["physical_offset"] < to))
        first = int(before[-1]) + 1 if len(before) else 0
        gone += int(np.count_nonzero(sound[first:]))
        if len(before):
            return base + first * UNIT_SIZE if gone else None
    return files[0].base if gone else None


def _cut_log(cut: Changes, store: Store, files: list[StoreFile], end: int) -> None:
    cut.steps += cut_files(store, files, end)
    cut.actions.append(Action("truncate", "timerlog", files[-1].end, end,
                              "units of removed messages"))


def _cut_wheel(cut: Changes, store: Store, files: list[StoreFile], end: int) -> None:
    # The slots that point to removed units.
    path = store.path("timerwheel")
    if not os.path.lexists(path):
        return
    with FileSource(path) as source:
        raw = source.read(0, min(source.size, timer_wheel.FILE_SIZE))
    slots = timer_wheel.SLOT.array(raw)
    last, count = slots["last_pos"].astype(np.int64), slots["num"].astype(np.int64)
    touched = np.flatnonzero(last >= end)
    if not len(touched):
        return
    # Follow each of them back, unit by unit, to the last one that stays.
    for base, units in backwards(files, timer_log.UNIT):
        if base + len(units) * UNIT_SIZE <= end:
            break
        _follow_back(last, count, touched, base, units, end)
    last[touched[last[touched] >= end]] = -1  # these pointed to no unit
    changed = slots.copy()
    changed["last_pos"][touched], changed["num"][touched] = last[touched], count[touched]
    empty = touched[(last[touched] < 0) | (slots["first_pos"][touched] >= end)]
    changed[empty] = np.array(tuple(timer_wheel.UNUSED), timer_wheel.dtype())
    # Only pages with such slots are written.
    pages = distinct(touched // _PAGE_SLOTS)
    pieces = []
    for run in np.split(pages, np.flatnonzero(np.diff(pages) > 1) + 1):
        first, stop = int(run[0]) * _PAGE_SLOTS, min((int(run[-1]) + 1) * _PAGE_SLOTS, len(slots))
        pieces.append(OverlayPiece.of(first * SLOT_SIZE, changed[first:stop].tobytes()))
    cut.act(Patch(target(store, path), tuple(pieces)), "lead back", len(touched),
            len(touched) - len(empty),
            "units of removed messages; slots without other units become unused", "slot")


def _follow_back(last: Array, count: Array, touched: Array, base: int, units: Array,
                 end: int) -> None:
    """Follow the chain of each of the ``touched`` slots through one page of removed units; update
    ``last`` and ``count``.
    """
    low = max(base, end)
    sound = _sound(units)
    previous = units["prev_pos"].astype(np.int64)
    deletes = (units["magic"] & timer_log.MAGIC_DELETE) != 0
    over = touched[last[touched] >= low]
    while len(over):
        unit, remainder = np.divmod(last[over] - base, UNIT_SIZE)
        inside = (remainder == 0) & (unit < len(units))
        unit = np.where(inside, unit, 0)
        inside &= sound[unit]
        # An intact link points to an older unit; anything else ends the chain.
        linked = np.where(inside & (previous[unit] < last[over]), previous[unit], -1)
        count[over] -= np.where(inside, np.where(deletes[unit], -1, 1), 0)
        last[over] = linked
        over = over[linked >= low]


def _cut_progress(cut: Changes, store: Store, end: int | None, next_row: int | None,
                  read: int | None) -> None:
    """Reduce positions in ``config/timercheck`` that are beyond the end of the timer log or of the
    timer topic's queue, and the time up to which messages count as delivered.
    """
    check = load_one(store, TIMERCHECK).main.value
    if not isinstance(check, TimerCheckRecord):
        return
    changed = check
    if end is not None:
        changed = changed._replace(last_timer_log_flush_pos=min(changed.last_timer_log_flush_pos,
                                                                end))
    if next_row is not None:
        changed = changed._replace(
            last_timer_queue_offset=min(changed.last_timer_queue_offset, next_row),
            master_timer_queue_offset=min(changed.master_timer_queue_offset, next_row))
    is_ahead = changed != check
    if read is not None:
        changed = changed._replace(last_read_time_ms=min(changed.last_read_time_ms, read))
    if changed == check:
        return
    path = store.path("config", TIMERCHECK)
    try:
        with FileSource(path) as source:
            size = min(source.size, timer_check.TIMER_CHECK.size)
    except StoreIOError as error:
        cut.notes.append(f"{error}; it is left as it is")
        return
    data = timer_check.build(changed)[:size]
    cut.steps.append(Patch(target(store, path), (OverlayPiece.of(0, data),)))
    if is_ahead:
        cut.actions.append(Action(
            "set back", target(store, path), check.last_timer_queue_offset,
            changed.last_timer_queue_offset, "is ahead of the timer's messages"))
    if changed.last_read_time_ms != check.last_read_time_ms:
        cut.actions.append(Action(
            "set back", target(store, path), time_text(check.last_read_time_ms),
            time_text(changed.last_read_time_ms),
            "is later than the last message of the log: timed messages since then were not "
            "delivered"))
