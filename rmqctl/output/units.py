"""Human-readable numbers: sizes, times, durations, counts. Pure functions."""

from __future__ import annotations

from rmqctl.parse_values import time_or_zero, time_text
from rmqctl.phrases import counted

__all__ = ["count_text", "counted", "duration_text", "rate_text", "size_text", "time_or_zero",
           "time_text"]

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size_text(count: int) -> str:
    """Return a number of bytes with a binary unit: ``0 B``, ``1.0 KiB``, ``4.0 GiB``."""
    value = float(count)
    unit = _BINARY[0]
    for unit in _BINARY:
        if round(abs(value), 1) < 1024 or unit == _BINARY[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def count_text(count: int) -> str:
    """Return a count with thousands separators: ``1,901,788``."""
    return f"{count:,}"


def duration_text(millis: int) -> str:
    """Return a duration in its two largest units: ``12.3 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if millis < 0:
        return "-" + duration_text(-millis)
    if millis < 1000:
        return f"{millis} ms"
    if millis < 60_000:
        return f"{millis / 1000:.1f} s"
    minutes = millis // 60_000
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {millis // 1000 % 60} s"


def rate_text(count: float, unit: str = "/s") -> str:
    """Return a rate with a suitable number of digits: ``0.25/s``, ``12.5/s``, ``1,250/s``."""
    if count >= 100:
        return f"{count:,.0f}{unit}"
    return f"{count:.1f}{unit}" if count >= 10 else f"{count:.2f}{unit}"
