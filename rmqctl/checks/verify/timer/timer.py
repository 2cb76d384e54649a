"""The timer of 5.x: timer log, wheel and timercheck, each against the others and the commitlog.

spec: timer-and-others-5x.md §1. Read in the order in which a broker makes them durable turned
round (timercheck, wheel, log), so that a running broker only ever shows more than was promised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np

from rmqctl.checks.findings import INFO, WARNING, Finding
from rmqctl.checks.verify.common import LOOK, bounded, plural, read_start, unreadable
from rmqctl.checks.verify.sequences import Votes
from rmqctl.checks.verify.timer.chains import Chains
from rmqctl.checks.verify.timer.records import Records
from rmqctl.checks.verify.timer.units import Page, TimerLog, slot_time
from rmqctl.checks.verify.timer.wheel import Wheel
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.formats.local.properties import TIMER_TOPIC
from rmqctl.formats.timer import timer_check, timer_log
from rmqctl.formats.timer.timer_check import TIMER_CHECK, TimerCheckRecord
from rmqctl.scan.frames import Array
from rmqctl.store.files import listing
from rmqctl.store.store import Store

_MAGICS = timer_log.MAGIC_DEFAULT | timer_log.MAGIC_ROLL | timer_log.MAGIC_DELETE
_YEAR_3000 = 32_503_680_000_000
_NEVER = -1
_LONG_MAX = (1 << 63) - 1


def check(store: Store, log_end: int | None = None, *, live: bool | None = None,
          in_damage: Callable[[int], bool] | None = None) -> Iterator[Finding]:
    """All of the timer. ``log_end`` is the physical offset behind the commitlog's last record,
    ``in_damage`` says whether one lies in a damaged part of the log.
    """
    held = store.lock.held if live is None else live
    records = Records(store, store.log.end if log_end is None else log_end, in_damage)
    yield from bounded(_check(store, records, held))


def _check(store: Store, records: Records, held: bool) -> Iterator[Finding]:
    progress: list[TimerCheckRecord] = []
    yield from _timercheck(store, progress)
    wheel: Wheel | None = Wheel(store.path("timerwheel"))
    files = listing(store.path("timerlog")).files
    votes = Votes()
    votes.add(files)
    size = votes.size() or 0
    # Names that no broker gives are told by the check of files; no place follows from them.
    log = TimerLog([one for one in files if size and one.base % size == 0
                    and one.base + size <= _LONG_MAX], size)
    assert wheel is not None
    if os.path.lexists(wheel.path):
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
        yield Finding("timer-log", "timer", f"the timer log is missing, though "
                      f"{plural(wheel.used, 'slot')} of the wheel lead into it",
                      file=store.path("timerlog"))
    yield from _progress(store, log, progress)


# -- timercheck ------------------------------------------------------------------------------


def _timercheck(store: Store, found: list[TimerCheckRecord]) -> Iterator[Finding]:
    """The file by itself; puts the record into ``found``."""
    path = store.path("config", "timercheck")
    if not os.path.lexists(path):
        return
    try:
        data, size = read_start(path, timer_check.PAGE_SIZE << 4)
    except StoreIOError as error:
        yield unreadable("timer", path, error)
        return

    def tell(detail: str, offset: int, length: int) -> Finding:
        return Finding("timer-check", "timer", detail, file=path, offset=offset, length=length,
                       next=LOOK)

    try:
        record = timer_check.parse(data)
    except FormatError as error:
        yield tell(f"has {size} bytes: {error.path} {error.reason}", size,
                   timer_check.PROGRESS_SIZE - size)
        return
    if size not in (timer_check.PAGE_SIZE, TIMER_CHECK.size):  # other implementations: no page
        yield tell(f"has {size} bytes, a broker writes {timer_check.PAGE_SIZE}",
                   min(size, timer_check.PAGE_SIZE), abs(size - timer_check.PAGE_SIZE))
    if not timer_check.rest_is_zero(data):
        rest = data[TIMER_CHECK.size:].rstrip(b"\0")
        first = len(rest) - len(rest.lstrip(b"\0"))
        yield tell("something stands behind the fields, where a broker writes zeros",
                   TIMER_CHECK.size + first, len(rest) - first)
    for name, value in record._asdict().items():
        most = _YEAR_3000 if name in ("last_read_time_ms", "timestamp") else 1 << 62
        if not _NEVER <= value < most:
            place = TIMER_CHECK.field(name)
            yield tell(f"{name}: {value} cannot be", place.offset, place.size)
    found.append(record)


def _progress(store: Store, log: TimerLog, found: list[TimerCheckRecord]) -> Iterator[Finding]:
    """What timercheck says against what is there (after the log was read)."""
    path = store.path("config", "timercheck")
    if not found:
        if log.end > log.start and not os.path.lexists(path):
            yield Finding("timer-check", "timer", "missing, though the timer log has units: a "
                          "broker reads the whole timer log again", file=path, severity=WARNING)
        return
    limits = {"last_timer_log_flush_pos": (log.end, "the timer log ends")}
    queue = store.queue(TIMER_TOPIC, 0)
    if queue is not None:
        try:
            limits["last_timer_queue_offset"] = queue.disk_end, f"the queue of {TIMER_TOPIC} ends"
        except StoreIOError as error:
            yield unreadable("consumequeue", queue.folder, error)
    for name, (end, words) in limits.items():
        value: int = getattr(found[0], name)
        if end < value < 1 << 62:
            place = TIMER_CHECK.field(name)
            yield Finding("timer-check", "timer", f"{name}: says {value}, {words} at {end}",
                          file=path, offset=place.offset, length=place.size, next=LOOK)


# -- units -----------------------------------------------------------------------------------


def _units(log: TimerLog, records: Records, wheel: Wheel | None, flushed: int,
           held: bool) -> Iterator[Finding]:
    there = wheel is not None and os.path.lexists(wheel.path)
    chains = Chains(log, wheel if there else None, flushed)
    for page in log.pages():
        if isinstance(page, Finding):
            yield page
            continue
        good = page.used.copy()
        if held:  # what is behind is being written
            good &= page.position < flushed
        asked = good.copy()
        for name, words, mask in _wrong(log, page, records):
            here = np.flatnonzero(mask & good)
            good[here] = False
            yield from _tell(page, here, name, words)
        for row, name, words in records.check(page.units, np.flatnonzero(good), log.precision):
            good[row] = False
            yield from _tell(page, np.array([row]), name, words)
        log.forget(page.position[asked & ~good])
        chains.take(page, np.flatnonzero(good))
    yield from records.left_over()
    if wheel is not None and not there and log.end > log.start:
        # Some backups leave this sparse file out on purpose: a broker copes, at a price.
        yield Finding("timer-wheel", "timer", "the wheel is missing, though the timer log has "
                      "units: a broker makes a new one and fills it from the end of the log",
                      file=wheel.path, severity=INFO)
    yield from chains.judge()


def _wrong(log: TimerLog, page: Page, records: Records) -> list[tuple[str, str, Array]]:
    """(field, what is wrong, which units), in the order in which it is told: each unit once."""
    units = page.units
    previous, magic = units["prev_pos"].astype(np.int64), units["magic"]
    physical = units["physical_offset"].astype(np.int64)
    back = (previous >= 0) & (previous < page.position) & log.is_place(previous)
    size = units["message_size"].astype(np.int64)
    return [
        ("size", "is no unit", units["size"] != timer_log.UNIT_SIZE),
        ("magic", "is no timer magic", (magic & ~_MAGICS != 0)
         | (magic & timer_log.MAGIC_DEFAULT == 0)),
        ("prev_pos", "leads to where no earlier unit is", (previous != _NEVER) & ~back),
        ("curr_write_time", "is no time", (units["curr_write_time"] <= 0)
         | (units["curr_write_time"] >= _YEAR_3000)),
        ("delay_time", "makes no time", slot_time(units) <= 0),
        ("message_size", "is no size of a message", size < MIN_SIZE),
        ("physical_offset", "is no physical offset", physical < 0),
        ("physical_offset", f"leads behind the end of the commitlog ({records.log_end})",
         physical > records.log_end - size),
    ]


def _tell(page: Page, rows: Array, name: str, words: str) -> Iterator[Finding]:
    place = timer_log.UNIT.field(name)
    for row in rows.tolist():
        at = int(page.position[row]) - page.file.base
        yield Finding("timer-log", "timer", f"{name} of the unit at {int(page.position[row])}: "
                      f"{int(page.units[row][name])} {words}", file=page.file.path,
                      offset=at + place.offset, length=place.size, next=LOOK)
