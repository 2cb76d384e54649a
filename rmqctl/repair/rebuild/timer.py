"""Repair the 5.x timer for a repaired log: every unit has a message and is in a slot.

* Units that point beyond the end of the log are removed, as in `truncate`.
* A wheel is rebuilt from the timer log if it is missing, has the wrong size or leaves pending
  messages unreachable. The timer log has the time and the message of each unit.
* A timer log with damaged or missing units is rebuilt from the pending messages.

Spec: timer-and-others-5x.md §1.2, §1.3.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rmqctl.broker.timer import LOG, WHEEL, TimerFiles, rebuilt_wheel, wheel_of
from rmqctl.broker.timer_messages import built_log, restored_progress, timed_messages
from rmqctl.checks.delays import timer_ahead
from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.timer.timer import (
    BEYOND_END,
    FLUSHED_BEYOND_END,
    LATER_THAN_LOG,
    check,
)
from rmqctl.errors import StoreIOError
from rmqctl.formats.local.properties import TIMER_TOPIC
from rmqctl.formats.timer import timer_check
from rmqctl.formats.timer.timer_check import TimerCheckRecord
from rmqctl.formats.timer.timer_log import UNIT_SIZE
from rmqctl.formats.timer.timer_wheel import FILE_SIZE, SLOT, SLOT_SIZE
from rmqctl.repair.plan import Action, Changes, Create, MoveAside, Patch, Replace
from rmqctl.repair.rebuild.timed_disputes import TimedDisputes, disputed_unit
from rmqctl.repair.targets import target
from rmqctl.repair.truncate.timer import cut_timer
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import TIMERCHECK
from rmqctl.store.store import Store

_PROGRESS = f"config/{TIMERCHECK}"


def timer_troubles(store: Store, log_end: int) -> list[Finding]:
    """Return the findings of `verify` on the timer's files, for a log that ends at ``log_end``."""
    if not TimerFiles.of(store).in_use:
        return []
    return [finding for finding in check(store, log_end, live=False) if finding.is_trouble]


def timer_steps(store: Store, log_end: int, next_row: int | None, findings: list[Finding],
                settled: TimedDisputes | None = None) -> Changes:
    """Return the changes that repair the timer's files for a log that ends at ``log_end``.

    ``next_row``: next queue offset of the timer topic, None if the topic has no queue.
    ``findings``: the findings of `timer_troubles`. ``settled``: corrected or disputed messages,
    whose units are kept. Raises: StoreIOError.
    """
    files = TimerFiles.of(store)
    if not files.in_use:
        return Changes()
    settled = settled or TimedDisputes()
    places = settled.places
    findings = [finding for finding in findings if (unit := disputed_unit(finding)) is None
                or unit.physical_offset not in places]
    restored = _progress_is_damaged(findings)
    if restored:
        files.checked = restored_progress(files, log_end)
    if _log_is_wrong(files, findings, log_end):
        return _new_log(store, files, log_end, restored=restored, topics=settled.topics)
    ahead = timer_ahead(store, log_end)
    changes = cut_timer(store, log_end, next_row, ahead.first if ahead.messages else None)
    cut = any(action.target == LOG for action in changes.actions)
    if files.files and _wheel_is_wrong(store, files, log_end):
        # Removed units are in no slot of the new wheel.
        _without(changes, WHEEL)
        _new_wheel(store, rebuilt_wheel(files, log_end if cut else None), changes)
    if restored:
        _without(changes, _PROGRESS)
        _new_progress(store, files.checked, changes)
    return changes


def _without(changes: Changes, name: str) -> None:
    changes.steps = [step for step in changes.steps if step.target != name]
    changes.actions = [action for action in changes.actions if action.target != name]


def _progress_is_damaged(findings: list[Finding]) -> bool:
    """Return whether timercheck itself is damaged or missing, as opposed to being ahead of the
    timer log.
    """
    return any(finding.category == "timer-check" and finding.cause not in (
        BEYOND_END, FLUSHED_BEYOND_END, LATER_THAN_LOG) for finding in findings)


def _log_is_wrong(files: TimerFiles, findings: list[Finding], log_end: int) -> bool:
    """Return whether units are damaged or missing. Units at the end of the timer log that point
    beyond the end of the commitlog do not count.
    """
    beyond = files.units(0).physical >= log_end
    if beyond.any() and not beyond[beyond.argmax():].all():  # a damaged unit: valid ones follow
        return True
    return files.damaged or any(
        (finding.category == "timer-log" and finding.cause != BEYOND_END)
        or finding.cause == FLUSHED_BEYOND_END for finding in findings)


