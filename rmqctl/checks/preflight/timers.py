"""Pending timed messages that are not delivered after the start, and clock errors that prevent
delivery.

spec: timer-and-others-5x.md §1.5; `rmqctl.broker.timer` reads the timer files as a broker does.
"""

from __future__ import annotations

import os

from rmqctl.broker.timer import WHEEL, TimerFiles, TimerStart
from rmqctl.broker.timer_messages import timed_messages
from rmqctl.broker.versions import BrokerVersion
from rmqctl.checks.delays import timer_ahead
from rmqctl.checks.losses import TIMERS, Loss
from rmqctl.checks.preflight.load import relative
from rmqctl.checks.preflight.types import Prediction
from rmqctl.parse_values import time_text
from rmqctl.phrases import Phrase
from rmqctl.store.log.end import find_end
from rmqctl.store.store import Store

_ANYWHERE = 1 << 62
_HOUR = 3_600_000
_DAY = 24 * _HOUR
_YEAR = 365 * _DAY


def judge_timers(predicted: Prediction, store: Store, version: BrokerVersion, now: int) -> None:
    """Add the outcome for timed messages to a prediction.
    Raises: StoreIOError.
    """
    _clock(predicted, store, now)
    files = TimerFiles.of(store)
    if not files.in_use:
        return
    # Files that a broker does not accept.
    if version.timer:
        for path, size, wanted in files.wrong_sizes(empty_last=version.deletes_empty_last):
            predicted.broker.refusals.append(Phrase(
                "{file} has {size:,} bytes, but a broker accepts only {wanted:,}",
                file=relative(store, path), size=size, wanted=wanted))
        for path in files.odd:
            predicted.broker.refusals.append(Phrase(
                "{file}: a broker accepts no file with this name in the timer log",
                file=relative(store, path)))
    # The outcome for the pending messages: none without a timer.
    end = store.log.end if predicted.log.truncate_to is None else predicted.log.truncate_to
    if store.lock.held and store.lock.pid != os.getpid():  # a broker continues to write
        end = _ANYWHERE
    start = files.start(now, store.log.min_offset, end)
    if not version.timer or store.sizes.conf.runtime.get("timerWheelEnable") is False:
        count = start.pending - start.gone + start.waiting
        if count:
            cause, remedy = (Phrase(
                "timerWheelEnable=false: pending timed messages are never delivered"), Phrase(
                "set timerWheelEnable=true in broker.conf until all of them are delivered")) if (
                version.timer) else (Phrase(
                    "a {version} broker has no timer: pending timed messages are never delivered",
                    version=predicted.broker_version), Phrase(
                    "a broker of 5.0.0 or later delivers them, but not the {late:,} that are "
                    "overdue by more than 7 days: send these again", late=start.skipped)
                    if start.skipped else Phrase(
                    "start a broker of 5.0.0 or later until all of them are delivered"))
            predicted.other_losses.append(Loss(TIMERS, count, cause, "timerlog", by_hand=remedy))
            predicted.incurable += 1
        if start.gone:
            predicted.other_losses.append(_gone(start))
        return
    # With a timer: its losses, and the messages it waits for.
    predicted.other_losses += _losses(start)
    predicted.other_losses += _ahead(files, store, end)
    if files.damaged:
        predicted.other_losses += _without_unit(files, start, end)
    predicted.incurable += bool(start.skipped)
    ahead = start.checked.last_read_time_ms - now
    if ahead > _DAY:
        predicted.notes.append(Phrase(
            "config/timercheck: the timer was read up to {time}; the broker delivers no timed "
            "message before that time. Was the clock wrong?",
            time=time_text(start.checked.last_read_time_ms)))


def _losses(start: TimerStart) -> list[Loss]:
    losses = []
    if start.skipped:
        losses.append(Loss(TIMERS, start.skipped, Phrase(
            "overdue by more than 7 days: a start skips timed messages due before {time}",
            time=time_text(start.read_from)), "timerlog", by_hand=Phrase(
            "no broker delivers timed messages this late: send again those that are still "
            "needed")))
    if start.unreachable:
        losses.append(Loss(TIMERS, start.unreachable, Phrase(
            "the timer wheel is missing: a start rebuilds it only from the last timer log file")
            if start.wheel_missing else
            Phrase("no slot of the timer wheel points to these units of the timer log"), WHEEL))
    if start.gone:
        losses.append(_gone(start))
    return losses


def _without_unit(files: TimerFiles, start: TimerStart, log_end: int) -> list[Loss]:
    """Return the loss of pending messages that were enqueued but are not in the timer log."""
    units = files.units(start.checked.last_read_time_ms // files.precision)
    with_unit = set(units.physical.tolist())
    count = sum(message.physical not in with_unit
                and message.due >= start.checked.last_read_time_ms
                for message in timed_messages(files, start.next_row, log_end))
    return [Loss(TIMERS, count, Phrase(
        "the units of these messages are missing from the timer log"),
                 "timerlog")] if count else []


def _ahead(files: TimerFiles, store: Store, log_end: int) -> list[Loss]:
    """Return the loss of messages that the timer's progress counts as delivered, although they were
    due after the last message of the log was stored.
    """
    if log_end == _ANYWHERE:
        return []
    ahead = timer_ahead(store, log_end)
    return [Loss(TIMERS, ahead.messages, Phrase(
        "the timer was read up to {time}, later than the last message of the log: these messages "
        "count as delivered", time=time_text(files.checked.last_read_time_ms)),
                 "config/timercheck")] if ahead.messages else []


def _gone(start: TimerStart) -> Loss:
    return Loss(TIMERS, start.gone, Phrase(
        "the timer log points to messages that the commitlog does not contain"), "timerlog", True)


def _clock(predicted: Prediction, store: Store, now: int) -> None:
    """Add a note if ``now`` differs widely from the store time of the newest message."""
    newest = newest_stored(store)
    if newest is None:
        return
    if newest - now > _HOUR:
        predicted.notes.append(Phrase(
            "the newest message was stored at {time}, later than this machine's clock: is the "
            "clock right?", time=time_text(newest)))
    elif now - newest > _YEAR:
        predicted.notes.append(Phrase(
            "the newest message was stored at {time}, more than a year ago by this machine's clock",
            time=time_text(newest)))


def newest_stored(store: Store) -> int | None:
    """Return the store time (ms) of the newest message: the later of the times in the last record
    of the log and in the checkpoint; None if both are missing.
    """
    last, checkpoint = find_end(store).last, store.checkpoint
    times = [0 if last is None else last.store_timestamp,
             0 if checkpoint is None else checkpoint.physic_msg_timestamp]
    return max(times) if max(times) > 0 else None
