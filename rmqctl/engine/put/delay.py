"""Delay levels as the put path needs them (spec: recovery.md §9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from rmqctl.errors import UsageError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import java_int, parse_levels

_I64 = 1 << 63


class Properties(Protocol):
    """Anything that is asked for a property by name: a dict, a `JavaMap`."""

    def get(self, key: str, /) -> str | None: ...


@dataclass(frozen=True, slots=True)
class DelayTable:
    """Level -> milliseconds; ``max_level`` is the highest a message may have."""

    levels: Mapping[int, int]
    max_level: int


@lru_cache(maxsize=16)
def delay_table(text: str) -> DelayTable:
    """The table of a ``messageDelayLevel`` setting (``1s 5s 10s``; units s, m, h, d).

    UsageError where a broker would not start, or would put messages into queue -1, for want
    of any level.
    """
    try:
        # Java's split drops empty parts at the end, so spaces there do no harm.
        levels = parse_levels(text.rstrip(" "))
    except ValueError as error:
        raise UsageError(f"messageDelayLevel {text!r}: {error}") from None
    for level, milliseconds in levels.items():
        if not -_I64 <= milliseconds < _I64:
            raise UsageError(f"messageDelayLevel {text!r}: level {level} is beyond 64 bits")
    return DelayTable(levels, max(levels))


def delay_level_of(found: Properties) -> int:
    """The delay level a message asks for; 0 for none.

    ValueError when ``DELAY`` is no number: a broker then fails with an exception, and stores
    nothing.
    """
    text = found.get(props.DELAY)
    if text is None:
        return 0
    try:
        return java_int(text)
    except ValueError:
        raise ValueError(f"the property {props.DELAY} is no delay level: {text[:40]!r}") from None
