"""The readable part of a configuration file that ends early, or continues with zeros.

Brokers of 5.1 to 5.3 write these files in place: a crash leaves the start of the new content. All
entries that end before the break are complete.
"""

from __future__ import annotations

import re
from typing import Any

from rmqctl.errors import FormatError
from rmqctl.formats.config import config_json

_TOKEN = re.compile(
    r'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+"|[\[{\]},:]|[ \t\r\n]++'
    r'|[-+.0-9A-Za-z]++')
_CLOSING = {"{": "}", "[": "]"}
_DEEP = 2
"""Nesting depth of the entries of a table, which itself is in the file's outermost object."""
_TRIES = 8


def whole_entries(data: bytes) -> tuple[dict[str, Any], int] | None:
    """Return (the object with the entries before the break; the number of bytes read); None if no
    entry can be read.
    """
    text = data.decode("utf-8", "surrogateescape")
    for _ in range(_TRIES):
        end, closing = _last_border(text)
        if not end:
            return None
        try:
            parsed = config_json.parse((text[:end] + closing).encode("utf-8", "surrogateescape"))
        except FormatError as error:  # it was not JSON before the break either
            if error.offset is None or error.offset >= end:
                return None
            text = text[:error.offset]
            continue
        if isinstance(parsed.value, dict) and not parsed.oddities:
            return parsed.value, len(text[:end].encode("utf-8", "surrogateescape"))
        return None
    return None


def _last_border(text: str) -> tuple[int, str]:
    """Return (end of the last complete entry, brackets that close the structures open there). The
    end is 0 if no entry is complete.
    """
    position, open_brackets = 0, ""
    best = 0, ""
    while (token := _TOKEN.match(text, position)) is not None:
        first = token[0][0]
        if first in "{[":
            if len(open_brackets) >= config_json.MAX_DEPTH:
                break  # no configuration is so deep, and each level makes all tokens slower
            open_brackets += first
        elif first in "}]":
            if not open_brackets or _CLOSING[open_brackets[-1]] != first:
                break
            open_brackets = open_brackets[:-1]
            if len(open_brackets) <= _DEEP:
                best = token.end(), open_brackets
        elif first == "," and len(open_brackets) <= _DEEP:
            best = token.start(), open_brackets
        position = token.end()
    end, still_open = best
    return end, "".join(_CLOSING[bracket] for bracket in reversed(still_open))
