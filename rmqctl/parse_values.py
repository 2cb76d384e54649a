"""Conversion of option texts to values, for command lines and for options of the data source.

An invalid text raises UsageError with the text. Parsed values are accepted and returned as they
are, because typer also passes default values to these functions.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

from rmqctl.errors import UsageError
from rmqctl.lazy_dataclass import dataclass

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_MAX = (1 << 63) - 1
_CONDITION = re.compile(r"([^=!<>~]+)(==|!=|<=|>=|!~|=|<|>|~)(.*)", re.DOTALL)
_MAX_PORT = (1 << 16) - 1
_EVERYWHERE = "0.0.0.0"  # noqa: S104

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(?:([kmgtpe])(ib|b|i)?|b)?", re.IGNORECASE)
_POWER = {unit: power for power, unit in enumerate("kmgtpe", start=1)}

_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_RELATIVE = re.compile(r"(?:now *)?([+-]) *((?:[0-9]+(?:ms|[smhdw]))+)")
_SPAN = re.compile(r"([0-9]+)(ms|[smhdw])")
_SPAN_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UTC_OFFSET = re.compile(r"(?:utc|gmt)?([+-])([0-9]{1,2})(?::?([0-5][0-9]))?", re.IGNORECASE)


_LONG_MAX_TEXT = str(_LONG_MAX)
"""The value with which mqadmin indicates a time range without an end (``Long.MAX_VALUE``)."""
_DATES_OF_DIGITS = {8: "yyyyMMdd", 14: "yyyyMMddHHmmss"}
_SECONDS_DIGITS, _MILLIS_DIGITS = 10, 13
"""``_SECONDS_DIGITS``, ``_MILLIS_DIGITS``: number of digits of epoch seconds and of epoch
milliseconds, from September 2001 to the year 2286.
"""


def ungrouped(text: str) -> str:
    """Return ``text`` without thousands separators, which rmqctl prints.

    ``1,048,576 B`` becomes ``1048576 B``. Commas at other positions remain and are rejected later.
    """
    stripped = text.strip()
    grouped = _GROUPED.match(stripped)
    return stripped if grouped is None else (
        grouped.group().replace(",", "") + stripped[grouped.end():])


def parse_size(text: str | int) -> int:
    """Return the number of bytes for ``64KiB``, ``1.5GiB``, ``10MB`` (10,000,000), ``4K`` (4096) or
    a plain number.

    ``K`` and ``KiB`` are 1024 bytes, ``KB`` is 1000; other units likewise. Case is ignored.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(ungrouped(text))
    if match is None:
        raise UsageError(f"invalid size {text!r}; expected, for example, 1073741824, 64KiB, 1GiB "
                         "or 10MB")
    number, unit, suffix = match.groups()
    base = 1000 if unit and (suffix or "").lower() == "b" else 1024
    whole, _, decimals = number.partition(".")
    factor: int = base ** _POWER[unit.lower()] if unit else 1
    divisor: int = 10 ** len(decimals)
    size, rest = divmod(int(whole + decimals) * factor, divisor)
    if rest:
        raise UsageError(f"size {text!r} is not an integer number of bytes")
    if size > _LONG_MAX:
        raise UsageError(f"size {text!r} exceeds the maximum file size")
    return size


def parse_offset(text: str | int) -> int:
    """Parse a position in a file, a physical offset or a queue offset (0 to 2**63-1): decimal
    digits, or ``0x`` and hexadecimal digits.
    """
    if isinstance(text, int):
        return text
    stripped = ungrouped(text).lower()
    if re.fullmatch("[0-9]+", stripped):
        value = int(stripped)
    elif re.fullmatch("0x[0-9a-f]+", stripped):
        value = int(stripped, 16)
    else:
        raise UsageError(f"invalid offset {text!r}; expected, for example, 4096 or 0x1000")
    if value > _LONG_MAX:
        raise UsageError(f"offset {text!r} exceeds the maximum (2**63-1)")
    return value


