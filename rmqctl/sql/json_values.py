"""Conversion of query values to JSON, for DuckDB and Spark."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def distinct(names: Sequence[str]) -> list[str]:
    """Return the names, made unique: a second ``name`` becomes ``name_2``."""
    taken: dict[str, None] = {}
    for name in names:
        candidate, number = name, 1
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken[candidate] = None
    return list(taken)


def binary_text(value: bytes | bytearray) -> str:
    """Return bytes in Base64."""
    return base64.b64encode(value).decode("ascii")


def moment_text(value: datetime) -> str:
    """Return a time as ISO-8601 text in UTC; interpret a time without a zone as local time, as
    Spark passes it.
    """
    moment = value.astimezone(UTC)
    return moment.isoformat(timespec="microseconds" if moment.microsecond % 1000 else
                            "milliseconds").replace("+00:00", "Z")


def micros_text(value: int) -> str:
    """Return a time in µs since 1970 as ISO-8601, even for years that Python's calendar does not
    support.
    """
    try:
        return moment_text(_EPOCH + timedelta(microseconds=value))
    except OverflowError:
        return f"{np.datetime64(value, 'us')}Z"


def number_of(value: Decimal) -> int | str:
    """Return a whole number as an integer, and any other number as text, which keeps all digits."""
    integral = value.to_integral_value()
    return int(integral) if integral == value else str(value)
