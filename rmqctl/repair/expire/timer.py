"""Files of the timer log whose messages have all expired (5.x; timer-and-others-5x.md §1.5)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rmqctl.formats.local.properties import TIMER_TOPIC
from rmqctl.formats.timer import timer_log
from rmqctl.formats.timer.timer_log import TAIL, UNIT_SIZE
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, common_size, listing
from rmqctl.store.log.end import used_size
from rmqctl.store.store import Store

_PAGE_UNITS = 1 << 15


@dataclass(slots=True)
class TimerExpired:
    """The files that go, and who should know."""

    files: list[StoreFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def expire_timer(store: Store, before: int, after: int, read_until: int | None) -> TimerExpired:
    """What goes of the timer log when the log begins at ``after`` instead of ``before``.

    The first files go as long as their last unit leads to an expired message, never the last in
    use. ``read_until`` (ms): up to when timer messages were delivered; later ones that expire are
    told. StoreIOError.
    """
    out = TimerExpired()
    files = listing(store.path("timerlog")).files
    size = common_size(files) or 0
    last = len(files) - 1
    while last > 0:
        with FileSource(files[last].path) as source:
            if used_size(source):
                break
        last -= 1
    for one in files[:max(last, 0)]:
        unit = _last_unit(one, size)
        if unit is None or not unit.is_valid or unit.physical_offset >= after:
            break
        out.files.append(one)
    if after > before and read_until is not None:
        pending = sum(_pending(one, before, after, read_until) for one in files)
        if pending:
            out.notes.append(f"{pending} timer message{'s' if pending != 1 else ''} not yet "
                             f"delivered expire: {TIMER_TOPIC}")
    return out


def _last_unit(file: StoreFile, size: int) -> timer_log.UnitRecord | None:
    """The unit in the last place of a full file, as a broker looks for it."""
    at = (size - TAIL.size) // UNIT_SIZE * UNIT_SIZE - UNIT_SIZE
    if at < 0:
        return None
    with FileSource(file.path) as source:
        raw = source.read(at, UNIT_SIZE)
    return timer_log.decode(raw) if len(raw) == UNIT_SIZE else None


def _pending(file: StoreFile, before: int, after: int, read_until: int) -> int:
    """Units in a file for messages that expire now and whose time is still to come."""
    count = 0
    with FileSource(file.path) as source:
        at, end = 0, used_size(source)
        while at < end:
            data = source.read(at, min(_PAGE_UNITS * UNIT_SIZE, source.size - at))
            units = np.frombuffer(data[:len(data) - len(data) % UNIT_SIZE], timer_log.dtype())
            if not len(units):
                break
            physical = units["physical_offset"].astype(np.int64)
            due = units["curr_write_time"].astype(np.int64) + units["delay_time"]
            count += int(np.count_nonzero(
                (units["size"] == UNIT_SIZE) & ((units["magic"] & ~timer_log.MAGIC_BITS) == 0)
                & ((units["magic"] & timer_log.MAGIC_DELETE) == 0)
                & (physical >= before) & (physical < after) & (due > read_until)))
            at += len(units) * UNIT_SIZE
    return count
