"""Text of sizes, offsets and times -> values, for command lines and for options of the data source.

Every refusal is a UsageError that shows the text. The functions also take values that are parsed
already and hand them back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from fractions import Fraction

from rmqctl.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONG_MAX = (1 << 63) - 1

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(?:([kmgtpe])(ib|b|i)?|b)?", re.IGNORECASE)
_POWER = {unit: power for power, unit in enumerate("kmgtpe", start=1)}

_RELATIVE = re.compile(r"(?:now)?([+-])((?:[0-9]+(?:ms|[smhdw]))+)")
SPAN = re.compile(r"([0-9]+)(ms|[smhdw])")
SPAN_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_size(text: str | int) -> int:
    """Bytes of ``64KiB``, ``1.5GiB``, ``10MB`` (10,000,000), ``4K`` (4096) or a plain number.

    A unit alone (``K``) or with ``iB`` counts in 1024, with ``B`` in 1000, in any case.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size; write 1073741824, 64KiB, 1GiB or 10MB")
    number, unit, suffix = match.groups()
    base = 1000 if unit and (suffix or "").lower() == "b" else 1024
    size = Fraction(number) * (base ** _POWER[unit.lower()] if unit else 1)
    if size.denominator != 1:
        raise UsageError(f"{text!r} is not a whole number of bytes")
    if size > LONG_MAX:
        raise UsageError(f"{text!r} is larger than any file can be")
    return int(size)


def parse_offset(text: str | int) -> int:
    """A file, physical or queue offset: decimal or ``0x`` hexadecimal, 0 to 2**63-1."""
    if isinstance(text, int):
        return text
    stripped = text.strip().lower()
    if re.fullmatch("[0-9]+", stripped):
        value = int(stripped)
    elif re.fullmatch("0x[0-9a-f]+", stripped):
        value = int(stripped, 16)
    else:
        raise UsageError(f"{text!r} is not an offset; write 4096 or 0x1000")
    if value > LONG_MAX:
        raise UsageError(f"{text!r} is beyond the largest offset there is (2**63-1)")
    return value


def wall_clock() -> int:
    """Epoch milliseconds of now."""
    return time.time_ns() // 1_000_000


def parse_time(text: str | int, *, tz: tzinfo = UTC, clock: Callable[[], int] = wall_clock) -> int:
    """Epoch milliseconds of a point in time.

    ``1700000000000`` is epoch milliseconds; ``2023-11-14T22:13:20.004+08:00`` or with ``Z`` is
    exact; ``2023-11-14 22:13`` and ``2023-11-14`` (midnight) are in ``tz``; ``-2h``, ``-1d12h``
    (units ms s m h d w), ``+5m`` and ``now`` are relative to ``clock``, which returns epoch
    milliseconds.
    """
    if isinstance(text, int):
        return text
    stripped = text.strip()
    if re.fullmatch("[0-9]{1,19}", stripped):
        return int(stripped)
    if stripped.lower() == "now":
        return clock()
    relative = _RELATIVE.fullmatch(stripped.lower())
    if relative is not None:
        sign, spans = relative.groups()
        distance = sum(int(n) * SPAN_MS[unit] for n, unit in SPAN.findall(spans))
        return clock() + (distance if sign == "+" else -distance)
    try:
        moment = datetime.fromisoformat(stripped)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=tz)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError) as exc:
        raise UsageError(
            f"{text!r} is not a time; write epoch milliseconds (1700000000000), ISO-8601 "
            "(2023-11-14T22:13:20Z, 2023-11-14) or relative to now (-2h, -7d)"
        ) from exc
