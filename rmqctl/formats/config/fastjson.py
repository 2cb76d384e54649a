"""The text that fastjson 1.x writes for a broker's configuration (checkpoint-and-small-files.md
§4.1).

"Pretty" style:

* One tab per level; ``"key":value`` without a space.
* Each text key is on a line of its own.
* A numeric key is bare, on the line of the bracket or of the previous value: ``{0:5,1:7`` with the
  closing bracket on the next line.
* None is written as ``null``; a broker omits such properties.

The caller decides the order of keys. A broker writes the properties of a bean in alphabetical
order, and a map in the map's own order. `config_json` reads this text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"',
          "\\": "\\\\"}
_LONG = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000))
_ESCAPES = str.maketrans({chr(code): f"\\u{code:04X}" for code in _LONG} | _SHORT)
_WORDS = {None: "null", True: "true", False: "false"}


def quoted(text: str) -> str:
    """Return a text in double quotes; characters that fastjson escapes, and lone surrogates, are
    escaped.
    """
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'  # most texts need no escapes
    return f'"{text.translate(_ESCAPES)}"'


class Ready(str):
    """The result of `ready`: the text of a value."""

    __slots__ = ()


def ready(value: Any, depth: int) -> Ready:
    """Return the text of a value at level ``depth``, for repeated use in other values."""
    parts: list[str] = []
    _add(parts, value, depth)
    return Ready("".join(parts))


def build(value: Any) -> bytes:
    """Return the bytes of a value: mappings, lists, texts, numbers, bools, None, `Ready` values.

    Keys are texts or ints.

    Raises: TypeError for any other type, ValueError for a float that is not a number.
    """
    return ready(value, 0).encode()


def _add(parts: list[str], value: Any, depth: int) -> None:
    if type(value) is int:
        parts.append(str(value))
    elif isinstance(value, Ready):
        parts.append(value)
    elif isinstance(value, str):
        parts.append(quoted(value))
    elif isinstance(value, Mapping):
        _add_mapping(parts, value, depth)
    elif isinstance(value, list | tuple):
        _add_sequence(parts, value, depth)
    else:
        parts.append(_WORDS[value] if value is None or value is True or value is False
                     else json.dumps(value, allow_nan=False))


def _line(depth: int) -> str:
    return "\n" + "\t" * depth


def _add_mapping(parts: list[str], value: Mapping[Any, Any], depth: int) -> None:
    line, before = _line(depth + 1), "{"
    for key, inner in value.items():
        if isinstance(key, str):
            name = f"{before}{line}{quoted(key)}:"
        elif isinstance(key, int) and not isinstance(key, bool):
            name = f"{before}{key}:"
        else:
            raise TypeError(f"invalid key of a map: {key!r}")
        before = ","
        if type(inner) is int:
            parts.append(f"{name}{inner}")
        else:
            parts.append(name)
            _add(parts, inner, depth + 1)
    parts.append(_line(depth) + "}" if value else "{}")


def _add_sequence(parts: list[str], value: list[Any] | tuple[Any, ...], depth: int) -> None:
    line, before = _line(depth + 1), "["
    for inner in value:
        parts.append(before + line)
        before = ","
        _add(parts, inner, depth + 1)
    parts.append(_line(depth) + "]" if value else "[]")
