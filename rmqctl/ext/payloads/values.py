"""Convert decoded values to JSON types within bounds, and select fields of them by path."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from rmqctl.formats.budget import Budget

_MAX_BITS = 12_000
"""Maximum bits of an integer: larger integers take quadratic time to write, and Python rejects
them.
"""


def plain(value: Any) -> Any:
    """Return a copy of ``value`` that consists of dicts with text keys, lists, str, int, float,
    bool and None.

    * Times become epoch ms, or ISO-8601 text if they have no time zone.
    * Bytes become base64; Decimals and UUIDs become text.
    * Non-finite numbers become None.
    * Invalid characters become U+FFFD.

    Raises: ValueError if the `Budget` of a body is exceeded, or for any other type.
    """
    return _Plain().copy(value, 0)


class _Plain:
    def __init__(self) -> None:
        self._budget = Budget()

    def copy(self, value: Any, depth: int) -> Any:
        budget = self._budget
        if value is None or isinstance(value, bool):
            budget.take()
            return value
        if isinstance(value, str):
            budget.take(len(value))
            return _characters(value)
        if isinstance(value, int):
            budget.take()
            return _whole(value)
        if isinstance(value, float):
            budget.take()
            return float(value) if math.isfinite(value) else None
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            budget.container(depth)
            if isinstance(value, Mapping):
                return {self._key(key): self.copy(item, depth + 1) for key, item in value.items()}
            return [self.copy(item, depth + 1) for item in value]
        leaf = _leaf(value)
        budget.take(len(leaf) if isinstance(leaf, str) else 0)
        return leaf

    def _key(self, key: Any) -> str:
        text = _key(key)
        self._budget.text(len(text))
        return text


def _whole(value: int) -> int:
    if value.bit_length() > _MAX_BITS:
        raise ValueError(f"contains an integer of more than {_MAX_BITS:,} bits")
    return int(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return value.isoformat() if value.tzinfo is None else round(value.timestamp() * 1000)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise ValueError(f"contains a value of type {type(value).__name__}, which JSON "
                     "does not support")


def _characters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates; a pair is one character
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return str(text)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return _characters(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, list | tuple | Mapping):
        raise ValueError("the key of a map is a list")  # noqa: TRY004
    if isinstance(key, int):
        return str(_whole(key))
    return str(_leaf(key) if not isinstance(key, float) else key)
