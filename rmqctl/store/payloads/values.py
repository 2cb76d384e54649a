"""Decoded values as JSON knows them, within bounds, and fields of them by path."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

MOST_VALUES = 1_000_000
"""Values in one body, those counted again that stand in several places."""
MOST_DEPTH = 100
MISSING: Any = object()
"""What `at` gives where a body has no such field."""


def plain(value: Any) -> Any:
    """A copy of ``value`` made of dicts with text keys, lists, text, int, float, bool and None.

    Moments become epoch ms (without a zone: ISO-8601 text), bytes base64, Decimals and UUIDs text,
    numbers that are not finite None; what is no character becomes U+FFFD. ValueError beyond
    `MOST_VALUES` or `MOST_DEPTH`, or for a type that is none of these.
    """
    return _Plain().copy(value, 0)


class _Plain:
    def __init__(self) -> None:
        self._left = MOST_VALUES

    def copy(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {MOST_VALUES:,} values")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _characters(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else None
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            if depth >= MOST_DEPTH:
                raise ValueError(f"nested deeper than {MOST_DEPTH} levels")
            if isinstance(value, Mapping):
                return {_key(key): self.copy(item, depth + 1) for key, item in value.items()}
            return [self.copy(item, depth + 1) for item in value]
        return _leaf(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return value.isoformat() if value.tzinfo is None else round(value.timestamp() * 1000)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise ValueError(f"holds a {type(value).__name__}, which JSON has no form for")


def _characters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates; two that belong together are one character
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return str(text)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return _characters(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, list | tuple | Mapping):
        raise ValueError("a list is the key of a map")  # noqa: TRY004
    return str(_leaf(key) if not isinstance(key, int | float) else key)


def at(value: Any, path: tuple[str, ...]) -> Any:
    """The field of a plain value that names lead to, or `MISSING`. A number leads into a list."""
    for name in path:
        if isinstance(value, dict):
            value = value.get(name, MISSING)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10:
            value = value[int(name)] if int(name) < len(value) else MISSING
        else:
            return MISSING
    return value
