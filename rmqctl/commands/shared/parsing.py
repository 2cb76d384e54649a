"""Text of options and arguments -> values. Every refusal is a UsageError that shows the text.

The functions also take values that are parsed already and hand them back, because typer passes
defaults through the same door.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, timedelta, timezone, tzinfo
from typing import NamedTuple

from rmqctl.errors import UsageError
from rmqctl.parse_values import (
    LONG_MAX,
    SPAN,
    SPAN_MS,
    parse_offset,
    parse_size,
    parse_time,
    wall_clock,
)

__all__ = [
    "FieldValue",
    "parse_duration",
    "parse_field_value",
    "parse_integer",
    "parse_offset",
    "parse_percent",
    "parse_property",
    "parse_size",
    "parse_time",
    "parse_time_range",
    "parse_zone",
]

_UTC_OFFSET = re.compile(r"(?:utc|gmt)?([+-])([0-9]{1,2})(?::?([0-5][0-9]))?", re.IGNORECASE)


class FieldValue(NamedTuple):
    """A condition ``FIELD=VALUE``; the value is text, compared by whoever knows the field."""

    field: str
    value: str


def parse_percent(text: str | float) -> float:
    """A share above 0 and up to 1 from ``10%`` or ``0.5%``."""
    if isinstance(text, int | float):
        return float(text)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *%", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a percentage; write 10%")
    share = float(match.group(1)) / 100
    if not 0 < share <= 1:
        raise UsageError(f"{text!r} is not above 0% and at most 100%")
    return share


def parse_field_value(text: str | FieldValue) -> FieldValue:
    """``FIELD=VALUE``; the value may be empty and may hold further ``=``."""
    if isinstance(text, FieldValue):
        return text
    field, equals, value = text.partition("=")
    if not equals or not field.strip():
        raise UsageError(f"{text!r} is not of the form FIELD=VALUE")
    return FieldValue(field.strip(), value)


def parse_integer(text: str | int) -> int:
    """A whole number: decimal, or ``0x`` and hexadecimal digits."""
    if isinstance(text, int):
        return text
    try:
        return int(text, 16 if text.strip().lower().removeprefix("-").startswith("0x") else 10)
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number") from None


def parse_property(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` of a message's property; the value may hold further ``=``."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"{text!r} is not NAME=VALUE")
    return name, value


def parse_duration(text: str | int) -> int:
    """Milliseconds of ``72h``, ``7d``, ``1d12h`` (units ms s m h d w)."""
    if isinstance(text, int):
        return text
    spans = re.fullmatch(r"(?:[0-9]+(?:ms|[smhdw]))+", text.strip().lower())
    if spans is None:
        raise UsageError(f"{text!r} is not a span of time; write 72h, 7d or 1d12h")
    length = sum(int(n) * SPAN_MS[unit] for n, unit in SPAN.findall(spans.group()))
    if length > LONG_MAX:
        raise UsageError(f"{text!r} is longer than any time there is")
    return length


def parse_zone(text: str | tzinfo) -> tzinfo:
    """A time zone: ``UTC``, ``local``, an offset (``+08:00``) or a name (``Asia/Shanghai``)."""
    if isinstance(text, tzinfo):
        return text
    name = text.strip()
    if name.lower() in ("utc", "z", "gmt"):
        return UTC  # needs no time zone data, which slim images lack
    offset = _UTC_OFFSET.fullmatch(name)
    if offset is not None:
        sign, hours, minutes = offset.groups()
        span = timedelta(hours=int(hours), minutes=int(minutes or 0))
        if span >= timedelta(hours=24):
            raise UsageError(f"{text!r} is not a time zone: an offset is less than 24 hours")
        return timezone(-span if sign == "-" else span)
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        if name.lower() == "local":
            return _local_zone()
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise UsageError(
            f"{text!r} is not a time zone known here; write UTC, local, +08:00 or Asia/Shanghai"
        ) from exc


def _local_zone() -> tzinfo:
    """The zone of this machine with its whole history, not only the offset of today."""
    from zoneinfo import ZoneInfo

    name = os.environ.get("TZ", "").removeprefix(":")
    if name:
        return ZoneInfo(name)
    try:
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file, key="local")
    except FileNotFoundError:
        return UTC  # what the C library takes as well


def parse_time_range(
    since: str | None,
    until: str | None,
    *,
    tz: tzinfo = UTC,
    clock: Callable[[], int] = wall_clock,
) -> tuple[int | None, int | None]:
    """``--since`` and ``--until`` as epoch milliseconds, None where not given.

    Both are read against the same "now". Raises UsageError when the range is empty.
    """
    now = clock()
    begin = None if since is None else parse_time(since, tz=tz, clock=lambda: now)
    end = None if until is None else parse_time(until, tz=tz, clock=lambda: now)
    if begin is not None and end is not None and begin > end:
        raise UsageError(f"--since {since} is after --until {until}: no time lies between them")
    return begin, end
