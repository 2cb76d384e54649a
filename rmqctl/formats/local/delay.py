"""Delay levels and their deliver times (spec: consumequeue.md §3, recovery.md §9)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from rmqctl.errors import UsageError
from rmqctl.formats.local import properties as props
from rmqctl.lazy_dataclass import dataclass

Levels = Mapping[int, int]
"""Milliseconds of each delay level, by level."""
_I64 = 1 << 63
DEFAULT_TEXT = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL = 1000
_INTEGER = re.compile(r"[+-]?\d+")


def parse_levels(text: str) -> Levels:
    """Return the table of a ``messageDelayLevel`` setting.

    Raises: ValueError if it is invalid.
    """
    levels: dict[int, int] = {}
    for number, part in enumerate(text.split(" "), 1):
        if part[-1:] not in _UNIT or not _INTEGER.fullmatch(part[:-1]):
            raise ValueError(f"delay level {number} is not a time: {part!r}")
        levels[number] = int(part[:-1]) * _UNIT[part[-1]]
    return MappingProxyType(levels)


DEFAULT_LEVELS = parse_levels(DEFAULT_TEXT)


def java_int(text: str, bits: int = 32) -> int:
    """Return the result of ``Integer.parseInt`` (or ``Long.parseLong`` with 64 bits).

    Raises: ValueError where Java throws.
    """
    if len(text) <= 400 and _INTEGER.fullmatch(text):
        value = int(text)
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return value
    raise ValueError(f"not a {bits}-bit number: {text[:40]!r}")


@dataclass(frozen=True, slots=True)
class DelayTable:
    """A delay table. ``levels``: milliseconds by level; ``max_level``: the highest level that a
    message may have.
    """

    levels: Mapping[int, int]
    max_level: int


@lru_cache(maxsize=16)
def delay_table(text: str) -> DelayTable:
    """Return the table of a ``messageDelayLevel`` setting (``1s 5s 10s``; units s, m, h, d).

    Raises: UsageError if a broker would not start, or would put messages into queue -1 because the
    setting has no levels.
    """
    try:
        # Java's split drops empty parts at the end, so spaces there are harmless.
        levels = parse_levels(text.rstrip(" "))
    except ValueError as error:
        raise UsageError(f"messageDelayLevel {text!r}: {error}") from None
    for level, milliseconds in levels.items():
        if not -_I64 <= milliseconds < _I64:
            raise UsageError(f"messageDelayLevel {text!r}: level {level} does not fit into 64 bits")
    return DelayTable(levels, max(levels))


class PropertyMap(Protocol):
    """Anything that returns property values by name: a dict, a `JavaMap`."""

    def get(self, key: str, /) -> str | None: ...


def delay_level_of(properties: PropertyMap) -> int:
    """Return the delay level that a message requests; 0 for none.

    Raises: ValueError if ``DELAY`` is not a number. A broker then fails with an exception, and
    stores nothing.
    """
    text = properties.get(props.DELAY)
    if text is None:
        return 0
    try:
        return java_int(text)
    except ValueError:
        raise ValueError(f"the property {props.DELAY} is not a delay level: "
                         f"{text[:40]!r}") from None


def deliver_time(level: str, store_timestamp: int, levels: Levels = DEFAULT_LEVELS) -> int | None:
    """Return the due time of a message of the schedule topic; None if its level means no delay.

    A level above the highest level of the table counts as the highest. A lower level that is not in
    the table counts as one second.
    """
    number = min(java_int(level), max(levels, default=0))
    if number <= 0:
        return None
    return store_timestamp + levels.get(number, UNKNOWN_LEVEL)
