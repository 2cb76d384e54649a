"""Text of options -> values, for command lines and for options of the data source.

Every refusal is a UsageError that shows the text. The functions also take values that are parsed
already and hand them back, because typer passes defaults through the same door.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

from rmqctl.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_MAX = (1 << 63) - 1
_CONDITION = re.compile(r"([^=!<>~]+)(==|!=|<=|>=|!~|=|<|>|~)(.*)", re.DOTALL)
_LARGEST_PORT = (1 << 16) - 1
_EVERYWHERE = "0.0.0.0"  # noqa: S104

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(?:([kmgtpe])(ib|b|i)?|b)?", re.IGNORECASE)
_POWER = {unit: power for power, unit in enumerate("kmgtpe", start=1)}

_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_RELATIVE = re.compile(r"(?:now *)?([+-]) *((?:[0-9]+(?:ms|[smhdw]))+)")
_SPAN = re.compile(r"([0-9]+)(ms|[smhdw])")
_SPAN_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UTC_OFFSET = re.compile(r"(?:utc|gmt)?([+-])([0-9]{1,2})(?::?([0-5][0-9]))?", re.IGNORECASE)


_LONG_MAX_TEXT = str(_LONG_MAX)
"""What mqadmin hands over as "no end" of a range of times (``Long.MAX_VALUE``)."""
_DATES_OF_DIGITS = {8: "yyyyMMdd", 14: "yyyyMMddHHmmss"}
_SECONDS_DIGITS, _MILLIS_DIGITS = 10, 13
"""Digits of epoch seconds and milliseconds from September 2001 to the year 2286."""


def ungrouped(text: str) -> str:
    """``text`` without the commas that group the digits of a number, as rmqctl prints them.

    ``1,048,576 B`` becomes ``1048576 B``; commas in other places stay, to be refused.
    """
    stripped = text.strip()
    grouped = _GROUPED.match(stripped)
    return stripped if grouped is None else (
        grouped.group().replace(",", "") + stripped[grouped.end():])


def parse_size(text: str | int) -> int:
    """Bytes of ``64KiB``, ``1.5GiB``, ``10MB`` (10,000,000), ``4K`` (4096) or a plain number.

    A unit alone (``K``) or with ``iB`` counts in 1024, with ``B`` in 1000, in any case.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(ungrouped(text))
    if match is None:
        raise UsageError(f"{text!r} is not a size; write 1073741824, 64KiB, 1GiB or 10MB")
    number, unit, suffix = match.groups()
    base = 1000 if unit and (suffix or "").lower() == "b" else 1024
    whole, _, decimals = number.partition(".")
    factor: int = base ** _POWER[unit.lower()] if unit else 1
    divisor: int = 10 ** len(decimals)
    size, rest = divmod(int(whole + decimals) * factor, divisor)
    if rest:
        raise UsageError(f"{text!r} is not a whole number of bytes")
    if size > _LONG_MAX:
        raise UsageError(f"{text!r} is larger than any file can be")
    return size


def parse_offset(text: str | int) -> int:
    """A file, physical or queue offset: decimal or ``0x`` hexadecimal, 0 to 2**63-1."""
    if isinstance(text, int):
        return text
    stripped = ungrouped(text).lower()
    if re.fullmatch("[0-9]+", stripped):
        value = int(stripped)
    elif re.fullmatch("0x[0-9a-f]+", stripped):
        value = int(stripped, 16)
    else:
        raise UsageError(f"{text!r} is not an offset; write 4096 or 0x1000")
    if value > _LONG_MAX:
        raise UsageError(f"{text!r} is beyond the largest offset there is (2**63-1)")
    return value


def now_ms() -> int:
    """Epoch milliseconds of now."""
    return time.time_ns() // 1_000_000


