"""The text fastjson 1.x writes for a broker's configuration (checkpoint-and-small-files.md §4.1).

"Pretty" style: a tab per level, ``"key":value`` without a space, every text key on a line of its
own. A key that is a number stands bare and on the line of the bracket or of the value before it:
``{0:5,1:7`` with the closing bracket on the next line. The order of keys is the caller's: a
broker has the properties of a bean in alphabetical order and a map in the map's own order. What
is None is written as ``null``; a broker leaves such properties out.

`config_json` reads it back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"',
          "\\": "\\\\"}
_LONG = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000))
_ESCAPES = str.maketrans({chr(code): f"\\u{code:04X}" for code in _LONG} | _SHORT)


def quoted(text: str) -> str:
    """A text between double quotes, with what fastjson escapes (and lone surrogates) escaped."""
    return f'"{text.translate(_ESCAPES)}"'


class Ready(str):
    """What `ready` made: text that stands where a value stands."""

    __slots__ = ()


def ready(value: Any, depth: int) -> Ready:
    """The text of a value that lies ``depth`` levels deep, to be built into others many times."""
    return Ready("".join(_parts(value, depth)))


def build(value: Any) -> bytes:
    """The bytes of a value: mappings, lists, texts, numbers, bools, None, `Ready` ones.

    Keys are texts or ints. TypeError for anything else, ValueError for a float that is no number.
    """
    return "".join(_parts(value, 0)).encode()


def _parts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, Ready):
        yield value
    elif isinstance(value, Mapping):
        yield from _mapping(value, depth)
    elif isinstance(value, list | tuple):
        yield from _sequence(value, depth)
    elif isinstance(value, str):
        yield quoted(value)
    else:
        yield json.dumps(value, allow_nan=False)


def _line(depth: int) -> str:
    return "\n" + "\t" * depth


def _mapping(value: Mapping[Any, Any], depth: int) -> Iterator[str]:
    yield "{"
    for number, (key, inner) in enumerate(value.items()):
        if number:
            yield ","
        if isinstance(key, str):
            yield _line(depth + 1) + quoted(key) + ":"
        elif isinstance(key, int) and not isinstance(key, bool):
            yield f"{key}:"
        else:
            raise TypeError(f"no key of a map: {key!r}")
        yield from _parts(inner, depth + 1)
    yield _line(depth) + "}" if value else "}"


def _sequence(value: list[Any] | tuple[Any, ...], depth: int) -> Iterator[str]:
    yield "["
    for number, inner in enumerate(value):
        yield ("," if number else "") + _line(depth + 1)
        yield from _parts(inner, depth + 1)
    yield _line(depth) + "]" if value else "]"
