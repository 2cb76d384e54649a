"""The filter line: conditions as in ``read --where``, and text to search for."""

from __future__ import annotations

import re
from collections.abc import Callable

from rmqctl.errors import UsageError
from rmqctl.store.query.conditions import TEXT, Condition

_AND = re.compile(r"\s+&&\s+")
_FIELD = re.compile(r"\s*[A-Za-z_][\w.]*\s*(==|!=|<=|>=|!~|=|<|>|~)")

Parse = Callable[[str], Condition]
"""Function that parses one condition, such as ``tags=A``. Raises UsageError."""


def conditions_of(text: str, parse: Parse) -> tuple[Condition, ...]:
    """Return the conditions of a filter line; a message must meet all of them.
    Raises: UsageError.

    ``tags=A && body~^x`` is two conditions. Text without a comparison, or in double quotes, is
    searched for in tags, keys and body.
    """
    return tuple(_condition(part.strip(), parse) for part in _AND.split(text) if part.strip())


def _condition(part: str, parse: Parse) -> Condition:
    if len(part) > 1 and part[0] == part[-1] == '"':
        return Condition(TEXT, "=", part[1:-1])
    if _FIELD.match(part) is None:
        return Condition(TEXT, "=", part)
    try:
        return parse(part)
    except UsageError as error:
        raise UsageError(f'{error} (to search for text: "{part}")') from None