def parse_time(text: str | int, *, tz: tzinfo = UTC, clock: Callable[[], int] = now_ms) -> int:
    """Epoch milliseconds of a point in time.

    ``2023-11-14T22:13:20.004+08:00`` or with ``Z`` is exact; ``2023-11-14 22:13``, ``2023-11-14
    22:13:20,004`` (as a broker's own log has it) and ``2023-11-14`` (midnight) are in ``tz``;
    ``-2h``, ``-1d12h`` (units ms s m h d w), ``+5m``, ``now`` and ``now-2h`` are relative to
    ``clock``, which returns epoch milliseconds. What is only digits is told by their number: see
    `_of_digits`.
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
            f"{text!r} is not a time; write ISO-8601 (2023-11-14T22:13:20Z, 2023-11-14), epoch "
            "milliseconds (1700000000000) or relative to now (-2h, -7d)"
        ) from exc


_shown_in: ContextVar[tzinfo] = ContextVar("shown_in", default=UTC)


def show_times_in(zone: tzinfo) -> None:
    """`time_text` shows times in ``zone`` from here on, where it is given no other.

    Sentences are made deep in the library, where no option reaches. It holds for the command that
    says so and for the threads that work for it (each command runs in a context of its own).
    """
    _shown_in.set(zone)


def time_text(millis: int, tz: tzinfo | None = None) -> str:
    """Epoch milliseconds as ISO-8601 with milliseconds and zone: ``2023-11-14T22:13:20.004Z``.

    ``tz`` None: the zone of `show_times_in`, else UTC. A number outside the calendar (years 1 to
    9999), as damage produces them, is shown as it is.
    """
    try:
        moment = (_EPOCH + timedelta(milliseconds=millis)).astimezone(tz or _shown_in.get())
    except (OverflowError, ValueError):
        return f"{millis} ms"
    text = moment.isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def time_or_zero(millis: int, tz: tzinfo | None = None) -> str:
    """`time_text` of a field in which 0 stands for "never": ``0`` stays what it is."""
    return time_text(millis, tz) if millis else "0"


def _of_digits(digits: str, tz: tzinfo) -> int:
    """Epoch milliseconds of 8 digits (yyyyMMdd), 10 (epoch seconds), 13 (epoch milliseconds) or
    14 (yyyyMMddHHmmss); ``0`` and Java's ``Long.MAX_VALUE`` are the ends of all times. Anything
    else of digits could be meant in more than one way, and is refused.
    """
    if digits in ("0", _LONG_MAX_TEXT) or len(digits) == _MILLIS_DIGITS:
        return int(digits)
    if len(digits) == _SECONDS_DIGITS:
        return int(digits) * 1000
    form = _DATES_OF_DIGITS.get(len(digits))
    if form is None:
        raise UsageError(
            f"{digits[:40]!r} is not a time: of digits only, epoch milliseconds have 13, epoch "
            "seconds 10, yyyyMMdd has 8 and yyyyMMddHHmmss 14")
    try:
        return _epoch_ms(datetime.fromisoformat("T".join(filter(None, (digits[:8], digits[8:])))),
                         tz)
    except (ValueError, OverflowError) as exc:
        raise UsageError(f"{digits!r} is not a time: there is none when it is read as {form}"
                         ) from exc


def _epoch_ms(moment: datetime, tz: tzinfo) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=tz)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


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


def parse_watermark(text: str | float) -> float:
    """The share of a disk above which puts are refused: ``90%`` up to ``100%`` (never)."""
    if isinstance(text, int | float):
        return float(text)
    number = text.strip().removesuffix("%").strip()
    if number.isascii() and number.replace(".", "", 1).isdigit() and 0 < float(number) <= 100:
        return float(number) / 100
    raise UsageError(f"{text!r} is not a share of the disk; write 90%, or 100% for no limit")


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
    digits = ungrouped(text)
    try:
        return int(digits, 16 if digits.lower().removeprefix("-").startswith("0x") else 10)
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number") from None


def parse_property(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` of a message's property; the value may hold further ``=``."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"{text!r} is not NAME=VALUE")
    return name, value


class RawCondition(NamedTuple):
    """A condition on messages as typed."""

    field: str
    operator: str
    value: str


def parse_condition(text: str | RawCondition) -> RawCondition:
    """``FIELD=VALUE`` with one of ``= != < <= > >= ~ !~``; UsageError shows the text."""
    if isinstance(text, RawCondition):
        return text
    match = _CONDITION.fullmatch(text)
    if match is None or not match.group(1).strip():
        raise UsageError(f"{text!r} is not of the form FIELD=VALUE; the comparisons are = != < <= "
                         "> >= and ~ !~ (regular expression)")
    field, operator, value = match.groups()
    return RawCondition(field.strip(), "=" if operator == "==" else operator, value)


@dataclass(frozen=True, slots=True)
class Address:
    """Where something listens, as text ``127.0.0.1:9876``."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str | Address) -> Address:
    """``127.0.0.1:9876``, ``[::1]:9876``, or ``:9876`` for every address of this machine."""
    if isinstance(text, Address):
        return text
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/]*)):([0-9]{1,5})", text.strip())
    if found is None or int(found[3]) > _LARGEST_PORT:
        raise UsageError(f"{text!r} is not HOST:PORT; write 127.0.0.1:9876 or [::1]:9876")
    return Address(found[1] or found[2] or _EVERYWHERE, int(found[3]))


def is_url(target: str) -> bool:
    """Return whether a place is one for fsspec: ``memory://…``, ``s3://…``."""
    return "://" in target


def parse_duration(text: str | int) -> int:
    """Milliseconds of ``72h``, ``7d``, ``1d12h`` (units ms s m h d w)."""
    if isinstance(text, int):
        return text
    spans = re.fullmatch(r"(?:[0-9]+(?:ms|[smhdw]))+", text.strip().lower())
    if spans is None:
        raise UsageError(f"{text!r} is not a span of time; write 72h, 7d or 1d12h")
    return _millis_of(spans.group())


def _millis_of(spans: str) -> int:
    """Milliseconds of ``1d12h``. UsageError when it is longer than a Java long can say."""
    length = sum(int(digits[:30]) * _SPAN_MS[unit] for digits, unit in _SPAN.findall(spans))
    if length > _LONG_MAX >> 1:
        raise UsageError(f"{spans[:40]!r} is longer than any time there is")
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


def parse_time_range(since: str | None, until: str | None, *, tz: tzinfo = UTC,
                     clock: Callable[[], int] = now_ms) -> tuple[int | None, int | None]:
    """``--since`` and ``--until`` as epoch milliseconds, None where not given.

    Both are read against the same "now". Raises UsageError when the range is empty.
    """
    now = clock()
    begin = None if since is None else parse_time(since, tz=tz, clock=lambda: now)
    end = None if until is None else parse_time(until, tz=tz, clock=lambda: now)
    if begin is not None and end is not None and begin > end:
        raise UsageError(f"--since {since} is after --until {until}: no time lies between them")
    return begin, end
