"""``config/timercheck`` of 5.x: the timer's progress (timer-and-others-5x.md §1.4)."""

from __future__ import annotations

from typing import NamedTuple

from construct import Int64sb, Struct

from rmqctl.formats.fixed import FirstOfPage

TimerCheck = Struct(
    "last_read_time_ms" / Int64sb,
    "last_timer_log_flush_pos" / Int64sb,
    "last_timer_queue_offset" / Int64sb,
    "master_timer_queue_offset" / Int64sb,
    "state_version" / Int64sb,
    "timestamp" / Int64sb,
    "counter" / Int64sb,
)


class TimerCheckRecord(NamedTuple):
    """The progress of the wheel and of the timer queue, then the data version."""

    last_read_time_ms: int
    last_timer_log_flush_pos: int
    last_timer_queue_offset: int
    master_timer_queue_offset: int
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


TIMER_CHECK = FirstOfPage(TimerCheck, TimerCheckRecord, "master_timer_queue_offset")
PROGRESS_SIZE, PAGE_SIZE = TIMER_CHECK.least, TIMER_CHECK.PAGE_SIZE
parse, build, rest_is_zero = TIMER_CHECK.read, TIMER_CHECK.page, TIMER_CHECK.rest_is_zero