def now_ms() -> int:
    """Return the current time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def parse_time(text: str | int, *, tz: tzinfo = UTC, clock: Callable[[], int] = now_ms) -> int:
    """Return the epoch milliseconds of a point in time. Accepted forms:

    * ``2023-11-14T22:13:20.004+08:00``, or with ``Z``: exact.
    * ``2023-11-14 22:13``, ``2023-11-14 22:13:20,004`` (as in a broker's own log), ``2023-11-14``
      (midnight): in ``tz``.
    * ``-2h``, ``-1d12h`` (units ms s m h d w), ``+5m``, ``now``, ``now-2h``: relative to ``clock``,
      which returns epoch milliseconds.
    * Digits: see `_of_digits`.

    Raises: UsageError for all other texts.
    """
    if isinstance(text, int):
        return text
    stripped = text.strip()
    if re.fullmatch("[0-9]+", stripped):
        return _of_digits(stripped, tz)
    if stripped.lower() == "now":
        return clock()
    relative = _RELATIVE.fullmatch(stripped.lower())
    if relative is not None:
        sign, spans = relative.groups()
        return clock() + (_millis_of(spans) if sign == "+" else -_millis_of(spans))
    try:
        return _epoch_ms(datetime.fromisoformat(stripped), tz)
    except (ValueError, OverflowError) as exc:
        raise UsageError(
            f"invalid time {text!r}; expected ISO-8601 (2023-11-14T22:13:20Z, 2023-11-14), epoch "
            "milliseconds (1700000000000) or a relative time (-2h, -7d)"
        ) from exc


_shown_in: ContextVar[tzinfo] = ContextVar("shown_in", default=UTC)


def show_times_in(zone: tzinfo) -> None:
    """Let `time_text` show times in ``zone`` from now on, unless a call passes another zone.

    The library, which builds sentences with times, does not know the options of the command. The
    zone applies to the running command and its threads.
    """
    _shown_in.set(zone)


def time_text(millis: int, tz: tzinfo | None = None) -> str:
    """Return epoch milliseconds as ISO-8601 with milliseconds and zone:
    ``2023-11-14T22:13:20.004Z``.

    ``tz``: by default the zone of `show_times_in`, or UTC. A number outside the calendar (years 1
    to 9999) is returned as a number of ms.
    """
    try:
        moment = (_EPOCH + timedelta(milliseconds=millis)).astimezone(tz or _shown_in.get())
    except (OverflowError, ValueError):
        return f"{millis} ms"
    text = moment.isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def time_or_zero(millis: int, tz: tzinfo | None = None) -> str:
    """Return the `time_text` of a field in which 0 means "never"; ``0`` for 0."""
    return time_text(millis, tz) if millis else "0"


def _of_digits(digits: str, tz: tzinfo) -> int:
    """Return the epoch milliseconds for a time of 8 digits (yyyyMMdd), 10 (epoch seconds), 13
    (epoch milliseconds) or 14 (yyyyMMddHHmmss).

    ``0`` and Java's ``Long.MAX_VALUE`` are the earliest and the latest time.

    Raises: UsageError for all other texts.
    """
    if digits in ("0", _LONG_MAX_TEXT) or len(digits) == _MILLIS_DIGITS:
        return int(digits)
    if len(digits) == _SECONDS_DIGITS:
        return int(digits) * 1000
    form = _DATES_OF_DIGITS.get(len(digits))
    if form is None:
        raise UsageError(
            f"invalid time {digits[:40]!r}: epoch milliseconds have 13 digits, epoch seconds 10, "
            "yyyyMMdd has 8 and yyyyMMddHHmmss 14")
    try:
        return _epoch_ms(datetime.fromisoformat("T".join(filter(None, (digits[:8], digits[8:])))),
                         tz)
    except (ValueError, OverflowError) as exc:
        raise UsageError(f"invalid time {digits!r}: does not exist as {form}"
                         ) from exc


def _epoch_ms(moment: datetime, tz: tzinfo) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=tz)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


class FieldValue(NamedTuple):
    """A condition ``FIELD=VALUE``. The value is a string; the code that compares it knows the type
    of the field.
    """

    field: str
    value: str


def parse_percent(text: str | float) -> float:
    """Return a share (above 0, at most 1) from a text such as ``10%`` or ``0.5%``."""
    if isinstance(text, int | float):
        return float(text)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *%", text.strip())
    if match is None:
        raise UsageError(f"invalid percentage {text!r}; expected, for example, 10%")
    share = float(match.group(1)) / 100
    if not 0 < share <= 1:
        raise UsageError(f"{text!r} must be above 0% and at most 100%")
    return share


def parse_watermark(text: str | float) -> float:
    """Return the share of a disk above which messages are rejected, from a text such as ``90%``, or
    ``100%`` (never).
    """
    if isinstance(text, int | float):
        return float(text)
    number = text.strip().removesuffix("%").strip()
    if number.isascii() and number.replace(".", "", 1).isdigit() and 0 < float(number) <= 100:
        return float(number) / 100
    raise UsageError(f"invalid disk usage {text!r}; expected, for example, 90%, or 100% for no "
                     "limit")


def parse_field_value(text: str | FieldValue) -> FieldValue:
    """Parse ``FIELD=VALUE``. The value may be empty, and may contain ``=``."""
    if isinstance(text, FieldValue):
        return text
    field, equals, value = text.partition("=")
    if not equals or not field.strip():
        raise UsageError(f"expected FIELD=VALUE, got {text!r}")
    return FieldValue(field.strip(), value)


def parse_integer(text: str | int) -> int:
    """Parse an integer: decimal, or ``0x`` and hexadecimal digits."""
    if isinstance(text, int):
        return text
    digits = ungrouped(text)
    try:
        return int(digits, 16 if digits.lower().removeprefix("-").startswith("0x") else 10)
    except ValueError:
        raise UsageError(f"expected an integer, got {text!r}") from None


def parse_property(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``, a property of a message. The value may contain ``=``."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"expected NAME=VALUE, got {text!r}")
    return name, value


class RawCondition(NamedTuple):
    """A condition on messages, as the user typed it."""

    field: str
    operator: str
    value: str


def parse_condition(text: str | RawCondition) -> RawCondition:
    """Parse a condition ``FIELD=VALUE``, or with another operator: ``!= < <= > >= ~ !~``.
    Raises: UsageError with the text.
    """
    if isinstance(text, RawCondition):
        return text
    match = _CONDITION.fullmatch(text)
    if match is None or not match.group(1).strip():
        raise UsageError(f"expected FIELD=VALUE, got {text!r}; comparisons are = != < <= > >= and "
                         "~ !~ (regular expression)")
    field, operator, value = match.groups()
    return RawCondition(field.strip(), "=" if operator == "==" else operator, value)


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on, such as ``127.0.0.1:9876``."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str | Address) -> Address:
    """Parse ``127.0.0.1:9876``, ``[::1]:9876``, or ``:9876`` for every address of this machine."""
    if isinstance(text, Address):
        return text
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/]*)):([0-9]{1,5})", text.strip())
    if match is None or int(match[3]) > _MAX_PORT:
        raise UsageError(f"expected HOST:PORT, got {text!r}; for example 127.0.0.1:9876 or "
                         "[::1]:9876")
    return Address(match[1] or match[2] or _EVERYWHERE, int(match[3]))


def is_url(target: str) -> bool:
    """Return whether a location is an fsspec URL: ``memory://…``, ``s3://…``."""
    return "://" in target


def parse_duration(text: str | int) -> int:
    """Return the number of milliseconds for ``72h``, ``7d`` or ``1d12h`` (units ms s m h d w)."""
    if isinstance(text, int):
        return text
    spans = re.fullmatch(r"(?:[0-9]+(?:ms|[smhdw]))+", text.strip().lower())
    if spans is None:
        raise UsageError(f"invalid duration {text!r}; expected, for example, 72h, 7d or 1d12h")
    return _millis_of(spans.group())


def _millis_of(spans: str) -> int:
    """Return the number of milliseconds for a text such as ``1d12h``.
    Raises: UsageError if it exceeds a Java long.
    """
    length = sum(int(digits[:30]) * _SPAN_MS[unit] for digits, unit in _SPAN.findall(spans))
    if length > _LONG_MAX >> 1:
        raise UsageError(f"duration {spans[:40]!r} is too long")
    return length


def parse_zone(text: str | tzinfo) -> tzinfo:
    """Return a time zone, from ``UTC``, ``local``, an offset (``+08:00``) or a name
    (``Asia/Shanghai``).
    """
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
            raise UsageError(f"invalid time zone {text!r}: an offset must be less than 24 hours")
        return timezone(-span if sign == "-" else span)
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        if name.lower() == "local":
            return _local_zone()
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise UsageError(
            f"unknown time zone {text!r}; expected, for example, UTC, local, +08:00 or "
            "Asia/Shanghai"
        ) from exc


def _local_zone() -> tzinfo:
    """Return the time zone of this machine, with its offsets at all times, not only the current
    offset.
    """
    from zoneinfo import ZoneInfo

    name = os.environ.get("TZ", "").removeprefix(":")
    if name:
        return ZoneInfo(name)
    try:
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file, key="local")
    except FileNotFoundError:
        return UTC  # what the C library accepts as well


def parse_time_range(since: str | None, until: str | None, *, tz: tzinfo = UTC,
                     clock: Callable[[], int] = now_ms) -> tuple[int | None, int | None]:
    """Return ``--since`` and ``--until`` as epoch milliseconds; None if not given. Relative times
    refer to the same "now".

    Raises: UsageError if the range is empty.
    """
    now = clock()
    begin = None if since is None else parse_time(since, tz=tz, clock=lambda: now)
    end = None if until is None else parse_time(until, tz=tz, clock=lambda: now)
    if begin is not None and end is not None and begin > end:
        raise UsageError(f"--since {since} is after --until {until}")
    return begin, end
