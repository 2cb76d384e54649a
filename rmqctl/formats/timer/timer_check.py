"""``config/timercheck`` of 5.x: the timer's progress (timer-and-others-5x.md §1.4)."""

from __future__ import annotations

from typing import NamedTuple

from construct import Int64sb, Struct

from rmqctl.formats import layout
from rmqctl.formats.fixed import Fixed

TimerCheck = Struct(
    "last_read_time_ms" / Int64sb,
    "last_timer_log_flush_pos" / Int64sb,
    "last_timer_queue_offset" / Int64sb,
    "master_timer_queue_offset" / Int64sb,
    "state_version" / Int64sb,
    "timestamp" / Int64sb,
    "counter" / Int64sb,
)

PAGE_SIZE = 4096


class TimerCheckRecord(NamedTuple):
    """How far the wheel was read and the timer queue enqueued; then the data version."""

    last_read_time_ms: int
    last_timer_log_flush_pos: int
    last_timer_queue_offset: int
    master_timer_queue_offset: int
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


TIMER_CHECK = Fixed(TimerCheck, TimerCheckRecord)
PROGRESS_SIZE = layout.field(TimerCheck, "state_version").offset


def parse(data: bytes) -> TimerCheckRecord:
    """The record at the start of a file; a data version beyond the end of the file is 0."""
    if PROGRESS_SIZE <= len(data) < TIMER_CHECK.size:
        data = data.ljust(TIMER_CHECK.size, b"\0")
    return TIMER_CHECK.parse(data)


def build(check: TimerCheckRecord) -> bytes:
    """The whole page."""
    return TIMER_CHECK.build(check).ljust(PAGE_SIZE, b"\0")


def rest_is_zero(data: bytes) -> bool:
    """Whether nothing follows the fields."""
    return not data[TIMER_CHECK.size:].strip(b"\0")