def _new_log(store: Store, files: TimerFiles, log_end: int, *, restored: bool,
             topics: Mapping[int, str]) -> Changes:
    """Return the changes that create a new timer log and wheel with the pending messages, and move
    the old files aside.
    """
    changes = Changes()
    # The pending messages, from the queue of timed messages.
    last_read = files.checked.last_read_time_ms
    start = files.start(last_read, store.log.min_offset, log_end)
    messages = [message._replace(topic=topics.get(message.physical, message.topic))
                for message in timed_messages(files, start.next_row, log_end)]
    if not messages:
        changes.notes.append("the timer log is damaged and is not repaired: the messages of "
                             f"{TIMER_TOPIC} needed to rebuild it are gone")
        return changes
    # A new timer log and wheel in place of the old files.
    timer_log = built_log(files, messages)
    for path in (*(file.path for file in files.files), *files.odd):
        changes.steps.append(MoveAside(f"{LOG}/{os.path.basename(path)}"))
    for base, data in timer_log.files.items():
        changes.steps.append(Create(f"{LOG}/{base:020d}", OverlayPiece(
            0, timer_log.file_size, ((0, data),) if data else ())))
    changes.actions.append(Action(
        "rebuild", LOG, sum(file.size // UNIT_SIZE for file in files.files), len(messages),
        "from pending timed messages: units are damaged or missing", "unit"))
    _new_wheel(store, wheel_of(timer_log.units), changes)
    # The timer's progress, as in the new log.
    progress = files.checked._replace(
        last_timer_log_flush_pos=timer_log.end, last_timer_queue_offset=start.next_row,
        master_timer_queue_offset=max(files.checked.master_timer_queue_offset, start.next_row))
    path = store.path("config", TIMERCHECK)
    if restored or not os.path.isfile(path):
        _new_progress(store, progress, changes)
    else:
        changes.act(Patch(target(store, path), (OverlayPiece.of(0, timer_check.build(progress)[
            :min(os.path.getsize(path), timer_check.TIMER_CHECK.size)]),)), "restore",
            files.checked.last_timer_log_flush_pos, timer_log.end,
            "set to the end of the timer log", "")
    return changes


def _new_progress(store: Store, progress: TimerCheckRecord, changes: Changes) -> None:
    """Add the step that writes a complete timercheck, with which the timer continues after the last
    delivery.
    """
    page = timer_check.build(progress)
    exists = os.path.isfile(store.path("config", TIMERCHECK))
    changes.steps.append(Replace(_PROGRESS, page) if exists else Create(_PROGRESS, page))
    changes.actions.append(Action(
        "rebuild", _PROGRESS, None, progress.last_timer_queue_offset,
        "from the timer log and the last delivered timed message"))


def _wheel_is_wrong(store: Store, files: TimerFiles, log_end: int) -> bool:
    wheel = store.path(WHEEL)
    if any(path == wheel for path, _, _ in files.wrong_sizes(empty_last=True)):
        return True
    last_read = files.checked.last_read_time_ms
    if files.start(last_read, store.log.min_offset, log_end).unreachable:
        return True
    return any(finding.is_trouble and finding.file == wheel
               for finding in check(store, log_end, live=False)
               if finding.category == "timer-wheel")


def _new_wheel(store: Store, pages: dict[int, bytes], changes: Changes) -> None:
    path = store.path(WHEEL)
    if os.path.lexists(path) and not os.path.isfile(path):
        changes.steps.append(MoveAside(WHEEL))
    exists = os.path.isfile(path)
    if exists and not _differs(path, pages):
        return
    content = OverlayPiece(0, FILE_SIZE, tuple(sorted(pages.items())))
    changes.steps.append(Replace(WHEEL, content) if exists else Create(WHEEL, content))
    used = sum(bool(SLOT.decode(page, place).last_pos or SLOT.decode(page, place).time)
               for page in pages.values() for place in range(0, len(page), SLOT_SIZE))
    changes.actions.append(Action(
        "rebuild", WHEEL, None, used, "from the timer log: puts every unit in a slot", "slot"))


def _differs(path: str, pages: dict[int, bytes]) -> bool:
    """Return whether a wheel's file differs from these pages (by position)."""
    try:
        with FileSource(path) as source:
            if source.size != FILE_SIZE:
                return True
            step = 1 << 20
            return any(source.read(place, min(step, FILE_SIZE - place)) != _bytes(pages, place, min(
                step, FILE_SIZE - place)) for place in range(0, FILE_SIZE, step))
    except StoreIOError:
        return True


def _bytes(pages: dict[int, bytes], place: int, size: int) -> bytes:
    data = bytearray(size)
    OverlayPiece(place, size, tuple((at - place, page) for at, page in sorted(pages.items())
                                    if place <= at < place + size)).read_into(memoryview(data), 0)
    return bytes(data)
