"""Delay levels and the deliver time they give (spec: consumequeue.md §3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

Levels = Mapping[int, int]
"""Delay level -> milliseconds."""

DEFAULT_TEXT = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNKNOWN_LEVEL = 1000
_INTEGER = re.compile(r"[+-]?\d+")


def parse_levels(text: str) -> Levels:
    """The table a ``messageDelayLevel`` setting stands for. ValueError when it is none."""
    levels: dict[int, int] = {}
    for number, part in enumerate(text.split(" "), 1):
        if part[-1:] not in _UNIT or not _INTEGER.fullmatch(part[:-1]):
            raise ValueError(f"delay level {number} is no time: {part!r}")
        levels[number] = int(part[:-1]) * _UNIT[part[-1]]
    return MappingProxyType(levels)


DEFAULT_LEVELS = parse_levels(DEFAULT_TEXT)


def java_int(text: str, bits: int = 32) -> int:
    """``Integer.parseInt`` (or ``Long.parseLong`` with 64 bits). ValueError as Java throws."""
    if len(text) <= 400 and _INTEGER.fullmatch(text):
        value = int(text)
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return value
    raise ValueError(f"no {bits}-bit number: {text[:40]!r}")


def deliver_time(level: str, store_timestamp: int, levels: Levels = DEFAULT_LEVELS) -> int | None:
    """When a message of the schedule topic is due; None when its level means no delay.

    A level above the table's highest counts as the highest; a gap in the table as one second.
    """
    number = min(java_int(level), max(levels, default=0))
    if number <= 0:
        return None
    return store_timestamp + levels.get(number, _UNKNOWN_LEVEL)
